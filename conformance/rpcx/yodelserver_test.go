// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/protocol"
	"github.com/smallnest/rpcx/share"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/internal/await"
	yodeltls "github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/transport/unix"
)

var serializeTypes = map[string]protocol.SerializeType{
	"raw": protocol.SerializeNone, "json": protocol.JSON, "protobuf": protocol.ProtoBuffer, "gogo": protocol.ProtoBuffer, "msgpack": protocol.MsgPack,
}

func option(codec string) client.Option {
	o := client.DefaultOption
	o.SerializeType, o.Heartbeat, o.IdleTimeout = serializeTypes[codec], false, 0
	return o
}

func dial(t testing.TB, network, addr string, o client.Option) *client.Client {
	t.Helper()
	c := client.NewClient(o)
	if err := c.Connect(network, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return c
}

// within returns a context that bounds a call.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRPCXClientCodecs(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{Limits: yodel.Limits{MaxDecompressed: 32 << 20}}) // gzip makes the messages 100 times as small
	for codec := range serializeTypes {
		for _, compress := range []protocol.CompressType{protocol.None, protocol.Gzip} {
			t.Run(fmt.Sprint(codec, " ", compress), func(t *testing.T) {
				o := option(codec)
				o.CompressType = compress
				c := dial(t, "tcp", s.addr, o)
				for _, n := range fits(codec) {
					data := payload(n)
					m := sampleOf(codec, data)
					m.check(t, data, c.Call(within(t), "Arith", m.method, m.args, m.reply))
				}
			})
		}
	}
}

func TestRPCXClientTransports(t *testing.T) {
	certificate, roots := selfSigned(t)
	overTLS := &yodeltls.Transport{Server: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}}
	for name, test := range map[string]struct {
		network, addr string
		transport     yodel.Transport
	}{
		"tcp":  {"tcp", "127.0.0.1:0", nil},
		"tls":  {"tcp", "127.0.0.1:0", overTLS},
		"unix": {"unix", filepath.Join(t.TempDir(), "s"), unix.Transport{}},
		"http": {"http", "127.0.0.1:0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveYodel(t, test.addr, yodel.ServerOptions{Transport: test.transport})
			o := option("json")
			if name == "tls" {
				o.TLSConfig = &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
			}
			c := dial(t, test.network, s.addr, o)
			var reply Reply
			if err := c.Call(within(t), "Arith", "Mul", &Args{6, 7}, &reply); err != nil || reply.C != 42 {
				t.Errorf("got %v, %v", reply, err)
			}
		})
	}
}

func TestRPCXClientMetadata(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	c := dial(t, "tcp", s.addr, option("msgpack"))
	sent, got := hundred(), make(map[string]string)
	ctx := context.WithValue(within(t), share.ReqMetaDataKey, maps.Clone(sent))
	ctx = context.WithValue(ctx, share.ResMetaDataKey, got)
	if err := c.Call(ctx, "Arith", "Metadata", &Args{}, &Reply{}); err != nil {
		t.Fatal(err)
	}
	delete(got, share.ServerAddress)
	if !maps.Equal(got, sent) {
		t.Errorf("got %q, want %q", got, sent)
	}
}

func TestRPCXClientErrors(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	c := dial(t, "tcp", s.addr, option("json"))
	for _, test := range []struct{ path, method, want string }{
		{"Arith", "Fail", "boom"},
		{"Arith", "Half", "only half of it"},
		{"Arith", "Nope", "rpcx: can't find method Nope"},
		{"Nope", "Mul", "rpcx: can't find service Nope"},
		{"Arith", "Panic", "internal: Arith.Panic: "},
	} {
		reply := Reply{-1}
		err := c.Call(within(t), test.path, test.method, &Args{5, 6}, &reply)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "oh") {
			t.Errorf("%s.%s: got %v", test.path, test.method, err)
		}
		if test.method == "Half" && reply.C != 5 {
			t.Errorf("the reply beside an error is %v", reply)
		}
	}
	share.RegisterCodec(9, share.Codecs[protocol.JSON])
	o := option("json")
	o.SerializeType = 9
	if err := dial(t, "tcp", s.addr, o).Call(within(t), "Arith", "Mul", &Args{}, &Reply{}); err == nil || err.Error() != "can not find codec for 9" {
		t.Errorf("an unknown codec: got %v", err)
	}
}

