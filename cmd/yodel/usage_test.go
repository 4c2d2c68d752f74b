// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/yodel-rpc/yodel"
	registry "github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// TestUsage runs commands on an instance that is registered in a folder.
func TestUsage(t *testing.T) {
	folder := t.TempDir()
	addr := announced(t, "file:"+folder)
	env := map[string]string{"YODEL_REGISTRY": "file:" + folder, "YODEL_AUTHOR": "ann", "XDG_CONFIG_HOME": t.TempDir()}
	until(t, "the instance is up", func() bool { return yodelWith(t.Context(), nil, env, "ls", "cli.Echo").code == exitOK })
	for _, test := range []struct {
		args string // {addr} is the address of the instance
		code int
		want string // a part of the output
	}{
		{`call cli.Echo/Say "x"`, exitOK, `"x"`},
		// A service that the servers at fixed addresses have, or that is misspelled.
		{"doctor cli.Echo --at {addr}", exitOK, "cli.Echo has a single instance"},
		{"top cli.Echo -n 1 -o json --at {addr}", exitOK, `"name": "cli.Echo"`},
		{"doctor cli.Ecko", exitFailed, "did you mean   cli.Echo"},
		{"top cli.Ecko -n 1", exitFailed, "did you mean   cli.Echo"},
		// Filters that leave nothing.
		{"ls --unhealthy", exitOK, "No service needs attention. 1 healthy service not listed"},
		{"samples cli.Echo --failed", exitOK, "No call has such a record. 1 record of other calls"},
		{`rule set {"service":"cli.Echo","id":"late","off":true,"timeout":{"after":"1s"}} --reason test`, exitOK, "stored"},
		{"rule ls", exitOK, "No rule is active. 1 rule off or expired"},
		// Rules.
		{"rule weight cli.Echo --to v1 --percent 0.5 --reason x", exitUsage, "whole number"},
		{"rule weight cli.Echo --to v1 --reason x", exitUsage, "--percent is needed"},
		{"rule canary cli.Echo --to v1 --reason x", exitUsage, "--percent is needed"},
		{"rule canary cli.Echo --to zone=a,tag --percent 1 --reason x", exitUsage, `"tag" is not KEY=VALUE`},
		{"rule rm cli.Echo lat --reason x --dry-run", exitFailed, "did you mean   late"},
		{"rule rollback cli.Echo 7 --reason x --dry-run", exitFailed, "has no revision 7"},
		// Calls.
		{"call cli.Echo/Say --explain --version v9", exitOK, "version 0"},
		{"call cli.Echo/Say --explain --wire bogus", exitUsage, `no wire "bogus"`},
		{"call cli.Echo/Say --explain -m bogus", exitUsage, "is not KEY=VALUE"},
		// Measurements.
		{"bench cli.Echo/Say --rate NaN", exitUsage, "--rate cannot be NaN"},
		{"bench cli.Echo/Say --rate Inf", exitUsage, "--rate cannot be +Inf"},
		{`bench cli.Echo/Say "x" -d 20ms --warm-up 1ms --deadline 0 --save /dev/null/x`, exitFailed, "is not saved"},
		{`bench cli.Echo/Say "x" -d 20ms --warm-up 1ms --save /dev/null/x --fail-if p99>1ns`, exitCheck, "p99>1ns: it is"},
		{"drain-test cli.Echo/Say --rate 0", exitUsage, "--rate and -c must be positive"},
		{"drain-test Echo", exitUsage, "is no method"},
		// Flags that exclude or need each other.
		{"ls --key x.pem", exitUsage, "--key needs --cert"},
		{"dev --memory --folder x", exitUsage, "exclude each other"},
	} {
		args := strings.Split(strings.ReplaceAll(test.args, "{addr}", addr), " ")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // dev goes on until Ctrl-C
		r := yodelWith(ctx, strings.NewReader(""), env, args...)
		cancel()
		if r.code != test.code || !strings.Contains(r.out+r.err, test.want) {
			t.Errorf("yodel %s: exit code %d, want %d and %q:\n%s%s", test.args, r.code, test.code, test.want, r.out, r.err)
		}
	}
}

