// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// Calls wait for the first server, however long it takes to come, and are executed once.
func TestCallsWaitUntilAServerCanBeReached(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		c := dial(t, network, []string{"a", "b"}, retry.UntilConnected)
		const calls = 20
		ended := make(chan error, calls)
		began := time.Now()
		for range calls {
			go func() { ended <- c.Call(t.Context(), string(work), &struct{}{}, nil) }()
		}
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Fatalf("a call ended before there was a server: %v", err)
		default:
		}
		var executed atomic.Int32
		serve(t, network, "b", nil, func(context.Context) error { executed.Add(1); return nil })
		for range calls {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := executed.Load(); n != calls {
			t.Errorf("%d calls were executed, want %d", n, calls)
		}
		if late := time.Since(began) - time.Minute; late > 6*time.Second { // a pause, and one of the dialling
			t.Errorf("the last call ended %v after the server had come", late)
		}
	})
}

// Streams wait too, and so do calls of a service that no server has announced.
func TestCallsWaitUntilAnInstanceIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count yodel.Feed[int, int] = "Test.Count"
		network, registry := mem.New(), memory.New(nil)
		c := yodel.NewClient(registry.Service("Test"), &yodel.ClientOptions{Transport: network, Middleware: []yodel.Middleware{retry.UntilConnected}})
		t.Cleanup(c.Close)
		ended := make(chan error, 2)
		go func() { ended <- c.Call(t.Context(), string(work), &struct{}{}, nil) }()
		go func() {
			for n, err := range count.Call(t.Context(), c, new(7)) {
				if err == nil && *n != 7 {
					err = errors.New("another message")
				}
				ended <- err
			}
		}()
		time.Sleep(time.Minute)
		s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{registry}})
		work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
		count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error { return send(n) })
		run(t, network, "a", s)
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// The wait ends with the deadline of the call, the context of the caller and the client.
func TestWaitingForAServerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		for name, test := range map[string]struct {
			end  func(c *yodel.Client, cancel func(), call *yodel.Call)
			id   string
			took time.Duration
		}{
			"the deadline": {func(_ *yodel.Client, _ func(), call *yodel.Call) { call.Deadline = time.Now().Add(10 * time.Second) }, "YDL1005", 10 * time.Second},
			"the caller":   {func(_ *yodel.Client, cancel func(), _ *yodel.Call) { time.AfterFunc(20*time.Second, cancel) }, "YDL1006", 20 * time.Second},
			"the client":   {func(c *yodel.Client, _ func(), _ *yodel.Call) { time.AfterFunc(30*time.Second, c.Close) }, "YDL1007", 31 * time.Second},
		} {
			c := dial(t, network, []string{"a"}, retry.UntilConnected)
			ctx, cancel := context.WithCancel(t.Context())
			call := &yodel.Call{Method: string(work), Args: &struct{}{}}
			test.end(c, cancel, call)
			began := time.Now()
			err := c.Do(ctx, call)
			if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != test.id || !e.NotProcessed {
				t.Errorf("%s: got %v, want %s", name, err, test.id)
			}
			if took := time.Since(began); took > test.took {
				t.Errorf("%s: it took %v, want at most %v", name, took, test.took)
			}
			cancel()
		}
	})
}

// What a server says, and what other middleware says while servers are connected, ends the call.
func TestOnlyCallsWithoutAConnectionWait(t *testing.T) {
	for name, refusal := range map[string]error{
		"a refusal":       &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: "not now"},
		"another code":    &yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true, Message: "full"},
		"an open breaker": &yodel.Error{Code: yodel.Unavailable, ID: "YDL1301", NotProcessed: true, Message: "open"},
		"perhaps sent":    &yodel.Error{Code: yodel.Unavailable, ID: "YDL1104", Message: "lost"},
	} {
		synctest.Test(t, func(t *testing.T) {
			network, made := mem.New(), 0
			serve(t, network, "a", nil, func(context.Context) error { return nil })
			c := dial(t, network, []string{"a"}, retry.UntilConnected, answer(func(*yodel.Call) error { made++; return refusal }))
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.Do(t.Context(), idempotent()); !errors.Is(err, refusal) || made != 1 {
				t.Errorf("%s: got %v after %d attempts", name, err, made)
			}
		})
	}
}
