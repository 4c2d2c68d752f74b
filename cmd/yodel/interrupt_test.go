// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

// A terminal is an input on which nobody types.
type terminal struct {
	once          sync.Once
	reads, closed chan struct{}
}

func (f *terminal) Read([]byte) (int, error) {
	f.once.Do(func() { close(f.reads) })
	<-f.closed
	return 0, io.EOF
}

// TestInterruptedInput ends commands that read the standard input, as Ctrl-C does.
func TestInterruptedInput(t *testing.T) {
	folder := t.TempDir()
	addr := announced(t, "file:"+folder)
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_CONTEXT": "prod", "YODEL_AUTHOR": "ann"}
	if r := yodelWith(t.Context(), nil, map[string]string{"XDG_CONFIG_HOME": env["XDG_CONFIG_HOME"]}, "ctx", "add", "prod", "--guarded", "--registry", "file:"+folder); r.code != exitOK {
		t.Fatal(r.err)
	}
	until(t, "the instance is up", func() bool { return yodelWith(t.Context(), nil, env, "ls", "cli.Echo", "-o", "name").code == exitOK })
	for _, args := range []string{
		"call cli.Echo/Say -", "bench cli.Echo/Say -", "rule set -", "disable --force cli.Echo " + addr, "rule disable cli.Echo --force --reason x", "drain-test cli.Echo/Say",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		in := &terminal{reads: make(chan struct{}), closed: make(chan struct{})}
		ended := make(chan int, 1)
		var out buffer
		a := &app{in: in, out: &out, err: &out, inTTY: true, env: func(name string) string { return env[name] }}
		go func() { ended <- a.run(ctx, strings.Fields(args)) }()
		select {
		case <-in.reads:
		case code := <-ended:
			t.Fatalf("yodel %s reads nothing: exit code %d, %s", args, code, out.String())
		}
		cancel()
		select {
		case code := <-ended:
			if code != exitInterrupted {
				t.Errorf("yodel %s: exit code %d, %s", args, code, out.String())
			}
			close(in.closed)
		case <-time.After(20 * time.Second):
			t.Errorf("yodel %s goes on", args)
			close(in.closed)
			<-ended
		}
	}
}

// TestInterruptedDrainTest: an instance that the command has disabled and cannot enable any more is
// named after Ctrl-C too.
func TestInterruptedDrainTest(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "registry")
	release := make(chan struct{})
	serveEcho(t, &yodel.ServerOptions{
		Registrars: []discovery.Registrar{file.New(folder, nil)},
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Method == "cli.Echo.Say" {
					<-release // so that the instance does not become idle
				}
				return next(ctx, call)
			}
		}},
	})
	until(t, "the instance is up", func() bool { return run(t, folder, "ls", "cli.Echo").code == exitOK })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan result, 1)
	go func() {
		ended <- yodelWith(ctx, nil, map[string]string{"YODEL_REGISTRY": "file:" + folder}, "drain-test", "cli.Echo/Say", `"x"`, "-c", "1")
	}()
	until(t, "the instance is inactive", func() bool { return strings.Contains(run(t, folder, "ls", "cli.Echo").out, " inactive ") })
	if err := os.Rename(folder, folder+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // so that nothing can be stored
		t.Fatal(err)
	}
	cancel()
	close(release)
	if r := <-ended; r.code != exitInterrupted || !strings.Contains(r.err, " stays inactive: ") || !strings.Contains(r.err, "yodel enable cli.Echo 127.0.0.1:") {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
}

// TestDrainWaits drains an instance that has had no calls, and one that does not answer at first.
func TestDrainWaits(t *testing.T) {
	for name, silent := range map[string]int32{"no calls": 0, "slow answers": 3} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			counts := map[string]*atomic.Int32{"yodel.Health": {}, "yodel.Live": {}, "yodel.Stats": {}}
			addr := serveEcho(t, &yodel.ServerOptions{
				Registrars: []discovery.Registrar{file.New(folder, nil)},
				Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						if n := counts[call.Method]; n != nil && n.Add(1) <= silent {
							<-ctx.Done()
							return ctx.Err()
						}
						return next(ctx, call)
					}
				}},
			})
			until(t, "the instance is registered", func() bool {
				names, err := os.ReadDir(filepath.Join(folder, "yodel", "cli.Echo"))
				return err == nil && len(names) > 0
			})
			if r := run(t, folder, "drain", "cli.Echo", addr, "--force", "--timeout", "300ms"); r.code != exitOK || !strings.Contains(r.out, addr+" is idle") {
				t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
			}
		})
	}
}
