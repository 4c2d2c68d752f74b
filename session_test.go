// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A lines is a Protocol: a request is a line "!Method length" and that many bytes of JSON, a reply
// is a line.
type lines struct {
	name  func() string
	match func(first []byte) (ok, more bool)
	serve func(context.Context, *yodel.Session) error
	codec yodel.Codec
}

func (p lines) Name() string {
	if p.name != nil {
		return p.name()
	}
	return "lines"
}

func (p lines) Match(first []byte) (ok, more bool) {
	if p.match != nil {
		return p.match(first)
	}
	return first[0] == '!', false
}

func (p lines) Serve(ctx context.Context, s *yodel.Session) error {
	if p.serve != nil {
		return p.serve(ctx, s)
	}
	return s.Loop(func() error {
		line, err := s.Reader.ReadString('\n')
		if err != nil {
			return io.ErrUnexpectedEOF
		}
		var method string
		var size int
		if _, err = fmt.Sscanf(line, "!%s %d\n", &method, &size); err != nil {
			return err
		}
		v := s.Begin(method, p.codec, nil)
		if e := v.Admit(size, true); e != nil {
			v.End()
			_, _ = s.Reader.Discard(size)
			_, _ = fmt.Fprintf(s, "error %v\n", e)
			return nil
		}
		v.Body = make([]byte, size)
		if _, err = io.ReadFull(s.Reader, v.Body); err != nil {
			v.End()
			return err
		}
		v.Go(func() {
			defer v.End()
			defer func() { // also if the handler ends the goroutine
				var reply []byte
				e := v.Outcome()
				defer func() { // also if the codec does
					if e = v.Outcome(); e != nil {
						reply = fmt.Appendf(nil, "error %v", e)
					}
					_, _ = s.Write(append(reply, '\n')) // the session ends
				}()
				if e == nil {
					reply, _, _ = v.AppendReply(nil) // the error is the outcome
				}
			}()
			_ = v.Run() // the error is the outcome
		})
		return nil
	}, nil)
}

// A linesServer is a server that speaks lines, in memory.
type linesServer struct {
	*yodel.Server
	network *mem.Network
	events  chan introspect.ConnEvent
	ended   chan error
}

func serveLines(t *testing.T, p lines, o yodel.ServerOptions) *linesServer {
	t.Helper()
	if p.codec == nil {
		p.codec = yodel.JSON
	}
	s := &linesServer{network: mem.New(), events: make(chan introspect.ConnEvent, 1000), ended: make(chan error, 1)}
	o.Protocols, o.Transport = []yodel.Protocol{p}, s.network
	o.OnConn = func(e introspect.ConnEvent) { s.events <- e }
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s.Server = yodel.NewServer(&o)
	l, err := s.network.Listen("lines")
	if err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx) // of what the test has left
		<-s.ended
	})
	return s
}

func (s *linesServer) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := s.network.Dial(t.Context(), "lines")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return c
}

func request(method, body string) string { return fmt.Sprintf("!%s %d\n%s", method, len(body), body) }

// ask makes a call over a connection.
func ask(t *testing.T, c net.Conn, method, body string) string {
	t.Helper()
	if _, err := io.WriteString(c, request(method, body)); err != nil {
		t.Fatal(err)
	}
	reply, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(reply)
}

func double(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil }

