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
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// names are those of all instances that there will be.
var names = []string{"a", "b", "c", "d", "e"}

// A load is callers, each of which makes a call as soon as its last one has ended.
type load struct {
	registry *etcd.Registry
	client   *yodel.Client
	began    time.Time
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	buying   sync.RWMutex // held for reading by each call that must not be executed twice
	lastID   atomic.Int64
	tries    atomic.Int64             // what the retry middleware made of the calls
	attempts atomic.Int64             // what the client made of the tries
	answered map[string]*atomic.Int64 // by instance
	samples  []sample                 // of answered, lately

	mu       sync.Mutex
	outcomes []outcome // complete when the load has been stopped
}

// A sample is how many calls had been answered at a time, by name.
type sample struct {
	at       time.Time
	answered []int64
}

// An outcome is how a call ended for its caller.
type outcome struct {
	id     int
	method yodel.Method[Order, Receipt]
	by     string // the instance that answered
	began  time.Time
	took   time.Duration
	err    error
}

// startLoad starts callers of the instances that etcd knows, now and later. They call until they
// are stopped.
func startLoad(ctx context.Context, endpoint string, callers int) *load {
	l := &load{registry: etcd.New(endpoint, nil), began: time.Now(), answered: make(map[string]*atomic.Int64)}
	for _, name := range names {
		l.answered[name] = new(atomic.Int64)
	}
	l.client = yodel.NewClient(l.registry.Service("Shop"), &yodel.ClientOptions{
		Balancer:           balance.Weighted,
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

func weightOf(ep *yodel.Endpoint) int { return max(ep.Instance().Weight, 1) }

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

// caller makes calls until ctx ends, of both methods in turn while it may.
func (l *load) caller(ctx context.Context) {
	var outcomes []outcome
	for ctx.Err() == nil {
		id := int(l.lastID.Add(1))
		if id%2 == 0 && l.buying.TryRLock() {
			outcomes = append(outcomes, l.call(ctx, Buy, id))
			l.buying.RUnlock()
		} else {
			outcomes = append(outcomes, l.call(ctx, Price, id))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes = append(l.outcomes, outcomes...)
}

func (l *load) call(ctx context.Context, method yodel.Method[Order, Receipt], id int) outcome {
	o := outcome{id: id, method: method, began: time.Now()}
	receipt, err := method.Call(context.WithoutCancel(ctx), l.client, &Order{ID: id})
	o.took = time.Since(o.began)
	switch {
	case err != nil:
		o.err = err
	case receipt.ID != id:
		o.err = fmt.Errorf("order %d got the receipt of %d", id, receipt.ID)
	default:
		o.by = receipt.Instance
		l.answered[o.by].Add(1)
	}
	return o
}

// onlyIdempotent has callers make only calls that may be executed twice, until done is called. It
// returns when no other is open.
func (l *load) onlyIdempotent() (done func()) {
	l.buying.Lock()
	return sync.OnceFunc(l.buying.Unlock)
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
	_ = l.registry.Close() // nothing is announced with it
}

// watch shows how the calls go for so long, or until ctx ends.
func (l *load) watch(ctx context.Context, length time.Duration) {
	every, end := perSecond, "\n"
	if isTerminal(os.Stdout) {
		every, end = 1, "\r"
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	ticks := time.NewTicker(time.Second / perSecond)
	defer ticks.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			l.sample()
			if n%every == 0 {
				fmt.Print(l.line(""), end)
			}
		}
	}
}

// perSecond is how many samples are taken.
const perSecond = 10

// sample keeps the counts of the last second.
func (l *load) sample() {
	now := sample{at: time.Now()}
	for _, name := range names {
		now.answered = append(now.answered, l.answered[name].Load())
	}
	l.samples = append(l.samples, now)
	l.samples = l.samples[max(0, len(l.samples)-perSecond-1):]
}

// event shows that something happens, and how the calls went until then.
func (l *load) event(what string) {
	l.sample()
	fmt.Println(l.line(what))
}

// line says in one line of always the same length how many calls per second each instance has
// answered lately.
func (l *load) line(what string) string {
	first, last := l.samples[0], l.samples[len(l.samples)-1]
	var rates strings.Builder
	for i, name := range names {
		rate := 0.0
		if took := last.at.Sub(first.at).Seconds(); took > 0 {
			rate = float64(last.answered[i]-first.answered[i]) / took
		}
		fmt.Fprintf(&rates, "  %s %5.0f", name, rate)
	}
	return fmt.Sprintf("%5.1fs %s   %-20s", time.Since(l.began).Seconds(), &rates, what)
}

// isTerminal reports whether a person is looking at f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
