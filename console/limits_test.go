// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// serveBuiltIn starts a server at an instance of services, whose built-in methods the test
// handles. The test ends it.
func serveBuiltIn(t *testing.T, s *shop, handle func(*yodel.Server), services ...string) (addr string) {
	t.Helper()
	server := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: slog.New(slog.DiscardHandler)})
	inspect.Health.Handle(server, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
		return &introspect.Health{Serving: true}, nil
	})
	inspect.Live.Handle(server, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) {
		return &introspect.Live{Now: time.Now(), Step: time.Second}, nil
	})
	handle(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.running.Go(func() { _ = server.Serve(ctx, l) }) // it ends with the test
	for _, service := range services {
		must(t, s.registry.Announce(t.Context(), service, discovery.Instance{Addr: l.Addr().String()}, 0))
	}
	return l.Addr().String()
}

// An instance that ignores the limits of a tap does not flood the pages.
func TestTapsBoundWhatInstancesSend(t *testing.T) {
	s := &shop{registry: memory.New(nil)}
	long := strings.Repeat("x", 2*maxField)
	serveBuiltIn(t, s, func(server *yodel.Server) {
		inspect.Tap.Handle(server, func(_ context.Context, _ *introspect.TapQuery, send yodel.Send[introspect.Tapped]) error {
			for {
				if err := send(&introspect.Tapped{At: time.Now(), Method: "Shop." + long, Peer: long, Code: long, Message: long, Trace: long, Left: -1 << 62}); err != nil {
					return err
				}
			}
		})
	}, "Shop")
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Operator})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/tap?service=Shop", nil)
	must(t, err)
	r.Header.Set("Cookie", as["Cookie"])
	res, err := client.Do(r)
	must(t, err)
	defer res.Body.Close()
	calls := 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), `data: {`)
		if !ok {
			continue
		}
		if len(data) > 6*maxField {
			t.Fatalf("a call has %d bytes", len(data))
		}
		var one introspect.Tapped
		must(t, json.Unmarshal([]byte("{"+data), &one))
		if one.Left < 0 {
			t.Fatalf("%d calls were left out", one.Left)
		}
		if calls++; calls == 10 {
			return
		}
	}
	t.Errorf("the page got %d calls", calls)
}

// What an instance sends beyond the limit of a second is counted as left out.
func TestTapsBoundHowManyCallsInstancesSend(t *testing.T) {
	now := time.Now()
	l := limiter{perSecond: 10}
	for second, want := range []struct{ passed, left int }{{10, 7}, {10, 27}, {10, 27}} {
		passed, left := 0, 0
		for i := range 30 {
			one := &introspect.Tapped{Method: "Shop.Get"}
			if i == 0 {
				one.Left = 7 // by the instance
			}
			if l.pass(now.Add(time.Duration(second)*time.Second+time.Duration(i)*time.Millisecond), one) {
				passed, left = passed+1, left+one.Left
			}
		}
		if passed != want.passed || left != want.left {
			t.Errorf("second %d: %d calls passed and %d were left out, want %+v", second, passed, left, want)
		}
	}
}

// The records of a process with two services are those of the service that the page asks for.
func TestRecordsAreThoseOfTheirService(t *testing.T) {
	s := &shop{registry: memory.New(nil)}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	serveBuiltIn(t, s, func(server *yodel.Server) {
		inspect.Samples.Handle(server, func(context.Context, *introspect.SamplesQuery) (*introspect.Samples, error) {
			return &introspect.Samples{Calls: []introspect.CallReport{
				{Side: "server", Method: "Cart.Add", Code: "internal", Began: began, Took: 2},
				{Side: "server", Method: "Cart.Add", Code: "internal", Began: began.Add(time.Hour), Took: 1},
				{Side: "server", Method: "Pay.Charge", Began: began},
				{Side: "client", Method: "Bank.Move", Began: began},
			}}, nil
		})
	}, "Cart", "Pay")
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Viewer})
	for query, want := range map[string]string{
		"":             "Bank.Move Cart, Cart.Add Cart, Cart.Add Cart, Pay.Charge Pay since 2026-01-02T03:04:05Z",
		"service=Cart": "Bank.Move Cart, Cart.Add Cart, Cart.Add Cart since 2026-01-02T03:04:05Z",
		"service=Pay":  "Bank.Move Pay, Pay.Charge Pay since",
		"kind=slow":    "Bank.Move Cart, Cart.Add Cart, Cart.Add Cart, Pay.Charge Pay since 2026-01-02T03:04:05Z",
	} {
		_, _, answer := request{path: "/api/samples?" + query, header: as}.send(t, base)
		var got struct {
			Samples []sample
			Groups  []group
		}
		must(t, json.Unmarshal([]byte(answer), &got))
		var names []string
		for i := range got.Samples {
			names = append(names, got.Samples[i].Method+" "+got.Samples[i].Service)
		}
		slices.Sort(names)
		parts := []string{strings.Join(names, ", "), "since"}
		for _, g := range got.Groups {
			parts = append(parts, g.Since)
		}
		if text := strings.Join(parts, " "); text != want {
			t.Errorf("%q: got %s, want %s", query, text, want)
		}
	}
}

