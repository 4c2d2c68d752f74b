// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A model is SIEVE as its paper has it: a slice, oldest first, and a hand.
type model struct {
	keys    []string
	size    map[string]int
	visited map[string]bool
	hand    int
	max     int // bytes
	entries int
}

func (m *model) total() (n int) {
	for _, size := range m.size {
		n += size
	}
	return n
}

func (m *model) remove(i int) {
	delete(m.size, m.keys[i])
	delete(m.visited, m.keys[i])
	m.keys = slices.Delete(m.keys, i, i+1)
	if i < m.hand {
		m.hand--
	}
}

func (m *model) keep(key string, size int) {
	if i := slices.Index(m.keys, key); i >= 0 {
		m.remove(i)
	}
	if size > m.max {
		return
	}
	for len(m.keys) >= m.entries || m.total()+size > m.max {
		for {
			if m.hand >= len(m.keys) {
				m.hand = 0
			}
			key := m.keys[m.hand]
			if !m.visited[key] {
				break
			}
			m.visited[key] = false
			m.hand++
		}
		m.remove(m.hand)
	}
	if m.hand >= len(m.keys) { // before the new one comes, which is not where the hand goes next
		m.hand = 0
	}
	m.keys = append(m.keys, key)
	m.size[key] = size
}

func (s *store) find(key string) *entry { return s.shard([]byte(key)).find([]byte(key)) }

func TestTheStoreIsSieve(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := &model{size: map[string]int{}, visited: map[string]bool{}, max: 4000 + rng.IntN(4000), entries: 5 + rng.IntN(10)}
		s := newStore(m.entries, m.max)
		if len(s.shards) != 1 {
			t.Fatal("a small store has several shards")
		}
		until := time.Now().Add(time.Hour)
		for step := range 2000 {
			key := fmt.Sprint("key", rng.IntN(30))
			if rng.IntN(3) > 0 {
				found := s.find(key) != nil
				if _, want := m.size[key]; found != want {
					t.Fatalf("seed %d, step %d: %s is found: %v, want %v", seed, step, key, found, want)
				}
				if found {
					m.visited[key] = true
				}
				continue
			}
			e := &entry{key: key, until: until, reply: yodel.Encoded{Body: make([]byte, rng.IntN(m.max/4+rng.IntN(m.max)))}}
			m.keep(key, e.size())
			s.keep(e)
			sh := &s.shards[0]
			if sh.size != m.total() || len(sh.entries) != len(m.keys) || sh.size > m.max || len(sh.entries) > m.entries {
				t.Fatalf("seed %d, step %d: %d bytes in %d entries, want %d in %d", seed, step, sh.size, len(sh.entries), m.total(), len(m.keys))
			}
			var keys []string
			for e := sh.oldest; e != nil; e = e.newer {
				keys = append(keys, e.key)
			}
			if !slices.Equal(keys, m.keys) {
				t.Fatalf("seed %d, step %d: kept %v, want %v", seed, step, keys, m.keys)
			}
		}
	}
}

// What is too old goes before what is used.
func TestTheOldGoFirst(t *testing.T) {
	s, now := newStore(2, 1<<20), time.Now()
	s.keep(&entry{key: "old", made: now, until: now})
	s.keep(&entry{key: "good", made: now, until: now.Add(time.Hour)})
	s.find("old")
	s.keep(&entry{key: "new", made: now.Add(time.Minute), until: now.Add(time.Hour)})
	if s.find("old") != nil || s.find("good") == nil {
		t.Error("the wrong one went")
	}
}

func TestManyUseTheStoreAtOnce(t *testing.T) {
	s := newStore(2000, 20<<20)
	if len(s.shards) != maxShards {
		t.Fatalf("%d shards", len(s.shards))
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			for range 5000 {
				key := fmt.Sprint(rng.IntN(4000))
				if e := s.find(key); e != nil && e.key != key {
					t.Errorf("%s is found for %s", e.key, key)
				} else if e == nil {
					s.keep(&entry{key: key, until: time.Now().Add(time.Hour)})
				}
			}
		})
	}
	all.Wait()
	n := 0
	for i := range s.shards {
		n += len(s.shards[i].entries)
	}
	if n > 2000 {
		t.Errorf("%d entries, the bound is 2000", n)
	}
}
