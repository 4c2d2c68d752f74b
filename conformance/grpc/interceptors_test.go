// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// admit admits callers with a user, as interceptors of grpc-go do.
func admit(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if user := md.Get("user"); len(user) == 1 {
		return metadata.NewIncomingContext(ctx, metadata.Join(md, metadata.Pairs("x-grpc-test-echo-initial", user[0]))), nil
	}
	st, err := status.New(codes.Unauthenticated, "no user").WithDetails(wrapperspb.String("login"))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("refused: %w", st.Err())
}

func admitUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := admit(ctx)
	if err != nil {
		return nil, err
	}
	return next(ctx, request)
}

// An admitted is a stream of a caller with a user.
type admitted struct {
	grpc.ServerStream
	ctx context.Context
}

func (st admitted) Context() context.Context { return st.ctx }

func admitStream(impl any, st grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := admit(st.Context())
	if err != nil {
		return err
	}
	return next(impl, admitted{st, ctx})
}

// Interceptors on a server of grpc-go and, as middleware, on a yodel server let an unchanged client
// of grpc-go see the same.
func TestInterceptors(t *testing.T) {
	theirs := grpc.NewServer(grpc.UnaryInterceptor(admitUnary), grpc.StreamInterceptor(admitStream))
	testpb.RegisterTestServiceServer(theirs, interop.NewTestServer())
	stubs := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)},
		Middleware: []yodel.Middleware{grpcgo.Unary(admitUnary), grpcgo.Stream(admitStream)},
	})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(stubs), interop.NewTestServer())
	typed := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)},
		Middleware: []yodel.Middleware{grpcgo.Unary(admitUnary), grpcgo.Stream(admitStream)},
	})
	new(service).register(typed)
	// Yodel keeps the text around an error to itself.
	const whole = "refused: rpc error: code = Unauthenticated desc = no user"
	for _, server := range []struct{ name, addr, text, echo string }{
		{"grpc-go", startGRPC(t, theirs), whole, "ann"},
		{"yodel", start(t, stubs), "no user", "ann"},
		{"yodel with typed methods", start(t, typed), "no user", ""}, // they read Call.Metadata
	} {
		conn, err := grpc.NewClient(server.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		defer conn.Close()
		client := testpb.NewTestServiceClient(conn)
		known := metadata.AppendToOutgoingContext(t.Context(), "user", "ann")
		for kind, call := range map[string]func(ctx context.Context, header *metadata.MD) error{
			"unary": func(ctx context.Context, header *metadata.MD) error {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1}, grpc.Header(header))
				return err
			},
			"feed": func(ctx context.Context, _ *metadata.MD) error {
				st, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}}})
				if err == nil {
					_, err = st.Recv()
				}
				return err
			},
			"upload": func(ctx context.Context, _ *metadata.MD) error {
				st, err := client.StreamingInputCall(ctx)
				if err == nil {
					_, err = st.CloseAndRecv()
				}
				return err
			},
			"duplex": func(ctx context.Context, header *metadata.MD) error {
				st, err := client.FullDuplexCall(ctx, grpc.Header(header))
				if err == nil {
					err = st.CloseSend()
				}
				if err == nil {
					_, err = st.Recv()
				}
				if err == io.EOF {
					return nil
				}
				return err
			},
		} {
			t.Run(server.name+"/"+kind, func(t *testing.T) {
				var header metadata.MD
				if err := call(known, &header); err != nil {
					t.Errorf("with a user: got %v", err)
				}
				if got := header.Get("x-grpc-test-echo-initial"); kind == "unary" && server.echo != "" && (len(got) != 1 || got[0] != server.echo) {
					t.Errorf("the method has not seen the metadata of the interceptor: got %v", header)
				}
				err := call(t.Context(), &header)
				st := status.Convert(err)
				if st.Code() != codes.Unauthenticated || st.Message() != server.text || len(st.Details()) != 1 {
					t.Errorf("without a user: got %v with %v", err, st.Details())
				}
			})
		}
	}
}
