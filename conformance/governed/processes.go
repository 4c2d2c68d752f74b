// SPDX-License-Identifier: Apache-2.0

// Package governed tries rules with processes: two servers of different versions and a client, each
// a process of its own, and an operator who changes rules in a registry that all of them watch.
package governed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/rules"
)

// An Open opens the registry at addr as a process of its own does.
type Open func(addr string) rules.Registry

// The environment of a process.
const (
	roleOf    = "YODEL_GOVERNED_ROLE" // "client", or the version of a server
	addrOf    = "YODEL_GOVERNED_ADDR" // of the registry
	listensOn = "YODEL_GOVERNED_LISTEN"
	pauseOf   = "YODEL_GOVERNED_PAUSE" // between two calls of a caller of the client
)

// A reply is that of Shop.Buy: the version of the server that has executed it.
type reply struct {
	By string `json:"by"`
}

const (
	service                            = "Shop"
	buy     yodel.Method[reply, reply] = "Shop.Buy"
	slow                               = 80 * time.Millisecond
)

// Child runs the process as a server or a client if its environment says so, and does not return
// then. TestMain calls it first.
func Child(open Open) {
	role := os.Getenv(roleOf)
	if role == "" {
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent has ended, or wants the process to
		cancel()
	}()
	var err error
	if r := rules.With(open(os.Getenv(addrOf)), nil); role == "client" {
		err = runClient(ctx, r)
	} else {
		err = runServer(ctx, r, role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runServer(ctx context.Context, r *rules.Rules, version string) error {
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r}, Instance: discovery.Instance{Version: version, Tags: []string{"only-" + version}}, Diagnostics: true,
		AnnounceEvery: 3 * time.Second, // leases outlive a restart of the registry on a busy machine
	})
	buy.Handle(s, func(context.Context, *reply) (*reply, error) { return &reply{By: version}, nil })
	l, err := net.Listen("tcp", os.Getenv(listensOn))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return s.Serve(ctx, l)
}

// A report is what became of the calls of a client within a tenth of a second: how many were
// answered by each version or failed with each error.
type report map[string]int

// every is how long the calls of a report have taken.
const every = 100 * time.Millisecond

// A dated is a report and the time at which it was made.
type dated struct {
	At     time.Time `json:"at"`
	Report report    `json:"report"`
}

// merge adds the counts of another report.
func (r report) merge(other report) {
	for key, n := range other {
		r[key] += n
	}
}

// calls returns the number of calls.
func (r report) calls() int { return r["ok"] + r["failed"] }

func runClient(ctx context.Context, r *rules.Rules) error {
	c := yodel.NewClient(r.Service(service), &yodel.ClientOptions{Name: "web", Timeout: 5 * time.Second, Idempotent: []string{string(buy)}})
	defer c.Close()
	for ctx.Err() == nil {
		if c.Ready(ctx) == nil {
			break
		}
	}
	pause, err := time.ParseDuration(os.Getenv(pauseOf))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	now := make(report)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				one := callOnce(ctx, c, pause)
				mu.Lock()
				now.merge(one)
				mu.Unlock()
			}
		})
	}
	defer wg.Wait()
	out := json.NewEncoder(os.Stdout)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		mu.Lock()
		last := now
		now = make(report)
		mu.Unlock()
		if r.Switch(service, "new", false) {
			last["switch"] = 1
		}
		if err := out.Encode(dated{time.Now(), last}); err != nil {
			return err
		}
	}
}

// These are the pauses between two calls of a caller. The machine has time for others meanwhile.
const shortPause = time.Millisecond

var longPause = flag.Duration("governed.pause", 10*time.Millisecond, "how long a caller of Restarts waits between two calls")

// callOnce makes a call, and waits for pause.
func callOnce(ctx context.Context, c *yodel.Client, pause time.Duration) report {
	began, out := time.Now(), &reply{}
	call := &yodel.Call{Method: string(buy), Args: &reply{}, Reply: out}
	err := c.Do(ctx, call)
	one := make(report)
	if time.Since(began) > slow {
		one["slow"]++
	}
	if err == nil {
		one["ok"]++
		one[out.By]++
	} else if e, ok := errors.AsType[*yodel.Error](err); ok && ctx.Err() == nil {
		one["failed"]++
		one[e.ID]++
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return one
}

// A process is one that the test has started.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
	ended chan struct{}
	once  sync.Once
}

// start starts the test's own program in a role, with more variables of its environment.
func start(t testing.TB, role, registry string, more ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: await.Command(t, os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), roleOf+"="+role, addrOf+"="+registry), more...)
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	must(t, err)
	stdout, err := p.cmd.StdoutPipe()
	must(t, err)
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	must(t, p.cmd.Start())
	t.Cleanup(p.stop)
	return p
}

// stop ends the process gracefully.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.stdin.Close()
		err := await.Within(await.Patience, "the end of a process", func() {
			for p.lines.Scan() {
			}
			_ = p.cmd.Wait() // it may have been killed
		}, p.cmd.Process)
		if err != nil {
			p.t.Error(err)
		}
	})
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	p.stop()
}

// startClient starts a client. Between two of its calls, each of its callers waits for pause.
func startClient(t testing.TB, registry string, pause time.Duration) *process {
	t.Helper()
	return start(t, "client", registry, pauseOf+"="+pause.String())
}

// startServer starts a server and returns its address.
func startServer(t testing.TB, version, registry, listen string) (*process, string) {
	t.Helper()
	p := start(t, version, registry, listensOn+"="+listen)
	line, err := await.Line(p.lines, "the address of the server "+version, p.cmd.Process)
	must(t, err)
	return p, line
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
