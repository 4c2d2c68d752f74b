// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/coalesce"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/health"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// What a client does with its attempts holds over every wire.
func TestClientsOverEveryWire(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	overWires(t, clientGuarantees, inTurn())
}

var (
	retried  = plain(func() yodel.Middleware { return retry.Times(3) })
	hedged   = plain(func() yodel.Middleware { return hedge.After(10 * time.Millisecond) })
	merged   = plain(func() yodel.Middleware { return coalesce.Calls(string(unary)) })
	attempts = func(m yodel.EndpointMiddleware) func(*testing.T, *Trial) {
		return func(_ *testing.T, tr *Trial) { tr.Client.EndpointMiddleware = append(tr.Client.EndpointMiddleware, m) }
	}
)

const oneAttempt = "a stream has one attempt"

var clientGuarantees = []Guarantee{
	{
		Name: "retry", Only: oneAttempt,
		Prepare: func(tr *Trial) { failTwice(tr); tr.Client.Idempotent = methods },
		Client:  retried.client,
		Check:   func(ctx context.Context, c *Cell) error { return c.replies(ctx, 3) },
	},
	{
		Name: "budget", Only: oneAttempt,
		Prepare: func(tr *Trial) {
			tr.fail = always(yodel.Errorf(yodel.Unavailable, planned))
			tr.Client.Idempotent = methods
			tr.Client.Middleware = []yodel.Middleware{retry.Times(3)}
		},
		// The control has no budget, so that there are three attempts.
		Client: func(_ *testing.T, tr *Trial) { tr.budget = 2 },
		Check:  checkBudget,
	},
	{
		Name: "keys", Only: oneAttempt,
		Lacks: lacksMemory,
		Prepare: func(tr *Trial) {
			tr.Options.Keys = once.With(nil)
			tr.Client.EndpointMiddleware = []yodel.EndpointMiddleware{loseOne()}
			tr.Client.Middleware = []yodel.Middleware{retry.Times(3)}
		},
		Client: func(_ *testing.T, tr *Trial) {
			tr.Client.Middleware = slices.Insert(tr.Client.Middleware, 0, once.Keys())
		},
		Check: func(ctx context.Context, c *Cell) error {
			got, err := c.Call(ctx, yodel.Call{})
			switch n := c.executed.Load(); {
			case n != 1:
				return fmt.Errorf("a call whose first reply was lost was executed %d times: %w", n, err)
			case yodel.CodeOf(err) == yodel.Unavailable && !yodel.NotProcessed(err):
				return NotHeld("a call whose reply was lost is not made again: %w", err)
			case err != nil || got != 1:
				return errors.Join(err, fmt.Errorf("the reply is %d", got))
			}
			return nil
		},
	},
	hedging,
	{
		Name:   "breaker",
		Client: attempts(breaker.With(&breaker.Options{Errors: 1, Slow: 1, Open: time.Hour})),
		Only:   "a stream that has begun is no slow call",
		Check: func(ctx context.Context, c *Cell) error {
			if err := c.works(ctx, 1); err != nil { // it is slow
				return err
			}
			return c.refuses(ctx, yodel.Unavailable)
		},
	},
	{
		Name: "outlier", Servers: 3,
		Prepare: func(tr *Trial) {
			tr.fail = func(server int) error {
				if server == 0 {
					return yodel.Errorf(yodel.Unavailable, planned)
				}
				return nil
			}
		},
		Client: attempts(outlier.Eject(nil)),
		Check:  checkAvoids,
	},
	{
		Name: "health", Servers: 2,
		Lacks: lacks(func(w *Wire) bool { return w.builtIn }, "thrift.Wire has calls of one service here, and the built-in methods are of another"),
		Prepare: func(tr *Trial) {
			tr.each = func(server int, o *yodel.ServerOptions) {
				if server == 0 {
					o.Middleware = append(o.Middleware, sick)
				}
			}
		},
		Client: attempts(health.Check(&health.Options{Every: 10 * time.Millisecond, Timeout: 5 * time.Second})),
		Check:  checkAvoids,
	},
	{
		Name: "coalesce", Only: "streams are not merged", Prepare: closeGate,
		Lacks:  lacks(func(w *Wire) bool { return w.codec != gob.Codec }, "no client can send encoded arguments"),
		Client: merged.client,
		Check:  checkCoalesce,
	},
	{
		Name:    "observers",
		Prepare: failIfBad,
		Server:  func(_ *testing.T, tr *Trial) { tr.Options.Observers = append(tr.Options.Observers, tr.observer()) },
		Client:  func(_ *testing.T, tr *Trial) { tr.Client.Observers = append(tr.Client.Observers, tr.observer()) },
		Check:   checkObserver,
	},
	{
		Name:  "trace context",
		Lacks: lacksMetadata,
		Prepare: func(tr *Trial) {
			tr.observe = func(ctx context.Context) { tr.trace.Store(yodel.CallFrom(ctx).Trace) }
		},
		Check: checkTrace,
	},
}

// lacksMemory returns why a client does not repeat a call because of its key.
func lacksMemory(w *Wire, _ Shape) string {
	switch {
	case w.remember || w.dial != nil:
		return ""
	case !w.keys:
		return noKey
	}
	return "yodel's choice: the call carries its key, and a server remembers it, but only yodel's own protocol says when a connection begins " +
		"which memory the server has. Elsewhere a client would learn it with a reply, and a reply that is lost teaches nothing, so the client does not repeat the call"
}

var hedging = Guarantee{
	Name: "hedge", Only: oneAttempt, Servers: 2,
	Prepare: func(tr *Trial) {
		tr.gate, tr.Client.Idempotent = make(chan struct{}), methods
		var waits atomic.Bool
		tr.waits = func(int64) bool { return waits.CompareAndSwap(false, true) }
	},
	Client: hedged.client,
	Check:  checkHedge,
}

