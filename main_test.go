// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	if os.Getenv(largeServerEnv) != "" {
		if err := serveLarge(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(hangingServerEnv) != "" {
		serveHanging()
		return
	}
	slog.SetLogLoggerLevel(slog.LevelWarn) // hundreds of servers begin and end here
	yodeltest.VerifyNoLeaks(m)
}

// What most tests call.

type Args struct{ A, B int }

type Reply struct{ C int }

const Mul yodel.Method[Args, Reply] = "Arith.Mul"

type Arith struct{}

func (Arith) Mul(_ context.Context, in *Args) (*Reply, error) { return &Reply{in.A * in.B}, nil }

func (Arith) Add(in Args, out *int) error { *out = in.A + in.B; return nil }

func (Arith) DivMod(a, b int) (quotient, remainder int, err error) {
	if b == 0 {
		return 0, 0, yodel.Errorf(yodel.InvalidArgument, "division by zero")
	}
	return a / b, a % b, nil
}

// An Empty is a message without content.
type Empty = struct{}

// newServer returns a server of Arith.
func newServer(t testing.TB, o *yodel.ServerOptions) *yodel.Server {
	t.Helper()
	s := yodel.NewServer(diagnosed(o))
	if err := s.Register(Arith{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// diagnosed returns a copy of the options with diagnostics for every caller. O may be nil.
func diagnosed(o *yodel.ServerOptions) *yodel.ServerOptions {
	opts := yodel.ServerOptions{}
	if o != nil {
		opts = *o
	}
	opts.Diagnostics = true
	return &opts
}

// serve serves s on loopback until the test ends, and returns the address.
func serve(t testing.TB, s *yodel.Server) string {
	t.Helper()
	l := listen(t)
	serveOn(t, s, l)
	return l.Addr().String()
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serveOn(t testing.TB, s *yodel.Server, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			t.Errorf("the server ended with %v", err)
		}
	})
}

// newClient returns a client of the servers at addrs, which is closed when the test ends.
func newClient(t testing.TB, o *yodel.ClientOptions, addrs ...string) *yodel.Client {
	t.Helper()
	c := yodel.NewClient(discovery.Static(addrs...), o)
	t.Cleanup(c.Close)
	return c
}

// connect returns a client of s over loopback.
func connect(t testing.TB, s *yodel.Server, o *yodel.ClientOptions) *yodel.Client {
	t.Helper()
	return newClient(t, o, serve(t, s))
}

// handle registers a function under a name.
func handle(t testing.TB, s *yodel.Server, name string, function any) {
	t.Helper()
	if err := s.Handle(name, function); err != nil {
		t.Fatal(err)
	}
}

// placements is the ways to say where a method runs.
func placements(s *yodel.Server) map[string]func(...string) {
	return map[string]func(...string){"concurrent": s.MarkConcurrent, "inline": s.MarkInline}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long tests wait for what must happen.
const patience = 20 * time.Second

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// receive returns what ch brings, in time.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

// receiveValue receives from ch until want comes, in time.
func receiveValue[T comparable](t testing.TB, ch <-chan T, want T, what string) {
	t.Helper()
	for got := receive(t, ch, what); got != want; {
		got = receive(t, ch, what)
	}
}

// wantError checks the code and the ID of an error.
func wantError(t testing.TB, err error, code yodel.Code, id string) *yodel.Error {
	t.Helper()
	var e *yodel.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error %v [%s]", err, code, id)
	}
	if e.Code != code || e.ID != id {
		t.Fatalf("got %v, want an error %v [%s]", err, code, id)
	}
	return e
}

// A logbook is a log that a test reads.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

// logger keeps warnings and errors.
func (l *logbook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// everything keeps lines of all levels from Info on.
func (l *logbook) everything() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// with returns the lines that contain s.
func (l *logbook) with(s string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, s) {
			found = append(found, line)
		}
	}
	return found
}

// transportFunc is TCP with another Dial.
type transportFunc func(ctx context.Context, addr string) (net.Conn, error)

func (f transportFunc) Dial(ctx context.Context, addr string) (net.Conn, error) { return f(ctx, addr) }
func (f transportFunc) Listen(addr string) (net.Listener, error)                { return yodel.TCP.Listen(addr) }
