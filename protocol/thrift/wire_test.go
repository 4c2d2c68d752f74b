// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// calling returns a client that calls a Thrift server.
func calling(t testing.TB, d dialect, addr string, o thrift.WireOptions, co yodel.ClientOptions) *yodel.Client {
	t.Helper()
	o.Unframed = !d.framed
	co.Codec = codecs[d.format]
	co.Wires = []yodel.Wire{thrift.Wire(co.Codec, &o)}
	c := yodel.NewClient(discovery.Static("thrift://"+addr), &co)
	t.Cleanup(c.Close)
	return c
}

// wireDialects are those that a Wire speaks.
var wireDialects = []dialect{dialects[0], dialects[2], dialects[4], dialects[5]}

func TestWire(t *testing.T) {
	throws := thrift.Throws{"Arith.Div": {1: (*ZeroError)(nil)}}
	for _, d := range wireDialects {
		t.Run(d.String(), func(t *testing.T) {
			s := serve(t, &thrift.Options{Service: "Arith", Throws: throws}, yodel.ServerOptions{})
			for _, multiplexed := range []bool{false, true} {
				c := calling(t, d, s.addr, thrift.WireOptions{Service: "Arith", Multiplexed: multiplexed, Throws: throws}, yodel.ClientOptions{})
				checkCalls(t, c)
			}
		})
	}
}

// A call of another service than the server's is not sent, because the server would execute its own
// method of this name.
func TestWireOfOneService(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{})
	for _, multiplexed := range []bool{false, true} {
		c := calling(t, dialects[2], s.addr, thrift.WireOptions{Service: "Arith", Multiplexed: multiplexed}, yodel.ClientOptions{})
		var neg int32
		if err := c.Call(t.Context(), "Arith.Neg", new(int32(3)), &neg); err != nil || neg != -3 {
			t.Errorf("got %d, %v", neg, err)
		}
		err := c.Call(t.Context(), "Billing.Neg", new(int32(3)), new(int32))
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.ID != "YDL2001" || e.Code != yodel.Unimplemented || !e.NotProcessed || !strings.Contains(e.Message, "has the service Arith") {
			t.Errorf("got %v", err)
		}
	}
}

// checkCalls calls the methods of Arith.
func checkCalls(t *testing.T, c *yodel.Client) {
	t.Helper()
	var sum int32
	if err := c.Call(t.Context(), "Arith.Add", yodel.Values{int32(3), int32(4)}, yodel.Values{&sum}); err != nil || sum != 7 {
		t.Errorf("Add: got %d, %v", sum, err)
	}
	if err := c.Call(t.Context(), "Arith.Neg", new(int32(3)), &sum); err != nil || sum != -3 {
		t.Errorf("Neg: got %d, %v", sum, err)
	}
	var p Point
	if err := c.Call(t.Context(), "Arith.Move", &Point{1, 2}, &p); err != nil || p != (Point{2, 1}) {
		t.Errorf("Move: got %v, %v", p, err)
	}
	var text string
	if err := c.Call(t.Context(), "Arith.Both", &Pair{P: &Point{}}, &text); err != nil || text != "true false" {
		t.Errorf("Both: got %q, %v", text, err)
	}
	not := true
	if err := c.Call(t.Context(), "Arith.Not", yodel.Values{true}, yodel.Values{&not}); err != nil || not {
		t.Errorf("Not: got %t, %v", not, err)
	}
	if err := c.Call(t.Context(), "Arith.Nothing", yodel.Values{true}, yodel.Values{}); err != nil {
		t.Errorf("Nothing: got %v", err)
	}
	if err := c.Call(t.Context(), "Arith.Empty", &Point{}, &struct{}{}); err != nil {
		t.Errorf("Empty: got %v", err)
	}
	var zero *ZeroError
	err := c.Call(t.Context(), "Arith.Div", yodel.Values{int32(9), int32(0)}, yodel.Values{&sum})
	if !errors.As(err, &zero) || zero.Dividend != 9 || yodel.CodeOf(err) != yodel.Unknown {
		t.Errorf("Div: got %v", err)
	}
	if err := c.Notify(t.Context(), "Arith.Add", yodel.Values{int32(1), int32(2)}); err != nil {
		t.Errorf("a oneway call: %v", err)
	}
	var e yodel.Encoded
	if err := c.Call(t.Context(), "Arith.Move", &Point{1, 2}, &e); err != nil {
		t.Errorf("Move: %v", err)
	}
	if err := c.Call(t.Context(), "Arith.Move", &e, &p); err != nil || p != (Point{1, 2}) {
		t.Errorf("Move of an encoded message: got %v, %v", p, err)
	}
	if err := c.Call(t.Context(), "Arith.Add", yodel.Values{int32(1), int32(2)}, &e); err != nil || !e.Several {
		t.Errorf("Add: got %x, %v", e.Body, err)
	}
}

