// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

const priceQuote yodel.Method[string, string] = "Price.Quote"

// A till is a process that calls Price, whose instances it finds in a folder.
type till struct {
	t            *testing.T
	folder, addr string
	refuses      atomic.Bool // its client refuses the calls of Price
}

func newTill(t *testing.T) *till {
	t.Helper()
	l := &till{t: t, folder: t.TempDir()}
	list := file.New(l.folder, nil)
	client := yodel.NewClient(list.Service("Price"), &yodel.ClientOptions{Logger: silence(), Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if l.refuses.Load() {
				return yodel.Errorf(yodel.ResourceExhausted, "too many")
			}
			return next(ctx, call)
		}
	}}})
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: silence(), MaxOpen: 77, Limits: yodel.Limits{MaxOpen: 33}})
	yodel.Method[string, string]("Till.Pay").Handle(s, func(ctx context.Context, in *string) (*string, error) { return priceQuote.Call(ctx, client, in) })
	l.addr = serve(t, s, nil)
	t.Cleanup(func() { client.Close() })
	if err := list.Announce(t.Context(), "Till", discovery.Instance{Addr: l.addr}, time.Hour); err != nil {
		t.Fatal(err)
	}
	return l
}

// price starts an instance of Price, which announces itself in registrars, and returns its address.
func price(t *testing.T, registrars ...discovery.Registrar) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: silence(), Registrars: registrars, AnnounceEvery: time.Second})
	priceQuote.Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	return serve(t, s, nil)
}

// pays waits until the till has called Price.
func (l *till) pays() {
	l.t.Helper()
	until(l.t, "the till calls Price", func() bool {
		return run(l.t, l.folder, "call", "Till/Pay", `"x"`).code == exitOK
	})
}

// says waits until a command prints a text.
func (l *till) says(text string, args ...string) string {
	l.t.Helper()
	var out string
	until(l.t, "yodel "+strings.Join(args, " ")+" says "+text, func() bool {
		out = run(l.t, l.folder, args...).out
		return strings.Contains(out, text)
	})
	return out
}

// An instance is described with its limits, and with the servers that it calls though its registry
// does not list them any more.
func TestDescribeShowsLimitsAndUnlistedServers(t *testing.T) {
	l := newTill(t)
	list := file.New(l.folder, nil)
	addr := price(t)
	if err := list.Announce(t.Context(), "Price", discovery.Instance{Addr: addr}, time.Hour); err != nil {
		t.Fatal(err)
	}
	l.pays()
	const limits = "limits    65536 connections, 77 open requests (33 of a connection), "
	if out := l.says(limits, "describe", l.addr); strings.Contains(out, "no longer lists") {
		t.Errorf("the registry lists all: got\n%s", out)
	}
	l.says("limits   65536 connections, 77 open requests (33 of a connection), ", "describe", "Till")
	if err := list.Withdraw(t.Context(), "Price", addr); err != nil {
		t.Fatal(err)
	}
	l.says("calls     "+addr+", which its resolver no longer lists", "describe", l.addr)
	l.says(`"unlisted": [`, "describe", l.addr, "-o", "json")
	console := openConsole(t, map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": "file:" + l.folder})
	_, text, _ := console.ask(t, http.MethodGet, "/api/instance?service=Till&addr="+url.QueryEscape(l.addr), "", console.login(t))
	for _, want := range []string{`"limits":{"maxConns":65536,"maxOpen":77,`, `"unlisted":true`} {
		if !strings.Contains(text, want) {
			t.Errorf("the console lacks %s in %s", want, text)
		}
	}
}

// An instance that an operator has disabled has not left.
func TestEventsSayThatAnInstanceIsDisabled(t *testing.T) {
	l := newTill(t)
	list := file.New(l.folder, nil)
	addr, other := price(t, list), price(t, list)
	l.says(addr, "ls", "Price")
	l.says(other, "ls", "Price")
	l.pays()
	l.says(addr, "events")
	if r := run(t, l.folder, "disable", "Price", addr, "--yes"); r.code != exitOK {
		t.Fatalf("%+v", r)
	}
	if out := l.says("an instance of Price: an operator has disabled it", "events"); strings.Contains(out, "it has left") || !strings.Contains(out, "operator") {
		t.Errorf("got the events\n%s", out)
	}
}

// The calls that a client in the fleet refuses have a rate where their service is shown.
func TestDescribeShowsWhatClientsRefuse(t *testing.T) {
	l := newTill(t)
	addr := price(t)
	if err := file.New(l.folder, nil).Announce(t.Context(), "Price", discovery.Instance{Addr: addr}, time.Hour); err != nil {
		t.Fatal(err)
	}
	l.pays()
	if out := run(t, l.folder, "describe", "Price").out; strings.Contains(out, "resource_exhausted") {
		t.Errorf("no call was refused: got\n%s", out)
	}
	l.refuses.Store(true)
	for range 10 {
		_ = run(t, l.folder, "call", "Till/Pay", `"x"`)
	}
	l.says("resource_exhausted ", "describe", "Price")
	console := openConsole(t, map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": "file:" + l.folder})
	in := console.login(t)
	until(t, "the console shows them", func() bool {
		_, text, _ := console.ask(t, http.MethodGet, "/api/service?service=Price", "", in)
		return strings.Contains(text, `"unsent":{"errors":{`) && strings.Contains(text, `"resource_exhausted":`)
	})
}

// A process that only calls is not read, and the screens say so. With a server of its own that is
// announced, and that its clients name, what they refuse is counted as that of other processes.
func TestWhatAProcessRefusesThatOnlyCalls(t *testing.T) {
	folder := t.TempDir()
	list := file.New(folder, nil)
	addr := price(t)
	if err := list.Announce(t.Context(), "Price", discovery.Instance{Addr: addr}, time.Hour); err != nil {
		t.Fatal(err)
	}
	var refuses atomic.Bool
	nightly := func(s *yodel.Server) *yodel.Client {
		c := yodel.NewClient(list.Service("Price"), &yodel.ClientOptions{Name: "nightly", Server: s, Logger: silence(), Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if refuses.Load() {
					return yodel.Errorf(yodel.ResourceExhausted, "too many")
				}
				return next(ctx, call)
			}
		}}})
		t.Cleanup(func() { c.Close() })
		return c
	}
	in := "x"
	call := func(c *yodel.Client) { _, _ = priceQuote.Call(t.Context(), c, &in) }
	console := openConsole(t, map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": "file:" + folder})
	session := console.login(t)
	shows := func(text, inConsole string, c *yodel.Client) {
		t.Helper()
		until(t, "describe and the console say "+text, func() bool {
			call(c)
			_, page, _ := console.ask(t, http.MethodGet, "/api/service?service=Price", "", session)
			return strings.Contains(run(t, folder, "describe", "Price").out, text) && strings.Contains(page, inConsole)
		})
	}

	const unread = "unread   nightly: no process of this name was read"
	alone := nightly(nil)
	shows(unread, `"unread":["nightly"]`, alone)

	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: silence(), Registrars: []discovery.Registrar{list}, AnnounceEvery: 100 * time.Millisecond})
	if err := s.Handle("Nightly.Run", func() {}); err != nil {
		t.Fatal(err)
	}
	serve(t, s, nil)
	seen := nightly(s)
	shows("Price", `"unread":null`, seen)
	refuses.Store(true)
	shows("resource_exhausted ", `"resource_exhausted":`, seen)
	if out := run(t, folder, "describe", "Price").out; strings.Contains(out, unread) {
		t.Errorf("got\n%s", out)
	}
}