func TestRPCXClientAuth(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Metadata["authorization"] != "good" {
				return yodel.Errorf(yodel.Unauthenticated, "invalid token")
			}
			return next(ctx, call)
		}
	}}})
	c := dial(t, "tcp", s.addr, option("json"))
	with := func(token string) context.Context {
		return context.WithValue(within(t), share.ReqMetaDataKey, map[string]string{share.AuthKey: token})
	}
	var reply Reply
	if err := c.Call(with("good"), "Arith", "Mul", &Args{2, 3}, &reply); err != nil || reply.C != 6 {
		t.Errorf("got %v, %v", reply, err)
	}
	if err := c.Call(with("bad"), "Arith", "Mul", &Args{2, 3}, &reply); err == nil || !strings.Contains(err.Error(), "invalid token") {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); !c.IsShutdown(); { // the server closes the connection
		if time.Now().After(deadline) {
			t.Fatal("the connection does not end")
		}
		<-time.After(time.Millisecond)
	}
}

func TestRPCXClientDeadlineAndOneWay(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	d, err := client.NewPeer2PeerDiscovery("tcp@"+s.addr, "")
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewXClient("Arith", client.Failtry, client.RandomSelect, d, option("json"))
	defer c.Close()
	var reply Reply
	if err = c.Call(within(t), "Left", &Args{}, &reply); err != nil || reply.C > 20_000 || reply.C < 15_000 {
		t.Errorf("got %v ms, %v, want less than 20 s", reply.C, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err = c.Call(ctx, "Wait", &Args{}, &reply); err == nil {
		t.Error("a call succeeded after its deadline")
	}
	await.Value(t, s.began, "the beginning of a call")
	if err = c.Call(within(t), "Note", &Args{A: 7}, nil); err != nil {
		t.Fatal(err)
	}
	if got := await.Value(t, s.noted, "a one-way call"); got != 7 {
		t.Errorf("got %d", got)
	}
	if err = c.Call(within(t), "Mul", &Args{2, 3}, &reply); err != nil || reply.C != 6 {
		t.Errorf("after a one-way call: got %v, %v", reply, err)
	}
}

// Rpcx's client sends heartbeats, and closes the connection if one fails. A server echoes a
// heartbeat of any size.
func TestRPCXClientHeartbeats(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	o := option("msgpack")
	o.Heartbeat, o.HeartbeatInterval = true, 5*time.Millisecond
	c := dial(t, "tcp", s.addr, o)
	var reply Reply
	if err := c.Call(within(t), "Arith", "Sleep", &Args{1, 300}, &reply); err != nil || reply.C != 1 || c.IsShutdown() {
		t.Errorf("got %v, %v", reply, err)
	}
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, n := range []int{0, 9, 1000} {
		m := protocol.NewMessage()
		m.SetMessageType(protocol.Request)
		m.SetHeartbeat(true)
		m.SetSeq(uint64(n))
		m.Metadata = map[string]string{"k": "v"}
		m.Payload = payload(n)
		if _, err = conn.Write(m.Encode()); err != nil {
			t.Fatal(err)
		}
		got := protocol.NewMessage()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err = got.Decode(conn); err != nil || got.MessageType() != protocol.Response || !got.IsHeartbeat() || string(got.Payload) != string(m.Payload) || got.Metadata["k"] != "v" {
			t.Errorf("%d bytes: got %+v, %v", n, got, err)
		}
	}
}

func TestRPCXClientConcurrency(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	c := dial(t, "tcp", s.addr, option("msgpack"))
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			var reply Reply
			if err := c.Call(within(t), "Arith", "Sleep", &Args{i, rand.IntN(50)}, &reply); err != nil || reply.C != i {
				t.Errorf("call %d: got %v, %v", i, reply, err)
			}
		})
	}
	all.Wait()
}

