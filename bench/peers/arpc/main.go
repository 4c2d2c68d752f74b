// SPDX-License-Identifier: Apache-2.0

// arpc, with pools, batched writes and the message's generated code as its codec.
package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/lesismal/arpc"
	"github.com/lesismal/arpc/codec"
	"github.com/lesismal/arpc/log"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/arpc/suite"
)

func main() {
	log.SetLevel(log.LevelNone)
	codec.SetCodec(vt{})
	peer.Main(peer.Peer{
		Name:   "arpc",
		Module: "github.com/lesismal/arpc",
		Setup: "EnablePool, handlers run by the reader (async false), SendBufferSize 64 KiB, RecvBufferSize 32 KiB; " +
			"vtprotobuf as its codec; one connection, NewClientPoolFromDialers where there are several servers; " +
			"a caller's replies decoded into the same variable",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss},
		Serve: serve,
		Dial:  dial,
	})
}

// vt is a codec by the methods that vtprotobuf has generated.
type vt struct{}

type encoder interface{ MarshalVT() ([]byte, error) }

type decoder interface {
	Reset()
	UnmarshalVT([]byte) error
}

func (vt) Marshal(v any) ([]byte, error) { return v.(encoder).MarshalVT() }

func (vt) Unmarshal(b []byte, v any) error {
	m := v.(decoder)
	m.Reset() // it may be a reply that is used again
	return m.UnmarshalVT(b)
}

// tune sets what servers and clients have in common.
func tune(h arpc.Handler) {
	h.EnablePool(true)
	h.SetSendBufferSize(64 << 10) // Without it every message is written alone.
	h.SetRecvBufferSize(32 << 10)
}

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s := arpc.NewServer()
	tune(s.Handler)
	const inline = false
	s.Handler.Handle("message", func(ctx *arpc.Context) {
		var m message.BenchmarkMessage
		if err := ctx.Bind(&m); err != nil {
			_ = ctx.Error(err)
			return
		}
		message.Answer(&m)
		_ = ctx.Write(&m)
	}, inline)
	s.Handler.Handle("echo", func(ctx *arpc.Context) { _ = ctx.Write(ctx.Body()) }, inline)
	s.Handler.Handle("kiss", func(ctx *arpc.Context) {
		var v suite.Values
		if err := ctx.Bind(&v); err != nil {
			_ = ctx.Error(err)
			return
		}
		_ = ctx.Write(encoded(decoded(&v).Answer()))
	}, inline)
	go func() { _ = s.Serve(l) }() // It ends by Stop.
	return l.Addr().String(), func() { _ = s.Stop() }, nil
}

func encoded(v peer.Values) *suite.Values {
	return &suite.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

func decoded(v *suite.Values) peer.Values {
	return peer.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

// A client is connected to one server or more.
type client struct {
	method string
	args   any
	reply  func() any
	check  func(any) error

	pool  *arpc.ClientPool
	round bool // Calls go round the connections: there are several servers.
	next  atomic.Uint64
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c := &client{method: string(o.Work), round: len(o.Addrs) > 1}
	switch o.Work {
	case peer.Message:
		c.args = message.New()
		c.reply = func() any { return new(message.BenchmarkMessage) }
		c.check = func(r any) error { return message.Check(r.(*message.BenchmarkMessage)) }
	case peer.Echo:
		body := peer.Body(o.Size)
		c.args = body
		c.reply = func() any { return new([]byte) }
		c.check = func(r any) error { return peer.CheckBody(*r.(*[]byte), body) }
	case peer.Kiss:
		c.args = encoded(peer.Asked())
		c.reply = func() any { return new(suite.Values) }
		c.check = func(r any) error { return decoded(r.(*suite.Values)).CheckAnswer() }
	default:
		return nil, fmt.Errorf("arpc does not do %s here", o.Work)
	}
	h := arpc.DefaultHandler.Clone()
	tune(h)
	var dialers []arpc.DialerFunc
	for range max(o.Conns, 1) {
		for _, addr := range o.Addrs {
			dialers = append(dialers, func() (net.Conn, error) { return net.DialTimeout("tcp", addr, 3*time.Second) })
		}
	}
	var err error
	c.pool, err = arpc.NewClientPoolFromDialers(dialers, h)
	return c, err
}

func (c *client) Caller() (func() error, error) {
	own, reply := c.pool.Get(int(c.next.Add(1))), c.reply()
	return func() error {
		to := own
		if c.round {
			to = c.pool.Next()
		}
		if err := to.CallContext(context.Background(), c.method, c.args, reply); err != nil {
			return err
		}
		return c.check(reply)
	}, nil
}

// CallerOf is Caller for an echo of another size.
func (c *client) CallerOf(size int) (func() error, error) {
	own, body := c.pool.Get(int(c.next.Add(1))), peer.Body(size)
	return func() error {
		var reply []byte
		if err := own.CallContext(context.Background(), c.method, body, &reply); err != nil {
			return err
		}
		return peer.CheckBody(reply, body)
	}, nil
}

func (c *client) Start(done func(error)) {
	err := c.pool.Next().CallAsync(c.method, c.args, func(ctx *arpc.Context, err error) {
		reply := c.reply()
		if err == nil {
			err = ctx.Bind(reply)
		}
		if err == nil {
			err = c.check(reply)
		}
		done(err)
	}, arpc.TimeForever)
	if err != nil { // The function above was not called then.
		done(err)
	}
}

func (c *client) Close() error {
	c.pool.Stop()
	return nil
}
