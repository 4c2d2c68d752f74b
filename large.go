// SPDX-License-Identifier: Apache-2.0

package yodel

import "github.com/yodel-rpc/yodel/internal/rawcodec"

// Copies of large bodies cost more than all other work of a call. The raw codec avoids such copies.
// It sends the user's memory. If the connection has allocated a buffer for a received message, the
// codec may pass that buffer to the user. For a call with 1 MiB in each direction, that saves four
// copies, and the memory of three of them.

// largeBody is the size, in bytes, from which the raw codec avoids copies. Smaller bodies are
// copied into memory that is reused.
const largeBody = 16 << 10

// encoded returns the bytes of v without a copy, if v is already the encoded body.
func encoded(c Codec, v any) (body []byte, ok bool) {
	if e, ok := v.(*Encoded); ok {
		return e.Body, true
	}
	if c != Raw {
		return nil, false
	}
	body, err := rawcodec.Bytes[View](v)
	return body, err == nil
}

// recipient returns the slice in v that takes over a large body without a copy. It returns nil if
// the body has to be decoded or fits into the capacity of v.
func recipient(body []byte, c Codec, v any) *[]byte {
	if c != Raw || len(body) <= largeBody {
		return nil
	}
	if p := rawcodec.Pointer[View](v); p != nil && len(body) > cap(*p) {
		return p
	}
	return nil
}
