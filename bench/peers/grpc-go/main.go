// SPDX-License-Identifier: Apache-2.0

// gRPC of Google for Go, with generated code, windows that hold up no call.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/grpc-go/suite"
)

const (
	streamWindow = 32 << 20 // of the largest body twice: no call waits for its window.
	connWindow   = 256 << 20
)

func main() {
	peer.Main(peer.Peer{
		Name:   "grpc-go",
		Module: "google.golang.org/grpc",
		Setup: "google.golang.org/protobuf; static windows of 32 MiB (stream) and 256 MiB (connection); " +
			"its buffers of 32 KiB, since larger ones do not make it faster; one connection; round_robin where there are several servers",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream, peer.Wait, peer.Duplex},
		Serve: serve, ServeTLS: serveTLS, Dial: dial,
		Deadlines: true,
	})
}

type server struct{ suite.UnimplementedSuiteServer }

func (server) Message(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(m)
	return m, nil
}

func (server) Echo(_ context.Context, b *suite.Body) (*suite.Body, error) { return b, nil }

func (server) Kiss(_ context.Context, v *suite.Values) (*suite.Values, error) {
	return encoded(decoded(v).Answer()), nil
}

func (server) Stream(o *suite.Order, s grpc.ServerStreamingServer[suite.Body]) error {
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

func serve(addr string) (string, func(), error) {
	return serveWith(addr, insecure.NewCredentials())
}

func serveTLS(addr string, config *tls.Config) (string, func(), error) {
	return serveWith(addr, credentials.NewTLS(config))
}

func serveWith(addr string, security credentials.TransportCredentials) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s := grpc.NewServer(
		grpc.Creds(security),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
	)
	suite.RegisterSuiteServer(s, server{})
	suite.RegisterWiresServer(s, wires{})
	go func() { _ = s.Serve(l) }() // It ends by Stop.
	return l.Addr().String(), s.Stop, nil
}

// A client has as many channels as connections to each server.
type client struct {
	o        peer.Options
	channels []*grpc.ClientConn
	next     atomic.Uint64
}

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	c := &client{o: o}
	for range max(o.Conns, 1) {
		channel, err := connect(ctx, o)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.channels = append(c.channels, channel)
	}
	return c, nil
}

func connect(ctx context.Context, o peer.Options) (*grpc.ClientConn, error) {
	addrs, security := o.Addrs, insecure.NewCredentials()
	if o.TLS != nil {
		security = credentials.NewTLS(o.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	}
	target := "passthrough:///" + addrs[0]
	if len(addrs) > 1 {
		servers := manual.NewBuilderWithScheme("servers")
		var state resolver.State
		for _, addr := range addrs {
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}})
		}
		servers.InitialState(state)
		options = append(options, grpc.WithResolvers(servers),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
		target = "servers:///all"
	}
	channel, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, err
	}
	channel.Connect()
	for state := channel.GetState(); state != connectivity.Ready; state = channel.GetState() {
		if !channel.WaitForStateChange(ctx, state) {
			return nil, errors.Join(ctx.Err(), channel.Close())
		}
	}
	return channel, nil
}

// channel takes the channels in turn.
func (c *client) channel() *grpc.ClientConn {
	return c.channels[int(c.next.Add(1))%len(c.channels)]
}

func (c *client) Caller() (func() error, error) {
	channel := c.channel()
	stub := suite.NewSuiteClient(channel)
	switch c.o.Work {
	case peer.Message:
		m := message.New()
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Message(ctx, m)
			if err != nil {
				return err
			}
			return message.Check(reply)
		}, nil
	case peer.Echo:
		return c.echo(stub, c.o.Size), nil
	case peer.Kiss:
		v := encoded(peer.Asked())
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Kiss(ctx, v)
			if err != nil {
				return err
			}
			return decoded(reply).CheckAnswer()
		}, nil
	case peer.Stream:
		o := &suite.Order{Data: peer.Body(c.o.Size), Messages: int64(c.o.Messages)}
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			return stream(ctx, stub, o)
		}, nil
	case peer.Wait, peer.Duplex:
		return c.wires(suite.NewWiresClient(channel)), nil
	default:
		return nil, fmt.Errorf("grpc-go does not do %s here", c.o.Work)
	}
}

// CallerOf returns a caller of an echo.
func (c *client) CallerOf(size int) (func() error, error) {
	return c.echo(suite.NewSuiteClient(c.channel()), size), nil
}

func (c *client) echo(stub suite.SuiteClient, size int) func() error {
	body := &suite.Body{Data: peer.Body(size)}
	return func() error {
		ctx, cancel := c.o.Context()
		defer cancel()
		reply, err := stub.Echo(ctx, body)
		if err != nil {
			return err
		}
		return peer.CheckBody(reply.Data, body.Data)
	}
}

func stream(ctx context.Context, stub suite.SuiteClient, o *suite.Order) error {
	s, err := stub.Stream(ctx, o)
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		m, err := s.Recv()
		switch {
		case err == io.EOF && n == o.Messages:
			return nil
		case err != nil:
			return fmt.Errorf("after %d messages of %d: %w", n, o.Messages, err)
		}
		if err := peer.CheckBody(m.Data, o.Data); err != nil {
			return err
		}
	}
}

func (c *client) Close() error {
	var errs []error
	for _, channel := range c.channels {
		errs = append(errs, channel.Close())
	}
	return errors.Join(errs...)
}
