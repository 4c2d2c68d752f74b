// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Messages of grpc.testing.TestService, as numbered structs.
type (
	payload struct {
		Body []byte `pb:"2"`
	}
	request struct {
		Size    int32    `pb:"2"`
		Payload *payload `pb:"3"`
	}
	response struct {
		Payload  payload `pb:"1"`
		Username string  `pb:"2"`
	}
	inputRequest struct {
		Payload payload `pb:"1"`
	}
	inputResponse struct {
		Size int32 `pb:"1"`
	}
)

const (
	numberedUnary yodel.Method[request, response]           = "grpc.testing.TestService.UnaryCall"
	numberedInput yodel.Upload[inputRequest, inputResponse] = "grpc.testing.TestService.StreamingInputCall"
)

// numbered serves methods with numbered structs, one with a plain struct, and if generated is true,
// one with generated messages.
func numbered(t *testing.T, generated bool, codecs ...yodel.Codec) *grpc.ClientConn {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: codecs, Protocols: []yodel.Protocol{http.New(nil)}})
	numberedUnary.Handle(s, func(_ context.Context, in *request) (*response, error) {
		return &response{payload{slices.Concat(in.Payload.Body, make([]byte, in.Size))}, "numbered"}, nil
	})
	numberedInput.Handle(s, func(_ context.Context, recv yodel.Recv[inputRequest]) (*inputResponse, error) {
		out := new(inputResponse)
		for in, err := range recv {
			if err != nil {
				return nil, err
			}
			out.Size += int32(len(in.Payload.Body))
		}
		return out, nil
	})
	if generated {
		empty := func(context.Context, *testpb.Empty) (*testpb.Empty, error) { return new(testpb.Empty), nil }
		if err := s.Handle("grpc.testing.TestService.EmptyCall", empty); err != nil {
			t.Fatal(err)
		}
	}
	type Args struct{ A, B int }
	if err := s.Handle("Arith.Mul", func(_ context.Context, in *Args) (*Args, error) { return in, nil }); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	c, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		stop()
		if err := await.Value(t, ended, "the end of the server"); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Clients of grpc-go call methods with numbered structs, with generated messages and with messages
// that are described at run time.
func TestNumberedStructsServeGRPC(t *testing.T) {
	c := numbered(t, true, pbstruct.With(protobuf.Codec))
	client := testpb.NewTestServiceClient(c)
	reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 300, Payload: &testpb.Payload{Body: []byte("body")}, FillUsername: true})
	if err != nil || len(reply.GetPayload().GetBody()) != 304 || reply.GetUsername() != "numbered" {
		t.Errorf("got %v, %v", reply, err)
	}
	stream, err := client.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err = stream.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 1000)}}); err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := stream.CloseAndRecv(); err != nil || sum.GetAggregatedPayloadSize() != 3000 {
		t.Errorf("got %v, %v", sum, err)
	}
	if _, err = client.EmptyCall(t.Context(), new(testpb.Empty)); err != nil {
		t.Error(err)
	}

	encoded, names, err := pbstruct.Describe("service.proto", "grpc.testing.numbered", reflect.TypeFor[request](), reflect.TypeFor[response]())
	if err != nil {
		t.Fatal(err)
	}
	described := new(descriptorpb.FileDescriptorProto)
	if err = proto.Unmarshal(encoded, described); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(described, nil)
	if err != nil {
		t.Fatal(err)
	}
	message := func(i int) *dynamicpb.Message {
		return dynamicpb.NewMessage(file.Messages().ByName(protoreflect.FullName(names[i]).Name()))
	}
	in, out := message(0), message(1)
	in.Set(in.Descriptor().Fields().ByName("size"), protoreflect.ValueOfInt32(5))
	in.Mutable(in.Descriptor().Fields().ByName("payload"))
	if err = c.Invoke(t.Context(), "/grpc.testing.TestService/UnaryCall", in, out); err != nil {
		t.Fatal(err)
	}
	if got := out.Get(out.Descriptor().Fields().ByName("username")).String(); got != "numbered" {
		t.Errorf("got %v", out)
	}
}

// A client of yodel calls a server of grpc-go with numbered structs.
func TestNumberedStructsCallGRPC(t *testing.T) {
	c := yodel.NewClient(discovery.Static("grpc://"+serveGRPC(t)), &yodel.ClientOptions{Codec: pbstruct.Codec, Wires: []yodel.Wire{wire.Wire}})
	t.Cleanup(c.Close)
	reply, err := numberedUnary.Call(t.Context(), c, &request{Size: 300})
	if err != nil || len(reply.Payload.Body) != 300 {
		t.Errorf("got %v, %v", reply, err)
	}
	sum, err := numberedInput.Call(t.Context(), c, func(send yodel.Send[inputRequest]) error {
		for range 3 {
			if err := send(&inputRequest{payload{make([]byte, 1000)}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || sum.Size != 3000 {
		t.Errorf("got %v, %v", sum, err)
	}
}

// A plain struct over gRPC fails with an error that says what to do, whatever codecs the server
// has.
func TestPlainStructsOverGRPC(t *testing.T) {
	for _, codecs := range [][]yodel.Codec{nil, {protobuf.Codec}, {pbstruct.Codec}, {pbstruct.With(protobuf.Codec)}} {
		err := numbered(t, false, codecs...).Invoke(t.Context(), "/Arith/Mul", new(testpb.Empty), new(testpb.Empty))
		const want = `Arith.Mul takes grpc_test.Args, a plain struct: over gRPC use application/grpc+json, or number its fields (pb:"1") and add pbstruct.Codec`
		if status.Code(err) != codes.Unimplemented || !strings.HasSuffix(status.Convert(err).Message(), want) {
			t.Errorf("with %v: got %v\nwant %s", codecs, err, want)
		}
	}
}
