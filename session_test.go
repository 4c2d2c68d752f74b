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
	"github.com/yodel-rpc/yodel/codec/raw"
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
		"calls that pause almost 50 ms":   {-1, 5 * time.Millisecond, 500 * time.Millisecond, time.Second},
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
							time.Sleep(40 * time.Millisecond)
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

// One-way calls to a peer go through the Caller of Session.Push, below the server's middleware for
// peers. Other calls fail.
func TestSessionPush(t *testing.T) {
	pushed := make(chan *yodel.Call, 10)
	lost := errors.New("the client has left")
	s := serveLines(t, lines{serve: func(ctx context.Context, s *yodel.Session) error {
		s.Push(pushTo(func(_ context.Context, call *yodel.Call) error {
			if call.Method == "Lost" {
				return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Cause: lost}
			}
			pushed <- &yodel.Call{Method: call.Method, Args: call.Args, Codec: call.Encoding(), Metadata: call.Metadata, Attempt: call.Attempt}
			return nil
		}))
		return lines{codec: yodel.JSON}.Serve(ctx, s)
	}}, yodel.ServerOptions{PeerMiddleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			call.Metadata = yodel.Metadata{"by": "middleware"}
			return next(ctx, call)
		}
	}}})
	if err := s.Handle("Double", double); err != nil {
		t.Fatal(err)
	}
	c := s.dial(t)
	if got := ask(t, c, "Double", "2"); got != "4" {
		t.Fatalf("got %q", got)
	}
	peers := s.Peers()
	if len(peers) != 1 {
		t.Fatalf("%d peers", len(peers))
	}
	const News yodel.Method[string, Empty] = "News"
	item := "rain"
	if err := News.Notify(t.Context(), peers[0], &item); err != nil {
		t.Error(err)
	}
	done := make(chan error, 1)
	peers[0].Go(t.Context(), &yodel.Call{Method: "News", Args: &item, OneWay: true}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Error(err)
	}
	for range 2 {
		call := <-pushed
		if text, ok := call.Args.(*string); !ok || *text != item || call.Method != "News" || call.Codec != yodel.JSON || call.Metadata["by"] != "middleware" || call.Attempt != 1 {
			t.Errorf("got %+v", call)
		}
	}
	if _, err := News.Call(t.Context(), peers[0], &item); !errors.Is(err, yodel.Unimplemented) || !yodel.NotProcessed(err) {
		t.Errorf("a call with a reply: got %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := News.Notify(canceled, peers[0], &item); !errors.Is(err, context.Canceled) || !yodel.NotProcessed(err) {
		t.Errorf("a canceled call: got %v", err)
	}
	err := peers[0].Do(t.Context(), &yodel.Call{Method: "Lost", Args: &item, OneWay: true})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unavailable || !e.NotProcessed || e.ID != "YDL1104" || !errors.Is(err, lost) {
		t.Errorf("a call on a lost connection: got %v", err)
	}
	if len(pushed) != 0 {
		t.Errorf("%d more calls were sent", len(pushed))
	}
}

// A client may disconnect as soon as it has sent a one-way call. The call is executed. Other calls
// are not.
func TestOneWayCallsOutliveTheirClient(t *testing.T) {
	for _, oneWay := range []bool{true, false} {
		began, outcome := make(chan context.Context, 1), make(chan *yodel.Error, 1)
		s := serveLines(t, lines{serve: func(ctx context.Context, s *yodel.Session) error {
			if err := s.Next(); err != nil {
				return err
			}
			v := s.Begin("Begin", yodel.JSON, nil)
			v.Call().OneWay = oneWay
			if e := v.Admit(0, true); e != nil {
				return e
			}
			v.Body = []byte("0")
			s.Go(func() {
				defer v.End()
				<-ctx.Done()
				outcome <- v.Run()
			})
			return io.EOF
		}}, yodel.ServerOptions{})
		yodel.Method[int, int]("Begin").Handle(s.Server, func(ctx context.Context, in *int) (*int, error) {
			began <- ctx
			<-ctx.Done()
			return in, nil
		})
		if _, err := io.WriteString(s.dial(t), "!"); err != nil {
			t.Fatal(err)
		}
		if !oneWay {
			if e := <-outcome; e == nil || e.ID != "YDL1006" || !e.NotProcessed {
				t.Errorf("a call that is not one-way ended with %v", e)
			}
			continue
		}
		ctx := <-began
		if err := ctx.Err(); err != nil {
			t.Errorf("the handler began with a context that had ended: %v", err)
		}
		waited, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Shutdown(waited); err == nil {
			t.Error("Shutdown did not report the call that it cut off")
		}
		<-outcome // the handler returns when its context ends
	}
}

