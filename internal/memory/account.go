// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"
	"sync"
	"sync/atomic"
)

// An Account is the memory that the peer of one connection makes this side hold. It takes memory
// from its Limit in chunks, so that most calls of Take and Give touch no state that connections
// share. Call Init first. All other methods may be called concurrently.
type Account struct {
	of      *Limit // nil for no Limit
	limit   int64  // the limit of this connection
	used    atomic.Int64
	granted atomic.Int64 // bytes granted by the Limit; at least used, except while Take or Force raises used

	closed atomic.Bool // the connection has ended

	mu   sync.Mutex // guards kept and changes of granted; it is a leaf
	kept int        // the part of used that is held until the connection ends
}

const (
	// mostGrant is the most that an Account takes from the Limit in advance.
	mostGrant = 64 << 10
	// leastGrantAhead is the least that an Account takes from the Limit in advance.
	leastGrantAhead = 4 << 10
)

// Init begins an account in of, which may be nil. Limit bounds this account; 0 means no bound.
func (a *Account) Init(of *Limit, limit int) {
	a.of, a.limit = of, int64(limit)
	if limit <= 0 {
		a.limit = math.MaxInt64
	}
}

// Take counts n bytes that are about to be allocated, and reports whether they may be.
func (a *Account) Take(n int) bool {
	if used := a.used.Add(int64(n)); used <= a.granted.Load() {
		return true
	}
	if a.extend(false) {
		return true
	}
	a.Give(n)
	return false
}

// Force counts n bytes that cannot be refused. Later calls of Take may fail because of them.
func (a *Account) Force(n int) {
	if a.used.Add(int64(n)) > a.granted.Load() {
		a.extend(true)
	}
}

// HoldUntilEnd counts n bytes that are held until the connection ends. A negative n uncounts bytes.
// It returns false if the bytes must not be allocated.
func (a *Account) HoldUntilEnd(n int) bool {
	return a.Take(n) && a.Keep(n)
}

// Keep makes n bytes that are counted count until the connection ends. If it has ended, Keep
// uncounts them and returns false.
func (a *Account) Keep(n int) bool {
	a.mu.Lock()
	ended := a.closed.Load()
	if !ended {
		a.kept += n
	}
	a.mu.Unlock()
	if ended {
		a.Give(n)
	}
	return !ended
}

// extend takes more memory from the Limit.
func (a *Account) extend(force bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	used, granted := a.used.Load(), a.granted.Load()
	need := used - granted
	switch {
	case need <= 0:
		return true
	case force:
	case used > a.limit:
		return false
	}
	more := need
	if !a.closed.Load() && used <= a.limit {
		more += min(max(granted, leastGrantAhead), mostGrant)
	}
	switch {
	case a.of == nil:
	case a.of.grant(more, used):
	case a.of.grant(need, used):
		more = need
	case force:
		more = need
		a.of.used.Add(need)
	default:
		return false
	}
	a.granted.Add(more)
	return true
}

// Give uncounts n bytes.
func (a *Account) Give(n int) {
	used := a.used.Add(-int64(n))
	if a.closed.Load() || a.granted.Load()-used > 3*mostGrant {
		a.shrink(mostGrant)
	}
}

// shrink returns granted bytes to the Limit. It keeps the bytes in use, and ahead bytes in advance.
func (a *Account) shrink(ahead int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		ahead = 0
	}
	if back := a.granted.Load() - a.used.Load() - ahead; back > 0 {
		a.granted.Add(-back)
		if a.of != nil {
			a.of.used.Add(-back)
		}
	}
}

// Trim returns granted bytes that an idle connection does not need.
func (a *Account) Trim() { a.shrink(leastGrantAhead) }

// Close marks that the connection has ended. Bytes that are still in use count until Give uncounts
// them.
func (a *Account) Close() {
	a.mu.Lock()
	a.closed.Store(true)
	kept := a.kept
	a.kept = 0
	a.mu.Unlock()
	a.used.Add(-int64(kept))
	a.shrink(0)
}
