// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const report yodel.Method[struct{}, []limit.Stats] = "Limits.Report"

// A crowd is callers that each call in a loop.
type crowd struct {
	callers int
	// context returns the context of a call.
	context func(ctx context.Context) (context.Context, context.CancelFunc)
	pause   time.Duration // after each call
	errs    atomic.Int64
}

func within(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
}

func canceledAfter(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(d, cancel)
		return ctx, cancel
	}
}

// run lets the crowds call for a time, and returns the state of the limiter at its end.
func run(t *testing.T, c *yodel.Client, lasts time.Duration, crowds ...*crowd) limit.Stats {
	t.Helper()
	over, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var wg sync.WaitGroup
	for _, w := range crowds {
		for range w.callers {
			wg.Go(func() {
				for over.Err() == nil {
					ctx, cancel := w.context(t.Context())
					if _, err := work.Call(ctx, c, &struct{}{}); err != nil { //nolint:contextcheck // it is made of that of the test
						w.errs.Add(1)
					}
					cancel()
					time.Sleep(w.pause)
				}
			})
		}
	}
	<-over.Done()
	stats, err := report.Call(t.Context(), c, &struct{}{})
	wg.Wait()
	if err != nil || len(*stats) != 1 {
		t.Fatal(stats, err)
	}
	return (*stats)[0]
}

// adaptive returns a client of a server with a learned limit of work.
func adaptive(t *testing.T, o *limit.Options, handle func(ctx context.Context) error) *yodel.Client {
	t.Helper()
	o.Methods = []string{string(work)}
	s := serve(t, limited(limit.Adaptive(o)), handle)
	if err := s.Handle(string(report), limit.Report); err != nil {
		t.Fatal(err)
	}
	return yodeltest.NewClient(t, nil, s)
}

// wait waits as a handler that ends with its context.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Callers that give a server less time than the method takes say nothing about the server, also if
// most callers are such ones.
func TestImpatientCallersDoNotTeachTheLimit(t *testing.T) {
	const takes = 20 * time.Millisecond
	for name, impatient := range map[string]*crowd{
		"deadlines": {context: within(2 * time.Millisecond)}, "cancellation": {context: canceledAfter(2 * time.Millisecond)},
	} {
		for how, handle := range map[string]func(context.Context) error{
			"ends with its context": func(ctx context.Context) error { return wait(ctx, takes) },
			"goes on":               func(context.Context) error { time.Sleep(takes); return nil },
		} {
			t.Run(name+", the method "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := adaptive(t, &limit.Options{}, handle)
					patient := &crowd{callers: 4, context: within(10 * time.Second), pause: time.Millisecond}
					// so few that they never fill the server, also if their calls go on
					impatient := &crowd{callers: 10, context: impatient.context, pause: takes}
					state := run(t, c, 2*time.Second, patient, impatient)
					if n := patient.errs.Load(); n > 0 {
						t.Errorf("%d calls of patient callers failed", n)
					}
					if least := takes * 9 / 10; state.Limit < 20 || state.Took < least || state.Base > 0 && state.Base < least {
						t.Errorf("the server is not overloaded, and the calls take %v: %v", takes, state.String())
					}
				})
			})
		}
	}
}

// A server that hangs is noticed, also if a few of its calls have always taken long, and if some
// callers are impatient.
func TestAServerThatHangsLowersTheLimit(t *testing.T) {
	for name, impatient := range map[string]int{"patient callers": 0, "some impatient callers": 4} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				var hangs atomic.Bool
				c := adaptive(t, &limit.Options{Initial: 100}, func(ctx context.Context) error {
					switch n := calls.Add(1); {
					case hangs.Load():
						return wait(ctx, time.Hour)
					case n%7 == 0:
						return wait(ctx, 500*time.Millisecond)
					}
					return wait(ctx, 20*time.Millisecond)
				})
				callers := &crowd{callers: 40, context: within(time.Second), pause: 10 * time.Millisecond}
				others := &crowd{callers: impatient, context: within(5 * time.Millisecond), pause: 10 * time.Millisecond}
				before := run(t, c, 5*time.Second, callers, others)
				hangs.Store(true)
				state := run(t, c, 5*time.Second, callers, others)
				if before.Limit < 40 || state.Limit > 50 {
					t.Errorf("before: %v\nwhen it hangs: %v", before.String(), state.String())
				}
			})
		})
	}
}

// A server that was overloaded from its first call on has never been seen well. It is noticed, also
// if its callers give it different times.
func TestAnOverloadFromTheBeginningLowersTheLimit(t *testing.T) {
	for name, times := range map[string][]time.Duration{
		"one deadline": {500 * time.Millisecond}, "two deadlines": {200 * time.Millisecond, time.Second},
	} {
		for how, ignores := range map[string]bool{"ends with its context": false, "goes on": true} {
			t.Run(name+", the method "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					processors := make(chan struct{}, 4)
					c := adaptive(t, &limit.Options{Initial: 1000}, func(ctx context.Context) error {
						if ignores {
							ctx = context.WithoutCancel(ctx)
						}
						select {
						case processors <- struct{}{}:
						case <-ctx.Done():
							return context.Cause(ctx)
						}
						defer func() { <-processors }()
						time.Sleep(20 * time.Millisecond)
						return nil
					})
					var crowds []*crowd
					for _, d := range times {
						crowds = append(crowds, &crowd{callers: 120 / len(times), context: within(d), pause: 20 * time.Millisecond})
					}
					if state := run(t, c, 3*time.Second, crowds...); state.Limit > 50 {
						t.Errorf("4 calls can run at a time: %v", state.String())
					}
				})
			})
		}
	}
}
