// SPDX-License-Identifier: Apache-2.0

package yodel

// Copies of large bodies cost more than anything else that is done for a call. The raw codec needs
// none: what it encodes is sent from the user's memory, and what it decodes may become the user's,
// when the connection has it in memory of its own. Of 1 MiB each way that saves four copies, and
// the memory for three.

// largeBody is from where on that is worth a thought. Smaller bodies are copied into memory that is
// used again.
const largeBody = 16 << 10

// encoded returns the bytes of v themselves when they are the body already.
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

// recipient returns where a body that is large goes as it is, if it need not be copied and v has no
// room for it yet.
func recipient(body []byte, c Codec, v any) *[]byte {
	if c != Raw || len(body) <= largeBody {
		return nil
	}
	if p := rawPointer(v); p != nil && len(body) > cap(*p) {
		return p
	}
	return nil
}
