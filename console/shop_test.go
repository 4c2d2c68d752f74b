// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// order and receipt are the messages of the shop.
type order struct {
	Item  string   `json:"item"`
	Count int      `json:"count"`
	Gift  bool     `json:"gift"`
	Notes []string `json:"notes"`
}

type receipt struct {
	Number int    `json:"number"`
	By     string `json:"by"`
}

// A shop is a small fleet with traffic: web calls Orders, which calls Stock. Stock has three
// instances, of which the last fails often. Nothing calls Mail.
type shop struct {
	registry *registry.Registry
	stop     context.CancelFunc
	running  sync.WaitGroup
	addrs    map[string][]string
}

// newShop starts a shop, which the test ends. All of its instances have been announced.
func newShop(t *testing.T) *shop {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &shop{registry: memory.New(nil), stop: stop, addrs: make(map[string][]string)}
	governed := rules.With(s.registry, &rules.Options{Logger: slog.New(slog.DiscardHandler)})
	stock := yodel.NewClient(governed.Service("Stock"), &yodel.ClientOptions{Name: "orders"})
	for _, version := range []string{"v1", "v1", "v2"} {
		s.serve(ctx, t, governed, "Stock", version, func(server *yodel.Server) error {
			n := 0
			return server.Handle("Stock.Reserve", func(_ context.Context, o *order) (*receipt, error) {
				if n++; version == "v2" && n%3 == 0 {
					return nil, yodel.Errorf(yodel.Unavailable, "the shelf of %s is empty", o.Item)
				}
				return &receipt{n, version}, nil
			})
		})
	}
	s.serve(ctx, t, governed, "Orders", "v1", func(server *yodel.Server) error {
		return server.Handle("Orders.Place", func(ctx context.Context, o *order) (*receipt, error) {
			var r receipt
			err := stock.Call(ctx, "Stock.Reserve", o, &r)
			return &r, err
		})
	})
	s.serve(ctx, t, governed, "Mail", "", func(server *yodel.Server) error {
		return server.Handle("Mail.Send", func(to string) (string, error) { return "sent to " + to, nil })
	})
	web := yodel.NewClient(governed.Service("Orders"), &yodel.ClientOptions{Name: "web"})
	s.running.Go(func() {
		defer stock.Close()
		defer web.Close()
		for tick := time.NewTicker(pauseOfShop); ; {
			select {
			case <-tick.C:
				_ = web.Call(ctx, "Orders.Place", &order{Item: "tea", Count: 1}, nil) // some calls fail
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	t.Cleanup(func() {
		stop()
		s.running.Wait()
	})
	for service, addrs := range s.addrs {
		announced(t, s.registry.Service(service), len(addrs))
	}
	return s
}

// pauseOfShop is how often web calls Orders. It leaves the processors to the pages, with the race
// detector too.
const pauseOfShop = 40 * time.Millisecond

// announced waits until a service has n instances.
func announced(t *testing.T, r discovery.Resolver, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	known := 0
	must(t, r.Watch(ctx, func(instances []discovery.Instance) {
		if known = len(instances); known == n {
			cancel()
		}
	}))
	if known != n {
		t.Fatalf("a service has %d instances, want %d", known, n)
	}
}

// serve starts an instance of a service.
func (s *shop) serve(ctx context.Context, t *testing.T, r discovery.Registrar, service, version string, handle func(*yodel.Server) error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := yodel.NewServer(&yodel.ServerOptions{
		Diagnostics: true, Registrars: []discovery.Registrar{r}, Instance: discovery.Instance{Version: version, Zone: "eu-1"}, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, handle(server))
	s.addrs[service] = append(s.addrs[service], l.Addr().String())
	s.running.Go(func() {
		if err := server.Serve(ctx, l); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("serve %s: %v", service, err)
		}
	})
}

// serveConsole serves a console on a port of its own, which the test closes.
func serveConsole(t *testing.T, c *Console) string {
	t.Helper()
	server := httptest.NewUnstartedServer(c)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(func() {
		must(t, c.Close())
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// newConsole returns a console with quiet logs.
func newConsole(t *testing.T, s *shop, o *Options) *Console {
	t.Helper()
	if o == nil {
		o = &Options{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := New(s.registry, o)
	must(t, err)
	return c
}

// client is an HTTP client without cookies or redirects, that keeps no connection.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       30 * time.Second,
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatal("it did not happen within 30 s:", what)
		}
	}
}
