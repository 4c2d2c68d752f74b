// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
)

// A fleet is a client's endpoints, whose instances a test changes at will.
type fleet struct {
	client *yodel.Client
	stays  *atomic.Int64 // see works
	tell   chan []discovery.Instance
	told   chan struct{}
}

func (f *fleet) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case instances := <-f.tell:
			update(instances)
			f.told <- struct{}{}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// newFleet returns a fleet whose endpoints nobody reaches.
func newFleet(t testing.TB, b yodel.Balancer) *fleet {
	t.Helper()
	return newFleetOn(t, nowhere{}, b)
}

func newFleetOn(t testing.TB, transport yodel.Transport, b yodel.Balancer) *fleet {
	t.Helper()
	f := newFleetWith(t, &yodel.ClientOptions{Transport: transport, Balancer: b})
	if w, ok := transport.(works); ok {
		f.stays = w.stays
	}
	return f
}

func newFleetWith(t testing.TB, o *yodel.ClientOptions) *fleet {
	t.Helper()
	f := &fleet{tell: make(chan []discovery.Instance), told: make(chan struct{})}
	f.client = yodel.NewClient(f, o)
	t.Cleanup(f.client.Close)
	return f
}

// become makes the fleet consist of instances, and returns its endpoints.
func (f *fleet) become(instances ...discovery.Instance) []*yodel.Endpoint {
	f.tell <- instances
	<-f.told
	return f.client.Endpoints()
}

// instances returns n instances whose addresses are numbered from 1.
func instances(n int) []discovery.Instance {
	all := make([]discovery.Instance, n)
	for i := range all {
		all[i].Addr = fmt.Sprintf("cart-%d:8972", i+1)
	}
	return all
}

// numbered returns n endpoints that no call reaches.
func numbered(t testing.TB, n int) []*yodel.Endpoint {
	t.Helper()
	return newFleet(t, nil).become(instances(n)...)
}

// weighing returns endpoints of these weights that no call reaches.
func weighing(t testing.TB, weights ...int) []*yodel.Endpoint {
	t.Helper()
	all := instances(len(weights))
	for i, w := range weights {
		all[i].Weight = w
	}
	return newFleet(t, nil).become(all...)
}

// keyed returns a call with the number of a key.
func keyed(i int) *yodel.Call { return &yodel.Call{Method: "Cart.Get", Key: fmt.Sprintf("user %d", i)} }

// picks counts which endpoints the calls of n keys get.
func picks(p yodel.Picker, n int) map[*yodel.Endpoint]int {
	counts := make(map[*yodel.Endpoint]int)
	for i := range n {
		counts[p.Pick(keyed(i))]++
	}
	return counts
}

// places returns which endpoint each of n keys has.
func places(p yodel.Picker, n int) []*yodel.Endpoint {
	all := make([]*yodel.Endpoint, n)
	for i := range all {
		all[i] = p.Pick(keyed(i))
	}
	return all
}

// A works is a server on which calls pass, or stay until the test ends. It is reached at every
// address.
type works struct {
	addr  string
	stays *atomic.Int64 // calls that came to stay
}

const (
	pass yodel.Method[int, int] = "Works.Pass"
	stay yodel.Method[int, int] = "Works.Stay"
)

func newWorks(t testing.TB) works {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, stays := yodel.NewServer(nil), new(atomic.Int64)
	pass.Handle(s, func(context.Context, *int) (*int, error) { return new(int), nil })
	stay.Handle(s, func(ctx context.Context, _ *int) (*int, error) {
		stays.Add(1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	return works{l.Addr().String(), stays}
}

func (w works) Dial(ctx context.Context, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", w.addr)
}

func (works) Listen(string) (net.Listener, error) { panic("it is not used") }

// A workload is calls that stay.
type workload struct {
	t testing.TB
	*fleet

	ctx    context.Context
	cancel func()
	wg     sync.WaitGroup
}

// connect connects a client to all of its endpoints: while any is connected, calls avoid the
// others.
func connect(t testing.TB, c *yodel.Client) {
	t.Helper()
	for _, ep := range c.Endpoints() {
		if err := c.Do(context.Background(), &yodel.Call{Method: string(inspect.Ping), Args: &struct{}{}, Endpoint: ep}); err != nil {
			t.Fatal(err)
		}
	}
}

func newWorkload(t testing.TB, f *fleet) *workload {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &workload{t: t, fleet: f, ctx: ctx, cancel: cancel}
	t.Cleanup(func() {
		cancel()
		w.wg.Wait()
	})
	return w
}

// add makes a call that stays, on ep or where the balancer sends it, and returns when it is
// executed.
func (w *workload) add(ep *yodel.Endpoint, key string) {
	w.t.Helper()
	before := w.stays.Load()
	w.wg.Go(func() {
		in, out := 0, 0
		w.client.Do(w.ctx, &yodel.Call{Method: string(stay), Args: &in, Reply: &out, Key: key, Endpoint: ep})
	})
	w.until("a call begins", func() bool { return w.stays.Load() > before })
}

func (w *workload) until(what string, condition func() bool) {
	w.t.Helper()
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	patience := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-patience:
			w.t.Fatalf("in vain until %s", what)
		}
	}
}