func TestRPCXClientShutdown(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	c := dial(t, "tcp", s.addr, option("json"))
	const calls = 20
	outcomes := make(chan error, calls)
	for i := range calls {
		go func() {
			var reply Reply
			err := c.Call(within(t), "Arith", "Wait", &Args{A: i}, &reply)
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
	go func() { stopped <- s.stop() }()
	close(s.release)
	for range calls {
		if err := await.Value(t, outcomes, "the outcome of a call"); err != nil {
			t.Errorf("a call in flight: %v", err)
		}
	}
	if err := await.Value(t, stopped, "the end of the server"); err != nil {
		t.Error(err)
	}
}

func TestXClientWithSeveralServers(t *testing.T) {
	one, two := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{}), serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	theirs := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	d, err := client.NewMultipleServersDiscovery([]*client.KVPair{{Key: "tcp@" + one.addr}, {Key: "tcp@" + two.addr}, {Key: "tcp@" + theirs.addr}})
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewXClient("Arith", client.Failover, client.RoundRobin, d, option("msgpack"))
	defer c.Close()
	for i := range 30 {
		if err = c.Call(within(t), "Note", &Args{A: i}, &Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(one.noted) != 10 || len(two.noted) != 10 || len(theirs.noted) != 10 {
		t.Errorf("the servers got %d, %d and %d calls, want 10 each", len(one.noted), len(two.noted), len(theirs.noted))
	}
	if err = one.stop(); err != nil { // the others take its calls
		t.Fatal(err)
	}
	for i := range 30 {
		if err = c.Call(within(t), "Note", &Args{A: i}, &Reply{}); err != nil {
			t.Errorf("after the end of a server: %v", err)
		}
	}
}

// Rpcx's clients get the messages that a yodel server pushes, in order, while a call waits.
func TestRPCXClientPush(t *testing.T) {
	s := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	d, err := client.NewPeer2PeerDiscovery("tcp@"+s.addr, "")
	if err != nil {
		t.Fatal(err)
	}
	messages := make(chan *protocol.Message, 100)
	x := client.NewBidirectionalXClient("Arith", client.Failfast, client.RandomSelect, d, option("msgpack"), messages)
	defer x.Close()
	c := dial(t, "tcp", s.addr, option("json"))
	own := make(chan *protocol.Message, 100)
	c.RegisterServerMessageChan(own)
	outcomes := make(chan error, 2)
	replies := [2]Reply{}
	go func() { outcomes <- x.Call(within(t), "Wait", &Args{A: 5}, &replies[0]) }()
	go func() { outcomes <- c.Call(within(t), "Arith", "Wait", &Args{A: 6}, &replies[1]) }()
	await.Value(t, s.began, "the beginning of a call")
	await.Value(t, s.began, "the beginning of a call")
	peers := s.Peers()
	if len(peers) != 2 {
		t.Fatalf("%d peers", len(peers))
	}
	const n = 50
	for i := range n {
		payload := fmt.Append(nil, i)
		for _, peer := range peers {
			err = peer.Do(within(t), &yodel.Call{Method: "topic.Event", Args: &payload, Codec: raw.Codec, OneWay: true, Metadata: yodel.Metadata{"k": "v"}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, from := range []chan *protocol.Message{messages, own} {
		for i := range n {
			select {
			case m := <-from:
				if m.ServicePath != "topic" || m.ServiceMethod != "Event" || string(m.Payload) != fmt.Sprint(i) || !maps.Equal(m.Metadata, map[string]string{"k": "v"}) || m.SerializeType() != protocol.SerializeNone {
					t.Errorf("message %d: got %+v", i, m)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("message %d does not arrive", i)
			}
		}
	}
	close(s.release)
	for range 2 {
		if err = await.Value(t, outcomes, "the outcome of a call"); err != nil {
			t.Error(err)
		}
	}
	if replies[0].C+replies[1].C != 11 {
		t.Errorf("the replies are %v", replies)
	}
}
