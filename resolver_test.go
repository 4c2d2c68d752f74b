// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

type resolverFunc func(ctx context.Context, update func([]discovery.Instance)) error

func (f resolverFunc) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return f(ctx, update)
}

// A settable resolver is told by the test which instances there are.
type settable struct {
	mu        sync.Mutex
	instances []discovery.Instance
	changed   chan struct{}
	err       error // of Watch; nil while it works
}

func newSettable(addrs ...string) *settable {
	r := &settable{changed: make(chan struct{})}
	r.set(addrs...)
	return r
}

func (r *settable) set(addrs ...string) {
	instances := make([]discovery.Instance, len(addrs))
	for i, addr := range addrs {
		instances[i].Addr = addr
	}
	r.setInstances(instances)
}

func (r *settable) setInstances(instances []discovery.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances, r.err = instances, nil
	close(r.changed)
	r.changed = make(chan struct{})
}

// fail makes Watch fail until other instances are set.
func (r *settable) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *settable) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		r.mu.Lock()
		instances, changed, err := r.instances, r.changed, r.err
		r.mu.Unlock()
		if err != nil {
			return err
		}
		update(instances)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// A named resolver knows of which service the instances are.
type named struct {
	*settable
	service string
}

func (r *named) Describe() yodel.Description { return yodel.Description{Service: r.service} }

// A resolver that lists an address twice, as inactive and as active, names an active instance.
func TestAnAddressThatIsListedTwice(t *testing.T) {
	for _, states := range [][]string{{"", "inactive"}, {"inactive", ""}, {"inactive", "", "inactive"}} {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			s := yodel.NewServer(&yodel.ServerOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
			open := yodel.Method[int, int]("Shop.Open")
			open.Handle(s, func(_ context.Context, in *int) (*int, error) { return in, nil })
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.ListenAndServe(ctx, "shop") }()
			r := newSettable()
			var instances []discovery.Instance
			for _, state := range states {
				instances = append(instances, discovery.Instance{Addr: "shop", State: state})
			}
			r.setInstances(instances)
			c := yodel.NewClient(r, &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
			if _, err := open.Call(t.Context(), c, new(int)); err != nil {
				t.Errorf("with the states %q: %v", states, err)
			}
			c.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
