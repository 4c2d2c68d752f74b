// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A call that stays is sent again to the endpoint that was picked for it, and is told when that can
// be; used again, it may be sent anywhere.
func TestACallThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		executed := map[string]int{}
		for _, addr := range []string{"a", "b"} {
			s := yodel.NewServer(nil)
			relay.Handle(s, func(context.Context, *int) (*int, error) {
				executed[addr]++
				return nil, yodel.Unavailable
			})
			l, err := network.Listen(addr)
			must(t, err)
			start(t, s, l)
		}
		stays := true
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{Transport: network, Middleware: []yodel.Middleware{
			func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if stays {
						call.Attempts().Pin()
					}
					for range 3 {
						_ = next(ctx, call)
					}
					return nil
				}
			},
		}})
		defer c.Close()
		must(t, c.Ready(t.Context()))
		synctest.Wait() // both are connected
		call := &yodel.Call{Method: string(relay), Args: new(int)}
		for _, want := range []int{3, 0, 3} { // round robin
			before := executed["a"]
			must(t, c.Do(t.Context(), call))
			if n := executed["a"] - before; n != want && n != 3-want {
				t.Errorf("a has executed %d of 3 attempts", n)
			}
		}
		stays = false
		before := executed["a"]
		must(t, c.Do(t.Context(), call))
		must(t, c.Do(t.Context(), call))
		if n := executed["a"] - before; n != 3 {
			t.Errorf("a has executed %d of 6 attempts that may go anywhere, want 3", n)
		}
	})
}

func TestAPinnedCallIsToldWhenItsEndpointIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := yodel.NewClient(discovery.Static("nobody"), &yodel.ClientOptions{Transport: mem.New()})
		defer c.Close()
		call := &yodel.Call{Method: string(relay), Args: new(int), Endpoint: c.Endpoints()[0]}
		_ = c.Do(t.Context(), call) // connects, in vain
		err := c.Do(t.Context(), call)
		e, ok := err.(*yodel.Error)
		if !ok || e.RetryAfter <= 0 || e.RetryAfter > 2*time.Second || !e.NotProcessed {
			t.Errorf("got %#v", err)
		}
		if call.Endpoint.Connected() {
			t.Error("it is connected to nobody")
		}
	})
}

// What a client does in the background ends with it, and begins no more when it is closed.
func TestWhatRunsInTheBackgroundEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := yodel.NewClient(discovery.Static(), nil)
		ended := false
		if !c.Background(func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
		}) {
			t.Error("it does not begin")
		}
		c.Close()
		if !ended {
			t.Error("Close has not waited")
		}
		if c.Background(func(context.Context) { t.Error("it runs") }) {
			t.Error("it begins when the client is closed")
		}
	})
}

// Endpoint middleware may begin something in the background when it is made, which is when the set
// of endpoints is.
func TestEndpointMiddlewareBeginsInTheBackground(t *testing.T) {
	begun := make(chan struct{}, 1)
	made := make(chan *yodel.Client, 1)
	go func() {
		made <- yodel.NewClient(discovery.Static("a"), &yodel.ClientOptions{
			Transport: mem.New(),
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				ep.Client().Background(func(context.Context) { begun <- struct{}{} })
				return next
			}},
		})
	}()
	receive(t, begun, "it begins")
	c := receive(t, made, "the client is made")
	c.Close()
}
