// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// serve runs a server with one method for the length of the test.
func serve(t *testing.T, network *mem.Network, addr string, o *yodel.ServerOptions, f func(ctx context.Context) error) *yodel.Server {
	t.Helper()
	s := yodel.NewServer(o)
	work.Handle(s, func(ctx context.Context, _ *struct{}) (*struct{}, error) { return nil, f(ctx) })
	run(t, network, addr, s)
	return s
}

// run serves until the test ends.
func run(t *testing.T, network *mem.Network, addr string, s *yodel.Server) {
	t.Helper()
	l, err := network.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// dial returns a client for the length of the test.
func dial(t *testing.T, network *mem.Network, addrs []string, ms ...yodel.Middleware) *yodel.Client {
	t.Helper()
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{Transport: network, Middleware: ms})
	t.Cleanup(c.Close)
	return c
}

func idempotent() *yodel.Call {
	return &yodel.Call{Method: string(work), Args: &struct{}{}, Reply: &struct{}{}, Idempotent: true}
}

func TestCodesThatCanChangeAreTriedAgain(t *testing.T) {
	refusal := func(code yodel.Code, id string) error {
		return &yodel.Error{Code: code, ID: id, NotProcessed: true}
	}
	for _, test := range []struct {
		name       string
		err        error
		idempotent bool
		want       int // attempts
	}{
		{"success", nil, true, 1},
		{"unavailable", yodel.Errorf(yodel.Unavailable, "x"), true, 3},
		{"a bare code", yodel.Unavailable, true, 3},
		{"wrapped", fmt.Errorf("x: %w", yodel.Errorf(yodel.Unavailable, "x")), true, 3},
		{"perhaps executed", yodel.Errorf(yodel.Unavailable, "x"), false, 1},
		{"certainly not executed", refusal(yodel.Unavailable, ""), false, 3},
		{"a limit", refusal(yodel.ResourceExhausted, "YDL3002"), false, 3},
		{"a limit of the method's own", yodel.Errorf(yodel.ResourceExhausted, "x"), true, 1},
		{"too large", refusal(yodel.ResourceExhausted, "YDL2201"), true, 1},
		{"an attempt's deadline", yodel.Errorf(yodel.DeadlineExceeded, "x"), true, 3},
		{"an attempt's deadline, perhaps executed", yodel.Errorf(yodel.DeadlineExceeded, "x"), false, 1},
		{"a conflict", yodel.Errorf(yodel.Aborted, "x"), true, 1},
		{"canceled", refusal(yodel.Canceled, "YDL1007"), true, 1},
		{"not found", yodel.Errorf(yodel.NotFound, "x"), true, 1},
		{"no such method", refusal(yodel.Unimplemented, "YDL2002"), true, 1},
		{"no token", refusal(yodel.Unauthenticated, "YDL3101"), true, 1},
		{"broken", yodel.Errorf(yodel.Internal, "x"), true, 1},
		{"no code", errors.New("x"), true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				err := retry.Times(3)(func(context.Context, *yodel.Call) error {
					attempts++
					return test.err
				})(t.Context(), &yodel.Call{Idempotent: test.idempotent})
				if attempts != test.want || !errors.Is(err, test.err) {
					t.Errorf("got %d attempts and %v, want %d and %v", attempts, err, test.want, test.err)
				}
			})
		})
	}
}

func TestIdempotencyKeyAllowsAnotherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		err := retry.Times(3)(func(context.Context, *yodel.Call) error {
			if attempts++; attempts < 3 {
				return yodel.Unavailable
			}
			return nil
		})(t.Context(), &yodel.Call{IdempotencyKey: "order 7"})
		if attempts != 3 || err != nil {
			t.Errorf("got %d attempts and %v, want 3 and success", attempts, err)
		}
	})
}

func TestTimes(t *testing.T) {
	for name, test := range map[string]struct {
		middleware yodel.Middleware
		want       int
	}{
		"minus one": {retry.Times(-1), 1},
		"none":      {retry.Times(0), 1},
		"one":       {retry.Times(1), 1},
		"five":      {retry.Times(5), 5},
		"default":   {retry.With(nil), 3},
		"options":   {retry.With(&retry.Options{Times: 2}), 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			err := test.middleware(func(context.Context, *yodel.Call) error {
				attempts++
				return yodel.Unavailable
			})(t.Context(), idempotent())
			if attempts != test.want || !errors.Is(err, yodel.Unavailable) {
				t.Errorf("%s: got %d attempts and %v, want %d", name, attempts, err, test.want)
			}
		})
	}
}

func TestRetrySkipsTriedEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		addrs := []string{"a", "b", "c"}
		var executed [3]atomic.Int32
		for i, addr := range addrs {
			serve(t, network, addr, nil, func(context.Context) error {
				executed[i].Add(1)
				return yodel.Errorf(yodel.Unavailable, "%s is tired", addr)
			})
		}
		c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
			Transport: network, Balancer: firstOf, Middleware: []yodel.Middleware{retry.Times(3)},
		})
		defer c.Close()
		err := c.Do(t.Context(), idempotent())
		for i, addr := range addrs {
			if n := executed[i].Load(); n != 1 {
				t.Errorf("%s executed the call %d times, want once", addr, n)
			}
		}
		var report *introspect.CallReport
		if !errors.As(err, &report) {
			t.Fatalf("got %v, want an error with a report", err)
		}
		var tried []string
		for _, a := range report.Attempts {
			tried = append(tried, a.Addr)
			if a.Message != a.Addr+" is tired" || a.Code != yodel.Unavailable.String() {
				t.Errorf("the report says of %s: %v %q", a.Addr, a.Code, a.Message)
			}
		}
		if slices.Sort(tried); !slices.Equal(tried, addrs) {
			t.Errorf("the report has attempts on %v, want %v", tried, addrs)
		}
	})
}

// firstOf always takes the first endpoint that a call does not avoid.
func firstOf(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return first(endpoints) }

type first []*yodel.Endpoint

func (f first) Pick(call *yodel.Call) *yodel.Endpoint {
	if i := slices.IndexFunc(f, func(ep *yodel.Endpoint) bool { return !call.Attempts().Avoids(ep) }); i >= 0 {
		return f[i]
	}
	return nil
}

func TestRetryComesBackToATriedEndpointWhenThereIsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		s := serve(t, network, "a", nil, func(context.Context) error {
			if executed.Add(1) < 3 {
				return yodel.Errorf(yodel.Unavailable, "not yet")
			}
			return nil
		})
		s.MarkIdempotent(string(work)) // which the client learns
		c := dial(t, network, []string{"a"}, retry.Times(3))
		if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil || executed.Load() != 3 {
			t.Errorf("got %v after %d executions, want success after 3", err, executed.Load())
		}
	})
}

func TestRetryReachesAServerThatComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		c := dial(t, network, []string{"a"}, retry.With(&retry.Options{Times: 20, Backoff: time.Second}))
		ended := make(chan error, 1)
		go func() {
			_, err := work.Call(t.Context(), c, &struct{}{}) // not idempotent, and certainly not executed
			ended <- err
		}()
		synctest.Wait()
		serve(t, network, "a", nil, func(context.Context) error { return nil })
		if err := <-ended; err != nil {
			t.Errorf("got %v, want success", err)
		}
	})
}

func TestWaitsAreRandomAndGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attempts, calls = 5, 400
		middleware := retry.With(&retry.Options{Times: attempts, Backoff: 100 * time.Millisecond, MaxBackoff: 500 * time.Millisecond})
		bounds := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 500 * time.Millisecond}
		var shortest, longest [attempts - 1]time.Duration
		for i := range shortest {
			shortest[i] = time.Hour
		}
		for range calls {
			ended := time.Time{}
			attempt := 0
			err := middleware(func(context.Context, *yodel.Call) error {
				if attempt > 0 {
					wait := time.Since(ended)
					shortest[attempt-1], longest[attempt-1] = min(shortest[attempt-1], wait), max(longest[attempt-1], wait)
				}
				attempt++
				ended = time.Now()
				return yodel.Unavailable
			})(t.Context(), idempotent())
			if !errors.Is(err, yodel.Unavailable) {
				t.Fatal(err)
			}
		}
		for i, bound := range bounds {
			if shortest[i] > bound/10 || longest[i] > bound || longest[i] < bound*9/10 {
				t.Errorf("wait %d was between %v and %v, want all between 0 and %v", i+1, shortest[i], longest[i], bound)
			}
		}
	})
}

