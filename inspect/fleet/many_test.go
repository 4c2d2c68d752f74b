// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// dials is a Transport that connects to nothing.
type dials struct {
	yodel.Transport
	n    atomic.Int64
	dial func(ctx context.Context) error
}

func (d *dials) Dial(ctx context.Context, _ string) (net.Conn, error) {
	d.n.Add(1)
	return nil, d.dial(ctx)
}

// dead returns instances at n addresses.
func dead(n int) []discovery.Instance {
	var list []discovery.Instance
	for i := range n {
		list = append(list, discovery.Instance{Addr: fmt.Sprintf("10.1.%d.%d:1", i/250, 1+i%250)})
	}
	return list
}

// An instance that refuses the connection is dialled once, so that thousands of them take no longer
// than their dials.
func TestInstancesThatRefuseAreDialledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances = 1000
		d := &dials{dial: func(context.Context) error { return errors.New("connection refused") }}
		f := fleet.New(services{"shop.Cart": dead(instances)}, &fleet.Options{Client: &yodel.ClientOptions{Transport: d}})
		defer f.Close()
		began := time.Now()
		view, err := f.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond || d.n.Load() != instances {
			t.Errorf("%d dials, and the read took %v", d.n.Load(), took)
		}
		for _, in := range view.Services[0].Instances {
			if in.State != fleet.Down || in.Unasked {
				t.Fatalf("%s is %s: %s", in.Addr, in.State, in.Why)
			}
		}
		if view.Err != "" {
			t.Error(view.Err)
		}
	})
}

// A read of instances that do not answer ends, reports how far it is, and says which instances it
// has not asked.
func TestInstancesThatDoNotAnswerAreAskedForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, parallel = 1000, 20
		d := &dials{dial: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		var asked, all atomic.Int64
		f := fleet.New(services{"shop.Cart": dead(instances)}, &fleet.Options{
			Client: &yodel.ClientOptions{Transport: d}, Parallel: parallel, Limit: 9500 * time.Millisecond,
			Progress: func(n, of int) { asked.Store(max(asked.Load(), int64(n))); all.Store(int64(of)) },
		})
		defer f.Close()
		began := time.Now()
		view, err := f.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the read took %v", took)
		}
		unasked := 0
		for _, in := range view.Services[0].Instances {
			if in.Unasked {
				unasked++
			}
			if in.State != fleet.Silent && in.State != fleet.Down && in.State != fleet.Unknown || in.Unasked != (in.State == fleet.Unknown) || in.Unasked != strings.Contains(in.Why, "not asked") {
				t.Fatalf("%s is %s: %s, unasked %v", in.Addr, in.State, in.Why, in.Unasked)
			}
		}
		if unasked < instances/2 || unasked > instances-9*parallel {
			t.Errorf("%d instances were not asked", unasked)
		}
		if n := int(asked.Load()); n != instances-unasked || all.Load() != instances {
			t.Errorf("the last progress is %d of %d", n, all.Load())
		}
		if want := fmt.Sprintf("not asked within 9.5s: %d of %d instances of shop.Cart", unasked, instances); view.Late != want || view.Err != "" {
			t.Errorf("the view says %q and %q, want %q", view.Late, view.Err, want)
		}
	})
}

// busy starts n servers on one slow processor, which takes each call after the other. It returns
// their addresses in network.
func busy(t *testing.T, network *mem.Network, n int, each time.Duration) (all []discovery.Instance) {
	processor := make(chan struct{}, 1)
	slow := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			select {
			case processor <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			time.Sleep(each)
			<-processor
			return next(ctx, call)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	for i := range n {
		s := yodel.NewServer(&yodel.ServerOptions{Transport: network, Logger: slog.New(slog.DiscardHandler), Middleware: []yodel.Middleware{slow}})
		echo(s, "shop.Cart.Add")
		l, err := network.Listen(fmt.Sprintf("s%03d:1", i))
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = s.Serve(ctx, l) })
		all = append(all, discovery.Instance{Addr: l.Addr().String()})
	}
	return all
}

// A fleet is not degraded because it is read on a slow machine: instances that miss a question are
// asked again, a few at a time, and the state of those for which no time is left is unknown.
func TestASlowReaderDegradesNoService(t *testing.T) {
	for name, test := range map[string]struct {
		limit time.Duration
		up    func(up int) bool
		state fleet.State
	}{
		"time for all":  {time.Minute, func(up int) bool { return up == 200 }, fleet.Unknown}, // without Diagnostics
		"time for some": {6 * time.Second, func(up int) bool { return up > 20 && up < 180 }, fleet.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				all := busy(t, network, 200, 10*time.Millisecond)
				f := fleet.New(services{"shop.Cart": all}, &fleet.Options{Limit: test.limit, Client: &yodel.ClientOptions{Transport: network}})
				defer f.Close()
				view, err := f.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				cart := view.Services[0]
				if cart.State != test.state || !test.up(cart.Up) {
					t.Errorf("%d of %d instances are up, and the service is %s: %s", cart.Up, len(all), cart.State, cart.Note)
				}
				late, note := "", ""
				if unknown := len(all) - cart.Up; unknown > 0 {
					late = fmt.Sprintf("not asked within 6s: %d of 200 instances of shop.Cart", unknown)
					note = fmt.Sprintf("%d of 200 instances could not be asked in time", unknown)
				}
				if view.Late != late || !strings.Contains(cart.Note, note) {
					t.Errorf("got %q and %q, want %q and %q", view.Late, cart.Note, late, note)
				}
			})
		})
	}
}
