// SPDX-License-Identifier: Apache-2.0

package connect_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); !condition(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// A held server has methods that run until the test releases them, or until the call is canceled.
type held struct {
	addr    string
	began   chan struct{}
	release chan struct{}
	runs    atomic.Int32
}

const (
	hold     yodel.Method[int, int] = "test.Held.Hold"
	holdFeed yodel.Feed[int, int]   = "test.Held.Feed"
	holdAll  yodel.Upload[int, int] = "test.Held.All"
)

func (h *held) run(ctx context.Context) error {
	h.runs.Add(1)
	h.began <- struct{}{}
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func serveHeld(t *testing.T, limits yodel.Limits) *held {
	t.Helper()
	h := &held{began: make(chan struct{}, 100), release: make(chan struct{})}
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{http.New(nil)}, Limits: limits})
	hold.Handle(s, func(ctx context.Context, n *int) (*int, error) { return n, h.run(ctx) })
	holdFeed.Handle(s, func(ctx context.Context, n *int, send yodel.Send[int]) error {
		return errors.Join(h.run(ctx), send(n))
	})
	holdAll.Handle(s, func(ctx context.Context, recv yodel.Recv[int]) (*int, error) {
		n, err := recv.Next()
		return n, errors.Join(err, h.run(ctx))
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	h.addr = l.Addr().String()
	return h
}

// calls are one call of each of three kinds.
var calls = map[string]func(context.Context, *yodel.Client) error{
	"unary": func(ctx context.Context, c *yodel.Client) error {
		_, err := hold.Call(ctx, c, new(1))
		return err
	},
	"feed": func(ctx context.Context, c *yodel.Client) error {
		for _, err := range holdFeed.Call(ctx, c, new(1)) {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"upload": func(ctx context.Context, c *yodel.Client) error {
		_, err := holdAll.Call(ctx, c, func(send yodel.Send[int]) error { return send(new(1)) })
		return err
	},
}

// When a call in HTTP/1 is canceled, its connection ends. The calls that wait for the connection
// are executed once, on another one.
func TestCanceledCallInHTTP1(t *testing.T) {
	t.Attr("rerun", "never")
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			h := serveHeld(t, yodel.Limits{})
			w := connect.Wire(&connect.Options{HTTP1: true})
			c := yodel.NewClient(discovery.Static("connect+http1://"+h.addr), &yodel.ClientOptions{Wires: []yodel.Wire{w}})
			defer c.Close()
			var all sync.WaitGroup
			defer all.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() {
				if err := call(ctx, c); yodel.CodeOf(err) != yodel.Canceled {
					t.Errorf("the canceled call: got %v", err)
				}
			})
			<-h.began
			for range 3 {
				all.Go(func() {
					if err := call(t.Context(), c); err != nil {
						t.Errorf("a call that has waited: %v", err)
					}
				})
			}
			eventually(t, "three calls wait", func() bool { return c.Endpoints()[0].Inflight() == 4 })
			cancel()
			<-h.began // a call that has waited runs
			close(h.release)
			all.Wait()
			if n := h.runs.Load(); n != 4 {
				t.Errorf("four calls were executed %d times", n)
			}
		})
	}
}

// A call whose time passes while it waits for the connection was not executed.
func TestDeadlineWhileHTTP1IsBusy(t *testing.T) {
	h := serveHeld(t, yodel.Limits{})
	w := connect.Wire(&connect.Options{HTTP1: true})
	c := yodel.NewClient(discovery.Static("connect+http1://"+h.addr), &yodel.ClientOptions{Wires: []yodel.Wire{w}})
	defer c.Close()
	first := make(chan error, 1)
	go func() { first <- calls["unary"](t.Context(), c) }()
	<-h.began
	for kind, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := call(ctx, c); yodel.CodeOf(err) != yodel.DeadlineExceeded || !yodel.NotProcessed(err) {
			t.Errorf("%s: got %v", kind, err)
		}
		cancel()
	}
	close(h.release)
	if err := <-first; err != nil {
		t.Errorf("the call that had the connection: %v", err)
	}
}

// A call that would wait on a connection gets another one, up to ConnsPerEndpoint: in HTTP/1 beside
// any other call, in HTTP/2 beyond the number of streams that the server allows.
func TestConnsPerEndpoint(t *testing.T) {
	const conns = 3
	for _, http1 := range []bool{true, false} {
		h := serveHeld(t, yodel.Limits{MaxOpen: 1})
		w := connect.Wire(&connect.Options{HTTP1: http1})
		c := yodel.NewClient(discovery.Static(w.Name()+"://"+h.addr), &yodel.ClientOptions{Wires: []yodel.Wire{w}, ConnsPerEndpoint: conns})
		var all sync.WaitGroup
		for range conns {
			all.Go(func() {
				if err := calls["unary"](t.Context(), c); err != nil {
					t.Errorf("HTTP/1 %t: %v", http1, err)
				}
			})
			select {
			case <-h.began:
			case <-time.After(20 * time.Second):
				t.Errorf("HTTP/1 %t: a call waits for another one", http1)
			}
		}
		close(h.release)
		all.Wait()
		c.Close()
	}
}