func TestNoAttemptAfterTheCallerWentAway(t *testing.T) {
	for _, test := range []struct {
		name   string
		cancel time.Duration // 0 is during the attempt
	}{
		{"during the attempt", 0},
		{"during the wait", time.Nanosecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gone := errors.New("the user closed the window")
				ctx, cancel := context.WithCancelCause(t.Context())
				attempts := 0
				began := time.Now()
				err := retry.With(&retry.Options{Backoff: 1e6 * time.Hour, MaxBackoff: 1e6 * time.Hour})(func(context.Context, *yodel.Call) error {
					attempts++
					if test.cancel == 0 {
						cancel(gone)
					} else {
						time.AfterFunc(test.cancel, func() { cancel(gone) })
					}
					return yodel.Errorf(yodel.Unavailable, "Test.Work: it is tired")
				})(ctx, idempotent())
				if took := time.Since(began); attempts != 1 || took != test.cancel {
					t.Errorf("got %d attempts in %v, want 1 in %v", attempts, took, test.cancel)
				}
				if yodel.NotProcessed(err) {
					t.Error("the error says that the call was not executed")
				}
				const want = "canceled: Test.Work: the caller did not wait for another attempt; the last one: it is tired [YDL1006]"
				if !errors.Is(err, yodel.Canceled) || !errors.Is(err, context.Canceled) || !errors.Is(err, gone) || err.Error() != want {
					t.Errorf("got %v, want %v", err, want)
				}
			})
		})
	}
}

func TestAnAbandonedCallKeepsItsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		ctx, cancel := context.WithCancel(t.Context())
		serve(t, network, "a", nil, func(context.Context) error {
			time.AfterFunc(time.Millisecond, cancel)
			return yodel.Errorf(yodel.Unavailable, "it is tired")
		})
		c := dial(t, network, []string{"a"}, retry.With(&retry.Options{Backoff: 1e6 * time.Hour, MaxBackoff: 1e6 * time.Hour}))
		err := c.Do(ctx, idempotent())
		var report *introspect.CallReport
		if !errors.Is(err, yodel.Canceled) || !errors.As(err, &report) || len(report.Attempts) != 1 || yodel.NotProcessed(err) {
			t.Errorf("got %+v, want canceled with a report of one attempt that was executed", err)
		}
	})
}

func TestAnAbandonedCallThatWasNotExecutedSaysSo(t *testing.T) {
	t.Attr("rerun", "never")
	ctx, cancel := context.WithCancel(t.Context())
	err := retry.Times(2)(func(context.Context, *yodel.Call) error {
		cancel()
		return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true}
	})(ctx, &yodel.Call{})
	if !errors.Is(err, yodel.Canceled) || !yodel.NotProcessed(err) {
		t.Errorf("got %v, want canceled and not executed", err)
	}
}

func TestNoWaitBeyondTheDeadline(t *testing.T) {
	const centuries = 1e6 * time.Hour
	for _, test := range []struct{ ofContext, ofCall time.Duration }{
		{time.Minute, 0}, {0, time.Minute}, {time.Minute, 2 * centuries}, {2 * centuries, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, call := t.Context(), idempotent()
			if test.ofContext > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.ofContext)
				defer cancel()
			}
			if test.ofCall > 0 {
				call.Deadline = began.Add(test.ofCall)
			}
			attempts := 0
			err := retry.With(&retry.Options{Backoff: centuries, MaxBackoff: centuries})(func(context.Context, *yodel.Call) error {
				attempts++
				return yodel.Unavailable
			})(ctx, call)
			if took := time.Since(began); attempts != 1 || took != 0 || err != yodel.Unavailable {
				t.Errorf("%v: got %v and %d attempts in %v, want the error of the only one at once", test, err, attempts, took)
			}
		})
	}
}

func TestAttemptsHaveTimeoutsOfTheirOwnBelowRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		serve(t, network, "a", nil, func(ctx context.Context) error {
			if executed.Add(1) == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		c := dial(t, network, []string{"a"}, timeout.After(10*time.Second), retry.Times(2), timeout.After(time.Second))
		began := time.Now()
		err := c.Do(t.Context(), idempotent())
		if took := time.Since(began); err != nil || executed.Load() != 2 || took < time.Second || took > 2*time.Second {
			t.Errorf("got %v after %v and %d executions, want success after the second", err, took, executed.Load())
		}
	})
}

