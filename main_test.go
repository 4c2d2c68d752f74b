// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

func (f transportFunc) Listen(addr string) (net.Listener, error) { return yodel.TCP.Listen(addr) }

// A proxy stands between clients and a server. It can hold up what clients send, as a slow network
// does, change it, and cut connections.
type proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	hold   chan struct{} // closed to let bytes pass; nil while all pass
	credit int           // bytes from clients that pass although the rest is held
	change func([]byte)  // of what passes, in both directions
	conns  map[net.Conn]bool
	made   int // connections ever made
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	p := &proxy{l: listen(t), target: target, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.run)
	t.Cleanup(func() {
		p.l.Close()
		p.release()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) run() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = true, true
		p.made++
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(far, near, true) })
		p.wg.Go(func() { p.pass(near, far, false) })
	}
}

// pass copies from one connection to the other until either ends.
func (p *proxy) pass(to, from net.Conn, up bool) {
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		for part := b[:n]; len(part) > 0; {
			allowed, hold := p.allow(len(part), up)
			p.mu.Lock()
			change := p.change
			p.mu.Unlock()
			if change != nil {
				change(part[:allowed])
			}
			if _, err := to.Write(part[:allowed]); err != nil {
				break
			}
			part = part[allowed:]
			if len(part) > 0 {
				<-hold
			}
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// allow returns how many of n bytes may pass now, and what to wait for before the rest may.
func (p *proxy) allow(n int, up bool) (int, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold == nil || !up && p.credit > 0 {
		return n, nil
	}
	n = min(n, p.credit)
	p.credit -= n
	return n, p.hold
}

// holdAfter lets n more bytes of clients pass, and then nothing in either direction.
func (p *proxy) holdAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.credit = make(chan struct{}), n
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != nil {
		close(p.hold)
		p.hold = nil
	}
}

// changing makes f change what passes.
func (p *proxy) changing(f func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change = f
}

// flip returns a change that damages the first occurrence of word.
func flip(word string) func([]byte) {
	var once sync.Once
	return func(b []byte) {
		if i := bytes.Index(b, []byte(word)); i >= 0 {
			once.Do(func() { b[i] ^= 1 })
		}
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// reset ends all connections as a crash of the server's machine does: with a reset, and without the
// last words.
func (p *proxy) reset() {
	p.mu.Lock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	p.mu.Unlock()
	p.cut()
}

// speak serves a listener whose connections are answered with answer as soon as they have sent
// something, or at once if it is a greeting, and returns its address.
func speak(t testing.TB, greeting bool, answer string) string {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if !greeting {
					_, _ = c.Read(make([]byte, 1))
				}
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// recorded is TCP that notes all bytes that come in.
type recorded struct {
	mu    sync.Mutex
	bytes []byte
}

func (r *recorded) transport() yodel.Transport {
	return transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := yodel.TCP.Dial(ctx, addr)
		return &recordedConn{nc, r}, err
	})
}

func (r *recorded) contains(s string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.bytes, []byte(s))
}

type recordedConn struct {
	net.Conn
	r *recorded
}

func (c *recordedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.bytes = append(c.r.bytes, b[:n]...)
	return n, err
}
