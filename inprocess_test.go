// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A server is a Caller of its own methods, typed ones too.
func TestAServerCallsItself(t *testing.T) {
	var seen []string
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			seen = append(seen, call.Method+" from "+call.Peer().Addr.String()+" "+call.Metadata["user"])
			return next(ctx, call)
		}
	}}})
	args := &Args{6, 7}
	Mul.Handle(s, func(ctx context.Context, in *Args) (*Reply, error) {
		if in == args {
			t.Error("the handler has the caller's memory")
		}
		if ctx.Value(valueKey{}) != nil {
			t.Error("the handler has a value of the caller's context")
		}
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"k": "v"}
		return &Reply{in.A * in.B}, nil
	})
	if err := s.Handle("DivMod", func(a, b int) (int, int, error) {
		if b == 0 {
			return 0, 0, yodel.Errorf(yodel.OutOfRange, "by zero")
		}
		return a / b, a % b, nil
	}); err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), valueKey{}, 1)
	call := &yodel.Call{Method: string(Mul), Args: args, Reply: new(Reply), Metadata: yodel.Metadata{"user": "ann"}}
	if err := s.Do(ctx, call); err != nil || call.Reply.(*Reply).C != 42 || call.Trailer["k"] != "v" {
		t.Errorf("got %v, %v, %v", call.Reply, call.Trailer, err)
	}
	if reply, err := Mul.Call(ctx, s, args); err != nil || reply.C != 42 {
		t.Errorf("got %v, %v", reply, err)
	}
	var quo, rem int
	if err := s.Do(ctx, &yodel.Call{Method: "DivMod", Args: yodel.Values{17, 5}, Reply: yodel.Values{&quo, &rem}}); err != nil || quo != 3 || rem != 2 {
		t.Errorf("got %d, %d, %v", quo, rem, err)
	}
	for method, want := range map[string]yodel.Code{"Nobody.Home": yodel.Unimplemented, "DivMod": yodel.OutOfRange} {
		err := s.Do(ctx, &yodel.Call{Method: method, Args: yodel.Values{1, 0}, Reply: yodel.Values{new(int), new(int)}})
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", method, err, want)
		}
	}
	if len(seen) != 5 || seen[0] != "Arith.Mul from local ann" {
		t.Errorf("the middleware has seen %q", seen)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Do(ctx, call); !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) {
		t.Errorf("after the shutdown: got %v, want unavailable and not executed", err)
	}
}

type valueKey struct{}

