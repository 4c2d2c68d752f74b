// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

func TestCallReturnsReply(t *testing.T) {
	c := connect(t, newServer(t, nil), nil)
	reply, err := Mul.Call(t.Context(), c, &Args{7, 8})
	if err != nil || reply.C != 56 {
		t.Errorf("typed: got %v, %v, want 56", reply, err)
	}
	var sum int
	if err := c.Call(t.Context(), "Arith.Add", &Args{7, 8}, &sum); err != nil || sum != 15 {
		t.Errorf("by name: got %d, %v, want 15", sum, err)
	}
	if err := c.Call(t.Context(), "Arith.Mul", Args{7, 8}, nil); err != nil {
		t.Errorf("a value as argument and no reply: %v", err)
	}
	if err := c.Call(t.Context(), "Arith.Mul", nil, reply); err != nil || reply.C != 0 {
		t.Errorf("no argument: got %v, %v, want the zero message's product, 0", reply, err)
	}
}

func TestHandlerErrorsKeepTheirCodeMessageAndDetails(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Fail", func(context.Context, *Empty) (*Empty, error) {
		return nil, &yodel.Error{Code: yodel.NotFound, Message: "no such book", Details: []yodel.Detail{{Type: "shelf", Value: []byte{0, 1, 255}}, {Type: "none"}}}
	})
	handle(t, s, "FailPlainly", func(context.Context, *Empty) (*Empty, error) { return nil, fmt.Errorf("out of %s", "paper") })
	handle(t, s, "FailWrapped", func(context.Context, *Empty) (*Empty, error) {
		return nil, fmt.Errorf("shelf 7: %w", &yodel.Error{Code: yodel.Aborted, Message: "taken", Details: []yodel.Detail{{Type: "t", Value: []byte("x")}}})
	})
	handle(t, s, "FailWithCode", func(context.Context, *Empty) (*Empty, error) { return nil, yodel.OutOfRange })
	c := connect(t, s, nil)
	for _, test := range []struct {
		method  string
		code    yodel.Code
		text    string
		details string
	}{
		{"Fail", yodel.NotFound, "not_found: no such book", "[{shelf [0 1 255]} {none []}]"},
		{"FailPlainly", yodel.Unknown, "unknown: out of paper", "[]"},
		{"FailWrapped", yodel.Aborted, "aborted: shelf 7: aborted: taken", "[{t [120]}]"},
		{"FailWithCode", yodel.OutOfRange, "out_of_range: out_of_range", "[]"},
	} {
		e := wantError(t, c.Call(t.Context(), test.method, &Empty{}, nil), test.code, "")
		if e.Error() != test.text || fmt.Sprint(e.Details) != test.details || e.NotProcessed {
			t.Errorf("%s: got %q, details %v, not processed %t, want %q, %s", test.method, e, e.Details, e.NotProcessed, test.text, test.details)
		}
	}
	// A failed call leaves the connection as it was.
	if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err != nil {
		t.Error(err)
	}
}

func TestFutureEndsWithReplyOrError(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Tell", func(ctx context.Context, _ *Empty) (*Reply, error) {
		call := yodel.CallFrom(ctx)
		call.Trailer, call.ReplyAttachment = yodel.Metadata{"k": "v"}, []byte("more")
		return &Reply{1}, nil
	})
	c := connect(t, s, nil)
	var futures []*yodel.Future[Reply]
	for i := range 1000 {
		futures = append(futures, Mul.Go(t.Context(), c, &Args{i, 2}))
	}
	for i, f := range futures {
		if reply, err := f.Get(); err != nil || reply.C != 2*i {
			t.Fatalf("call %d: got %v, %v", i, reply, err)
		}
		<-f.Done()
	}
	f := yodel.Method[Empty, Reply]("Tell").Go(t.Context(), c, &Empty{})
	if _, err := f.Get(); err != nil || f.Call.Trailer["k"] != "v" || string(f.Call.ReplyAttachment) != "more" {
		t.Errorf("got %v, trailer %v, attachment %q", err, f.Call.Trailer, f.Call.ReplyAttachment)
	}
	if reply, err := yodel.Method[Args, Reply]("Arith.Nul").Go(t.Context(), c, &Args{}).Get(); reply != nil {
		t.Errorf("a failed future has a reply: %v", reply)
	} else {
		wantError(t, err, yodel.Unimplemented, "YDL2002")
	}
}

