// SPDX-License-Identifier: Apache-2.0

package overload_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var long = flag.Bool("overload.long", false, "overload lasts for 30 seconds")

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	hold yodel.Method[struct{}, struct{}] = "Slots.Hold"

	slots = 10
	times = 10 // as many calls as can be served
)

// A trial is a server with so many slots, each of which a call holds for so long, and its limiter.
type trial struct {
	*testing.T
	limiter yodel.Middleware
	takes   time.Duration
	clients []yodel.Middleware
	late    atomic.Int64  // calls that were executed although their deadline had passed
	stalled time.Duration // how long the process did not run, when it should have made calls
	stats   func() []limit.Stats
}

// start serves with the limiter, or without any, and returns a client.
func (tr *trial) start(limiter ...yodel.Middleware) *yodel.Client {
	tr.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: limiter})
	free := make(chan struct{}, slots)
	hold.Handle(s, func(ctx context.Context, in *struct{}) (*struct{}, error) {
		if deadline, ok := ctx.Deadline(); ok && time.Now().After(deadline) {
			tr.late.Add(1)
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		<-time.After(tr.takes)
		<-free
		return in, nil
	})
	if err := s.Handle("Limits.Report", limit.Report); err != nil {
		tr.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tr.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	addr := l.Addr().String()
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{
		Middleware: tr.clients, EndpointMiddleware: []yodel.EndpointMiddleware{attempt},
	})
	tr.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-served; err != nil {
			tr.Errorf("Serve: %v", err)
		}
	})
	tr.stats = func() (stats []limit.Stats) {
		if err := c.Call(context.Background(), "Limits.Report", &struct{}{}, &stats); err != nil {
			tr.Error(err)
		}
		return stats
	}
	return c
}

// A mix is what share of the calls has which class, in percent.
type mix map[int]int

var (
	allNormal = mix{criticality.Normal: 100}
	everybody = mix{criticality.Critical: 3, criticality.Normal: 57, criticality.Sheddable: 20, criticality.Batch: 20}
)

// A result is what became of calls of one class, or of all of them.
type result struct {
	calls, served int
	took          []time.Duration // those that were served
	refusal       []time.Duration // until the others knew
	codes         map[yodel.Code]int
}

func (r *result) add(took time.Duration, err error) {
	r.calls++
	if err == nil {
		r.served++
		r.took = append(r.took, took)
		return
	}
	r.refusal = append(r.refusal, took)
	if r.codes == nil {
		r.codes = make(map[yodel.Code]int)
	}
	r.codes[yodel.CodeOf(err)]++
}

func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(int(q*float64(len(took))), len(took)-1)]
}

// offer makes rate calls in a second, whatever becomes of them, and returns the results by class,
// with -128 for all of them.
func (tr *trial) offer(c *yodel.Client, rate float64, lasts time.Duration, m mix) (map[int]*result, time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	results := map[int]*result{all: {}}
	var classes []int
	for class, share := range m {
		results[class] = new(result)
		for range share {
			classes = append(classes, class)
		}
	}
	one := func(class int) {
		var took time.Duration // the last attempt
		err := c.Do(context.WithValue(context.Background(), tookKey{}, &took), &yodel.Call{
			Method: string(hold), Args: &struct{}{}, Criticality: class, Deadline: time.Now().Add(time.Second),
		})
		mu.Lock()
		defer mu.Unlock()
		results[class].add(took, err)
		results[all].add(took, err)
	}
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	began, made, last, longest := time.Now(), 0, time.Duration(0), 2*lasts
	for last < min(lasts, longest) {
		<-ticks.C
		now := time.Since(began)
		// this process did not run; what it did not offer meanwhile would come all at once
		if gap := now - last; gap > stall {
			tr.stalled += gap
			made += int(rate * (gap - stall).Seconds())
			lasts += gap - stall
		}
		last = now
		for ; made < int(rate*now.Seconds()); made++ {
			class := classes[made*37%len(classes)] // neither all at once nor at random
			wg.Go(func() { one(class) })
		}
	}
	took := time.Since(began)
	wg.Wait()
	return results, took
}

const all = -128

// stall is how long a process may not run for what it measures to mean something.
const stall = 10 * time.Millisecond

type tookKey struct{}

// attempt tells the caller how long its last attempt took.
func attempt(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		began := time.Now()
		err := next(ctx, call)
		if took, ok := ctx.Value(tookKey{}).(*time.Duration); ok {
			*took = time.Since(began)
		}
		return err
	}
}