// marks has requests without a byte of their own: "!" for each call of the method Wait.
func marks(oneWay bool) lines {
	return lines{serve: func(_ context.Context, s *yodel.Session) error {
		for {
			if err := s.Next(); err != nil {
				return err
			}
			if _, err := s.Reader.ReadByte(); err != nil {
				return err
			}
			v := s.Begin("Wait", yodel.JSON, nil)
			v.Call().OneWay = oneWay
			if v.Admit(0, true) != nil {
				v.End()
				continue
			}
			v.Body = []byte("0")
			s.Go(func() {
				defer v.End()
				_ = v.Run() // nobody waits for it
			})
		}
	}}
}

// The calls of a client that sends one-way calls until the server reads no more, and then leaves,
// end as those of any client that leaves.
func TestAClientThatFloodsAndLeaves(t *testing.T) {
	for _, oneWay := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := serveLines(t, marks(oneWay), yodel.ServerOptions{MaxOpen: 16})
			var running atomic.Int64
			handle(t, s.Server, "Wait", func(ctx context.Context, n *int) (*int, error) {
				running.Add(1)
				defer running.Add(-1)
				<-ctx.Done()
				return n, nil
			})
			c := s.dial(t)
			left := make(chan bool)
			go func() {
				defer close(left)
				_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // it never fails
				_, _ = io.WriteString(c, strings.Repeat("!", 10<<20))
				if oneWay {
					_ = c.Close()
				}
			}()
			<-left
			time.Sleep(29 * time.Second) // of the bubble
			if n := running.Load(); n != 15 {
				t.Errorf("%d calls run, want 15", n)
			}
			time.Sleep(33 * time.Second)
			if n := running.Load(); oneWay != (n == 0) {
				t.Errorf("one-way %v: %d calls run after a minute", oneWay, n)
			}
		})
	}
}

// The system says that a client has left, though there is more to read than a session reads ahead.
func TestAClientThatLeavesBehindUnreadRequests(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says that a client has left behind what it has sent")
	}
	released := make(chan struct{})
	defer close(released)
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{marks(false)}, MaxOpen: 2, Logger: slog.New(slog.DiscardHandler)})
	began, ended := make(chan bool, 2), make(chan bool, 2)
	handle(t, s, "Wait", func(ctx context.Context, n *int) (*int, error) {
		began <- true
		select {
		case <-ctx.Done():
			ended <- true
		case <-released:
		}
		return n, nil
	})
	c, err := net.Dial("tcp", serve(t, s))
	must(t, err)
	_, err = io.WriteString(c, strings.Repeat("!", 40<<10))
	must(t, err)
	receive(t, began, "a call")
	must(t, c.Close())
	receive(t, ended, "the end of its context")
}

// A roomCodec is JSON that notes the capacity that it is given for a reply.
type roomCodec struct {
	yodel.Codec
	most *int
}

func (c roomCodec) Append(dst []byte, v any) ([]byte, error) {
	*c.most = max(*c.most, cap(dst))
	return c.Codec.Append(dst, v)
}

