// SPDX-License-Identifier: Apache-2.0

// rpcx, with handlers that need no reflection and the message's generated code as its codec.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/log"
	"github.com/smallnest/rpcx/protocol"
	"github.com/smallnest/rpcx/server"
	"github.com/smallnest/rpcx/share"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/rpcx/suite"
)

func main() {
	log.SetDummyLogger()
	share.RegisterCodec(protocol.ProtoBuffer, codec{})
	share.RegisterCodec(gobType, gobCodec{})
	peer.Main(peer.Peer{
		Name:   "rpcx",
		Module: "github.com/smallnest/rpcx",
		Setup: "AddHandler, WithPool(100, 1000000), no HTTP gateway, no JSON-RPC; vtprotobuf as its codec for protobuf; " +
			"one connection, by Client; XClient and round robin where there are several servers; a caller's replies decoded into the same variable",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Plain},
		Serve: serve,
		Dial:  dial,
	})
}

// codec does for rpcx's protobuf what the methods that gogo generates did in its own codec.
type codec struct{}

type encoder interface{ MarshalVT() ([]byte, error) }

type decoder interface {
	Reset()
	UnmarshalVT([]byte) error
}

func (codec) Encode(v any) ([]byte, error) { return v.(encoder).MarshalVT() }

func (codec) Decode(b []byte, v any) error {
	m := v.(decoder)
	m.Reset() // it may be a reply that is used again
	return m.UnmarshalVT(b)
}

// raw is bytes that are not encoded.
type raw []byte

func (r raw) MarshalVT() ([]byte, error) { return r, nil }

func (r *raw) Reset() { *r = nil }

func (r *raw) UnmarshalVT(b []byte) error {
	*r = b
	return nil
}

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s := server.NewServer(server.WithPool(100, 1_000_000)) // As in rpcx-benchmark.
	s.DisableHTTPGateway, s.DisableJSONRPC = true, true
	s.AddHandler("Suite", "message", func(ctx *server.Context) error {
		var m message.BenchmarkMessage
		if err := ctx.Bind(&m); err != nil {
			return err
		}
		message.Answer(&m)
		return ctx.Write(&m)
	})
	s.AddHandler("Suite", "echo", func(ctx *server.Context) error { return ctx.Write(raw(ctx.Payload())) })
	s.AddHandler("Suite", "kiss", func(ctx *server.Context) error {
		var v suite.Values
		if err := ctx.Bind(&v); err != nil {
			return err
		}
		return ctx.Write(encoded(decoded(&v).Answer()))
	})
	if err := s.RegisterName("Plain", plainService{}, ""); err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeListener("tcp", l) }()
	select {
	case <-s.Started:
	case err := <-ended:
		return "", nil, err
	}
	return l.Addr().String(), func() { _ = s.Close() }, nil
}

func encoded(v peer.Values) *suite.Values {
	return &suite.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

func decoded(v *suite.Values) peer.Values {
	return peer.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

// A connected client is that of one server or more.
type connected struct {
	method string
	args   encoder
	reply  func() decoder
	check  func(decoder) error

	clients []caller
	next    atomic.Uint64
	replies chan *client.Call // of Start
	open    atomic.Int64      // calls of Start that are not done
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	if o.Work == peer.Plain {
		return dialPlain(o)
	}
	c := &connected{method: string(o.Work)}
	switch o.Work {
	case peer.Message:
		c.args = message.New()
		c.reply = func() decoder { return new(message.BenchmarkMessage) }
		c.check = func(r decoder) error { return message.Check(r.(*message.BenchmarkMessage)) }
	case peer.Echo:
		body := raw(peer.Body(o.Size))
		c.args = body
		c.reply = func() decoder { return new(raw) }
		c.check = func(r decoder) error { return peer.CheckBody(*r.(*raw), body) }
	case peer.Kiss:
		c.args = encoded(peer.Asked())
		c.reply = func() decoder { return new(suite.Values) }
		c.check = func(r decoder) error { return decoded(r.(*suite.Values)).CheckAnswer() }
	default:
		return nil, fmt.Errorf("rpcx does not do %s here", o.Work)
	}
	for range max(o.Conns, 1) {
		one, err := connect(o.Addrs)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.clients = append(c.clients, one)
	}
	if o.Async {
		c.replies = make(chan *client.Call, 1<<16)
		go c.collect()
	}
	return c, nil
}

// A caller is what Client and XClient have in common.
type caller interface {
	Call(ctx context.Context, method string, args, reply any) error
	Go(ctx context.Context, method string, args, reply any, done chan *client.Call) (*client.Call, error)
	Close() error
}

// single makes of the client of one server, which is the faster, what an XClient is.
type single struct{ *client.Client }

func (s single) Call(ctx context.Context, method string, args, reply any) error {
	return s.Client.Call(ctx, "Suite", method, args, reply)
}

func (s single) Go(ctx context.Context, method string, args, reply any, done chan *client.Call) (*client.Call, error) {
	return s.Client.Go(ctx, "Suite", method, args, reply, done), nil
}

func connect(addrs []string) (caller, error) {
	option := client.DefaultOption
	option.SerializeType = protocol.ProtoBuffer
	if len(addrs) == 1 {
		c := client.NewClient(option)
		return single{c}, c.Connect("tcp", addrs[0])
	}
	var servers []*client.KVPair
	for _, addr := range addrs {
		servers = append(servers, &client.KVPair{Key: "tcp@" + addr})
	}
	d, err := client.NewMultipleServersDiscovery(servers)
	if err != nil {
		return nil, err
	}
	return client.NewXClient("Suite", client.Failtry, client.RoundRobin, d, option), nil
}

func (c *connected) Caller() (func() error, error) {
	one, reply := c.clients[int(c.next.Add(1))%len(c.clients)], c.reply()
	return func() error {
		if err := one.Call(context.Background(), c.method, c.args, reply); err != nil {
			return err
		}
		return c.check(reply)
	}, nil
}

// CallerOf is Caller for an echo of another size.
func (c *connected) CallerOf(size int) (func() error, error) {
	one, body := c.clients[int(c.next.Add(1))%len(c.clients)], raw(peer.Body(size))
	return func() error {
		var reply raw
		if err := one.Call(context.Background(), c.method, body, &reply); err != nil {
			return err
		}
		return peer.CheckBody(reply, body)
	}, nil
}

// pending is the reply of a call of Start.
type pending struct {
	decoder
	done func(error)
}

func (c *connected) Start(done func(error)) {
	if c.open.Add(1) > int64(cap(c.replies)) { // rpcx drops what its channel does not take.
		c.open.Add(-1)
		done(errors.New("too many calls are open"))
		return
	}
	one := c.clients[int(c.next.Add(1))%len(c.clients)]
	if _, err := one.Go(context.Background(), c.method, c.args, &pending{c.reply(), done}, c.replies); err != nil {
		c.open.Add(-1)
		done(err)
	}
}

// collect runs as long as the program, since a closed Client still ends its calls.
func (c *connected) collect() {
	for call := range c.replies {
		c.open.Add(-1)
		reply, err := call.Reply.(*pending), call.Error
		if err == nil {
			err = c.check(reply.decoder)
		}
		reply.done(err)
	}
}

func (c *connected) Close() error {
	var errs []error
	for _, one := range c.clients {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}
