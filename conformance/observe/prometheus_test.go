// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/metrics/prometheus"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// A fleet is a server and a client with metrics, and an HTTP server from which they are scraped.
type fleet struct {
	server *yodel.Server
	client *yodel.Client
	target string // the address of the HTTP server
}

type registrar struct{}

func (registrar) Announce(context.Context, string, discovery.Instance, time.Duration) error {
	return nil
}
func (registrar) Withdraw(context.Context, string, string) error { return nil }
func (registrar) String() string                                 { return "test" }

var (
	get   = yodel.Method[int, int]("Shop.Get")
	watch = yodel.Feed[int, int]("Shop.Watch")
)

func newFleet(t *testing.T) *fleet {
	t.Helper()
	metrics := prometheus.New(nil)
	registry := client_golang.NewRegistry()
	registry.MustRegister(metrics)
	f := &fleet{server: metrics.NewServer("shop", &yodel.ServerOptions{Registrars: []discovery.Registrar{registrar{}}, Logger: quiet, Diagnostics: true})}
	get.Handle(f.server, func(_ context.Context, n *int) (*int, error) {
		if *n%10 == 0 {
			return nil, yodel.Errorf(yodel.Unavailable, "later")
		}
		return n, nil
	})
	watch.Handle(f.server, func(_ context.Context, n *int, send yodel.Send[int]) error { return send(n) })
	again := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if err := next(ctx, call); yodel.CodeOf(err) != yodel.Unavailable {
				return err
			}
			return next(ctx, call)
		}
	}
	// nothing listens at the second address
	f.client = metrics.NewClient("front", discovery.Static(serve(t, f.server), "127.0.0.1:1"), &yodel.ClientOptions{
		Middleware: []yodel.Middleware{again}, Logger: quiet,
	})
	t.Cleanup(f.client.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &std.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	t.Cleanup(func() {
		web.Close()
		if err := <-served; !errors.Is(err, std.ErrServerClosed) {
			t.Error(err)
		}
	})
	f.target = l.Addr().String()
	return f
}

// traffic makes calls until the test ends.
func (f *fleet) traffic(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			_, _ = get.Do(ctx, f.client, &yodel.Call{Trace: trace}, &n)
			for _, err := range watch.Call(ctx, f.client, &n) {
				_ = err
			}
			_ = f.client.Call(ctx, "Shop.Nothing", &n, nil)
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// startPrometheus starts a server of Prometheus that scrapes target and has the alert rules.
func startPrometheus(t *testing.T, target string) *realserver.Server {
	t.Helper()
	rules, err := filepath.Abs("../../metrics/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	return realserver.Start(t, realserver.Program{
		Name:    "Prometheus",
		Install: "apt-get install --no-install-recommends prometheus",
		Find:    func() (string, error) { return exec.LookPath("prometheus") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			config := filepath.Join(folder, "prometheus.yml")
			text := fmt.Sprintf("global: {scrape_interval: 250ms, evaluation_interval: 250ms}\nrule_files: [%q]\n"+
				"scrape_configs: [{job_name: shop, static_configs: [{targets: [%q]}]}]\n", rules, target)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(found, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"),
				"--web.listen-address="+addr, "--enable-feature=exemplar-storage"), nil
		},
		Probe: func(ctx context.Context, addr string) error {
			_, err := ask(ctx, addr, "/-/ready", nil)
			return err
		},
	})
}

// ask returns the body of a response of Prometheus.
func ask(ctx context.Context, addr, path string, query url.Values) ([]byte, error) {
	r, err := std.NewRequestWithContext(ctx, std.MethodGet, "http://"+addr+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	client := &std.Client{Transport: &std.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != std.StatusOK {
		err = fmt.Errorf("%s: %s", reply.Status, body)
	}
	return body, err
}

// eventually asks Prometheus until the answer has some text that is wanted.
func eventually(t *testing.T, addr, path string, query url.Values, want func(body string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	last := ""
	for {
		body, err := ask(ctx, addr, path, query)
		if err == nil && want(string(body)) {
			return
		}
		if err == nil {
			last = string(body)
		} else if ctx.Err() == nil {
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s %v: got %s", path, query, last)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// returnsData waits until a query returns a value that is a number.
func returnsData(t *testing.T, addr, query string) {
	t.Helper()
	eventually(t, addr, "/api/v1/query", url.Values{"query": {query}}, func(body string) bool {
		var answer struct {
			Data struct {
				Result []struct {
					Value [2]any `json:"value"`
				} `json:"result"`
			} `json:"data"`
		}
		if json.Unmarshal([]byte(body), &answer) != nil {
			return false
		}
		for _, r := range answer.Data.Result {
			if r.Value[1] != "NaN" && r.Value[1] != nil {
				return true
			}
		}
		return false
	})
}

// queries returns the queries of the dashboard, with values for its variables.
func queries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../metrics/prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "5s", "$server", ".*", "$client", ".*").Replace(target.Expr))
		}
	}
	if len(all) < 20 {
		t.Fatalf("the dashboard has %d queries", len(all))
	}
	return all
}

// alerts returns the expressions of the alert rules, as Prometheus' own parser of rules reads them.
func alerts(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../metrics/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	groups, faults := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), quiet)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	return all
}

// selected returns the names of the series that a query reads.
func selected(t *testing.T, query string) (names []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			names = append(names, s.Name)
		}
		return nil
	})
	return names
}

// A server of Prometheus scrapes a server and a client. The queries of the dashboard and the series
// of the alert rules have data, an alert is raised, and there are exemplars.
func TestPrometheusScrapes(t *testing.T) {
	f := newFleet(t)
	p := startPrometheus(t, f.target)
	f.traffic(t)
	eventually(t, p.Addr, "/api/v1/targets", nil, func(body string) bool { return strings.Contains(body, `"health":"up"`) })
	for i := range 2 { // so that there is an increase while Prometheus looks
		returnsData(t, p.Addr, fmt.Sprintf("yodel_client_endpoint_ready == %d", 1-i))
		for _, ep := range f.client.Endpoints() {
			ep.SetReady("breaker", false)
		}
	}
	for _, query := range queries(t) {
		if len(selected(t, query)) == 0 {
			t.Errorf("%s reads nothing", query)
		}
		returnsData(t, p.Addr, query)
	}
	for _, query := range alerts(t) {
		for _, name := range selected(t, query) {
			returnsData(t, p.Addr, name)
		}
	}
	eventually(t, p.Addr, "/api/v1/alerts", nil, func(body string) bool { return strings.Contains(body, "YodelClientBreakerOpen") })
	now := time.Now()
	times := url.Values{"query": {"yodel_server_call_seconds_bucket"}, "start": {fmt.Sprint(now.Add(-time.Hour).Unix())}, "end": {fmt.Sprint(now.Add(time.Hour).Unix())}}
	eventually(t, p.Addr, "/api/v1/query_exemplars", times, func(body string) bool { return strings.Contains(body, trace[3:35]) })
}