func TestErrorsOfWire(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith", Throws: thrift.Throws{"Arith.Div": {1: (*ZeroError)(nil)}}}, yodel.ServerOptions{})
	for _, d := range wireDialects {
		c := calling(t, d, s.addr, thrift.WireOptions{Service: "Arith"}, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 100_000}})
		for name, test := range map[string]struct {
			call *yodel.Call
			code yodel.Code
			says string
			sent bool // it may have been executed
		}{
			"a code":            {&yodel.Call{Method: "Arith.Refuse", Args: &Point{}, Reply: new(Point)}, yodel.NotFound, "no such point", true},
			"not declared":      {&yodel.Call{Method: "Arith.Div", Args: yodel.Values{int32(1), int32(0)}, Reply: yodel.Values{new(int32)}}, yodel.Unknown, "exception of field 1", true},
			"no method":         {&yodel.Call{Method: "Arith.Nope", Args: &Point{}, Reply: new(Point)}, yodel.Unimplemented, "no method", false},
			"another type":      {&yodel.Call{Method: "Arith.Move", Args: new("x"), Reply: new(Point)}, yodel.InvalidArgument, "want i32", true},
			"another result":    {&yodel.Call{Method: "Arith.Move", Args: &Point{}, Reply: new(string)}, yodel.Internal, "does not fit", true},
			"no result":         {&yodel.Call{Method: "Arith.Nothing", Args: new(true), Reply: new(string)}, yodel.Internal, "no result", true},
			"a channel":         {&yodel.Call{Method: "Arith.Move", Args: make(chan int)}, yodel.InvalidArgument, "no type of Thrift", false},
			"a value":           {&yodel.Call{Method: "Arith.Add", Args: yodel.Values{int32(1), make(chan int)}, Reply: yodel.Values{new(int32)}}, yodel.InvalidArgument, "value 2", false},
			"an argument twice": {&yodel.Call{Method: "Arith.Both", Args: yodel.Values{&Pair{}, &Pair{}}, Reply: yodel.Values{new(string)}}, yodel.InvalidArgument, "part of others", false},
			"several results":   {&yodel.Call{Method: "Arith.DivMod", Args: yodel.Values{int32(1), int32(1)}, Reply: yodel.Values{new(int32), new(int32)}}, yodel.Unimplemented, "several results", false},
			"metadata":          {&yodel.Call{Method: "Arith.Move", Args: &Point{}, Metadata: yodel.Metadata{"a": "b"}}, yodel.Unimplemented, "metadata", false},
			"an attachment":     {&yodel.Call{Method: "Arith.Move", Args: &Point{}, Attachment: []byte("x")}, yodel.Unimplemented, "attachments", false},
			"another codec":     {&yodel.Call{Method: "Arith.Move", Args: &yodel.Encoded{}, Codec: yodel.JSON}, yodel.InvalidArgument, "encoded already", false},
			"nothing encoded":   {&yodel.Call{Method: "Arith.Move", Args: &yodel.Encoded{}}, yodel.InvalidArgument, "empty", false},
			"too large":         {&yodel.Call{Method: "Arith.Move", Args: new(strings.Repeat("x", 200_000))}, yodel.ResourceExhausted, "limit", false},
			"an ordered call":   {&yodel.Call{Method: "Arith.Move", Args: &Point{}, Ordered: true}, yodel.FailedPrecondition, "no order", false},
		} {
			err := c.Do(t.Context(), test.call)
			if yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || yodel.NotProcessed(err) == test.sent {
				t.Errorf("%v, %s: got %v (not processed: %t), want %v with %q", d, name, err, yodel.NotProcessed(err), test.code, test.says)
			}
			var p Point
			if err := c.Call(t.Context(), "Arith.Move", &Point{1, 2}, &p); err != nil || p != (Point{2, 1}) {
				t.Errorf("%v, %s, the next call: got %v, %v", d, name, p, err)
			}
		}
		for _, err := range yodel.Feed[Point, Point]("Arith.Move").Call(t.Context(), c, &Point{}) {
			if yodel.CodeOf(err) != yodel.Unimplemented || !strings.Contains(err.Error(), "no streams") {
				t.Errorf("a stream: got %v", err)
			}
		}
		if stats := c.Stats().Endpoints[0]; stats.Protocol != "thrift" || len(stats.Conns) != 1 {
			t.Errorf("%v: got the counters %+v", d, stats)
		}
	}
}

