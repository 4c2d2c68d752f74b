// SPDX-License-Identifier: Apache-2.0

package rate

import (
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// birth is the origin of all times in this package, on the monotonic clock.
var birth = time.Now()

func since(t time.Time) int64 { return int64(t.Sub(birth)) }

// longAgo is before all times. Sums with it do not overflow.
const longAgo = math.MinInt64 / 4

// A bucket is the token bucket of one key. A full bucket is equivalent to a new one.
type bucket struct {
	hash uint64 // of the key

	full    atomic.Int64  // when the bucket is full again if no more calls come
	waiting atomic.Int32  // calls that wait for their turn
	turn    chan struct{} // capacity 1: held by the call whose turn it is; other calls wait for it in order of arrival

	spare atomic.Int64 // calls that the store has admitted and that have not been made
	empty atomic.Int64 // until then the store admits no call
}

func newBucket(hash uint64) *bucket {
	b := &bucket{hash: hash, turn: make(chan struct{}, 1)}
	b.full.Store(longAgo)
	b.empty.Store(longAgo)
	return b
}

// take reports whether a call may pass now, and counts it.
func (b *bucket) take(now, interval, burst int64) bool {
	return b.takeSome(now, interval, burst, 1) == 1
}

// takeSome lets up to n calls pass, and returns their number.
func (b *bucket) takeSome(now, interval, burst, n int64) int64 {
	for {
		full := b.full.Load()
		from := max(full, now)
		some := min(n, (now+burst-from)/interval)
		if some <= 0 {
			return 0
		}
		if b.full.CompareAndSwap(full, from+some*interval) {
			return some
		}
	}
}

// wait returns how long a call with this many calls ahead of it has to wait.
func (b *bucket) wait(now, interval, burst, ahead int64) int64 {
	before := min(ahead+1, math.MaxInt64/8/interval) * interval
	return max(max(b.full.Load(), now)+before-burst-now, 0)
}

// enter waits for the call's turn, until the given time or until ctx ends. It reports whether the
// turn has come. leave ends the turn.
func (b *bucket) enter(ctx context.Context, until time.Time) bool {
	select {
	case b.turn <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case b.turn <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

func (b *bucket) leave() { <-b.turn }

// ways is the number of buckets in a set.
const ways = 8

// A table holds the buckets of recently used keys. It stores only the 64-bit hashes of keys,
// because keys may be long. Two keys with the same hash share a bucket. The seed is random, so that
// other programs cannot predict hashes.
type table struct {
	seed maphash.Seed
	sets []set
}

type set struct {
	mu      sync.Mutex // held while a bucket is added
	buckets [ways]atomic.Pointer[bucket]
}

// maxKeys is the largest number of keys in a table, whose memory is allocated at once.
const maxKeys = 1 << 24

func newTable(keys int) *table {
	sets := 1 << bits.Len(uint(min(max(keys, 1), maxKeys)-1)/ways)
	return &table{seed: maphash.MakeSeed(), sets: make([]set, sets)}
}

// get returns the bucket of a key, and creates it if it does not exist.
func (t *table) get(key *Key) *bucket {
	hash := key.hash(t.seed)
	s := &t.sets[hash&uint64(len(t.sets)-1)]
	if b := s.find(hash); b != nil {
		return b
	}
	return s.add(hash)
}

func (s *set) find(hash uint64) *bucket {
	for i := range s.buckets {
		if b := s.buckets[i].Load(); b != nil && b.hash == hash {
			return b
		}
	}
	return nil
}

// add stores a new bucket. If the set is full, it replaces the bucket that is full or will be full
// first. Calls that already hold that bucket continue to use it.
func (s *set) add(hash uint64) *bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(hash); b != nil {
		return b
	}
	place, soonest := 0, int64(math.MaxInt64)
	for i := range s.buckets {
		b := s.buckets[i].Load()
		if b == nil {
			place = i
			break
		}
		if full := b.full.Load(); full < soonest {
			place, soonest = i, full
		}
	}
	b := newBucket(hash)
	s.buckets[place].Store(b)
	return b
}
