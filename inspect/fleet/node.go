// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
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
}

// An answer is what a node has said about itself.
type answer struct {
	state State
	why   string
	took  time.Duration // of the fastest question

	info   *introspect.Info
	live   *introspect.Live
	stats  *introspect.Stats
	conns  *introspect.Conns
	before map[string]introspect.MethodStats // by method, at an earlier time; nil if stats counts from the start
	span   time.Duration                     // between before and stats
}

// ask asks a node everything at once.
func (n *node) ask(ctx context.Context, o *Options) *answer {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	a := &answer{state: Up}
	began := time.Now()
	var health *introspect.Health
	var unwell, undescribed, unmeasured error
	var wg sync.WaitGroup
	wg.Go(func() {
		health, unwell = inspect.Health.Call(ctx, n.client, &inspect.Empty{})
		a.took = time.Since(began)
	})
	wg.Go(func() { a.info, undescribed = n.describe(ctx) })
	wg.Go(func() {
		a.live, unmeasured = inspect.Live.Call(ctx, n.client, &introspect.LiveQuery{Span: o.Span, Histograms: true})
		if unmeasured != nil {
			n.count(ctx, a)
		} else {
			bound(a.live)
		}
	})
	if o.Conns {
		wg.Go(func() {
			if a.conns, _ = inspect.Conns.Call(ctx, n.client, &inspect.Empty{}); a.conns != nil {
				boundConns(a.conns)
			}
		})
	}
	wg.Wait()
	a.state, a.why = stateOf(health, unwell)
	if why := refusal(unwell, undescribed, unmeasured); why != "" {
		a.state, a.why = Refused, why
	}
	return a
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
		return Silent, "it has not answered in time"
	case errors.Is(err, yodel.Unavailable):
		return Down, e.Message
	}
	return Up, "it does not describe itself: " + e.Message
}
