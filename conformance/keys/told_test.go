// SPDX-License-Identifier: Apache-2.0

package keys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const pay yodel.Method[string, string] = "Bank.Pay"

// A bank is servers whose first execution of each order is disturbed.
type bank struct {
	*testing.T

	mu   sync.Mutex
	paid map[string]int // executions by order
}

// serve serves the method with options o. First runs during the first execution of each order.
func (b *bank) serve(o *yodel.ServerOptions, first func(ctx context.Context)) *yodeltest.Server {
	o.Logger = slog.New(slog.DiscardHandler)
	s := yodeltest.NewServer(b.T, o)
	pay.Handle(s.Server, func(ctx context.Context, order *string) (*string, error) {
		b.mu.Lock()
		b.paid[*order]++
		n := b.paid[*order]
		b.mu.Unlock()
		if n == 1 && !strings.HasPrefix(*order, "warm") {
			first(ctx)
		}
		return order, nil
	})
	return s
}

func (b *bank) judge() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	twice := 0
	for _, n := range b.paid {
		if n > 1 {
			twice++
		}
	}
	if twice > 0 {
		b.Errorf("%d of %d orders were paid twice", twice, len(b.paid))
	}
}

// message returns the whole message of an error.
func message(err error) string {
	e, _ := errors.AsType[*yodel.Error](err)
	return e.Message
}

func lose(ctx context.Context) { yodel.CallFrom(ctx).Peer().Conn.Close() }

func slow(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

// Servers with the recommended options remember keys in their own processes only. A call that may
// have been executed by one of them is not sent to the other one.
func TestRecommendedPaysOnce(t *testing.T) {
	t.Attr("rerun", "never")
	for name, first := range map[string]func(context.Context){"lost": lose, "slow": slow} {
		t.Run(name, func(t *testing.T) {
			b := &bank{T: t, paid: make(map[string]int)}
			servers := []*yodeltest.Server{b.serve(recommended.Server(nil), first), b.serve(recommended.Server(nil), first)}
			c := yodeltest.NewClient(t, recommended.Client(&yodel.ClientOptions{Timeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}), servers...)
			for i := range 300 { // until hedge knows how long a call takes
				order := fmt.Sprint("warm", i)
				if _, err := pay.Do(t.Context(), c, &yodel.Call{IdempotencyKey: order}, &order); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 10 {
				order := fmt.Sprint("order", i)
				_, _ = pay.Do(t.Context(), c, &yodel.Call{IdempotencyKey: order}, &order)
			}
			b.judge()
		})
	}
}

// A server without ServerOptions.Keys executes whatever comes, so nothing that may have been
// executed is sent again.
func TestKeyAloneDoesNotMakeACallRepeatable(t *testing.T) {
	b := &bank{T: t, paid: make(map[string]int)}
	s := b.serve(&yodel.ServerOptions{}, lose)
	var log bytes.Buffer
	c := yodeltest.NewClient(t, &yodel.ClientOptions{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Middleware: []yodel.Middleware{once.Keys(), retry.With(&retry.Options{Share: 1, Times: 20})},
	}, s)
	for i := range 5 {
		order := fmt.Sprint("order", i)
		call := &yodel.Call{IdempotencyKey: order, Explain: true}
		_, err := pay.Do(t.Context(), c, call, &order)
		if yodel.CodeOf(err) != yodel.Unavailable || yodel.NotProcessed(err) {
			t.Fatalf("order %d: %v", i, err)
		}
		const why = "not sent again: server-1 does not remember idempotency keys"
		if !strings.Contains(message(err), why) || !strings.Contains(fmt.Sprintf("%+v", err), "retry: "+why) {
			t.Errorf("the error does not say why it was not sent again: %+v", err)
		}
	}
	b.judge()
	if n := strings.Count(log.String(), "its server does not remember keys"); n != 1 {
		t.Errorf("the client has logged %d times that keys are not remembered, want 1: %s", n, &log)
	}
}

// A redirect is a transport that connects to the same address with one server, and later with
// another one.
type redirect struct {
	*mem.Network

	to atomic.Value // string
}

func (r *redirect) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return r.Network.Dial(ctx, r.to.Load().(string))
}

// When the process that alone remembers a key has ended, the call is not sent to another one that
// serves at its address.
func TestKeyIsNotSentToTheSuccessorOfItsProcess(t *testing.T) {
	b := &bank{T: t, paid: make(map[string]int)}
	network := &redirect{Network: mem.New()}
	network.to.Store("old")
	for _, name := range []string{"old", "new"} {
		l, err := network.Listen(name)
		if err != nil {
			t.Fatal(err)
		}
		s := b.serve(&yodel.ServerOptions{Keys: once.With(nil)}, func(ctx context.Context) {
			network.to.Store("new")
			lose(ctx)
		})
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error)
		go func() { served <- s.Serve(ctx, l) }()
		t.Cleanup(func() { stop(); <-served })
	}
	for name, middleware := range map[string]yodel.Middleware{"failover": retry.With(&retry.Options{Share: 1, Times: 20}), "failtry": retry.Same(20)} {
		network.to.Store("old")
		c := yodel.NewClient(discovery.Static("bank"), &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler), Middleware: []yodel.Middleware{middleware}})
		order := "order of " + name
		_, err := pay.Do(t.Context(), c, &yodel.Call{IdempotencyKey: order}, &order)
		c.Close()
		if yodel.CodeOf(err) != yodel.Unavailable || yodel.NotProcessed(err) || !strings.Contains(message(err), "its idempotency key is remembered by the process at bank only") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b.judge()
}