// AppendReply encodes in memory that is used again, and its result does not depend on that memory.
func TestRepliesAreEncodedInUsedMemory(t *testing.T) {
	room := 0
	var replies []string
	many := func(_ context.Context, s *yodel.Session) error {
		var kept [][]byte
		for i := range 100 {
			v := s.Begin("Double", roomCodec{yodel.JSON, &room}, nil)
			if err := v.Admit(8, false); err != nil {
				return err
			}
			v.Body = fmt.Append(nil, i)
			if err := v.Run(); err != nil {
				return err
			}
			reply, _, err := v.AppendReply([]byte("= "))
			if err != nil {
				return err
			}
			v.End()
			kept = append(kept, reply)
		}
		for _, reply := range kept {
			replies = append(replies, string(reply))
		}
		_, err := s.Write([]byte("done\n"))
		return err
	}
	s := serveLines(t, lines{serve: many}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if got := ask(t, s.dial(t), "Double", "4"); got != "done" {
		t.Fatalf("got %q", got)
	}
	for i, reply := range replies {
		if want := fmt.Sprintf("= %d", 2*i); reply != want {
			t.Errorf("reply %d is %q, want %q", i, reply, want)
		}
	}
	if len(replies) != 100 || room == 0 {
		t.Errorf("there are %d replies, and the largest buffer had %d bytes", len(replies), room)
	}
}

// A readCounter counts its reads.
type readCounter struct {
	net.Conn
	reads *atomic.Int64
}

func (c readCounter) Read(b []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(b)
}

// Small reads of AsConn, as net/http makes them for each frame, do not each read the connection.
func TestAsConnBuffersReads(t *testing.T) {
	var reads atomic.Int64
	got := make(chan string, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		s.Conn = readCounter{s.Conn, &reads}
		c := s.AsConn()
		var all []byte
		for one := make([]byte, 1); ; all = append(all, one...) {
			if _, err := c.Read(one); err != nil || one[0] == '\n' {
				got <- string(all)
				return err
			}
		}
	}}, yodel.ServerOptions{})
	c, sent := s.dial(t), "!"+strings.Repeat("x", 3000)
	if _, err := io.WriteString(c, sent+"\n"); err != nil {
		t.Fatal(err)
	}
	if received := <-got; received != sent {
		t.Errorf("%d bytes came, %d were sent", len(received), len(sent))
	}
	if n := reads.Load(); n > 4 {
		t.Errorf("%d reads of the connection", n)
	}
}

