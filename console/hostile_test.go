// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
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

// evil is a text that would be dangerous as HTML, in an attribute, in a shell, in a spreadsheet and
// in a terminal.
const evil = "\"><img src=x onerror=window.hacked=1>'`$(touch hacked)\x1b[2J\x1b]0;hacked\x07\u202e=1+1 {{7*7}} javascript:window.hacked=1"

// serveEvil starts an instance whose every answer is nonsense or an attack, and returns its
// address.
func serveEvil(t *testing.T) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: slog.New(slog.DiscardHandler)})
	inspect.Health.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
		return nil, yodel.Errorf(yodel.Internal, "%s", evil)
	})
	deep := introspect.Schema{Type: evil, Kind: "object"}
	for range 200 {
		deep = introspect.Schema{Name: evil, Type: evil, Kind: "object", Fields: []introspect.Schema{deep}}
	}
	inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) {
		return &introspect.Info{
			Agent: evil, Codecs: []string{evil}, Started: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
			Methods:   []introspect.Method{{Name: "Evil." + evil, Kind: evil}, {Name: "Evil.constructor", Args: []introspect.Schema{deep, {Kind: "constructor"}}, Results: []introspect.Schema{{Kind: "array"}}}},
			Overrides: []introspect.Override{{Service: "Evil", State: evil, Weight: -1 << 60}},
		}, nil
	})
	inspect.Live.Handle(s, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) { return evilLive(), nil })
	inspect.Conns.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Conns, error) {
		return &introspect.Conns{Left: -1, Conns: []introspect.ConnInfo{{Side: evil, Peer: evil, Addr: evil, Protocol: evil}}}, nil
	})
	inspect.Samples.Handle(s, func(context.Context, *introspect.SamplesQuery) (*introspect.Samples, error) {
		return &introspect.Samples{Calls: []introspect.CallReport{{
			Method: "Evil." + evil, Side: evil, Code: evil, ID: evil, Message: evil, Took: -1, Timeout: 1, Peer: evil, Caller: evil, Tenant: evil, Trace: evil, Began: time.Now(),
			Attempts: []introspect.Attempt{{Addr: evil, Code: evil, Took: -1 << 62, Began: 1 << 62}},
		}}}, nil
	})
	inspect.Rules.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Rules, error) {
		return &introspect.Rules{Name: evil, Rules: []introspect.RuleState{{Service: "Evil", ID: "r", Problem: evil, Hits: 1<<64 - 1}}}, nil
	})
	inspect.Tap.Handle(s, func(ctx context.Context, _ *introspect.TapQuery, send yodel.Send[introspect.Tapped]) error {
		if err := send(&introspect.Tapped{At: time.Now(), Method: "Evil." + evil, Peer: evil, Code: evil, Message: evil, Trace: evil, Took: -1, In: -1}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// evilLive returns live data with impossible numbers, and with names that are code.
func evilLive() *introspect.Live {
	most := slices.Repeat([]uint64{1<<64 - 1}, 60)
	below := slices.Repeat([]time.Duration{-1 << 63}, 60)
	live := &introspect.Live{
		Now: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), Step: time.Second, Name: evil, Left: -1,
		Process:  introspect.Process{PID: -1, Host: evil, Version: evil, Go: evil, Goroutines: -1, Heap: 1<<64 - 1, CPU: -1},
		Inflight: map[string]int64{}, Events: []introspect.Event{{At: time.Now(), Kind: "constructor", Object: evil, What: evil, By: evil}, {Kind: evil, Object: "Evil/r", What: evil}},
	}
	for _, method := range []string{"Evil." + evil, "Evil.constructor"} {
		live.Inflight[method] = -1
		live.Series = append(live.Series, introspect.Series{
			Side: "server", Method: method, Peer: evil, Calls: most, P50: below, P90: below, P99: below,
			Errors: map[string][]uint64{evil: most, "internal": most, "constructor": most},
		})
	}
	return live
}

// Whatever an instance says is shown as text: nothing of it is executed, and no page breaks.
func TestBrowserShowsAnEvilInstance(t *testing.T) {
	b := newBrowser(t)
	addr := serveEvil(t)
	s := &shop{registry: memory.New(nil)}
	must(t, s.registry.Announce(t.Context(), "Evil", discovery.Instance{Addr: addr, Version: evil, Zone: evil, Group: evil, Tags: []string{evil}, Weight: 1}, 0))
	c := newConsole(t, s, &Options{Tokens: map[string]User{adminToken: {"ci", Viewer}}})
	base := serveConsole(t, c)
	as := login(t, c, base, User{printable(evil), Operator})
	put := func(reason string) int {
		status, _, _ := request{method: "POST", path: "/api/rules/put?confirm=Evil", body: fmt.Sprintf(`{"service":"Evil","limit":{"perSecond":5},"reason":%s}`, quoted(t, reason)), header: as}.send(t, base)
		return status
	}
	if got := put(evil); got != http.StatusBadRequest {
		t.Errorf("a reason with control characters: got %d, want 400", got)
	}
	if got := put("金丝雀" + printable(evil)); got != http.StatusOK {
		t.Errorf("a reason with HTML: got %d, want 200", got)
	}
	b.enter(c, base, "Evil")
	for _, path := range []string{
		"/", "/services", "/services/Evil", "/services/Evil?tab=methods", "/services/Evil?tab=instances", "/services/Evil?tab=callers", "/services/Evil?tab=rules", "/services/Evil?tab=schema",
		"/services/Evil?tab=samples", "/services/Evil/" + addr, "/topology?focus=Evil", "/topology?whole=1", "/live?service=Evil", "/samples", "/rules?service=Evil&rule=Evil/r", "/call?service=Evil&method=Evil.constructor",
		"/registry", "/audit", "/checks", "/rules?new=constructor", "/rules?new=%3Cimg%3E", "/services/Evil?by=constructor", "/services/Evil?tab=__proto__", "/?range=7d", "/services?show=constructor",
		"/topology?focus=Evil&hops=%3Cscript%3E&edge=x", "/checks?error=%3Cimg+src%3Dx%3E",
	} {
		b.open(base+path, "yodel")
		eventually(t, path+" has loaded", func() bool { return !strings.Contains(b.text(), "Loading …") })
		for _, bad := range []string{"NaN", "undefined", "Infinity", "[object"} {
			if text := b.text(); strings.Contains(text, bad) {
				t.Errorf("%s shows %s:\n%s", path, bad, text)
			}
		}
		if got := b.eval("String(window.hacked) + document.querySelectorAll('main img, main script').length + (document.querySelector('main').innerText.trim().length > 3)"); got != `"undefined0true"` {
			t.Errorf("%s: got %s", path, got)
		}
		if text := b.text(); strings.ContainsAny(text, turning) {
			t.Errorf("%s shows a character that changes the direction of the text after it", path)
		}
		if links := b.eval(`[...document.querySelectorAll('a')].filter(a => !/^https?:/.test(a.href)).map(a => a.href).join()`); links != `""` {
			t.Errorf("%s has links that are code: %s", path, links)
		}
		b.mu.Lock()
		for _, fault := range b.faults {
			if !strings.Contains(fault, "status of 400") { // of the range 7d
				t.Errorf("%s: %.400s", path, fault)
			}
		}
		b.faults = nil
		b.mu.Unlock()
		b.shoot("evil-" + strings.NewReplacer("/", "_", "?", "_", ":", "_", "%", "_").Replace(path))
	}
	const injected = "a'b;$(touch hacked)\n"
	must(t, s.registry.Announce(t.Context(), injected, discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	b.open(base+"/samples?service="+url.QueryEscape(injected), "Samples")
	if got := b.eval("document.querySelector('[data-cli]').title"); got != `"yodel samples 'a'\\''b;$(touch hacked)'"` {
		t.Errorf("the command for a service whose name is a command is %s", got)
	}
	for _, path := range []string{"/", "/services", "/services/Evil", "/services/Nothing\u202e"} {
		_, _, body := request{path: path, header: map[string]string{"Authorization": "Bearer " + adminToken, "Accept": "*/*"}}.send(t, base)
		if strings.ContainsFunc(body, func(c rune) bool { return c < ' ' && c != '\n' || c == 0x7f || c == '\u202e' }) {
			t.Errorf("curl gets control characters from %s: %q", path, body)
		}
	}
}

func quoted(t *testing.T, text any) string {
	t.Helper()
	out, err := json.Marshal(text)
	must(t, err)
	return string(out)
}

// A thousand instances that are gone do not stop the console.
func TestConsoleReadsAThousandDeadInstances(t *testing.T) {
	s := &shop{registry: memory.New(nil)}
	for i := range 1000 {
		must(t, s.registry.Announce(t.Context(), "Dead", discovery.Instance{Addr: fmt.Sprintf("127.0.0.%d:1", i%200+1) + fmt.Sprint(i%9)}, 0))
	}
	c := newConsole(t, s, &Options{Tokens: map[string]User{adminToken: {"ci", Viewer}}})
	base := serveConsole(t, c)
	began := time.Now()
	status, _, body := request{path: "/", header: map[string]string{"Authorization": "Bearer " + adminToken, "Accept": "*/*"}}.send(t, base)
	if status != 200 || !strings.Contains(body, "1 of 1 service needs attention") {
		t.Errorf("got %d %.300s", status, body)
	}
	t.Logf("the first answer took %v", time.Since(began))
}

// An answer beyond the limits of a message costs the console the answer, and nothing else.
func TestAnInstanceWithAHugeAnswerIsShown(t *testing.T) {
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Huge", "v1", func(server *yodel.Server) error {
		return server.Handle("Huge.Get", func(q string) (string, error) { return strings.Repeat("x", 20<<20), nil })
	})
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Operator})
	body := `{"service":"Huge","method":"Huge.Get","args":["?"],"repeat":2,"timeout":30000}`
	var answer string
	eventually(t, "the method is known", func() bool {
		var status int
		status, _, answer = request{method: "POST", path: "/api/call", body: body, header: as}.send(t, base)
		return status == http.StatusOK
	})
	if len(answer) > 100_000 || !strings.Contains(answer, "resource_exhausted") {
		t.Errorf("a reply of 20 MiB: got %d bytes: %.300s", len(answer), answer)
	}
}

