// SPDX-License-Identifier: Apache-2.0

// The server of yodel for unchanged clients of other frameworks: gRPC, rpcx and Thrift on one port.
// It makes no calls. The suite runs it with the client program of another peer.
package main

import (
	"context"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/thrift/gen/bench"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// The methods that the clients in ../grpc-go, ../rpcx and ../thrift call.
const (
	sayGRPC   yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "yodel.bench.Suite/Message"
	sayRPCX   yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "Suite.message"
	sayThrift yodel.Method[bench.BenchmarkMessage, bench.BenchmarkMessage]     = "Bench.say"
)

func main() {
	peer.Main(peer.Peer{
		Name: "yodel-wires", Module: "github.com/yodel-rpc/yodel",
		Setup: "one server and port for gRPC (protocol/http), rpcx (protocol/rpcx) and Thrift (protocol/thrift), its defaults; " +
			"vtprotobuf as the message's code for gRPC and rpcx; codec/thrift by the tags of the generated struct for Thrift",
		Serve: serve,
	})
}

func serve(addr string) (string, func(), error) {
	l, err := yodel.TCP.Listen(addr)
	if err != nil {
		return "", nil, err
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{protobuf.Codec, thriftcodec.Codec},
		Protocols: []yodel.Protocol{http.New(nil), rpcx.Protocol, thrift.New(&thrift.Options{Service: "Bench"})},
	})
	sayGRPC.Handle(s, answer)
	sayRPCX.Handle(s, answer)
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
