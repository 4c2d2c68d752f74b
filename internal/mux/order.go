// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file implements keyed order. A request with an epoch is ordered. The ordered requests of one
// key on one connection are executed one after the other, in the order in which they became
// complete. Each one begins when the reply of the previous one is in the output. Ordered requests
// never run on the reader goroutine. A waiting request is in the table like any other, so the
// window, deadlines and cancellation apply to it.
//
// The opener of a call is the side that sends the request. It sends the requests of a key without
// waiting for replies. If this side refuses one of them, the opener sends it again. Requests that
// the opener sent after it must not overtake it. So a refusal breaks the key: this side refuses all
// later requests of that key and epoch. When all of them have been refused, the opener begins a new
// epoch.

// An orderedState is the additional state of an ordered request. Conn.mu guards it.
type orderedState struct {
	key        string
	epoch      uint64
	queue      *keyQueue // nil before the request is complete, and after it is done
	prev, next *Request  // neighbors in the queue
	skipped    bool      // an earlier request was refused, so this one is refused too
}

// A keyQueue is the queue of the ordered requests of one key, oldest first. The first one is being
// executed. Conn.mu guards it.
type keyQueue struct {
	first, last *Request
	// The highest epoch in which a request of the queue was refused. The waiting requests of that
	// epoch are refused too.
	broken uint64
}

// A keyedOrder is the state of a connection for ordered requests: the keys in use, and the broken
// keys. Conn.mu guards it.
type keyedOrder struct {
	lines  map[string]*keyQueue // by key; only keys that have requests
	broken map[string]uint64    // maps a key to the epoch in which a request was refused
	bytes  int                  // the length of the keys in broken
	top    uint64               // the highest epoch seen
	floor  uint64               // every key is broken up to this epoch
}

// Bounds of the broken keys that a connection remembers. A key remains broken until the opener uses
// it again. Beyond these bounds this side no longer remembers single keys, and treats all keys as
// broken. It may then refuse requests needlessly. The opener sends these again in a new epoch.
const (
	maxBroken      = 1024
	maxBrokenBytes = 64 << 10
)

// newOrdered returns the additional state of an ordered request, or nil for any other request.
func newOrdered(f *wire.Fields) *orderedState {
	if f == nil || f.Epoch == 0 {
		return nil
	}
	return &orderedState{key: string(f.Key), epoch: f.Epoch}
}

// brokenLocked reports whether t's request must be refused because an earlier request of its key
// was refused.
func (o *keyedOrder) brokenLocked(t *orderedState) bool {
	o.top = max(o.top, t.epoch)
	return t.epoch <= o.floor || len(o.broken) > 0 && t.epoch <= o.broken[t.key]
}

// breakLocked records a refusal. All later requests of t's key and epoch are then refused.
func (o *keyedOrder) breakLocked(t *orderedState) {
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

// mendLocked removes the key of t from the broken keys. The key was broken in an earlier epoch than
// that of t.
func (o *keyedOrder) mendLocked(t *orderedState) {
	if _, ok := o.broken[t.key]; ok {
		delete(o.broken, t.key)
		o.bytes -= len(t.key)
	}
}

// dispatch executes a complete request that is in the table. It executes an ordered request when
// the earlier requests of its key are done, and any other request at once.
func (ci *callsIn) dispatch(r *Request) {
	c := ci.c
	t := r.ordered
	if t == nil {
		c.cfg.Pool.run(r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &ci.lazyLocked().order
	if o.brokenLocked(t) { // the key was broken after the request was accepted
		t.skipped, r.target = true, skipped{}
	} else {
		o.mendLocked(t)
	}
	l := o.lines[t.key]
	if l == nil {
		if o.lines == nil {
			o.lines = make(map[string]*keyQueue)
		}
		l = new(keyQueue)
		o.lines[t.key] = l
	}
	t.queue, t.prev = l, l.last
	l.last = r
	if t.prev != nil {
		t.prev.ordered.next = r
		return
	}
	l.first = r
	c.cfg.Pool.run(r)
}

// passLocked removes a request that leaves the table from its queue, and starts the next one.
func (ci *callsIn) passLocked(r *Request) {
	c := ci.c
	t := r.ordered
	l := t.queue
	if l == nil {
		return
	}
	// The key breaks only if the opener may send the request again. The opener does not do that if
	// it canceled the request, if the deadline has passed, or if the connection has ended.
	if r.Reply.NotProcessed && !t.skipped && !r.unwanted && c.lifetime.err == nil && !r.Expired() {
		ci.order.breakLocked(t)
		l.broken = max(l.broken, t.epoch)
	}
	if t.next != nil {
		t.next.ordered.prev = t.prev
	} else {
		l.last = t.prev
	}
	t.queue = nil
	switch {
	case t.prev != nil: // it was waiting
		t.prev.ordered.next = t.next
	case t.next != nil:
		l.first = t.next
		// The connection has ended, and its end is about to cancel this request.
		if l.first.ordered.epoch <= l.broken || c.lifetime.err != nil && !l.first.OneWay {
			l.first.ordered.skipped, l.first.target = true, skipped{}
		}
		c.cfg.Pool.run(l.first)
	default:
		delete(ci.order.lines, t.key)
	}
	t.prev, t.next = nil, nil
}

// waiting reports whether an ordered request is in a queue behind another request.
func (t *orderedState) waiting() bool { return t != nil && t.queue != nil && t.prev != nil }

// cancelWaitingLocked answers a request that is canceled before its turn. It answers at once, so
// that the request no longer takes room in the window.
func (ci *callsIn) cancelWaitingLocked(r *Request, code uint16) {
	ci.leaveTableLocked(r)
	ci.refuseForLocked(r, max(code, catalogue.Canceled), catalogue.CallCanceled, "the caller canceled it before its turn came")
	r.releaseBody(ci.c.cfg.Pool)
}

// skipped is the target of requests whose key is broken.
type skipped struct{ unserved }

const skippedText = "an earlier call with this key was refused"

func (skipped) Serve(r *Request) {
	r.Reply = refusedWith(catalogue.EarlierRefused, skippedText)
}
