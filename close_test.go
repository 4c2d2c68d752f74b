// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestClosedClientRefusesCalls(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	unused, used := yodel.Dial(addr), yodel.Dial(addr)
	if _, err := Mul.Call(t.Context(), used, &Args{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*yodel.Client{"unused": unused, "used": used} {
		c.Close()
		_, called := Mul.Call(t.Context(), c, &Args{})
		_, begun := Mul.Go(t.Context(), c, &Args{}).Get()
		for how, err := range map[string]error{"Call": called, "Go": begun, "Notify": Mul.Notify(t.Context(), c, &Args{}), "Ready": c.Ready(t.Context())} {
			e := wantError(t, err, yodel.Canceled, "YDL1007")
			if !e.NotProcessed {
				t.Errorf("%s: %s: %v, want that it was not executed", name, how, err)
			}
		}
		c.Close() // twice does no harm
	}
}

func TestCloseEndsOpenCalls(t *testing.T) {
	s := newServer(t, nil)
	begun := make(chan struct{}, 10)
	const Wait yodel.Method[Empty, Empty] = "Wait"
	Wait.Handle(s, func(ctx context.Context, _ *Empty) (*Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, nil
	})
	c := connect(t, s, nil)
	outcomes := make(chan error, 10)
	for range 5 {
		go func() {
			_, err := Wait.Call(context.Background(), c, &Empty{})
			outcomes <- err
		}()
		Wait.Then(t.Context(), c, &Empty{}, func(_ *Empty, err error) { outcomes <- err })
	}
	for range 10 {
		receive(t, begun, "the handlers run")
	}
	began := time.Now()
	c.Close()
	if d := time.Since(began); d > time.Second {
		t.Errorf("Close took %v", d)
	}
	for range 10 {
		err := receive(t, outcomes, "open calls end with Close")
		if e := wantError(t, err, yodel.Canceled, "YDL1007"); e.NotProcessed {
			t.Errorf("%v: says that it was not executed", err)
		}
	}
}

func TestCloseWhileCallsRun(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	for range 20 {
		c := yodel.Dial(addr)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 1000)
		for range 8 {
			wg.Go(func() {
				for {
					begun <- struct{}{}
					_, err := Mul.Call(t.Context(), c, &Args{})
					if err != nil {
						var e *yodel.Error
						if !errors.As(err, &e) || e.ID != "YDL1007" {
							t.Errorf("got %v, want YDL1007", err)
						}
						return
					}
				}
			})
		}
		for range 50 {
			<-begun
		}
		go func() { // Close frees those who wait here
			for range begun {
			}
		}()
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(c.Close)
		}
		closers.Wait()
		wg.Wait()
		close(begun)
	}
}

func TestCloseEndsCallsThatWaitForAnything(t *testing.T) {
	silent := transportFunc(func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	endless := resolverFunc(func(ctx context.Context, _ func([]discovery.Instance)) error { <-ctx.Done(); return nil })
	for name, c := range map[string]*yodel.Client{
		"a connection": yodel.NewClient(discovery.Static("nowhere:1"), &yodel.ClientOptions{Transport: silent, DialTimeout: time.Hour}),
		"instances":    yodel.NewClient(endless, &yodel.ClientOptions{DialTimeout: time.Hour}),
	} {
		outcome := make(chan error)
		go func() {
			_, err := Mul.Call(context.Background(), c, &Args{})
			outcome <- err
		}()
		f := Mul.Go(context.Background(), c, &Args{})
		c.Close()
		_, err := f.Get()
		for _, err := range []error{err, receive(t, outcome, "a waiting call ends with Close")} {
			if e := wantError(t, err, yodel.Canceled, "YDL1007"); !e.NotProcessed {
				t.Errorf("waiting for %s: %v: want that it was not executed", name, err)
			}
		}
	}
}

func TestCloseEndsCallsOnEndpointsThatHaveGone(t *testing.T) {
	s := newServer(t, nil)
	begun := make(chan struct{})
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
		close(begun)
		<-ctx.Done()
		return nil, nil
	})
	addr := serve(t, s)
	r := newSettable(addr)
	c := yodel.NewClient(r, nil)
	defer c.Close()
	outcome := make(chan error)
	go func() { outcome <- c.Call(context.Background(), "Wait", &Empty{}, nil) }()
	receive(t, begun, "the handler runs")
	r.setInstances([]discovery.Instance{{Addr: addr, State: "inactive"}})
	until(t, "the endpoint is gone", func() bool { return len(c.Endpoints()) == 0 })
	c.Close()
	wantError(t, receive(t, outcome, "the call ends with Close"), yodel.Canceled, "YDL1007")
}

// A server that divides a small budget says so all the time, and what it says must not make the
// client's end destroy what the client has sent.
func TestOneWayCallsSentBeforeCloseArrive(t *testing.T) {
	for _, budget := range []int{0, 16} {
		s := newServer(t, &yodel.ServerOptions{MaxOpen: budget})
		const n = 1000
		got := make(chan int, n)
		handle(t, s, "Log", func(_ context.Context, i *int) (*Empty, error) { got <- *i; return nil, nil })
		c := yodel.Dial(serve(t, s))
		must(t, c.Ready(t.Context()))
		for i := range n {
			must(t, c.Notify(t.Context(), "Log", i))
		}
		c.Close()
		for range n {
			receive(t, got, "a one-way call that was sent before Close is executed")
		}
	}
}

func TestAClientMayBeClosedTwice(t *testing.T) {
	h := startHooked(t, mem.New(), nil, nil)
	h.close()
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("the second Close panicked: %v", value)
		}
	}()
	h.client.Close()
}
