// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rpcxprotocol "github.com/smallnest/rpcx/protocol"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	yodeltls "github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/transport/unix"
)

var codecs = map[string]yodel.Codec{"raw": raw.Codec, "json": yodel.JSON, "protobuf": protobuf.Codec, "gogo": protobuf.Codec, "msgpack": msgpack.Codec}

// calling returns a client of a server of rpcx.
func calling(t testing.TB, addr string, o yodel.ClientOptions) *yodel.Client {
	t.Helper()
	if o.Wires == nil {
		o.Wires = []yodel.Wire{rpcx.Wire(msgpack.Codec)}
	}
	c := yodel.NewClient(discovery.Static(o.Wires[0].Name()+"://"+addr), &o)
	t.Cleanup(c.Close)
	return c
}

func TestYodelClientCodecs(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	for name, codec := range codecs {
		for _, compressor := range []compress.Compressor{nil, gzip.Compressor} {
			t.Run(fmt.Sprint(name, " ", compressor != nil), func(t *testing.T) {
				c := calling(t, s.addr, yodel.ClientOptions{Compressor: compressor, Wires: []yodel.Wire{rpcx.Wire(codec)}})
				for _, n := range fits(name) {
					data := payload(n)
					m := sampleOf(name, data)
					m.check(t, data, c.Call(within(t), "Arith."+m.method, m.args, m.reply))
				}
			})
		}
	}
}

func TestYodelClientTransports(t *testing.T) {
	certificate, roots := selfSigned(t)
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	overTLS := &yodeltls.Transport{Client: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	for name, test := range map[string]struct {
		network, addr string
		config        *tls.Config
		options       yodel.ClientOptions
	}{
		"tcp":  {"tcp", "127.0.0.1:0", nil, yodel.ClientOptions{}},
		"tls":  {"tcp", "127.0.0.1:0", config, yodel.ClientOptions{Transport: overTLS}},
		"unix": {"unix", filepath.Join(t.TempDir(), "s"), nil, yodel.ClientOptions{Transport: unix.Transport{}}},
		"http": {"http", "127.0.0.1:0", nil, yodel.ClientOptions{Wires: []yodel.Wire{rpcx.WireWith(yodel.JSON, &rpcx.WireOptions{Path: "/_rpcx_"})}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveRPCX(t, test.network, test.addr, test.config)
			c := calling(t, s.addr, test.options)
			var reply Reply
			if err := c.Call(within(t), "Arith.Mul", &Args{6, 7}, &reply); err != nil || reply.C != 42 {
				t.Errorf("got %v, %v", reply, err)
			}
		})
	}
}

func TestYodelClientMetadataAndDeadline(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{})
	call := &yodel.Call{Method: "Arith.Metadata", Args: &Args{}, Reply: &Reply{}, Metadata: hundred()}
	if err := c.Do(within(t), call); err != nil || !maps.Equal(call.Trailer, yodel.Metadata(hundred())) {
		t.Errorf("got %q, %v", call.Trailer, err)
	}
	var reply Reply
	if err := c.Call(within(t), "Arith.Left", &Args{}, &reply); err != nil || reply.C > 20_000 || reply.C < 15_000 {
		t.Errorf("got %v ms, %v, want less than 20 s", reply.C, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := c.Call(ctx, "Arith.Wait", &Args{}, &reply); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	await.Value(t, s.began, "the beginning of a call")
}

func TestYodelClientErrors(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{})
	for _, test := range []struct {
		method, want string
		code         yodel.Code
		notProcessed bool
	}{
		{"Arith.Fail", "boom", yodel.Unknown, false},
		{"Arith.Half", "only half of it", yodel.Unknown, false},
		{"Arith.Panic", "oh", yodel.Unknown, false},
		{"Arith.Nope", "rpcx: can't find method Nope", yodel.Unimplemented, true},
		{"Nope.Mul", "rpcx: can't find service Nope", yodel.Unimplemented, true},
	} {
		reply := Reply{-1}
		err := c.Call(within(t), test.method, &Args{5, 6}, &reply)
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.Code != test.code || e.NotProcessed != test.notProcessed || !strings.Contains(e.Message, test.want) {
			t.Errorf("%s: got %v", test.method, err)
		}
		if test.method == "Arith.Half" && reply.C != 5 {
			t.Errorf("the reply beside an error is %v", reply)
		}
	}
	own := calling(t, s.addr, yodel.ClientOptions{Wires: []yodel.Wire{rpcx.WireWith(yodel.JSON, &rpcx.WireOptions{Codecs: map[byte]string{1: "none", 12: "json"}})}})
	err := own.Call(within(t), "Arith.Mul", &Args{}, &Reply{})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unimplemented || !strings.Contains(e.Message, "can not find codec for 12") {
		t.Errorf("an unknown codec: got %v", err)
	}
}

func TestYodelClientAuth(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	s.AuthFunc = func(_ context.Context, _ *rpcxprotocol.Message, token string) error {
		if token != "good" {
			return errors.New("invalid token")
		}
		return nil
	}
	// The server closes the connection after each "bad", when the next call may be on its way.
	c := calling(t, s.addr, yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(3)}})
	for i, token := range []string{"good", "bad", "good", "bad", "good"} {
		var reply Reply
		err := c.Do(within(t), &yodel.Call{Method: "Arith.Mul", Args: &Args{2, 3}, Reply: &reply, Metadata: yodel.Metadata{"authorization": token}, Idempotent: true})
		if bad := err != nil && strings.Contains(err.Error(), "invalid token"); bad != (token == "bad") || token == "good" && (err != nil || reply.C != 6) {
			t.Errorf("call %d: got %v, %v", i, reply, err)
		}
	}
}

