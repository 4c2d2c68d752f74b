// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
)

// Whatever is asked of an allowance when, it never gives more than the share of the traffic, the
// reserve, and one each second.
func TestAnAllowanceHasABound(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 7))
		share, reserve := 0.05+rng.Float64()/2, rng.IntN(20)
		now, attempts := time.Duration(1+rng.Int64N(1e12)), int64(rng.IntN(1000))
		a := budget.NewAllowance(now, attempts)
		began, before := now, attempts
		given := 0
		for range 3000 {
			passed := time.Duration(rng.Int64N(int64(40 * time.Millisecond)))
			if rng.IntN(500) == 0 {
				passed = time.Duration(rng.Int64N(int64(20 * time.Second)))
			}
			now += passed
			attempts += rng.Int64N(30)
			for range 1 + rng.IntN(8) {
				if a.Take(now, share, reserve, func() int64 { return attempts }) {
					given++
					attempts++ // it is made
				}
			}
			traffic := float64(attempts - before - int64(given))
			if bound := share*traffic + float64(reserve) + (now - began).Seconds() + 1; float64(given) > bound {
				t.Fatalf("seed %d: %d were given, and the bound is %.1f (share %.2f, reserve %d)", seed, given, bound, share, reserve)
			}
		}
	}
}

// The first time that it is asked counts what there was before: a client whose first server dies
// may have a hundred calls to send again.
func TestAnAllowanceCountsFromTheBeginning(t *testing.T) {
	a := budget.NewAllowance(1, 0)
	n := 0
	for a.Take(1+2*time.Second, 0.1, 10, func() int64 { return 4000 }) {
		n++
	}
	if n != 200 {
		t.Errorf("after two seconds of 2000 calls it gives %d, want 200", n)
	}
}

func TestAnAllowanceKeepsASecondsShare(t *testing.T) {
	now, attempts := time.Duration(1), int64(0)
	a := budget.NewAllowance(now, attempts)
	drain := func() (n int) {
		for a.Take(now, 0.1, 10, func() int64 { return attempts }) {
			n++
			attempts++
		}
		return n
	}
	pass := func(d time.Duration, calls int64) { now, attempts = now+d, attempts+calls }
	for i, step := range []struct {
		pass  time.Duration
		calls int64
		want  int
	}{
		{0, 0, 10},
		{time.Second, 0, 1},
		{time.Second, 90, 10},
		{time.Second, 1000, 100}, // and one, which is more than is kept
		{time.Minute, 60000, 100},
		{time.Second, 0, 1},
		{time.Hour, 0, 10},
		{time.Millisecond, 1000, 0}, // not counted yet
		{9 * time.Millisecond, 0, 100},
	} {
		pass(step.pass, step.calls)
		if got := drain(); math.Abs(float64(got-step.want)) > 1 {
			t.Errorf("step %d: %d were given, want %d", i, got, step.want)
		}
	}
}

// A share that is NaN or infinite does not allow every attempt.
func TestAnAllowanceTakesNoNonsense(t *testing.T) {
	for _, share := range []float64{math.NaN(), -1, math.Inf(1), math.Inf(-1)} {
		a, given := budget.NewAllowance(0, 0), 0
		for i := range 1000 {
			if a.Take(time.Duration(i+1)*20*time.Millisecond, share, 5, func() int64 { return 0 }) {
				given++
			}
		}
		if given > 5+20+1 {
			t.Errorf("a share of %v: %d attempts were allowed in 20 s without traffic, want at most 26", share, given)
		}
	}
}