// Each connection that was accepted has exactly one event that says how it ended.
func TestSessionsEndWithOneEvent(t *testing.T) {
	refuse := func(context.Context, *yodel.Peer) error { return yodel.Errorf(yodel.PermissionDenied, "no") }
	for _, test := range []struct {
		name     string
		protocol lines
		connect  func(context.Context, *yodel.Peer) error
		send     string
		then     string // close, or shutdown, or deadline
		want     introspect.ConnEventKind
	}{
		{name: "the client closes", send: request("Double", "4"), then: "close", want: introspect.Disconnected},
		{name: "the client closes early", send: "!Double", then: "close", want: introspect.Disconnected},
		{name: "Connect refuses", connect: refuse, send: request("Double", "4"), then: "close", want: introspect.Refused},
		{name: "Match panics", protocol: lines{match: func([]byte) (bool, bool) { panic("oh") }}, send: "!", want: introspect.ReadFailed},
		{name: "Match ends its goroutine", protocol: lines{match: func([]byte) (bool, bool) { runtime.Goexit(); return false, false }}, send: "!", want: introspect.ReadFailed},
		{name: "Serve panics", protocol: lines{serve: func(context.Context, *yodel.Session) error { panic("oh") }}, send: "!", want: introspect.ReadFailed},
		{name: "Name panics", protocol: lines{name: func() string { panic("oh") }}, send: "!", want: introspect.ReadFailed},
		{name: "Serve fails", protocol: lines{serve: func(context.Context, *yodel.Session) error { return errors.New("oh") }}, send: "!", want: introspect.ReadFailed},
		{name: "Serve returns", protocol: lines{serve: func(context.Context, *yodel.Session) error { return nil }}, send: "!", want: introspect.Disconnected},
		{name: "the server drains", send: request("Double", "4"), then: "shutdown", want: introspect.Closed},
		{name: "Shutdown cuts off", send: request("Double", "4") + "!Double", then: "deadline", want: introspect.Closed},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			s := serveLines(t, test.protocol, yodel.ServerOptions{Connect: test.connect, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			handle(t, s.Server, "Double", double)
			c := s.dial(t)
			if e := <-s.events; e.Kind != introspect.Accepted {
				t.Fatalf("got %v first", e)
			}
			if _, err := io.WriteString(c, test.send); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(test.send, request("Double", "4")) {
				if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			switch test.then {
			case "close":
				_ = c.Close() // what is tested
			case "shutdown":
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			case "deadline":
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_ = s.Shutdown(ctx) // it says what it has cut off
			}
			e := <-s.events // else the test hangs
			if e.Kind != test.want {
				t.Errorf("got %v, want %s", e, test.want)
			}
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			for len(s.events) > 0 { // they come before Shutdown returns
				t.Errorf("one more event: %v", <-s.events)
			}
			if broke := strings.Contains(log.String(), "broke the protocol"); broke != strings.HasPrefix(test.name, "Serve ") && test.name != "Serve returns" {
				t.Errorf("the log says that the peer broke the protocol: %t\n%s", broke, log.String())
			}
		})
	}
}

// Shutdown looks at calls that are just beginning. The race detector has something to say if it
// looks at what they write.
func TestShutdownLooksAtCallsThatBegin(t *testing.T) {
	for range 20 {
		s := serveLines(t, lines{}, yodel.ServerOptions{})
		handle(t, s.Server, "Double", double)
		var calls sync.WaitGroup
		for range 4 {
			c := s.dial(t)
			calls.Go(func() {
				reader := bufio.NewReader(c)
				for {
					if _, err := io.WriteString(c, request("Double", "4")); err != nil {
						return
					}
					if _, err := reader.ReadString('\n'); err != nil {
						return
					}
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = s.Shutdown(ctx) // the clients do not stop
		calls.Wait()
	}
}

// A client that sends half a request, or a byte of it every minute, loses its connection, and what
// it had held is free again.
func TestHalfARequestIsGivenUp(t *testing.T) {
	for _, every := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 1})
			handle(t, s.Server, "Double", double)
			half := s.dial(t)
			began := time.Now()
			if _, err := io.WriteString(half, "!Double 1000000\n1"); err != nil {
				t.Fatal(err)
			}
			if every > 0 {
				go func() {
					for err := error(nil); err == nil; time.Sleep(every) { // of the bubble
						_, err = io.WriteString(half, "1")
					}
				}()
			}
			if n, err := half.Read(make([]byte, 1)); err == nil || n > 0 {
				t.Errorf("read %d bytes, %v", n, err)
			}
			if took := time.Since(began); took > time.Minute+time.Second {
				t.Errorf("it held its place for %v", took)
			}
			if got := ask(t, s.dial(t), "Double", "4"); got != "8" {
				t.Errorf("a call after it: got %s", got)
			}
			time.Sleep(2 * every) // of the bubble: the writer sees the end
		})
	}
}

