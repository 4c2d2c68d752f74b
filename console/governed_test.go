// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// openFolder opens the registry of the processes that follow rules.
func openFolder(addr string) rules.Registry { return file.New(addr, nil) }

// An operator changes rules with the requests of the console's pages. The author is the user of the
// session.
type operator struct {
	t    *testing.T
	base string
	as   map[string]string // the header of the session
}

// post sends a change, and reads the answer.
func (o operator) post(path string, change, answer any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	status, _, text := request{method: http.MethodPost, path: "/api/rules/" + path, body: string(body), header: o.as}.send(o.t, o.base)
	if status != http.StatusOK {
		return fmt.Errorf("the console answers %s with %d %s", path, status, text)
	}
	return json.Unmarshal([]byte(text), answer)
}

// Put previews the rule and stores it, as the form for rules does.
func (o operator) Put(_ context.Context, r rules.Rule) (stored rules.Rule, err error) {
	var preview struct{ Effect rules.Effect }
	if err := o.post("preview", &r, &preview); err != nil { //nolint:contextcheck // a request has the context of the test
		return r, err
	}
	if preview.Effect.Text == "" {
		return r, fmt.Errorf("the preview of %s says nothing", r.Kind())
	}
	return stored, o.post("put?confirm="+url.QueryEscape(r.Service), &r, &stored) //nolint:contextcheck // a request has the context of the test
}

func (o operator) Remove(_ context.Context, service, id string, _ int, _, reason string) error {
	return o.post("remove?confirm="+url.QueryEscape(service), map[string]string{"service": service, "id": id, "reason": reason}, &struct{}{}) //nolint:contextcheck // a request has the context of the test
}

func (o operator) Rollback(_ context.Context, service string, revision, _ int, _, reason string) error {
	return o.post("rollback?confirm="+url.QueryEscape(service), map[string]any{"service": service, "revision": revision, "reason": reason}, &struct{}{}) //nolint:contextcheck // a request has the context of the test
}

// newOperator returns a registry whose rules a user of a console changes.
func newOperator(t *testing.T) governed.Registry {
	t.Helper()
	folder := t.TempDir()
	c, err := New(file.New(folder, nil), &Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	base := serveConsole(t, c)
	return governed.Registry{Addr: folder, Open: openFolder, Operator: operator{t, base, login(t, c, base, User{"ann", Operator})}}
}

func TestRulesMoveProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	r := newOperator(t)
	governed.SomeKinds(t, r)
	// The processes still run, and remember the rules.
	o := r.Operator.(operator)
	for _, path := range []string{"/api/overview", "/api/service?service=Shop"} {
		status, _, text := request{path: path, header: o.as}.send(t, o.base)
		var shown struct{ Events []introspect.Event }
		if err := json.Unmarshal([]byte(text), &shown); err != nil || !slices.ContainsFunc(shown.Events, func(e introspect.Event) bool {
			return e.Kind == "rule" && strings.HasPrefix(e.Object, "Shop/weight-") && e.By == "ann" && strings.HasPrefix(e.What, "in force: ")
		}) {
			t.Errorf("%s: got %d %s, want the event of a rule", path, status, text)
		}
	}
}

func TestRulesExpireAndRollBack(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	governed.Restarts(t, newOperator(t))
}
