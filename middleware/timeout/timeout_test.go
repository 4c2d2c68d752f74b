// SPDX-License-Identifier: Apache-2.0

package timeout_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// dial connects a client to a server with one method, for the length of the test.
func dial(t *testing.T, o *yodel.ServerOptions, f func(ctx context.Context) error) *yodel.Client {
	t.Helper()
	network := mem.New()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(o)
	work.Handle(s, func(ctx context.Context, _ *struct{}) (*struct{}, error) { return nil, f(ctx) })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func call(c yodel.Caller) error {
	_, err := work.Call(context.Background(), c, &struct{}{})
	return err
}

// through is a caller in front of another one.
type through struct {
	middleware yodel.Middleware
	yodel.Caller
}

func (t through) Do(ctx context.Context, call *yodel.Call) error {
	return t.middleware(t.Caller.Do)(ctx, call)
}

func TestClientCallEndsAfterTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		c := dial(t, nil, func(ctx context.Context) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err() // perhaps before the client has noticed
		})
		began := time.Now()
		err := call(through{timeout.After(3 * time.Second), c})
		if took := time.Since(began); took != 3*time.Second || !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v after %v, want deadline_exceeded after 3s", err, took)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context on the server ended with %v", err)
		}
	})
}

func TestEarlierDeadlineStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, test := range []struct {
			name         string
			before, want time.Duration // from now; 0 is none
			after        time.Duration
		}{
			{name: "none", after: time.Minute, want: time.Minute},
			{name: "later", before: time.Hour, after: time.Minute, want: time.Minute},
			{name: "earlier", before: time.Second, after: time.Minute, want: time.Second},
			{name: "no timeout", before: time.Second, after: 0, want: time.Second},
			{name: "neither", after: -1},
		} {
			var before, want, got time.Time
			if test.before != 0 {
				before = now.Add(test.before)
			}
			if test.want != 0 {
				want = now.Add(test.want)
			}
			call := &yodel.Call{Deadline: before}
			err := timeout.After(test.after)(func(_ context.Context, call *yodel.Call) error {
				got = call.Deadline
				return nil
			})(t.Context(), call)
			if err != nil || !got.Equal(want) {
				t.Errorf("%s: got deadline %v (%v), want %v", test.name, got, err, want)
			}
			if call.Deadline != before {
				t.Errorf("%s: the call's deadline is %v afterwards, and was %v before", test.name, call.Deadline, before)
			}
		}
	})
}

func TestEarlierDeadlineOfTheCallersContextStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := work.Call(ctx, through{timeout.After(time.Minute), c}, &struct{}{})
		if took := time.Since(began); took != time.Second || !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v after %v, want deadline_exceeded after 1s", err, took)
		}
	})
}

func TestServerEndsTheContextOfTheMethod(t *testing.T) {
	wait := func(ctx context.Context) { <-ctx.Done() }
	for _, test := range []struct {
		name string
		wait func(ctx context.Context) // until ctx has ended
	}{
		{"done", wait},
		{"nobody waits", func(context.Context) { time.Sleep(3 * time.Second) }},
		{"derived", func(ctx context.Context) {
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			wait(derived)
		}},
		{"after func", func(ctx context.Context) {
			ended := make(chan struct{})
			context.AfterFunc(ctx, func() { close(ended) })
			<-ended
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				want := began.Add(3 * time.Second)
				c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(3 * time.Second)}}, func(ctx context.Context) error {
					if err := ctx.Err(); err != nil {
						t.Errorf("the context had ended before: %v", err)
					}
					if deadline, ok := ctx.Deadline(); !ok || !deadline.Equal(want) {
						t.Errorf("the context's deadline is %v, want %v", deadline, want)
					}
					if deadline := yodel.CallFrom(ctx).Deadline; !deadline.Equal(want) {
						t.Errorf("the call's deadline is %v, want %v", deadline, want)
					}
					test.wait(ctx)
					if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
						t.Errorf("the cause is %v", context.Cause(ctx))
					}
					return ctx.Err()
				})
				err := call(c)
				if took := time.Since(began); took != 3*time.Second || !errors.Is(err, yodel.DeadlineExceeded) {
					t.Errorf("got %v after %v, want deadline_exceeded after 3s", err, took)
				}
			})
		})
	}
}

func TestServerKeepsAnEarlierDeadlineOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ended := make(chan time.Duration, 1)
		c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(time.Minute)}}, func(ctx context.Context) error {
			<-ctx.Done()
			ended <- time.Since(began)
			return ctx.Err()
		})
		err := call(through{timeout.After(time.Second), c})
		if took := <-ended; took != time.Second || !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("the method's context ended after %v and the call with %v, want 1s and deadline_exceeded", took, err)
		}
	})
}

func TestServerContextEndsWithTheCaller(t *testing.T) {
	for _, waited := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(time.Minute)}}, func(ctx context.Context) error {
				cancel()
				if waited {
					<-ctx.Done()
				} else {
					time.Sleep(time.Second)
				}
				ended <- ctx.Err()
				return nil
			})
			if _, err := work.Call(ctx, c, &struct{}{}); !errors.Is(err, yodel.Canceled) {
				t.Errorf("got %v, want canceled", err)
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the method's context ended with %v, want canceled", err)
			}
		})
	}
}

func TestServerContextEndsWhenTheMethodHasReturned(t *testing.T) {
	for _, waited := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var kept context.Context
			c := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(time.Minute)}}, func(ctx context.Context) error {
				if kept = ctx; waited {
					_ = ctx.Done()
				}
				return nil
			})
			if err := call(c); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			<-kept.Done()
			if took := time.Since(began); took > time.Second || !errors.Is(kept.Err(), context.Canceled) {
				t.Errorf("the context ended with %v after %v, want canceled at once", kept.Err(), took)
			}
		})
	}
}

func TestContextsDerivedOnAServerCostNoGoroutine(t *testing.T) {
	o := &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(time.Minute)}}
	c := dial(t, o, func(ctx context.Context) error {
		const derived = 1000
		before := runtime.NumGoroutine()
		for range derived {
			_, cancel := context.WithCancel(ctx)
			defer cancel()
		}
		if more := runtime.NumGoroutine() - before; more > derived/2 {
			t.Errorf("%d derived contexts started %d goroutines", derived, more)
		}
		return nil
	})
	if err := call(c); err != nil {
		t.Error(err)
	}
}

func TestDeadlineTravelsOnFromTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		behind := dial(t, nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		front := dial(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(time.Second)}}, func(ctx context.Context) error {
			_, err := work.Call(ctx, behind, &struct{}{})
			return err
		})
		err := call(front)
		if took := time.Since(began); took != time.Second || !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v after %v, want deadline_exceeded after 1s", err, took)
		}
	})
}

func TestClientTimeoutAllocatesNothing(t *testing.T) {
	handler := timeout.After(time.Second)(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{}
	if n := testing.AllocsPerRun(100, func() {
		if err := handler(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}
