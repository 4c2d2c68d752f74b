// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
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
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// calling returns a client that calls servers of rpcx.
func calling(t testing.TB, o yodel.ClientOptions, addrs ...string) *yodel.Client {
	t.Helper()
	if o.Wires == nil {
		o.Wires = []yodel.Wire{Wire(nil)}
	}
	for i, addr := range addrs {
		addrs[i] = o.Wires[0].Name() + "://" + addr
	}
	c := yodel.NewClient(discovery.Static(addrs...), &o)
	t.Cleanup(c.Close)
	return c
}

// A yodel client calls a yodel server over rpcx.
func TestWire(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Compressors: []compress.Compressor{gzip.Compressor}})
	for name, o := range map[string]yodel.ClientOptions{
		"plain":   {},
		"gzip":    {Compressor: gzip.Compressor},
		"HTTP":    {Wires: []yodel.Wire{WireWith(yodel.JSON, &WireOptions{Path: "/_rpcx_"})}},
		"flate":   {Compressor: flate.Compressor},
		"a codec": {Codec: gob.Codec, Wires: []yodel.Wire{Wire(yodel.JSON)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := calling(t, o, s.addr)
			mul := yodel.Method[Args, Reply]("Arith.Mul")
			var all sync.WaitGroup
			for n := range 100 {
				all.Go(func() {
					if reply, err := mul.Call(t.Context(), c, &Args{n, 2}); err != nil || reply.C != 2*n {
						t.Errorf("got %v, %v", reply, err)
					}
				})
			}
			all.Wait()
			for _, size := range []int{0, 1, 1024, 1025, 1 << 20} {
				want, got := bytes.Repeat([]byte("ab"), size)[:size], []byte(nil)
				if err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Echo", Args: &want, Reply: &got, Codec: raw.Codec}); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes: got %d, %v", size, len(got), err)
				}
			}
			if err := c.Notify(t.Context(), "Arith.Wait", &Args{}); err != nil {
				t.Errorf("a one-way call: %v", err)
			}
			<-s.arith.began
			s.arith.release <- struct{}{}
		})
	}
}

func TestWireMetadata(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second+300*time.Millisecond)
	defer cancel()
	var got map[string]string
	call := &yodel.Call{
		Method: "Arith.Describe", Args: &Args{}, Reply: &got, Tenant: "anna",
		Metadata: yodel.Metadata{"k": "v", "e": "", "authorization": "secret"},
	}
	if err := c.Do(ctx, call); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"attempt": "0", "tenant": "anna", "oneWay": "false", "left": "1m30s", "metadata.k": "v", "metadata.e": "", "metadata.authorization": "secret",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if want := (yodel.Metadata{"header": "1", "trailer": "2", "empty": ""}); !maps.Equal(call.Trailer, want) {
		t.Errorf("got the trailer %q", call.Trailer)
	}
}

