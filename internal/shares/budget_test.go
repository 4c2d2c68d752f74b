// SPDX-License-Identifier: Apache-2.0

package shares_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/shares"
)

// A peer is a member that has as many requests open as it wants and may.
type peer struct {
	mu      sync.Mutex
	share   *shares.Share
	limit   int
	wants   int
	obeys   bool // it obeys a lower limit at once
	told    int  // how many limits it was sent
	lowered int  // a limit that it has not obeyed, or 0
	forced  int  // how many lower limits were enforced
}

func (p *peer) open() int { return min(p.wants, p.limit) }

func (p *peer) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open()
}

func (p *peer) Measure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share.Measured(p.open(), 0, p.open())
	p.share.TakeBack(p.open(), 0)
}

func (p *peer) SetLimit(l shares.Limit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told++
	switch {
	case !l.Lower:
		p.limit = l.Open
	case p.obeys:
		p.obeyLocked(l.Open)
	default:
		p.lowered = l.Open
	}
}

func (p *peer) Enforce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forced++
	p.obeyLocked(p.lowered)
}

func (p *peer) obeyLocked(limit int) {
	p.limit, p.lowered = limit, 0
	p.share.Obeyed()
	p.share.TakeBack(p.open(), 0)
}

// want changes how many requests the peer has open, as far as it may.
func (p *peer) want(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wants = n
	if n > 0 {
		p.share.Touch()
	}
}

// has returns the limit of the peer, and how many limits it was sent.
func (p *peer) has() (limit, told int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit, p.told
}

func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wants = 0
	p.share.Leave()
	p.share.TakeBack(0, 0)
}

// newBudget returns a budget, and fails the test whenever more than it is granted.
func newBudget(t *testing.T, open int) *shares.Budget {
	t.Helper()
	b := shares.New(open, 1<<30)
	b.Watch(func(granted int) {
		if granted < 0 || granted > open {
			t.Errorf("%d of %d requests are granted", granted, open)
		}
	})
	return b
}

func join(b *shares.Budget, obeys bool) *peer {
	p := &peer{obeys: obeys}
	b.Reserve()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, first := b.Join(p, 1<<14, 1<<20)
	p.share, p.limit = s, first.Open
	s.Greet()
	return p
}

// Connections that all want more than there is have equally much, and when that does not change,
// nothing is said about it.
func TestHungryMembersHaveEqualShares(t *testing.T) {
	for _, total := range []int{27, 40, 100, 1000} {
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(t, total)
			var all []*peer
			for range 18 {
				all = append(all, join(b, true))
			}
			time.Sleep(time.Second)
			for _, p := range all {
				p.want(1 << 14)
			}
			limits := func() (sum, least, most, told int) {
				least = total
				for _, p := range all {
					n, messages := p.has()
					sum, least, most, told = sum+n, min(least, n), max(most, n), told+messages
				}
				return sum, least, most, told
			}
			time.Sleep(time.Second + 50*time.Millisecond) // in the middle of a period
			sum, least, most, told := limits()
			if most > least+least/3+1 || sum < total*3/4 || sum > total {
				t.Errorf("%d: the limits are %d in sum, between %d and %d", total, sum, least, most)
			}
			time.Sleep(time.Second)
			if _, _, _, after := limits(); total/18 >= 4 && after > told+2 {
				t.Errorf("%d: %d limits were sent that need no change", total, after-told)
			}
			for _, p := range all {
				p.leave()
			}
			time.Sleep(time.Second)
			if n, awake := b.Members(); n != 0 || awake || b.Granted() != 0 || b.Open() != 0 {
				t.Errorf("%d: at the end %d are granted to %d members, and the budget is awake: %t", total, b.Granted(), n, awake)
			}
		})
	}
}

// What a member has less is for others only when it has obeyed. If it does not obey, the limit is
// enforced.
func TestAMemberThatDoesNotObeyIsForcedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 160)
		lazy := join(b, false)
		time.Sleep(time.Second)
		first, _ := lazy.has()
		hungry := join(b, true)
		hungry.want(1 << 14)
		time.Sleep(20 * time.Second)
		if n, _ := hungry.has(); n != 150-first {
			t.Errorf("the other one may have %d open while %d may still come", n, first)
		}
		time.Sleep(50 * time.Second)
		if left, _ := lazy.has(); lazy.forced == 0 || left >= first {
			t.Errorf("the limit of %d was enforced %d times, and is %d", first, lazy.forced, left)
		} else if n, _ := hungry.has(); n < 150-left-left/2 {
			t.Errorf("the other one may have %d of 160 open, want all but %d", n, left)
		}
		lazy.leave()
		hungry.leave()
		time.Sleep(time.Second)
	})
}

// A peer that sent more before it learned its limit gets more, as long as the reserve remains.
func TestAShareBorrowsWhatIsNotReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 160)
		p := join(b, true)
		if !p.share.Borrow(100, 0) || b.Granted() != 100 {
			t.Errorf("%d are granted, want 100", b.Granted())
		}
		if limit, _ := p.share.TakeBack(100, 0); limit != 100 {
			t.Errorf("the member may have %d open, want 100", limit)
		}
		if p.share.Borrow(151, 0) {
			t.Error("the reserve was borrowed")
		}
		p.leave()
		time.Sleep(time.Second)
	})
}

// However members that obey come, go and change what they want, never more than the total is
// granted, except for one request for each member that could not wait any longer. At the end
// nothing is granted.
func TestTheTotalHoldsInAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		b := shares.New(1600, 1<<30) // with more in reserve than there are members
		most, impatient := 0, 0
		b.Watch(func(granted int) { most = max(most, granted) })
		var all []*peer
		for range 2000 {
			switch n := r.IntN(10); {
			case n == 0 && len(all) < 60:
				began := time.Now()
				all = append(all, join(b, true))
				if time.Since(began) >= time.Second {
					impatient++
				}
			case n == 1 && len(all) > 0:
				i := r.IntN(len(all))
				all[i].leave()
				all = append(all[:i], all[i+1:]...)
			case n < 6 && len(all) > 0:
				all[r.IntN(len(all))].want(r.IntN(3000))
			default:
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			}
		}
		for _, p := range all {
			p.leave()
		}
		time.Sleep(time.Minute)
		if most > 1600+impatient {
			t.Errorf("%d of 1600 requests were granted, and %d members did not wait", most, impatient)
		}
		if n, awake := b.Members(); n != 0 || awake || b.Granted() != 0 {
			t.Errorf("at the end %d are granted to %d members, and the budget is awake: %t", b.Granted(), n, awake)
		}
	})
}