// TestFormatsOfChanges reads what commands that change something print in each format.
func TestFormatsOfChanges(t *testing.T) {
	folder := t.TempDir()
	addr := announced(t, "file:"+folder)
	env := map[string]string{"YODEL_REGISTRY": "file:" + folder, "YODEL_AUTHOR": "ann"}
	until(t, "the instance is up", func() bool { return yodelWith(t.Context(), nil, env, "ls", "cli.Echo").code == exitOK })
	book, err := rules.Open(registry.New(folder, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"disable --force cli.Echo " + addr, "weight cli.Echo " + addr + " 3", "enable cli.Echo " + addr, "drain --force cli.Echo " + addr, "drain cli.Echo --dry-run " + addr,
		"enable cli.Echo " + addr, "drain-test cli.Echo/Say --dry-run", "rule rm cli.Echo x --reason y --dry-run",
		"rule rm cli.Echo x --reason y", "rule rollback cli.Echo 1 --reason y --dry-run", "rule rollback cli.Echo 1 --force --reason y",
	} {
		for format, read := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": yaml.Unmarshal} {
			if strings.HasPrefix(args, "rule rm") {
				if _, err := book.Put(t.Context(), rules.Rule{Service: "cli.Echo", ID: "x", Disable: &rules.Disable{}, Author: "ann", Reason: "y"}); err != nil {
					t.Fatal(err)
				}
			}
			r := yodelWith(t.Context(), nil, env, append(strings.Fields(args), "-o", format)...)
			var value any
			if err := read([]byte(r.out), &value); err != nil || r.code != exitOK {
				t.Errorf("yodel %s -o %s: exit code %d, %v, %s%s", args, format, r.code, err, r.out, r.err)
			} else if _, plain := value.(string); plain || value == nil {
				t.Errorf("yodel %s -o %s prints %s", args, format, r.out)
			}
		}
	}
}

// A fullDisk is an output that cannot be written.
type fullDisk struct{ err error }

func (w fullDisk) Write([]byte) (int, error) { return 0, w.err }

// TestOutputErrors: an output that cannot be written makes a command fail, unless its reader has
// read enough.
func TestOutputErrors(t *testing.T) {
	for err, code := range map[error]int{syscall.ENOSPC: exitFailed, syscall.EPIPE: exitOK} {
		var errs buffer
		a := &app{out: fullDisk{&os.PathError{Op: "write", Path: "stdout", Err: err}}, err: &errs, env: func(string) string { return "" }}
		if got := a.run(t.Context(), []string{"explain", "-o", "json"}); got != code || (code == exitOK) != (errs.String() == "") {
			t.Errorf("%v: exit code %d, want %d: %s", err, got, code, errs.String())
		}
	}
}

// TestContextFiles adds contexts with relative paths, and reads and writes broken files.
func TestContextFiles(t *testing.T) {
	dir, config := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	env := map[string]string{"XDG_CONFIG_HOME": config}
	file := filepath.Join(config, "yodel", "contexts.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"contexts": null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := yodelWith(t.Context(), nil, env, "ctx", "add", "one", "--registry", "file:reg", "--ca", "ca.pem", "--cert", "/etc/cert.pem", "--key", "key.pem"); r.code != exitOK {
		t.Fatal(r.err)
	}
	r := yodelWith(t.Context(), nil, env, "ctx", "-o", "json")
	var rows []profile
	dir, err := os.Getwd() // without links
	if jsonErr := json.Unmarshal([]byte(r.out), &rows); jsonErr != nil || err != nil || len(rows) != 1 ||
		rows[0].Registry != "file:"+filepath.Join(dir, "reg") || rows[0].CA != filepath.Join(dir, "ca.pem") || rows[0].Cert != "/etc/cert.pem" || rows[0].Key != filepath.Join(dir, "key.pem") {
		t.Errorf("got the contexts %s%s, %v, %v", r.out, r.err, jsonErr, err)
	}
	env["XDG_CONFIG_HOME"] = file // no folder
	if r := yodelWith(t.Context(), nil, env, "ctx", "add", "two", "--registry", "file:reg"); r.code == exitOK || strings.Contains(r.err, "yodel help") {
		t.Errorf("a folder that cannot be made: exit code %d, %s", r.code, r.err)
	}
}

