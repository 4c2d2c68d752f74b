// SPDX-License-Identifier: Apache-2.0

// Package framebody reads the bodies of frames whose heads announce their sizes. The memory of a
// body is counted before it is allocated, and grows as the bytes arrive, so a peer that only
// announces a body takes none.
package framebody

import (
	"errors"
	"io"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/spares"
)

// A Memory counts bytes before they are allocated. *yodel.Endpoint and *yodel.Session are such.
type Memory interface {
	// Reserve returns false if the bytes must not be allocated.
	Reserve(n int) bool
	Release(n int)
}

// An Uncounted is a Memory that counts nothing.
type Uncounted struct{}

// Reserve implements Memory.
func (Uncounted) Reserve(int) bool { return true }

// Release implements Memory.
func (Uncounted) Release(int) {}

// A RefusedError is the error of a body for which Memory has no room. The reader must still skip
// Left bytes, which may take long: the call should get its error before that.
type RefusedError struct{ Left int }

func (*RefusedError) Error() string { return "there is no memory for it" }

// NoMemory returns the error of a request of a method for which a server has no memory.
func NoMemory(method string) *yodel.Error {
	return &yodel.Error{
		Code: yodel.ResourceExhausted, ID: "YDL3007", NotProcessed: true,
		Message: method + ": the server has no memory left for what its peers make it hold",
	}
}

// Free gives the memory of a body that Read has returned to later calls of Read. The caller must
// not use the body afterwards.
func Free(body []byte) { spares.Process.Give(body) }

// firstPart is how much memory the beginning of a body takes.
const firstPart = 64 << 10

// growth is the factor by which the memory of a body grows when it is full. A larger factor saves
// copies, and lets a peer take more memory than it has sent.
const growth = 4

// Read reads n bytes and returns them behind prefix. M counts the capacity of the result, which the
// caller releases. If m has no room, Read returns a *RefusedError. Any other error is that of from.
func Read(prefix []byte, from io.Reader, n int, m Memory) ([]byte, error) {
	total := len(prefix) + n
	size := spares.Size(min(total, len(prefix)+firstPart))
	if !m.Reserve(size) {
		return nil, &RefusedError{n}
	}
	b := append(spares.Process.Take(size)[:0:size], prefix...)
	for {
		at := len(b)
		b = b[:min(size, total)]
		if _, err := io.ReadFull(from, b[at:]); err != nil {
			m.Release(size)
			Free(b)
			return nil, Unexpected(err)
		}
		if len(b) == total {
			return b, nil
		}
		old := size
		if size = growth * old; size > total-total/4 {
			size = total
		}
		if size = spares.Size(size); !m.Reserve(size) {
			m.Release(old)
			return nil, &RefusedError{total - len(b)}
		}
		larger := append(spares.Process.Take(size)[:0:size], b...)
		Free(b)
		b = larger
		m.Release(old)
	}
}

// small is the size of the largest request for which a call is admitted before it has arrived. Room
// that is taken for a larger one could be held by a client that only announces it.
const small = 4 << 10

// Receive reads a request of n bytes, returns it behind prefix, and admits its call. If the call is
// refused, it returns why, and how many bytes of the request the caller must still skip. Err is
// that of from.
func Receive(call *yodel.Served, s *yodel.Session, prefix []byte, from io.Reader, n int) (body []byte, skip int, refusal *yodel.Error, err error) {
	if n <= small || n > s.Limits().MaxMessage { // a larger one is refused
		if refusal = call.Admit(n, true); refusal != nil {
			return nil, n, refusal, nil
		}
		body, err = Read(prefix, from, n, Uncounted{})
		return body, 0, nil, err
	}
	body, err = Read(prefix, from, n, s)
	call.Reserved = cap(body)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return nil, refused.Left, NoMemory(call.Call().Method), nil
	} else if err != nil {
		return nil, 0, nil, err
	}
	return body, 0, call.Admit(n, true), nil
}

// Skip discards n bytes.
func Skip(from io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, from, int64(n))
	return Unexpected(err)
}

// Unexpected returns io.ErrUnexpectedEOF for io.EOF, and any other err unchanged. It is for errors
// of a read within a frame.
func Unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
