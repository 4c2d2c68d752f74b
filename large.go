// SPDX-License-Identifier: Apache-2.0

package yodel

// Copies of large bodies cost more than anything else that is done for a call. The raw codec needs none: what it encodes is sent
// from the user's memory, and what it decodes may become the user's, when the connection has it in memory of its own. Of 1 MiB each
// way that saves four copies, and the memory for three.

// largeBody is from where on that is worth a thought. Smaller bodies are copied into memory that is used again.
const largeBody = 16 << 10

// encoded returns the bytes of v themselves when they are the body already, and large.
func encoded(c Codec, v any) (body []byte, ok bool) {
	if c != Raw {
		return nil, false
	}
	switch v := v.(type) {
	case []byte:
		body = v
	case *[]byte:
		if v != nil {
			body = *v
		}
	}
	return body, len(body) >= largeBody
}

// decodeOwn is decodeBody for a body whose memory nobody else uses, if own says so: then v may have it.
func decodeOwn(body []byte, own bool, c Codec, v any) error {
	if p, ok := v.(*[]byte); ok && own && c == Raw && p != nil && len(body) > max(cap(*p), largeBody) {
		*p = body
		return nil
	}
	return decodeBody(body, c, v)
}
