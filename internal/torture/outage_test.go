// SPDX-License-Identifier: Apache-2.0

//go:build unix

package torture_test

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A farm is servers with addresses that they keep when they are killed and started again.
type farm struct {
	servers []*child
	past    []*child // those that were killed
}

func newFarm(t *testing.T, n int) *farm {
	t.Helper()
	f := &farm{}
	for range n {
		f.servers = append(f.servers, launch(t))
	}
	for _, c := range f.servers {
		c.listens(t)
	}
	return f
}

func (f *farm) addrs() (all []string) {
	for _, c := range f.servers {
		all = append(all, c.addr)
	}
	return all
}

func (f *farm) signal(t *testing.T, s os.Signal) {
	t.Helper()
	for _, c := range f.servers {
		if err := c.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// restart starts servers where those listened that were killed, and returns when they listen.
func (f *farm) restart(t *testing.T) {
	t.Helper()
	for i, c := range f.servers {
		c.kill() // it is dead
		f.past = append(f.past, c)
		f.servers[i] = launch(t, addrEnv+"="+c.addr)
	}
	for _, c := range f.servers {
		c.listens(t)
	}
}

// executions kills all, and returns how often each job was executed.
func (f *farm) executions() map[int]int {
	sum := map[int]int{}
	for _, c := range append(f.past, f.servers...) {
		c.kill()
		for id, n := range c.executed {
			sum[id] += n
		}
	}
	return sum
}

// moments are when something happened.
type moments struct {
	mu sync.Mutex
	at []time.Time
}

func (m *moments) add() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, time.Now())
}

// between returns how often it happened, how often at most within 100 ms, and the longest time without it.
func (m *moments) between(from, to time.Time) (n, most int, longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var within []time.Time
	last := from
	for _, at := range m.at { // as good as sorted
		if at.Before(from) || !at.Before(to) {
			continue
		}
		n, longest, last = n+1, max(longest, at.Sub(last)), at
		within = append(within, at)
		for at.Sub(within[0]) >= time.Second/10 {
			within = within[1:]
		}
		most = max(most, len(within))
	}
	return n, most, max(longest, to.Sub(last))
}

// A dialler counts attempts to connect.
type dialler struct {
	yodel.Transport

	dials *moments
}

func (d dialler) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d.dials.add()
	return d.Transport.Dial(ctx, addr)
}

// A paced call is one of many that are made whatever becomes of the others.
type paced struct {
	id, client  int
	made, ended time.Time
	err         error
}

func (p *paced) method() yodel.Method[Job, Done] {
	if p.id%5 == 0 {
		return once
	}
	return twice
}

// Traffic is clients that make calls.
type traffic struct {
	calls, passes, attempts, sent, dials moments

	ids     atomic.Int64
	pacers  sync.WaitGroup
	open    sync.WaitGroup
	clients []*yodel.Client
	mu      sync.Mutex
	told    []*paced
}

// run makes calls from n clients, each one every 10 ms, until the context ends.
func (r *traffic) run(ctx context.Context, t *testing.T, n int, addrs []string) {
	t.Helper()
	for i := range n {
		o := recommended.Client(&yodel.ClientOptions{
			Timeout: time.Second, Transport: dialler{yodel.TCP, &r.dials},
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					r.attempts.add()
					if ep.Connected() {
						r.sent.add()
					}
					return next(ctx, call)
				}
			}},
		})
		o.Middleware = append(o.Middleware, func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				r.passes.add()
				return next(ctx, call)
			}
		})
		c := yodel.NewClient(yodel.Static(addrs...), o)
		t.Cleanup(c.Close)
		r.clients = append(r.clients, c)
		r.pacers.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					r.open.Go(func() { r.call(t.Context(), c, i) })
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

func (r *traffic) call(ctx context.Context, c *yodel.Client, client int) {
	p := &paced{id: int(r.ids.Add(1)), client: client, made: time.Now()}
	r.calls.add()
	_, p.err = p.method().Call(ctx, c, &Job{p.id})
	p.ended = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, p)
}

func TestTotalOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	t.Run("killed", func(t *testing.T) {
		yodeltest.NoLeaks(t)
		f := newFarm(t, 3)
		totalOutage(t, f, func() { f.signal(t, os.Kill) }, func() { f.restart(t) })
	})
	t.Run("stopped", func(t *testing.T) {
		yodeltest.NoLeaks(t)
		f := newFarm(t, 3)
		totalOutage(t, f, func() { f.signal(t, syscall.SIGSTOP) }, func() { f.signal(t, syscall.SIGCONT) })
	})
}

func totalOutage(t *testing.T, f *farm, begin, end func()) {
	t.Helper()
	const clients = 8
	var r traffic
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	r.run(ctx, t, clients, f.addrs())
	<-time.After(time.Second)
	down := time.Now()
	begin()
	<-time.After(2500 * time.Millisecond)
	back := time.Now()
	end()
	up := time.Now()
	<-time.After(2300 * time.Millisecond)
	over := time.Now()
	cancel()
	r.pacers.Wait()
	r.open.Wait()
	_, usual, _ := r.attempts.between(began, down)
	calls, _, _ := r.calls.between(down, back)
	passes, _, _ := r.passes.between(down, back)
	attempts, _, _ := r.attempts.between(down, back)
	sent, _, _ := r.sent.between(down, back)
	dialsOut, mostOut, _ := r.dials.between(down, back)
	t.Logf("outage: %d calls, %d passes, %d attempts, %d sent, %d dials (%d)", calls, passes, attempts, sent, dialsOut, mostOut)
	dials, mostDials, _ := r.dials.between(back, over)
	_, mostAttempts, _ := r.attempts.between(up, over)
	_, mostSent, _ := r.sent.between(up, over)
	_, _, stall := r.calls.between(up, over)
	t.Logf("restart took %v; return: %d dials (%d); attempts %d, sent %d, usual %d; stall %v", up.Sub(back), dials, mostDials, mostAttempts, mostSent, usual, stall)
	var lastFailure time.Duration
	first := make([]time.Duration, clients)
	var failed [4]int
	var worst *paced
	for _, p := range r.told {
		phase := 0
		for _, at := range []time.Time{down, back, up} {
			if p.made.After(at) {
				phase++
			}
		}
		if p.err != nil {
			failed[phase]++
			if after := p.made.Sub(up); after > lastFailure {
				lastFailure, worst = after, p
			}
			continue
		}
		if after := p.ended.Sub(up); after > 0 && (first[p.client] == 0 || after < first[p.client]) {
			first[p.client] = after
		}
	}
	slices.Sort(first)
	t.Logf("failures by phase %v, last failure made %v; first success %v", failed, lastFailure, first)
	if worst != nil {
		t.Logf("%v %v", worst.id, worst.err)
	}
	executed := f.executions()
	for _, p := range r.told {
		if n := executed[p.id]; n > 1 && p.method() == once {
			t.Errorf("%d executed %d times: %v", p.id, n, p.err)
		}
	}
}