// Operators can watch calls in 16 pages. A page that is closed makes room for another one.
func TestTapsAreLimited(t *testing.T) {
	s := newShop(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	watch := func(user int) (status int, end func()) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/api/tap?service=Stock", nil)
		must(t, err)
		r.Header.Set("Cookie", login(t, c, base, User{fmt.Sprint("user ", user), Operator})["Cookie"])
		res, err := client.Do(r) //nolint:bodyclose // end closes it
		must(t, err)
		return res.StatusCode, func() { res.Body.Close() }
	}
	eventually(t, "the instances share live data", func() bool {
		status, end := watch(0)
		defer end()
		return status == http.StatusOK
	})
	open := func() int {
		c.taps.mu.Lock()
		defer c.taps.mu.Unlock()
		return c.taps.all + len(c.taps.of)
	}
	eventually(t, "the tap has ended", func() bool { return open() == 0 })
	var ends []func()
	for i := range maxTaps/tapsEach + 1 {
		for j := range tapsEach + 1 { // no user can keep out the next
			status, end := watch(i)
			ends = append(ends, end)
			if want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i < maxTaps/tapsEach && j < tapsEach]; status != want {
				t.Errorf("tap %d of user %d: got %d, want %d", j, i, status, want)
			}
		}
	}
	for _, end := range ends {
		end()
	}
	eventually(t, "the taps have ended", func() bool { return open() == 0 })
}