// An asynchronous call that was refused goes to another server, as a synchronous one does.
func TestRefusedAsynchronousCallsGoElsewhere(t *testing.T) {
	refusing := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
		return func(context.Context, *yodel.Call) error {
			return &yodel.Error{Code: yodel.Unavailable, Message: "not now", NotProcessed: true}
		}
	}}})
	addrs := []string{serve(t, refusing), serve(t, newServer(t, nil))}
	c := newClient(t, nil, addrs...)
	must(t, c.Ready(t.Context()))
	until(t, "both servers are connected", func() bool {
		return !slices.ContainsFunc(c.Endpoints(), func(ep *yodel.Endpoint) bool { return !ep.Connected() })
	})
	for range 4 { // each server is the first choice of some
		if reply, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil || reply.C != 6 {
			t.Errorf("Call: got %v, %v", reply, err)
		}
		if reply, err := Mul.Go(t.Context(), c, &Args{2, 3}).Get(); err != nil || reply.C != 6 {
			t.Errorf("Go: got %v, %v", reply, err)
		}
	}
}

func TestThenTellsTheCallbackOnce(t *testing.T) {
	c := connect(t, newServer(t, nil), nil)
	type outcome struct {
		reply *Reply
		err   error
	}
	outcomes := make(chan outcome, 8)
	done := func(reply *Reply, err error) { outcomes <- outcome{reply, err} }
	Mul.Then(t.Context(), c, &Args{6, 7}, done)
	if o := receive(t, outcomes, "a callback"); o.err != nil || o.reply.C != 42 {
		t.Errorf("got %v, %v", o.reply, o.err)
	}
	yodel.Method[Args, Reply]("Arith.Nul").Then(t.Context(), c, &Args{}, done)
	if o := receive(t, outcomes, "a callback"); o.reply != nil || yodel.CodeOf(o.err) != yodel.Unimplemented {
		t.Errorf("got %v, %v, want no reply and an error", o.reply, o.err)
	}
	// A callback may call again, and wait, though it runs on the goroutine that reads.
	Mul.Then(t.Context(), c, &Args{2, 3}, func(reply *Reply, err error) {
		if err == nil {
			reply, err = Mul.Call(t.Context(), c, &Args{reply.C, 10})
		}
		done(reply, err)
	})
	if o := receive(t, outcomes, "a callback that calls"); o.err != nil || o.reply.C != 60 {
		t.Errorf("got %v, %v, want 60", o.reply, o.err)
	}
	c.Go(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}}, nil) // nobody wants to know
	until(t, "no call is open", func() bool { return c.Endpoints()[0].Inflight() == 0 })
	if len(outcomes) != 0 {
		t.Error("a callback was called twice")
	}
}

func TestOneWayCallsDoNotWait(t *testing.T) {
	s := newServer(t, nil)
	release, got := make(chan struct{}), make(chan string)
	const Log yodel.Method[string, Empty] = "Log"
	Log.Handle(s, func(ctx context.Context, line *string) (*Empty, error) {
		<-release
		call := yodel.CallFrom(ctx)
		got <- fmt.Sprint(*line, " ", call.OneWay, " ", call.Metadata["k"], " ", string(call.Attachment))
		return nil, yodel.Errorf(yodel.Internal, "nobody hears this")
	})
	c := connect(t, s, nil)
	line := "hello"
	must(t, Log.Notify(t.Context(), c, &line))
	must(t, c.Notify(t.Context(), "Log", "there"))
	must(t, c.Do(t.Context(), &yodel.Call{
		Method: "Log", Args: "all", OneWay: true, Metadata: yodel.Metadata{"k": "v"}, Attachment: []byte("a"),
	}))
	must(t, c.Notify(t.Context(), "Nothing", "here")) // nobody is told that there is no such method
	close(release)
	seen := map[string]bool{}
	for range 3 {
		seen[receive(t, got, "a one-way call is executed")] = true
	}
	if want := map[string]bool{"hello true  ": true, "there true  ": true, "all true v a": true}; !maps.Equal(seen, want) {
		t.Errorf("got %v, want %v", seen, want)
	}
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
}

