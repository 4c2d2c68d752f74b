// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"
	"sync"
	"time"
)

// Contents gives access to the caches of all clients and servers whose Options name it. The zero
// value is ready. It may be used concurrently.
type Contents struct {
	mu     sync.Mutex
	stores []*store
}

// Stats describes the caches of a Contents.
type Stats struct {
	Entries int    `json:"entries"`
	Bytes   int    `json:"bytes"`  // including the keys and 200 bytes for each entry
	Hits    uint64 `json:"hits"`   // calls answered from the cache
	Misses  uint64 `json:"misses"` // calls that were made
	// misses that were answered with an expired reply, because the service was unavailable
	Stale   uint64 `json:"stale"`
	Evicted uint64 `json:"evicted"` // replies that were removed to make room
}

// An Entry is a cached reply.
type Entry struct {
	Method string
	Tenant string
	Args   []byte // the encoded arguments of the call
	Made   time.Time
	Size   int // bytes
}

// Stats returns the sum over all caches.
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

// Purge removes the replies of methods, or all replies if methods is empty. It returns how many it
// removed. The reply of a call in flight is returned to its caller and not cached. With package
// coalesce below, a later call may still share a call that began before the purge.
func (c *Contents) Purge(methods ...string) int {
	return c.purge(func(e *entry) bool { return len(methods) == 0 || slices.Contains(methods, e.method) })
}

// PurgeFunc is Purge for the replies for which match returns true, for example those to one
// request. To replace a single reply, a call with Fresh is enough.
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