// A session remembers how each kind of call of a method is bound: with one of several codecs or
// callers, and with one or several values, which Begin does not know yet. Otherwise each call that
// differs from the one before it would be bound anew.
func TestSessionsBindEachKindOfCallOnce(t *testing.T) {
	type kind struct {
		codec   yodel.Codec
		caller  string
		several bool
	}
	other := struct{ yodel.Codec }{yodel.JSON}
	kinds := []kind{{codec: yodel.JSON}, {codec: yodel.JSON, several: true}, {codec: other}, {codec: yodel.JSON, caller: "a"}, {codec: yodel.JSON, caller: "b"}}
	failed := make(chan error, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, ses *yodel.Session) error {
		bound := make(map[any]int)
		for range 3 {
			for i, k := range kinds {
				v := ses.Begin("Double", k.codec, nil)
				v.Caller, v.Several = k.caller, k.several
				_ = v.Admit(0, true)
				_ = v.Run() // fails for several values
				of := yodel.BindingOf(v)
				if before, known := bound[of]; known && before != i {
					failed <- fmt.Errorf("calls of the kinds %v and %v have one binding", kinds[before], k)
				}
				bound[of] = i
				v.End()
			}
		}
		if len(bound) > len(kinds) {
			failed <- fmt.Errorf("got %d bindings for %d kinds of calls", len(bound), len(kinds))
		}
		close(failed)
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if _, err := io.WriteString(s.dial(t), "!"); err != nil {
		t.Fatal(err)
	}
	for err := range failed {
		t.Error(err)
	}
}

// The bindings that a session remembers are bounded, however many callers a client names.
func TestSessionsForgetBindings(t *testing.T) {
	done := make(chan bool, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, ses *yodel.Session) error {
		binding := func(caller int) any {
			v := ses.Begin("Double", yodel.JSON, nil)
			defer v.End()
			v.Caller = fmt.Sprint(caller)
			_ = v.Admit(0, true)
			_ = v.Run() // an empty request is not JSON
			return yodel.BindingOf(v)
		}
		first := binding(0)
		for i := range 100 {
			binding(i)
		}
		done <- first != binding(0)
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if _, err := io.WriteString(s.dial(t), "!"); err != nil {
		t.Fatal(err)
	}
	if !<-done {
		t.Error("the session remembers the binding of a caller that called before 99 others")
	}
}

// serveInProcess calls serve with a session of a server without a connection.
func serveInProcess(tb testing.TB, s *yodel.Server, serve func(*yodel.Session)) {
	tb.Helper()
	if err := s.ServeSession(&yodel.Peer{Addr: &net.UnixAddr{Name: "client", Net: "unix"}}, serve); err != nil {
		tb.Fatal(err)
	}
}

// A servedForm is a form of the calls that a Protocol serves.
type servedForm struct {
	name   string
	set    func(*yodel.Served)
	free   bool // the Protocol calls Free
	allocs float64
}

var servedForms = []servedForm{
	{name: "plain", allocs: 1},
	{name: "with a deadline", set: func(v *yodel.Served) { v.Call().Deadline = time.Now().Add(time.Hour) }, allocs: 1},
	{name: "of a caller", set: func(v *yodel.Served) { v.Caller = "somebody" }, allocs: 1},
	{name: "in used memory", free: true}, // except the context, which is allocated in groups
}

// serve serves a call of "Served.Echo" as a Protocol does, and returns the reply, in memory of buf.
func (f *servedForm) serve(ses *yodel.Session, body, buf []byte) ([]byte, *yodel.Error) {
	v := ses.Begin("Served.Echo", raw.Codec, nil)
	if f.free {
		defer v.Free()
	} else {
		defer v.End()
	}
	if f.set != nil {
		f.set(v)
	}
	if e := v.Admit(len(body), true); e != nil {
		return nil, e
	}
	v.Body = body
	e := v.Run()
	if e == nil {
		buf, _, e = v.AppendReply(buf[:0])
	}
	return buf, e
}

// serveEcho returns a server with a method that returns what it gets.
func serveEcho() *yodel.Server {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	return s
}

func TestAllocationsOfServedCalls(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	body, buf := make([]byte, 100), []byte(nil)
	for _, form := range servedForms {
		serveInProcess(t, serveEcho(), func(ses *yodel.Session) {
			if got := testing.AllocsPerRun(1000, func() {
				var e *yodel.Error
				if buf, e = form.serve(ses, body, buf); e != nil || len(buf) != len(body) {
					t.Errorf("got %q, %v", buf, e)
				}
			}); got != form.allocs {
				t.Errorf("a call %s makes %v allocations, want %v", form.name, got, form.allocs)
			}
		})
	}
}

// What a handler has kept of a call, its context and what CallFrom has returned, does not become
// part of a later call, although the Protocol frees the memory of each call.
func TestHandlersKeepWhatTheyHaveOfFreedCalls(t *testing.T) {
	type kept struct {
		ctx    context.Context
		call   *yodel.Call
		number string
	}
	var all []kept
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(ctx context.Context, in *raw.View) (*raw.View, error) {
		k := kept{ctx: ctx, number: string(*in)}
		if len(all)%3 == 0 {
			k.call = yodel.CallFrom(ctx)
		}
		if len(all)%5 == 0 {
			_ = ctx.Done()
		}
		all = append(all, k)
		return in, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		var last interface{ Cancel() }
		form := servedForm{free: true, set: func(v *yodel.Served) {
			if last != nil {
				last.Cancel() // of a call that has ended
			}
			last = v.Canceler()
			v.Call().Tenant = fmt.Sprint(len(all))
		}}
		for i := range 100 {
			want := fmt.Sprint(i)
			if got, e := form.serve(ses, []byte(want), nil); e != nil || string(got) != want {
				t.Errorf("call %s: got %q, %v", want, got, e)
			}
		}
		running := ses.Begin("Served.Echo", raw.Codec, nil)
		running.Call().Tenant = "of another call"
		defer running.End()
		for _, k := range all {
			if k.ctx.Err() != context.Canceled { // the same error
				t.Errorf("the context of call %s has ended with %v", k.number, k.ctx.Err())
			}
			if k.call != nil && k.call.Tenant != k.number {
				t.Errorf("the call %s has become one of %q", k.number, k.call.Tenant)
			}
			if now := yodel.CallFrom(k.ctx); now.Tenant != "" && now.Tenant != k.number || now.Method != "Served.Echo" {
				t.Errorf("the context of call %s has a call of %q", k.number, now.Tenant)
			}
		}
	})
}

// A Protocol frees calls of all kinds, and a later call is not like one before it.
func TestFreedCallsAreNotLikeEarlierOnes(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	handle(t, s, "Double", double)
	handle(t, s, "Fail", func(context.Context, *int) (*int, error) { return nil, yodel.Errorf(yodel.NotFound, "no") })
	handle(t, s, "Panic", func(context.Context, *int) (*int, error) { panic("on purpose") })
	handle(t, s, "Later", func(ctx context.Context, n *int) (*int, error) {
		later := yodel.CallFrom(ctx).Later()
		go later(n, nil)
		return nil, nil
	})
	handle(t, s, "Trailer", func(ctx context.Context, n *int) (*int, error) {
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"key": "value"}
		return n, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		for i := range 200 {
			method := []string{"Double", "Fail", "Panic", "Later", "Trailer", "Nothing", "Double"}[i%7]
			v := ses.Begin(method, yodel.JSON, nil)
			if c := v.Call(); v.Body != nil || v.Outcome() != nil || c.Trailer != nil || c.Metadata != nil || !c.Deadline.IsZero() || c.OneWay || c.Method != method {
				t.Errorf("call %d begins with %+v", i, c)
			}
			if i%3 == 0 {
				v.Call().Metadata, v.Call().Deadline = yodel.Metadata{"key": "value"}, time.Now().Add(time.Hour)
			}
			v.Call().OneWay = i%11 == 10
			v.Body = []byte("4")
			if e := v.Admit(1, true); e != nil {
				t.Error(e)
			}
			want := map[string]yodel.Code{"Fail": yodel.NotFound, "Panic": yodel.Internal, "Nothing": yodel.Unimplemented}[method]
			if e := v.Run(); yodel.CodeOf(asError(e)) != want {
				t.Errorf("call %d: got %v, want %v", i, e, want)
			}
			if reply, _, e := v.AppendReply(nil); e == nil && string(reply) != map[string]string{"Double": "8"}[method] && string(reply) != "4" {
				t.Errorf("call %d: got %s", i, reply)
			}
			v.Free()
			v.Free() // does nothing
		}
	})
}

