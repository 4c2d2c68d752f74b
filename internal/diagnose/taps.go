// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/rate"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// Limits of taps.
const (
	MaxTaps = 16 // of a server

	tapBuffer     = 256
	tapTime       = 10 * time.Minute
	tapPerSecond  = 100 // by default
	mostPerSecond = 1000
)

// Taps has the open taps of a server. The zero value is ready to use. It may be used concurrently.
type Taps struct {
	mu   sync.Mutex
	open atomic.Pointer[[]*Tap] // nil if there is none
}

// A Tap is a feed of the calls that a query selects.
type Tap struct {
	q     introspect.TapQuery
	calls chan introspect.Tapped
	every time.Duration // one call, after a burst of a second
	rate  rate.Bucket
	left  atomic.Int64 // calls that matched and were left out
}

// Ended is a call that has ended.
type Ended struct {
	Method  string
	Tenant  string
	Trace   string
	Took    time.Duration // mux.Untimed if it was not measured
	Code    string        // "" if it succeeded
	Message string        // of its error
	Caller  func() string // the name of the caller, or its address
	Traffic func() introspect.Traffic
}

// ErrTaps is the error of Open when MaxTaps taps are open.
var ErrTaps = errors.New("too many taps are open")

// Open opens a tap.
func (ts *Taps) Open(q *introspect.TapQuery) (*Tap, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var open []*Tap
	if old := ts.open.Load(); old != nil {
		open = *old
	}
	if len(open) == MaxTaps {
		return nil, ErrTaps
	}
	t := &Tap{q: *q, calls: make(chan introspect.Tapped, tapBuffer)}
	if q.PerSecond <= 0 {
		t.q.PerSecond = tapPerSecond
	}
	t.every = time.Second / time.Duration(min(t.q.PerSecond, mostPerSecond))
	open = append(slices.Clone(open), t)
	ts.open.Store(&open)
	return t, nil
}

// Close closes a tap.
func (ts *Taps) Close(t *Tap) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	open := slices.DeleteFunc(slices.Clone(*ts.open.Load()), func(other *Tap) bool { return other == t })
	if len(open) == 0 {
		ts.open.Store(nil)
		return
	}
	ts.open.Store(&open)
}

// Any reports whether a tap is open.
func (ts *Taps) Any() bool { return ts.open.Load() != nil }

// Show shows a call to the open taps. Now is a reading of the clock.
func (ts *Taps) Show(c *Ended, now time.Duration) {
	open := ts.open.Load()
	if open == nil {
		return
	}
	for _, t := range *open {
		if t.selects(c) {
			t.show(c, now)
		}
	}
}

// selects reports whether the query selects a call. Calls of built-in methods have to be named.
func (t *Tap) selects(c *Ended) bool {
	q := &t.q
	if q.Method == "" && strings.HasPrefix(c.Method, "yodel.") {
		return false
	}
	return (q.Method == "" || q.Method == c.Method) && (q.Peer == "" || q.Peer == c.Caller()) && (q.Tenant == "" || q.Tenant == c.Tenant) &&
		(!q.Failed || c.Code != "") && (q.Slower == 0 || c.Took != mux.Untimed && c.Took >= q.Slower)
}

// show adds a call to the feed, or counts it as left out.
func (t *Tap) show(c *Ended, now time.Duration) {
	if !t.rate.Take(now, t.every, time.Second) {
		t.left.Add(1)
		return
	}
	select {
	case t.calls <- c.describe():
	default:
		t.left.Add(1)
	}
}

// describe describes the call, within the limits of a record.
func (c *Ended) describe() introspect.Tapped {
	traffic := c.Traffic()
	m := introspect.Tapped{
		At: time.Now().Round(0).UTC(), Method: text.Cut(c.Method, record.MaxName), Peer: c.Caller(), Tenant: text.Cut(c.Tenant, record.MaxName),
		In: traffic.BytesIn, Out: traffic.BytesOut, Code: c.Code, Message: text.Cut(c.Message, record.MaxText), Trace: text.Cut(c.Trace, record.MaxText),
	}
	if c.Took != mux.Untimed {
		m.Took = c.Took
	}
	return m
}

// Run sends the calls of the feed. It returns nil after ten minutes, or when draining is closed,
// and otherwise the error of send or the cause of the end of ctx.
func (t *Tap) Run(ctx context.Context, draining <-chan struct{}, send func(*introspect.Tapped) error) (err error) {
	end, tick := time.NewTimer(tapTime), time.NewTicker(time.Second)
	defer end.Stop()
	defer tick.Stop()
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