func TestLargeOneWayCallsOutliveTheirContext(t *testing.T) {
	s := newServer(t, nil)
	begun, release, got := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	handle(t, s, "Keep", func(ctx context.Context, text *string) (*Empty, error) {
		close(begun)
		<-release
		got <- ctx.Err()
		return nil, nil
	})
	c := connect(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	must(t, c.Notify(ctx, "Keep", strings.Repeat("x", 1<<20)))
	receive(t, begun, "the handler runs")
	cancel() // it is out of the caller's hands
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err) // its request came behind a cancellation, if there was one
	}
	close(release)
	if err := receive(t, got, "the handler ends"); err != nil {
		t.Errorf("a one-way call was canceled after Notify had returned: %v", err)
	}
}

// The sizes at which a message changes its form: frames, buffers and pieces.
var sizes = []int{0, 1, 100, 4<<10 - 20, 64<<10 - 17, 64<<10 - 16, 64 << 10, 64<<10 + 1, 128 << 10, 256<<10 + 7, 3 << 20}

func TestRawBytesPassUnchanged(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Echo", func(_ context.Context, b *[]byte) (*[]byte, error) { return b, nil })
	for _, checksum := range []bool{false, true} {
		c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec, Checksum: checksum})
		for _, size := range sizes {
			sent, got := randomBytes(size), []byte("to be replaced")
			if err := c.Call(t.Context(), "Echo", &sent, &got); err != nil || !bytes.Equal(sent, got) {
				t.Errorf("%d bytes by pointer, checksum %t: %v, %d bytes", size, checksum, err, len(got))
			}
			if err := c.Call(t.Context(), "Echo", sent, &got); err != nil || !bytes.Equal(sent, got) {
				t.Errorf("%d bytes by value, checksum %t: %v, %d bytes", size, checksum, err, len(got))
			}
		}
		s = newServer(t, nil)
		handle(t, s, "Echo", func(_ context.Context, b *[]byte) (*[]byte, error) { return b, nil })
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func TestAttachmentsPassBesideTheMessage(t *testing.T) {
	s := newServer(t, nil)
	const Turn yodel.Method[string, string] = "Turn"
	Turn.Handle(s, func(ctx context.Context, in *string) (*string, error) {
		call := yodel.CallFrom(ctx)
		if call.Attachment != nil { // it is the handler's until it returns: a reply needs a copy
			call.ReplyAttachment = append([]byte{}, call.Attachment...)
		}
		if *in == "fail" {
			return nil, yodel.Errorf(yodel.Aborted, "with an attachment")
		}
		return in, nil
	})
	c := connect(t, s, nil)
	for _, size := range sizes {
		call := &yodel.Call{Attachment: randomBytes(size)}
		in := strings.Repeat("x", size/2)
		out, err := Turn.Do(t.Context(), c, call, &in)
		if err != nil || *out != in || !bytes.Equal(call.ReplyAttachment, call.Attachment) || call.ReplyAttachment == nil {
			t.Errorf("%d bytes: %v, %d bytes came back", size, err, len(call.ReplyAttachment))
		}
	}
	call := &yodel.Call{ReplyAttachment: []byte("of another call")}
	if _, err := Turn.Do(t.Context(), c, call, new(string)); err != nil || call.ReplyAttachment != nil {
		t.Errorf("without an attachment: got %q, %v", call.ReplyAttachment, err)
	}
	call = &yodel.Call{Attachment: []byte("a")}
	if _, err := Turn.Do(t.Context(), c, call, new("fail")); yodel.CodeOf(err) != yodel.Aborted {
		t.Errorf("got %v", err)
	}
}

