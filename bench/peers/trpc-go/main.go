// SPDX-License-Identifier: Apache-2.0

// tRPC-Go with protobuf over multiplexed connections.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	trpc "trpc.group/trpc-go/trpc-go"
	"trpc.group/trpc-go/trpc-go/client"
	"trpc.group/trpc-go/trpc-go/log"
	"trpc.group/trpc-go/trpc-go/pool/connpool"
	"trpc.group/trpc-go/trpc-go/server"
	"trpc.group/trpc-go/trpc-go/transport/tnet"
	"trpc.group/trpc-go/trpc-go/transport/tnet/multiplex"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/trpc-go/gen/bench"
)

// With trpc.group/trpc-go/trpc-cmdline v1.0.9, protoc 3.21.12 (Debian's protobuf-compiler),
// protoc-gen-go v1.36.12 and golang.org/x/tools/cmd/goimports v0.38.0.
//
//go:generate trpc create -p bench.proto -d . -d ../../message --rpconly --nogomod --mock=false -f -o gen/bench
//go:generate sed -i "s|^package|// Package bench is generated from bench.proto.\\n&|" gen/bench/bench.trpc.go

func main() {
	log.SetLevel("0", log.LevelFatal) // it logs to standard output
	trpc.DefaultMaxFrameSize = 64 << 20
	peer.Main(peer.Peer{
		Name:   "trpc-go",
		Module: "trpc.group/trpc-go/trpc-go",
		Setup:  "google's protobuf, one multiplexed connection on tnet, a goroutine for each call",
		Works:  []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve:  serve,
		Dial:   dial,
	})
}

type handler struct{}

func (handler) Say(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(m)
	return m, nil
}

func (handler) Echo(_ context.Context, body *bench.Body) (*bench.Body, error) { return body, nil }

func (handler) Kiss(_ context.Context, k *bench.Values) (*bench.Values, error) {
	return &bench.Values{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}, nil
}

func (handler) Stream(request *bench.StreamRequest, stream bench.Bench_StreamServer) error {
	for range request.Messages {
		if err := stream.Send(&bench.Body{Body: request.Body}); err != nil {
			return err
		}
	}
	// When the stream ends before the client has closed its side, that fails.
	if err := stream.RecvMsg(new(bench.StreamRequest)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func serve(addr string) (string, func(), error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s := server.New(server.WithServiceName("yodel.bench.Bench"), server.WithProtocol("trpc"), server.WithNetwork("tcp"),
		server.WithListener(listener), server.WithServerAsync(true))
	bench.RegisterBenchService(s, handler{})
	go func() {
		if err := s.Serve(); err != nil {
			stdlog.Fatal(err)
		}
	}()
	return listener.Addr().String(), func() {
		if err := s.Close(nil); err != nil {
			stdlog.Print(err)
		}
	}, nil
}

// A pool is connections that callers take in turn.
type pool struct {
	options peer.Options
	proxies []bench.BenchClientProxy
	next    atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	p := &pool{options: o}
	for range max(o.Conns, 1) {
		p.proxies = append(p.proxies, bench.NewBenchClientProxy(
			client.WithTarget("ip://"+strings.Join(o.Addrs, ",")), client.WithProtocol("trpc"), client.WithNetwork("tcp"),
			client.WithMultiplexed(true), client.WithMultiplexedPool(multiplex.NewPool(p.dial, multiplex.WithDialTimeout(5*time.Second)))))
	}
	return p, nil
}

// dial remembers the connections: the framework keeps them for good.
func (p *pool) dial(o *connpool.DialOptions) (net.Conn, error) {
	conn, err := tnet.Dial(o)
	if err == nil {
		p.mu.Lock()
		p.conns = append(p.conns, conn)
		p.mu.Unlock()
	}
	return conn, err
}

func (p *pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all error
	for _, conn := range p.conns {
		all = errors.Join(all, conn.Close())
	}
	return all
}

func (p *pool) Caller() (func() error, error) {
	proxy := p.proxies[int(p.next.Add(1))%len(p.proxies)]
	body := make([]byte, p.options.Size)
	if _, err := rand.Read(body); err != nil {
		return nil, err
	}
	switch p.options.Work {
	case peer.Message:
		m := message.New()
		return func() error { return say(proxy, m) }, nil
	case peer.Echo:
		return func() error { return echo(proxy, &bench.Body{Body: body}) }, nil
	case peer.Kiss:
		asked := peer.Asked()
		k := &bench.Values{S: asked.Text, Num: asked.Num, I: asked.I, D: asked.D}
		return func() error { return kiss(proxy, k) }, nil
	default:
		request := &bench.StreamRequest{Messages: int64(p.options.Messages), Body: body}
		return func() error { return stream(proxy, request) }, nil
	}
}

func say(proxy bench.BenchClientProxy, m *message.BenchmarkMessage) error {
	reply, err := proxy.Say(context.Background(), m)
	if err != nil {
		return err
	}
	return message.Check(reply)
}

func echo(proxy bench.BenchClientProxy, body *bench.Body) error {
	reply, err := proxy.Echo(context.Background(), body)
	if err == nil && !bytes.Equal(reply.Body, body.Body) {
		return errors.New("another body has come back")
	}
	return err
}

func kiss(proxy bench.BenchClientProxy, k *bench.Values) error {
	reply, err := proxy.Kiss(context.Background(), k)
	if err != nil {
		return err
	}
	if reply.S != k.S+":server response"+strconv.FormatInt(k.I, 10) || reply.Num != k.Num || reply.I != k.I+1 || reply.D != k.D+0.2 {
		return fmt.Errorf("the reply to %v is %v", k, reply)
	}
	return nil
}

func stream(proxy bench.BenchClientProxy, request *bench.StreamRequest) error {
	s, err := proxy.Stream(context.Background(), request)
	if err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		reply, err := s.Recv()
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
