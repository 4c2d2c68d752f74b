// SPDX-License-Identifier: Apache-2.0

package pipelined

import (
	"errors"
	"fmt"
	"io"

	"github.com/yodel-rpc/yodel"
)

// A Memory counts bytes before they are allocated. *yodel.Endpoint is one.
type Memory interface {
	// Reserve returns false if the bytes must not be allocated.
	Reserve(n int) bool
	Release(n int)
}

// A RefusedError is the error of a body for which Memory has no room. The reader must still skip
// Left bytes, which may take long: the call should get its error before that.
type RefusedError struct{ Left int }

func (*RefusedError) Error() string { return "there is no memory for it" }

// NoMemoryForRequest returns the error of a request of a method for which a server has no memory.
func NoMemoryForRequest(method string) *yodel.Error {
	return &yodel.Error{
		Code: yodel.ResourceExhausted, ID: "YDL3007", NotProcessed: true,
		Message: method + ": the server has no memory left for what its peers make it hold",
	}
}

// firstBody is how much memory the beginning of a body takes.
const firstBody = 64 << 10

// ReadBody reads n bytes and returns them behind prefix. Their memory grows as the bytes arrive, so
// bytes that are announced and not sent take none. M counts the capacity of the result, which the
// caller releases. If m has no room, ReadBody returns a *RefusedError. Any other error is that of
// from.
func ReadBody(prefix []byte, from io.Reader, n int, m Memory) ([]byte, error) {
	total := len(prefix) + n
	size := min(total, len(prefix)+firstBody)
	if !m.Reserve(size) {
		return nil, &RefusedError{n}
	}
	b := append(make([]byte, 0, size), prefix...)
	for {
		at := len(b)
		b = b[:size]
		if _, err := io.ReadFull(from, b[at:]); err != nil {
			m.Release(size)
			return nil, unexpected(err)
		}
		if size == total {
			return b, nil
		}
		old := size
		if size = min(total, 2*old); !m.Reserve(size) {
			m.Release(old)
			return nil, &RefusedError{total - old}
		}
		b = append(make([]byte, 0, size), b...)
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
		body, err = ReadBody(prefix, from, n, Uncounted{})
		return body, 0, nil, err
	}
	body, err = ReadBody(prefix, from, n, s)
	call.Reserved = cap(body)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return nil, refused.Left, NoMemoryForRequest(call.Call().Method), nil
	} else if err != nil {
		return nil, 0, nil, err
	}
	return body, 0, call.Admit(n, true), nil
}

// unexpected returns io.ErrUnexpectedEOF for io.EOF, and any other err unchanged.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// An Uncounted is a Memory that counts nothing.
type Uncounted struct{}

// Reserve implements Memory.
func (Uncounted) Reserve(int) bool { return true }

// Release implements Memory.
func (Uncounted) Release(int) {}

// NoMemoryForReply returns the error of a call whose reply was discarded, because the client has no
// memory for it.
func NoMemoryForReply(addr string) *yodel.Error {
	return &yodel.Error{
		Code: yodel.ResourceExhausted, ID: "YDL3007",
		Message: fmt.Sprintf("this client has no memory left for the reply from %s; the method was executed", addr),
	}
}
