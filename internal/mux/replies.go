// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"

	"github.com/yodel-rpc/yodel/internal/memory"
)

// A reply can take far more memory than its request. A request of a few bytes can ask for a reply
// of megabytes. A peer that does not read its replies, or reads them slowly, makes this side hold
// them. So a request begins only when there is room for its reply:
//
//   - If the peer does not read, at most MaxUnsent bytes of replies wait, in addition to MaxUnsent
//     bytes in the output. Beyond that, no further handler begins.
//   - If the recent replies of a method were large, a request begins only when the memory of the
//     connection has room for another such reply. At least one such request always runs. When it
//     ends, the next one begins, so no request waits for ever.
//
// Requests that serve calls of this side (see nested.go) always begin. A call of this side may wait
// for them, and the peer reads while it has open calls. One-way requests have no reply.

// replies is the state of a connection for the replies that it has not sent yet. Conn.mu guards it.
type replies struct {
	small   []*Request // requests that wait because the peer does not read
	large   []*Request // requests that wait for memory for their replies
	running int        // requests for whose replies memory is counted
	inOut   int        // the bytes of Conn.out that are counted
}

// park reports whether r, which is in the table, must wait until there is room for its reply. In
// that case unparkLocked runs it later.
func (r *Request) park() bool {
	c := r.conn
	if r.admitted || r.alone() || r.nested {
		return false
	}
	expects := r.target.Expects()
	if expects == 0 && int(c.callsIn.stuck.Load()) < c.cfg.MaxUnsent {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lifetime.err != nil || c.callsIn.admitReplyLocked(r, expects) {
		return false
	}
	rep := &c.callsIn.lazyLocked().replies
	if expects > 0 {
		rep.large = append(rep.large, r)
	} else {
		rep.small = append(rep.small, r)
	}
	return true
}

// admitReplyLocked counts memory for the reply of r, if there is room for it.
func (ci *callsIn) admitReplyLocked(r *Request, expects int) bool {
	c := ci.c
	if int(ci.stuck.Load()) >= c.cfg.MaxUnsent {
		return false
	}
	if expects > 0 {
		rep := &ci.lazyLocked().replies
		switch {
		case rep.running == 0:
			c.memory.Force(expects)
		case !c.memory.Take(expects):
			return false
		}
		rep.running++
		r.memory += expects
		r.expected = expects
	}
	r.admitted = true
	return true
}

// unparkLocked begins the waiting requests for whose replies there is room. When the connection has
// ended, it begins all waiting requests.
func (ci *callsIn) unparkLocked() {
	c := ci.c
	rep := &ci.replies
	for len(rep.small) > 0 && (c.lifetime.err != nil || ci.admitReplyLocked(rep.small[0], 0)) {
		ci.runParked(&rep.small)
	}
	for len(rep.large) > 0 && (c.lifetime.err != nil || ci.admitReplyLocked(rep.large[0], rep.large[0].target.Expects())) {
		ci.runParked(&rep.large)
	}
}

func (ci *callsIn) runParked(parked *[]*Request) {
	r := (*parked)[0]
	(*parked)[0] = nil
	if *parked = (*parked)[1:]; len(*parked) == 0 {
		*parked = nil
	}
	r.admitted = true
	ci.c.cfg.Pool.run(r)
}

// replyGoneLocked records that the reply of r needs no more memory.
func (ci *callsIn) replyGoneLocked(r *Request) {
	rep := &ci.replies
	if r.expected > 0 {
		rep.running--
		r.expected = 0
	}
	if len(rep.small)+len(rep.large) > 0 {
		ci.unparkLocked()
	}
}

// awaitReplySpaceRelocking is awaitSpaceRelocking for the reply of r. It unlocks c.mu while it
// waits. The bytes of a reply are counted until the reply is in the output. The bytes of a large
// reply are counted until it is sent.
func (ci *callsIn) awaitReplySpaceRelocking(r *Request) error {
	c := ci.c
	size := len(r.Reply.Body) + len(r.Reply.Attachment)
	if full := len(c.writing.out) >= c.cfg.MaxUnsent; !full && size <= maxPart {
		return c.lifetime.err
	}
	if more := size - r.expected; more > 0 {
		c.memory.Force(more)
		r.memory += more
	}
	if len(c.writing.out) < c.cfg.MaxUnsent {
		return c.lifetime.err
	}
	ci.stuck.Add(int64(size))
	err := c.writing.awaitSpaceRelocking(context.Background(), noDeadline, c.cfg.MaxUnsent)
	ci.stuck.Add(-int64(size))
	return err
}

// countOutLocked counts the bytes in the output beyond memory.MostStash. It reports whether the
// memory limit allows them.
func (w *writing) countOutLocked() (bears bool) {
	c := w.c
	n := len(w.out) - memory.MostStash
	if n <= 0 && c.callsIn.replies.inOut == 0 || c.lifetime.err != nil {
		return true
	}
	rep := &c.callsIn.lazyLocked().replies
	more := max(n, 0) - rep.inOut
	rep.inOut += more
	if bears = c.memory.Take(more); !bears {
		c.memory.Force(more)
	}
	return bears
}
