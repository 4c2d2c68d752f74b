// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"
	"sync"
	"time"
)

// Contents is what caches keep: those of the clients and servers whose Options name it, for as long
// as there is the Contents. Its zero value is ready. It may be used concurrently.
type Contents struct {
	mu     sync.Mutex
	stores []*store
}

// Stats is what is kept, and what has been done with it.
type Stats struct {
	Entries int    `json:"entries"`
	Bytes   int    `json:"bytes"`  // with the keys and 200 for each entry
	Hits    uint64 `json:"hits"`   // calls that were answered
	Misses  uint64 `json:"misses"` // calls that were made
	// misses that were answered with a reply that was too old, because the service was away
	Stale   uint64 `json:"stale"`
	Evicted uint64 `json:"evicted"` // replies that had to make room for others
}

// An Entry is a reply that is kept.
type Entry struct {
	Method string
	Tenant string
	Args   []byte // of the call, encoded
	Made   time.Time
	Size   int // bytes
}

// Stats returns the counts of all caches together.
func (c *Contents) Stats() Stats {
	var sum Stats
	for _, s := range c.all() {
		for i := range s.shards {
			s.shards[i].count(&sum)
		}
	}
	return sum
}

func (sh *shard) count(sum *Stats) {
	sh.mu.RLock()
	sum.Entries += len(sh.entries)
	sum.Bytes += sh.size
	sum.Evicted += sh.evicted
	sh.mu.RUnlock()
	sum.Hits += sh.hits.Load()
	sum.Misses += sh.misses.Load()
	sum.Stale += sh.stale.Load()
}

// Purge removes the replies of methods, or all when none is named, and returns how many these were.
// A call that is under way meanwhile is answered with what it gets, and that is not kept. Package
// coalesce below may let a call that is made afterwards share one that was made before.
func (c *Contents) Purge(methods ...string) int {
	return c.purge(func(e *entry) bool { return len(methods) == 0 || slices.Contains(methods, e.method) })
}

// PurgeFunc removes the replies that match chooses, as Purge does: those to a certain request, for
// example. Where one is to be replaced, a call with Fresh does so too.
func (c *Contents) PurgeFunc(match func(e Entry) bool) int {
	return c.purge(func(e *entry) bool {
		return match(Entry{Method: e.method, Tenant: e.tenant, Args: []byte(e.key[len(e.key)-e.args:]), Made: e.made, Size: e.size()})
	})
}

func (c *Contents) purge(match func(e *entry) bool) (n int) {
	for _, s := range c.all() {
		n += s.purge(match)
	}
	return n
}

func (c *Contents) all() []*store {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.stores)
}

func (c *Contents) add(s *store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.stores, s) {
		c.stores = append(c.stores, s)
	}
}
