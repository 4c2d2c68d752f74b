// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"sync"
	"time"
)

// An Allowance is a client's retry budget for one purpose: a token bucket in which each token pays
// for one extra attempt. Each regular attempt adds a share of a token, and each second adds one
// token. The bucket is updated only when a token is requested, so successful calls pay nothing for
// it. It may be used concurrently.
type Allowance struct {
	mu     sync.Mutex
	tokens float64
	limit  float64       // the largest number of tokens kept
	seen   int64         // attempts at the last update
	taken  int64         // tokens taken since the last update
	at     time.Duration // the time of the last update; at first, when the client was made
	asked  bool
}

// allowanceNap is the shortest time between two updates, because a client may have thousands of
// endpoints.
const allowanceNap = 10 * time.Millisecond

// NewAllowance returns the Allowance of a client that was made at a reading of the clock, and had
// made a number of attempts by then.
func NewAllowance(now time.Duration, attempts int64) *Allowance {
	return &Allowance{at: now, seen: attempts}
}

// Take takes a token, and reports whether there was one. Attempts returns how many attempts the
// client has made in all.
func (a *Allowance) Take(now time.Duration, share float64, reserve int, attempts func() int64) bool {
	if share = min(share, 1e6); !(share > 0) { // excludes NaN too
		share = 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked {
		a.asked, a.tokens = true, float64(reserve)
	}
	if passed := now - a.at; passed >= allowanceNap {
		n := attempts()
		traffic := float64(max(n-a.seen-a.taken, 0)) // without the attempts that the bucket paid for
		// The limit of the bucket is the number of tokens that a second of traffic adds. When
		// traffic declines, the limit falls by at most half in a second.
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
