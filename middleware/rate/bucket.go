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

// birth is what times are counted from, on the monotonic clock.
var birth = time.Now()

func since(t time.Time) int64 { return int64(t.Sub(birth)) }

// longAgo is before every time, and so that what is reckoned with it does not overflow.
const longAgo = math.MinInt64 / 4

// A bucket holds what one key may use. A full one is as good as none.
type bucket struct {
	hash uint64 // of the key

	full    atomic.Int64  // when it will be full again, were there no more calls
	waiting atomic.Int32  // calls that wait for their turn
	turn    chan struct{} // who is in it has the turn; those who wait to get in do so in the order in which they came

	spare atomic.Int64 // calls that the store has admitted and that have not been made
	empty atomic.Int64 // until when there is nothing to be had from the store
}

func newBucket(hash uint64) *bucket {
	b := &bucket{hash: hash, turn: make(chan struct{}, 1)}
	b.full.Store(longAgo)
	b.empty.Store(longAgo)
	return b
}

// take lets a call pass if it may.
func (b *bucket) take(now, interval, burst int64) bool {
	return b.takeSome(now, interval, burst, 1) == 1
}

// takeSome lets up to n calls pass, and returns how many.
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

// wait returns how long it is until a call may pass that has others ahead of it.
func (b *bucket) wait(now, interval, burst, ahead int64) int64 {
	before := min(ahead+1, math.MaxInt64/8/interval) * interval
	return max(max(b.full.Load(), now)+before-burst-now, 0)
}

// enter waits for the turn, until a time or until ctx ends, and reports whether it came. Leave ends
// it.
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

// ways is among how many buckets a key has its place.
const ways = 8

// A table holds the buckets of the keys that were used last. It does not keep the keys, which may
// be long: of two whose hashes are equal (64 bits, which nobody outside can reckon) both count
// together.
type table struct {
	seed maphash.Seed
	sets []set
}

type set struct {
	mu      sync.Mutex // held to put a bucket in
	buckets [ways]atomic.Pointer[bucket]
}

// maxKeys bounds how many keys a table is for: its memory is allocated at once.
const maxKeys = 1 << 24

func newTable(keys int) *table {
	sets := 1 << bits.Len(uint(min(max(keys, 1), maxKeys)-1)/ways)
	return &table{seed: maphash.MakeSeed(), sets: make([]set, sets)}
}

// get returns the bucket of a key, which it makes if need be.
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

// add puts in a new bucket, in place of the one that is full, or will be soonest. Whoever still
// holds that one goes on with it.
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
