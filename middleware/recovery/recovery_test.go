// SPDX-License-Identifier: Apache-2.0

package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/recovery"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// dial connects a client to a server whose one method panics, for the length of the test.
func dial(t *testing.T, so *yodel.ServerOptions, co *yodel.ClientOptions) *yodel.Client {
	t.Helper()
	network := mem.New()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	so.Logger, so.Diagnostics = slog.New(slog.DiscardHandler), true
	s := yodel.NewServer(so)
	work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) { panic("the secret is 1234") })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	co.Transport = network
	c := yodel.NewClient(discovery.Static("server"), co)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func TestThePanicAndItsStackAreGivenToTheFunction(t *testing.T) {
	type ctxKey struct{}
	ctx := context.WithValue(t.Context(), ctxKey{}, "ours")
	call := &yodel.Call{Method: "Test.Work"}
	chosen := errors.New("chosen")
	err := recovery.With(func(gotCtx context.Context, gotCall *yodel.Call, value any, stack []byte) error {
		if gotCtx.Value(ctxKey{}) != "ours" || gotCall != call || value != "oh" || !strings.Contains(string(stack), "recovery_test.brokenMethod") {
			t.Errorf("got context %v, call %v, value %v and stack\n%s", gotCtx, gotCall, value, stack)
		}
		return chosen
	})(brokenMethod)(ctx, call)
	if err != chosen {
		t.Errorf("got %v, want the error of the function", err)
	}
}

func brokenMethod(context.Context, *yodel.Call) error { panic("oh") }

func TestTheFunctionChoosesTheErrorOfAServersCall(t *testing.T) {
	reported := make(chan any, 1)
	c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		recovery.With(func(_ context.Context, call *yodel.Call, value any, _ []byte) error {
			reported <- value
			return yodel.Errorf(yodel.Unavailable, "%s is being repaired", call.Method)
		}),
	}}, &yodel.ClientOptions{})
	_, err := work.Call(t.Context(), c, &struct{}{})
	if !errors.Is(err, yodel.Unavailable) || err.Error() != "unavailable: Test.Work is being repaired" || yodel.NotProcessed(err) {
		t.Errorf("got %v", err)
	}
	if value := <-reported; value != "the secret is 1234" {
		t.Errorf("got the panic %v", value)
	}
}

func TestNilLetsThePanicGoOn(t *testing.T) {
	reported := make(chan any, 1)
	c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		recovery.With(func(_ context.Context, _ *yodel.Call, value any, _ []byte) error {
			reported <- value
			return nil
		}),
	}}, &yodel.ClientOptions{})
	_, err := work.Call(t.Context(), c, &struct{}{})
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.ID != "YDL5001" || strings.Contains(fmt.Sprintf("%+v", err), "1234") {
		t.Errorf("got %+v, want YDL5001 without the text of the panic", err)
	}
	stats, err := inspect.Stats.Call(t.Context(), c, &inspect.Empty{})
	if err != nil || stats.Panics != 1 {
		t.Errorf("the server counted %+v (%v), want one panic", stats, err)
	}
	if value := <-reported; value != "the secret is 1234" {
		t.Errorf("got the panic %v", value)
	}
}

func TestOnAClientPanicsOfWhatIsBelowAreCaught(t *testing.T) {
	broken := func(yodel.Handler) yodel.Handler { return brokenMethod }
	c := dial(t, &yodel.ServerOptions{}, &yodel.ClientOptions{Middleware: []yodel.Middleware{
		recovery.With(func(_ context.Context, _ *yodel.Call, value any, _ []byte) error {
			return yodel.Errorf(yodel.Internal, "%v", value)
		}),
		broken,
	}})
	// on a goroutine of the client's
	if _, err := work.Go(t.Context(), c, &struct{}{}).Get(); !errors.Is(err, yodel.Internal) {
		t.Errorf("got %v, want internal", err)
	}
}

func TestWithoutAPanicTheFunctionIsNotCalled(t *testing.T) {
	middleware := recovery.With(func(_ context.Context, _ *yodel.Call, value any, _ []byte) error {
		t.Errorf("called with %v", value)
		return nil
	})
	want := errors.New("an error")
	if err := middleware(func(context.Context, *yodel.Call) error { return want })(t.Context(), &yodel.Call{}); err != want {
		t.Errorf("got %v, want what the method returned", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = middleware(func(context.Context, *yodel.Call) error { runtime.Goexit(); return nil })(context.Background(), &yodel.Call{})
	}()
	<-ended
}

func TestSuccessAllocatesNothing(t *testing.T) {
	handler := recovery.With(nil)(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{}
	if n := testing.AllocsPerRun(100, func() {
		if err := handler(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}
