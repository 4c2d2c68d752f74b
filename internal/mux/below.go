// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"io"
	"time"
)

// This file calls the connection below, which may be the code of a user's transport. Such code may
// panic, which is an error of that connection, or end its goroutine, which ends the connection from
// another one.

// A BelowError says that the connection below panicked or ended its goroutine.
type BelowError struct {
	Value any // of the panic; nil when it ended its goroutine
}

func (e *BelowError) Error() string {
	if e.Value == nil {
		return "the connection's own code ended its goroutine"
	}
	return fmt.Sprintf("the connection's own code panicked: %v", e.Value)
}

// readBelow reads. It is called by the reader.
func (c *Conn) readBelow(b []byte) (n int, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		below := &BelowError{recover()}
		if n, err = 0, below; below.Value == nil {
			go func() { // in place of the reader
				c.end(&IOError{Op: Read, Err: below})
				c.hush()
			}()
		}
	}()
	n, err = c.nc.Read(b)
	returned = true
	return n, err
}

// writeBelow writes. It is called by the goroutine that flushes.
func (c *Conn) writeBelow(b []byte) (n int, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		below := &BelowError{recover()}
		if n, err = 0, below; below.Value == nil {
			end := c.end
			go end(&IOError{Op: Write, Err: below})
		}
	}()
	n, err = c.nc.Write(b)
	returned = true
	return n, err
}

// callBelow calls f, which calls methods of the connection below, and returns its error.
func (c *Conn) callBelow(f func() error) error {
	if c.socket != nil {
		return f()
	}
	ended := make(chan error, 1)
	go func() {
		returned, err := false, error(nil)
		defer func() {
			if value := recover(); !returned {
				err = &BelowError{value}
			}
			ended <- err
		}()
		err = f()
		returned = true
	}()
	return <-ended
}

// closeBelow closes the connection below.
func (c *Conn) closeBelow() { _ = c.callBelow(c.nc.Close) } // what there was to say is in c.err

// finishBelow says that nothing more is written, and reports whether the connection below can say
// that.
func (c *Conn) finishBelow() bool {
	half, ok := c.nc.(interface{ CloseWrite() error })
	return ok && c.callBelow(half.CloseWrite) == nil
}

// readableUntil bounds what is read of the connection below.
func (c *Conn) readableUntil(t time.Time) error {
	return c.callBelow(func() error { return c.nc.SetReadDeadline(t) })
}

// drainBelow reads and drops what still comes.
func (c *Conn) drainBelow() {
	_ = c.callBelow(func() error {
		_, err := io.Copy(io.Discard, c.nc)
		return err
	})
}
