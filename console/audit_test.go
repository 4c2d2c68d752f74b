// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// lastEntries returns the entries in the last n lines of the file of an audit log.
func lastEntries(t *testing.T, file string, n int) []entry {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	all := make([]entry, n)
	for i := range all {
		must(t, json.Unmarshal([]byte(lines[len(lines)-n+i]), &all[i]))
	}
	return all
}

// The audit log reads and continues a file with torn and over-long lines.
func TestAuditLogSurvivesBrokenLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	lines := `{"action":"first"}` + "\n" + `{"action":"` + strings.Repeat("x", 3<<20) + `"}` + "\n" + `{"action":"second"}` + "\n" + `{"action":"torn`
	must(t, os.WriteFile(file, []byte(lines), 0o600))
	c := newDirect(t, memory.New(nil), Options{Audit: file})
	entries, _ := c.audit.list()
	if len(entries) != 2 || entries[0].Action != "second" || entries[1].Action != "first" {
		t.Errorf("the console has read %.300v", entries)
	}
	if status, answer := direct(t, c, http.MethodPost, "/api/invite", `{"name":"eve","role":"viewer"}`); status != http.StatusOK {
		t.Fatalf("got %d %s", status, answer)
	}
	if e := lastEntries(t, file, 1)[0]; e.Action != "invite" {
		t.Errorf("the last line is %+v", e)
	}
}

// The audit log goes on in the old file while it cannot begin a new one.
func TestAuditLogSurvivesAFailedRotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, maxAuditFile+1))
	blocking := filepath.Join(file+".old", "kept")
	must(t, os.MkdirAll(blocking, 0o700))
	c := newDirect(t, memory.New(nil), Options{Audit: file})
	invite := func(name string) {
		t.Helper()
		if status, answer := direct(t, c, http.MethodPost, "/api/invite", fmt.Sprintf(`{"name":%q,"role":"viewer"}`, name)); status != http.StatusOK {
			t.Fatalf("got %d %s", status, answer)
		}
	}
	invite("a")
	invite("b")
	if all := lastEntries(t, file, 2); all[0].Object != "a" || all[1].Object != "b" {
		t.Errorf("the file has %+v", all)
	}
	if _, answer := direct(t, c, http.MethodGet, "/api/checks", ""); !strings.Contains(answer, `"kind":"audit","severity":"bad"`) {
		t.Errorf("the checks have %s", answer)
	}
	must(t, os.RemoveAll(file+".old"))
	invite("c")
	if info, err := os.Stat(file + ".old"); err != nil || info.Size() <= maxAuditFile {
		t.Errorf("the old file: %v, %v", info, err)
	}
	if e := lastEntries(t, file, 1)[0]; e.Object != "c" {
		t.Errorf("the new file has %+v", e)
	}
	if _, answer := direct(t, c, http.MethodGet, "/api/checks", ""); strings.Contains(answer, `"kind":"audit"`) {
		t.Errorf("the checks have %s", answer)
	}
}

