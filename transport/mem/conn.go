// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeSize is how many unread bytes one direction of a connection holds. A Write waits while the
// pipe is full. Memory is allocated as needed.
const pipeSize = 256 << 10

// A conn is one end of a connection.
type conn struct {
	in, out       *pipe
	local, remote address
}

func newConns(local, remote address) (client, server *conn) {
	mu := new(sync.Mutex)
	up, down := newPipe(mu), newPipe(mu)
	return &conn{down, up, local, remote}, &conn{up, down, remote, local}
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, c.describe("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	return n, c.describe("write", err)
}

// Close ends both directions at once: a pending Read fails with net.ErrClosed even if the peer
// closes its end in answer. The peer can still read the bytes that were written.
func (c *conn) Close() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.closeLocked(&c.out.writer, net.ErrClosed)
	c.in.closeLocked(&c.in.reader, net.ErrClosed)
	c.in.ring, c.in.start, c.in.size = nil, 0, 0 // no more reads are possible
	return nil
}

// CloseWrite ends the direction towards the peer. The peer reads io.EOF after the bytes that were
// written.
func (c *conn) CloseWrite() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.closeLocked(&c.out.writer, io.ErrClosedPipe)
	return nil
}

func (c *conn) SetReadDeadline(at time.Time) error {
	return c.describe("set", c.in.setDeadline(&c.in.reader, at))
}

func (c *conn) SetWriteDeadline(at time.Time) error {
	return c.describe("set", c.out.setDeadline(&c.out.writer, at))
}

func (c *conn) SetDeadline(at time.Time) error {
	if err := c.SetReadDeadline(at); err != nil {
		return err
	}
	return c.SetWriteDeadline(at)
}

// describe adds the addresses and the operation to an error. It does not wrap io.EOF, because
// callers compare with it.
func (c *conn) describe(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Source: c.local, Addr: c.remote, Err: err}
}

// A pipe is one direction of a connection: a ring of bytes.
type pipe struct {
	mu      *sync.Mutex // of the connection
	changed sync.Cond   // for both sides: a reader and a writer never wait at the same time

	ring  []byte
	start int // index of the first unread byte in ring
	size  int // number of unread bytes

	reader, writer end
	writing        bool // a Write has written a part; other Writes wait, so that their bytes do not mix
}

// An end is the state of one side's end of a pipe.
type end struct {
	closed error // error of later operations; nil while the end is open
	late   bool  // whether its deadline has passed
	timer  *time.Timer
}

func newPipe(mu *sync.Mutex) *pipe { return &pipe{mu: mu, changed: sync.Cond{L: mu}} }

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.reader.closed != nil:
			return 0, p.reader.closed
		case p.reader.late:
			return 0, os.ErrDeadlineExceeded
		case p.size > 0 || len(b) == 0:
			n := p.takeLocked(b)
			p.changed.Broadcast()
			return n, nil
		case p.writer.closed != nil:
			return 0, io.EOF
		}
		p.changed.Wait()
	}
}

func (p *pipe) write(b []byte) (done int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mine := false // whether this call has set p.writing
	for {
		switch {
		case p.writer.closed != nil:
			err = p.writer.closed
		case p.reader.closed != nil:
			err = io.ErrClosedPipe
		case p.writer.late:
			err = os.ErrDeadlineExceeded
		case mine || !p.writing:
			mine, p.writing = true, true
			done += p.putLocked(b[done:])
			p.changed.Broadcast()
		}
		if err != nil || done == len(b) {
			break
		}
		p.changed.Wait()
	}
	if mine {
		p.writing = false
		p.changed.Broadcast()
	}
	return done, err
}

// putLocked copies bytes from b into the ring until it is full, and returns their number.
func (p *pipe) putLocked(b []byte) int {
	if want := min(p.size+len(b), pipeSize); want > len(p.ring) {
		p.growLocked(want)
	}
	done := 0
	for done < len(b) && p.size < len(p.ring) {
		from := (p.start + p.size) % len(p.ring)
		to := min(len(p.ring), from+len(p.ring)-p.size)
		n := copy(p.ring[from:to], b[done:])
		p.size += n
		done += n
	}
	return done
}

// takeLocked moves bytes from the ring to b until b is full, and returns their number.
func (p *pipe) takeLocked(b []byte) int {
	done := 0
	for done < len(b) && p.size > 0 {
		n := copy(b[done:], p.ring[p.start:min(len(p.ring), p.start+p.size)])
		p.start = (p.start + n) % len(p.ring)
		p.size -= n
		done += n
	}
	if p.size == 0 {
		p.start = 0 // so that the next bytes are in one piece
	}
	return done
}

func (p *pipe) growLocked(want int) {
	ring := make([]byte, min(pipeSize, max(want, 2*len(p.ring), 512)))
	p.size = p.takeLocked(ring) // takeLocked leaves start at 0
	p.ring = ring
}

func (p *pipe) closeLocked(e *end, why error) {
	if !errors.Is(e.closed, net.ErrClosed) { // a Close replaces the error of CloseWrite, but not the reverse
		e.closed = why
	}
	e.stopTimer()
	p.changed.Broadcast()
}

// setDeadline makes the operations of e fail after at, including pending ones. The zero time means
// no deadline.
func (p *pipe) setDeadline(e *end, at time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(e.closed, net.ErrClosed) {
		return e.closed
	}
	e.stopTimer()
	wait := time.Until(at)
	e.late = !at.IsZero() && wait <= 0
	if e.late {
		p.changed.Broadcast()
	}
	if wait > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if e.timer == timer { // otherwise another deadline was set meanwhile
				e.late = true
				p.changed.Broadcast()
			}
		})
		e.timer = timer
	}
	return nil
}

func (e *end) stopTimer() {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}
