// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A mirror sends the values of the key x-bin back, in the header and in the trailer.
type mirror struct {
	testpb.UnimplementedTestServiceServer
}

func (mirror) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	back := metadata.MD{"x-bin": md.Get("x-bin")}
	return &testpb.SimpleResponse{}, errors.Join(grpc.SetHeader(ctx, back), grpc.SetTrailer(ctx, back))
}

// Each of several values of a binary key arrives as it was sent, in requests and replies, between
// grpc-go and yodel.
func TestSeveralBinaryValues(t *testing.T) {
	theirs := grpc.NewServer()
	testpb.RegisterTestServiceServer(theirs, mirror{})
	ours := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(ours), mirror{})
	for name, addr := range map[string]string{"grpc-go": startGRPC(t, theirs), "yodel": start(t, ours)} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		defer conn.Close()
		for client, c := range map[string]grpc.ClientConnInterface{"grpc-go": conn, "yodel": clientOf(t, "grpc://"+addr)} {
			want := []string{"\x00\xff", "a,b", "c"}
			ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"x-bin": want})
			var header, trailer metadata.MD
			_, err := testpb.NewTestServiceClient(c).UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			if got := header.Get("x-bin"); err != nil || !slices.Equal(got, want) || !slices.Equal(trailer.Get("x-bin"), want) {
				t.Errorf("%s calls %s: got %q and %q, %v", client, name, got, trailer.Get("x-bin"), err)
			}
		}
	}
}
