// SPDX-License-Identifier: Apache-2.0

// drpc, with code generated for vtprotobuf and a pool of connections, since each carries one call
// at a time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"storj.io/drpc/drpcconn"
	"storj.io/drpc/drpcmanager"
	"storj.io/drpc/drpcmux"
	"storj.io/drpc/drpcserver"
	"storj.io/drpc/drpcstream"
	"storj.io/drpc/drpcwire"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/drpc/suite"
)

const most = 32 // connections, unless more are asked for: with more, 1000 callers have fewer calls a second

func main() {
	peer.Main(peer.Peer{
		Name:   "drpc",
		Module: "storj.io/drpc",
		Setup: "vtprotobuf; a pool of at most 32 connections, since each carries one call at a time; ManualFlush in the server " +
			"(a reply is one write, a stream leaves by 16 KiB); the pool alternates where there are several servers",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve: serve,
		Dial:  dial,
	})
}

type server struct{}

func (server) Message(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(m)
	return m, nil
}

func (server) Echo(_ context.Context, b *suite.Body) (*suite.Body, error) { return b, nil }

func (server) Kiss(_ context.Context, v *suite.Values) (*suite.Values, error) {
	return encoded(decoded(v).Answer()), nil
}

func (server) Stream(o *suite.Order, s suite.DRPCSuite_StreamStream) error {
	for range o.Messages {
		if err := s.Send(&suite.Body{Data: o.Data}); err != nil {
			return err
		}
	}
	return nil
}

func encoded(v peer.Values) *suite.Values {
	return &suite.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

func decoded(v *suite.Values) peer.Values {
	return peer.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

// options let the largest bodies pass.
func options(manualFlush bool) drpcmanager.Options {
	return drpcmanager.Options{
		WriterBufferSize: 16 << 10,
		Reader:           drpcwire.ReaderOptions{MaximumBufferSize: 64 << 20},
		Stream:           drpcstream.Options{ManualFlush: manualFlush},
	}
}

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	mux := drpcmux.New()
	if err := suite.DRPCRegisterSuite(mux, server{}); err != nil {
		return "", nil, errors.Join(err, l.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := drpcserver.NewWithOptions(mux, drpcserver.Options{Manager: options(true)})
	go func() { _ = s.Serve(ctx, l) }() // It ends by stop.
	return l.Addr().String(), stop, nil
}

// A client has a pool of connections: every call takes one and returns it.
type client struct {
	o    peer.Options
	all  []*drpcconn.Conn
	idle chan *drpcconn.Conn
}

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	n := o.Conns * len(o.Addrs)
	if n == 0 {
		n = max(min(o.Callers, most), len(o.Addrs))
	}
	c := &client{o: o, idle: make(chan *drpcconn.Conn, n)}
	for i := range n {
		transport, err := new(net.Dialer).DialContext(ctx, "tcp", o.Addrs[i%len(o.Addrs)])
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		one := drpcconn.NewWithOptions(transport, drpcconn.Options{Manager: options(false)})
		c.all = append(c.all, one)
		c.idle <- one
	}
	return c, nil
}

// with makes one call on an idle connection.
func (c *client) with(call func(suite.DRPCSuiteClient) error) error {
	one := <-c.idle
	defer func() { c.idle <- one }()
	return call(suite.NewDRPCSuiteClient(one))
}

func (c *client) Caller() (func() error, error) {
	call, err := c.call(context.Background())
	return func() error { return c.with(call) }, err
}

func (c *client) call(ctx context.Context) (func(suite.DRPCSuiteClient) error, error) {
	switch c.o.Work {
	case peer.Message:
		m := message.New()
		return func(stub suite.DRPCSuiteClient) error {
			reply, err := stub.Message(ctx, m)
			if err != nil {
				return err
			}
			return message.Check(reply)
		}, nil
	case peer.Echo:
		body := &suite.Body{Data: peer.Body(c.o.Size)}
		return func(stub suite.DRPCSuiteClient) error {
			reply, err := stub.Echo(ctx, body)
			if err != nil {
				return err
			}
			return peer.CheckBody(reply.Data, body.Data)
		}, nil
	case peer.Kiss:
		v := encoded(peer.Asked())
		return func(stub suite.DRPCSuiteClient) error {
			reply, err := stub.Kiss(ctx, v)
			if err != nil {
				return err
			}
			return decoded(reply).CheckAnswer()
		}, nil
	case peer.Stream:
		o := &suite.Order{Data: peer.Body(c.o.Size), Messages: int64(c.o.Messages)}
		return func(stub suite.DRPCSuiteClient) error { return stream(ctx, stub, o) }, nil
	default:
		return nil, fmt.Errorf("drpc does not do %s here", c.o.Work)
	}
}

func stream(ctx context.Context, stub suite.DRPCSuiteClient, o *suite.Order) error {
	s, err := stub.Stream(ctx, o)
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF) && n == o.Messages:
			return s.Close()
		case err != nil:
			return errors.Join(fmt.Errorf("after %d messages of %d: %w", n, o.Messages, err), s.Close())
		}
		if err := peer.CheckBody(m.Data, o.Data); err != nil {
			return errors.Join(err, s.Close())
		}
	}
}

func (c *client) Close() error {
	var errs []error
	for _, one := range c.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}
