// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
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
	must(t, r.Announce(t.Context(), "Mail", yodel.Instance{Addr: addr}, 0))
	c := newDirect(t, r, Options{})
	for path, want := range map[string]string{
		"/api/service?service=Mail": `"set":"inactive","setWeight":3`, "/api/instance?service=Mail&addr=" + addr: `"set":"inactive","setWeight":3`, "/api/registry": `"set":"inactive, weight 3"`,
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

// A gated registry answers a question for rules when the test lets it, with the test's error.
type gated struct {
	*registry.Registry
	asked chan struct{}
	let   chan error
}

func (g *gated) KeptServices(ctx context.Context, kind string) ([]string, error) {
	g.asked <- struct{}{}
	select {
	case err := <-g.let:
		if err != nil {
			return nil, err
		}
		return g.Registry.KeptServices(ctx, kind)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A viewer who leaves while the rules are read does not take them from others. An error of the
// rules is shown.
func TestRulesAreReadForAllViewers(t *testing.T) {
	r := &gated{Registry: memory.New(nil), asked: make(chan struct{}), let: make(chan error)}
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
		r.let <- one.fails
		if answer := <-answers; !strings.Contains(answer, one.want) {
			t.Errorf("with the error %v: got %s, want %s", one.fails, answer, one.want)
		}
		c.kept.forget()
	}
}
