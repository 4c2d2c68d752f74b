// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file counts the calls that a client makes of each method: see ClientOptions.CountCalls. A
// call is counted when it has ended, from data that the client has anyway. So a call that is
// counted reads the clock no more often than others.

const (
	// maxCounted is how many methods of a client are counted separately.
	maxCounted = 1000
	// otherMethods is the name of all further methods.
	otherMethods = "other"
)

// count counts a call that has ended with err.
func (q *requester) count(call *Call, err error) {
	o := call.out
	if !q.counts || o.peer != nil {
		return
	}
	n := q.countsOf(call)
	code := 0
	if err != nil {
		code = int(CodeOf(err))
	}
	n.End(q.tookFor(call, err), code)
	if call.rare == nil && call.stream == nil && call.turn == nil {
		if call.Attempt > 0 {
			n.Bytes.Add(uint64(o.received), uint64(len(o.req.Body)+len(o.req.Attachment)+len(o.req.Metadata)))
		}
		return
	}
	if call.turn != nil && call.turn.trip.kept != nil {
		return // another goroutine may be sending the call again, with the same memory
	}
	t := call.Traffic()
	n.Bytes.Add(uint64(t.BytesIn), uint64(t.BytesOut))
	n.Messages.Add(uint64(t.Received), uint64(t.Sent))
	if extra := call.Attempt - 1; extra > 0 {
		hedges := min(t.Forks, extra)
		n.Extra.Add(uint64(extra-hedges), uint64(hedges))
	}
}

// countsOf returns the counters of the method of a call.
func (q *requester) countsOf(call *Call) *stats.Calls {
	if b := call.out.binding; b != nil {
		return b.of.calls
	}
	if m := (*q.methods.Load())[call.Method]; m != nil {
		return m.calls
	}
	q.methodsMu.Lock()
	defer q.methodsMu.Unlock()
	if len(*q.methods.Load()) < maxCounted {
		return q.methodLocked(strings.Clone(call.Method)).calls
	}
	return q.otherCalls
}

// newCounts returns the counters for a new method, which is the nth.
func (q *requester) newCounts(name string, nth int) *stats.Calls {
	if q.counts && nth < maxCounted && name != otherMethods {
		return new(stats.Calls)
	}
	return q.otherCalls // nil if the client does not count
}

// tookFor returns how long a call took that has ended with err. If its reply ended it, the time of
// the reply counts, which the reader goroutine has read.
func (q *requester) tookFor(call *Call, err error) time.Duration {
	if call.watch == watched {
		return call.took
	}
	began, ended := call.start(), call.out.arrived
	if began == 0 { // it failed before it could be sent
		return 0
	}
	if ended == 0 || err != nil || call.rare != nil || call.stream != nil || q.client != nil && q.client.wraps {
		ended = clock()
	}
	return max(ended-began, 0)
}

// callStats returns the counters of the calls of each method, sorted by name.
func (q *requester) callStats() (all []introspect.MethodStats) {
	if !q.counts {
		return nil
	}
	for name, m := range *q.methods.Load() {
		if m.calls != q.otherCalls {
			all = append(all, diagnose.Calls(name, m.calls))
		}
	}
	if other := diagnose.Calls(otherMethods, q.otherCalls); other.Calls > 0 {
		all = append(all, other)
	}
	slices.SortFunc(all, func(a, b introspect.MethodStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}
