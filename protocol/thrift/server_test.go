// SPDX-License-Identifier: Apache-2.0

package thrift_test

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
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/transport/mem"
)

type Point struct {
	X int32 `thrift:"x,1"`
	Y int32 `thrift:"y,2"`
}

// A Pair has a struct as its first argument.
type Pair struct {
	_ struct{} `thrift:",args"`
	P *Point   `thrift:"p,1"`
	Q *Point   `thrift:"q,2"`
}

// A ZeroError is a declared exception.
type ZeroError struct {
	Dividend int32 `thrift:"dividend,1"`
}

func (e *ZeroError) Error() string { return fmt.Sprintf("%d by zero", e.Dividend) }

// Arith is the service of the tests.
type Arith struct {
	began   chan string
	release chan struct{}
}

func (*Arith) Add(_ context.Context, a, b int32) (int32, error) { return a + b, nil }
func (*Arith) Neg(_ context.Context, n *int32) (*int32, error)  { return new(-*n), nil }
func (*Arith) Move(_ context.Context, p *Point) (*Point, error) { return &Point{p.Y, p.X}, nil }
func (*Arith) Nothing(context.Context, bool) error              { return nil }
func (*Arith) Empty(context.Context, *Point) (*struct{}, error) { return &struct{}{}, nil }
func (*Arith) Not(_ context.Context, b bool) (bool, error)      { return !b, nil }
func (*Arith) DivMod(_ context.Context, a, b int32) (int32, int32, error) {
	return a / b, a % b, nil
}

func (*Arith) Div(_ context.Context, a, b int32) (int32, error) {
	if b == 0 {
		return 0, fmt.Errorf("cannot divide: %w", &ZeroError{a})
	}
	return a / b, nil
}

func (*Arith) Both(_ context.Context, p *Pair) (string, error) {
	return fmt.Sprint(p.P != nil, p.Q != nil), nil
}

func (*Arith) Refuse(context.Context, *Point) (*Point, error) {
	return nil, yodel.Errorf(yodel.NotFound, "no such point")
}

func (a *Arith) Wait(_ context.Context, name string) (string, error) {
	a.began <- name
	<-a.release
	return name, nil
}

// Plain has no service.
func plain(_ context.Context, name *string) (*string, error) { return new("hello " + *name), nil }

// A served is a yodel server that Thrift clients call.
type served struct {
	*yodel.Server
	*Arith
	addr string
	log  *testserve.Log
}

func serve(t testing.TB, o *thrift.Options, so yodel.ServerOptions) *served {
	t.Helper()
	s := &served{Arith: &Arith{began: make(chan string, 100), release: make(chan struct{})}, log: new(testserve.Log)}
	so.Protocols = []yodel.Protocol{thrift.New(o)}
	so.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	if so.Codecs == nil {
		so.Codecs = codecs
	}
	s.Server = yodel.NewServer(&so)
	if err := errors.Join(s.Register(s.Arith), s.Handle("plain", plain)); err != nil {
		t.Fatal(err)
	}
	l := testserve.Listen(t)
	s.addr = l.Addr().String()
	testserve.Run(t, s.Server, l)
	return s
}

// raw returns a connection and the reader of its replies.
func (s *served) raw(t testing.TB) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn, bufio.NewReader(conn)
}

// ask sends bytes and returns a reply.
func ask(t testing.TB, d dialect, conn io.Writer, replies *bufio.Reader, request []byte) *result {
	t.Helper()
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	r, err := d.read(replies)
	if err != nil {
		t.Fatalf("%v: %v", d, err)
	}
	return r
}

