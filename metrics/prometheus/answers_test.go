// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// A call that a fault, a mock or a fallback has answered counts as what its caller gets, for those
// that are above it, and as what the service has done for those that are below it. This holds for
// the middleware and for rules.
func TestWhatFaultsMocksAndFallbacksCountAs(t *testing.T) {
	t.Parallel()
	const calls = 10
	var faults fault.Injector
	if err := faults.Set(fault.Rule{Code: yodel.Unavailable, Methods: []string{"Shop.Buy"}}); err != nil {
		t.Fatal(err)
	}
	forced, reply := new(atomic.Bool), "instead"
	forced.Store(true)
	mock, instead := fallback.With(&fallback.Options{Reply: &reply, Force: forced, Methods: []string{"Shop.Buy"}}), fallback.To(&reply, "Shop.Buy")
	answer := &rules.Answer{Reply: []byte(`"instead"`)}
	for name, test := range map[string]struct {
		server, client     []yodel.Middleware
		attempts           []yodel.EndpointMiddleware
		rule               *rules.Rule
		atServer, atClient string // the code under which the calls count, or "" if they do not
		listed, failed     float64
	}{
		"nothing":                 {atServer: "ok", atClient: "ok", listed: calls},
		"fault on the server":     {server: []yodel.Middleware{faults.Calls}, atServer: "unavailable", atClient: "unavailable", listed: calls, failed: calls},
		"fallback on the server":  {server: []yodel.Middleware{instead, faults.Calls}, atServer: "ok", atClient: "ok", listed: calls},
		"mock on the server":      {server: []yodel.Middleware{mock}, atServer: "ok", atClient: "ok", listed: calls},
		"fault in the client":     {client: []yodel.Middleware{faults.Calls}, atClient: "unavailable"},
		"fault of attempts":       {attempts: []yodel.EndpointMiddleware{faults.Attempts}, atClient: "unavailable"},
		"mock in the client":      {client: []yodel.Middleware{mock}, atClient: "ok"},
		"fallback in the client":  {client: []yodel.Middleware{instead}, server: []yodel.Middleware{faults.Calls}, atServer: "unavailable", atClient: "ok", listed: calls, failed: calls},
		"rule: fault on servers":  {rule: &rules.Rule{Side: "server", Fault: &rules.Fault{Code: "unavailable"}}, atServer: "unavailable", atClient: "unavailable", listed: calls, failed: calls},
		"rule: fault in clients":  {rule: &rules.Rule{Fault: &rules.Fault{Code: "unavailable"}}, atClient: "unavailable"},
		"rule: mock on servers":   {rule: &rules.Rule{Side: "server", Mock: answer}, atServer: "ok", atClient: "ok", listed: calls},
		"rule: mock in clients":   {rule: &rules.Rule{Mock: answer}, atClient: "ok"},
		"rule: mock with a code":  {rule: &rules.Rule{Side: "server", Mock: &rules.Answer{Code: "internal"}}, atServer: "internal", atClient: "internal", listed: calls, failed: calls},
		"rule: mock, not_found":   {rule: &rules.Rule{Side: "server", Mock: &rules.Answer{Code: "not_found"}}, atServer: "not_found", atClient: "not_found", listed: calls},
		"rule: fallback, servers": {rule: &rules.Rule{Side: "server", Fallback: answer}, server: []yodel.Middleware{faults.Calls}, atServer: "unavailable", atClient: "unavailable", listed: calls, failed: calls},
		"rule: fallback, clients": {rule: &rules.Rule{Fallback: answer}, server: []yodel.Middleware{faults.Calls}, atServer: "unavailable", atClient: "ok", listed: calls, failed: calls},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silent, m := slog.New(slog.DiscardHandler), New(nil)
			followed := make(chan struct{}, 1)
			governed := rules.With(file.New(t.TempDir(), nil), &rules.Options{Logger: silent, OnChange: func(_ string, now []rules.Rule) {
				if len(now) > 0 {
					followed <- struct{}{}
				}
			}})
			s := m.NewServer("shop", &yodel.ServerOptions{Diagnostics: true, Logger: silent, Registrars: []discovery.Registrar{governed}, Middleware: test.server})
			buy.Handle(s, buying)
			addr := serve(t, s)
			named, know := context.WithTimeout(t.Context(), 10*time.Second)
			if err := governed.Service("Shop").Watch(named, func(all []discovery.Instance) {
				if len(all) > 0 {
					know()
				}
			}); err != nil || errors.Is(named.Err(), context.DeadlineExceeded) {
				t.Fatalf("the server is not announced: %v", err)
			}
			c := m.NewClient("web", governed.Service("Shop"), &yodel.ClientOptions{Name: "web", Logger: silent, Middleware: test.client, EndpointMiddleware: test.attempts})
			defer c.Close()
			registry := client_golang.NewRegistry()
			registry.MustRegister(m)
			site := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
			defer site.Close()
			if r := test.rule; r != nil {
				book, err := rules.Open(governed)
				if err != nil {
					t.Fatal(err)
				}
				r.Service, r.Author, r.Reason = "Shop", "ann", "test"
				if _, err := book.Put(t.Context(), *r); err != nil {
					t.Fatal(err)
				}
				select {
				case <-followed:
				case <-time.After(10 * time.Second):
					t.Fatal("the process has not read the rule")
				}
			}
			for range calls {
				how := "ok"
				_, _ = buy.Call(t.Context(), c, &how)
			}
			counted := func(code string) map[string]float64 {
				if code == "" {
					return map[string]float64{}
				}
				return map[string]float64{code: calls}
			}
			f := fleet.New(fleet.Addresses(nil, addr), nil)
			defer f.Close()
			for end := time.Now().Add(15 * time.Second); ; {
				got := scrape(t, site.URL)
				for _, name := range []string{"yodel_server_calls_total", "yodel_client_calls_total"} {
					maps.DeleteFunc(got[name], func(_ string, calls float64) bool { return calls == 0 })
				}
				view, err := f.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tr := view.Service("Shop").Traffic
				listed, failed := float64(tr.Calls(tr.Rate)), float64(tr.Calls(tr.Failed*tr.Judged()))
				if maps.Equal(got["yodel_server_calls_total"], counted(test.atServer)) && maps.Equal(got["yodel_client_calls_total"], counted(test.atClient)) &&
					listed == test.listed && failed == test.failed {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("servers count %v, clients %v, the lists %v and %v failed", got["yodel_server_calls_total"], got["yodel_client_calls_total"], listed, failed)
				}
				<-time.After(50 * time.Millisecond)
			}
		})
	}
}
