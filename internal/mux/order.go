// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is keyed order. A request with an epoch is ordered: those of one key on one connection
// are executed one after the other, in the order in which they have come whole, and each begins
// when the reply of the one before has been queued. They never run on the reading goroutine. A
// request that waits is in the table like every other, so that the window, deadlines and
// cancellation are the same for it.
//
// The opener sends requests of a key without waiting for replies. When one of them was refused it
// will be sent again, and what was sent behind it must not overtake it: so a refusal breaks the
// key, and all that follows is refused as well, until the opener, who has seen it all come back,
// begins a new epoch.

// A turn is what an ordered request has beside others.
type turn struct {
	key        string
	epoch      uint64
	line       *line    // nil when it is in none: not come whole yet, or done
	prev, next *Request // in the line
	skipped    bool     // an earlier one was refused, so this one is as well
}

// A line is the ordered requests of one key, oldest first. The first one is being executed.
type line struct {
	first, last *Request
	// the highest epoch in which one of the line was refused: what waits behind it in that epoch is
	// refused in its turn
	broken uint64
}

// An order is what a connection keeps of ordered requests: memory for the keys in use, and for
// those that are broken.
type order struct {
	lines  map[string]*line  // of the keys that have requests
	broken map[string]uint64 // by key, the epoch in which one was refused
	bytes  int               // of the keys in broken
	top    uint64            // the highest epoch that was seen
	floor  uint64            // every key is broken up to this epoch
}

// Broken keys that are remembered. An opener that does not come back to a key leaves it there, so
// that beyond these bounds all keys are broken together instead: what is refused then without need
// is sent again in a new epoch.
const (
	maxBroken      = 1024
	maxBrokenBytes = 64 << 10
)

// newTurn returns the turn of an ordered request, and nil of another one.
func newTurn(f *wire.Fields) *turn {
	if f == nil || f.Epoch == 0 {
		return nil
	}
	return &turn{key: string(f.Key), epoch: f.Epoch}
}

// brokenLocked reports whether t's request has to be refused because an earlier one was.
func (o *order) brokenLocked(t *turn) bool {
	o.top = max(o.top, t.epoch)
	return t.epoch <= o.floor || len(o.broken) > 0 && t.epoch <= o.broken[t.key]
}

// breakLocked takes note of a refusal: what comes after t in its epoch is refused.
func (o *order) breakLocked(t *turn) {
	old, known := o.broken[t.key]
	switch {
	case t.epoch <= max(old, o.floor):
		return
	case known:
	case len(o.broken) >= maxBroken || o.bytes+len(t.key) > maxBrokenBytes:
		o.floor, o.broken, o.bytes = o.top, nil, 0
		return
	case o.broken == nil:
		o.broken = make(map[string]uint64)
		fallthrough
	default:
		o.bytes += len(t.key)
	}
	o.broken[t.key] = t.epoch
}

// mendLocked forgets that the key of t was broken, in an earlier epoch.
func (o *order) mendLocked(t *turn) {
	if _, ok := o.broken[t.key]; ok {
		delete(o.broken, t.key)
		o.bytes -= len(t.key)
	}
}

// dispatch has a request executed that is in the table and has come whole: now, or in its turn.
func (c *Conn) dispatch(r *Request) {
	t := r.turn
	if t == nil {
		c.cfg.Pool.run(r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.seldomLocked().order
	if o.brokenLocked(t) { // since it was accepted
		t.skipped, r.target = true, skipped{}
	} else {
		o.mendLocked(t)
	}
	l := o.lines[t.key]
	if l == nil {
		if o.lines == nil {
			o.lines = make(map[string]*line)
		}
		l = new(line)
		o.lines[t.key] = l
	}
	t.line, t.prev = l, l.last
	l.last = r
	if t.prev != nil {
		t.prev.turn.next = r
		return
	}
	l.first = r
	c.cfg.Pool.run(r)
}

// passLocked takes a request that leaves the table out of its line, and has the next one executed.
func (c *Conn) passLocked(r *Request) {
	t := r.turn
	l := t.line
	if l == nil {
		return
	}
	// Who gave up does not send it again: then nothing is overtaken. Nor does who let the time
	// pass, or is gone.
	if r.Reply.NotProcessed && !t.skipped && !r.unwanted && c.err == nil && !r.Expired() {
		c.order.breakLocked(t)
		l.broken = max(l.broken, t.epoch)
	}
	if t.next != nil {
		t.next.turn.prev = t.prev
	} else {
		l.last = t.prev
	}
	t.line = nil
	switch {
	case t.prev != nil: // it was waiting
		t.prev.turn.next = t.next
	case t.next != nil:
		l.first = t.next
		// an ended connection is about to cancel it
		if l.first.turn.epoch <= l.broken || c.err != nil && !l.first.OneWay {
			l.first.turn.skipped, l.first.target = true, skipped{}
		}
		c.cfg.Pool.run(l.first)
	default:
		delete(c.order.lines, t.key)
	}
	t.prev, t.next = nil, nil
}

// waiting reports whether an ordered request is in a line and its turn has not come.
func (t *turn) waiting() bool { return t != nil && t.line != nil && t.prev != nil }

// cancelWaitingLocked answers a request that is canceled before its turn, at once: its window is
// for others to use.
func (c *Conn) cancelWaitingLocked(r *Request, code uint16) {
	c.leaveTableLocked(r)
	c.refuseForLocked(r, max(code, catalogue.Canceled), catalogue.CallCanceled, "the caller canceled it before its turn came")
	r.releaseBody(c.cfg.Pool)
}

// skipped is what a request is for whose key is broken.
type skipped struct{ unserved }

const skippedText = "an earlier call with this key was refused"

func (skipped) Serve(r *Request) {
	r.Reply = refusedWith(catalogue.EarlierRefused, skippedText)
}

// A Follower is a Completer that wants to know when the peer is done with a call, also after its
// caller has given it up.
type Follower interface {
	Completer
	// Abandoned is called when the caller has given up a call whose request was sent, before
	// Complete. What it returns is told of the call's true end: a reply, or the end of the
	// connection. It must not block.
	Abandoned() Completer
}

// followLocked leaves a Follower's stand-in in the slot that it has just abandoned.
func (c *Conn) followLocked(id uint32, to Completer) {
	f, ok := to.(Follower)
	s := c.slotLocked(id)
	if !ok || s == nil {
		return
	}
	w := c.waiterLocked()
	w.to, w.deadline, w.late = f.Abandoned(), 0, true
	w.id.Store(id)
	s.waiter = w
}

// wanted reports whether somebody waits for the reply itself, not only for the end.
func (s *slot) wanted() bool { return s.waiter != nil && !s.waiter.late }

// Follow sends a one-way request, like Notify, and tells to of its end on the peer: it is sent with
// an id in any case. Who called does not wait for that, so neither ctx nor the deadline ends it
// once it has been sent.
func (c *Conn) Follow(ctx context.Context, out *Out, to Completer) error {
	out.OneWay = true
	_, _, err := c.send(ctx, out, nil, to)
	return err
}
