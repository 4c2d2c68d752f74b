// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// newCity starts servers for services with instances each, on a network in memory. Every instance
// answers the built-in methods with a minute of calls. The test ends them.
func newCity(t *testing.T, services, instances int) (*shop, *yodel.ClientOptions) {
	t.Helper()
	network := mem.New()
	s := &shop{registry: memory.New(nil)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	for i := range services {
		name := fmt.Sprintf("team%02d.Service%03d", i%20, i)
		server := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: slog.New(slog.DiscardHandler)})
		live := &introspect.Live{Step: time.Second, Name: name, Series: []introspect.Series{series(name+".Get", float64(10+i%90))}}
		live.Series[0].Peer = fmt.Sprintf("team%02d.Service%03d", i/3%20, i/3)
		live.Series[0].Latency = slices.Repeat([][]introspect.Bucket{{{UpTo: 2e6, Calls: 9}, {UpTo: 8e6, Calls: 1}}}, 60)
		inspect.Health.Handle(server, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
			return &introspect.Health{Serving: i >= 3}, nil
		})
		inspect.Info.Handle(server, func(context.Context, *inspect.Empty) (*introspect.Info, error) {
			return &introspect.Info{Agent: "yodel-go/test", Methods: []introspect.Method{{Name: name + ".Get"}}}, nil
		})
		inspect.Live.Handle(server, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) {
			now := *live
			now.Now = time.Now()
			return &now, nil
		})
		for j := range instances {
			l, err := network.Listen(fmt.Sprintf("10.%d.%d.%d:9001", i/250, i%250, j+1))
			must(t, err)
			must(t, s.registry.Announce(ctx, name, discovery.Instance{Addr: l.Addr().String(), Version: "v1"}, 0))
			s.running.Go(func() {
				if err := server.Serve(ctx, l); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed) {
					t.Errorf("serve %s: %v", name, err)
				}
			})
		}
	}
	return s, &yodel.ClientOptions{Transport: network}
}

// The console asks 5000 real instances, and decodes their answers, while a user opens its pages.
func TestBrowserWithALargeFleetThatAnswers(t *testing.T) {
	if raceEnabled {
		t.Skip("it judges time, which make test-timing does")
	}
	b := newBrowser(t)
	const services = 500
	s, client := newCity(t, services, 10)
	c := newConsole(t, s, &Options{Client: client})
	base := serveConsole(t, c)
	b.enter(c, base, fmt.Sprintf("of %d services need attention", services))
	var took time.Duration
	answered := 0
	eventually(t, "all instances have answered in time", func() bool {
		view, err := c.fleet.get(t.Context(), time.Minute)
		must(t, err)
		answered = 0
		for _, service := range view.Services {
			for _, in := range service.Instances {
				if in.Live != nil && in.Traffic.Rate > 0 {
					answered++
				}
			}
		}
		took = cmp.Or(took, view.took)
		return answered >= services*10*99/100
	})
	began := time.Now()
	c.fleet.mu.Lock()
	reader := c.fleet.reader(time.Minute)
	c.fleet.mu.Unlock()
	_, err := reader.Read(t.Context())
	must(t, err)
	t.Logf("reading %d instances took %v at first, and %v again; %d answered", services*10, took, time.Since(began), answered)
	var paints, headlines [3]float64
	for i := range paints {
		b.open(base+"/", fmt.Sprintf("of %d services need attention", services))
		paints[i] = b.timing("performance.getEntriesByType('paint').find(p => p.name === 'first-contentful-paint').startTime")
		headlines[i] = b.timing("performance.getEntriesByName('headline')[0].startTime")
	}
	t.Logf("first paint after %.0f ms, headline after %.0f ms", paints, headlines)
	if paint, headline := slices.Min(paints[:]), slices.Min(headlines[:]); paint > 1000 || headline > 1000 {
		t.Errorf("first paint after %.0f ms and headline after %.0f ms, want less than 1 s", paint, headline)
	}
	b.open(base+"/topology?focus=team01.Service001&hops=1", "Service001")
	b.check("topology")
	b.open(base+"/services/team05.Service005?tab=instances", "10.0.5.10:9001")
	b.check("instances")
}