func TestMetadataAndTrailersPassAlsoWithErrors(t *testing.T) {
	s := newServer(t, nil)
	const Meet yodel.Method[bool, Empty] = "Meet"
	Meet.Handle(s, func(ctx context.Context, fail *bool) (*Empty, error) {
		call := yodel.CallFrom(ctx)
		call.Trailer = maps.Clone(call.Metadata)
		if *fail {
			return nil, yodel.Errorf(yodel.NotFound, "nobody")
		}
		return nil, nil
	})
	c := connect(t, s, nil)
	for _, md := range []yodel.Metadata{
		nil,
		{"k": "v"},
		{"": "empty key", "empty value": "", "Case": "1", "case": "2", "binary\x00": "\x00\xff\xfe\n"},
		{"large": strings.Repeat("x", 15<<10)},
	} {
		for _, fail := range []bool{false, true} {
			call := &yodel.Call{Metadata: maps.Clone(md), Trailer: yodel.Metadata{"of": "another call"}}
			_, err := Meet.Do(t.Context(), c, call, &fail)
			if (yodel.CodeOf(err) == yodel.NotFound) != fail {
				t.Errorf("got %v", err)
			}
			if !maps.Equal(call.Trailer, md) {
				t.Errorf("fail %t: got trailer %.100q, want %.100q", fail, call.Trailer, md)
			}
			if !maps.Equal(call.Metadata, md) {
				t.Errorf("the caller's map was changed to %.100q", call.Metadata)
			}
		}
	}
}

func TestEachCallMayHaveItsOwnCodecAndCompressor(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec}, Compressors: []compress.Compressor{flate.Compressor, gzip.Compressor},
	})
	used := make(chan string, 1)
	const Echo yodel.Method[string, string] = "Echo"
	Echo.Handle(s, func(ctx context.Context, in *string) (*string, error) {
		call := yodel.CallFrom(ctx)
		name := call.Codec.Name()
		if call.Compressor != nil {
			name += "+" + call.Compressor.Name()
		}
		used <- name
		return in, nil
	})
	var in, out atomic.Int64
	c := connect(t, s, &yodel.ClientOptions{Transport: counted(&in, &out)})
	text := strings.Repeat("all work and no play ", 3000) // 63 KB; more would not be compressed by default
	for _, test := range []struct {
		call yodel.Call
		want string
	}{
		{yodel.Call{}, "json"},
		{yodel.Call{Codec: gob.Codec}, "gob"},
		{yodel.Call{Compressor: flate.Compressor}, "json+flate"},
		{yodel.Call{Codec: gob.Codec, Compressor: gzip.Compressor}, "gob+gzip"},
		{yodel.Call{Codec: yodel.JSON}, "json"},
		{yodel.Call{}, "json"},
	} {
		in.Store(0)
		out.Store(0)
		got, err := Echo.Do(t.Context(), c, &test.call, &text)
		if err != nil || *got != text {
			t.Errorf("%s: %v", test.want, err)
			continue
		}
		if name := <-used; name != test.want {
			t.Errorf("got %s, want %s", name, test.want)
		}
		// They are counted by a goroutine that writes, which may be a little behind the reply.
		compressed := test.call.Compressor != nil
		until(t, test.want+": the bytes are on the wire", func() bool {
			return compressed == (in.Load() < 20_000) && compressed == (out.Load() < 20_000)
		})
	}
}

// counted is TCP that counts bytes.
func counted(in, out *atomic.Int64) yodel.Transport {
	return transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := yodel.TCP.Dial(ctx, addr)
		return &countedConn{nc, in, out}, err
	})
}

type countedConn struct {
	net.Conn
	in, out *atomic.Int64
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.out.Add(int64(len(b))) // before the peer can answer
	return c.Conn.Write(b)
}