// A client that leaves while its next request waits for a place ends the calls that have one.
func TestAClientThatLeavesWhileAdmitWaits(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 1})
	began := make(chan struct{}, 2)
	handle(t, s.Server, "Wait", func(ctx context.Context, _ *int) (*int, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	handle(t, s.Server, "Double", double)
	c := s.dial(t)
	if _, err := io.WriteString(c, request("Wait", "1")+request("Wait", "1")); err != nil {
		t.Fatal(err)
	}
	<-began
	_ = c.Close() // what is tested
	if got := ask(t, s.dial(t), "Double", "4"); got != "8" {
		t.Errorf("got %s", got)
	}
}

// A client that goes on while its request waits for a place loses nothing of what it sends.
func TestReadingAheadLosesNothing(t *testing.T) {
	t.Attr("rerun", "never")
	s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 1})
	began, release := make(chan struct{}), make(chan struct{})
	handle(t, s.Server, "Wait", func(context.Context, *int) (*int, error) {
		began <- struct{}{}
		<-release
		return new(1), nil
	})
	c := s.dial(t)
	const calls = 50
	go func() {
		for range calls {
			_, _ = io.WriteString(c, request("Wait", "1")) // the replies say it
		}
	}()
	go func() {
		for range calls {
			<-began
			release <- struct{}{}
		}
	}()
	reader := bufio.NewReader(c)
	for i := range calls {
		if line, err := reader.ReadString('\n'); err != nil || line != "1\n" {
			t.Fatalf("reply %d: %q, %v", i, line, err)
		}
	}
}

// One client cannot take every place of the server.
func TestOneSessionLeavesPlacesToOthers(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 16})
	began, release := make(chan struct{}, 16), make(chan struct{})
	handle(t, s.Server, "Wait", func(context.Context, *int) (*int, error) {
		began <- struct{}{}
		<-release
		return new(1), nil
	})
	handle(t, s.Server, "Double", double)
	if _, err := io.WriteString(s.dial(t), strings.Repeat(request("Wait", "1"), 20)); err != nil {
		t.Fatal(err)
	}
	for range 15 {
		<-began
	}
	if got := ask(t, s.dial(t), "Double", "4"); got != "8" {
		t.Errorf("got %s", got)
	}
	close(release)
}

// Connections that say nothing take little memory.
func TestSilentConnectionsTakeLittle(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{})
	const conns = 500
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range conns {
		s.dial(t)
	}
	for range conns {
		<-s.events
	}
	if each := (int64(heap()) - int64(before)) / conns; each > 16<<10 {
		t.Errorf("each takes %d bytes", each)
	}
}

func TestIdleSessionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLines(t, lines{}, yodel.ServerOptions{Limits: yodel.Limits{IdleTimeout: time.Hour}})
		handle(t, s.Server, "Slow", func(context.Context, *int) (*int, error) {
			time.Sleep(3 * time.Hour) // of the bubble
			return new(1), nil
		})
		c := s.dial(t)
		began := time.Now()
		if got := ask(t, c, "Slow", "1"); got != "1" {
			t.Errorf("got %s", got)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < 4*time.Hour || took > 4*time.Hour+15*time.Minute {
			t.Errorf("it was closed after %v", took)
		}
		<-s.events
		if e := <-s.events; e.Kind != introspect.Closed {
			t.Errorf("got %v", e)
		}
	})
}

// The server waits for the protocol of a connection that is half recognized when Shutdown begins.
// If it is yodel's own, no goroutine of the Session remains.
func TestADrainingSessionBecomesNative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLines(t, lines{}, yodel.ServerOptions{})
		c := s.dial(t)
		down := make(chan error, 1)
		for _, step := range []func(){
			func() { _, _ = io.WriteString(c, wire.Preface[:1]) },
			func() { go func() { down <- s.Shutdown(context.Background()) }() },
			func() { _, _ = io.WriteString(c, wire.Preface[1:]) },
			func() { _ = c.Close() },
		} {
			step() // the server notices a connection that is cut off
			synctest.Wait()
		}
		must(t, receive(t, down, "Shutdown returns"))
	})
}

// An uncomparable codec is JSON, of a type that == panics for.
type uncomparable struct {
	yodel.Codec
	_ []int
}

