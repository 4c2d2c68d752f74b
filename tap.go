// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is the built-in feed yodel.Tap, which sends the calls of a server while they end.

// Limits of taps.
const (
	maxTaps       = 16 // of a server
	tapBuffer     = 256
	tapTime       = 10 * time.Minute
	tapPerSecond  = 100 // by default
	mostPerSecond = 1000
)

// A tap is a feed of the calls that a query selects.
type tap struct {
	q     introspect.TapQuery
	calls chan introspect.Tapped
	every time.Duration // one call, after a burst of a second
	due   atomic.Int64  // on the clock; the further it is behind the present, the more calls may be sent at once
	left  atomic.Int64  // calls that matched and were left out
}

// add opens a tap. It fails if too many are open.
func (ts *taps) add(q *introspect.TapQuery) (*tap, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var open []*tap
	if old := ts.open.Load(); old != nil {
		open = *old
	}
	if len(open) == maxTaps {
		return nil, Errorf(ResourceExhausted, "%d taps are open, which is the limit", maxTaps)
	}
	t := &tap{q: *q, calls: make(chan introspect.Tapped, tapBuffer)}
	if q.PerSecond <= 0 {
		t.q.PerSecond = tapPerSecond
	}
	t.every = time.Second / time.Duration(min(t.q.PerSecond, mostPerSecond))
	t.due.Store(int64(clock() - time.Second))
	open = append(slices.Clone(open), t)
	ts.open.Store(&open)
	return t, nil
}

func (ts *taps) remove(t *tap) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	open := slices.DeleteFunc(slices.Clone(*ts.open.Load()), func(other *tap) bool { return other == t })
	if len(open) == 0 {
		ts.open.Store(nil)
		return
	}
	ts.open.Store(&open)
}

// tapped reports whether a tap is open, so that all calls are timed.
func (s *Server) tapped() bool { return s.live != nil && s.live.taps.open.Load() != nil }

// tap shows a call that has ended to the open taps.
func (c *serverCall) tap(open []*tap, took time.Duration, code Code) {
	for _, t := range open {
		if t.selects(c, took, code) {
			t.show(c, took, code)
		}
	}
}

// selects reports whether the query selects a call. Calls of built-in methods have to be named.
func (t *tap) selects(c *serverCall, took time.Duration, code Code) bool {
	q := &t.q
	if q.Method == "" && strings.HasPrefix(c.call.Method, "yodel.") {
		return false
	}
	return (q.Method == "" || q.Method == c.call.Method) && (q.Peer == "" || q.Peer == c.caller()) &&
		(!q.Failed || code != 0) && (q.Slower == 0 || took != mux.Untimed && took >= q.Slower)
}

// caller returns the name of the caller, or its address.
func (c *serverCall) caller() string { return cmp.Or(c.as.caller, c.peer.Addr.String()) }

// admit reports whether another call may be sent now.
func (t *tap) admit(now time.Duration) bool {
	for {
		due := t.due.Load()
		from := max(due, int64(now-time.Second))
		if from > int64(now-t.every) {
			return false
		}
		if t.due.CompareAndSwap(due, from+int64(t.every)) {
			return true
		}
	}
}

// show adds a call to the feed, or counts it as left out.
func (t *tap) show(c *serverCall, took time.Duration, code Code) {
	if !t.admit(clock()) {
		t.left.Add(1)
		return
	}
	call := &c.call
	traffic := call.Traffic()
	m := introspect.Tapped{
		At: time.Now().Round(0).UTC(), Method: shorten(call.Method, maxReportShort), Peer: c.caller(),
		In: traffic.BytesIn, Out: traffic.BytesOut, Trace: shorten(call.Trace, maxReportText),
	}
	if took != mux.Untimed {
		m.Took = took
	}
	if code != 0 {
		m.Code = code.String()
	}
	if c.err != nil {
		m.Message = shorten(asError(c.err).Message, maxReportText)
	}
	select {
	case t.calls <- m:
	default:
		t.left.Add(1)
	}
}

// serveTap is the handler of yodel.Tap. It ends after tapTime, or when the server drains.
func (s *Server) serveTap(ctx context.Context, q *introspect.TapQuery, send Send[introspect.Tapped]) error {
	if s.live == nil {
		return failure("YDL3103", "yodel.Tap: this server does not share its diagnostics")
	}
	t, err := s.live.taps.add(q)
	if err != nil {
		return err
	}
	defer s.live.taps.remove(t)
	end, tick := time.NewTimer(tapTime), time.NewTicker(time.Second)
	defer end.Stop()
	defer tick.Stop()
	draining := CallFrom(ctx).Draining()
	for err == nil {
		select {
		case m := <-t.calls:
			m.Left = int(t.left.Swap(0))
			err = send(&m)
		case now := <-tick.C:
			if n := int(t.left.Swap(0)); n > 0 {
				err = send(&introspect.Tapped{At: now.Round(0).UTC(), Left: n})
			}
		case <-end.C:
			return nil
		case <-draining:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}
