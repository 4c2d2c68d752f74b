// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"os"
	"time"
)

// SetReadDeadline sets when a Read that waits for the client fails with os.ErrDeadlineExceeded, as
// that of a net.Conn does. The zero time means never. A later call replaces the deadline, also for
// a Read that waits.
func (s *Stream) SetReadDeadline(at time.Time) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.readBy = at
	s.wakeLocked()
}

// SetWriteDeadline is SetReadDeadline for Write. It also holds for a reply that waits for the
// client when the handler has returned: Tick looks at it. A part of a body may have been sent when
// the deadline passes, so the stream is then reset.
func (s *Stream) SetWriteDeadline(at time.Time) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.writeBy = at
	s.wakeLocked()
}

// passed reports whether a deadline has passed.
func passed(at time.Time) bool { return !at.IsZero() && time.Until(at) <= 0 }

// waitUntilRelocking is waitRelocking until a deadline.
func (s *Stream) waitUntilRelocking(at time.Time) {
	if at.IsZero() || s.inline {
		s.waitRelocking()
		return
	}
	timer := time.AfterFunc(time.Until(at), func() {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.wakeLocked()
	})
	defer timer.Stop()
	s.waitRelocking()
}

// lateReplyLocked resets a stream whose client has not taken a part of the reply in time.
func (s *Stream) lateReplyLocked() { s.resetLocked(internalError, os.ErrDeadlineExceeded) }

// lateRepliesLocked resets the streams whose write deadlines have passed, and whose handlers have
// left their replies to the connection.
func (c *Conn) lateRepliesLocked() {
	if c.send.stalled == 0 {
		return
	}
	for s := range c.streams.all {
		if s.ends && len(s.pending) > 0 && passed(s.writeBy) {
			s.lateReplyLocked()
		}
	}
}