// Nobody can fill the audit log with long texts.
func TestEntriesOfTheAuditLogAreShort(t *testing.T) {
	r := memory.New(nil)
	must(t, r.Announce(t.Context(), "Mail", discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	c := newDirect(t, r, Options{Audit: file})
	long := strings.Repeat("x", 500_000)
	for path, body := range map[string]string{
		"rules/remove":   `{"service":"` + long + `","id":"` + long + `","reason":"` + long + `"}`,
		"rules/rollback": `{"service":"` + long + `","revision":0,"reason":"r"}`,
		"rules/put":      `{"service":"` + long + `","limit":{"perSecond":1},"reason":"` + long + `"}`,
		"instance":       `{"service":"Mail","addr":"127.0.0.1:1","weight":2,"reason":"` + long[:maxReason+1] + `"}`,
	} {
		status, answer := direct(t, c, http.MethodPost, "/api/"+path, body)
		if path != "rules/rollback" && status != http.StatusBadRequest {
			t.Errorf("%s: got %d %.300s", path, status, answer)
		}
	}
	info, err := os.Stat(file)
	must(t, err)
	if info.Size() > 3*5*2*maxField {
		t.Errorf("three entries have %d bytes", info.Size())
	}
}

// A stuck registry never sets anything. It is slow to say so, unless Close has returned.
type stuck struct {
	*registry.Registry
	asked, closed chan struct{}
}

func (s *stuck) Describe() yodel.Description {
	return yodel.Description{Override: s.override}.Over(s.Registry)
}

func (s *stuck) override(ctx context.Context, _, _, _ string, _ int) error {
	close(s.asked)
	<-ctx.Done()
	slow := time.NewTimer(200 * time.Millisecond)
	defer slow.Stop()
	select {
	case <-slow.C:
	case <-s.closed:
	}
	return context.Cause(ctx)
}

// Close ends the changes that are under way, and the audit log has them.
func TestCloseRecordsRunningChanges(t *testing.T) {
	r := &stuck{memory.New(nil), make(chan struct{}), make(chan struct{})}
	must(t, r.Announce(t.Context(), "Mail", discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	c, err := New(r, &Options{Logger: slog.New(slog.DiscardHandler), Audit: file, Tokens: map[string]User{adminToken: {"bob", Admin}}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		directAs(ctx, t, c, http.MethodPost, "/api/instance", `{"service":"Mail","addr":"127.0.0.1:1","weight":2,"reason":"r"}`)
	}()
	<-r.asked
	must(t, c.Close())
	close(r.closed)
	text, err := os.ReadFile(file)
	must(t, err)
	if !strings.Contains(string(text), `"action":"instance","object":"Mail 127.0.0.1:1"`) {
		t.Errorf("after Close, the file has %q", text)
	}
	cancel()
	<-ended
}

// A troubled registry fails to read the history of rules, or has another operator change rules
// right after this one.
type troubled struct {
	*registry.Registry
	broken  bool
	between func()
}

func (r *troubled) Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error {
	if r.broken && kind == "history" {
		return errors.New("no quorum")
	}
	return r.Registry.Kept(ctx, service, kind, update)
}

func (r *troubled) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	err := r.Registry.Keep(ctx, service, kind, id, value)
	if between := r.between; between != nil && kind == "rules" {
		r.between = nil
		between()
	}
	return err
}

// Undo takes back the change of its entry. It is not offered if another change may be taken back
// with it.
func TestUndoOfRulesTakesBackOneChange(t *testing.T) {
	inner := memory.New(nil)
	r := &troubled{Registry: inner}
	c, err := New(r, &Options{Logger: slog.New(slog.DiscardHandler), Tokens: map[string]User{adminToken: {"bob", Admin}}})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	book, err := rules.Open(inner)
	must(t, err)
	put := func(id string) {
		t.Helper()
		_, err := book.Put(t.Context(), rules.Rule{ID: id, Service: "Stock", Limit: &rules.Limit{PerSecond: 5}, Author: "ann", Reason: "r"})
		must(t, err)
	}
	put("a")
	put("b")
	for name, one := range map[string]struct {
		path, body string
		between    func()
		undo       bool
	}{
		"remove":                               {"remove", `{"service":"Stock","id":"b","reason":"r"}`, nil, true},
		"rollback":                             {"rollback", `{"service":"Stock","revision":1,"reason":"r"}`, nil, true},
		"remove beside another operator":       {"remove", `{"service":"Stock","id":"b","reason":"r"}`, func() { put("c") }, false},
		"rollback beside another operator":     {"rollback", `{"service":"Stock","revision":1,"reason":"r"}`, func() { put("c") }, false},
		"rollback that changes nothing":        {"rollback", `{"service":"Nothing","revision":0,"reason":"r"}`, nil, false},
		"remove with a history that is broken": {"remove", `{"service":"Stock","id":"b","reason":"r"}`, func() { r.broken = true }, false},
	} {
		must(t, book.Rollback(t.Context(), "Stock", 2, 0, "ann", "again"))
		before, err := book.List(t.Context(), "Stock")
		must(t, err)
		r.between = one.between
		status, answer := direct(t, c, http.MethodPost, "/api/rules/"+one.path, one.body)
		r.between, r.broken = nil, false
		entries, _ := c.audit.list()
		undo := entries[0].Undo
		if status != http.StatusOK || (undo != nil) != one.undo {
			t.Errorf("%s: got %d %s, undo %+v", name, status, answer, undo)
		}
		if undo == nil {
			continue
		}
		undo.Body["reason"] = "undo"
		body, err := json.Marshal(undo.Body)
		must(t, err)
		if status, answer := direct(t, c, http.MethodPost, "/api/"+undo.Path, string(body)); status != http.StatusOK {
			t.Errorf("%s: undo: got %d %s", name, status, answer)
		}
		after, err := book.List(t.Context(), "Stock")
		must(t, err)
		if was, is := sentences(before, nil), sentences(after, nil); was != is {
			t.Errorf("%s: after the undo: %s, want %s", name, is, was)
		}
	}
}
