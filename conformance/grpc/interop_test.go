// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// listen returns a listener on loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveYodel serves grpc-go's own test service on a yodel server.
func serveYodel(t *testing.T) (addr string) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Compressors: []compress.Compressor{gzip.Compressor}, Protocols: []yodel.Protocol{http.New(nil)},
		Limits: zeros,
	})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), interop.NewTestServer())
	return start(t, s)
}

// zeros are limits for the cases that send 271,828 zeros in 320 bytes of gzip, which servers refuse
// by default.
var zeros = yodel.Limits{MaxDecompressed: 1 << 20}

// serveGRPC serves grpc-go's own test service on a server of grpc-go.
func serveGRPC(t *testing.T) (addr string) {
	t.Helper()
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, interop.NewTestServer())
	return startGRPC(t, s)
}

// startGRPC serves with a server of grpc-go.
func startGRPC(t *testing.T, s *grpc.Server) (addr string) {
	t.Helper()
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-ended
	})
	return l.Addr().String()
}

// natively has the cases that yodel's own protocol does not pass, with the reasons.
var natively = map[string]string{
	"custom_metadata":        "yodel's own protocol sends the header of a stream with its end",
	"special_status_message": "yodel's own protocol sends the text of an error in one line",
}

// Grpc-go's interoperability cases pass with unchanged stubs: between a client of grpc-go and a
// yodel server, between a yodel client and a server of grpc-go, and between two sides of yodel over
// gRPC and over yodel's own protocol.
func TestInterop(t *testing.T) {
	ours, theirs := serveYodel(t), serveGRPC(t)
	for name, dial := range map[string]func(t *testing.T) grpc.ClientConnInterface{
		"grpc-go to yodel": func(t *testing.T) grpc.ClientConnInterface {
			c, err := grpc.NewClient(ours, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		},
		"yodel to grpc-go":        func(t *testing.T) grpc.ClientConnInterface { return clientOf(t, "grpc://"+theirs) },
		"yodel to yodel by gRPC":  func(t *testing.T) grpc.ClientConnInterface { return clientOf(t, "grpc://"+ours) },
		"yodel to yodel natively": func(t *testing.T) grpc.ClientConnInterface { return clientOf(t, ours) },
	} {
		t.Run(name, func(t *testing.T) {
			known := natively
			if name != "yodel to yodel natively" {
				known = nil
			}
			interopCases(t, dial(t), known)
		})
	}
}

// clientOf returns a yodel client for stubs.
func clientOf(t *testing.T, addr string) grpc.ClientConnInterface {
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Codec: protobuf.Codec, Wires: []yodel.Wire{wire.Wire}})
	t.Cleanup(c.Close)
	return grpcgo.Conn(c)
}

// interopCases runs the cases of grpc-go, except for the known ones.
func interopCases(t *testing.T, c grpc.ClientConnInterface, known map[string]string) {
	t.Helper()
	client := testpb.NewTestServiceClient(c)
	for _, test := range []struct {
		name string
		do   func(ctx context.Context, tc testpb.TestServiceClient, args ...grpc.CallOption)
	}{
		{"empty_unary", interop.DoEmptyUnaryCall},
		{"large_unary", interop.DoLargeUnaryCall},
		{"client_streaming", interop.DoClientStreaming},
		{"server_streaming", interop.DoServerStreaming},
		{"ping_pong", interop.DoPingPong},
		{"empty_stream", interop.DoEmptyStream},
		{"timeout_on_sleeping_server", interop.DoTimeoutOnSleepingServer},
		{"cancel_after_begin", interop.DoCancelAfterBegin},
		{"cancel_after_first_response", interop.DoCancelAfterFirstResponse},
		{"status_code_and_message", interop.DoStatusCodeAndMessage},
		{"special_status_message", interop.DoSpecialStatusMessage},
		{"custom_metadata", interop.DoCustomMetadata},
	} {
		t.Run(test.name, func(t *testing.T) {
			if why := known[test.name]; why != "" {
				t.Skip(why)
			}
			test.do(t.Context(), client) // it ends the process if it fails
		})
	}
	err := c.Invoke(t.Context(), "/grpc.testing.TestService/UnimplementedCall", &testpb.Empty{}, &testpb.Empty{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unimplemented method: got %v", err)
	}
	interop.DoUnimplementedService(t.Context(), testpb.NewUnimplementedServiceClient(c))
}
