// SPDX-License-Identifier: Apache-2.0

package h2

import "github.com/yodel-rpc/yodel/internal/inline"

// This file runs handlers on the reader, and ends what handlers leave open.

// listLocked puts a stream into the table, unless it is there.
func (c *Conn) listLocked(s *Stream) {
	if !s.listed {
		s.listed = true
		c.streams.put(s)
	}
}

// returned ends what a handler has left open.
func (c *Conn) returned(s *Stream) {
	c.mu.Lock()
	s.handling = false
	c.returnedLocked(s)
	s.flushAndUnlock()
}

func (c *Conn) returnedLocked(s *Stream) {
	s.failed = nil
	if s.state != closed && !s.ends {
		s.resetLocked(internalError, errReplied)
	}
	switch {
	case !s.listed:
		c.open.Add(-1)
	case s.state == closed:
		s.settleLocked()
	default: // the reply waits for the client
		s.dropBodyLocked()
		s.Head, s.trailers, s.User = Head{Length: s.Length}, nil, nil
	}
}

// run runs a handler on the reader, for a stream that is marked as such. It returns false if
// another reader has taken over.
func (rd *reader) run(s *Stream) (still bool) {
	c := rd.c
	rd.cur = s
	run := rd.state.Begin(false)
	c.watched.Join(c.cfg.Watch, &c.takeover)
	normal := false
	defer func() {
		if !normal { // the handler has ended the goroutine
			c.takeover.HandOver(&rd.state, run)
			rd.leave(s)
		}
	}()
	c.cfg.Handler.Serve(s)
	normal = true
	if !rd.state.End(run) {
		rd.leave(s)
		return false
	}
	rd.cur = nil
	c.mu.Lock()
	s.handling, s.inline = false, false
	switch {
	case s != rd.spare:
	case s.listed || s.retained:
		rd.spare = nil // the reply waits for the client, or a goroutine has the Stream
	default:
		s.User = nil // an idle connection holds nothing of the last request
	}
	c.returnedLocked(s)
	c.mu.Unlock()
	return true
}

// leave ends what a handler has left open, after another reader has taken over.
func (rd *reader) leave(s *Stream) {
	rd.c.returned(s)
	buffers.Put(rd.buf)
	rd.buf = nil
}

// A takeover hands over the reading of its connection.
type takeover struct{ c *Conn }

// State returns the state of the newest reader.
func (t *takeover) State() *inline.State { return &t.c.newest.Load().state }

// HandOver makes another goroutine read if the reader with this state is still in this run. The new
// reader gets what is unread. The request of the old one enters the table, even if its reply is
// complete, so that the client can reset it, and the end of the connection closes its Done.
func (t *takeover) HandOver(of *inline.State, run uint64) {
	c := t.c
	c.mu.Lock()
	old := c.newest.Load()
	if &old.state != of || !of.Take(run) {
		c.mu.Unlock()
		return
	}
	rd := newReader(c)
	if old.r < old.w {
		rd.ensure()
		rd.w = copy(rd.buf[:], old.buf[old.r:old.w])
	}
	s, cost := old.cur, inSize
	if !s.listed {
		cost += s.cost
		c.listLocked(s)
	}
	if c.cfg.Reserve(cost) { // without it, the handler runs all the same
		s.reserved += cost
	}
	s.inline, s.cost = false, s.cost+inSize
	if c.life.over {
		s.abortLocked(errGone)
	}
	c.newest.Store(rd)
	c.startReader(rd)
	c.flushAndUnlock() // what the batch has so far
}

// HandOver lets another goroutine read the connection, if the reader runs this handler. A handler
// that is about to block calls it, or another goroutine takes over after about a millisecond.
func (s *Stream) HandOver() {
	c := s.c
	c.mu.Lock()
	rd, inline := c.newest.Load(), s.inline
	run, runs := rd.state.Run()
	c.mu.Unlock()
	if inline && runs {
		c.takeover.HandOver(&rd.state, run)
	}
}
