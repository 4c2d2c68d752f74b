// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Methods of the server of these tests.
const (
	double yodel.Method[int, int]       = "test.Numbers.Double"
	count  yodel.Feed[int, int]         = "test.Numbers.Count"
	sum    yodel.Upload[int, int]       = "test.Numbers.Sum"
	echo   yodel.Duplex[int, int]       = "test.Numbers.Echo"
	deaf   yodel.Duplex[int, int]       = "test.Numbers.Deaf"
	say    yodel.Method[string, string] = "test.Numbers.Say"
)

// serve starts a server and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	released := make(chan struct{})
	s := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(nil)}, Compressors: []compress.Compressor{gzip.Compressor},
	})
	double.Handle(s, func(ctx context.Context, n *int) (*int, error) {
		call := yodel.CallFrom(ctx)
		call.SetHeader(yodel.Metadata{"header": call.Metadata["sent"], "attempt": fmt.Sprint(call.Attempt)})
		call.Trailer = yodel.Metadata{"cost": "last", "raw-bin": "AAEC"}
		switch {
		case *n < 0:
			e := yodel.Errorf(yodel.OutOfRange, "%d is < 0: 100 %% ü", *n)
			e.Details = []yodel.Detail{{Type: "test.Detail", Value: []byte{1, 2}}}
			e.RetryAfter = time.Second
			return nil, e
		case *n == 0:
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(2 * *n), nil
	})
	say.Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		total := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			if *n < 0 {
				return nil, yodel.Errorf(yodel.OutOfRange, "%d is < 0", *n)
			}
			total += *n
		}
		return &total, nil
	})
	deaf.Handle(s, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error {
		if err := yodel.CallFrom(ctx).SendHeader(); err != nil {
			return err
		}
		<-released // whatever the context says
		return nil
	})
	echo.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err := send(n); err != nil {
				return err
			}
		}
		return nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		close(released)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// each runs a test with each Wire.
func each(t *testing.T, test func(t *testing.T, c *yodel.Client, http1 bool)) {
	t.Helper()
	addr := serve(t)
	for _, w := range []yodel.Wire{grpc.Wire, grpc.Web, grpc.Web1} {
		t.Run(w.Name(), func(t *testing.T) {
			c := yodel.NewClient(discovery.Static(w.Name()+"://"+addr), &yodel.ClientOptions{Wires: []yodel.Wire{w}, Compressor: gzip.Compressor})
			defer c.Close()
			test(t, c, w == grpc.Web1)
		})
	}
}

func TestCalls(t *testing.T) {
	each(t, func(t *testing.T, c *yodel.Client, _ bool) {
		for i := range 3 {
			call := &yodel.Call{Metadata: yodel.Metadata{"sent": fmt.Sprint(i)}}
			got, err := double.Do(t.Context(), c, call, new(21))
			if err != nil || *got != 42 || call.Header()["header"] != fmt.Sprint(i) || call.Header()["attempt"] != "0" ||
				!maps.Equal(call.Trailer, yodel.Metadata{"cost": "last", "raw-bin": "AAEC"}) {
				t.Fatalf("got %v, %v, header %v, trailer %v", got, err, call.Header(), call.Trailer)
			}
		}
		long := strings.Repeat("long ", 100_000)
		if got, err := say.Call(t.Context(), c, &long); err != nil || *got != long {
			t.Errorf("a long message: %v", err)
		}
	})
}

func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, c *yodel.Client, _ bool) {
		call := &yodel.Call{}
		_, err := double.Do(t.Context(), c, call, new(-1))
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.Code != yodel.OutOfRange || e.Message != "-1 is < 0: 100 % ü" || len(e.Details) != 1 || e.Details[0].Type != "test.Detail" ||
			string(e.Details[0].Value) != "\x01\x02" || e.RetryAfter != time.Second || e.NotProcessed || call.Trailer["cost"] != "last" {
			t.Errorf("got %+v, trailer %v", err, call.Trailer)
		}
		err = c.Call(t.Context(), "test.Numbers.Nothing", new(1), new(int))
		if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unimplemented || !e.NotProcessed || e.ID != "YDL2002" {
			t.Errorf("an unknown method: got %v", err)
		}
		for name, call := range map[string]*yodel.Call{
			"attachment": {Args: new(1), Attachment: []byte("x")}, "one-way": {Args: new(1), OneWay: true}, "values": {Args: yodel.Values{1}},
			"metadata": {Args: new(1), Metadata: yodel.Metadata{"bad key": "x"}}, "reserved": {Args: new(1), Metadata: yodel.Metadata{"grpc-status": "0"}},
		} {
			call.Method = string(double)
			err := c.Do(t.Context(), call)
			e, ok := errors.AsType[*yodel.Error](err)
			if !ok || !e.NotProcessed || name == "values" && !strings.Contains(e.Message, "gRPC and Connect have no calls with several values: send one message") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

func TestDeadline(t *testing.T) {
	each(t, func(t *testing.T, c *yodel.Client, _ bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := double.Call(ctx, c, new(0)); !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStreams(t *testing.T) {
	each(t, func(t *testing.T, c *yodel.Client, http1 bool) {
		next := 0
		for n, err := range count.Call(t.Context(), c, new(100)) {
			if err != nil || *n != next {
				t.Fatalf("got %v, %v, want %d", n, err, next)
			}
			next++
		}
		if next != 100 {
			t.Errorf("got %d messages", next)
		}
		for n, err := range count.Call(t.Context(), c, new(1_000_000)) { // leaving ends the call
			if err != nil {
				t.Fatal(err)
			}
			if *n == 10 {
				break
			}
		}
		got, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
			for i := range 100 {
				if err := send(&i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || *got != 4950 {
			t.Errorf("got %v, %v", got, err)
		}
		_, err = sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
			for {
				if err := send(new(-1)); err != nil {
					return err // io.EOF when the server has ended the call
				}
			}
		})
		if !errors.Is(err, yodel.OutOfRange) {
			t.Errorf("an upload that fails: got %v", err)
		}
		own := errors.New("the caller's own")
		if _, err = sum.Call(t.Context(), c, func(yodel.Send[int]) error { return own }); err != own {
			t.Errorf("an upload that the caller ends: got %v", err)
		}
		if http1 {
			return
		}
		err = echo.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
			for i := range 100 {
				if err := send(&i); err != nil {
					return err
				}
				if n, err := recv.Next(); err != nil || *n != i {
					return fmt.Errorf("got %v, %v, want %d", n, err, i)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The deadline ends a duplex call that waits for a message of the server, while the caller could
// still send.
func TestDeadlineOfADuplex(t *testing.T) {
	each(t, func(t *testing.T, c *yodel.Client, http1 bool) {
		if http1 {
			t.Skip("HTTP/1 sends the whole request first")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := deaf.Call(ctx, c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
			if err := send(new(1)); err != nil {
				return err
			}
			_, err := recv.Next()
			return err
		})
		if !errors.Is(err, yodel.DeadlineExceeded) || time.Since(began) > time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}