func TestSessionCodecNeedNotBeComparable(t *testing.T) {
	s := serveLines(t, lines{codec: uncomparable{Codec: yodel.JSON}}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	c := s.dial(t)
	for range 3 {
		if got := ask(t, c, "Double", "4"); got != "8" {
			t.Errorf("got %s", got)
		}
	}
}

func TestSessionRefusesLongMethodNames(t *testing.T) {
	seen := ""
	s := serveLines(t, lines{}, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			seen = call.Method
			return next(ctx, call)
		}
	}}})
	if got := ask(t, s.dial(t), strings.Repeat("x", 10_000), "4"); !strings.Contains(got, "YDL2001") || len(got) > 300 {
		t.Errorf("got %s", got)
	}
	if len(seen) > 255 {
		t.Errorf("middleware sees a name of %d bytes", len(seen))
	}
}

// Wrong use of a Served by a Protocol costs no place and counts nothing twice.
func TestServedIsUsedWrongly(t *testing.T) {
	var errs []error
	wrong := func(_ context.Context, s *yodel.Session) error {
		v := s.Begin("Double", yodel.JSON, nil)
		errs = append(errs, v.Run(), v.Outcome()) // not admitted
		_, _, err := v.AppendReply(nil)
		_, other := v.Reply()
		errs = append(errs, err, other)
		v.End()
		errs = append(errs, v.Admit(1, false), v.Run())
		v = s.Begin("Double", yodel.JSON, nil)
		errs = append(errs, v.Admit(-1, false))
		v.End()
		v = s.Begin("Double", yodel.JSON, nil)
		if err := v.Admit(1, false); err != nil {
			return err
		}
		v.End()
		errs = append(errs, v.Run(), v.Admit(1, false))
		s.Release(1 << 30)
		if s.Reserve(-1) {
			return errors.New("Reserve took less than nothing")
		}
		for range 3 {
			v = s.Begin("Double", yodel.JSON, nil)
			if err := v.Admit(1, false); err != nil {
				return err
			}
			errs = append(errs, v.Admit(1, false))
			v.Body = []byte("4")
			if err := v.Run(); err != nil {
				return err
			}
			errs = append(errs, v.Run())
			v.End()
			v.End()
		}
		return nil
	}
	ran := 0
	s := serveLines(t, lines{serve: wrong}, yodel.ServerOptions{MaxOpen: 1})
	handle(t, s.Server, "Double", func(context.Context, *int) (*int, error) {
		ran++
		return new(1), nil
	})
	c := s.dial(t)
	if _, err := io.WriteString(c, "!"); err != nil {
		t.Fatal(err)
	}
	<-s.events
	if e := <-s.events; e.Kind != introspect.Disconnected {
		t.Errorf("it ended with %v", e)
	}
	if len(errs) != 15 || ran != 3 {
		t.Errorf("the handler ran %d times; errors: %v", ran, errs)
	}
	for _, err := range errs {
		if yodel.CodeOf(err) != yodel.Internal {
			t.Errorf("got %v", err)
		}
	}
}

// What a Protocol reserves is bounded, and given back when the session ends.
func TestSessionsReserveMemory(t *testing.T) {
	got := make(chan bool, 10)
	s := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		got <- s.Reserve(600 << 10)
		got <- s.Reserve(600 << 10)
		return nil
	}}, yodel.ServerOptions{MaxMemory: 2 << 20})
	for range 5 {
		if _, err := io.WriteString(s.dial(t), "!"); err != nil {
			t.Fatal(err)
		}
		if first, second := <-got, <-got; !first || second {
			t.Errorf("got %t, %t", first, second)
		}
		<-s.events
		<-s.events
	}
}

// A client that reads no replies holds its calls only for so long, and holds up nobody else.
func TestAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 4})
		if err := s.Handle("Large", func(context.Context, *int) (*string, error) { return new(strings.Repeat("x", 1<<20)), nil }); err != nil {
			t.Fatal(err)
		}
		handle(t, s.Server, "Double", double)
		if _, err := io.WriteString(s.dial(t), strings.Repeat(request("Large", "1"), 4)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if got := ask(t, s.dial(t), "Double", "4"); got != "8" || time.Since(began) > 2*time.Minute {
			t.Errorf("got %s after %v", got, time.Since(began))
		}
		<-s.events
		<-s.events
		if e := <-s.events; e.Kind != introspect.WriteFailed {
			t.Errorf("got %v", e)
		}
	})
}