// Goroutines that handlers have left behind look for their calls while the server uses the memory
// of those that were freed. Each finds its own call, or only the name of the method.
func TestFreedCallsOfManyGoroutines(t *testing.T) {
	var left sync.WaitGroup
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(ctx context.Context, in *raw.View) (*raw.View, error) {
		want := string(*in)
		if (*in)[len(*in)-1] == '0' {
			left.Go(func() {
				for range 20 {
					if call := yodel.CallFrom(ctx); call.Tenant != "" && call.Tenant != want {
						t.Errorf("call %s has become call %s", want, call.Tenant)
					}
					runtime.Gosched()
				}
				<-ctx.Done()
			})
		}
		return in, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		var protocol sync.WaitGroup
		defer protocol.Wait()
		for i := range 8 {
			protocol.Go(func() {
				var buf []byte
				for j := range 1000 {
					want := fmt.Sprintf("%d.%d", i, j)
					form := servedForm{free: true, set: func(v *yodel.Served) { v.Call().Tenant = want }}
					var e *yodel.Error
					if buf, e = form.serve(ses, []byte(want), buf); e != nil || string(buf) != want {
						t.Errorf("call %s: got %q, %v", want, buf, e)
					}
				}
			})
		}
	})
	left.Wait()
}

// asError returns e as an error, which is nil if e is.
func asError(e *yodel.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// BenchmarkServed measures what the server does for a call in another protocol, without that
// protocol.
func BenchmarkServed(b *testing.B) {
	s, body := serveEcho(), make([]byte, 100)
	for _, form := range servedForms {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			serveInProcess(b, s, func(ses *yodel.Session) {
				var buf []byte
				for b.Loop() {
					var e *yodel.Error
					if buf, e = form.serve(ses, body, buf); e != nil {
						b.Error(e)
						return
					}
				}
			})
		})
	}
}

// A method that counts as short runs where requests are read. When it blocks, another goroutine
// reads on, so that a later request of the same client can end it.
func TestAShortMethodOfAProtocolBlocks(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{})
	release := make(chan struct{})
	handle(t, s.Server, "Wait", func(context.Context, *int) (*int, error) {
		<-release
		return new(1), nil
	})
	handle(t, s.Server, "Release", func(context.Context, *int) (*int, error) {
		close(release)
		return new(2), nil
	})
	handle(t, s.Server, "Exit", func(context.Context, *int) (*int, error) {
		runtime.Goexit()
		return nil, nil
	})
	s.MarkInline("Wait", "Release", "Exit")
	c := s.dial(t)
	replies := bufio.NewReader(c)
	line := func() string {
		line, err := replies.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	for _, method := range []string{"Wait", "Release"} {
		if _, err := io.WriteString(c, request(method, "0")); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := line(), line(); first+second != "1\n2\n" && first+second != "2\n1\n" {
		t.Errorf("got %q and %q", first, second)
	}
	for range 2 {
		if _, err := io.WriteString(c, request("Exit", "0")); err != nil {
			t.Fatal(err)
		}
		if got := line(); !strings.Contains(got, "YDL5002") {
			t.Errorf("a handler that ends its goroutine: got %q", got)
		}
	}
}
