// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	safe "github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/file"
)

// hostile is a text that clears a screen, adds a line, changes colors and turns the direction of
// text, on a terminal that obeys it.
const hostile = "a\x1b[2J\nforged\u009b31m\u202ez\u2028\x7f"

// serveHostile announces a server whose every answer is hostile as Evil, and returns its registry.
func serveHostile(t *testing.T) (folder, addr string) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: silence()})
	inspect.Health.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
		return nil, yodel.Errorf(yodel.Internal, "%s", hostile)
	})
	inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) {
		of := introspect.Schema{Name: hostile, Type: hostile, Kind: "object", Fields: []introspect.Schema{{Name: hostile, Type: hostile, Kind: "array"}}}
		return &introspect.Info{Agent: hostile, Codecs: []string{hostile}, Methods: []introspect.Method{
			{Name: "Evil.Do" + hostile, Kind: hostile, Args: []introspect.Schema{of}, Results: []introspect.Schema{of}},
			{Name: "Evil.Lists", Args: []introspect.Schema{{Kind: "array"}}, Results: []introspect.Schema{{Kind: "map"}}},
			{Name: "Evil.Say"}, {Name: "Evil.Fail"},
		}}, nil
	})
	inspect.Live.Handle(s, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) {
		return &introspect.Live{
			Now: time.Now(), Step: time.Second, Name: hostile, Process: introspect.Process{PID: 1, Host: hostile, Version: hostile, Go: hostile},
			Events:  []introspect.Event{{At: time.Now(), Kind: hostile, Object: hostile, What: hostile + " of Evil:", By: hostile}},
			Tenants: []introspect.TenantCalls{{Method: "Evil.Say" + hostile, Tenant: hostile, Calls: 9}},
			Series:  []introspect.Series{{Side: "server", Method: "Evil.Say", Peer: hostile, Calls: []uint64{9, 9}, Errors: map[string][]uint64{hostile: {9, 9}}}},
		}, nil
	})
	inspect.Samples.Handle(s, func(context.Context, *introspect.SamplesQuery) (*introspect.Samples, error) {
		return &introspect.Samples{Calls: []introspect.CallReport{{
			Method: "Evil.Do" + hostile, Side: hostile, Code: hostile, ID: hostile, Message: hostile, Peer: hostile, Caller: hostile, Tenant: hostile, Trace: hostile, Began: time.Now(),
			Attempts: []introspect.Attempt{{Addr: hostile, Code: hostile}},
		}}}, nil
	})
	inspect.Tap.Handle(s, func(_ context.Context, _ *introspect.TapQuery, send yodel.Send[introspect.Tapped]) error {
		if err := send(&introspect.Tapped{At: time.Now(), Method: "Evil.Do" + hostile, Peer: hostile, Code: hostile, Message: hostile, Tenant: hostile, Trace: hostile}); err != nil {
			return err
		}
		return yodel.Errorf(yodel.Internal, "%s", hostile)
	})
	yodel.Method[string, string]("Evil.Say").Handle(s, func(context.Context, *string) (*string, error) {
		reply := hostile
		return &reply, nil
	})
	yodel.Method[string, string]("Evil.Fail").Handle(s, func(context.Context, *string) (*string, error) {
		return nil, yodel.Errorf(yodel.Internal, "%s", hostile)
	})
	addr = serve(t, s, nil)
	folder = filepath.Join(t.TempDir(), ".yodel")
	in := discovery.Instance{Addr: addr, Version: hostile, Zone: hostile, Group: hostile}
	if err := file.New(folder, nil).Announce(t.Context(), "Evil", in, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.New(folder, nil).Announce(t.Context(), "Ghost"+hostile, discovery.Instance{Addr: "127.0.0.1:1", Version: hostile}, 0); err != nil {
		t.Fatal(err)
	}
	return folder, addr
}

// unsafeIn returns the first rune of an output that does not belong on a terminal, or a line that
// the output does not have.
func unsafeIn(out string) string {
	for _, r := range out {
		if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2028') {
			return string(r)
		}
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "forged") {
			return line
		}
	}
	return ""
}