// TestTimeout asks an instance with and without --timeout. Without it, a command that reads the
// fleet waits a second at most.
func TestTimeout(t *testing.T) {
	var longest atomic.Int64
	addr := serveEcho(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if end, ok := ctx.Deadline(); ok && call.Method == "yodel.Health" {
				longest.Store(max(longest.Load(), int64(time.Until(end))))
			}
			return next(ctx, call)
		}
	}}})
	ask := func(args ...string) time.Duration {
		longest.Store(0)
		if r := yodelWith(t.Context(), nil, map[string]string{}, append(args, "ls", "--at", addr)...); r.code != exitOK {
			t.Error(r.err)
		}
		return time.Duration(longest.Load())
	}
	if got := ask(); got <= 0 || got > time.Second {
		t.Errorf("the instance has %v", got)
	}
	if got := ask("--timeout", "10m"); got < time.Minute {
		t.Errorf("with --timeout 10m, the instance has %v", got)
	}
}

// TestArgumentsThatAreArrays calls methods with one argument. An array is the argument itself if
// the argument can be one.
func TestArgumentsThatAreArrays(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: silence()})
	for name, function := range map[string]any{
		"cli.List.Count": func(_ context.Context, list []int) (int, error) { return len(list), nil },
		"cli.List.Next":  func(_ context.Context, n int) (int, error) { return n + 1, nil },
		"cli.List.Any":   func(_ context.Context, v any) (string, error) { return fmt.Sprint(v), nil },
	} {
		if err := s.Handle(name, function); err != nil {
			t.Fatal(err)
		}
	}
	addr := serve(t, s, nil)
	for _, test := range []struct{ method, body, want string }{
		{"Count", "[1]", "1"}, {"Count", "[]", "0"}, {"Count", "[1,2]", "2"}, {"Next", "[1]", "2"}, {"Next", "1", "2"}, {"Any", "[1]", `"[1]"`},
	} {
		if r := yodelWith(t.Context(), nil, map[string]string{}, "call", "cli.List/"+test.method, test.body, "--at", addr); r.out != test.want+"\n" {
			t.Errorf("%s(%s): %s%s", test.method, test.body, r.out, r.err)
		}
	}
}

// TestSharesOfErrors compares the share of failed calls with a limit: one of many fails.
func TestSharesOfErrors(t *testing.T) {
	var calls atomic.Int64
	addr := serveEcho(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "cli.Echo.Say" && calls.Add(1) == 1 {
				return errors.New("the first call fails")
			}
			return next(ctx, call)
		}
	}}})
	r := yodelWith(t.Context(), nil, map[string]string{}, "bench", "cli.Echo/Say", `"x"`, "--at", addr, "-d", "200ms", "--warm-up", "0s", "--no-save", "--fail-if", "errors>90%", "-o", "json")
	if r.code != exitOK || !strings.Contains(r.out, `"unknown": 1`) {
		t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
	}
	if r := yodelWith(t.Context(), nil, map[string]string{}, "bench", "cli.Echo/Say", `1`, "--at", addr, "-d", "50ms", "--warm-up", "0s", "--no-save", "--fail-if", "errors>90%"); r.code != exitCheck ||
		!strings.Contains(r.err, "errors>90%: it is 100.000%, and the limit is 90.000%") {
		t.Errorf("if all calls fail: exit code %d, %s%s", r.code, r.out, r.err)
	}
}

// TestInterruptedWarmUp: an interrupted warm-up has no result.
func TestInterruptedWarmUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr := serveEcho(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "cli.Echo.Say" {
				cancel()
			}
			return next(ctx, call)
		}
	}}})
	path := filepath.Join(t.TempDir(), "result.json")
	r := yodelWith(ctx, nil, map[string]string{}, "bench", "cli.Echo/Say", `"x"`, "--at", addr, "--warm-up", "1m", "--save", path, "-o", "json")
	if _, err := os.Stat(path); r.code != exitInterrupted || r.out != "" || err == nil {
		t.Errorf("exit code %d, %v, %s%s", r.code, err, r.out, r.err)
	}
}
