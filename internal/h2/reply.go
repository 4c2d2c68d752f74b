// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
)

// ErrNoMemory is the error of a reply for which Reserve has no memory.
var ErrNoMemory = errors.New("no memory is left for a reply that the client does not take yet")

// errReplied is the error of a reply that has ended before.
var errReplied = errors.New("the reply has ended")

// Reply sends the whole reply, and does not wait. The body is sent later, from a copy, if the
// client does not take it yet. A reply without a body and a trailer is its header alone. If the
// reply has to wait and Reserve has no memory for it, Reply resets the stream and returns
// ErrNoMemory. Reply forgets what OnFailure was given.
func (s *Stream) Reply(header []Field, body []byte, trailer []Field) error {
	c := s.c
	w := &c.send
	c.mu.Lock()
	s.failed = nil
	if s.state == closed || s.ends {
		err := s.noReplyLocked()
		c.mu.Unlock()
		return err
	}
	whole := len(body) == 0 && len(trailer) == 0
	w.appendHeadersLocked(s.id, header, whole)
	s.headed, s.ends, s.trailer = true, true, trailer
	rest := body[w.dataLocked(s, body, len(trailer) == 0):]
	if len(rest) == 0 {
		s.endLocked(len(trailer) > 0)
		s.flushAndUnlock()
		return nil
	}
	if c.life.over { // nobody ends a stream that enters the table now
		s.abortLocked(errGone)
		c.mu.Unlock()
		return errGone
	}
	size := len(rest)
	if !s.listed {
		size += s.cost // Head has not been counted yet
	}
	if !c.cfg.Reserve(size) {
		s.resetLocked(enhanceYourCalm, ErrNoMemory)
		s.flushAndUnlock()
		return ErrNoMemory
	}
	w.replies++
	s.held, s.trailer = size, slices.Clone(trailer)
	c.listLocked(s)
	w.holdLocked(s, slices.Clone(rest))
	s.flushAndUnlock()
	return nil
}

// noReplyLocked returns why no reply can be sent.
func (s *Stream) noReplyLocked() error {
	if s.err != nil {
		return s.err
	}
	return errReplied
}

// Header sends the header of the reply, with :status first. It does not wait.
func (s *Stream) Header(fields []Field) error { return s.header(fields, true) }

// Inform sends a header with a status from 100 to 199. It fails behind the header of the reply. It
// may be called concurrently with the methods for the reply.
func (s *Stream) Inform(fields []Field) error { return s.header(fields, false) }

func (s *Stream) header(fields []Field, final bool) error {
	s.c.mu.Lock()
	if s.state == closed || s.ends || s.headed {
		err := s.noReplyLocked()
		s.c.mu.Unlock()
		return err
	}
	s.c.send.appendHeadersLocked(s.id, fields, false)
	s.headed = final
	s.flushAndUnlock()
	return nil
}

// Write sends a part of the body, after Header. It waits until the client takes it, or until the
// deadline of SetWriteDeadline.
func (s *Stream) Write(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	if !s.headed || s.state == closed || s.ends || s.err != nil {
		err := s.noReplyLocked()
		c.mu.Unlock()
		return 0, err
	}
	if passed(s.writeBy) {
		s.lateReplyLocked()
		s.flushAndUnlock()
		return 0, os.ErrDeadlineExceeded
	}
	n := c.send.dataLocked(s, p, false)
	if n == len(p) {
		s.flushSoonAndUnlock()
		return n, nil
	}
	if s.inline {
		c.mu.Unlock()
		s.HandOver()
		c.mu.Lock()
	}
	c.listLocked(s)
	if s.err == nil {
		c.send.holdLocked(s, p[n:])
		c.send.resumeLocked() // there may be room again
	}
	c.flushAndUnlock()
	c.mu.Lock()
	for len(s.pending) > 0 && s.err == nil {
		if passed(s.writeBy) {
			s.lateReplyLocked()
			break
		}
		s.waitUntilRelocking(s.writeBy)
	}
	err := s.err
	s.flushAndUnlock()
	if err != nil {
		return n, err
	}
	return len(p), nil
}

// TryWrite sends a part of the body that consists of two pieces, and reports whether it has. It
// does nothing if the client does not take all of it at once, or if it does not fit into a frame.
// Write sends it then.
func (s *Stream) TryWrite(head, body []byte) bool {
	c := s.c
	w := &c.send
	size := len(head) + len(body)
	c.mu.Lock()
	if !s.headed || s.state == closed || s.ends || s.err != nil || w.head != nil || passed(s.writeBy) || w.roomLocked(s, size) < size {
		c.mu.Unlock()
		return false
	}
	w.out = append(appendHeader(w.out, dataFrame, 0, s.id, size), head...)
	w.sentLocked(s, body, size, true)
	s.flushSoonAndUnlock()
	return true
}

// End ends the reply, with a trailer or without. A reply without a Header is its trailer alone,
// with :status first. End does not wait.
func (s *Stream) End(trailer []Field) error {
	c := s.c
	c.mu.Lock()
	if s.state == closed || s.ends || !s.headed && len(trailer) == 0 {
		err := s.noReplyLocked()
		c.mu.Unlock()
		return err
	}
	s.ends, s.trailer = true, trailer
	if len(trailer) == 0 {
		c.send.out = appendHeader(c.send.out, dataFrame, flagEndStream, s.id, 0)
	}
	s.endLocked(len(trailer) > 0)
	s.flushAndUnlock()
	return nil
}

// flushAndUnlock writes the output. That of an inline handler is written with that of its batch. If
// other requests are open, their handlers may append to the output before it is written.
func (s *Stream) flushAndUnlock() {
	c := s.c
	w := &c.send
	if s.inline || w.yielding {
		c.mu.Unlock()
		return
	}
	if c.open.Load() > 1 && !w.flushing {
		w.yielding = true
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		w.yielding = false
	}
	c.flushAndUnlock()
}

const (
	// oneByOne is how many parts of bodies are written one by one before a goroutine collects them.
	oneByOne = 2
	// enoughOutput is how much output is written by the handler that makes it.
	enoughOutput = 16 << 10
)

// flushSoonAndUnlock writes a part of a body, or leaves it to a goroutine. A handler that writes
// several parts in a row is likely to write more before that goroutine runs, so that they go out in
// one write. A handler that waits for its client between the parts writes each one itself.
func (s *Stream) flushSoonAndUnlock() {
	c := s.c
	w := &c.send
	switch {
	case s.inline, w.flushing, len(w.out) >= enoughOutput, w.row < oneByOne:
		w.row++
		s.flushAndUnlock()
		return
	case !w.soon && !w.yielding:
		w.soon = true
		c.ended.Add(1)
		go c.flushSoon()
	}
	c.mu.Unlock()
}

// flushRelocking writes what flushSoon would write, before the handler waits for the client. It
// unlocks Conn.mu meanwhile.
func (s *Stream) flushRelocking() {
	w := &s.c.send
	if w.row = 0; w.soon && !s.inline {
		s.c.flushAndUnlock()
		s.c.mu.Lock()
	}
}

// flushSoon writes what handlers have left to it.
func (c *Conn) flushSoon() {
	defer c.ended.Done()
	c.mu.Lock()
	c.send.soon = false
	c.flushTimesAndUnlock(math.MaxInt)
}