// A client that makes a protocol reserve little by little gets half of the memory at most.
func TestOneSessionLeavesMemoryToOthers(t *testing.T) {
	got := make(chan int, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		n := 0
		for s.Reserve(10 << 10) {
			n += 10 << 10
		}
		got <- n
		return nil
	}}, yodel.ServerOptions{MaxMemory: 1 << 20})
	if _, err := io.WriteString(s.dial(t), "!"); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n < 400<<10 || n > 512<<10 {
		t.Errorf("one session got %d KiB of 1024", n>>10)
	}
}

// A client that never pauses gets the reply of each call that was executed, and a drain does not
// take all of DrainTimeout. A client that sends one request after the other has unread ones in the
// end.
func TestDrainOfABusySession(t *testing.T) {
	t.Attr("rerun", "never")
	for name, test := range map[string]struct {
		callers   int           // each sends a request when it has a reply; 0 means one that does not wait
		work      time.Duration // of a call
		least, at time.Duration // that the drain takes
	}{
		"one caller":                      {1, 5 * time.Millisecond, 500 * time.Millisecond, time.Second},
		"several callers":                 {8, 5 * time.Millisecond, 500 * time.Millisecond, time.Second},
		"a client that does not wait":     {0, 5 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second},
		"calls longer than a pause":       {8, 900 * time.Millisecond, 2 * time.Second, 3 * time.Second},
		"calls as long as the last pause": {8, 4 * time.Second, 5 * time.Second, 9900 * time.Millisecond},
		"calls that pause almost 200 ms":  {-1, 5 * time.Millisecond, 500 * time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 100})
				var executed, replied atomic.Int64
				handle(t, s.Server, "Double", func(_ context.Context, n *int) (*int, error) {
					defer executed.Add(1)
					time.Sleep(test.work) // of the bubble
					return new(2 * *n), nil
				})
				c := s.dial(t)
				wants := make(chan bool, 1000)
				for i := range max(test.callers, 1) {
					time.AfterFunc(time.Duration(i)*test.work/8, func() { wants <- true })
				}
				var both sync.WaitGroup
				both.Go(func() {
					for test.callers == 0 || <-wants {
						if _, err := io.WriteString(c, request("Double", "4")); err != nil {
							return
						}
					}
				})
				both.Go(func() {
					for replies := bufio.NewScanner(c); replies.Scan() && replies.Text() == "8"; replied.Add(1) {
						if test.callers < 0 {
							time.Sleep(190 * time.Millisecond)
						}
						if test.callers != 0 {
							wants <- true
						}
					}
					_ = c.Close() // as clients do
					close(wants)
				})
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				err := s.Shutdown(ctx)
				if took := time.Since(began); err != nil || took < test.least || took > test.at {
					t.Errorf("the drain took %v, want %v to %v: %v", took, test.least, test.at, err)
				}
				both.Wait()
				if n := replied.Load(); n == 0 || n != executed.Load() {
					t.Errorf("%d calls were executed, and %d replies have arrived", executed.Load(), n)
				}
			})
		})
	}
}

// A request that arrives in the last pause of a drain is not executed: it might be cut off.
func TestARequestInTheLastPauseIsNotExecuted(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := serveLines(t, lines{}, yodel.ServerOptions{})
		executed := 0
		handle(t, s.Server, "Double", func(_ context.Context, n *int) (*int, error) {
			executed++
			time.Sleep(9 * time.Second) // of the bubble
			return new(2 * *n), nil
		})
		c := s.dial(t)
		write := func() {
			_, err := io.WriteString(c, request("Double", "4"))
			must(t, err)
		}
		write()
		synctest.Wait()
		time.AfterFunc(8*time.Second, write)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		shutdown := make(chan error, 1)
		go func() { shutdown <- s.Shutdown(ctx) }()
		replies, err := io.ReadAll(c)
		_ = c.Close() // as clients do
		if err := errors.Join(err, <-shutdown); err != nil || string(replies) != "8\n" || executed != 1 {
			t.Errorf("%d calls were executed, and the replies are %q: %v", executed, replies, err)
		}
	})
}