func TestMethodsAndArguments(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{})
	for _, d := range dialects {
		conn, replies := s.raw(t)
		for i, test := range []struct {
			name string
			args []any
			want any // nil: there is no result
		}{
			{"Add", []any{int32(3), int32(4)}, int32(7)},
			{"add", []any{int32(3), int32(4)}, int32(7)},
			{"Arith:add", []any{int32(3), int32(4)}, int32(7)},
			{"add", []any{int32(3)}, int32(3)},                   // a missing argument
			{"add", []any{int32(3), int32(4), "more"}, int32(7)}, // an unknown one
			{"neg", []any{int32(3)}, int32(-3)},                  // one message
			{"neg", nil, int32(0)},                               //
			{"move", []any{&Point{1, 2}}, Point{2, 1}},           // a struct as the only argument
			{"move", []any{int32(1), int32(2)}, Point{2, 1}},     // its fields are the arguments
			{"both", []any{&Point{}}, "true false"},              // the same, for a marked type
			{"both", []any{&Point{}, &Point{}}, "true true"},     //nolint:dupword // it is no sentence
			{"not", []any{true}, false},                          // without a byte in the compact protocol
			{"nothing", []any{true}, nil},                        // void
			{"empty", []any{&Point{}}, struct{}{}},               //
			{"div", []any{int32(7), int32(2)}, int32(3)},         // with a declared exception
			{":plain", []any{"you"}, "hello you"},                // without a service
		} {
			r := ask(t, d, conn, replies, d.call(int32(-i), test.name, test.args...))
			_, method, ok := strings.Cut(test.name, ":")
			if !ok {
				method = test.name
			}
			want := thriftwire.Header{Format: d.format, NotStrict: d.old, Type: thriftwire.Reply, Seq: int32(-i), Name: method}
			var result []byte
			if test.want != nil {
				result = d.encode(test.want)[0]
			}
			if r.Header != want || !bytes.Equal(r.fields[0], result) || len(r.fields) > 1 {
				t.Errorf("%v, %s%v: got %+v, %x, want %+v, %x", d, test.name, test.args, r.Header, r.fields, want, result)
			}
		}
	}
}

func TestErrorsOfCalls(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 10_000}})
	for _, d := range dialects {
		conn, replies := s.raw(t)
		for name, test := range map[string]struct {
			request []byte
			number  int32
			says    string
		}{
			"no method":         {d.call(1, "nope", int32(1)), 1, "unimplemented: "},
			"no service":        {d.call(1, "Nope:add", int32(1)), 1, "unimplemented: "},
			"a handler's error": {d.call(1, "div", int32(1), int32(0)), 6, "cannot divide: 1 by zero"},
			"a code":            {d.call(1, "refuse", &Point{}), 6, "not_found: no such point"},
			"another type":      {d.call(1, "add", "x"), 7, "invalid_argument: "},
			"another struct": {d.call(1, "move", &struct {
				S string `thrift:"1"`
			}{}), 7, "string, want i32"},
			"several results": {d.call(1, "divMod", int32(1), int32(1)), 1, "returns 2 values"},
			"too large":       {d.call(1, "move", strings.Repeat("x", 12_000)), 6, "limit is 10000"},
		} {
			r := ask(t, d, conn, replies, test.request)
			text, number := d.exception(r)
			if r.Type != thriftwire.Exception || r.Seq != 1 || number != test.number || !strings.Contains(text, test.says) {
				t.Errorf("%v, %s: got %+v, number %d, %q", d, name, r.Header, number, text)
			}
		}
		if r := ask(t, d, conn, replies, d.call(2, "add", int32(1), int32(1))); r.Type != thriftwire.Reply {
			t.Errorf("%v: the connection is not usable: %+v", d, r)
		}
	}
}

func TestDeclaredExceptions(t *testing.T) {
	throws := thrift.Throws{"Arith.Div": {2: (*ZeroError)(nil), 1: (*net.OpError)(nil), 3: nil}}
	s := serve(t, &thrift.Options{Service: "Arith", Throws: throws}, yodel.ServerOptions{})
	for _, d := range dialects {
		conn, replies := s.raw(t)
		r := ask(t, d, conn, replies, d.call(1, "div", int32(9), int32(0)))
		if want := d.encode(&ZeroError{9})[0]; r.Type != thriftwire.Reply || len(r.fields) != 1 || !bytes.Equal(r.fields[2], want) {
			t.Errorf("%v: got %+v, %x", d, r.Header, r.fields)
		}
	}
}

