// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// This file tests what docs/migrate/grpc.md says and the example does not show.

// Stubs over one yodel client call a server of grpc-go and a yodel server in turn.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	var served []string
	intercept := func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		served = append(served, "grpc-go")
		return next(ctx, in)
	}
	old := grpc.NewServer(grpc.UnaryInterceptor(intercept))
	testpb.RegisterTestServiceServer(old, interop.NewTestServer())
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			served = append(served, "yodel")
			return next(ctx, call)
		}
	}}})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), interop.NewTestServer())
	c := yodel.NewClient(discovery.Static("grpc://"+startGRPC(t, old), start(t, s)), &yodel.ClientOptions{Wires: []yodel.Wire{wire.Wire}})
	defer c.Close()
	client := testpb.NewTestServiceClient(grpcgo.Conn(c))
	for range 20 { // the client connects to the second server while the first one answers
		_, err := client.EmptyCall(t.Context(), &testpb.Empty{})
		must(t, err)
	}
	if !slices.Contains(served, "grpc-go") || !slices.Contains(served, "yodel") {
		t.Errorf("the calls were served by %v, want both servers", served)
	}
}

// Grpc-go and yodel call each other with TLS. Grpc-go's server refuses clients that do not offer
// the protocol h2.
func TestTLS(t *testing.T) {
	source := httptest.NewTLSServer(nil) // its certificate
	source.Close()
	pool := x509.NewCertPool()
	pool.AddCert(source.Certificate())
	certificates := &stdtls.Config{Certificates: source.TLS.Certificates}
	old := grpc.NewServer(grpc.Creds(credentials.NewTLS(certificates)))
	testpb.RegisterTestServiceServer(old, interop.NewTestServer())
	theirs := startGRPC(t, old)
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), interop.NewTestServer())
	l, err := (&tls.Transport{Server: certificates}).Listen("127.0.0.1:0")
	must(t, err)
	ours := startOn(t, s, l)

	conn, err := grpc.NewClient(ours, grpc.WithTransportCredentials(credentials.NewTLS(&stdtls.Config{RootCAs: pool})))
	must(t, err)
	defer conn.Close()
	_, err = testpb.NewTestServiceClient(conn).EmptyCall(t.Context(), &testpb.Empty{})
	must(t, err)
	for _, test := range []struct {
		addr   string
		offers []string
		want   codes.Code
	}{
		{"grpc://" + theirs, []string{"h2"}, codes.OK},
		{"grpc://" + theirs, nil, codes.Unavailable},
		{"grpc://" + ours, nil, codes.OK},
		{ours, []string{"h2"}, codes.OK},
	} {
		c := yodel.NewClient(discovery.Static(test.addr), &yodel.ClientOptions{
			Wires: []yodel.Wire{wire.Wire}, Transport: &tls.Transport{Client: &stdtls.Config{RootCAs: pool, NextProtos: test.offers}},
		})
		_, err := testpb.NewTestServiceClient(grpcgo.Conn(c)).EmptyCall(t.Context(), &testpb.Empty{})
		if status.Code(err) != test.want {
			t.Errorf("%s with %v: got %v, want %v", test.addr, test.offers, err, test.want)
		}
		c.Close()
	}
}

// An odd service panics, fails with an error of several lines, and returns what it sees.
type odd struct {
	testpb.UnimplementedTestServiceServer
}

func (odd) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	switch in.GetResponseSize() {
	case 1:
		panic("harm")
	case 2:
		return nil, errors.New("one\ntwo")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	p, _ := peer.FromContext(ctx)
	if p.Addr == nil || yodel.CallFrom(ctx) == nil || !strings.Contains(strings.Join(md["user-agent"], ""), "grpc-go/") && !strings.Contains(strings.Join(md["user-agent"], ""), "yodel") {
		return nil, status.Error(codes.Internal, "no peer, no call, or no agent")
	}
	return &testpb.SimpleResponse{Username: strings.Join(md.Get("user"), "|")}, nil
}

// What differs from grpc-go is the same for clients of grpc-go and for stubs over a yodel client,
// but for the text of an error.
func TestWhatDiffers(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), odd{})
	addr := start(t, s)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	for _, test := range []struct {
		name string
		conn grpc.ClientConnInterface
		code codes.Code // of an error without a status, and its text
		text string
		pack codes.Code // of a compression that the server does not have
	}{
		{"grpc-go", conn, codes.Internal, "grpc.testing.TestService/UnaryCall: the call failed; see hidden error 1 in the server's log", codes.Unimplemented},
		{"yodel", clientOf(t, addr), codes.Unknown, "one two", codes.OK}, // the client does not compress
	} {
		t.Run(test.name, func(t *testing.T) {
			client := testpb.NewTestServiceClient(test.conn)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "user", "ann", "user", "bob")
			for _, size := range []int{0, 5 << 20} { // grpc-go's own limit is 4 MiB
				reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}, grpc.WaitForReady(true))
				if err != nil || reply.GetUsername() != "ann, bob" {
					t.Errorf("got %v, %v", reply, err)
				}
			}
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 17<<20)}})
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a message that is too large: got %v", err)
			}
			if _, err = client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 1}); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "harm") {
				t.Errorf("a panic: got %v", err)
			}
			if _, err = client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 2}); status.Code(err) != test.code || status.Convert(err).Message() != test.text {
				t.Errorf("an error without a status: got %v", err)
			}
			if _, err = client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.UseCompressor("gzip")); status.Code(err) != test.pack {
				t.Errorf("a compression that the server does not have: got %v", err)
			}
		})
	}
}
