// SPDX-License-Identifier: Apache-2.0

// Kitex with Thrift over multiplexed connections.
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
	"reflect"
	"strconv"
	"time"

	"github.com/cloudwego/gopkg/protocol/thrift"
	"github.com/cloudwego/kitex/client"
	"github.com/cloudwego/kitex/pkg/klog"
	"github.com/cloudwego/kitex/pkg/remote/trans/netpollmux"
	"github.com/cloudwego/kitex/server"
	"github.com/cloudwego/kitex/transport"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/kitex/gen/bench"
	"github.com/yodel-rpc/yodel/bench/peers/kitex/gen/bench/multiplexed"
	"github.com/yodel-rpc/yodel/bench/peers/kitex/gen/bench/streams"
)

// The tool is the one of go.mod.
//
//go:generate go tool kitex -module github.com/yodel-rpc/yodel/bench/peers/kitex -gen-path gen -streamx bench.thrift
//go:generate sed -i "1i // SPDX-License-Identifier: Apache-2.0\\n\\n// Package bench is generated from bench.thrift." gen/bench/k-consts.go

func main() {
	klog.SetLevel(klog.LevelError) // they go to standard error
	thrift.SetSpanCache(true)      // strings are cut from common blocks
	peer.Main(peer.Peer{
		Name:   "kitex",
		Module: "github.com/cloudwego/kitex",
		Setup:  "Thrift with the generated fast codec and span cache, one multiplexed connection; streams by TTHeader",
		Works:  []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve:  serve,
		Dial:   dial,
	})
}

type handler struct{ streamsAddr string }

func (*handler) Say(_ context.Context, m *bench.BenchmarkMessage) (*bench.BenchmarkMessage, error) {
	m.Field1, m.Field2 = "OK", 100
	return m, nil
}

func (*handler) Echo(_ context.Context, body []byte) ([]byte, error) { return body, nil }

func (*handler) Kiss(_ context.Context, k *bench.Kiss) (*bench.Kiss, error) {
	return &bench.Kiss{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}, nil
}

func (h *handler) Streams(context.Context) (string, error) { return h.streamsAddr, nil }

func (*handler) Stream(ctx context.Context, request *bench.StreamRequest, stream bench.Streams_streamServer) error {
	for range request.Messages {
		if err := stream.Send(ctx, &bench.StreamReply{Body: request.Body}); err != nil {
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
		at, err := calls.Streams(ctx)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, at)
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
		m := filled()
		return func() error { return c.say(m) }, nil
	case peer.Echo:
		return c.CallerOf(c.options.Size)
	case peer.Kiss:
		asked := peer.Asked()
		k := &bench.Kiss{S: asked.Text, Num: asked.Num, I: asked.I, D: asked.D}
		return func() error { return c.kiss(k) }, nil
	default:
		request := &bench.StreamRequest{Messages: int64(c.options.Messages), Body: body}
		return func() error { return c.stream(request) }, nil
	}
}

// CallerOf returns a caller of an echo.
func (c *connection) CallerOf(size int) (func() error, error) {
	body := peer.Body(size)
	return func() error { return c.echo(body) }, nil
}

func (c *connection) say(m *bench.BenchmarkMessage) error {
	reply, err := c.calls.Say(context.Background(), m)
	if err == nil && (reply.Field1 != "OK" || reply.Field2 != 100 || reply.Field102 != message.Text) {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", reply.Field1, reply.Field2, reply.Field102)
	}
	return err
}

func (c *connection) echo(body []byte) error {
	reply, err := c.calls.Echo(context.Background(), body)
	if err == nil && !bytes.Equal(reply, body) {
		return errors.New("another body has come back")
	}
	return err
}

func (c *connection) kiss(k *bench.Kiss) error {
	reply, err := c.calls.Kiss(context.Background(), k)
	if err != nil {
		return err
	}
	if want := (bench.Kiss{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}); *reply != want {
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

// filled returns the message with the values that it has in protobuf, where field5 is a list and
// empty.
func filled() *bench.BenchmarkMessage {
	m := new(bench.BenchmarkMessage)
	for name, field := range reflect.ValueOf(m).Elem().Fields() {
		switch {
		case name.Name == "Field5":
		case field.Kind() == reflect.String:
			field.SetString(message.Text)
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		default:
			field.SetInt(100_000)
		}
	}
	return m
}