// A client gets a declared exception as it is, so the server does not log it as a hidden error. An
// exception may have a code, for logs and metrics.
func TestDeclaredExceptionsAreNotHidden(t *testing.T) {
	throws := thrift.Throws{"Arith.Div": {2: (*ZeroError)(nil)}, "Arith.Half": {1: (*ZeroError)(nil)}}
	for _, declared := range []bool{true, false} {
		o := &thrift.Options{Service: "Arith"}
		if declared {
			o.Throws = throws
		}
		s := serve(t, o, yodel.ServerOptions{HideErrors: true})
		if err := s.Handle("Arith.Half", func(_ context.Context, n int32) (int32, error) {
			return 0, yodel.Errorf(yodel.InvalidArgument, "no half: %w", &ZeroError{n})
		}); err != nil {
			t.Fatal(err)
		}
		for _, d := range dialects {
			conn, replies := s.raw(t)
			thrown := d.encode(&ZeroError{9})[0]
			r := ask(t, d, conn, replies, d.call(1, "div", int32(9), int32(0)))
			if got := r.Type == thriftwire.Reply && bytes.Equal(r.fields[2], thrown); got != declared {
				t.Errorf("declared %t, %v: got %+v, %x", declared, d, r.Header, r.fields)
			}
			r = ask(t, d, conn, replies, d.call(2, "half", int32(9)))
			if got := r.Type == thriftwire.Reply && bytes.Equal(r.fields[1], thrown); got != declared {
				t.Errorf("declared %t, %v, with a code: got %+v, %x", declared, d, r.Header, r.fields)
			}
		}
		if logged := strings.Contains(s.log.String(), "hiddenError"); logged == declared {
			t.Errorf("declared %t: the log has hidden errors: %t\n%s", declared, logged, s.log)
		}
		s.awaitErrors(t, "Arith.Half", "invalid_argument", uint64(len(dialects)))
	}
}

// awaitErrors waits until the statistics count n errors of a method with a code. A call is counted
// after its reply has been sent.
func (s *served) awaitErrors(t *testing.T, method, code string, n uint64) {
	t.Helper()
	var got map[string]uint64
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		for _, m := range s.Stats().Methods {
			if m.Name == method {
				got = m.Errors
			}
		}
		if got[code] == n {
			return
		}
	}
	t.Errorf("%s: the errors are %v, want %d times %s", method, got, n, code)
}

// A oneway call is executed, and nothing at all is sent back.
func TestOneWay(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith", OneWay: []string{"Arith.Neg"}}, yodel.ServerOptions{})
	for _, d := range dialects {
		conn, replies := s.raw(t)
		requests := d.call(1, "neg", int32(1))                                  // as Apache's client for Go sends a oneway call
		for _, name := range []string{"add", "nope", "div", "divMod", "move"} { // some succeed
			requests = append(requests, d.message(thriftwire.Header{Type: thriftwire.OneWay, Seq: 1, Name: name}, d.encode(int32(1), int32(0))...)...)
		}
		if r := ask(t, d, conn, replies, append(requests, d.call(2, "add", int32(1), int32(1))...)); r.Seq != 2 {
			t.Errorf("%v: got %+v, %x", d, r.Header, r.fields)
		}
	}
	if got := s.Stats().Methods; len(got) == 0 {
		t.Error("no oneway call was executed")
	}
}

func TestPipelinedRequests(t *testing.T) {
	for _, concurrent := range []bool{false, true} {
		s := serve(t, &thrift.Options{Service: "Arith", Concurrent: concurrent}, yodel.ServerOptions{})
		d := dialects[0]
		conn, replies := s.raw(t)
		var requests []byte
		for seq, name := range []string{"wait", "add", "nope"} {
			args := []any{"x"}
			if name == "add" {
				args = []any{int32(1), int32(2)}
			}
			requests = append(requests, d.call(int32(seq+1), name, args...)...)
		}
		if _, err := conn.Write(requests); err != nil {
			t.Fatal(err)
		}
		<-s.began
		var order []int32
		for i := range 3 {
			if !concurrent && i == 0 || concurrent && i == 2 {
				close(s.release)
			}
			r, err := d.read(replies)
			if err != nil {
				t.Fatal(err)
			}
			order = append(order, r.Seq)
		}
		if order[0] == 1 && concurrent || !concurrent && fmt.Sprint(order) != "[1 2 3]" {
			t.Errorf("concurrent %t: the replies came in the order %v", concurrent, order)
		}
	}
}

