// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// An unchanged client of grpc-go reads the violations of a request, and of the third message of an
// upload, as google.rpc.BadRequest. The methods are those of generated code.
func TestViolationsArriveAtGRPCGo(t *testing.T) {
	rule := func(message any) error {
		size := int32(0)
		switch m := message.(type) {
		case *testpb.SimpleRequest:
			size = m.GetResponseSize()
		case *testpb.StreamingInputCallRequest:
			size = int32(len(m.GetPayload().GetBody()))
		}
		if size > 2 {
			return validate.Violations{{Field: "size", Rule: "int32.lte", Message: "must be at most 2"}}
		}
		return nil
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)},
		Middleware: []yodel.Middleware{validate.With(&validate.Options{Rules: []func(any) error{rule}})},
	})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), uploads{})
	l := listen(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); stop(); <-ended })
	c := testpb.NewTestServiceClient(conn)

	_, unary := c.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 3})
	st, err := c.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := st.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, n+1)}}); err != nil {
			t.Fatal(err)
		}
	}
	_, upload := st.CloseAndRecv()
	for name, err := range map[string]error{"unary": unary, "upload": upload} {
		got := status.Convert(err)
		if got.Code() != codes.InvalidArgument || len(got.Details()) != 1 {
			t.Errorf("%s: got %v with %v", name, err, got.Details())
			continue
		}
		bad, ok := got.Details()[0].(*errdetails.BadRequest)
		if !ok || len(bad.GetFieldViolations()) != 1 {
			t.Errorf("%s: the detail is %v", name, got.Details()[0])
			continue
		}
		if v := bad.GetFieldViolations()[0]; v.GetField() != "size" || v.GetReason() != "int32.lte" || v.GetDescription() != "must be at most 2" {
			t.Errorf("%s: the violation is %v", name, v)
		}
	}
}

type uploads struct {
	testpb.UnimplementedTestServiceServer
}

func (uploads) StreamingInputCall(st testpb.TestService_StreamingInputCallServer) error {
	for {
		if _, err := st.Recv(); err != nil {
			return err
		}
	}
}