func TestYodelClientOneWay(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{})
	if err := c.Notify(within(t), "Arith.Note", &Args{A: 7}); err != nil {
		t.Fatal(err)
	}
	if got := await.Value(t, s.noted, "a one-way call"); got != 7 {
		t.Errorf("got %d", got)
	}
	if err := c.Notify(within(t), "Arith.Fail", &Args{}); err != nil {
		t.Fatal(err)
	}
	var reply Reply
	if err := c.Call(within(t), "Arith.Mul", &Args{2, 3}, &reply); err != nil || reply.C != 6 {
		t.Errorf("got %v, %v", reply, err)
	}
}

// A connection on which only heartbeats move lasts.
func TestYodelClientHeartbeats(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{Limits: yodel.Limits{KeepAlive: 150 * time.Millisecond}})
	var reply Reply
	if err := c.Call(within(t), "Arith.Sleep", &Args{1, 700}, &reply); err != nil || reply.C != 1 {
		t.Errorf("got %v, %v", reply, err)
	}
}

// Messages that the server pushes arrive in order, while a call with the same number waits.
func TestYodelClientPush(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	pushed := make(chan string, 100)
	local := yodel.NewServer(nil)
	if err := local.Handle("topic.Event", func(ctx context.Context, in *[]byte, _ *struct{}) error {
		pushed <- string(*in) + yodel.CallFrom(ctx).Metadata["k"]
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var dropped atomic.Int64
	c := calling(t, s.addr, yodel.ClientOptions{Wires: []yodel.Wire{rpcx.WireWith(msgpack.Codec, &rpcx.WireOptions{Push: local, Dropped: &dropped})}})
	outcome := make(chan error, 1)
	var reply Reply
	go func() { outcome <- c.Call(within(t), "Arith.Wait", &Args{A: 5}, &reply) }()
	await.Value(t, s.began, "the beginning of a call")
	conns := s.ActiveClientConn()
	if len(conns) != 1 {
		t.Fatalf("%d connections", len(conns))
	}
	for i := range 50 {
		if err := s.SendMessage(conns[0], "topic", "Event", map[string]string{"k": "v"}, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		if got, want := await.Value(t, pushed, "a pushed message"), fmt.Sprint(i, "v"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	close(s.release)
	if err := await.Value(t, outcome, "the outcome of the call"); err != nil || reply.C != 5 || dropped.Load() != 0 {
		t.Errorf("got %v, %v, and %d messages were dropped", reply, err, dropped.Load())
	}
}

func TestYodelClientConcurrency(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{})
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			var reply Reply
			if err := c.Call(within(t), "Arith.Sleep", &Args{i, rand.IntN(50)}, &reply); err != nil || reply.C != i {
				t.Errorf("call %d: got %v, %v", i, reply, err)
			}
		})
	}
	all.Wait()
}

func TestYodelClientShutdown(t *testing.T) {
	s := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	c := calling(t, s.addr, yodel.ClientOptions{})
	const calls = 20
	outcomes := make(chan error, calls)
	for i := range calls {
		go func() {
			var reply Reply
			err := c.Call(within(t), "Arith.Wait", &Args{A: i}, &reply)
			if err == nil && reply.C != i {
				err = errors.New("the reply to another call")
			}
			outcomes <- err
		}()
	}
	for range calls {
		await.Value(t, s.began, "the beginning of a call")
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(within(t)) }()
	close(s.release)
	for range calls {
		if err := await.Value(t, outcomes, "the outcome of a call"); err != nil {
			t.Errorf("a call in flight: %v", err)
		}
	}
	if err := await.Value(t, stopped, "the end of the server"); err != nil {
		t.Error(err)
	}
	if err := c.Call(within(t), "Arith.Mul", &Args{}, &Reply{}); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("after the shutdown: got %v", err)
	}
}
