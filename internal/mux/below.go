// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"io"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/panics"
)

// This file calls methods of the underlying connection, which may be code of a user's transport. If
// that code panics, the panic becomes an error of the connection. If that code ends its goroutine,
// another goroutine ends the connection.

// brokenBelow returns the error of code of the underlying connection that panicked with value, or
// that ended its goroutine if value is nil.
func brokenBelow(value any) error {
	if value == nil {
		return errors.New("the connection's own code ended its goroutine")
	}
	said, _ := panics.Describe(value)
	return errors.New("the connection's own code panicked: " + said)
}

// readBelow reads from the underlying connection. The reader calls it.
func (re *reading) readBelow(b []byte) (n int, err error) {
	return isolate.Transfer(func(b []byte) (int, error) { return re.c.nc.Read(b) }, b, re.brokenRead)
}

func (re *reading) brokenRead(value any) error {
	err := brokenBelow(value)
	if value == nil {
		go func() { // it takes the place of the reader
			re.c.lifetime.end(&IOError{Op: Read, Err: err})
			re.lingerAndClose()
		}()
	}
	return err
}

// writeBelow writes to the underlying connection. The flusher calls it.
func (w *writing) writeBelow(b []byte) (n int, err error) {
	n, err = isolate.Transfer(func(b []byte) (int, error) { return w.c.nc.Write(b) }, b, w.brokenWrite)
	if n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

func (w *writing) brokenWrite(value any) error {
	err := brokenBelow(value)
	if value == nil {
		go w.c.lifetime.end(&IOError{Op: Write, Err: err})
	}
	return err
}

// callBelow calls f, which calls methods of the underlying connection, and returns its error.
// Unless the connection is a socket, f runs on its own goroutine.
func (c *Conn) callBelow(f func() error) error {
	if c.socket.Exists() {
		return f()
	}
	return isolate.Call(f, brokenBelow)
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