func TestWireErrors(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 1 << 10}}, s.addr)
	large := bytes.Repeat([]byte("x"), 1<<10+1)
	half := new(Reply)
	for name, test := range map[string]struct {
		call         *yodel.Call
		code         yodel.Code
		id, says     string
		notProcessed bool
	}{
		"handler's":   {&yodel.Call{Method: "Arith.Fail", Args: &Args{}, Reply: new(Reply)}, yodel.Unknown, "", "boom", false},
		"with reply":  {&yodel.Call{Method: "Arith.Half", Args: &Args{A: 5}, Reply: half}, yodel.Aborted, "", "only half of it", false},
		"no method":   {&yodel.Call{Method: "Arith.Nope", Args: &Args{}}, yodel.Unimplemented, "YDL2002", "can't find method Nope", true},
		"no service":  {&yodel.Call{Method: "Nope.Mul", Args: &Args{}}, yodel.Unimplemented, "YDL2001", "can't find service Nope", true},
		"decoding":    {&yodel.Call{Method: "Arith.Mul", Args: "x"}, yodel.InvalidArgument, "YDL2101", "does not fit", true},
		"reply":       {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Reply: new(string)}, yodel.Internal, "YDL2102", "does not fit *string", false},
		"codec":       {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Codec: gob.Codec}, yodel.InvalidArgument, "YDL2103", `no serialize type for the codec "gob"`, true},
		"compressor":  {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Compressor: flate.Compressor}, yodel.InvalidArgument, "YDL2103", `not the compressor "flate"`, true},
		"attachment":  {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Attachment: []byte("x")}, yodel.Unimplemented, "", "has no attachments", true},
		"values":      {&yodel.Call{Method: "Arith.Two", Args: yodel.Values{1, 2}}, yodel.Unimplemented, "", "has no several values", true},
		"results":     {&yodel.Call{Method: "Arith.Two", Args: 1, Reply: yodel.Values{new(int)}}, yodel.Unimplemented, "", "has no several values", true},
		"encoding":    {&yodel.Call{Method: "Arith.Mul", Args: func() {}}, yodel.InvalidArgument, "YDL2103", "func()", true},
		"large":       {&yodel.Call{Method: "Arith.Echo", Args: &large, Codec: raw.Codec}, yodel.ResourceExhausted, "YDL2201", "1025 bytes", true},
		"large reply": {&yodel.Call{Method: "Arith.Large", Args: &Args{}, Reply: new([]byte), Codec: raw.Codec}, yodel.ResourceExhausted, "YDL2202", "this client's limit is 1024", false},
		"reserved":    {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Metadata: yodel.Metadata{rpcxwire.KeyError: "x"}}, yodel.InvalidArgument, "YDL2103", rpcxwire.KeyError, true},
	} {
		if name == "large reply" {
			test.call.Args = &[]byte{}
			_ = s.Handle("Arith.Large", func(context.Context, *[]byte) (*[]byte, error) { return &large, nil })
		}
		err := c.Do(t.Context(), test.call)
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.Code != test.code || e.ID != test.id || !strings.Contains(e.Message, test.says) || e.NotProcessed != test.notProcessed {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if half.C != 5 {
		t.Errorf("the reply beside an error: got %v", half)
	}
	feed := yodel.Feed[Args, Reply]("Arith.Count")
	for _, err := range feed.Do(t.Context(), c, new(yodel.Call), &Args{}) {
		if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unimplemented || !strings.Contains(e.Message, "has no streams") {
			t.Errorf("a feed: got %v", err)
		}
	}
}

// Messages that are encoded already are in the codec of the call, and not of the Wire.
func TestWireEncoded(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, yodel.ClientOptions{Wires: []yodel.Wire{Wire(raw.Codec)}}, s.addr)
	got := new(yodel.Encoded)
	if err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &yodel.Encoded{Body: []byte(`{"A":2,"B":3}`)}, Reply: got}); err != nil || string(got.Body) != `{"C":6}` {
		t.Errorf("got %q, %v", got.Body, err)
	}
	if err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{2, 3}, Reply: got}); err != nil || string(got.Body) != `{"C":6}` {
		t.Errorf("got %q, %v", got.Body, err)
	}
}

// A foreignServer answers each connection with a function.
func foreignServer(t *testing.T, serve func(c *rawClient)) (addr string) {
	t.Helper()
	return testserve.Accept(t, "", func(conn net.Conn) { serve(&rawClient{t, conn, readerOf(conn)}) }).Addr
}

// next returns the next frame, or nil at the end of the connection.
func (c *rawClient) next() *head {
	h, err := c.frames.next()
	if err != nil {
		return nil
	}
	if err = c.frames.skip(h.payload); err != nil {
		return nil
	}
	return h
}

