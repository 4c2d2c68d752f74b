// SPDX-License-Identifier: Apache-2.0

package grpcgo_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
)

// A codec is the codec "protobuf" of the server.
type codec struct{}

func (codec) Name() string { return "protobuf" }

func (codec) Append(dst []byte, v any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(dst, v.(proto.Message))
}

func (codec) Decode(src []byte, v any) error { return proto.Unmarshal(src, v.(proto.Message)) }

// Unchanged stubs call an unchanged service over yodel's own protocol. The calls pass through the
// middleware of the server. Conformance/grpc tests all kinds of calls.
func TestStubs(t *testing.T) {
	var seen []string
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{codec{}}, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			seen = append(seen, call.Method+" "+call.Metadata["from"])
			return next(ctx, call)
		}
	}}})
	service := health.NewServer()
	service.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(grpcgo.Registrar(s), service)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c := yodel.Dial(l.Addr().String())
	defer c.Close()
	client := healthpb.NewHealthClient(grpcgo.Conn(c))

	sent := metadata.AppendToOutgoingContext(t.Context(), "from", "anna")
	reply, err := client.Check(sent, &healthpb.HealthCheckRequest{Service: "shop"})
	if err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("got %v, %v", reply, err)
	}
	if _, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: got %v", err)
	}
	watching, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := client.Watch(watching, &healthpb.HealthCheckRequest{Service: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if reply, err := stream.Recv(); err != nil || reply.GetStatus() != want {
			t.Errorf("got %v, %v, want %v", reply, err, want)
		}
		service.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
	}
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("after its end: got %v", err)
	}
	if len(seen) != 3 || seen[0] != "grpc.health.v1.Health/Check anna" {
		t.Errorf("the middleware has seen %q", seen)
	}
}

// A call option that cannot be carried out fails its call.
func TestUnknownCallOptions(t *testing.T) {
	client := healthpb.NewHealthClient(grpcgo.Conn(yodel.NewServer(nil)))
	for _, option := range []grpc.CallOption{grpc.CallContentSubtype("json"), grpc.PerRPCCredentials(password{secure: true})} {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, option); status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
		if _, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{}, option); status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
	}
}

// A password is credentials of a call.
type password struct {
	secure bool
	err    error
}

func (p password) RequireTransportSecurity() bool { return p.secure }
func (p password) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"Password": "secret"}, p.err
}

// Options of calls that libraries add to each of them limit messages and add metadata.
func TestCallOptions(t *testing.T) {
	limit := func(n int) (receive, send grpc.CallOption) {
		return grpc.MaxCallRecvMsgSize(n), grpc.MaxCallSendMsgSize(n)
	}
	receive, send := limit(1 << 20)
	least, none := limit(1)
	for name, test := range map[string]struct {
		options []grpc.CallOption
		want    codes.Code
	}{
		"no limit is reached":          {[]grpc.CallOption{receive, send, grpc.UseCompressor("gzip"), grpc.MaxRetryRPCBufferSize(1)}, codes.OK},
		"the reply is too large":       {[]grpc.CallOption{least}, codes.ResourceExhausted},
		"the request is too large":     {[]grpc.CallOption{none}, codes.ResourceExhausted},
		"credentials":                  {[]grpc.CallOption{grpc.PerRPCCredentials(password{})}, codes.OK},
		"credentials that are not had": {[]grpc.CallOption{grpc.PerRPCCredentials(password{err: errors.New("no issuer")})}, codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			check := func(ctx context.Context) error {
				md, _ := metadata.FromIncomingContext(ctx)
				seen = md["password"]
				return nil
			}
			c := checkerWith(t, func(ctx context.Context, _ *healthpb.HealthCheckRequest) error { return check(ctx) })
			_, err := healthpb.NewHealthClient(grpcgo.Conn(c)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "shop"}, test.options...)
			if status.Code(err) != test.want || (len(seen) == 1) != (name == "credentials") {
				t.Errorf("got %v; the method has seen %q", err, seen)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			st, err := connect(t).NewStream(ctx, &feed, "/test.Streams/Feed", test.options...)
			if err == nil {
				err = st.SendMsg(wrapperspb.String("go"))
			}
			if err == nil {
				err = st.RecvMsg(new(wrapperspb.StringValue))
			}
			if status.Code(err) != test.want {
				t.Errorf("a feed: got %v", err)
			}
			cancel()
			if st != nil && test.want == codes.OK {
				for err == nil {
					err = st.RecvMsg(new(wrapperspb.StringValue))
				}
			}
		})
	}
}

// A panicker is a Caller whose calls panic.
type panicker struct{}

func (panicker) Do(context.Context, *yodel.Call) error { panic("harm") }

// A panic on the goroutine of a stream ends the stream and not the process.
func TestStreamThatPanics(t *testing.T) {
	stream, err := healthpb.NewHealthClient(grpcgo.Conn(panicker{})).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
}
