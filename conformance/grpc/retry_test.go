// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A flaky service fails its first calls with Unavailable.
type flaky struct {
	testpb.UnimplementedTestServiceServer
	calls atomic.Int64
	fails int64
}

func (f *flaky) fail() error {
	if n := f.calls.Add(1); n <= f.fails {
		return status.Errorf(codes.Unavailable, "not at call %d", n)
	}
	return nil
}

func (f *flaky) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{}, f.fail()
}

func (f *flaky) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if err := f.fail(); err != nil {
		return err
	}
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

func (f *flaky) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if err := f.fail(); err != nil {
		return err
	}
	return in.SendAndClose(new(testpb.StreamingInputCallResponse))
}

// A service that sets a header commits its calls, in grpc-go too.
func (f *flaky) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs("x-first", "1")); err != nil {
		return nil, err
	}
	return &testpb.Empty{}, f.fail()
}

// yodelServer returns a yodel server for clients of gRPC.
func yodelServer(middleware ...yodel.Middleware) *yodel.Server {
	return yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Compressors: []compress.Compressor{gzip.Compressor}, Middleware: middleware,
		Protocols: []yodel.Protocol{http.New(&http.Options{Origins: []string{"*"}})}, Logger: slog.New(slog.DiscardHandler),
	})
}

// serveFlaky serves f on a server of grpc-go, and on a yodel server.
func serveFlaky(t *testing.T, f *flaky) map[string]string {
	t.Helper()
	theirs, ours := grpc.NewServer(), yodelServer()
	testpb.RegisterTestServiceServer(theirs, f)
	testpb.RegisterTestServiceServer(grpcgo.Registrar(ours), f)
	return map[string]string{"grpc-go": startGRPC(t, theirs), "yodel": start(t, ours)}
}

// retrying is a service config with up to four attempts.
const retrying = `{"methodConfig": [{"name": [{"service": "grpc.testing.TestService"}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
}}]}`

// dialRetrying returns a client with the service config.
func dialRetrying(t *testing.T, addr string) testpb.TestServiceClient {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retrying))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return testpb.NewTestServiceClient(c)
}

// retriable are calls of all kinds whose response has neither a header nor a message.
var retriable = map[string]func(ctx context.Context, c testpb.TestServiceClient) error{
	"unary": func(ctx context.Context, c testpb.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, new(testpb.SimpleRequest))
		return err
	},
	"feed": func(ctx context.Context, c testpb.TestServiceClient) error {
		s, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		if err == nil {
			_, err = s.Recv()
		}
		return err
	},
	"upload": func(ctx context.Context, c testpb.TestServiceClient) error {
		s, err := c.StreamingInputCall(ctx)
		if err == nil {
			_, err = s.CloseAndRecv()
		}
		return err
	},
}

// The retry policy of an unchanged client makes as many attempts against a yodel server as against
// a server of grpc-go.
func TestRetryPolicy(t *testing.T) {
	for kind, call := range retriable {
		for fails, want := range map[int64]struct {
			calls int64
			code  codes.Code
		}{0: {1, codes.OK}, 2: {3, codes.OK}, 100: {4, codes.Unavailable}} {
			f := &flaky{fails: fails}
			for server, addr := range serveFlaky(t, f) {
				t.Run(fmt.Sprint(kind, "/", fails, "/", server), func(t *testing.T) {
					f.calls.Store(0)
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					err := call(ctx, dialRetrying(t, addr))
					if n := f.calls.Load(); n != want.calls || status.Code(err) != want.code {
						t.Errorf("got %v after %d attempts, want %v after %d", err, n, want.code, want.calls)
					}
				})
			}
		}
	}
}

// A header that the handler has set commits the call: the client does not repeat it.
func TestRetryPolicyAfterAHeader(t *testing.T) {
	f := &flaky{fails: 100}
	for server, addr := range serveFlaky(t, f) {
		f.calls.Store(0)
		var header metadata.MD
		_, err := dialRetrying(t, addr).EmptyCall(t.Context(), new(testpb.Empty), grpc.Header(&header))
		if n := f.calls.Load(); n != 1 || status.Code(err) != codes.Unavailable || len(header.Get("x-first")) != 1 {
			t.Errorf("%s: got %v and the header %v after %d attempts, want 1", server, err, header, n)
		}
	}
}

// Node's grpc-js repeats calls by a retry policy, and hedges them by a hedging policy, against a
// yodel server as against a server of grpc-go. Grpc-go has no hedging policy.
func TestRetryAndHedgingPolicyOfNode(t *testing.T) {
	node, path := realserver.Node(t, "grpc-node")
	f := new(flaky)
	for server, addr := range serveFlaky(t, f) {
		for policy, fails := range map[string]int64{"retryPolicy": 2, "hedgingPolicy": 2} {
			t.Run(server+"/"+policy, func(t *testing.T) {
				f.calls.Store(0)
				f.fails = fails
				out := run(t, []string{"NODE_PATH=" + path}, node, "testdata/retry.js", addr, descriptors(t), policy)
				if n := f.calls.Load(); n != fails+1 {
					t.Errorf("%d attempts, want %d:\n%s", n, fails+1, out)
				}
			})
		}
	}
}

// A client waits as long as a refusal says before it repeats the call.
func TestRetryPushback(t *testing.T) {
	const pause = 300 * time.Millisecond
	var calls atomic.Int64
	s := yodelServer(func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if calls.Add(1) > 1 {
				return next(ctx, call)
			}
			return &yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true, RetryAfter: pause, Message: "too early"}
		}
	})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), new(flaky))
	c := dialRetrying(t, start(t, s))
	for kind, call := range retriable {
		calls.Store(0)
		began := time.Now()
		err := call(t.Context(), c)
		if took := time.Since(began); err != nil || calls.Load() != 2 || took < pause {
			t.Errorf("%s: got %v after %v and %d attempts, want success after more than %v and 2 attempts", kind, err, took, calls.Load(), pause)
		}
	}
}

// wait waits until c is closed or ctx ends.
func wait(ctx context.Context, c <-chan struct{}) {
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// A call that a limiter refuses is repeated until the limiter has room.
func TestRetryAfterOverload(t *testing.T) {
	var refused atomic.Int64
	began, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}) // of the first call
	outside := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			err := next(ctx, call)
			switch {
			case err == nil && refused.Load() == 2:
				close(ended)
				refused.Add(1)
			case yodel.CodeOf(err) == yodel.ResourceExhausted && refused.Add(1) == 2:
				close(free)
				wait(ctx, ended)
			}
			return err
		}
	}
	inside := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if refused.Load() == 0 {
				close(began)
				wait(ctx, free)
			}
			return next(ctx, call)
		}
	}
	s := yodelServer(outside, limit.With(&limit.Options{Limit: 1, Queue: -1, Streams: true}), inside)
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), new(flaky))
	c := dialRetrying(t, start(t, s))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first := make(chan error, 1)
	go func() {
		_, err := c.UnaryCall(ctx, new(testpb.SimpleRequest))
		first <- err
	}()
	wait(ctx, began)
	_, err := c.UnaryCall(ctx, new(testpb.SimpleRequest))
	if err != nil || refused.Load() != 3 {
		t.Errorf("got %v after %d refusals, want success after 2", err, refused.Load()-1)
	}
	must(t, await.Value(t, first, "the first call"))
}
