// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
)

// infoEvery is how long the description of a server is kept. Its methods rarely change.
const infoEvery = 15 * time.Second

// A node is a process that serves instances at one address.
type node struct {
	client *yodel.Client

	mu     sync.Mutex
	info   *introspect.Info
	infoAt time.Time
	stats  *introspect.Stats // of the last read, if the server has no live data
	at     time.Time         // of stats
	last   *answer           // of the last read, if it came in time
	misses int               // questions in a row without an answer in time
	lived  *introspect.Live  // the last live data, with those of gone
	gone   *introspect.Live  // the last live data of the process before; nil if there was none
}

// An answer is what a node has said about itself.
type answer struct {
	state State
	why   string
	took  time.Duration // of the question for the health
	heard bool          // whether that was answered

	info   *introspect.Info
	live   *introspect.Live
	stats  *introspect.Stats
	conns  *introspect.Conns
	before map[string]introspect.MethodStats // by method, at an earlier time; nil if stats counts from the start
	span   time.Duration                     // between before and stats
}

// ask asks a node everything at once. A node that has not answered in time once is as it was
// before: a busy machine misses a question now and then.
func (n *node) ask(ctx context.Context, o *Options) *answer {
	a := n.once(ctx, o)
	if before, misses := n.note(a); misses == 1 && before != nil {
		return before
	}
	return a
}

// note keeps an answer. It returns the one before it, and how many were missed in a row.
func (n *node) note(a *answer) (before *answer, misses int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before = n.last
	if a.state == Silent {
		n.misses++
	} else {
		n.last, n.misses = a, 0
	}
	return before, n.misses
}

// once asks a node once. If it is not connected to the node, it asks for the health first: if the
// node cannot be reached, further calls would only dial it again.
func (n *node) once(ctx context.Context, o *Options) *answer {
	a := &answer{state: Up}
	var health *introspect.Health
	var unwell error
	connected := n.connected()
	if !connected {
		health, unwell = n.check(ctx, o, a)
		if e, ok := errors.AsType[*yodel.Error](unwell); ok && (e.AboutConnection() || e.Code == yodel.DeadlineExceeded) {
			a.state, a.why = stateOf(health, unwell)
			return a
		}
	}
	timed, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var undescribed, unmeasured error
	var wg sync.WaitGroup
	if connected {
		wg.Go(func() { health, unwell = n.check(ctx, o, a) })
	}
	wg.Go(func() { a.info, undescribed = n.describe(timed) })
	wg.Go(func() {
		a.live, unmeasured = inspect.Live.Call(timed, n.client, &introspect.LiveQuery{Span: o.Span, Histograms: true})
		if unmeasured != nil {
			n.count(timed, a)
		} else {
			bound(a.live)
			n.remember(a.live)
		}
	})
	if o.Conns {
		wg.Go(func() {
			if a.conns, _ = inspect.Conns.Call(timed, n.client, &inspect.Empty{}); a.conns != nil {
				boundConns(a.conns)
			}
		})
	}
	wg.Wait()
	a.state, a.why = stateOf(health, unwell)
	if why := refusal(unwell, undescribed, unmeasured); why != "" {
		a.state, a.why = Refused, why
	} else if a.state == Up && a.stats == nil && errors.Is(unmeasured, yodel.PermissionDenied) {
		a.why = cmp.Or(a.why, "it shows no calls: ServerOptions.Diagnostics is not set")
	} else if a.state == Up && a.stats == nil && errors.Is(unmeasured, yodel.DeadlineExceeded) {
		a.state, a.why = Silent, late
	}
	return a
}

// connected reports whether there is a connection to the node.
func (n *node) connected() bool {
	return slices.ContainsFunc(n.client.Endpoints(), (*yodel.Endpoint).Connected)
}

// check asks a node for its health.
func (n *node) check(ctx context.Context, o *Options, a *answer) (*introspect.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	began := time.Now()
	health, err := inspect.Health.Call(ctx, n.client, &inspect.Empty{})
	a.took, a.heard = time.Since(began), err == nil
	return health, err
}

// refusal returns why the server does not accept the caller, or "" if it does. Servers without
// diagnostics deny permission for yodel.Live to every caller, so that error does not count.
func refusal(health, info, live error) string {
	for _, err := range []error{health, info, live} {
		denied := err != live && errors.Is(err, yodel.PermissionDenied) //nolint:errorlint // which of the three it is
		if !denied && !errors.Is(err, yodel.Unauthenticated) {
			continue
		}
		if e, ok := errors.AsType[*yodel.Error](err); ok {
			return "token refused: " + e.Message
		}
	}
	return ""
}

// describe returns the description of the server, which is at most infoEvery old.
func (n *node) describe(ctx context.Context) (*introspect.Info, error) {
	n.mu.Lock()
	info, at := n.info, n.infoAt
	n.mu.Unlock()
	if info != nil && time.Since(at) < infoEvery {
		return info, nil
	}
	info, err := inspect.Info.Call(ctx, n.client, &inspect.Empty{})
	if err != nil {
		return nil, err
	}
	boundInfo(info)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.info, n.infoAt = info, time.Now()
	return info, nil
}

// count reads the statistics of a server without live data, and finds those of the last read.
func (n *node) count(ctx context.Context, a *answer) {
	stats, err := inspect.Stats.Call(ctx, n.client, &inspect.Empty{})
	if err != nil {
		return
	}
	boundStats(stats)
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	a.stats, a.span = stats, now.Sub(stats.Since)
	if n.stats != nil && n.stats.Since.Equal(stats.Since) {
		a.before, a.span = make(map[string]introspect.MethodStats), now.Sub(n.at)
		for _, m := range n.stats.Methods {
			a.before[m.Name] = m
		}
	}
	n.stats, n.at = stats, now
}

// late is why an instance is Silent.
const late = "it has not answered in time"

// stateOf returns the state of a server that has answered yodel.Health, or not.
func stateOf(health *introspect.Health, err error) (state State, why string) {
	var e *yodel.Error
	switch {
	case err == nil && health.Serving:
		return Up, ""
	case err == nil:
		return Draining, "it is shutting down"
	case !errors.As(err, &e):
		return Silent, err.Error()
	case e.AboutConnection():
		return Down, e.Message
	case errors.Is(err, yodel.DeadlineExceeded):
		return Silent, late
	case errors.Is(err, yodel.Unavailable):
		return Down, e.Message
	}
	return Up, "it does not describe itself: " + e.Message
}
