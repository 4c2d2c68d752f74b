// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"io"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// This file calls methods of the underlying connection, which may be code of a user's transport. If
// that code panics, the panic becomes an error of the connection. If that code ends its goroutine,
// another goroutine ends the connection.

// A BelowError says that the underlying connection panicked or ended its goroutine.
type BelowError struct {
	Value any // the value of the panic; nil if the code ended its goroutine
}

func (e *BelowError) Error() string {
	if e.Value == nil {
		return "the connection's own code ended its goroutine"
	}
	return fmt.Sprintf("the connection's own code panicked: %v", e.Value)
}

// readBelow reads from the underlying connection. The reader calls it.
func (re *reading) readBelow(b []byte) (n int, err error) {
	c := re.c
	returned := false
	defer func() {
		if returned {
			return
		}
		below := &BelowError{recover()}
		if n, err = 0, below; below.Value == nil {
			go func() { // it takes the place of the reader
				c.lifetime.end(&IOError{Op: Read, Err: below})
				re.lingerAndClose()
			}()
		}
	}()
	n, err = c.nc.Read(b)
	returned = true
	return n, err
}

// writeBelow writes to the underlying connection. The flusher calls it.
func (w *writing) writeBelow(b []byte) (n int, err error) {
	c := w.c
	returned := false
	defer func() {
		if returned {
			return
		}
		below := &BelowError{recover()}
		if n, err = 0, below; below.Value == nil {
			end := c.lifetime.end
			go end(&IOError{Op: Write, Err: below})
		}
	}()
	n, err = c.nc.Write(b)
	returned = true
	return n, err
}

// callBelow calls f, which calls methods of the underlying connection, and returns its error.
// Unless the connection is a socket, f runs on its own goroutine.
func (c *Conn) callBelow(f func() error) error {
	if c.socket != nil {
		return f()
	}
	return isolate.Call(f, func(value any) error { return &BelowError{value} })
}

// closeBelow closes the underlying connection.
func (lt *lifetime) closeBelow() {
	c := lt.c
	_ = c.callBelow(c.nc.Close)
} // the error is ignored: c.err has the reason of the end

// finishBelow closes the writing direction. It reports whether the underlying connection supports
// that.
func (w *writing) finishBelow() bool {
	c := w.c
	half, ok := c.nc.(interface{ CloseWrite() error })
	return ok && c.callBelow(half.CloseWrite) == nil
}

// readableUntil sets the read deadline of the underlying connection.
func (re *reading) readableUntil(t time.Time) error {
	c := re.c
	return c.callBelow(func() error { return c.nc.SetReadDeadline(t) })
}

// drainBelow reads and discards the data that still arrives.
func (re *reading) drainBelow() {
	c := re.c
	_ = c.callBelow(func() error {
		_, err := io.Copy(io.Discard, c.nc)
		return err
	})
}