// Clients that cannot be served are named in the log.
func TestOthersAreNamed(t *testing.T) {
	s := serve(t, nil, yodel.ServerOptions{Codecs: codecs[:1]})
	for first, says := range map[string]string{
		"\x00\x00\x00\x20\x0f\xff\x00\x00":    "THeader",
		`[1,"add",1,0,{}]`:                    "TJSONProtocol",
		"x\x01\x4b\x4c\x02\x00":               "TZlibTransport",
		"x\x5e\x4b\x4c\x02\x00":               "TZlibTransport",
		"x\x9c\x4b\x4c\x02\x00":               "TZlibTransport",
		"x\xda\x4b\x4c\x02\x00":               "TZlibTransport",
		"\x00\x00\x00\x10x\x9c\x4b\x4c":       "TZlibTransport",
		string(dialects[4].call(1, "add", 1)): "thrift-compact",
		string(dialects[0].message(thriftwire.Header{Type: thriftwire.Reply, Name: "add"})): "message of type 2",
	} {
		conn, replies := s.raw(t)
		if _, err := io.WriteString(conn, first); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(replies); len(b) > 0 {
			t.Errorf("%q: got %q, %v", first, b, err)
		}
		for end := time.Now().Add(5 * time.Second); !strings.Contains(s.log.String(), says); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not in the log:\n%s", says, s.log.String())
			}
		}
	}
}

// Requests that announce more than they send take no memory for it.
func TestMemoryGrowsWithTheRequest(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{MaxMemory: 1 << 20, Limits: yodel.Limits{MaxMessage: 64 << 20}})
	d := dialects[0]
	conn, replies := s.raw(t)
	request := d.call(1, "move", strings.Repeat("x", 4<<20))
	r := ask(t, d, conn, replies, request)
	if text, _ := d.exception(r); !strings.Contains(text, "no memory") {
		t.Errorf("got %q, %x", text, r.fields)
	}
	if r = ask(t, d, conn, replies, d.call(2, "add", int32(1), int32(1))); r.Type != thriftwire.Reply {
		t.Errorf("got %+v", r)
	}
}

func FuzzMatch(f *testing.F) {
	for _, d := range dialects {
		f.Add(d.call(1, "add", int32(1)))
	}
	f.Add([]byte(`[1,"`))
	f.Add([]byte("\x00\x00\x00\x20\x0f\xff"))
	f.Add([]byte("\x08\x00\x00\x20\x80\x01"))
	f.Fuzz(func(t *testing.T, first []byte) {
		first = first[:min(len(first), 512)]
		matched := false
		for n := 1; n <= len(first); n++ {
			ok, more := thrift.Protocol.Match(first[:n])
			if matched && !ok {
				t.Fatalf("%q: it matched without the last byte", first[:n])
			}
			if matched = ok; !ok && !more {
				if ok, _ := thrift.Protocol.Match(first); ok {
					t.Fatalf("%q: it was refused after %d bytes", first, n)
				}
				return
			}
			if !ok && more && n > 6 {
				t.Fatalf("%q: it asks for more than %d bytes", first, n)
			}
		}
	})
}

// FuzzServe sends arbitrary bytes to a server, and checks that it neither panics nor hangs.
func FuzzServe(f *testing.F) {
	for _, d := range dialects {
		f.Add(d.call(1, "add", int32(1), int32(2)))
		f.Add(append(d.call(1, "move", &Point{1, 2}), d.call(2, "both", &Point{}, &Point{})...))
		f.Add(d.message(thriftwire.Header{Type: thriftwire.OneWay, Name: "Arith:not"}, d.encode(true)...))
	}
	var log testserve.Log
	network := mem.New()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: codecs, Protocols: []yodel.Protocol{thrift.New(&thrift.Options{Service: "Arith"})}, MaxMemory: 1 << 20, MaxOpen: 2,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err := s.Register(new(Arith), "Add", "Neg", "Move", "Nothing", "Empty", "Not", "DivMod", "Both"); err != nil {
		f.Fatal(err)
	}
	l, err := network.Listen("fuzz")
	if err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { ended <- s.Serve(ctx, l) }()
	f.Cleanup(func() {
		stop()
		<-ended
		if text := log.String(); text != "" {
			f.Errorf("the log: %s", text)
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		if ok, _ := thrift.Protocol.Match(b[:min(len(b), 512)]); !ok {
			return
		}
		dialing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		conn, err := network.Dial(dialing, "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			_, _ = conn.Write(b) // the server may have closed the connection
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Fatal(err)
		}
		good, err := network.Dial(dialing, "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		defer good.Close()
		if r := ask(t, dialects[0], good, bufio.NewReader(good), dialects[0].call(1, "add", int32(1), int32(2))); r.Type != thriftwire.Reply {
			t.Fatalf("another client got %+v", r)
		}
	})
}
