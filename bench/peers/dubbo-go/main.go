// SPDX-License-Identifier: Apache-2.0

// dubbo-go with protobuf over its triple protocol.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"dubbo.apache.org/dubbo-go/v3/client"
	_ "dubbo.apache.org/dubbo-go/v3/cluster/cluster/failover"
	_ "dubbo.apache.org/dubbo-go/v3/cluster/loadbalance/roundrobin"
	_ "dubbo.apache.org/dubbo-go/v3/cluster/router/tag"
	"dubbo.apache.org/dubbo-go/v3/common/constant"
	_ "dubbo.apache.org/dubbo-go/v3/filter/accesslog"
	_ "dubbo.apache.org/dubbo-go/v3/filter/echo"
	_ "dubbo.apache.org/dubbo-go/v3/filter/exec_limit"
	_ "dubbo.apache.org/dubbo-go/v3/filter/generic"
	_ "dubbo.apache.org/dubbo-go/v3/filter/graceful_shutdown"
	_ "dubbo.apache.org/dubbo-go/v3/filter/token"
	_ "dubbo.apache.org/dubbo-go/v3/filter/tps"
	"dubbo.apache.org/dubbo-go/v3/protocol"
	"dubbo.apache.org/dubbo-go/v3/protocol/triple"
	"dubbo.apache.org/dubbo-go/v3/protocol/triple/triple_protocol"
	_ "dubbo.apache.org/dubbo-go/v3/proxy/proxy_factory"
	"dubbo.apache.org/dubbo-go/v3/server"
	"github.com/dubbogo/gost/log/logger"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/dubbo-go/gen/bench"
)

// With protoc 3.21.12 (Debian's protobuf-compiler) and protoc-gen-go v1.36.12.
//
//go:generate sh -c "mkdir -p gen/bench && protoc --go_out=gen/bench --go_opt=paths=source_relative bench.proto"
//go:generate sed -i "s|^package|// Package bench is generated from bench.proto.\\n&|" gen/bench/bench.pb.go

func main() {
	if !logger.SetLoggerLevel("panic") { // that there is no registry is an error to it
		log.Fatal("dubbo-go's logger takes no level")
	}
	peer.Main(peer.Peer{
		Name:   "dubbo-go",
		Module: "dubbo.apache.org/dubbo-go/v3",
		Setup:  "triple with google's protobuf, one HTTP/2 connection (the client opens more of itself), the default filters",
		Works:  []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve:  serve,
		Dial:   dial,
	})
}

// The two descriptions of the service are what protoc-gen-go-triple would write. The Go module
// proxy does not have it.

const service = "yodel.bench.Bench"

var clientInfo = client.ClientInfo{InterfaceName: service, MethodNames: []string{"Say", "Echo", "Kiss", "Stream"}}

var serverInfo = server.ServiceInfo{
	InterfaceName: service,
	ServiceType:   (*Handler)(nil),
	Methods: []server.MethodInfo{
		unary("Say", (*Handler).Say),
		unary("Echo", (*Handler).Echo),
		unary("Kiss", (*Handler).Kiss),
		{
			Name:           "Stream",
			Type:           constant.CallServerStream,
			ReqInitFunc:    func() any { return new(bench.StreamRequest) },
			StreamInitFunc: func(stream any) any { return stream },
			MethodFunc: func(_ context.Context, args []any, h any) (any, error) {
				return nil, h.(*Handler).Stream(args[0].(*bench.StreamRequest), args[1].(*triple_protocol.ServerStream))
			},
		},
	},
}

func unary[M any](name string, method func(*Handler, context.Context, *M) (*M, error)) server.MethodInfo {
	return server.MethodInfo{
		Name:        name,
		Type:        constant.CallUnary,
		ReqInitFunc: func() any { return new(M) },
		MethodFunc: func(ctx context.Context, args []any, h any) (any, error) {
			reply, err := method(h.(*Handler), ctx, args[0].(*M))
			if err != nil {
				return nil, err
			}
			return triple_protocol.NewResponse(reply), nil
		},
	}
}

// Handler is exported because dubbo-go wants it so.
type Handler struct{}

// Say is the work Message.
func (*Handler) Say(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(m)
	return m, nil
}

// Echo returns a body.
func (*Handler) Echo(_ context.Context, body *bench.Body) (*bench.Body, error) { return body, nil }

// Kiss is the work Kiss.
func (*Handler) Kiss(_ context.Context, k *bench.Values) (*bench.Values, error) {
	return &bench.Values{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}, nil
}

