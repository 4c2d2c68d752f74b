// SPDX-License-Identifier: Apache-2.0

package grpcgo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
)

type contextKey struct{ name string }

// put returns an interceptor that adds its name to the context, the header and the trailer, and the
// requests that it sees to seen.
func put(name string, seen *[]string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		*seen = append(*seen, fmt.Sprintf("%s %s %v", name, info.FullMethod, request))
		err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("header-"+name, "x")), grpc.SetTrailer(ctx, metadata.Pairs("trailer-"+name, "x")))
		if err != nil {
			return nil, err
		}
		return next(context.WithValue(ctx, contextKey{name}, name), request)
	}
}

// A checker is a service of health whose method Check does what a test says.
type checker struct {
	healthpb.UnimplementedHealthServer
	check func(ctx context.Context, in *healthpb.HealthCheckRequest) error
}

func (c checker) Check(ctx context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, c.check(ctx, in)
}

const echo yodel.Method[string, string] = "Echo"

// checkerWith serves check with middleware, and a typed method, and returns a client.
func checkerWith(t *testing.T, check func(ctx context.Context, in *healthpb.HealthCheckRequest) error, middleware ...yodel.Middleware) *yodel.Client {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{codec{}}, Middleware: middleware})
	healthpb.RegisterHealthServer(grpcgo.Registrar(s), checker{check: check})
	echo.Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	return serve(t, s)
}

// Interceptors run in their order, with the request, and their contexts, headers, trailers and
// changes of the request and the reply arrive.
func TestUnaryInterceptors(t *testing.T) {
	var seen []string
	change := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if _, ok := request.(*healthpb.HealthCheckRequest); !ok {
			return next(ctx, request)
		}
		reply, err := next(ctx, &healthpb.HealthCheckRequest{Service: "changed"})
		if reply, ok := reply.(*healthpb.HealthCheckResponse); ok && err == nil {
			return &healthpb.HealthCheckResponse{Status: reply.GetStatus() + 1}, nil
		}
		return nil, err
	}
	c := checkerWith(t, func(ctx context.Context, in *healthpb.HealthCheckRequest) error {
		seen = append(seen, fmt.Sprint("method ", in.GetService(), ctx.Value(contextKey{"a"}), ctx.Value(contextKey{"b"})))
		return grpc.SetTrailer(ctx, metadata.Pairs("trailer-c", "x"))
	}, grpcgo.Unary(put("a", &seen)), mark, grpcgo.Unary(put("b", &seen)), grpcgo.Unary(change))
	var header, trailer metadata.MD
	reply, err := healthpb.NewHealthClient(grpcgo.Conn(c)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "s"}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("got %v, %v", reply, err)
	}
	const method = "/grpc.health.v1.Health/Check"
	if got, want := strings.Join(seen, "; "), `a `+method+` service:"s"; b `+method+` service:"s"; method changedab`; strings.ReplaceAll(got, "  ", " ") != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(header) != 2 || len(trailer) != 4 {
		t.Errorf("the header is %v, and the trailer is %v", header, trailer)
	}
	seen = nil
	hello := "hello"
	if got, err := echo.Call(t.Context(), c, &hello); err != nil || *got != hello || len(seen) != 2 || !strings.HasPrefix(seen[0], "a /Echo ") {
		t.Errorf("a typed method: got %v, %v; the interceptors have seen %q", got, err, seen)
	}
	if err := c.Call(t.Context(), "None", nil, nil); yodel.CodeOf(err) != yodel.Unimplemented || len(seen) != 2 {
		t.Errorf("a method that does not exist: got %v; the interceptors have seen %q", err, seen)
	}
}

// mark is middleware that adds to the trailer.
func mark(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		trailer := yodel.Metadata{"trailer-mark": "x"}
		maps.Copy(trailer, call.Trailer)
		call.Trailer = trailer
		return err
	}
}

// Statuses of interceptors and of methods arrive with their details, also in what wraps them.
// Interceptors see the errors of methods as statuses.
func TestStatusesOfInterceptorsAndMethods(t *testing.T) {
	st, err := status.New(codes.FailedPrecondition, "too few").WithDetails(wrapperspb.Int64(10))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"status":         {st.Err(), "too few"},
		"wrapped status": {fmt.Errorf("reserve: %w", st.Err()), "reserve: rpc error: code = FailedPrecondition desc = too few"},
		"yodel.Error":    {&yodel.Error{Code: yodel.FailedPrecondition, Message: "too few", Details: []yodel.Detail{{Type: "google.protobuf.Int64Value", Value: []byte{8, 10}}}}, "too few"},
	} {
		var seen codes.Code
		log := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			reply, err := next(ctx, request)
			seen = status.Code(err)
			return reply, err
		}
		refuse := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			return nil, test.err
		}
		handWritten := func(yodel.Handler) yodel.Handler {
			return func(context.Context, *yodel.Call) error { return test.err }
		}
		for where, middleware := range map[string][]yodel.Middleware{
			"method": {grpcgo.Unary(log)}, "interceptor": {grpcgo.Unary(log), grpcgo.Unary(refuse)}, "middleware": {grpcgo.Unary(log), handWritten},
		} {
			seen = 0
			c := checkerWith(t, func(context.Context, *healthpb.HealthCheckRequest) error { return test.err }, middleware...)
			_, err := healthpb.NewHealthClient(grpcgo.Conn(c)).Check(t.Context(), &healthpb.HealthCheckRequest{})
			got := status.Convert(err)
			if got.Code() != st.Code() || got.Message() != test.want || seen != st.Code() || len(got.Details()) != 1 || got.Details()[0].(*wrapperspb.Int64Value).GetValue() != 10 {
				t.Errorf("%s of a %s: got %v with %v; the interceptor has seen %v", name, where, err, got.Details(), seen)
			}
		}
	}
}

