// SPDX-License-Identifier: Apache-2.0

package thriftwire

import (
	"io"
)

// piece is how many bytes a Reader takes from its Source at most.
const piece = 4 << 10

// errShort is the error of a message that ends too early.
var errShort = io.ErrUnexpectedEOF

// A Source captures the bytes that a Reader reads from a connection. It is for messages without a
// length. Memory grows with the bytes that have come. If the message is larger than Limit, or
// Reserve fails, the Source discards the rest of it and Fault returns why. The Reader still reads
// the message to its end, if that has at most four times Limit.
type Source struct {
	From    io.Reader
	Limit   int
	Reserve func(n int) bool // counts bytes before they are allocated; nil counts nothing

	fault    error
	read     int
	reserved int
}

// Attach makes r read from s. It discards the bytes of r.
func (s *Source) Attach(r *Reader) {
	*r = Reader{source: s}
	s.fault, s.read, s.reserved = nil, 0, 0
}

// Fault returns why the bytes of the Reader are not the whole message, or nil.
func (s *Source) Fault() error { return s.fault }

// Reserved returns how many bytes Reserve has counted since Attach.
func (s *Source) Reserved() int { return s.reserved }

// more reads from the Source until n bytes are there. N is at most the size of a piece, or the
// largest name.
func (r *Reader) more(n int) error {
	s := r.source
	if s == nil {
		return errShort
	}
	missing := n - (len(r.Bytes) - r.At)
	if s.read += missing; s.read/4 > s.Limit {
		return ErrTooLarge
	}
	if s.fault == nil && len(r.Bytes)+missing > s.Limit {
		s.fault = ErrTooLarge
	}
	if s.fault == nil && !s.grow(r, missing) {
		s.fault = ErrMemory
	}
	if s.fault != nil { // what was read is not needed any more
		rest := copy(r.Bytes, r.Bytes[r.At:])
		r.Bytes, r.At = r.Bytes[:rest], 0
		if free := cap(r.Bytes) - rest; free < missing {
			r.Bytes = append(make([]byte, 0, rest+missing), r.Bytes...)
		}
	}
	have := len(r.Bytes)
	r.Bytes = r.Bytes[:have+missing]
	_, err := io.ReadFull(s.From, r.Bytes[have:])
	if err == io.EOF && r.At+have > 0 {
		err = errShort
	}
	return err
}

// grow makes room for n more bytes. It reports whether Reserve allows that.
func (s *Source) grow(r *Reader, n int) bool {
	if cap(r.Bytes)-len(r.Bytes) >= n {
		return true
	}
	size := max(2*cap(r.Bytes), len(r.Bytes)+n, 256)
	if s.Reserve != nil && !s.Reserve(size-cap(r.Bytes)) {
		return false
	}
	s.reserved += size - cap(r.Bytes)
	r.Bytes = append(make([]byte, 0, size), r.Bytes...)
	return true
}
