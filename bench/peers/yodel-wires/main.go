// SPDX-License-Identifier: Apache-2.0

// The server of yodel for unchanged clients of other frameworks: gRPC, Connect, rpcx and Thrift on
// one port. It makes no calls. The suite runs it with the client program of another peer.
package main

import (
	"context"
	stdtls "crypto/tls"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/thrift/gen/bench"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// The method Message of the clients in ../grpc-go and ../connect-go, ../rpcx and ../thrift.
const (
	sayGRPC   yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "yodel.bench.Suite/Message"
	sayRPCX   yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "Suite.message"
	sayThrift yodel.Method[bench.BenchmarkMessage, bench.BenchmarkMessage]     = "Bench.say"
)

func main() {
	peer.Main(peer.Peer{
		Name: "yodel-wires", Module: "github.com/yodel-rpc/yodel",
		Setup: "one server and port for gRPC and Connect (protocol/http), rpcx (protocol/rpcx) and Thrift (protocol/thrift), its defaults; " +
			"vtprotobuf as the message's code for gRPC, Connect and rpcx; codec/thrift by the tags of the generated struct for Thrift",
		Serve: serve, ServeTLS: serveTLS,
	})
}

func serve(addr string) (string, func(), error) { return serveOver(yodel.TCP, addr) }

func serveTLS(addr string, config *stdtls.Config) (string, func(), error) {
	return serveOver(&tls.Transport{Server: config}, addr)
}

func serveOver(transport yodel.Transport, addr string) (string, func(), error) {
	l, err := transport.Listen(addr)
	if err != nil {
		return "", nil, err
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{protobuf.Codec, thriftcodec.Codec},
		Protocols: []yodel.Protocol{http.New(nil), rpcx.Protocol, thrift.New(&thrift.Options{Service: "Bench"})},
	})
	sayGRPC.Handle(s, answer)
	sayRPCX.Handle(s, answer)
	handleServices(s)
	sayThrift.Handle(s, func(_ context.Context, in *bench.BenchmarkMessage) (*bench.BenchmarkMessage, error) {
		in.Field1, in.Field2 = "OK", 100
		return in, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go s.Serve(ctx, l) //nolint:errcheck // it ends when it is stopped
	return l.Addr().String(), stop, nil
}

func answer(_ context.Context, in *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(in)
	return in, nil
}