// checkHedge wants a second attempt to answer a call whose first one waits forever.
func checkHedge(ctx context.Context, c *Cell) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(own, yodel.Call{})
		ended <- err
	}()
	err := until(ctx, func() bool { return c.executed.Load() > 0 || len(ended) > 0 })
	if err == nil {
		err = c.Seen(ctx, "the call does not end", func() bool { return len(ended) > 0 })
	}
	cancel()
	if e := <-ended; err == nil {
		err = e
	}
	if n := c.executed.Load(); err == nil && n != 2 {
		return fmt.Errorf("%d attempts of a slow call", n)
	}
	return err
}

// methods are the methods of unary calls, which may be executed twice.
var methods = []string{string(unary)}

// failTwice makes the first two executions fail.
func failTwice(tr *Trial) {
	tr.fail = func(int) error {
		if tr.executed.Load() <= 2 {
			return yodel.Errorf(yodel.Unavailable, planned)
		}
		return nil
	}
}

// failIfBad makes the methods fail while tr.bad is set.
func failIfBad(tr *Trial) {
	tr.fail = func(int) error {
		if tr.bad.Load() {
			return absent
		}
		return nil
	}
}

// loseOne loses the reply of the first attempt.
func loseOne() yodel.EndpointMiddleware {
	var lost atomic.Bool
	i := new(fault.Injector)
	err := i.Set(fault.Rule{Name: "one", Lose: fault.Reply, If: func(context.Context, *yodel.Call) bool { return lost.CompareAndSwap(false, true) }})
	if err != nil {
		panic(err)
	}
	return i.Attempts
}

// sick fails health checks.
func sick(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if call.Method == "yodel.Health" {
			return yodel.Errorf(yodel.Unavailable, "sick")
		}
		return next(ctx, call)
	}
}

func checkBudget(ctx context.Context, c *Cell) error {
	_, err := c.Call(ctx, yodel.Call{Budget: c.budget})
	switch n := c.executed.Load(); {
	case !isPlanned(err):
		return fmt.Errorf("the call does not fail as planned: %w", err)
	case n != 2:
		return NotHeld("the call was executed %d times, want the 2 of its budget: %w", n, err)
	}
	return nil
}

// checkAvoids wants server 0 to get no more calls.
func checkAvoids(ctx context.Context, c *Cell) error {
	since, bad := 0, int64(0) // calls that went well, and those of server 0, since one was bad
	var last error
	avoided := func() bool {
		before := c.by[0].Load()
		_, err := c.Call(ctx, yodel.Call{})
		if since++; err != nil || c.by[0].Load() != before {
			since, bad, last = 0, bad+c.by[0].Load()-before, err
		}
		return since == 100
	}
	var err error
	for again := true; again; again = c.Control && err != nil && bad == 0 && last == nil && ctx.Err() == nil {
		err = c.Seen(ctx, "the bad server still gets calls", avoided) // on a busy machine, a control has too few calls at first
	}
	if err != nil && bad == 0 {
		return fmt.Errorf("calls that server 0 does not get fail: %w", last)
	}
	return err
}

// checkCoalesce wants calls that arrive while an equal one runs to share its execution.
func checkCoalesce(ctx context.Context, c *Cell) error {
	const calls = 10
	failed, wait := c.callAtOnce(ctx, calls)
	err := until(ctx, func() bool { return c.entered.Load() == calls && c.running.Load() > 0 })
	close(c.gate)
	wait()
	switch n := c.executed.Load(); {
	case err != nil || failed.Load() > 0 || n == 0:
		return errors.Join(err, fmt.Errorf("%d calls at once were executed %d times, %d failed", calls, n, failed.Load()))
	case n >= calls:
		return NotHeld("%d calls at once were executed %d times", calls, n)
	}
	return nil
}

// observer counts calls that begin, that end well, and that fail.
func (tr *Trial) observer() yodel.Observer {
	return yodel.Observer{
		Start: func(ctx context.Context, _ *yodel.Call) context.Context { tr.begun.Add(1); return ctx },
		End: func(_ context.Context, _ *yodel.Call, err error) {
			if err != nil {
				tr.failed.Add(1)
			} else {
				tr.ended.Add(1)
			}
		},
	}
}

// checkObserver wants an observer to see each call once, with its outcome.
func checkObserver(ctx context.Context, c *Cell) error {
	if err := c.works(ctx, 1); err != nil {
		return err
	}
	c.bad.Store(true)
	if _, err := c.Call(ctx, yodel.Call{}); yodel.CodeOf(err) != absent.Code {
		return fmt.Errorf("the second call does not fail as planned: %w", err)
	}
	err := c.Seen(ctx, "the observer misses a call", func() bool { return c.ended.Load()+c.failed.Load() >= 2 })
	if begun, ended, failed := c.begun.Load(), c.ended.Load(), c.failed.Load(); err == nil && (begun != 2 || ended != 1 || failed != 1) {
		return NotHeld("the observer saw %d calls, %d end and %d fail, want 2, 1 and 1", begun, ended, failed)
	}
	return err
}

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 rojo=00f067aa0ba902b7"

func checkTrace(ctx context.Context, c *Cell) error {
	like := yodel.Call{Trace: trace}
	if c.Control {
		like.Trace = ""
	}
	if _, err := c.Call(ctx, like); err != nil {
		return err
	}
	if got := c.trace.Load(); got != trace {
		return NotHeld("the method gets the trace context %q, want %q", got, trace)
	}
	return nil
}
