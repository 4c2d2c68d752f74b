// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// A load is callers, each of which makes a call as soon as its last one has ended.
type load struct {
	client *yodel.Client
	names  []string // of the instances
	began  time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup

	lastID   atomic.Int64
	tries    atomic.Int64             // what the retry middleware made of the calls
	attempts atomic.Int64             // what the client made of the tries
	answered map[string]*atomic.Int64 // by instance

	mu       sync.Mutex
	outcomes []outcome // complete when the load has been stopped
}

// An outcome is how a call ended for its caller.
type outcome struct {
	id     int
	method yodel.Method[Order, Receipt]
	by     string // the instance that answered
	took   time.Duration
	err    error
}

// startLoad starts callers of the instances that a registry knows, now and later. They call until
// they are stopped.
func startLoad(ctx context.Context, registry discovery.Resolver, names []string, callers int) *load {
	l := &load{names: names, began: time.Now(), answered: make(map[string]*atomic.Int64)}
	for _, name := range names {
		l.answered[name] = new(atomic.Int64)
	}
	l.client = yodel.NewClient(registry, &yodel.ClientOptions{
		Timeout:            15 * time.Second, // so that a lost call would be seen
		Middleware:         []yodel.Middleware{retry.Times(3), l.countTries},
		EndpointMiddleware: []yodel.EndpointMiddleware{l.countAttempts},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	for range callers {
		l.wg.Go(func() { l.caller(ctx) })
	}
	return l
}

// countTries stands below the retry middleware, and so sees each of its tries.
func (l *load) countTries(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		l.tries.Add(1)
		return next(ctx, call)
	}
}

// countAttempts stands below the balancer, and so sees what is sent again without anybody asking
// too.
func (l *load) countAttempts(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		l.attempts.Add(1)
		return next(ctx, call)
	}
}

// caller makes calls until ctx ends, of both methods in turn.
func (l *load) caller(ctx context.Context) {
	var outcomes []outcome
	for ctx.Err() == nil {
		o := outcome{id: int(l.lastID.Add(1)), method: Price}
		if o.id%2 == 0 {
			o.method = Buy
		}
		began := time.Now()
		receipt, err := o.method.Call(context.WithoutCancel(ctx), l.client, &Order{ID: o.id})
		o.took = time.Since(began)
		switch {
		case err != nil:
			o.err = err
		case receipt.ID != o.id:
			o.err = fmt.Errorf("order %d got the receipt of %d", o.id, receipt.ID)
		default:
			o.by = receipt.Instance
			l.answered[o.by].Add(1)
		}
		outcomes = append(outcomes, o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes = append(l.outcomes, outcomes...)
}

// stop lets the callers finish.
func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
	l.client.Close()
}

// watch shows how the calls go until they have gone on for so long, or ctx ends.
func (l *load) watch(ctx context.Context, until time.Duration) {
	pause, end := time.Second, "\n"
	if isTerminal(os.Stdout) {
		pause, end = 100*time.Millisecond, "\r"
	}
	ctx, cancel := context.WithDeadline(ctx, l.began.Add(until))
	defer cancel()
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			fmt.Print(l.line(""), end)
		}
	}
}

// event shows that something happened, and how the calls had gone until then.
func (l *load) event(what string) { fmt.Println(l.line(what)) }

// line says in one line of always the same length how the calls go.
func (l *load) line(what string) string {
	var counts strings.Builder
	for _, name := range l.names {
		fmt.Fprintf(&counts, "  %s %5d", name, l.answered[name].Load())
	}
	return fmt.Sprintf("%5.1fs %s   %-20s", time.Since(l.began).Seconds(), &counts, what)
}

// isTerminal reports whether a person is looking at f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