// TestHostileStrings: a terminal obeys nothing of what servers and registries say, and no line is
// forged. JSON and YAML have the same data as without it.
func TestHostileStrings(t *testing.T) {
	folder, addr := serveHostile(t)
	for _, args := range []string{
		"ls", "ls Evil", "ls Ghost", "describe Evil", "describe Evil/Lists", "describe " + addr, "tap Evil -n 1", "samples Evil", "top -n 1", "top -n 1 --by methods",
		"top -n 1 --by instances", "top -n 1 --by tenants", "events", "events Evil", "doctor", "call Evil/Say", "call Evil/Fail", "call Evil/None", "call Evil/Say --explain", "__complete describe Evil",
	} {
		for _, format := range []string{"table", "name", "json", "ndjson", "yaml"} {
			r := run(t, folder, append(strings.Fields(args), "-o", format)...)
			if bad := unsafeIn(r.out + r.err); bad != "" || r.out+r.err == "" {
				t.Errorf("yodel %s -o %s prints %q:\n%q\n%q", args, format, bad, r.out, r.err)
			}
			var value any
			read := map[string]func() error{
				"ndjson": func() error { return json.Unmarshal([]byte(strings.SplitN(r.out, "\n", 2)[0]), &value) },
				"json":   func() error { return json.Unmarshal([]byte(r.out), &value) },
				"yaml":   func() error { return yaml.Unmarshal([]byte(r.out), &value) },
			}[format]
			if read == nil || strings.HasPrefix(args, "__") || r.code != exitOK && r.code != exitCheck {
				continue
			}
			if err := read(); err != nil || strings.HasPrefix(args, "call Evil/Say") && value != any(hostile) && !strings.Contains(args, "--explain") {
				t.Errorf("yodel %s -o %s: got %q, %v\n%q", args, format, value, err, r.out)
			}
			want, _ := json.Marshal(hostile)
			if text, err := json.Marshal(value); args == "samples Evil" && !strings.Contains(string(text), string(want)) {
				t.Errorf("yodel %s -o %s loses data: %s, %v", args, format, text, err)
			}
		}
	}
	f := fleet.New(file.New(folder, nil), nil)
	defer f.Close()
	view, err := f.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{"services", "methods", "instances"} {
		m := &topModel{target: &target{name: hostile}, by: by, view: view}
		if bad := unsafeIn(m.screen()); bad != "" {
			t.Errorf("top by %s shows %q:\n%q", by, bad, m.screen())
		}
	}
	if m := (&topModel{target: &target{}, err: yodel.Errorf(yodel.Internal, "%s", hostile)}); unsafeIn(m.screen()) != "" {
		t.Errorf("top shows the error %q", m.screen())
	}
}

// A large record makes no command print much, or take long.
func TestLargeRecords(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ".yodel")
	long := strings.Repeat("x", 1<<20)
	if race {
		long = long[:128<<10] // twice what a command may print
	}
	for addr, in := range map[string]discovery.Instance{
		"127.0.0.1:1": {Version: long}, "127.0.0.1:2": {Zone: long, Protocols: []string{long}}, "127.0.0.1:3": {Metadata: yodel.Metadata{long: long}},
	} {
		in.Addr = addr
		if err := file.New(folder, nil).Announce(t.Context(), "Big", in, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"ls", "ls Big", "describe Big", "top -n 1", "top -n 1 --by instances", "top -n 1 --by tenants", "doctor", "call Big/Say --explain"} {
		for _, format := range []string{"table", "json", "yaml"} {
			if r := run(t, folder, append(strings.Fields(args), "-o", format)...); len(r.out)+len(r.err) > 64<<10 || r.out+r.err == "" {
				t.Errorf("yodel %s -o %s prints %d bytes", args, format, len(r.out)+len(r.err))
			}
		}
	}
}

// TestSingleLine compares with the package that logs and errors use.
func TestSingleLine(t *testing.T) {
	for r := range rune(0x3000) {
		if s := "a" + string(r) + "\xff"; singleLine(s) != safe.Line(s) {
			t.Errorf("the line of %q is %q, want %q", s, singleLine(s), safe.Line(s))
		}
	}
}

// A record that is not a valid rule is named, and can be removed.
func TestRecordsThatAreNotRules(t *testing.T) {
	folder := t.TempDir()
	if err := file.New(folder, nil).Keep(t.Context(), "shop.Cart", "rules", "broken", []byte("{")); err != nil {
		t.Fatal(err)
	}
	const warning = "warning: the record broken of shop.Cart is not a valid rule"
	for _, one := range []struct {
		args string
		warn bool
		out  string
	}{
		{"rule ls", true, ""}, {"rule ls shop.Cart", true, ""}, {"rule ls shop.Pay", false, ""},
		{"rule rm shop.Cart broken --reason x --dry-run", false, " would remove rule broken of shop.Cart (dry run, nothing was changed)\n"},
		{"rule rm shop.Cart broken --reason x", false, " did remove rule broken of shop.Cart\n"},
		{"rule ls", false, ""},
	} {
		r := run(t, folder, strings.Fields(one.args)...)
		if r.code != exitOK || strings.Contains(r.err, warning) != one.warn || r.out != one.out && one.out != "" {
			t.Errorf("yodel %s: exit code %d, %s%s", one.args, r.code, r.out, r.err)
		}
	}
}
