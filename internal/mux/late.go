// SPDX-License-Identifier: Apache-2.0

package mux

import "time"

// A late reply comes after Serve has returned, without a goroutine that waits for it. Serve calls
// Later while it runs. Whoever has the reply calls Finish, on any goroutine, before or after Serve
// returns. The request stays open until then: in the table, in the limits, and during a drain.

// The states of a late reply.
const (
	notLate      = iota
	lateServing  // Later was called; Serve has not returned
	lateReady    // Finish was called before Serve returned, so the goroutine of Serve replies
	lateReturned // Serve has returned, so Finish replies
	lateFinished
)

// Later lets Serve return before there is a reply. Only Serve may call it.
func (r *Request) Later() { r.late.CompareAndSwap(notLate, lateServing) }

// NotLater undoes Later, because Serve has failed and has stored the reply. It reports false if
// Finish was called first. Only Serve may call it.
func (r *Request) NotLater() bool { return r.late.CompareAndSwap(lateServing, notLate) }

// Finish sends the reply of a request that has called Later: Target.Reply stores it first. Finish
// does nothing if NotLater was called, and when it is called again. It waits while the peer does
// not read its replies.
func (r *Request) Finish() {
	if r.late.CompareAndSwap(lateServing, lateReady) || !r.late.CompareAndSwap(lateReturned, lateFinished) {
		return
	}
	r.target.Reply(r)
	c := r.conn
	now := c.rt.clock()
	r.sayTimes(now)
	c.callsIn.finish(r)
	defer func() { // also if Done ends the goroutine
		r.Scratch = nil
		r.releaseBody(c.cfg.Pool)
		c.cfg.Pool.ran()
	}()
	r.target.Done(r, now-r.Taken, true)
}

// served reports whether the goroutine of Serve has to reply now that Serve has returned. Otherwise
// r belongs to Finish.
func (r *Request) served() bool {
	switch r.late.Load() {
	case notLate:
		return true
	case lateReady:
		r.target.Reply(r)
		return true
	}
	if r.late.CompareAndSwap(lateServing, lateReturned) {
		return false
	}
	r.target.Reply(r) // Finish was called just now
	return true
}

// serveEnded is served for a request that has run inline since about began, and is not the reader's
// any more.
func (r *Request) serveEnded(began int64) bool {
	if r.late.Load() == notLate {
		return true
	}
	r.begunAt(began)
	r.Scratch = nil // Finish may run at the same time
	return r.served()
}

// exited ends a request whose Serve has ended the goroutine of a reader.
func (ci *callsIn) exited(r *Request, began int64) {
	if !r.serveEnded(began) {
		return
	}
	if r.late.Load() == notLate {
		r.Reply = goexitOutcome()
	}
	ci.finish(r)
	ci.doneLate(r, 0)
}

// begunAt sets Taken of a request that has run inline without being measured.
func (r *Request) begunAt(began int64) {
	if r.Taken == 0 {
		r.Taken = time.Duration(began)
	}
}
