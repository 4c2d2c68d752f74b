// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/reflection"
)

// Methods of grpc.testing.TestService.
const (
	empty     yodel.Method[testpb.Empty, testpb.Empty]                                            = "grpc.testing.TestService/EmptyCall"
	unary     yodel.Method[testpb.SimpleRequest, testpb.SimpleResponse]                           = "grpc.testing.TestService/UnaryCall"
	cacheable yodel.Method[testpb.SimpleRequest, testpb.SimpleResponse]                           = "grpc.testing.TestService/CacheableUnaryCall"
	output    yodel.Feed[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]   = "grpc.testing.TestService/StreamingOutputCall"
	input     yodel.Upload[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]   = "grpc.testing.TestService/StreamingInputCall"
	full      yodel.Duplex[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse] = "grpc.testing.TestService/FullDuplexCall"
	half      yodel.Duplex[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse] = "grpc.testing.TestService/HalfDuplexCall"
)

// A service is grpc.testing.TestService, written with yodel.
type service struct {
	canceled atomic.Int64 // calls whose callers have canceled them
}

func (s *service) register(server *yodel.Server) {
	empty.Handle(server, func(_ context.Context, in *testpb.Empty) (*testpb.Empty, error) { return in, nil })
	unary.Handle(server, s.unary)
	cacheable.Handle(server, func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) { // equal requests have equal replies
		return &testpb.SimpleResponse{Payload: in.GetPayload()}, nil
	})
	output.Handle(server, func(ctx context.Context, in *testpb.StreamingOutputCallRequest, send yodel.Send[testpb.StreamingOutputCallResponse]) error {
		echo(ctx)
		return s.respond(ctx, in, send)
	})
	server.MarkReadOnly(string(cacheable), string(output))
	input.Handle(server, func(ctx context.Context, recv yodel.Recv[testpb.StreamingInputCallRequest]) (*testpb.StreamingInputCallResponse, error) {
		size, taken := 0, yodel.CallFrom(ctx).Traffic().BytesIn
		for in, err := range recv {
			if err != nil {
				return nil, err
			}
			all := yodel.CallFrom(ctx).Traffic().BytesIn
			if err := checkCompressed(in.GetExpectCompressed(), in, all-taken); err != nil {
				return nil, err
			}
			taken = all
			size += len(in.GetPayload().GetBody())
		}
		return &testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)}, nil //nolint:gosec // it is small
	})
	full.Handle(server, func(ctx context.Context, recv yodel.Recv[testpb.StreamingOutputCallRequest], send yodel.Send[testpb.StreamingOutputCallResponse]) error {
		echo(ctx)
		for in, err := range recv {
			if err != nil {
				return s.ended(ctx, err)
			}
			if err := s.respond(ctx, in, send); err != nil {
				return err
			}
		}
		return nil
	})
	half.Handle(server, func(ctx context.Context, recv yodel.Recv[testpb.StreamingOutputCallRequest], send yodel.Send[testpb.StreamingOutputCallResponse]) error {
		var all []*testpb.StreamingOutputCallRequest
		for in, err := range recv {
			if err != nil {
				return err
			}
			all = append(all, in)
		}
		for _, in := range all {
			if err := s.respond(ctx, in, send); err != nil {
				return err
			}
		}
		return nil
	})
}

// echo returns the metadata that the test cases send.
func echo(ctx context.Context) {
	const initial, trailing = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
	call := yodel.CallFrom(ctx)
	if value, ok := call.Metadata[initial]; ok {
		call.SetHeader(yodel.Metadata{initial: value})
	}
	if value, ok := call.Metadata[trailing]; ok {
		call.Trailer = yodel.Metadata{trailing: value}
	}
}

// statusOf returns the error that a request asks for. It has details.
func statusOf(st *testpb.EchoStatus) error {
	if st.GetCode() == 0 {
		return nil
	}
	detail, err := proto.Marshal(wrapperspb.String("a detail"))
	if err != nil {
		return err
	}
	return &yodel.Error{Code: yodel.Code(st.GetCode()), Message: st.GetMessage(), Details: []yodel.Detail{{Type: "google.protobuf.StringValue", Value: detail}}} //nolint:gosec // it is a code
}

func (s *service) unary(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	echo(ctx)
	if err := checkCompressed(in.GetExpectCompressed(), in, yodel.CallFrom(ctx).Traffic().BytesIn); err != nil {
		return nil, err
	}
	if err := statusOf(in.GetResponseStatus()); err != nil {
		return nil, err
	}
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, in.GetResponseSize())}}, nil
}

// checkCompressed fails if a message is compressed and should not be, or the other way round. Taken
// is how many bytes were received for it. The test cases compress zeros, so a message that is
// compressed has taken fewer bytes than its size.
func checkCompressed(want *testpb.BoolValue, in proto.Message, taken int) error {
	if compressed := taken < proto.Size(in); want != nil && want.GetValue() != compressed {
		return yodel.Errorf(yodel.InvalidArgument, "the message of %d bytes has taken %d bytes; compressed: want %t", proto.Size(in), taken, want.GetValue())
	}
	return nil
}

// respond sends what a request asks for.
func (s *service) respond(ctx context.Context, in *testpb.StreamingOutputCallRequest, send yodel.Send[testpb.StreamingOutputCallResponse]) error {
	if err := statusOf(in.GetResponseStatus()); err != nil {
		return err
	}
	for _, wanted := range in.GetResponseParameters() {
		if d := time.Duration(wanted.GetIntervalUs()) * time.Microsecond; d > 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return s.ended(ctx, context.Cause(ctx))
			}
		}
		if err := send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, wanted.GetSize())}}); err != nil {
			return s.ended(ctx, err)
		}
	}
	return nil
}

// ended counts a call that its caller has canceled.
func (s *service) ended(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(err, io.EOF) {
		s.canceled.Add(1)
	}
	return err
}

// serveService serves the service with health and reflection.
func serveService(t *testing.T, o *http.Options) (addr string, s *service) {
	t.Helper()
	return serveServiceOn(t, o, listen(t))
}

func serveServiceOn(t *testing.T, o *http.Options, l net.Listener) (addr string, s *service) {
	t.Helper()
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec, protobuf.JSON}, Compressors: []compress.Compressor{gzip.Compressor},
		Protocols: []yodel.Protocol{http.New(o)}, Logger: slog.New(slog.DiscardHandler), Limits: zeros,
	})
	s = new(service)
	s.register(server)
	if err := errors.Join(http.RegisterHealth(server), reflection.Register(server)); err != nil {
		t.Fatal(err)
	}
	return startOn(t, server, l), s
}

// start serves a server until the test ends.
func start(t *testing.T, s *yodel.Server) (addr string) {
	t.Helper()
	return startOn(t, s, listen(t))
}

func startOn(t *testing.T, s *yodel.Server, l net.Listener) (addr string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := await.Value(t, ended, "the end of the server"); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}
