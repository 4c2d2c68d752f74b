// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A plant is what a learner limits: calls take a time, and so many of them at once.
type plant struct {
	*learner
	slots float64
	takes time.Duration
	noise float64
	rng   *rand.Rand
	now   time.Duration
}

// run lets windows pass, in which there are always enough calls, or so many at a time.
func (p *plant) run(lasts time.Duration, offered float64) {
	for end := p.now + lasts; p.now < end; {
		open := p.limit
		if offered > 0 {
			open = min(open, offered)
		}
		took := time.Duration(float64(p.takes) * max(1, open/p.slots) * (1 + p.noise*p.rng.Float64()))
		p.now += max(leastWindow, 4*took)
		rate := min(open, p.slots) / p.takes.Seconds() * (1 - p.noise*p.rng.Float64())
		p.window(p.now, took, rate, offered == 0 || offered >= p.limit)
	}
}

func newPlant(slots int, takes time.Duration, initial int) *plant {
	return &plant{
		learner: newLearner((&Options{Initial: initial}).complete()), slots: float64(slots), takes: takes, noise: 0.05,
		rng: rand.New(rand.NewPCG(uint64(slots), uint64(initial))),
	}
}

func TestLimitIsLearned(t *testing.T) {
	for _, slots := range []int{1, 2, 10, 100, 1000} {
		for _, initial := range []int{1, 20, 500} {
			for _, takes := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 100 * time.Millisecond} {
				t.Run(fmt.Sprintf("%d slots of %v from %d", slots, takes, initial), func(t *testing.T) {
					p := newPlant(slots, takes, initial)
					windows := max(leastWindow, 4*takes)
					p.run(100*windows, 0)
					for range 20 {
						p.run(10*windows, 0)
						if p.descending {
							continue
						}
						if got := float64(p.whole()); got < 0.9*p.slots || got > 1.3*p.slots+2 {
							t.Errorf("after %v it lets %v calls run", p.now, got)
						}
					}
				})
			}
		}
	}
}

func TestLearnedLimitFollowsTheServer(t *testing.T) {
	p := newPlant(10, 5*time.Millisecond, 20)
	check := func(what string, least, most float64) {
		t.Helper()
		if p.limit < least || p.limit > most {
			t.Errorf("%s: the limit is %.1f, not between %v and %v: %+v", what, p.limit, least, most, *p.learner)
		}
	}
	p.run(5*time.Second, 0)
	check("in the beginning", 9, 14)
	p.takes *= 4
	p.run(3*time.Second, 0)
	check("slower", 9, 14)
	p.takes /= 4
	p.run(3*time.Second, 0)
	check("fast again", 9, 14)
	p.slots = 50
	p.run(10*time.Second, 0)
	check("with more slots", 45, 70)
	p.slots = 5
	p.run(10*time.Second, 0)
	check("with fewer slots", 4.5, 9)
}

func TestLearnedLimitStaysWhenItIsNotReached(t *testing.T) {
	p := newPlant(10, 5*time.Millisecond, 20)
	p.run(time.Minute, 5)
	if p.limit != 20 {
		t.Errorf("the limit is %v without a reason", p.limit)
	}
	if p.base < p.takes || p.base > p.takes*11/10 {
		t.Errorf("it takes a call for one of %v, not %v", p.base, p.takes)
	}
}

func TestLearnedLimitHasBounds(t *testing.T) {
	for _, slots := range []int{1, 1000} {
		p := newPlant(slots, 5*time.Millisecond, 20)
		p.bound((&Options{Min: 5, Max: 30}).complete())
		p.run(10*time.Second, 0)
		if p.limit < 5 || p.limit > 30 {
			t.Errorf("with %d slots the limit is %v", slots, p.limit)
		}
	}
}

// When most calls end too late, the limit comes down to what can be served in time, by half at
// most.
func TestLateCallsBrakeTheLimit(t *testing.T) {
	a := newLearner(Options{Initial: 1000, Min: 1, Max: 10_000})
	for i, want := range []float64{500, 250, 125, 100, 100} {
		if a.brake(1000, 400, 500*time.Millisecond); a.limit != want {
			t.Errorf("after step %d the limit is %v, want %v", i+1, a.limit, want)
		}
	}
	a.brake(40, 0, 500*time.Millisecond) // no method returns
	if a.limit != 20 {
		t.Errorf("with 40 calls that hang the limit is %v, want 20", a.limit)
	}
	for range 10 {
		a.brake(1, 0, 500*time.Millisecond)
	}
	if a.limit != 1 {
		t.Errorf("the limit is %v, want no less than Min", a.limit)
	}
}
