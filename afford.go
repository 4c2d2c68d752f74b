// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"math"
	"sync"
	"time"
)

// An allowance is how much load beyond its calls a client may make for one purpose: a bucket of
// tokens, each of them leave for one attempt. A share of a token comes with each attempt that is
// made anyway, and one comes each second. It is reckoned up only when somebody asks, so that calls
// that go well pay nothing for it.
type allowance struct {
	mu     sync.Mutex
	tokens float64
	limit  float64       // as many are kept at most
	seen   int64         // attempts when it was last reckoned up
	taken  int64         // since then
	at     time.Duration // when that was; before the first time, when the client was made
	asked  bool
}

// allowanceNap is the time between two counts: a client may have thousands of endpoints.
const allowanceNap = 10 * time.Millisecond

// take takes a token. Attempts counts those ever made.
func (a *allowance) take(now time.Duration, share float64, reserve int, attempts func() int64) bool {
	if share = min(share, 1e6); !(share > 0) { // nor NaN
		share = 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked {
		a.asked, a.tokens = true, float64(reserve)
	}
	if passed := now - a.at; passed >= allowanceNap {
		n := attempts()
		traffic := float64(max(n-a.seen-a.taken, 0)) // without those it allowed
		// What the traffic of a second makes is kept. When that becomes less, what was kept goes
		// slowly: by half in each second.
		a.limit = max(float64(reserve), share*traffic/passed.Seconds(), a.limit*math.Exp2(-passed.Seconds()))
		second := 0.0
		if reserve > 0 {
			second = passed.Seconds()
		}
		a.tokens = min(a.tokens+share*traffic+second, a.limit)
		a.seen, a.taken, a.at = n, 0, now
	}
	if a.tokens < 1 {
		return false
	}
	a.tokens--
	a.taken++
	return true
}

// Afford takes leave for one attempt more than there are calls, and reports whether there was any:
// for middleware that makes calls again, or several times at once, in the name of by. It may make a
// share of the attempts that all do, and reserve at once besides, of which one comes back each
// second, so that a client with few calls can. So a failing service gets little more load than a
// healthy one, whatever each call would like.
func (c *Client) Afford(by string, share float64, reserve int) bool {
	a := c.states.get(allowanceKey{by}, func() any { return &allowance{at: c.born} }).(*allowance) //nolint:forcetypeassert // nobody else has such a key
	return a.take(clock(), share, reserve, c.attempts)
}

type allowanceKey struct{ by string }

// attempts returns how many attempts the client has made.
func (c *Client) attempts() int64 {
	if set := c.cluster.set.Load(); set != nil {
		return set.attempts()
	}
	return 0
}