// Stream sends a body again and again.
func (*Handler) Stream(request *bench.StreamRequest, stream *triple_protocol.ServerStream) error {
	for range request.Messages {
		if err := stream.Send(&bench.Body{Body: request.Body}); err != nil {
			return err
		}
	}
	return nil
}

// largest is the size of a message that both sides take.
const largest = "64mb"

func serve(addr string) (string, func(), error) {
	addr, err := free(addr)
	if err != nil {
		return "", nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return "", nil, err
	}
	s, err := server.NewServer(server.WithServerProtocol(protocol.WithIp(host), protocol.WithPort(number),
		protocol.WithTriple(triple.WithMaxServerRecvMsgSize(largest), triple.WithMaxServerSendMsgSize(largest))))
	if err == nil {
		err = s.Register(&Handler{}, &serverInfo)
	}
	if err != nil {
		return "", nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		if err := s.ServeContext(ctx); err != nil && ctx.Err() == nil {
			log.Fatal(err)
		}
	}()
	return addr, stop, await(addr)
}

// free returns addr with the number of a port that is free: dubbo-go does not say which it took.
func free(addr string) (string, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// await returns when addr listens.
func await(addr string) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if time.Since(begin) > 10*time.Second {
			return err
		}
	}
}

// A pool is connections that callers take in turn.
type pool struct {
	options peer.Options
	conns   []*client.Connection
	next    atomic.Int64
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c, err := client.NewClient(client.WithClientURL("tri://"+strings.Join(o.Addrs, ";tri://")), client.WithClientLoadBalanceRoundRobin(),
		client.WithClientRequestTimeout(time.Minute), client.WithClientParam(constant.MaxCallRecvMsgSize, largest))
	if err != nil {
		return nil, err
	}
	p := &pool{options: o}
	for range max(o.Conns, 1) {
		conn, err := c.DialWithInfo(service, &clientInfo)
		if err != nil {
			return nil, err
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

// Close does nothing: dubbo-go has nothing that closes connections.
func (p *pool) Close() error { return nil }

func (p *pool) Caller() (func() error, error) {
	conn := p.conns[int(p.next.Add(1))%len(p.conns)]
	body := make([]byte, p.options.Size)
	if _, err := rand.Read(body); err != nil {
		return nil, err
	}
	switch p.options.Work {
	case peer.Message:
		m := message.New()
		return func() error { return say(conn, m) }, nil
	case peer.Echo:
		return func() error { return echo(conn, &bench.Body{Body: body}) }, nil
	case peer.Kiss:
		asked := peer.Asked()
		k := &bench.Values{S: asked.Text, Num: asked.Num, I: asked.I, D: asked.D}
		return func() error { return kiss(conn, k) }, nil
	default:
		request := &bench.StreamRequest{Messages: int64(p.options.Messages), Body: body}
		return func() error { return stream(conn, request) }, nil
	}
}

func call[M any](conn *client.Connection, method string, request *M) (*M, error) {
	reply := new(M)
	return reply, conn.CallUnary(context.Background(), []any{request}, reply, method)
}

func say(conn *client.Connection, m *message.BenchmarkMessage) error {
	reply, err := call(conn, "Say", m)
	if err != nil {
		return err
	}
	return message.Check(reply)
}

func echo(conn *client.Connection, body *bench.Body) error {
	reply, err := call(conn, "Echo", body)
	if err == nil && !bytes.Equal(reply.Body, body.Body) {
		return errors.New("another body has come back")
	}
	return err
}

func kiss(conn *client.Connection, k *bench.Values) error {
	reply, err := call(conn, "Kiss", k)
	if err != nil {
		return err
	}
	if reply.S != k.S+":server response"+strconv.FormatInt(k.I, 10) || reply.Num != k.Num || reply.I != k.I+1 || reply.D != k.D+0.2 {
		return fmt.Errorf("the reply to %v is %v", k, reply)
	}
	return nil
}

func stream(conn *client.Connection, request *bench.StreamRequest) (err error) {
	opened, err := conn.CallServerStream(context.Background(), request, "Stream")
	if err != nil {
		return err
	}
	s := opened.(*triple_protocol.ServerStreamForClient)
	defer func() { err = errors.Join(err, s.Close()) }()
	n := int64(0)
	for reply := new(bench.Body); s.Receive(reply); reply = new(bench.Body) {
		if !bytes.Equal(reply.Body, request.Body) {
			return fmt.Errorf("message %d is another one", n)
		}
		n++
	}
	if n != request.Messages {
		return errors.Join(fmt.Errorf("the stream ended after %d messages", n), s.Err())
	}
	return s.Err()
}