// A connection carries one call at a time, unless the calls are concurrent.
func TestCallsOfOneConnection(t *testing.T) {
	for _, concurrent := range []bool{false, true} {
		s := serve(t, &thrift.Options{Service: "Arith", Concurrent: true}, yodel.ServerOptions{})
		c := calling(t, dialects[2], s.addr, thrift.WireOptions{Service: "Arith", Concurrent: concurrent}, yodel.ClientOptions{})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				var got string
				if err := c.Call(t.Context(), "Arith.Wait", yodel.Values{fmt.Sprint(i)}, yodel.Values{&got}); err != nil || got != fmt.Sprint(i) {
					t.Errorf("call %d: got %q, %v", i, got, err)
				}
			})
		}
		<-s.began
		if concurrent {
			<-s.began
			<-s.began
		} else {
			select {
			case <-s.began:
				t.Error("two calls run at a time")
			case <-time.After(20 * time.Millisecond): // a correct link passes in any case
			}
		}
		close(s.release)
		all.Wait()
	}
}

// A caller that stops waiting leaves the connection occupied until the reply comes. The next caller
// does not get that reply.
func TestLateReply(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{})
	c := calling(t, dialects[2], s.addr, thrift.WireOptions{Service: "Arith"}, yodel.ClientOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		first <- c.Call(ctx, "Arith.Wait", yodel.Values{"first"}, yodel.Values{new(string)})
	}()
	<-s.began
	cancel()
	if err := <-first; yodel.CodeOf(err) != yodel.Canceled {
		t.Errorf("got %v", err)
	}
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if err := c.Call(short, "Arith.Add", yodel.Values{int32(1), int32(2)}, yodel.Values{new(int32)}); yodel.CodeOf(err) != yodel.DeadlineExceeded || !yodel.NotProcessed(err) {
		t.Errorf("a call behind it: got %v", err)
	}
	close(s.release)
	var sum int32
	if err := c.Call(t.Context(), "Arith.Add", yodel.Values{int32(1), int32(2)}, yodel.Values{&sum}); err != nil || sum != 3 {
		t.Errorf("got %d, %v", sum, err)
	}
}

// answering starts a server that sends the bytes that answer returns, and closes the connection.
func answering(t *testing.T, answer func(request *bufio.Reader) []byte) (addr string) {
	t.Helper()
	return testserve.Accept(t, "", func(conn net.Conn) {
		_, _ = conn.Write(answer(bufio.NewReader(conn))) // the client may have left
	}).Addr
}

// Servers that break the protocol, or go beyond limits, fail the call.
func TestBadServers(t *testing.T) {
	d := dialect{framed: true}
	reply := func(seq int32, kind byte, fields ...[]byte) []byte {
		return d.message(thriftwire.Header{Type: kind, Seq: seq, Name: "Move"}, fields...)
	}
	for name, test := range map[string]struct {
		reply []byte
		code  yodel.Code
		says  string
	}{
		"another number":  {reply(7, thriftwire.Reply), yodel.Unavailable, "which no request waits for"},
		"negative number": {reply(-1, thriftwire.Reply), yodel.Unavailable, "number -1"},
		"a call":          {reply(1, thriftwire.Call), yodel.Unavailable, "message of type 1"},
		"another format":  {dialect{format: thriftwire.Compact, framed: true}.message(thriftwire.Header{Type: thriftwire.Reply, Seq: 1}), yodel.Unavailable, "compact protocol"},
		"garbage":         {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), yodel.Unavailable, ""},
		"cut":             {reply(1, thriftwire.Reply)[:12], yodel.Unavailable, ""},
		"damaged":         {d.frame(append(thriftwire.AppendHeader(nil, &thriftwire.Header{Type: thriftwire.Reply, Seq: 1}), 0xff)), yodel.Internal, "does not fit"},
		"too large":       {reply(1, thriftwire.Reply, make([]byte, 20_000)), yodel.ResourceExhausted, "limit is 10000"},
		"text alone":      {reply(1, thriftwire.Exception, d.encode("oh")...), yodel.Unknown, "oh"},
		"unknown method":  {reply(1, thriftwire.Exception, d.encode("oh", int32(1))...), yodel.Unimplemented, "oh"},
		"protocol error":  {reply(1, thriftwire.Exception, d.encode("oh", int32(7))...), yodel.InvalidArgument, "oh"},
		"unsupported":     {reply(1, thriftwire.Exception, d.encode("oh", int32(9))...), yodel.Unimplemented, "oh"},
		"empty exception": {reply(1, thriftwire.Exception), yodel.Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr := answering(t, func(request *bufio.Reader) []byte {
				if _, err := d.read(request); err != nil {
					return nil
				}
				return test.reply
			})
			c := calling(t, d, addr, thrift.WireOptions{Service: "Arith"}, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 10_000}})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := c.Do(ctx, &yodel.Call{Method: "Arith.Move", Args: &Point{}, Reply: new(Point)})
			if yodel.CodeOf(err) != test.code || !strings.Contains(fmt.Sprintf("%+v", err), test.says) {
				t.Errorf("got %v, want %v with %q", err, test.code, test.says)
			}
		})
	}
}