func TestSmallMessagesAreNotCompressed(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	handle(t, s, "Echo", func(_ context.Context, b *[]byte) (*[]byte, error) { return b, nil })
	var in, out atomic.Int64
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec, Compressor: flate.Compressor, Transport: counted(&in, &out)})
	for _, size := range []int{1000, 1100} { // below and above the default of 1024
		b := make([]byte, size)
		must(t, c.Call(t.Context(), "Echo", b, &b)) // the first call names the method too
		in.Store(0)
		out.Store(0)
		must(t, c.Call(t.Context(), "Echo", b, &b))
		for _, n := range []int64{in.Load(), out.Load()} {
			if small := n < 500; small != (size > 1024) {
				t.Errorf("%d bytes took %d on the wire", size, n)
			}
		}
	}
	if err := c.Call(t.Context(), "Echo", randomBytes(5000), new([]byte)); err != nil {
		t.Errorf("bytes that compressing makes larger: %v", err)
	}
}

func TestClientIsUsedConcurrently(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, &yodel.ClientOptions{ConnsPerEndpoint: 2})
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			for i := range 50 {
				if reply, err := Mul.Call(t.Context(), c, &Args{g, i}); err != nil || reply.C != g*i {
					t.Errorf("%d × %d: got %v, %v", g, i, reply, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestGoroutinesMayShareAContextAndMetadata(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	md := yodel.Metadata{"token": "t"}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 20 {
				if _, err := Mul.Do(ctx, c, &yodel.Call{Metadata: md}, &Args{1, 2}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(md) != 1 {
		t.Errorf("the shared metadata became %v", md)
	}
}

func TestACallMayBeUsedAgain(t *testing.T) {
	s := newServer(t, nil)
	addrs := []string{serve(t, s), serve(t, newServer(t, nil))}
	c := newClient(t, nil, addrs...)
	call := &yodel.Call{}
	seen := map[string]bool{}
	for i := range 4 {
		reply, err := Mul.Do(t.Context(), c, call, &Args{i, 2})
		if err != nil || reply.C != 2*i || call.Attempt != 1 {
			t.Errorf("use %d: got %v, %v after %d attempts", i, reply, err, call.Attempt)
		}
		seen[call.Endpoint.Addr()] = true
	}
	if len(seen) != 2 {
		t.Errorf("a call that is used again stays at %v", seen)
	}
}

// An offline is a caller that is no client.
type offline struct{ err error }

func (o offline) Do(_ context.Context, call *yodel.Call) error {
	if r, ok := call.Reply.(*Reply); ok {
		r.C = call.Args.(*Args).A
	}
	return o.err
}

func TestMethodsWorkOnAnyCaller(t *testing.T) {
	if reply, err := Mul.Call(t.Context(), offline{}, &Args{A: 5}); err != nil || reply.C != 5 {
		t.Errorf("Call: got %v, %v", reply, err)
	}
	if reply, err := Mul.Go(t.Context(), offline{}, &Args{A: 6}).Get(); err != nil || reply.C != 6 {
		t.Errorf("Go: got %v, %v", reply, err)
	}
	if err := Mul.Notify(t.Context(), offline{yodel.Aborted}, &Args{}); err != yodel.Aborted {
		t.Errorf("Notify: got %v", err)
	}
	done := make(chan *Reply)
	Mul.Then(t.Context(), offline{}, &Args{A: 7}, func(r *Reply, _ error) { done <- r })
	if r := receive(t, done, "a callback"); r.C != 7 {
		t.Errorf("Then: got %v", r)
	}
}

// Callbacks of one client may run concurrently: each of these returns only when the other one runs.
func TestCallbacksOfOneClientRunConcurrently(t *testing.T) {
	pass := func(next yodel.Handler) yodel.Handler { return next }
	for name, o := range map[string]*yodel.ClientOptions{
		"two connections": nil,
		"middleware":      {Middleware: []yodel.Middleware{pass}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := serve(t, newServer(t, nil)), serve(t, newServer(t, nil))
			c := newClient(t, o, a, b)
			must(t, c.Ready(t.Context()))
			var running [2]chan struct{}
			ended := make(chan error, len(running))
			for i := range running {
				running[i] = make(chan struct{})
			}
			until(t, "there are two endpoints", func() bool { return len(c.Endpoints()) == 2 })
			for i, ep := range c.Endpoints() {
				// it is connected
				must(t, c.Do(t.Context(), &yodel.Call{Method: string(Mul), Args: &Args{}, Endpoint: ep}))
				call := &yodel.Call{Method: string(Mul), Args: &Args{}, Reply: new(Reply), Endpoint: ep}
				c.Go(context.Background(), call, func(err error) {
					close(running[i])
					<-running[1-i]
					ended <- err
				})
			}
			for range running {
				must(t, receive(t, ended, "both callbacks run at once"))
			}
		})
	}
}

// What middleware of a server sees of a request before the method does.
func TestTheBodyOfARequest(t *testing.T) {
	var bodies []string
	var fault error
	look := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			body, err := call.Body()
			if fault = err; err != nil {
				return err
			}
			if again, err := call.Body(); err != nil || string(again) != string(body) {
				t.Errorf("the second time it is %.40q, %v", again, err)
			}
			bodies = append(bodies, string(body))
			if call.Executed() || call.Streams() {
				t.Error("it has been executed, or has a stream")
			}
			err = next(ctx, call)
			if !call.Executed() {
				t.Error("it was not executed")
			}
			return err
		}
	}
	compressor := flate.Compressor
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{look}, Compressors: []compress.Compressor{compressor}})
	length := func(in *string) (*int, error) { n := len(*in); return &n, nil }
	handle(t, s, "Length", func(_ context.Context, in *string) (*int, error) { return length(in) })
	handle(t, s, "View", func(_ context.Context, in *raw.View) (*[]byte, error) {
		out := []byte(strings.ToUpper(string(*in)))
		return &out, nil
	})
	large := strings.Repeat("x", 10_000)
	for _, o := range []*yodel.ClientOptions{nil, {Compressor: compressor}} {
		var n int
		must(t, connect(t, s, o).Call(t.Context(), "Length", &large, &n))
		if n != len(large) || bodies[len(bodies)-1] != `"`+large+`"` {
			t.Errorf("with %+v: the method got %d bytes, and the middleware %d", o, n, len(bodies[len(bodies)-1]))
		}
		message, upper := []byte(large), []byte(nil)
		must(t, connect(t, s, o).Do(t.Context(), &yodel.Call{Method: "View", Args: &message, Reply: &upper, Codec: raw.Codec}))
		if string(upper) != strings.ToUpper(large) || bodies[len(bodies)-1] != large {
			t.Errorf("raw, with %+v: the method got %d bytes, and the middleware %d", o, len(upper), len(bodies[len(bodies)-1]))
		}
	}
	if err := connect(t, s, nil).Call(t.Context(), "Nothing", &large, nil); !errors.Is(err, yodel.Unimplemented) || !errors.Is(fault, yodel.Unimplemented) {
		t.Errorf("of a method that does not exist: %v, %v", err, fault)
	}
	if body, err := new(yodel.Call).Body(); body != nil || err != nil || new(yodel.Call).Executed() || new(yodel.Call).Streams() {
		t.Errorf("of a call of a client: %q, %v", body, err)
	}
}

