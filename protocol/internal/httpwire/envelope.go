// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/yodel-rpc/yodel"
)

// A message of a stream is an envelope: a byte of flags, the length of the message in 4 bytes, and
// the message.

// PrefixSize is the size of the beginning of an envelope, in bytes.
const PrefixSize = 5

// Flags of an envelope.
const (
	FlagCompressed byte = 1
	// FlagEnd marks the last envelope of a Connect stream.
	FlagEnd byte = 2
	// FlagTrailer marks the last envelope of a gRPC-Web stream.
	FlagTrailer byte = 0x80
)

// Prefix returns the beginning of an envelope.
func Prefix(flags byte, size int) (prefix [PrefixSize]byte) {
	prefix[0] = flags
	binary.BigEndian.PutUint32(prefix[1:], uint32(size)) //nolint:gosec // limits are smaller
	return prefix
}

// A Reader reads envelopes. It is for one goroutine at a time.
type Reader struct {
	// From is the stream of envelopes.
	From io.Reader
	// Max is the size of the largest message that is read, in bytes.
	Max int
	// Reserve counts memory before it is allocated. It returns false if there is none. Nil counts
	// nothing.
	Reserve func(n int) bool

	memory []byte
}

// ErrCut is the error of an envelope that ends too early.
var ErrCut = &yodel.Error{Code: yodel.Internal, Message: "the stream ends within a message"}

// Prefix reads the beginning of the next envelope. It returns io.EOF after the last one. It fails
// if the message is larger than Max.
func (r *Reader) Prefix() (flags byte, size int, err error) {
	var prefix [PrefixSize]byte
	if _, err := io.ReadFull(r.From, prefix[:]); errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, 0, ErrCut
	} else if err != nil {
		return 0, 0, err
	}
	n := binary.BigEndian.Uint32(prefix[1:])
	if uint64(n) > uint64(r.Max) {
		return 0, 0, yodel.Errorf(yodel.ResourceExhausted, "a message has %d bytes, the limit is %d", n, r.Max)
	}
	return prefix[0], int(n), nil
}

// ErrMemory is the error of a message for which Reserve has no room.
var ErrMemory = &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3007", Message: "there is no memory left for a message"}

// firstBody is how much memory the beginning of a message takes.
const firstBody = 64 << 10

// Body reads the size bytes of a message. Its memory grows as the bytes arrive. The result is valid
// until the next call.
func (r *Reader) Body(size int) ([]byte, error) {
	for have := 0; ; {
		if room := min(size, max(2*have, firstBody)); room > cap(r.memory) && !r.grow(have, room) {
			return nil, ErrMemory
		}
		b := r.memory[:min(size, cap(r.memory))]
		if _, err := io.ReadFull(r.From, b[have:]); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) && size > 0 {
			return nil, ErrCut
		} else if err != nil && size > 0 {
			return nil, err
		}
		if have = len(b); have == size {
			return b, nil
		}
	}
}

// grow moves the first bytes of a message to memory of another size.
func (r *Reader) grow(have, size int) bool {
	if r.Reserve != nil && !r.Reserve(size-cap(r.memory)) {
		return false
	}
	r.memory = append(make([]byte, 0, size), r.memory[:have]...)
	return true
}

// Next reads a message. The result is valid until the next call. It returns io.EOF after the last
// one.
func (r *Reader) Next() (flags byte, body []byte, err error) {
	flags, size, err := r.Prefix()
	if err != nil {
		return 0, nil, err
	}
	body, err = r.Body(size)
	return flags, body, err
}

// Held returns how many bytes Reserve has counted.
func (r *Reader) Held() int { return cap(r.memory) }