// A drain that ends a connection with unread requests does not take the replies from a client that
// reads late.
func TestADrainLeavesRepliesToALateReader(t *testing.T) {
	t.Attr("rerun", "never")
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{lines{codec: yodel.JSON}}, Logger: slog.New(slog.DiscardHandler)})
	var executed atomic.Int64
	gate := make(chan struct{})
	handle(t, s, "Double", func(_ context.Context, n *int) (*int, error) {
		if executed.Add(1) == 1 {
			<-gate
		}
		return new(2 * *n), nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ended, shutdown := make(chan error, 1), make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	sent := int64(0)
	send := func() {
		_, err := io.WriteString(c, request("Double", "4"))
		must(t, err)
		sent++
	}
	send()
	until(t, "a call runs", func() bool { return executed.Load() == 1 })
	go func() { shutdown <- s.Shutdown(context.Background()) }()
	until(t, "requests are not read", func() bool {
		send()
		return sent > executed.Load()+100
	})
	close(gate)
	must(t, <-shutdown)
	replies, n := bufio.NewScanner(c), int64(0)
	for replies.Scan() {
		n++
	}
	if err := replies.Err(); err != nil || n != executed.Load() || n == sent {
		t.Errorf("of %d calls %d were executed, and %d replies have arrived: %v", sent, executed.Load(), n, err)
	}
	<-ended
}

// A call of a deadline waits for a place no longer than that.
func TestAdmitEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan *yodel.Error, 1)
		s := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
			v := s.Begin("Double", yodel.JSON, nil)
			defer v.End()
			if err := v.Admit(1, true); err != nil {
				return err
			}
			other := s.Begin("Double", yodel.JSON, nil)
			defer other.End()
			other.Call().Deadline = time.Now().Add(time.Minute)
			got <- other.Admit(1, true)
			return nil
		}}, yodel.ServerOptions{MaxOpen: 1})
		began := time.Now()
		if _, err := io.WriteString(s.dial(t), "!"); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err == nil || err.ID != "YDL1005" || !err.NotProcessed {
			t.Errorf("got %v, want YDL1005", err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it waited for %v", took)
		}
	})
}

// A call that middleware makes in the context of an unknown method's call does not panic.
func TestCallInTheContextOfAnUnknownMethod(t *testing.T) {
	var client *yodel.Client
	s := serveLines(t, lines{}, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "Nothing" {
				return client.Call(ctx, "Double", new(4), new(int))
			}
			return next(ctx, call)
		}
	}}})
	handle(t, s.Server, "Double", double)
	client = yodel.NewClient(discovery.Static("lines"), &yodel.ClientOptions{Transport: s.network})
	defer client.Close()
	if got := ask(t, s.dial(t), "Nothing", "4"); got != "" { // no reply and no error
		t.Errorf("got %s", got)
	}
}

// Observers that end their goroutine cost a call its reply, and no place.
func TestObserversOfSessionsMayEndTheirGoroutine(t *testing.T) {
	for _, o := range []yodel.Observer{
		{End: func(context.Context, *yodel.Call, error) { runtime.Goexit() }},
		{Start: func(context.Context, *yodel.Call) context.Context { runtime.Goexit(); return nil }},
	} {
		s := serveLines(t, lines{}, yodel.ServerOptions{MaxOpen: 1, Observers: []yodel.Observer{o}})
		handle(t, s.Server, "Double", double)
		for range 3 {
			c := s.dial(t)
			if _, err := io.WriteString(c, request("Double", "4")); err != nil {
				t.Fatal(err)
			}
			if o.End != nil {
				if _, err := c.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Shutdown(t.Context()); err != nil { // it waits for places that are never free
			t.Error(err)
		}
	}
}

type pushTo yodel.Handler

func (f pushTo) Do(ctx context.Context, call *yodel.Call) error { return f(ctx, call) }
