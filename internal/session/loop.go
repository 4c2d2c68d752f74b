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
	start   func(f func())
	newest  atomic.Pointer[turn]
	watched inline.Watched
	ended   chan error
}

// A turn is that of a goroutine to read.
type turn struct{ state inline.State }

// errLost is the error of a Loop whose goroutine has ended.
var errLost = errors.New("the code of the protocol panicked, or ended its goroutine")

// Loop calls Next and then next, in turn, until one of them fails, and returns the error. They run
// on goroutines that start starts. Loop is called once.
func (c *Conn) Loop(next func() error, start func(f func())) error {
	c.loop = &loop{next: next, start: start, ended: make(chan error, 1)}
	c.readOn()
	return <-c.loop.ended
}

// readOn makes a goroutine read on.
func (c *Conn) readOn() {
	l, t := c.loop, new(turn)
	l.newest.Store(t)
	l.start(func() {
		err := errLost // remains if next does not return
		defer func() {
			if !t.state.Taken() {
				l.ended <- err
			}
		}()
		for {
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

// Here calls f, which executes a call, on the goroutine that reads, if no other message has
// arrived. The function that was passed to Loop calls it at its end. Otherwise Here returns false.
func (c *Conn) Here(f func()) bool {
	l := c.loop
	if l == nil || c.reader.Buffered() > 0 {
		return false
	}
	t := l.newest.Load()
	run := t.state.Begin(false)
	l.watched.Join(c.o.Watch, c)
	returned := false
	defer func() {
		if !returned { // f has ended the goroutine
			c.HandOver(&t.state, run)
		}
	}()
	f()
	returned = true
	t.state.End(run)
	return true
}

// State implements inline.Reading.
func (c *Conn) State() *inline.State { return &c.loop.newest.Load().state }

// HandOver implements inline.Reading.
func (c *Conn) HandOver(of *inline.State, run uint64) {
	if of == c.State() && of.Take(run) {
		c.readOn()
	}
}
