// SPDX-License-Identifier: Apache-2.0

package mux

import "time"

// A late reply is a reply that is sent after Serve has returned. No goroutine waits for it. Serve
// calls Later while it runs. The code that has the reply calls Finish, on any goroutine, before or
// after Serve returns. The request remains open until Finish is called: in the table, in the
// limits, and during a drain.

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

// NotLater undoes Later. Serve calls it when it has failed after it called Later, and has stored
// the reply itself. NotLater returns false if Finish was called first. Only Serve may call it.
func (r *Request) NotLater() bool { return r.late.CompareAndSwap(lateServing, notLate) }

// Finish sends the late reply of a request on which Serve has called Later. It first calls
// Target.Reply, which stores the reply. Finish does nothing if NotLater was called, or if Finish
// was called before. It waits while the peer does not read its replies.
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
		c.cfg.Pool.running.End()
	}()
	r.target.Done(r, now-r.Taken, true)
}

// served is called when Serve has returned. It reports whether the goroutine of Serve must send the
// reply. Otherwise Finish sends it, and r belongs to Finish.
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

// serveEnded is served for a request that began inline at about began and whose reader has lost the
// reading.
func (r *Request) serveEnded(began int64) bool {
	if r.late.Load() == notLate {
		return true
	}
	r.begunAt(began)
	r.Scratch = nil // Finish may run at the same time
	return r.served()
}

// exited ends a request whose Serve has ended its goroutine, which was a reader goroutine.
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