// setLargest sets a field of a struct of options to the largest value of its type. It returns false
// for a field that is not exported, or is neither a number nor a duration.
func setLargest(field reflect.Value) bool {
	if kind := field.Kind(); !field.CanSet() || kind != reflect.Int && kind != reflect.Int64 { // durations too
		return false
	}
	field.SetInt(math.MaxInt64)
	return true
}

// A farCase is a client and a server of which something is as large, or as late, as can be.
type farCase struct {
	name   string
	client yodel.ClientOptions
	server yodel.ServerOptions
	ctx    func() (context.Context, context.CancelFunc)
	call   yodel.Call
}

// eachOption returns a case for every number and duration of the options, and of Limits.
func eachOption() (cases []farCase) {
	options := func(of reflect.Type, in func(c *farCase) reflect.Value) {
		for i := range of.NumField() {
			var c farCase
			if setLargest(in(&c).Field(i)) {
				c.name = of.String() + "." + of.Field(i).Name
				cases = append(cases, c)
			}
		}
	}
	options(reflect.TypeFor[yodel.ClientOptions](), func(c *farCase) reflect.Value { return reflect.ValueOf(&c.client).Elem() })
	options(reflect.TypeFor[yodel.ServerOptions](), func(c *farCase) reflect.Value { return reflect.ValueOf(&c.server).Elem() })
	limits := reflect.TypeFor[yodel.Limits]()
	for i := range limits.NumField() {
		var c farCase
		if setLargest(reflect.ValueOf(&c.client.Limits).Elem().Field(i)) {
			c.server.Limits = c.client.Limits
			c.name = limits.String() + "." + limits.Field(i).Name
			cases = append(cases, c)
		}
	}
	return cases
}

