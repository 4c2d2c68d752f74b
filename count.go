// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file counts the calls that a client makes of each method: see ClientOptions.CountCalls. A
// call is counted when it has ended, from data that the client has anyway. So a call that is
// counted reads the clock no more often than others.

const (
	// maxCounted is how many methods of a client are counted separately.
	maxCounted = 1000
	// maxUnknown is how many of them may be methods that no server has. So names that callers of a
	// gateway invent leave room for methods that exist.
	maxUnknown = maxCounted / 2
	// otherMethods is the name of all further methods.
	otherMethods = "other"
)

// count counts a call that has ended with err.
func (q *requester) count(call *Call, err error) {
	o := call.out
	if !q.counts || o.peer != nil {
		return
	}
	code := 0
	if err != nil {
		code = int(CodeOf(err))
	}
	n := q.countsOf(call, code)
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

// countsOf returns the counters of the method of a call that has ended with a code.
func (q *requester) countsOf(call *Call, code int) *stats.Calls {
	var m *remoteMethod
	if b := call.out.binding; b != nil {
		m = b.of
	} else {
		m = q.methods.Get(call.Method)
	}
	if m != nil {
		if n := m.calls.Load(); n != nil {
			return n
		}
	}
	q.methodsMu.Lock()
	defer q.methodsMu.Unlock()
	n := q.countsLocked(call.Method, code)
	if m != nil && (n != q.otherCalls || len(q.counted) >= maxCounted) {
		m.calls.Store(n)
	}
	return n
}

// countsLocked finds or makes the counters of a name. The caller holds q.methodsMu.
func (q *requester) countsLocked(name string, code int) *stats.Calls {
	if n := q.counted[name]; n != nil {
		return n
	}
	most := maxCounted
	if code == int(Unimplemented) {
		most = maxUnknown
	}
	if len(q.counted) >= most || name == otherMethods || len(name) > wire.MaxName {
		return q.otherCalls
	}
	n := new(stats.Calls)
	q.counted[strings.Clone(name)] = n
	return n
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
	q.methodsMu.Lock()
	counted := maps.Clone(q.counted)
	q.methodsMu.Unlock()
	for name, n := range counted {
		all = append(all, diagnose.Calls(name, n))
	}
	if other := diagnose.Calls(otherMethods, q.otherCalls); other.Calls > 0 {
		all = append(all, other)
	}
	slices.SortFunc(all, func(a, b introspect.MethodStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}
