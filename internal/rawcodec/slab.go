// SPDX-License-Identifier: Apache-2.0

package rawcodec

// A Slab is memory for small messages that arrived together, and for their slice headers, so that
// not each message needs two allocations. The zero Slab is ready for use.
type Slab struct {
	messages [][]byte
	memory   []byte
}

const (
	// maxSlab is the approximate size of a slab. A receiver of one message keeps the whole slab.
	maxSlab = 2 << 10
	// sliceSize is the size of a slice header.
	sliceSize = 24
)

// Cut returns a copy of body in memory of the slab. More is how many messages of that size have
// arrived after it. The first message of a group sets the size of the slab. A message that arrives
// alone gets its own allocation.
func (s *Slab) Cut(body []byte, more int) *[]byte {
	if len(s.messages) == 0 || len(s.memory) < len(body) {
		n := min(1+more, maxSlab/(sliceSize+len(body)))
		if n < 2 {
			msg := append([]byte(nil), body...)
			return &msg
		}
		s.messages, s.memory = make([][]byte, n), make([]byte, n*len(body))
	}
	msg := &s.messages[0]
	s.messages = s.messages[1:]
	if n := copy(s.memory, body); n > 0 {
		*msg, s.memory = s.memory[:n:n], s.memory[n:]
	}
	return msg
}
