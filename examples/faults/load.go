// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/recommended"
)

// A load is callers, each of which makes a call as soon as its last one has ended.
type load struct {
	client *yodel.Client
	began  time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup
	lastID atomic.Int64

	mu    sync.Mutex
	calls []call // all that have ended
	shown int    // how many of them the line has shown
}

// A call is how one ended for its caller.
type call struct {
	began  time.Time
	took   time.Duration
	server string
	err    error
}

// startLoad starts callers of the servers at some addresses.
func startLoad(ctx context.Context, addrs []string, callers int) (*load, error) {
	l := &load{began: time.Now()}
	l.client = yodel.NewClient(discovery.Static(addrs...), recommended.Client(&yodel.ClientOptions{Timeout: 5 * time.Second}))
	if err := l.client.Ready(ctx); err != nil {
		l.client.Close()
		return nil, err
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for range callers {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.call(ctx)
			}
		})
	}
	return l, nil
}

// call makes a call, which ends also when the callers are to stop.
func (l *load) call(ctx context.Context) {
	id := int(l.lastID.Add(1))
	c := call{began: time.Now()}
	answer, err := Look.Call(context.WithoutCancel(ctx), l.client, &Question{ID: id})
	c.took = time.Since(c.began)
	switch {
	case err != nil:
		c.err = err
	case answer.ID != id:
		c.err = fmt.Errorf("question %d got the answer to %d", id, answer.ID)
	default:
		c.server = answer.Server
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// stop lets the callers finish.
func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// close ends the client, and the callers if they have not been stopped.
func (l *load) close() {
	l.stop()
	l.client.Close()
}

// watch shows how the calls go for so long, or until ctx ends.
func (l *load) watch(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
			l.event("")
		}
	}
}

// event shows how the calls went since the last line, and what happens now.
func (l *load) event(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := l.calls[l.shown:]
	l.shown = len(l.calls)
	longest, failed := time.Duration(0), 0
	for _, c := range latest {
		longest = max(longest, c.took)
		if c.err != nil {
			failed++
		}
	}
	fmt.Printf("%5.1fs  %5d calls  longest %8v  %d failed   %s\n", time.Since(l.began).Seconds(), len(latest), longest.Round(100*time.Microsecond), failed, what)
}

// A window is a time in which calls were measured.
type window struct {
	fault      *fault // nil while all is well
	began, end time.Time
}

// measure watches the calls for so long.
func (l *load) measure(ctx context.Context, f *fault, length time.Duration) window {
	w := window{fault: f, began: time.Now()}
	l.watch(ctx, length)
	w.end = time.Now()
	return w
}

// took returns how long the calls took that began in a window, shortest first, and how many of them
// the server answered that was bad.
func (l *load) took(w window) (took []time.Duration, byBad int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.began.Before(w.began) || !c.began.Before(w.end) {
			continue
		}
		took = append(took, c.took)
		if w.fault != nil && c.server == nameOf(w.fault.server) {
			byBad++
		}
	}
	slices.Sort(took)
	return took, byBad
}
