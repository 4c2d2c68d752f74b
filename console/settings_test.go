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
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// program returns the header of the requests of a program.
func program() map[string]string {
	return map[string]string{"Authorization": "Bearer " + adminToken, "Content-Type": "application/json"}
}

// direct calls a console as a program does, without a connection.
func direct(t *testing.T, c *Console, method, path, body string) (status int, answer string) {
	t.Helper()
	return directAs(t.Context(), t, c, method, path, body)
}

func directAs(ctx context.Context, t *testing.T, c *Console, method, path, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	must(t, err)
	for k, v := range program() {
		r.Header.Set(k, v)
	}
	w := &page{recorder: newRecorder()}
	c.ServeHTTP(w, r)
	return w.status, w.body.String()
}

// newDirect returns a console that direct can call. The test closes it.
func newDirect(t *testing.T, r *registry.Registry, o Options) *Console {
	t.Helper()
	o.Tokens = map[string]User{adminToken: {"bob", Admin}}
	c := newConsole(t, &shop{registry: r}, &o)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// The setting of an operator is shown, and restored by Undo, though the instance is down.
func TestSettingsComeFromTheRegistry(t *testing.T) {
	r := memory.New(nil)
	const addr = "127.0.0.1:1"
	must(t, r.Announce(t.Context(), "Mail", discovery.Instance{Addr: addr}, 0))
	c := newDirect(t, r, Options{})
	for path, want := range map[string]string{
		"/api/service?service=Mail": `"set":"inactive","setWeight":3`, "/api/instance?service=Mail&addr=" + addr: `"set":"inactive","setWeight":3`, "/api/registry": `"set":"inactive","setWeight":3`,
	} {
		must(t, r.Override(t.Context(), "Mail", addr, "", 0))
		direct(t, c, http.MethodGet, path, "") // the console has read the settings before ann's
		must(t, r.Override(t.Context(), "Mail", addr, "inactive", 3))
		eventually(t, path+" has the setting", func() bool {
			_, answer := direct(t, c, http.MethodGet, path, "")
			return strings.Contains(answer, want)
		})
	}
	if status, answer := direct(t, c, http.MethodPost, "/api/instance", `{"service":"Mail","addr":"`+addr+`","weight":50,"reason":"strong"}`); status != http.StatusOK {
		t.Fatalf("got %d %s", status, answer)
	}
	entries, _ := c.audit.list()
	undo, err := json.Marshal(entries[0].Undo)
	must(t, err)
	if e := entries[0]; e.Before != "inactive, weight 3" || e.After != "weight 50" || string(undo) != `{"path":"instance","body":{"addr":"`+addr+`","service":"Mail","state":"inactive","weight":3}}` {
		t.Errorf("the audit log has %+v with the undo %s", e, undo)
	}
	if _, answer := direct(t, c, http.MethodGet, "/api/service?service=Mail", ""); !strings.Contains(answer, `"setWeight":50`) {
		t.Errorf("after the change the service has %s", answer)
	}
}

// A gated registry answers questions for rules while its gate is open, with the test's error.
type gated struct {
	*registry.Registry
	asked chan struct{} // gets a value for a question, if there is room

	mu   sync.Mutex
	gate chan struct{} // closed while it is open
	err  error
}

// open lets the questions through, or no further ones.
func (g *gated) open(open bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err = err; open {
		close(g.gate)
		return
	}
	g.gate = make(chan struct{})
	select { // questions of before
	case <-g.asked:
	default:
	}
}

func (g *gated) KeptServices(ctx context.Context, kind string) ([]string, error) {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	select {
	case g.asked <- struct{}{}:
	default:
	}
	select {
	case <-gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	g.mu.Lock()
	err := g.err
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return g.Registry.KeptServices(ctx, kind)
}

// A viewer who leaves while the rules are read does not take them from others. An error of the
// rules is shown.
func TestRulesAreReadForAllViewers(t *testing.T) {
	r := &gated{Registry: memory.New(nil), asked: make(chan struct{}, 1), gate: make(chan struct{})}
	r.open(true, nil)
	c, err := New(r, &Options{Tokens: map[string]User{adminToken: {"bob", Admin}}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	if status, answer := direct(t, c, http.MethodPost, "/api/rules/put", `{"service":"Stock","limit":{"perSecond":50},"reason":"test"}`); status != http.StatusOK {
		t.Fatalf("got %d %s", status, answer)
	}
	for _, one := range []struct {
		fails error
		want  string
	}{{nil, `"rules":1,"events":[]`}, {errors.New("no quorum"), `"rules":0,"events":[],"rulesErr":"`}} {
		r.open(false, nil)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			directAs(ctx, t, c, http.MethodGet, "/api/overview", "")
		}()
		<-r.asked
		leave()
		<-left
		answers := make(chan string)
		go func() {
			_, answer := direct(t, c, http.MethodGet, "/api/overview", "")
			answers <- answer
		}()
		r.open(true, one.fails)
		if answer := <-answers; !strings.Contains(answer, one.want) {
			t.Errorf("with the error %v: got %s, want %s", one.fails, answer, one.want)
		}
		c.kept.forget()
	}
}

// serveHeld starts an instance of Shop that applies a canary whose instances are held back, and
// returns its address.
func serveHeld(t *testing.T) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: slog.New(slog.DiscardHandler)})
	inspect.Health.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
		return &introspect.Health{Serving: true}, nil
	})
	inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) { return &introspect.Info{}, nil })
	inspect.Rules.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Rules, error) {
		return &introspect.Rules{Name: "web", Rules: []introspect.RuleState{
			{Service: "Shop", ID: "try", Kind: "canary", Revision: 1, State: "active", Hits: 9, Held: "held back by outlier: version v2 took 3 of 20 calls that were meant for it"},
		}}, nil
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

// The pages say why a setting of an operator cannot be read, also for an instance that is down, and
// why the instances of a canary get too few calls. The form of the setting says what it replaces.
func TestBrowserSaysWhyRecordsOfOperatorsDoNotAct(t *testing.T) {
	const down = "127.0.0.1:1"
	r := memory.New(&registry.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, addr := range []string{down, serveHeld(t)} {
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: addr, Version: "v2"}, 0))
	}
	must(t, r.Keep(t.Context(), "Shop", "overrides", down, []byte(`{"state":"disabled"}`)))
	book, err := rules.Open(r)
	must(t, err)
	_, err = book.Put(t.Context(), rules.Rule{Service: "Shop", ID: "try", Author: "ann", Reason: "x", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}})
	must(t, err)
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: r}, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Shop")
	for language, want := range map[string]struct{ setting, replaces, held string }{
		"en": {
			`a setting that cannot be read: the state "disabled" is neither "active" nor "inactive"`, "This replaces a setting that cannot be read",
			"its instances take less than half of the calls that are meant for them: held back by outlier: version v2 took 3 of 20 calls that were meant for it",
		},
		"zh": {
			`无法读取的设置：状态 "disabled" 既不是 "active" 也不是 "inactive"`, "将替换一条无法读取的设置",
			"目标实例接收的调用不到应得的一半：被离群剔除拦下：版本 v2 只接收了应得 20 个调用中的 3 个",
		},
	} {
		b.eval(fmt.Sprintf("localStorage.setItem('yodel-language', %q)", language))
		for _, path := range []string{"/services/Shop?tab=instances", "/registry", "/services/Shop/" + down} {
			b.open(base+path, want.setting)
			b.check(path)
			b.shoot("setting-" + language)
		}
		b.click("#set-instance")
		b.waitFor(want.replaces)
		b.open(base+"/rules?service=Shop&rule=Shop/try", want.held)
		b.check("rule")
		b.shoot("held-" + language)
	}
}
