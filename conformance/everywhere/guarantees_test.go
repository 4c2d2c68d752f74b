// SPDX-License-Identifier: Apache-2.0

package everywhere_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/coalesce"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/middleware/once"
)

var guarantees = []guarantee{
	{
		name:    "limit",
		prepare: closeGate,
		middleware: func(*testing.T, *trial) yodel.Middleware {
			return limit.With(&limit.Options{Limit: 4, Queue: 4, Interval: time.Minute})
		},
		check:  checkLimit,
		atOnce: 100,
	},
	{
		name:    "idempotency keys",
		needs:   func(w *wire) bool { return w.keys },
		options: func(tr *trial) { tr.options.Keys = once.With(nil) },
		check:   func(ctx context.Context, tr *trial, c yodel.Caller) error { return checkTwice(ctx, tr, c, "a key") },
	},
	{
		name:       "cache",
		middleware: func(*testing.T, *trial) yodel.Middleware { return cache.For(time.Minute, string(unary)) },
		check:      func(ctx context.Context, tr *trial, c yodel.Caller) error { return checkTwice(ctx, tr, c, "") },
	},
	{
		name:    "coalesce",
		prepare: closeGate,
		// It is for clients only, and over net/rpc no client can send encoded arguments.
		needs: func(w *wire) bool { return w.dial == nil && w.name != "net rpc" },
		options: func(tr *trial) {
			tr.client.Middleware = append(tr.client.Middleware, coalesce.Calls(string(unary)))
		},
		check: checkCoalesce,
	},
	{
		name:    "fallback",
		prepare: func(tr *trial) { tr.fail = yodel.Errorf(yodel.Unavailable, "not now") },
		middleware: func(*testing.T, *trial) yodel.Middleware {
			// A client learns the code of an error as the wire carries it.
			return fallback.With(&fallback.Options{Reply: &Told{-1}, Codes: []yodel.Code{yodel.Unavailable, yodel.Unknown}})
		},
		check: func(ctx context.Context, _ *trial, c yodel.Caller) error { return checkReply(ctx, c, -1) },
	},
	{name: "mirror", middleware: mirrored, check: checkMirror},
	{
		name: "breaker",
		options: func(tr *trial) {
			tr.client.EndpointMiddleware = []yodel.EndpointMiddleware{breaker.With(&breaker.Options{Errors: 1, Slow: 1, Open: time.Hour})}
		},
		needs: func(w *wire) bool { return w.dial == nil },
		check: checkBreaker,
	},
	{
		name: "fault",
		middleware: func(t *testing.T, _ *trial) yodel.Middleware {
			var i fault.Injector
			if err := i.Set(fault.Rule{Name: "all", Code: yodel.DataLoss}); err != nil {
				t.Fatal(err)
			}
			return i.Calls
		},
		check: func(ctx context.Context, tr *trial, c yodel.Caller) error {
			if err := checkReply(ctx, c, 1); err == nil || tr.executed.Load() != 0 {
				return errors.Join(err, fmt.Errorf("the call should fail; the method was executed %d times", tr.executed.Load()))
			}
			return nil
		},
	},
	{
		name: "hidden errors",
		prepare: func(tr *trial) {
			tr.fail = fmt.Errorf("read /etc/secret: %w", yodel.Errorf(yodel.NotFound, "no such user"))
		},
		options: func(tr *trial) { tr.options.HideErrors = true },
		needs: func(w *wire) bool {
			return slices.Contains([]string{"JSON-RPC 2", "JSON-RPC 1", "net rpc", "rpcx", "Thrift", "Dubbo"}, w.name)
		},
		check: checkHidden,
	},
	{
		name:       "a user's middleware",
		middleware: func(*testing.T, *trial) yodel.Middleware { return answer(string(unary), &Told{99}) },
		check:      func(ctx context.Context, _ *trial, c yodel.Caller) error { return checkReply(ctx, c, 99) },
	},
}

// closeGate makes Unary wait, and counts the calls of the client.
func closeGate(tr *trial) {
	tr.gate = make(chan struct{})
	tr.client.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			tr.entered.Add(1)
			return next(ctx, call)
		}
	}}
}

// answer answers the unary calls of a method itself.
func answer(method string, reply *Told) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			name := strings.ReplaceAll(call.Method, "/", ".") // over HTTP, a method that does not exist has the name of its path
			if name != method || call.Streams() {
				return next(ctx, call)
			}
			e, err := (&yodel.Call{Method: call.Method, Args: reply, Codec: call.Encoding()}).Encode()
			if err != nil {
				return err
			}
			return call.Answer(e)
		}
	}
}

// call makes one call of Unary.
func call(ctx context.Context, c yodel.Caller, key string) (int64, error) {
	var told Told
	err := c.Do(ctx, &yodel.Call{Method: string(unary), Args: &Ask{1}, Reply: &told, IdempotencyKey: key})
	return told.N, err
}

