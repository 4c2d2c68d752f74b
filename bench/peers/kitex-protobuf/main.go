// SPDX-License-Identifier: Apache-2.0

// Kitex with protobuf over multiplexed connections.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"time"

	"github.com/cloudwego/kitex/client"
	"github.com/cloudwego/kitex/pkg/klog"
	"github.com/cloudwego/kitex/pkg/remote/trans/netpollmux"
	"github.com/cloudwego/kitex/server"
	"github.com/cloudwego/kitex/transport"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/kitex-protobuf/gen/bench"
	"github.com/yodel-rpc/yodel/bench/peers/kitex-protobuf/gen/bench/multiplexed"
	"github.com/yodel-rpc/yodel/bench/peers/kitex-protobuf/gen/bench/streams"
)

// The tool is the one of go.mod.
//
//go:generate sh -c "mkdir -p gen && sed 's|^option go_package.*|option go_package = \"github.com/yodel-rpc/yodel/bench/peers/kitex-protobuf/gen/bench\";|' ../../message/benchmark.proto > gen/benchmark.proto"
//go:generate go tool kitex -module github.com/yodel-rpc/yodel/bench/peers/kitex-protobuf -gen-path gen -streamx -I gen bench.proto
//go:generate sed -i "s|^package|// Package bench is generated from bench.proto and benchmark.proto.\\n&|" gen/bench/bench.pb.go

func main() {
	klog.SetLevel(klog.LevelError) // they go to standard error
	peer.Main(peer.Peer{
		Name:   "kitex-protobuf",
		Module: "github.com/cloudwego/kitex",
		Setup:  "code generated for prutal, one multiplexed connection; streams by gRPC",
		Works:  []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve:  serve,
		Dial:   dial,
	})
}

type handler struct{ streamsAddr string }

func (*handler) Say(_ context.Context, m *bench.BenchmarkMessage) (*bench.BenchmarkMessage, error) {
	m.Field1, m.Field2 = new("OK"), new(int32(100))
	return m, nil
}

func (*handler) Echo(_ context.Context, body *bench.Body) (*bench.Body, error) { return body, nil }

func (*handler) Kiss(_ context.Context, k *bench.Values) (*bench.Values, error) {
	return &bench.Values{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}, nil
}

func (h *handler) Where(context.Context, *bench.Address) (*bench.Address, error) {
	return &bench.Address{Streams: h.streamsAddr}, nil
}

func (*handler) Stream(ctx context.Context, request *bench.StreamRequest, stream bench.Streams_StreamServer) error {
	for range request.Messages {
		if err := stream.Send(ctx, &bench.Body{Body: request.Body}); err != nil {
			return err
		}
	}
	return nil
}

// serve starts two servers: the one of multiplexed connections says where the other is, which
// serves streams.
func serve(addr string) (string, func(), error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	forStreams, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, errors.Join(err, listener.Close())
	}
	h := &handler{forStreams.Addr().String()} // Kitex wants a pointer
	stop, stopStreams := make(chan error), make(chan error)
	run(multiplexed.NewServer(h, server.WithMuxTransport(), server.WithListener(listener), until(stop), exitAtOnce), stop)
	run(streams.NewServer(h, server.WithListener(forStreams), until(stopStreams), exitAtOnce), stopStreams)
	return listener.Addr().String(), func() { stop <- nil; stopStreams <- nil; <-stop; <-stopStreams }, nil
}

var exitAtOnce = server.WithExitWaitTime(time.Millisecond)

// until makes a server run until something is sent, and not until a signal comes.
func until(stop chan error) server.Option {
	return server.WithExitSignal(func() <-chan error { return stop })
}

// run runs a server in the background, and closes stop when it has ended.
func run(s server.Server, stop chan error) {
	go func() {
		defer close(stop)
		if err := s.Run(); err != nil {
			log.Fatal(err)
		}
	}()
}

type connection struct {
	options peer.Options
	calls   multiplexed.Client
	pool    *netpollmux.MuxPool
	streams streams.Client
}

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	// More connections take more processor time: Kitex batches what is on one.
	c := &connection{options: o, pool: netpollmux.NewMuxConnPool(max(o.Conns, 1))}
	var err error
	if c.calls, err = c.to(o.Addrs...); err != nil || o.Work != peer.Stream {
		return c, err
	}
	var addrs []string
	for _, addr := range o.Addrs {
		calls, err := c.to(addr)
		if err != nil {
			return nil, err
		}
		at, err := calls.Where(ctx, new(bench.Address))
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, at.Streams)
	}
	c.streams, err = streams.NewClient("bench", client.WithHostPorts(addrs...), patience)
	return c, err
}

// patience is for dialling: the default of 50 ms is too short where all processors are busy.
var patience = client.WithConnectTimeout(5 * time.Second)

// to returns a client of some servers. It is what WithMuxConnection makes, with a pool that can be
// closed.
func (c *connection) to(addrs ...string) (multiplexed.Client, error) {
	return multiplexed.NewClient("bench", client.WithHostPorts(addrs...), patience, client.WithConnPool(c.pool),
		client.WithTransHandlerFactory(netpollmux.NewCliTransHandlerFactory()), client.WithTransportProtocol(transport.TTHeader))
}

func (c *connection) Close() error { return c.pool.Close() }

func (c *connection) Caller() (func() error, error) {
	body := make([]byte, c.options.Size)
	if _, err := rand.Read(body); err != nil {
		return nil, err
	}
	switch c.options.Work {
	case peer.Message:
		m := new(bench.BenchmarkMessage)
		encoded, err := message.New().MarshalVT()
		if err == nil {
			err = m.Unmarshal(encoded)
		}
		return func() error { return c.say(m) }, err
	case peer.Echo:
		return c.CallerOf(c.options.Size)
	case peer.Kiss:
		asked := peer.Asked()
		k := &bench.Values{S: asked.Text, Num: asked.Num, I: asked.I, D: asked.D}
		return func() error { return c.kiss(k) }, nil
	default:
		request := &bench.StreamRequest{Messages: int64(c.options.Messages), Body: body}
		return func() error { return c.stream(request) }, nil
	}
}

// CallerOf returns a caller of an echo.
func (c *connection) CallerOf(size int) (func() error, error) {
	body := peer.Body(size)
	return func() error { return c.echo(&bench.Body{Body: body}) }, nil
}

func (c *connection) say(m *bench.BenchmarkMessage) error {
	reply, err := c.calls.Say(context.Background(), m)
	if err == nil && (reply.GetField1() != "OK" || reply.GetField2() != 100 || reply.GetField102() != message.Text) {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", reply.GetField1(), reply.GetField2(), reply.GetField102())
	}
	return err
}

func (c *connection) echo(body *bench.Body) error {
	reply, err := c.calls.Echo(context.Background(), body)
	if err == nil && !bytes.Equal(reply.Body, body.Body) {
		return errors.New("another body has come back")
	}
	return err
}

func (c *connection) kiss(k *bench.Values) error {
	reply, err := c.calls.Kiss(context.Background(), k)
	if err != nil {
		return err
	}
	if want := (bench.Values{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}); *reply != want {
		return fmt.Errorf("the reply is %v instead of %v", reply, want)
	}
	return nil
}

func (c *connection) stream(request *bench.StreamRequest) error {
	ctx := context.Background()
	s, err := c.streams.Stream(ctx, request)
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		reply, err := s.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF) && n == request.Messages:
			return nil
		case err != nil:
			return fmt.Errorf("message %d: %w", n, err)
		case !bytes.Equal(reply.Body, request.Body):
			return fmt.Errorf("message %d is another one", n)
		}
	}
}