// The caller's deadline and cancellation reach the handler, and Shutdown waits for the call.
func TestCallsInTheProcessEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodel.NewServer(nil)
		const wait yodel.Method[time.Duration, string] = "Wait"
		wait.Handle(s, func(ctx context.Context, d *time.Duration) (*string, error) {
			select {
			case <-time.After(*d):
				reply := "done"
				return &reply, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		hour := time.Hour
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := wait.Call(short, s, &hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want deadline exceeded", err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := wait.Call(canceled, s, &hour); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want canceled", err)
		}
		second, ended := time.Second, make(chan error, 1)
		go func() {
			_, err := wait.Call(t.Context(), s, &second)
			ended <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := s.Shutdown(t.Context()); err != nil || time.Since(began) != time.Second {
			t.Errorf("the shutdown took %v: %v", time.Since(began), err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A dynamic method sees the encoded request, over a connection and in the process.
func TestHandleCall(t *testing.T) {
	s := newServer(t, nil)
	if err := s.HandleCall("Dynamic.Sum", func(_ context.Context, call *yodel.Call) error {
		var in []int
		if err := call.DecodeInto(&in); err != nil {
			return err
		}
		sum := 0
		for _, n := range in {
			sum += n
		}
		call.Reply = &sum
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.HandleCall("Dynamic.Echo", func(_ context.Context, call *yodel.Call) error {
		var e yodel.Encoded
		err := call.Request(&e)
		call.Reply = &e
		return err
	}); err != nil {
		t.Fatal(err)
	}
	in, out := s.Types("Dynamic.Echo")
	if in != nil || out != nil {
		t.Errorf("the types are %v and %v, want none", in, out)
	}
	must(t, s.HandleCall("Dynamic.Typed", func(context.Context, *yodel.Call) error { return nil }, reflect.TypeFor[Args](), reflect.TypeFor[Reply]()))
	if in, out = s.Types("Dynamic.Typed"); len(in) != 1 || len(out) != 1 || in[0] != reflect.TypeFor[Args]() || out[0] != reflect.TypeFor[Reply]() {
		t.Errorf("the types are %v and %v", in, out)
	}
	if err := s.HandleCall("Dynamic.Nothing", nil); err == nil {
		t.Error("a nil handler is registered")
	}
	for name, c := range map[string]yodel.Caller{"connection": connect(t, s, nil), "process": s} {
		t.Run(name, func(t *testing.T) {
			var sum int
			if err := c.Do(t.Context(), &yodel.Call{Method: "Dynamic.Sum", Args: []int{1, 2, 3}, Reply: &sum}); err != nil || sum != 6 {
				t.Errorf("got %d, %v", sum, err)
			}
			if err := c.Do(t.Context(), &yodel.Call{Method: "Dynamic.Sum", Args: "x", Reply: &sum}); !errors.Is(err, yodel.InvalidArgument) {
				t.Errorf("got %v, want invalid argument", err)
			}
			var a, b string
			if err := c.Do(t.Context(), &yodel.Call{Method: "Dynamic.Echo", Args: yodel.Values{"x", "y"}, Reply: yodel.Values{&a, &b}}); err != nil || a+b != "xy" {
				t.Errorf("got %q, %q, %v", a, b, err)
			}
		})
	}
}

// Methods with streams that HandleStream has registered are called like others.
func TestDynamicStreams(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.HandleStream("Feed", "feed", func(_ context.Context, call *yodel.Call, _, send func(any) error) error {
		var n int
		if err := call.DecodeInto(&n); err != nil {
			return err
		}
		for i := range n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, s.HandleStream("Upload", "upload", func(_ context.Context, call *yodel.Call, recv, _ func(any) error) error {
		sum, n := 0, 0
		for {
			if err := recv(&n); errors.Is(err, io.EOF) {
				call.Reply = &sum
				return nil
			} else if err != nil {
				return err
			}
			sum += n
		}
	}))
	must(t, s.HandleStream("Duplex", "duplex", func(_ context.Context, _ *yodel.Call, recv, send func(any) error) error {
		for {
			var n int
			if err := recv(&n); errors.Is(err, io.EOF) {
				return yodel.Errorf(yodel.DataLoss, "no more")
			} else if err != nil {
				return err
			}
			if err := send(&n); err != nil {
				return err
			}
		}
	}))
	c := connect(t, s, nil)
	must(t, s.HandleStream("Encoded", "feed", func(_ context.Context, _ *yodel.Call, _, send func(any) error) error {
		return send(&yodel.Encoded{Body: []byte(" 42")})
	}))
	for n, err := range (yodel.Feed[int, int]("Encoded")).Call(t.Context(), c, new(0)) {
		if must(t, err); *n != 42 {
			t.Errorf("a message that was encoded before: got %d, want 42", *n)
		}
	}
	next := 0
	for n, err := range (yodel.Feed[int, int]("Feed")).Call(t.Context(), c, new(10)) {
		if must(t, err); *n != next {
			t.Errorf("got %d, want %d", *n, next)
		}
		next++
	}
	if next != 10 {
		t.Errorf("got %d messages", next)
	}
	sum, err := yodel.Upload[int, int]("Upload").Call(t.Context(), c, func(send yodel.Send[int]) error {
		return errors.Join(send(new(3)), send(new(4)))
	})
	if err != nil || *sum != 7 {
		t.Errorf("got %v, %v", sum, err)
	}
	err = yodel.Duplex[int, int]("Duplex").Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		must(t, send(new(5)))
		n, err := recv.Next()
		if must(t, err); *n != 5 {
			t.Errorf("got %d", *n)
		}
		return nil
	})
	wantError(t, err, yodel.DataLoss, "")
	for _, kind := range []string{"", "unary", "tree"} {
		if err := s.HandleStream("Other", kind, func(context.Context, *yodel.Call, func(any) error, func(any) error) error { return nil }); err == nil {
			t.Errorf("the kind %q: no error", kind)
		}
	}
	if err := s.HandleStream("Other", "feed", nil); err == nil {
		t.Error("nil: no error")
	}
}
