// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// timeEnv is how long the overload lasts, for example 30s. Only then is it judged how much was
// done: a queue of 16,384 is nearly two seconds long, and other tests take their part of the
// machine.
const timeEnv = "YODEL_TORTURE_TIME"

const (
	work     yodel.Method[Job, Done] = "Torture.Work"
	capacity yodel.Method[Job, Done] = "Torture.Capacity" // how many of them the server can do in a second
	most     yodel.Method[Job, Done] = "Torture.Most"     // how many it had open at most
)

// A bench is ten workers who take a millisecond for each call.
type bench struct {
	calls      chan chan struct{}
	open, most atomic.Int64
}

// serveWork registers what the overload calls. The workers end with ctx.
func serveWork(ctx context.Context, s *yodel.Server) {
	b := newBench(ctx)
	work.Handle(s, b.work)
	capacity.Handle(s, b.capacity)
	most.Handle(s, func(context.Context, *Job) (*Done, error) { return &Done{int(b.most.Load())}, nil })
}

func newBench(ctx context.Context) *bench {
	b := &bench{calls: make(chan chan struct{})}
	for range 10 {
		go b.worker(ctx)
	}
	return b
}

// worker does one call after the other. A timer may be a millisecond late when the process has
// sockets to look after, because that is how exactly the system's poll waits. That is made up for
// with the calls that follow, or else it would be Go's timers that are measured.
func (b *bench) worker(ctx context.Context) {
	const takes, late = time.Millisecond, 20 * time.Millisecond
	t := time.NewTimer(0)
	<-t.C
	var end time.Time
	for {
		select {
		case done := <-b.calls:
			now := time.Now()
			if end.Before(now.Add(-late)) { // it had nothing to do
				end = now
			}
			end = end.Add(takes)
			t.Reset(end.Sub(now))
			<-t.C
			close(done)
		case <-ctx.Done():
			return
		}
	}
}

func (b *bench) work(_ context.Context, job *Job) (*Done, error) {
	n := b.open.Add(1)
	defer b.open.Add(-1)
	for most := b.most.Load(); n > most; most = b.most.Load() {
		if b.most.CompareAndSwap(most, n) {
			break
		}
	}
	done := make(chan struct{})
	b.calls <- done
	<-done
	return &Done{job.ID}, nil
}

// capacity returns how many calls such workers do in a second when they are called in the process.
func (b *bench) capacity(ctx context.Context, _ *Job) (*Done, error) {
	const callers, seconds = 1000, 3
	all, end := context.WithCancel(ctx)
	defer end()
	own := newBench(all)
	ctx, cancel := context.WithTimeout(ctx, seconds*time.Second)
	defer cancel()
	var n atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := own.work(ctx, &Job{}); err == nil && ctx.Err() == nil {
					n.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return &Done{int(n.Load() / seconds)}, nil
}

// TestOverload has 200 clients with default settings offer all the load that they can, without a
// break, to a server with default settings that can do a hundredth of it. Nobody has an error, the
// server does as much as without clients, its memory does not grow, and the clients are treated
// alike.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	lasts := 3 * time.Second
	if v := os.Getenv(timeEnv); v != "" {
		var err error
		if lasts, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	const count, budget = 200, 16 << 10
	server := start(t)
	clients := make([]*yodel.Client, count)
	for i := range clients {
		clients[i] = yodel.Dial(server.addr)
		defer clients[i].Close()
		if err := clients[i].Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := can(t, clients[0])
	r := overload(t, clients, server, lasts)
	after := can(t, clients[0])
	m, err := most.Call(t.Context(), clients[0], &Job{})
	if err != nil {
		t.Fatal(err)
	}
	could := (before + after) / 2
	t.Logf("%d clients, %v: %.0f calls/s, %.1f %% of the %.0f in process (%.0f before, %.0f after); %d failed; at most %d open; Jain index %.4f; resident %d MiB early, %d MiB at the end",
		count, lasts, r.rate, 100*r.rate/could, could, before, after, r.failed, m.ID, r.fairness, r.early>>20, r.late>>20)
	if r.failed > 0 || m.ID > budget {
		t.Errorf("want no failure, and at most %d open", budget)
	}
	if raceEnabled || os.Getenv(timeEnv) == "" {
		return
	}
	if r.fairness < 0.95 {
		t.Error("want an index of 0.95")
	}
	if r.rate < 0.95*could {
		t.Errorf("%.0f calls/s are less than 95 %% of %.0f", r.rate, could)
	}
	if r.late > r.early+r.early/10 {
		t.Errorf("the server's memory grew from %d to %d bytes", r.early, r.late)
	}
}

// can returns what the server's workers can do, in calls per second.
func can(t *testing.T, c *yodel.Client) float64 {
	t.Helper()
	done, err := capacity.Call(t.Context(), c, &Job{})
	if err != nil {
		t.Fatal(err)
	}
	return float64(done.ID)
}

// An overloading is what came of it.
type overloading struct {
	rate, fairness float64
	failed         int64
	early, late    int // bytes resident in the server, after a third of the time, and at the end
}

func overload(t *testing.T, clients []*yodel.Client, server *child, lasts time.Duration) (r overloading) {
	t.Helper()
	done := make([]atomic.Int64, len(clients))
	var failed atomic.Int64
	var wg, open sync.WaitGroup
	var over atomic.Bool
	for i, c := range clients {
		wg.Go(func() {
			for !over.Load() { // Go returns when the server has room for the call
				open.Add(1)
				work.Then(t.Context(), c, &Job{i}, func(reply *Done, err error) {
					defer open.Done()
					switch {
					case err == nil && reply.ID == i:
						done[i].Add(1)
					case failed.Add(1) <= 10:
						t.Errorf("client %d: %v, %v", i, reply, err)
					}
				})
			}
		})
	}
	counted := func() (sum, squares float64) {
		for i := range done {
			n := float64(done[i].Load())
			sum, squares = sum+n, squares+n*n
		}
		return sum, squares
	}
	tick := time.NewTicker(lasts / 30)
	defer tick.Stop()
	var first, last float64
	var began, ended time.Time
	for n := range 30 {
		<-tick.C
		switch n {
		case 2: // every client has its share
			first, _ = counted()
			began = time.Now()
		case 9:
			r.early = memory(t, server)
		}
	}
	last, squares := counted()
	ended = time.Now()
	r.late = memory(t, server)
	over.Store(true)
	wg.Wait()
	open.Wait()
	r.rate = (last - first) / ended.Sub(began).Seconds()
	r.fairness = last * last / (float64(len(clients)) * squares)
	r.failed = failed.Load()
	return r
}

func memory(t *testing.T, server *child) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	return resident(t, server.cmd.Process.Pid)
}