func farDeadlines() (cases []farCase) {
	for _, year := range []int{2170, 2300, 2400, 9999} {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		cases = append(cases, farCase{name: "Call.Deadline in " + at.Format("2006"), call: yodel.Call{Deadline: at}},
			farCase{name: "a context that ends in " + at.Format("2006"), ctx: func() (context.Context, context.CancelFunc) {
				return context.WithDeadline(context.Background(), at)
			}})
	}
	endless := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), math.MaxInt64)
	}
	middleware := func(m yodel.Middleware) yodel.ClientOptions {
		return yodel.ClientOptions{Middleware: []yodel.Middleware{m}, Idempotent: []string{"Echo"}}
	}
	return append(cases, farCase{name: "context.WithTimeout", ctx: endless},
		farCase{name: "timeout.After", client: middleware(timeout.After(math.MaxInt64))},
		farCase{name: "timeout.Streams", client: middleware(timeout.Streams(math.MaxInt64))},
		farCase{name: "timeout.After on the server", server: yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(math.MaxInt64)}}},
		farCase{name: "retry.Options", client: middleware(retry.With(&retry.Options{Times: math.MaxInt, Backoff: 1, MaxBackoff: math.MaxInt64}))},
		farCase{name: "cache.Options", client: middleware(cache.With(&cache.Options{
			Methods: []string{"Echo"}, For: math.MaxInt64, Stale: math.MaxInt64,
		}))})
}

// The largest values of options, and times that are as far away as can be, mean that there is no
// limit: calls succeed, and those with a deadline keep it.
func TestFarTimesAndLargeLimitsMeanNone(t *testing.T) {
	t.Parallel()
	for _, test := range append(eachOption(), farDeadlines()...) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &test.server)
			must(t, s.Handle("Echo", func(_ context.Context, in *string) (*string, error) { return in, nil }))
			must(t, s.Handle("Hang", func(ctx context.Context, _ *string) (*string, error) {
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second): // so that the test ends where no deadline is kept
				}
				return nil, ctx.Err()
			}))
			c := newClient(t, &test.client, serve(t, s))
			ctx, cancel := context.WithCancel(context.Background())
			if test.ctx != nil {
				ctx, cancel = test.ctx()
			}
			defer cancel()
			for range 20 {
				in, out := "in", ""
				call := test.call
				call.Method, call.Args, call.Reply = "Echo", &in, &out
				if err := c.Do(ctx, &call); err != nil || out != in {
					t.Fatalf("got %q, %v", out, err)
				}
			}
			began := time.Now()
			in := "in"
			err := c.Do(ctx, &yodel.Call{Method: "Hang", Args: &in, Deadline: began.Add(50 * time.Millisecond)})
			if took := time.Since(began); yodel.CodeOf(err) != yodel.DeadlineExceeded || took > 4*time.Second {
				t.Errorf("a call with a deadline of 50 ms took %v: %v", took, err)
			}
		})
	}
}
