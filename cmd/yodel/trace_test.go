// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/registry/file"
)

// serveIn serves s in a folder until the test ends.
func serveIn(t *testing.T, folder string, methods func(s *yodel.Server)) (addr string) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{file.New(folder, nil)}, Diagnostics: true, Logger: slog.New(slog.DiscardHandler),
	})
	methods(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := await.Value(t, served, "the end of the server"); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// callGate calls Gate.Buy, which calls Price.Of, which fails. It returns a client of Gate.
func callGate(t *testing.T, folder string, calls ...*yodel.Call) {
	t.Helper()
	const buy, of yodel.Method[string, string] = "Gate.Buy", "Price.Of"
	price := serveIn(t, folder, func(s *yodel.Server) {
		of.Handle(s, func(_ context.Context, in *string) (*string, error) {
			switch *in {
			case "plum":
				return nil, yodel.Errorf(yodel.NotFound, "no price of a plum")
			case "fig":
				return nil, yodel.Errorf(yodel.ResourceExhausted, "too many figs")
			case "date":
				return nil, yodel.Errorf(yodel.Internal, "no date")
			}
			return in, nil
		})
	})
	prices := yodel.NewClient(discovery.Static(price), &yodel.ClientOptions{Name: "gate"})
	t.Cleanup(prices.Close)
	gate := serveIn(t, folder, func(s *yodel.Server) {
		buy.Handle(s, func(ctx context.Context, in *string) (*string, error) { return of.Call(ctx, prices, in) })
	})
	c := yodel.NewClient(discovery.Static(gate), &yodel.ClientOptions{Name: "web"})
	t.Cleanup(c.Close)
	for _, call := range calls {
		what := call.Key
		call.Key = ""
		if _, err := buy.Do(t.Context(), c, call, &what); (err == nil) != (what == "pear") {
			t.Fatalf("%s: %v", what, err)
		}
	}
	until(t, "both are announced", func() bool {
		out := run(t, folder, "ls").out
		return strings.Contains(out, "Gate") && strings.Contains(out, "Price")
	})
}

// One call is followed over the fleet by its trace. Its records name the tenant and the caller, and
// nothing that may be secret.
func TestSamplesFollowOneTraceOverAllServices(t *testing.T) {
	folder := t.TempDir()
	secret := yodel.Metadata{"authorization": "hunter2", "cookie": "hunter2"}
	callGate(t, folder,
		&yodel.Call{Key: "plum", Tenant: "acme", Metadata: secret, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 vendor=hunter2"},
		&yodel.Call{Key: "plum", Tenant: "other", Trace: "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-00f067aa0ba902b7-01"},
	)
	for _, id := range []string{"4bf92f3577b34da6a3ce929d0e0e4736", "4BF92F3577B34DA6A3CE929D0E0E4736", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		r := run(t, folder, "samples", "--trace", id, "-o", "json")
		var found []sample
		if err := json.Unmarshal([]byte(r.out), &found); err != nil {
			t.Fatal(err, r.out, r.err)
		}
		var got []string
		for i := range found {
			got = append(got, found[i].Side+" "+found[i].Method)
			if found[i].Tenant != "acme" || found[i].Trace != "4bf92f3577b34da6a3ce929d0e0e4736" || (found[i].Side == "server") != (found[i].Caller != "") {
				t.Errorf("a record of the trace: %+v", found[i].CallReport)
			}
		}
		if want := "server Gate.Buy, client Price.Of, server Price.Of"; strings.Join(got, ", ") != want {
			t.Errorf("--trace %s finds %q, want %s", id, got, want)
		}
		if strings.Contains(r.out, "hunter2") {
			t.Errorf("a secret is shown: %s", r.out)
		}
	}
	r := run(t, folder, "samples", "--tenant", "other")
	for _, want := range []string{"trace      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", `tenant "other"`, "carried out for web (127.0.0.1:", "carried out for gate (127.0.0.1:"} {
		if !strings.Contains(r.out, want) || strings.Contains(r.out, "acme") {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	if r := run(t, folder, "samples", "--trace", "11111111111111111111111111111111"); r.out != "" || !strings.Contains(r.err, "leave out") {
		t.Errorf("an unknown trace: %s%s", r.out, r.err)
	}
}

// The tenant that floods a method is at the top. Calls that a limit has refused are neither
// successes nor failures, as everywhere, and also not of a caller.
func TestTopShowsTheTenantsOfAMethod(t *testing.T) {
	folder := t.TempDir()
	var calls []*yodel.Call
	for _, of := range []string{"acme", "acme", "calm", "acme", "acme"} {
		calls = append(calls, &yodel.Call{Key: "pear", Tenant: of})
	}
	for _, key := range []string{"plum", "date", "fig", "fig"} {
		calls = append(calls, &yodel.Call{Key: key, Tenant: "acme"})
	}
	calls = append(calls, &yodel.Call{Key: "pear"})
	callGate(t, folder, calls...)
	r := run(t, folder, "top", "Price", "--by", "tenants", "-n", "1", "-o", "json")
	var rows []topRow
	if err := json.Unmarshal([]byte(r.out), &rows); err != nil {
		t.Fatal(err, r.out, r.err)
	}
	if len(rows) != 2 || rows[0].Name != "Price/Of" || rows[0].Tenant != "acme" || rows[0].Calls != 8 || rows[0].Failed != 1 || rows[0].Limited != 2 || rows[0].State != "" || rows[1].Tenant != "calm" || rows[1].Calls != 1 {
		t.Errorf("got %+v", rows)
	}
	if r := run(t, folder, "top", "--by", "tenants", "-n", "1"); !strings.Contains(r.out, "NAME      TENANT  CALLS/S  OK     LIMITED\n") || !strings.Contains(r.out, "Price/Of    acme      0.1  83.3%      0.0\n") {
		t.Errorf("got %s%s", r.out, r.err)
	}
	if r := run(t, folder, "top", "-n", "1"); strings.Contains(r.out, "TENANT") {
		t.Errorf("the services have a column for tenants:\n%s", r.out)
	}
}