func TestAOneWayCallThatWasQueuedIsSentOnce(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		serve(t, network, "a", nil, func(context.Context) error {
			executed.Add(1)
			return yodel.Errorf(yodel.Unavailable, "it is tired")
		})
		c := dial(t, network, []string{"a"}, retry.Times(3))
		call := idempotent()
		call.OneWay = true
		if err := c.Do(t.Context(), call); err != nil {
			t.Errorf("got %v, want success", err)
		}
		if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
			t.Error(err)
		}
		if time.Sleep(time.Minute); executed.Load() != 1 {
			t.Errorf("it was executed %d times, want once", executed.Load())
		}
	})
}

func TestOnAServerNothingIsExecutedAgain(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		s := serve(t, network, "a", &yodel.ServerOptions{Middleware: []yodel.Middleware{retry.Times(3)}}, func(context.Context) error {
			executed.Add(1)
			return yodel.Unavailable
		})
		s.MarkIdempotent(string(work))
		call := idempotent()
		call.IdempotencyKey = "order 7" // which makes the call repeatable on the server too
		err := dial(t, network, []string{"a"}).Do(t.Context(), call)
		if !errors.Is(err, yodel.Unavailable) || executed.Load() != 1 {
			t.Errorf("got %v after %d executions, want unavailable after one", err, executed.Load())
		}
	})
}

func TestSuccessAllocatesNothing(t *testing.T) {
	handler := retry.Times(3)(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{}
	if n := testing.AllocsPerRun(100, func() {
		if err := handler(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}

// What refuses a later attempt, without knowing of the first one, does not make the call one that
// was certainly not executed.
func TestACallThatMayHaveBeenExecutedIsNotSaidNotToBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3301", Message: "the limit is used up", NotProcessed: true}
		for name, test := range map[string]struct {
			answers []error
			want    bool
		}{
			"executed, then refused":  {[]error{yodel.Unavailable, refusal, refusal}, false},
			"refused in the middle":   {[]error{refusal, yodel.Errorf(yodel.Unavailable, "x"), refusal}, false},
			"refused, then executed":  {[]error{refusal, refusal, yodel.Unavailable}, false},
			"refused":                 {[]error{refusal, refusal, refusal}, true},
			"executed, then given up": {[]error{yodel.Unavailable, &yodel.Error{Code: yodel.NotFound, NotProcessed: true}}, false},
			"wrapped by a middleware": {[]error{yodel.Unavailable, fmt.Errorf("x: %w", refusal), fmt.Errorf("x: %w", refusal)}, false},
		} {
			n := 0
			h := retry.Times(3)(func(context.Context, *yodel.Call) error {
				n++
				return test.answers[n-1]
			})
			err := h(t.Context(), idempotent())
			last := test.answers[len(test.answers)-1]
			if n != len(test.answers) || yodel.NotProcessed(err) != test.want || !errors.Is(err, last) || yodel.CodeOf(err) != yodel.CodeOf(last) {
				t.Errorf("%s: got %v, not processed: %v, after %d attempts", name, err, yodel.NotProcessed(err), n)
			}
		}
		if !refusal.NotProcessed {
			t.Error("somebody else's error was changed")
		}
	})
}

// An error that two methods pass on names both: each says why its call was not sent again.
func TestTheRefusalOfARetryNamesTheMethod(t *testing.T) {
	const place yodel.Method[struct{}, struct{}] = "Shop.Place"
	network := mem.New()
	serve(t, network, "pay", nil, func(context.Context) error { return yodel.Errorf(yodel.Unavailable, "the till is closed") })
	pay := dial(t, network, []string{"pay"}, retry.Times(3))
	shop := yodel.NewServer(nil)
	place.Handle(shop, func(ctx context.Context, in *struct{}) (*struct{}, error) { return work.Call(ctx, pay, in) })
	run(t, network, "shop", shop)
	_, err := place.Call(t.Context(), dial(t, network, []string{"shop"}, retry.Times(3)), &struct{}{})
	const why = "%s not sent again: the method is not declared idempotent, and the call has no idempotency key"
	want := fmt.Sprintf("the till is closed; "+why+"; "+why, work, place)
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Message != want {
		t.Errorf("got %v, want the message %s", err, want)
	}
}