func checkReply(ctx context.Context, c yodel.Caller, want int64) error {
	if got, err := call(ctx, c, ""); err != nil || got != want {
		return errors.Join(err, fmt.Errorf("the reply is %d, want %d", got, want))
	}
	return nil
}

// checkTwice wants two equal calls to be executed once.
func checkTwice(ctx context.Context, tr *trial, c yodel.Caller, key string) error {
	for range 2 {
		if got, err := call(ctx, c, key); err != nil || got != 1 {
			return errors.Join(err, fmt.Errorf("the reply is %d, want that of the first call", got))
		}
	}
	if n := tr.executed.Load(); n != 1 {
		return fmt.Errorf("two equal calls were executed %d times", n)
	}
	return nil
}

// atOnce makes n calls at once, and returns how many of them have failed until now.
func atOnce(ctx context.Context, c yodel.Caller, n int) (failed *atomic.Int64, wait func()) {
	failed = new(atomic.Int64)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := call(ctx, c, ""); err != nil {
				failed.Add(1)
			}
		})
	}
	return failed, all.Wait
}

// checkHidden wants the caller to see what was written for callers, and nothing else.
func checkHidden(ctx context.Context, _ *trial, c yodel.Caller) error {
	_, err := call(ctx, c, "")
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "no such user") {
		return fmt.Errorf("the error is %w, want only what Errorf has made", err)
	}
	return nil
}

// Clients in yodel's own protocol and callers in the process get all texts, because they belong to
// the program.
func TestErrorsAreNotHiddenFromOwnCallers(t *testing.T) {
	for i := range wires {
		w := &wires[i]
		if !slices.Contains([]string{"yodel", "in process", "server to client"}, w.name) {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			tr := &trial{fail: errors.New("read /etc/secret")}
			tr.options.HideErrors = true
			tr.start()
			if _, err := call(t.Context(), w.caller(t, tr, 1), ""); err == nil || !strings.Contains(err.Error(), "/etc/secret") {
				t.Errorf("the error is %v, want its whole text", err)
			}
		})
	}
}

// checkLimit wants 4 of 100 calls to run at once, 4 to wait, and the rest to be refused.
func checkLimit(ctx context.Context, tr *trial, c yodel.Caller) error {
	refused, wait := atOnce(ctx, c, 100)
	err := until(ctx, func() bool { return tr.running.Load() > 4 || refused.Load() >= 92 && tr.running.Load() == 4 })
	close(tr.gate)
	wait()
	if peak, n, failed := tr.peak.Load(), tr.executed.Load(), refused.Load(); err != nil || peak != 4 || n != 8 || failed != 92 {
		return errors.Join(err, fmt.Errorf("%d calls ran at once, %d in all, %d failed, want 4, 8 and 92", peak, n, failed))
	}
	return nil
}

// checkCoalesce wants calls that arrive while an equal one runs to share its execution.
func checkCoalesce(ctx context.Context, tr *trial, c yodel.Caller) error {
	const calls = 10
	failed, wait := atOnce(ctx, c, calls)
	err := until(ctx, func() bool { return tr.entered.Load() == calls && tr.running.Load() > 0 })
	close(tr.gate)
	wait()
	if n := tr.executed.Load(); err != nil || n >= calls || failed.Load() > 0 {
		return errors.Join(err, fmt.Errorf("%d calls at once were executed %d times, %d failed", calls, n, failed.Load()))
	}
	return nil
}

// checkBreaker wants a call to be refused after a slow one.
func checkBreaker(ctx context.Context, tr *trial, c yodel.Caller) error {
	if err := checkReply(ctx, c, 1); err != nil {
		return err
	}
	if _, err := call(ctx, c, ""); err == nil || tr.executed.Load() != 1 {
		return errors.Join(err, fmt.Errorf("a slow call did not open the breaker: %d calls were executed", tr.executed.Load()))
	}
	return nil
}

// mirrored copies the calls to a server of its own, which counts them.
func mirrored(t *testing.T, tr *trial) yodel.Middleware {
	t.Helper()
	copies := yodel.NewServer(&yodel.ServerOptions{Codecs: codecs(), Logger: silent})
	unary.Handle(copies, func(context.Context, *Ask) (*Told, error) {
		tr.mirrored.Add(1)
		return &Told{}, nil
	})
	c := yodel.NewClient(yodel.Static(serve(t, copies, nil)), &yodel.ClientOptions{Logger: silent})
	t.Cleanup(c.Close)
	return mirror.To(c, nil)
}

func checkMirror(ctx context.Context, tr *trial, c yodel.Caller) error {
	if err := checkReply(ctx, c, 1); err != nil {
		return err
	}
	if tr.control { // there is nothing to wait for
		return errors.New("there is no mirror")
	}
	if err := until(ctx, func() bool { return tr.mirrored.Load() == 1 }); err != nil {
		return fmt.Errorf("the call was not mirrored: %w", err)
	}
	return nil
}
