// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/inline"
)

// A loop reads the messages of a connection one after another, and runs short calls on the
// goroutine that reads. When such a call turns out to be long, another goroutine reads on.
type loop struct {
	next    func() error // reads a message
	flush   func()       // writes replies that were held back; nil if none are
	newest  atomic.Pointer[turn]
	watched inline.Watched
	held    atomic.Bool // flush must be called; the connection counts as busy
	ended   chan error
}

// A turn is that of a goroutine to read.
type turn struct {
	state inline.State
	conn  *Conn
	more  bool // more has arrived than the message of the call that runs
	// behind says that a call has lost the reading. What has arrived behind it may wait as it does,
	// so each gets a goroutine, until all that has arrived is read.
	behind bool
}

// More reports whether the reply of the call that runs may wait for the flush of Loop, because more
// has arrived than the message of the call. The reply must be queued already. Only the function
// that Here calls may call More.
func (t *turn) More() bool {
	if !t.more || t.state.Taken() {
		return false
	}
	c := t.conn
	if !c.loop.held.Swap(true) {
		c.Busy(1) // a drain would end the connection
	}
	if t.state.Taken() { // the other goroutine may wait for the next message already
		c.flushHeld()
		return false
	}
	return true
}

// flushHeld writes the replies that were held back.
func (c *Conn) flushHeld() {
	if l := c.loop; l != nil && l.held.Load() && l.held.Swap(false) {
		defer c.Busy(-1)
		l.flush()
	}
}

// flushApart is flushHeld on another goroutine, because the client may not read its replies before
// it has sent all of its requests.
func (c *Conn) flushApart() {
	if l := c.loop; l != nil && l.held.Load() {
		c.Go(c.flushHeld)
	}
}

// errLost is the error of a Loop whose goroutine has ended.
var errLost = errors.New("the code of the protocol panicked, or ended its goroutine")

// Loop calls Next and then next, in turn, until one of them fails, and returns the error. They run
// on goroutines that Go starts. Flush writes the replies that calls have held back: see Here. Loop
// calls it before it waits for the client, and when another goroutine reads on. If flush is nil, no
// call may hold its reply back. Loop is called once.
func (c *Conn) Loop(next func() error, flush func()) error {
	c.loop = &loop{next: next, flush: flush, ended: make(chan error, 1)}
	c.readOn(false)
	return <-c.loop.ended
}

// readOn makes a goroutine read on. Behind says that a call has lost the reading.
func (c *Conn) readOn(behind bool) {
	l, t := c.loop, &turn{conn: c, behind: behind}
	l.newest.Store(t)
	c.Go(func() {
		err := errLost // remains if next does not return
		defer func() {
			if !t.state.Taken() {
				c.flushHeld()
				l.ended <- err
			}
		}()
		c.flushApart() // what a goroutine that has lost the reading left
		for {
			if c.reader.Buffered() == 0 {
				if t.behind = false; l.held.Load() && !c.run(t, c.flushHeld) {
					return
				}
			}
			if err = c.Next(); err != nil {
				return
			}
			err = errLost
			if failed := l.next(); failed != nil || t.state.Taken() {
				err = failed
				return
			}
		}
	})
}

// Here calls f, which executes a call, on the goroutine that reads, or returns false. It returns
// false without Loop, and if more has arrived and Loop has no flush or has lost the reading. The
// function that was passed to Loop calls Here at its end. Before f, Here sets call, which says
// whether f may hold its reply back.
func (c *Conn) Here(f func(), call *interface{ More() bool }) bool {
	l := c.loop
	if l == nil {
		return false
	}
	t := l.newest.Load()
	if t.more = c.reader.Buffered() > 0; t.more && (l.flush == nil || t.behind) {
		return false
	}
	*call = t
	c.run(t, f)
	return true
}

// run calls f on the goroutine that reads. It returns false if another goroutine has taken over.
func (c *Conn) run(t *turn, f func()) (still bool) {
	run := t.state.Begin(false)
	c.loop.watched.Join(c.o.Watch, c)
	returned := false
	defer func() {
		if !returned { // f has ended the goroutine
			c.HandOver(&t.state, run)
		}
	}()
	f()
	returned = true
	return t.state.End(run)
}

// State implements inline.Reading.
func (c *Conn) State() *inline.State { return &c.loop.newest.Load().state }

// HandOver implements inline.Reading.
func (c *Conn) HandOver(of *inline.State, run uint64) {
	if of == c.State() && of.Take(run) {
		c.readOn(true)
	}
}