// JSON that others have made cannot change the direction of the text of a page either.
func TestRepliesKeepTheDirectionOfText(t *testing.T) {
	c := newDirect(t, memory.New(nil), Options{})
	for in, want := range map[string]string{
		`"a\u202eb"`:        `"a\ufffdb"`,
		`"a\u2066\u202E"`:   `"a\ufffd\ufffd"`,
		`"\\u202e\\\u202e"`: `"\\u202e\\\ufffd"`,
		`"\u202f\n\u0041"`:  `"\u202f\n\u0041"`,
	} {
		body := `{"service":"Stock","id":"r","mock":{"reply":` + in + `},"reason":"test"}`
		if status, answer := direct(t, c, http.MethodPost, "/api/rules/put", body); status != http.StatusOK || !strings.Contains(answer, `"reply":`+want) {
			t.Errorf("%s: got %d %s, want %s", in, status, answer, want)
		}
	}
}

// A program with a login of its own may use bearer tokens. Only the tokens of the console need no
// Origin.
func TestOtherBearerTokensReachAuthenticate(t *testing.T) {
	c := newConsole(t, &shop{registry: memory.New(nil)}, &Options{Tokens: map[string]User{adminToken: {"ci", Admin}}, Authenticate: func(r *http.Request) User {
		if r.Header.Get("Authorization") == "Bearer theirs" {
			return User{"proxy", Admin}
		}
		return User{}
	}})
	base := serveConsole(t, c)
	session := login(t, c, base, User{"ann", Admin})
	for _, one := range []struct {
		token, cookie, origin, csrf string
		want                        int
	}{
		{token: adminToken, want: http.StatusOK},
		{token: "theirs", origin: base, want: http.StatusOK},
		{token: "theirs", want: http.StatusForbidden},
		{token: "theirs", origin: "http://evil.example", want: http.StatusForbidden},
		{token: "nobody's", origin: base, want: http.StatusUnauthorized},
		{token: "nobody's", cookie: session["Cookie"], origin: base, want: http.StatusForbidden},
		{token: "nobody's", cookie: session["Cookie"], csrf: session[csrfName], want: http.StatusForbidden},
		{token: "nobody's", cookie: session["Cookie"], origin: base, csrf: session[csrfName], want: http.StatusOK},
	} {
		header := map[string]string{"Authorization": "Bearer " + one.token, "Content-Type": "application/json", "Cookie": one.cookie, "Origin": one.origin, csrfName: one.csrf}
		for name, value := range header {
			if value == "" {
				delete(header, name)
			}
		}
		status, _, answer := request{method: "POST", path: "/api/invite", body: `{"name":"eve","role":"viewer"}`, header: header}.send(t, base)
		if status != one.want {
			t.Errorf("%+v: got %d %s", one, status, answer)
		}
	}
	header := map[string]string{"Authorization": "Bearer x", "Content-Type": "application/json"}
	if status, _, answer := (request{method: "POST", path: "/api/login", body: `{"token":"x"}`, header: header}).send(t, base); status != http.StatusForbidden {
		t.Errorf("a login without Origin: got %d %s", status, answer)
	}
	if len(c.opts.Tokens) > 0 {
		t.Error("the console keeps the tokens")
	}
}

// The console does not connect to instances that speak another protocol.
func TestListedInstancesAreNotDialled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := memory.New(nil)
	must(t, r.Announce(t.Context(), "Other", discovery.Instance{Addr: l.Addr().String(), Protocols: []string{"grpc"}}, 0))
	c := newDirect(t, r, Options{})
	if status, answer := direct(t, c, http.MethodGet, "/api/instance?service=Other&addr="+l.Addr().String(), ""); status != http.StatusOK || strings.Contains(answer, "connsErr") {
		t.Errorf("got %d %s", status, answer)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if conn, err := l.Accept(); err == nil {
			accepted <- conn
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	first := <-accepted
	must(t, l.Close())
	defer first.Close()
	if first.RemoteAddr().String() != conn.LocalAddr().String() {
		t.Errorf("%s has connected, which is not the test", first.RemoteAddr())
	}
}

// Production is production, however it is written. The audit log has the address of a call.
func TestCallsInProductionAreConfirmed(t *testing.T) {
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Count", "v1", counter)
	addr := s.addrs["Count"][0]
	for _, environment := range []string{"PROD", "prod", "Prod"} {
		c := newConsole(t, s, &Options{Environment: environment})
		base := serveConsole(t, c)
		as := login(t, c, base, User{"ann", Operator})
		call := func(confirm string) int {
			body := fmt.Sprintf(`{"service":"Count","addr":%q,"method":"Count.Sum","args":[1],"confirm":%q}`, addr, confirm)
			status, _, _ := request{method: "POST", path: "/api/call", body: body, header: as}.send(t, base)
			return status
		}
		eventually(t, "the call is made", func() bool { return call("Count.Sum") == http.StatusOK })
		if status := call(""); status != http.StatusBadRequest {
			t.Errorf("%s: a call without a confirmation: got %d, want 400", environment, status)
		}
		if entries, _ := c.audit.list(); entries[0].Object != "Count.Sum "+addr {
			t.Errorf("%s: the audit log has %+v", environment, entries[0])
		}
		if _, _, me := (request{path: "/api/me", header: as}).send(t, base); !strings.Contains(me, `"environment":"PROD"`) {
			t.Errorf("%s: the page gets %s", environment, me)
		}
	}
}

// A read-only console shows what a rule would do.
func TestReadOnlyConsolePreviewsRules(t *testing.T) {
	c := newDirect(t, memory.New(nil), Options{ReadOnly: true})
	if status, answer := direct(t, c, http.MethodPost, "/api/rules/preview", `{"service":"Stock","limit":{"perSecond":50}}`); status != http.StatusOK {
		t.Errorf("got %d %s", status, answer)
	}
}
