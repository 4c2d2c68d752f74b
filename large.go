// SPDX-License-Identifier: Apache-2.0

package yodel

// Copies of large bodies cost more than all other work of a call. The raw codec avoids them: it
// sends the user's memory, and the user may get the received buffer if the connection has allocated
// one for the message. For 1 MiB each way that saves four copies, and the memory of three.

// largeBody is the size from which copies are avoided, in bytes. Smaller bodies are copied into
// memory that is reused.
const largeBody = 16 << 10

// encoded returns the bytes of v without a copy, if v is already the encoded body.
func encoded(c Codec, v any) (body []byte, ok bool) {
	if e, ok := v.(*Encoded); ok {
		return e.Body, true
	}
	if c != Raw {
		return nil, false
	}
	body, err := rawBytes(v)
	return body, err == nil
}

// recipient returns the slice in v that takes over a large body without a copy. It returns nil if
// the body has to be decoded or fits into the capacity of v.
func recipient(body []byte, c Codec, v any) *[]byte {
	if c != Raw || len(body) <= largeBody {
		return nil
	}
	if p := rawPointer(v); p != nil && len(body) > cap(*p) {
		return p
	}
	return nil
}