// An interceptor that passes an error of yodel on does not change it.
func TestErrorsPassInterceptorsUnchanged(t *testing.T) {
	pass := grpcgo.Unary(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return next(ctx, request)
	})
	c := checkerWith(t, func(context.Context, *healthpb.HealthCheckRequest) error {
		return &yodel.Error{Code: yodel.Unavailable, Message: "later", RetryAfter: time.Hour}
	}, pass)
	err := c.Do(t.Context(), &yodel.Call{
		Method: "grpc.health.v1.Health/Check", Args: new(healthpb.HealthCheckRequest), Reply: new(healthpb.HealthCheckResponse), Codec: codec{},
	})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.RetryAfter != time.Hour {
		t.Errorf("got %v", err)
	}
}

// A counter is a stream that counts its messages.
type counter struct {
	grpc.ServerStream
	ctx            context.Context
	sent, received *int
}

func (c *counter) Context() context.Context { return c.ctx }

func (c *counter) SendMsg(m any) error {
	*c.sent++
	return c.ServerStream.SendMsg(m)
}

func (c *counter) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if err == nil {
		*c.received++
	}
	return err
}

// Interceptors of streams see the messages, change the context, and see the error.
func TestStreamInterceptors(t *testing.T) {
	for _, desc := range []grpc.StreamDesc{upload, duplex, feed, odd} {
		t.Run(desc.StreamName, func(t *testing.T) {
			var sent, received int
			var values []any
			var info grpc.StreamServerInfo
			var seen codes.Code
			handler := desc.Handler
			desc.Handler = func(impl any, st grpc.ServerStream) error {
				values = append(values, st.Context().Value(contextKey{"a"}), st.Context().Value(contextKey{"between"}), st.Context().Value(contextKey{"b"}))
				return handler(impl, st)
			}
			count := func(name string) yodel.Middleware {
				return grpcgo.Stream(func(impl any, st grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
					info = *i
					st.SetTrailer(metadata.Pairs("trailer-"+name, "x"))
					err := next(impl, &counter{st, context.WithValue(st.Context(), contextKey{name}, name), &sent, &received})
					seen = status.Code(err)
					return err
				})
			}
			between := func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					return next(context.WithValue(ctx, contextKey{"between"}, "between"), call)
				}
			}
			conn := connectWith(t, []grpc.StreamDesc{desc}, count("a"), between, grpcgo.Unary(nil), count("b"))
			var trailer metadata.MD
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			st, err := conn.NewStream(ctx, &desc, "/test.Streams/"+desc.StreamName, grpc.Trailer(&trailer))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(st.SendMsg(wrapperspb.String("go")), st.CloseSend()); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				err = st.RecvMsg(new(wrapperspb.StringValue))
				if err == nil && !desc.ServerStreams {
					err = io.EOF
				}
			}
			want := map[string][3]int{"Upload": {1, 1, 0}, "Duplex": {0, 1, 0}, "Feed": {1, 1, 0}, "Odd": {0, 0, 257}}[desc.StreamName]
			if got := [3]int{sent / 2, received / 2, int(seen)}; got != want || (err == io.EOF) != (seen == 0) {
				t.Errorf("got %v with %v, want %v", got, err, want)
			}
			if fmt.Sprint(values) != "[a between b]" || info.FullMethod != "/test.Streams/"+desc.StreamName || info.IsClientStream != desc.ClientStreams || info.IsServerStream != desc.ServerStreams {
				t.Errorf("the context has %v, and the info is %+v", values, info)
			}
			if len(trailer["trailer-a"]) != 1 || len(trailer["trailer-b"]) != 1 {
				t.Errorf("the trailer is %v", trailer)
			}
		})
	}
}

// What describes the methods of a server has the types of those that Registrar has registered.
func TestTypes(t *testing.T) {
	s := yodel.NewServer(nil)
	healthpb.RegisterHealthServer(grpcgo.Registrar(s), checker{})
	for _, method := range []string{"Check", "Watch"} {
		in, out := s.Types("grpc.health.v1.Health/" + method)
		if len(in) != 1 || len(out) != 1 || in[0] != reflect.TypeFor[healthpb.HealthCheckRequest]() || out[0] != reflect.TypeFor[healthpb.HealthCheckResponse]() {
			t.Errorf("%s: the types are %v and %v", method, in, out)
		}
	}
}

// A stream that Registrar has not registered gets the context, and its interceptor no messages.
func TestInterceptorsOfOtherStreams(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{grpcgo.Stream(func(impl any, st grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := errors.Join(st.SendMsg(nil), st.RecvMsg(nil)); err == nil {
			return errors.New("there are messages")
		}
		return next(impl, &counter{ServerStream: st, ctx: context.WithValue(st.Context(), contextKey{"a"}, "a")})
	})}})
	const count yodel.Feed[int, int] = "Count"
	count.Handle(s, func(ctx context.Context, _ *int, send yodel.Send[int]) error {
		if ctx.Value(contextKey{"a"}) == nil {
			return errors.New("the context is another one")
		}
		n := 1
		return send(&n)
	})
	got, in := 0, 1
	for n, err := range count.Call(t.Context(), serve(t, s), &in) {
		if err != nil {
			t.Fatal(err)
		}
		got += *n
	}
	if got != 1 {
		t.Errorf("got %d", got)
	}
}
