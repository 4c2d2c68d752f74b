// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/keyqueue"
)

// This file executes ordered requests, which have an epoch, in the order of package keyqueue. A
// request enters the queue of its key when it is complete. The next one begins when the reply of
// the previous one is in the output. Ordered requests never run on the reader goroutine. A waiting
// request is in the table like any other, so the window, deadlines and cancellation apply to it.

// newOrdered returns the entry of an ordered request, or nil for any other request.
func newOrdered(r *Request) *keyqueue.Entry[*Request] {
	if f := r.Fields; f != nil && f.Epoch != 0 {
		return keyqueue.New(r, f.Key, f.Epoch)
	}
	return nil
}

// dispatch executes a complete request that is in the table. It executes an ordered request when
// the earlier requests of its key are done, and any other request at once.
func (ci *callsIn) dispatch(r *Request) {
	c := ci.c
	if r.ordered == nil {
		c.cfg.Pool.run(r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := ci.lazyLocked().order.Put(r.ordered)
	if r.ordered.Refused() { // the key was broken after the request was accepted
		r.target = skipped{}
	}
	if first {
		c.cfg.Pool.run(r)
	}
}

// passLocked removes a request that leaves the table from its queue, and starts the next one.
func (ci *callsIn) passLocked(r *Request) {
	c := ci.c
	// The key breaks only if the opener may send the request again. The opener does not do that if
	// it canceled the request, if the deadline has passed, or if the connection has ended.
	next := ci.order.Remove(r.ordered, r.Reply.NotProcessed && !r.unwanted && c.lifetime.err == nil && !r.Expired())
	if next == nil {
		return
	}
	// The connection has ended, and its end is about to cancel this request.
	if next.Refused() || c.lifetime.err != nil && !next.Request.OneWay {
		next.Request.target = skipped{}
	}
	c.cfg.Pool.run(next.Request)
}

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
