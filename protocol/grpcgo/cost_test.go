// SPDX-License-Identifier: Apache-2.0

package grpcgo_test

import (
	"context"
	"log/slog"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// costMethod is a unary method of gRPC that returns its request.
const costMethod = "cost.Echo/Say"

// serveYodel serves the method in a server of yodel.
func serveYodel(l net.Listener) (stop func(), err error) {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{codec{}}, Protocols: []yodel.Protocol{http.New(nil)}, Logger: slog.New(slog.DiscardHandler),
	})
	yodel.Method[wrapperspb.BytesValue, wrapperspb.BytesValue](costMethod).Handle(s, func(_ context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
		return in, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() { _ = s.Serve(ctx, l) }() // a client fails without it
	return stop, nil
}

// serveGRPC serves the method in a server of grpc-go.
func serveGRPC(l net.Listener) (stop func(), err error) {
	service, method, _ := strings.Cut(costMethod, "/")
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: method,
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			return in, decode(in)
		},
	}}}, nil)
	go func() { _ = s.Serve(l) }() // as above
	return s.Stop, nil
}