// The first sequence number is 0. A pushed message with the number of a pending call is no answer
// to it, and any other frame is.
func TestPush(t *testing.T) {
	addr := foreignServer(t, func(c *rawClient) {
		for want := uint64(0); ; want++ {
			h := c.next()
			if h == nil {
				return
			}
			if h.seq != want {
				t.Errorf("got the sequence number %d, want %d", h.seq, want)
			}
			c.send(head{flags: oneWay, seq: h.seq, path: "topic", method: "Nothing"}, "no such method")
			for range 2 {
				c.send(head{flags: oneWay, seq: h.seq, path: "topic", method: "Event", metadata: pairsOf("k", "v"), pairs: 1}, "hello")
			}
			c.send(head{flags: oneWay, seq: h.seq, serialize: 3, path: "topic", method: "Event"}, "not a known codec")
			c.send(head{serialize: 1, seq: h.seq, path: h.path, method: h.method}, `{"C":7}`) // a response with the type bit of a request
		}
	})
	pushed := make(chan string, 100)
	local := yodel.NewServer(nil)
	if err := local.Handle("topic.Event", func(ctx context.Context, in *[]byte, _ *struct{}) error {
		call := yodel.CallFrom(ctx)
		pushed <- string(*in) + " " + call.Metadata["k"]
		if !call.OneWay {
			t.Error("the call is not one-way")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, push := range []yodel.Caller{local, nil} {
		var dropped atomic.Int64
		c := calling(t, yodel.ClientOptions{Wires: []yodel.Wire{WireWith(nil, &WireOptions{Push: push, Dropped: &dropped})}}, addr)
		for range 2 {
			var reply Reply
			if err := c.Call(t.Context(), "Arith.Mul", &Args{}, &reply); err != nil || reply.C != 7 {
				t.Fatalf("got %v, %v", reply, err)
			}
			if push == nil {
				continue
			}
			for range 2 {
				if got := <-pushed; got != "hello v" {
					t.Errorf("got %q", got)
				}
			}
		}
		if want := int64(4); push != nil && dropped.Load() != want || push == nil && dropped.Load() != 2*want {
			t.Errorf("with %v, %d messages were dropped", push, dropped.Load())
		}
		c.Close()
	}
}

// A message that the server sends as soon as it has accepted the connection is received.
func TestPushBeforeTheFirstCall(t *testing.T) {
	addr := foreignServer(t, func(c *rawClient) {
		c.send(head{flags: oneWay, path: "topic", method: "Event"}, "hello")
		for h := c.next(); h != nil; h = c.next() {
			c.send(head{serialize: 1, seq: h.seq, path: h.path, method: h.method}, `{"C":7}`)
		}
	})
	pushed := make(chan string, 1)
	local := yodel.NewServer(nil)
	if err := local.Handle("topic.Event", func(_ context.Context, in *[]byte, _ *struct{}) error {
		pushed <- string(*in)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var dropped atomic.Int64
		c := calling(t, yodel.ClientOptions{Wires: []yodel.Wire{WireWith(nil, &WireOptions{Push: local, Dropped: &dropped})}}, addr)
		var reply Reply
		if err := c.Call(t.Context(), "Arith.Mul", &Args{}, &reply); err != nil || reply.C != 7 {
			t.Fatalf("got %v, %v", reply, err)
		}
		if n := dropped.Load(); n != 0 {
			t.Fatalf("%d messages were dropped", n)
		}
		if got := <-pushed; got != "hello" {
			t.Errorf("got %q", got)
		}
		c.Close()
	}
}

// Messages beyond the limits of the queue are dropped.
func TestQueueOfPushes(t *testing.T) {
	p := newPushes(nil, new(atomic.Int64), 10)
	if !p.room(1 << 20) {
		t.Error("there is no room for a first message")
	}
	p.add(new(yodel.Call), 6)
	if p.room(5) || !p.room(4) {
		t.Error("the bytes are not counted")
	}
	for range maxPushes - 1 {
		p.add(new(yodel.Call), 0)
	}
	if p.room(0) {
		t.Error("the messages are not counted")
	}
	for taken := true; taken; {
		taken = p.take() != nil
	}
	if !p.room(10) || p.bytes != 0 {
		t.Error("taken messages are counted")
	}
}

// A silent connection is checked with a heartbeat, and ends if the server does not answer it.
func TestHeartbeats(t *testing.T) {
	beats := make(chan struct{}, 1000)
	var answers atomic.Bool
	answers.Store(true)
	addr := foreignServer(t, func(c *rawClient) {
		for h := c.next(); h != nil; h = c.next() {
			if h.is(heartbeat) {
				if h.path != "" || h.method != "" || h.serialize != 3 || h.payload != 9 {
					t.Errorf("got %+v", h)
				}
				select {
				case beats <- struct{}{}:
				default:
				}
			}
			if answers.Load() && h.method != "Wait" {
				c.send(head{flags: h.flags | response, serialize: h.serialize, seq: h.seq, path: h.path, method: h.method}, "")
			}
		}
	})
	c := calling(t, yodel.ClientOptions{Limits: yodel.Limits{KeepAlive: 200 * time.Millisecond}}, addr)
	outcome := make(chan error, 1)
	go func() { outcome <- c.Call(context.Background(), "Arith.Wait", &Args{}, nil) }()
	for range 3 { // the connection lasts while heartbeats are answered
		<-beats
	}
	select {
	case err := <-outcome:
		t.Fatalf("the call ended with %v", err)
	default:
	}
	answers.Store(false)
	if err := <-outcome; err == nil || !strings.Contains(err.Error(), "heartbeats") {
		t.Errorf("got %v", err)
	}
}

// Replies that no server of rpcx sends fail their own call, or end the connection.
func TestStrangeReplies(t *testing.T) {
	for name, test := range map[string]struct {
		answer  head
		payload string
		says    string
	}{
		"another codec":      {head{flags: response, serialize: 2}, "x", "serialize type 2"},
		"compressed":         {head{flags: response | gzipped, serialize: 1}, "x", "compress type 1"},
		"error without text": {head{flags: response | failed, serialize: 1}, "", "without a text"},
		"many pairs":         {head{flags: response, serialize: 1, metadata: strings.Repeat(pairsOf("k", ""), 129)}, "", "129 pairs"},
		"broken pairs":       {head{flags: response, serialize: 1, metadata: "x"}, "", "connection was lost"},
		"damaged payload":    {head{flags: response, serialize: 1}, "{", "does not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := foreignServer(t, func(c *rawClient) {
				for h := c.next(); h != nil; h = c.next() {
					test.answer.seq = h.seq
					c.send(test.answer, test.payload)
				}
			})
			c := calling(t, yodel.ClientOptions{}, addr)
			if err := c.Call(t.Context(), "Arith.Mul", &Args{}, new(Reply)); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A reply of a call whose caller has stopped waiting does not disturb later calls, whatever its
// size.
func TestLateReplies(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	ctx, cancel := context.WithCancel(t.Context())
	outcome := make(chan error, 1)
	go func() { outcome <- c.Call(ctx, "Arith.Wait", &Args{}, nil) }()
	<-s.arith.began
	cancel()
	if err := <-outcome; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.arith.release <- struct{}{}
	var reply Reply
	if err := c.Call(t.Context(), "Arith.Mul", &Args{2, 3}, &reply); err != nil || reply.C != 6 {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestConnectHTTPFails(t *testing.T) {
	for answer, says := range map[string]string{
		"HTTP/1.1 404 Not Found\r\n\r\n":                     "404 Not Found",
		"HTTP/1.0 200 OK\n" + strings.Repeat("X: y\n", 2000): "8 KiB",
		"HTTP/1.0 200 OK\n":                                  "unexpected EOF",
	} {
		addr := foreignServer(t, func(c *rawClient) {
			_, _ = c.frames.ReadString('\n') // the request
			_, _ = io.WriteString(c, answer) // the client may have left
		})
		c := calling(t, yodel.ClientOptions{Wires: []yodel.Wire{WireWith(nil, &WireOptions{Path: "/_rpcx_"})}}, addr)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := c.Call(ctx, "Arith.Mul", &Args{}, new(Reply)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
		cancel()
	}
}

// A connection that ends fails its calls, and the next call makes another connection.
func TestLostConnection(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	outcome := make(chan error, 1)
	go func() { outcome <- c.Call(t.Context(), "Arith.Wait", &Args{}, nil) }()
	<-s.arith.began
	for _, peer := range s.Peers() {
		_ = peer.Conn.Close() // the test needs it
	}
	if err := <-outcome; !errors.Is(err, yodel.Unavailable) || yodel.NotProcessed(err) {
		t.Errorf("got %v", err)
	}
	if err := c.Call(t.Context(), "Arith.Mul", &Args{}, new(Reply)); err != nil {
		t.Error(err)
	}
}

// Requests of more than 1,024 bytes are compressed if the compressor is gzip. The frames are those
// of rpcx.
func TestWireCompresses(t *testing.T) {
	for name, test := range map[string]struct {
		compressor compress.Compressor
		size       int
		flags      byte
	}{
		"none":       {nil, 1025, 0},
		"flate":      {flate.Compressor, 1025, 0},
		"1024 bytes": {gzip.Compressor, 1024, 0},
		"1025 bytes": {gzip.Compressor, 1025, gzipped},
	} {
		t.Run(name, func(t *testing.T) {
			addr := foreignServer(t, func(c *rawClient) {
				for h := c.next(); h != nil; h = c.next() {
					if small := h.payload < test.size; h.flags != test.flags || small != (test.flags != 0) {
						t.Errorf("got %+v", h)
					}
					c.send(head{flags: response, seq: h.seq, path: h.path, method: h.method}, "ok")
				}
			})
			c := calling(t, yodel.ClientOptions{Codec: raw.Codec, Compressor: test.compressor}, addr)
			args, got := bytes.Repeat([]byte("a"), test.size), []byte(nil)
			if err := c.Call(t.Context(), "Arith.Echo", &args, &got); err != nil || string(got) != "ok" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