func TestWireNeedsACodecOfThrift(t *testing.T) {
	for _, codec := range []yodel.Codec{nil, yodel.JSON} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != `thrift: Wire needs the codec "thrift" or "thrift-compact"` {
					t.Errorf("Wire panicked with %s", got)
				}
			}()
			thrift.Wire(codec, nil)
		}()
	}
}

// Calls that would wait for others use further connections, as many as the client allows.
func TestFurtherConnections(t *testing.T) {
	s := serve(t, &thrift.Options{Service: "Arith"}, yodel.ServerOptions{})
	c := calling(t, dialects[2], s.addr, thrift.WireOptions{Service: "Arith"}, yodel.ClientOptions{ConnsPerEndpoint: 3})
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if err := c.Call(t.Context(), "Arith.Wait", yodel.Values{"x"}, yodel.Values{new(string)}); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		})
		select {
		case <-s.began:
		case <-time.After(10 * time.Second):
			t.Errorf("call %d waits for the others", i)
		}
	}
	if n := len(c.Stats().Endpoints[0].Conns); n != 3 {
		t.Errorf("%d connections were made, want 3", n)
	}
	close(s.release)
	all.Wait()
}

// The server would throw an exception that the client cannot decode, after it has executed the
// method.
func TestWireNeedsExceptionsThatTheCodecCarries(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "thrift: the exception 1 of Arith.Div: ") || !strings.Contains(got, "chan int") {
			t.Errorf("Wire panicked with %s", got)
		}
	}()
	thrift.Wire(codec.Codec, &thrift.WireOptions{Throws: thrift.Throws{"Arith.Div": {1: (*broken)(nil)}}})
}

type broken struct {
	C chan int `thrift:"1"`
}

func (*broken) Error() string { return "broken" }

// A declared exception is an error of the handler. The server counts it by its code, which the
// client gets too: Unknown without one, as for an error of a handler over any protocol.
func TestDeclaredExceptionsAreCountedByTheirCodes(t *testing.T) {
	throws := thrift.Throws{"Arith.Take": {1: (*ZeroError)(nil), 2: (*soldOut)(nil)}}
	s := serve(t, &thrift.Options{Service: "Arith", Throws: throws}, yodel.ServerOptions{})
	if err := s.Handle("Arith.Take", func(_ context.Context, n int32) (int32, error) {
		if n == 0 {
			return 0, &ZeroError{n}
		}
		return 0, &soldOut{n}
	}); err != nil {
		t.Fatal(err)
	}
	for i, d := range wireDialects {
		c := calling(t, d, s.addr, thrift.WireOptions{Service: "Arith", Throws: throws}, yodel.ClientOptions{})
		for n, want := range []yodel.Code{yodel.Unknown, yodel.NotFound} {
			err := c.Call(t.Context(), "Arith.Take", yodel.Values{int32(n)}, yodel.Values{new(int32)})
			_, typed := errors.AsType[*soldOut](err)
			if yodel.CodeOf(err) != want || typed != (n == 1) {
				t.Errorf("%v: got %v, want %v", d, err, want)
			}
		}
		s.awaitErrors(t, "Arith.Take", "unknown", uint64(i+1))
		s.awaitErrors(t, "Arith.Take", "not_found", uint64(i+1))
	}
}

type soldOut struct {
	N int32 `thrift:"1"`
}

func (*soldOut) Error() string { return "sold out" }
func (*soldOut) Unwrap() error { return yodel.NotFound }
