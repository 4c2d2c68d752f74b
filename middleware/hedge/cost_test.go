// SPDX-License-Identifier: Apache-2.0

package hedge_test

import (
	"context"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/hedge"
)

// answer ends the chain, so that nothing but the middleware above it is measured.
func answer(yodel.Handler) yodel.Handler {
	return func(context.Context, *yodel.Call) error { return nil }
}

// alone returns a client with nothing but ms, and a call of it.
func alone(tb testing.TB, ms ...yodel.Middleware) func() {
	tb.Helper()
	return among(tb, []string{"a", "b"}, ms...)
}

func among(tb testing.TB, addrs []string, ms ...yodel.Middleware) func() {
	tb.Helper()
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{Middleware: append(ms, answer)})
	tb.Cleanup(c.Close)
	call := &yodel.Call{Method: string(work), Idempotent: true}
	ctx := tb.Context() // one that may end
	return func() {
		if err := c.Do(ctx, call); err != nil {
			tb.Error(err)
		}
	}
}

func TestACallThatIsFastAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("calls are not used again under the race detector")
	}
	for name, m := range map[string]yodel.Middleware{
		"after": hedge.After(time.Minute), "percentile": hedge.With(&hedge.Options{AtLeast: time.Minute}),
	} {
		call := alone(t, m)
		for range 500 {
			call() // until it knows
		}
		if n := testing.AllocsPerRun(1000, call); n != 0 {
			t.Errorf("%s: got %v allocations for each call, want 0", name, n)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	for name, ms := range map[string][]yodel.Middleware{
		"none": nil, "after": {hedge.After(time.Minute)}, "percentile": {hedge.With(&hedge.Options{AtLeast: time.Minute})},
	} {
		b.Run(name, func(b *testing.B) {
			call := alone(b, ms...)
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
	b.Run("after, single", func(b *testing.B) {
		call := among(b, []string{"a"}, hedge.After(time.Minute))
		b.ReportAllocs()
		for b.Loop() {
			call()
		}
	})
}