// peak is how many calls the server serves in a second when there are always enough, and never too
// many.
func (tr *trial) peak(c *yodel.Client, lasts time.Duration) float64 {
	var served atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range slots + 2 {
		wg.Go(func() {
			for time.Since(began) < lasts {
				if _, err := hold.Call(context.Background(), c, &struct{}{}); err != nil {
					tr.Error(err)
					return
				}
				served.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(served.Load()) / time.Since(began).Seconds()
}

var classNames = map[int]string{all: "all", criticality.Critical: "critical", criticality.Normal: "normal", criticality.Sheddable: "sheddable", criticality.Batch: "batch"}

func table(results map[int]*result, lasted time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %9s %9s %9s %9s %9s %12s  %s\n", "", "offered/s", "served/s", "p50", "p99", "max", "refusal p99", "refused")
	for _, class := range []int{all, criticality.Critical, criticality.Normal, criticality.Sheddable, criticality.Batch} {
		r := results[class]
		if r == nil {
			continue
		}
		fmt.Fprintf(&b, "%-10s %9.0f %9.0f %9s %9s %9s %12s  %v\n", classNames[class], float64(r.calls)/lasted.Seconds(), float64(r.served)/lasted.Seconds(),
			micro(quantile(r.took, 0.5)), micro(quantile(r.took, 0.99)), micro(quantile(r.took, 1)), micro(quantile(r.refusal, 0.99)), r.codes)
	}
	return b.String()
}

func micro(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// overload tries until what was to be shown has been. A machine that has no time for this process
// shows nothing.
func (tr *trial) overload() {
	tr.Helper()
	if raceEnabled {
		tr.Skip("it judges time, which make test-timing does")
	}
	rounds := 3
	if *long {
		rounds = 1
	}
	var faults []string
	for range rounds {
		tr.stalled = 0
		if faults = tr.round(); len(faults) == 0 {
			return
		}
		tr.Logf("faults: %q; the process stood still for %v", faults, tr.stalled)
	}
	if tr.stalled > 0 && !*long {
		tr.Skipf("the machine is too busy to show anything: the process stood still for %v", tr.stalled)
	}
	tr.Error(strings.Join(faults, "; "))
}

// round measures the server without a limiter and without overload, and then with both, and
// compares.
func (tr *trial) round() (faults []string) {
	tr.Helper()
	// machines have other work, and that does not average out in so short a time
	lasts, measure, strict := 2*time.Second, time.Second, 0.8
	if *long {
		lasts, measure, strict = 30*time.Second, 5*time.Second, 1
	}
	plain := tr.start()
	peak := tr.peak(plain, measure)
	normal, lasted := tr.offer(plain, peak/2, measure, allNormal)
	tr.Logf("peak %.0f calls/s; at half of it, without a limiter:\n%s", peak, table(normal, lasted))
	usual := quantile(normal[all].took, 0.99)

	c := tr.start(tr.limiter)
	tr.offer(c, peak*times, time.Second, everybody) // it may have to learn
	late := tr.late.Load()
	results, lasted := tr.offer(c, peak*times, lasts, everybody)
	tr.Logf("at %d times the peak, with the limiter:\n%s", times, table(results, lasted))
	for _, s := range tr.stats() {
		tr.Log(s.String())
	}
	goodput := float64(results[all].served) / lasted.Seconds()
	p99 := quantile(results[all].took, 0.99)
	critical := results[criticality.Critical]
	share := float64(critical.served) / float64(critical.calls)
	tr.Logf("goodput %.1f %% of peak; p99 %.2f times normal; critical served %.2f %%, p99 %.2f times normal", 100*goodput/peak,
		p99.Seconds()/usual.Seconds(), 100*share, quantile(critical.took, 0.99).Seconds()/usual.Seconds())
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(goodput < 0.9*strict*peak, "goodput is %.0f calls/s, the peak %.0f", goodput, peak)
	fault(p99.Seconds() > 2/strict*usual.Seconds(), "the p99 of calls that were served is %v, normally %v", p99, usual)
	fault(share < 0.999, "%d of %d critical calls were served", critical.served, critical.calls)
	fault(tr.late.Load() > late, "%d calls were executed after their deadlines", tr.late.Load()-late)
	return faults
}

// takes is how long a call holds its slot.
const takes = 5 * time.Millisecond

func TestFixedLimit(t *testing.T) {
	tr := &trial{T: t, takes: takes, limiter: limit.Concurrency(slots)}
	tr.overload()
}

func TestAdaptiveLimit(t *testing.T) {
	tr := &trial{T: t, takes: takes, limiter: limit.Adaptive(nil)}
	tr.overload()
}

// Those who are refused come again, up to three times, which is up to thirty times what can be
// served.
func TestCallersThatRetry(t *testing.T) {
	tr := &trial{T: t, takes: 4 * takes, limiter: limit.Concurrency(slots), clients: []yodel.Middleware{retry.Times(3)}}
	tr.overload()
}