// A call whose connection was lost is sent again to the process that remembers its key, over a new
// connection.
func TestKeyIsSentAgainToItsProcess(t *testing.T) {
	b := &bank{T: t, paid: make(map[string]int)}
	servers := []*yodeltest.Server{b.serve(&yodel.ServerOptions{Keys: once.With(nil)}, lose), b.serve(&yodel.ServerOptions{Keys: once.With(nil)}, lose)}
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.With(&retry.Options{Share: 1, Times: 10})}}, servers...)
	for i := range 5 {
		order := fmt.Sprint("order", i)
		call := &yodel.Call{IdempotencyKey: order}
		if _, err := pay.Do(t.Context(), c, call, &order); err != nil || call.Attempt < 1 {
			t.Errorf("order %d after %d more attempts: %v", i, call.Attempt, err)
		}
	}
	b.judge()
}

// A request that the network held up until its key may have been forgotten is refused.
func TestKeyThatComesTooLateIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bank{T: t, paid: make(map[string]int)}
		s := b.serve(&yodel.ServerOptions{Keys: once.With(&once.Options{Keep: time.Minute})}, func(context.Context) {})
		late := func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if err := next(ctx, call); err != nil {
					return err
				}
				time.Sleep(2 * time.Minute)
				return next(ctx, call) // blindly
			}
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{late}}, s)
		order := "order"
		_, err := pay.Do(t.Context(), c, &yodel.Call{IdempotencyKey: order}, &order)
		if err == nil || !strings.Contains(err.Error(), "remembers an idempotency key for 1m0s only") {
			t.Errorf("got %v", err)
		}
		b.judge()
	})
}

// A hedge goes only where the key is remembered.
func TestHedgeOfACallWithAKeySaysWhyItIsNone(t *testing.T) {
	b := &bank{T: t, paid: make(map[string]int)}
	servers := []*yodeltest.Server{b.serve(&yodel.ServerOptions{Keys: once.With(nil)}, slow), b.serve(&yodel.ServerOptions{Keys: once.With(nil)}, slow)}
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{hedge.With(&hedge.Options{After: 5 * time.Millisecond, Share: 1})}}, servers...)
	for range servers { // what is not sent yet is not hedged either, for another reason
		if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	order := "order"
	call := &yodel.Call{IdempotencyKey: order, Explain: true}
	if _, err := pay.Do(t.Context(), c, call, &order); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(call.Report()); !strings.Contains(text, "its idempotency key is remembered by the process at server-") {
		t.Errorf("the record does not say why there was no second attempt:\n%s", text)
	}
	b.judge()
}
