// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// An entry is a cached reply. Only visited and its place in the queue change. The shard's lock
// guards the queue.
type entry struct {
	key        string // the arguments are its last part
	args       int    // the length of the arguments in key
	method     string
	tenant     string
	purges     uint64 // the store's count of purges when the call began
	made       time.Time
	until      time.Time // when the entry can no longer be used
	reply      yodel.Encoded
	header     yodel.Metadata
	trailer    yodel.Metadata
	attachment []byte

	visited      atomic.Bool // a hit has occurred since the hand passed
	older, newer *entry
}

// overhead is approximately what an entry takes in addition to its data, in bytes.
const overhead = 200

func (e *entry) size() int {
	n := overhead + len(e.key) + len(e.tenant) + len(e.reply.Body) + len(e.attachment)
	for _, md := range []yodel.Metadata{e.header, e.trailer} {
		for key, value := range md {
			n += len(key) + len(value)
		}
	}
	return n
}

// A store holds entries by key, in shards.
type store struct {
	seed   maphash.Seed
	shards []shard
	purges atomic.Uint64
}

// A shard is a queue of entries, newest first. A hand moves along the queue from the oldest entry.
// It skips an entry that was visited since it last passed, and evicts the first entry that was not.
type shard struct {
	mu                   sync.RWMutex
	entries              map[string]*entry
	newest, oldest, hand *entry
	size                 int
	maxEntries, maxSize  int
	evicted              uint64

	hits, misses, stale atomic.Uint64
}

// maxShards bounds the number of shards. MinEntries and minSize are the least that each shard may
// hold, because small shards waste space when replies differ in size.
const (
	maxShards  = 16
	minEntries = 64
	minSize    = 1 << 20
)

func newStore(maxEntries, maxSize int) *store {
	n := maxShards
	for n > 1 && (maxEntries/n < minEntries || maxSize/n < minSize) {
		n /= 2
	}
	s := &store{seed: maphash.MakeSeed(), shards: make([]shard, n)}
	for i := range s.shards {
		s.shards[i].entries = make(map[string]*entry)
		s.shards[i].maxEntries, s.shards[i].maxSize = maxEntries/n, maxSize/n
	}
	return s
}

func (s *store) shard(key []byte) *shard {
	return &s.shards[maphash.Bytes(s.seed, key)%uint64(len(s.shards))]
}

// find returns the entry with a key, or nil.
func (sh *shard) find(key []byte) *entry {
	sh.mu.RLock()
	e := sh.entries[string(key)]
	sh.mu.RUnlock()
	if e != nil && !e.visited.Load() {
		e.visited.Store(true)
	}
	return e
}

// keep stores an entry, and replaces the one with the same key. It does not store an entry that is
// larger than a shard, nor one whose call began before a purge, because its reply may be older than
// the purge.
func (s *store) keep(e *entry) {
	sh := &s.shards[maphash.String(s.seed, e.key)%uint64(len(s.shards))]
	size := e.size()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.purges != s.purges.Load() {
		return
	}
	if old := sh.entries[e.key]; old != nil {
		sh.remove(old)
	}
	if size > sh.maxSize {
		return
	}
	for len(sh.entries) >= sh.maxEntries || sh.size+size > sh.maxSize {
		sh.remove(sh.victim(e.made))
		sh.evicted++
	}
	sh.entries[e.key] = e
	sh.size += size
	if e.older = sh.newest; e.older != nil {
		e.older.newer = e
	} else {
		sh.oldest = e
	}
	sh.newest = e
}

// purge removes the entries that match, and returns how many it removed.
func (s *store) purge(match func(e *entry) bool) (n int) {
	s.purges.Add(1) // first, so that an entry stored from now on is either newer or found here
	for i := range s.shards {
		sh := &s.shards[i]
		for _, e := range sh.all() {
			if match(e) && sh.drop(e) {
				n++
			}
		}
	}
	return n
}

func (sh *shard) all() []*entry {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return slices.Collect(maps.Values(sh.entries))
}

// drop removes an entry if it is still in the shard.
func (sh *shard) drop(e *entry) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.entries[e.key] != e {
		return false
	}
	sh.remove(e)
	return true
}

// victim returns the entry to evict. The shard must not be empty.
func (sh *shard) victim(now time.Time) *entry {
	e := sh.hand
	for range 2 * len(sh.entries) { // hits may set the bits as fast as the hand clears them
		if e == nil {
			e = sh.oldest
		}
		if !e.visited.Load() || now.After(e.until) {
			break
		}
		e.visited.Store(false)
		e = e.newer
	}
	if e == nil {
		e = sh.oldest
	}
	sh.hand = e
	return e
}

func (sh *shard) remove(e *entry) {
	delete(sh.entries, e.key)
	sh.size -= e.size()
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		sh.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		sh.newest = e.older
	}
	if sh.hand == e {
		sh.hand = e.newer
	}
	e.older, e.newer = nil, nil
}
