// SPDX-License-Identifier: Apache-2.0

package h2

const (
	defaultWindow = 1<<16 - 1 // of a connection and of a stream that no side has changed
	mostWindow    = 1<<31 - 1
)

// This file has both directions of flow control (RFC 9113, section 5.2).
//
// Received DATA counts in the window of the connection until it has left the memory that the window
// stands for: when a handler has read it, when Reserve has counted it elsewhere, or when nobody
// wants it. WINDOW_UPDATE goes out when a quarter of a window can be given back.

// received counts a DATA frame in the window of the connection. Only the reader calls it.
func (rd *reader) received(n int) *Fault {
	c := rd.c
	if c.in.received += int64(n); c.in.received > c.granted.Load() {
		return &Fault{code: flowControlError, what: "DATA is larger than the window of the connection"}
	}
	return nil
}

// giveBackLocked gives n bytes of the connection's window back.
func (c *Conn) giveBackLocked(n int) {
	if c.back += n; c.back >= c.cfg.ConnWindow/4 {
		c.send.out = appendWindow(c.send.out, 0, c.back)
		c.granted.Add(int64(c.back))
		c.back = 0
	}
}

// giveBackLocked gives n bytes of the stream's window back. A client that has ended its request
// needs none.
func (s *Stream) giveBackLocked(n int) {
	if s.state != open {
		return
	}
	if s.back += n; s.back >= s.c.cfg.StreamWindow/4 {
		s.c.send.out = appendWindow(s.c.send.out, s.id, s.back)
		s.window += s.back
		s.back = 0
	}
}

// windowUpdate takes WINDOW_UPDATE of the client.
func (rd *reader) windowUpdate(id uint32, by int64) *Fault {
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.send
	if id == 0 {
		if by == 0 {
			return &Fault{code: protocolError, what: "WINDOW_UPDATE by 0"}
		}
		if w.credit += by; w.credit > mostWindow {
			return &Fault{code: flowControlError, what: "WINDOW_UPDATE makes the window of the connection too large"}
		}
		w.resumeLocked()
		return nil
	}
	s := c.streams.get(id)
	switch {
	case s == nil && id > c.lastID.Load():
		return &Fault{code: protocolError, what: "WINDOW_UPDATE of a stream that has not begun"}
	case s == nil || s.state == closed:
		return nil
	case by == 0:
		return &Fault{code: protocolError, stream: id, what: "WINDOW_UPDATE by 0"}
	}
	if s.delta += by; s.delta+w.initial > mostWindow {
		return &Fault{code: flowControlError, stream: id, what: "WINDOW_UPDATE makes the window too large"}
	}
	w.highest = max(w.highest, s.delta)
	if len(s.pending) > 0 {
		w.queueLocked(s)
		w.resumeLocked()
	}
	return nil
}

// creditLocked returns how many bytes the client takes on the stream. SETTINGS can make it
// negative.
func (s *Stream) creditLocked() int64 { return s.delta + s.c.send.initial }

// roomLocked returns how many of n bytes can be appended to the output as one frame of DATA.
func (w *sending) roomLocked(s *Stream, n int) int {
	if len(w.out) >= w.c.cfg.MaxUnsent/2 { // the other half is for what has no flow control
		return 0
	}
	return int(max(0, min(int64(n), maxFrame, s.creditLocked(), w.credit)))
}

// dataLocked appends as much of p as has room now, and returns how much. It is nothing while other
// streams wait in the queue. Last sets END_STREAM in the frame that ends p.
func (w *sending) dataLocked(s *Stream, p []byte, last bool) (sent int) {
	for sent < len(p) && w.head == nil {
		n := w.roomLocked(s, len(p)-sent)
		if n == 0 {
			break
		}
		w.frameLocked(s, p[sent:], n, last)
		sent += n
	}
	return sent
}

// frameLocked appends the first n bytes of p as a frame. Last sets END_STREAM if these are all.
func (w *sending) frameLocked(s *Stream, p []byte, n int, last bool) {
	flags := byte(0)
	if last && n == len(p) {
		flags = flagEndStream
	}
	w.out = appendHeader(w.out, dataFrame, flags, s.id, n)
	w.sentLocked(s, p[:n], n, n == len(p))
}

// sentLocked appends p, which is the rest of n bytes of a frame of DATA. Whole says that the frame
// ends a part of the body.
func (w *sending) sentLocked(s *Stream, p []byte, n int, whole bool) {
	w.out = append(w.out, p...)
	w.data++
	s.delta -= int64(n)
	w.credit -= int64(n)
	if whole {
		w.c.earnResetsLocked(resetsPerReply)
	}
	if whole || n >= longFrame {
		w.earned = min(w.earned+controlsPerReply, mostControls)
	}
}

// longFrame is the size of a frame that is long enough to be worth a WINDOW_UPDATE.
const longFrame = 1 << 10

// holdLocked keeps p as what the stream sends when there is room. It waits in the queue, or for
// credit of the stream.
func (w *sending) holdLocked(s *Stream, p []byte) {
	s.pending = p
	w.stalled++
	w.queueLocked(s)
}

// queueLocked puts a stream that has credit at the end of the queue.
func (w *sending) queueLocked(s *Stream) {
	if s.queued || len(s.pending) == 0 || s.creditLocked() <= 0 {
		return
	}
	s.queued, s.prev = true, w.tail
	if w.tail == nil {
		w.head = s
	} else {
		w.tail.next = s
	}
	w.tail = s
}

// dequeueLocked takes a stream out of the queue, if it is there.
func (w *sending) dequeueLocked(s *Stream) {
	if !s.queued {
		return
	}
	if s.prev == nil {
		w.head = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		w.tail = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.queued, s.prev, s.next = false, nil, nil
}

// resumeLocked sends what the queue holds, one frame of each stream in turn.
func (w *sending) resumeLocked() {
	for w.head != nil && w.credit > 0 && len(w.out) < w.c.cfg.MaxUnsent/2 {
		s := w.head
		w.dequeueLocked(s)
		n := w.roomLocked(s, len(s.pending))
		if n == 0 {
			continue // SETTINGS have taken the credit back
		}
		w.frameLocked(s, s.pending, n, s.ends && len(s.trailer) == 0)
		if s.pending = s.pending[n:]; len(s.pending) > 0 {
			w.queueLocked(s)
			continue
		}
		w.unholdLocked(s)
		if s.ends {
			s.endLocked(len(s.trailer) > 0)
		}
		s.wakeLocked()
	}
}

// unholdLocked forgets what the stream had to send.
func (w *sending) unholdLocked(s *Stream) {
	w.dequeueLocked(s)
	s.pending = nil
	w.stalled--
	if s.held > 0 {
		w.c.cfg.Release(s.held)
		s.held = 0
		w.replies--
	}
}
