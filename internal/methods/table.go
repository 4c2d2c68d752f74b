// SPDX-License-Identifier: Apache-2.0

// Package methods has what a client knows about the methods that it calls: the codecs with which it
// calls them, what servers say of them, and the counters of their calls. Its memory is bounded,
// because a gateway calls methods whose names strangers have chosen.
package methods

import (
	"hash/maphash"
	"sync/atomic"
)

const (
	// Max is how many names a Table has at most.
	Max = 4096

	bucketSize = 8 // the pointers of a cache line
	minSlots   = 4 * bucketSize
	// maxSlots leaves three quarters of the slots empty, so that buckets hardly ever overflow.
	maxSlots = 4 * Max
)

// A Table maps the names of methods to values. Beyond Max names, a new name takes the place of one
// that Get has not returned for long. This can happen earlier, but rarely does. Get and Add take
// constant time on average. The zero Table is empty. Get may be called concurrently, also with Add.
// Add must not be called concurrently.
type Table[V any] struct {
	// slots has the buckets, one after the other. Their number is a power of two. It is nil before
	// the first name.
	slots atomic.Pointer[[]slot[V]]
	seed  maphash.Seed // set before slots
	names int
	hand  int // where the last search for a name to remove ended
}

type slot[V any] struct{ atomic.Pointer[entry[V]] }

type entry[V any] struct {
	name  string
	value *V
	used  atomic.Bool // Get has returned it since the hand passed
}

// bucket returns the slots in which a name can be.
func (t *Table[V]) bucket(slots []slot[V], name string) []slot[V] {
	i := maphash.String(t.seed, name) & uint64(len(slots)-bucketSize)
	return slots[i : i+bucketSize]
}

// Get returns the value of a name, or nil. It takes no lock and allocates nothing. While Add runs,
// Get may return nil for a name that the Table has.
func (t *Table[V]) Get(name string) *V {
	slots := t.slots.Load()
	if slots == nil {
		return nil
	}
	in := t.bucket(*slots, name)
	for i := range in {
		if e := in[i].Load(); e != nil && e.name == name {
			if !e.used.Load() {
				e.used.Store(true)
			}
			return e.value
		}
	}
	return nil
}

// Add adds a name that the Table does not have. It returns the value of the name that it has
// removed, or nil.
func (t *Table[V]) Add(name string, value *V) (removed *V) {
	if t.slots.Load() == nil {
		t.seed = maphash.MakeSeed()
		t.slots.Store(new(make([]slot[V], minSlots)))
	}
	for {
		slots := *t.slots.Load()
		in := t.bucket(slots, name)
		to := empty(in)
		switch {
		case to == nil && len(slots) < maxSlots:
			t.grow(slots)
			continue
		case to == nil:
			to = t.leastUsed(in)
			removed = to.Load().value
		case t.names == Max:
			from := t.leastUsed(slots)
			removed = from.Load().value
			from.Store(nil)
		default:
			t.names++
		}
		to.Store(&entry[V]{name: name, value: value})
		return removed
	}
}

// empty returns an empty slot of a bucket, or nil.
func empty[V any](in []slot[V]) *slot[V] {
	for i := range in {
		if in[i].Load() == nil {
			return &in[i]
		}
	}
	return nil
}

// leastUsed returns the next slot whose name was not used since the hand passed it. Some slot must
// have a name.
func (t *Table[V]) leastUsed(in []slot[V]) *slot[V] {
	for passed := 0; ; {
		t.hand++
		s := &in[t.hand%len(in)]
		e := s.Load()
		if e == nil {
			continue
		}
		if passed++; !e.used.Swap(false) || passed > len(in) { // all of them are in use
			return s
		}
	}
}

// grow doubles the slots until every name has one.
func (t *Table[V]) grow(old []slot[V]) {
	slots := make([]slot[V], 2*len(old))
	for i := range old {
		if e := old[i].Load(); e != nil {
			empty(t.bucket(slots, e.name)).Store(e)
		}
	}
	t.slots.Store(&slots)
}
