// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
)

// A worker pool is what limits many servers: so many at once, each for a while. It counts what
// waits for it too.
type workers struct {
	slots      chan struct{}
	took       time.Duration
	open, most atomic.Int64
}

func newWorkers(n int, took time.Duration) *workers {
	return &workers{slots: make(chan struct{}, n), took: took}
}

func (w *workers) work(context.Context, *struct{}) (*struct{}, error) {
	n := w.open.Add(1)
	defer w.open.Add(-1)
	raise(&w.most, n)
	w.slots <- struct{}{}
	<-time.After(w.took)
	<-w.slots
	return &struct{}{}, nil
}

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old; old = most.Load() {
		if most.CompareAndSwap(old, n) {
			return
		}
	}
}

const Work yodel.Method[struct{}, struct{}] = "Work"

// jain is Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, n := range shares {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// flood makes each client begin calls as fast as it can until so many have ended since the first of
// each client has. It returns how many of them ended well, and how many calls did not.
func flood(t *testing.T, clients []*yodel.Client, calls int64) (done []int64, failed int64) {
	t.Helper()
	counts := make([]atomic.Int64, len(clients))
	var begun, all, failures atomic.Int64 // begun: clients of which a call has ended
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			var open sync.WaitGroup
			var first sync.Once
			for all.Load() < calls {
				open.Add(1)
				c.Go(t.Context(), &yodel.Call{Method: string(Work), Args: &struct{}{}}, func(err error) {
					defer open.Done()
					first.Do(func() { begun.Add(1) })
					if err != nil && failures.Add(1) < 10 {
						t.Errorf("client %d: %v", i, err)
					}
					if begun.Load() < int64(len(clients)) {
						return // a client that begins late is not one that gets less
					}
					all.Add(1)
					if err == nil {
						counts[i].Add(1)
					}
				})
			}
			open.Wait()
		})
	}
	wg.Wait()
	for i := range counts {
		done = append(done, counts[i].Load())
	}
	return done, failures.Load()
}

// Thirty clients offer all the load that they can to a server that is the bottleneck. It has no
// more requests open than it allows, none fails, and each client has as much done as any other.
func TestClientsShareTheServersBudget(t *testing.T) {
	for _, test := range []struct{ clients, budget int }{{30, 600}, {30, 100}, {30, 45}} {
		w := newWorkers(10, time.Millisecond)
		s := newServer(t, &yodel.ServerOptions{MaxOpen: test.budget})
		Work.Handle(s, w.work)
		addr := serve(t, s)
		var clients []*yodel.Client
		for range test.clients {
			c := newClient(t, &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 2000}}, addr)
			must(t, c.Ready(t.Context()))
			clients = append(clients, c)
		}
		done, failed := flood(t, clients, int64(400*test.clients))
		var sum int64
		for _, n := range done {
			sum += n
		}
		stats, err := inspect.Stats.Call(t.Context(), clients[0], &inspect.Empty{})
		if err != nil || stats.Granted < test.budget/4 || stats.Granted > test.budget || stats.Open > 1 {
			t.Errorf("afterwards %d of %d are granted, and %d open: %v", stats.Granted, test.budget, stats.Open, err)
		}
		index := jain(done)
		t.Logf("%d clients, a budget of %d: %d calls, %d failed, at most %d open, Jain index %.3f %v", test.clients, test.budget, sum, failed, w.most.Load(), index, done)
		if failed > 0 || w.most.Load() > int64(test.budget) || index < 0.95 {
			t.Errorf("want 0 failures, at most %d open, and an index of 0.95", test.budget)
		}
	}
}
