// SPDX-License-Identifier: Apache-2.0

// Package parts divides a message among frames.
package parts

// Parts are consecutive parts of a message: the length of the body if there is an attachment, the
// body, and the attachment.
type Parts [3][]byte

// little is how many bytes are copied rather than sent or read separately.
const little = 4 << 10

// Size returns how many bytes the parts have.
func (p *Parts) Size() int { return len(p[0]) + len(p[1]) + len(p[2]) }

// Opening returns how many bytes of a large message go into its first frame, which has space for
// room bytes. Each of the next frames has space for as many as most says. Both sides copy the bytes
// of the first frame. They do not copy the bytes of the other frames, but each of those frames
// costs a read. So if a message is only a little longer than room, it fills the first frame.
// Otherwise the first frame takes the bytes that would not fill a whole further frame, if they are
// few. It always takes the length of the body.
func (p *Parts) Opening(room, most int) int {
	prefix, size := len(p[0]), p.Size()
	if size-room <= little {
		return room
	}
	if odd := (size - prefix) % most; odd <= little {
		return prefix + odd
	}
	return prefix
}

// Take removes the first n bytes and returns them.
func (p *Parts) Take(n int) (taken Parts) {
	for i, part := range p {
		k := min(len(part), n)
		taken[i], p[i] = part[:k], part[k:]
		n -= k
	}
	return taken
}

// Append appends up to n bytes of p to dst, and returns the rest. It does not store to p, because
// the memory of the parts would then escape to the heap.
func Append(dst []byte, p *Parts, n int) (_ []byte, rest Parts) {
	for i, part := range p {
		k := min(len(part), n)
		dst, rest[i] = append(dst, part[:k]...), part[k:]
		n -= k
	}
	return dst, rest
}
