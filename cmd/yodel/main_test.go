// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var update = flag.Bool("update", false, "write the golden files and docs/cli.md")

// TestMain makes the test's program the command itself, a server, or a process that follows rules,
// when a test starts it as such.
func TestMain(m *testing.M) {
	governed.Child(openFolder)
	if os.Getenv("YODEL_TEST_AS_PROGRAM") != "" {
		main()
		return
	}
	if addr := os.Getenv("YODEL_TEST_AS_SERVER"); addr != "" {
		if err := serveAt(addr, os.Getenv("YODEL_TEST_FOLDER")); err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			os.Exit(1)
		}
		return
	}
	yodeltest.VerifyNoLeaks(m)
}

// startShop runs the demonstration in this process and returns the folder of its registry.
func startShop(t *testing.T) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), ".yodel")
	if err := os.MkdirAll(filepath.Join(folder, "yodel"), 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- (&shop{folder: folder}).run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		if err := await.Value(t, ended, "the end of the server"); err != nil {
			t.Errorf("the shop ended with %v", err)
		}
	})
	await.Value(t, ready, "the server")
	f := fleet.New(file.New(folder, nil), nil)
	defer f.Close()
	until(t, "all instances are up and have calls", func() bool {
		view, err := f.Read(t.Context())
		if err != nil || len(view.Services) != 3 {
			return false
		}
		n := 0
		for _, s := range view.Services {
			n += len(s.Instances)
			if s.Traffic.Rate == 0 || s.Traffic.P99 == 0 {
				return false
			}
		}
		return n == 5
	})
	return folder
}

// until waits for a condition, for at most a minute.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.After(time.Minute)
	for !holds() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-end:
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// A result is what a command printed, and its exit code.
type result struct {
	out, err string
	code     int
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// yodelWith runs a command in this process with an input and an environment.
func yodelWith(ctx context.Context, in io.Reader, env map[string]string, args ...string) result {
	var out, errs buffer
	a := &app{in: in, out: &out, err: &errs, env: func(name string) string { return env[name] }}
	code := a.run(ctx, args)
	return result{out.String(), errs.String(), code}
}

// run runs a command on a fleet.
func run(t *testing.T, folder string, args ...string) result {
	t.Helper()
	env := map[string]string{"XDG_CONFIG_HOME": filepath.Join(filepath.Dir(folder), "config"), "YODEL_REGISTRY": "file:" + folder, "YODEL_AUTHOR": "ann"}
	return yodelWith(t.Context(), strings.NewReader(""), env, args...)
}

// The replacements of golden files: what differs from run to run.
var (
	addresses = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	times     = regexp.MustCompile(`<?\b\d+(\.\d+)?(ms|µs|ns|s|m)\b`)
	shares    = regexp.MustCompile(`\b\d+(\.\d+)?%`)
	clocks    = regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`)
	bars      = regexp.MustCompile(`(?m)^ +≤.*\n`)
	ruleIDs   = regexp.MustCompile(`\b(canary|limit)-[0-9a-f]{4}\b`)
	versioned = regexp.MustCompile(`\bv1\.\d\.0\b`) // the instances are sorted by their ports
	sizes     = regexp.MustCompile(`\b\d+ [kM]?B (out|in)\b`)
	effects   = regexp.MustCompile(`\b\d+(\.\d+)? (of|calls/s)`)
	spaces    = regexp.MustCompile(` {2,}`)
)

// stable replaces what differs from run to run.
func stable(s, folder string) string {
	s = strings.ReplaceAll(s, folder, ".yodel")
	s = addresses.ReplaceAllString(s, "ADDR")
	s = clocks.ReplaceAllString(s, "CLOCK")
	s = ruleIDs.ReplaceAllString(s, "$1-ID")
	s = times.ReplaceAllString(s, "TIME")
	s = versioned.ReplaceAllString(s, "v1.x.0")
	s = effects.ReplaceAllString(s, "N $2")
	s = sizes.ReplaceAllString(s, "SIZE $1")
	s = shares.ReplaceAllString(s, "N%")
	s = bars.ReplaceAllString(s, "")
	return spaces.ReplaceAllString(s, "  ")
}

// golden compares a text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\ngot\n%s\nwant\n%s", name, got, want)
	}
}
