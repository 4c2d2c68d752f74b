// SPDX-License-Identifier: Apache-2.0

package once

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/defaults"
)

// MemoryOptions bounds the cost of a Memory. The zero value has sensible defaults.
type MemoryOptions struct {
	// MaxKeys bounds the number of remembered keys. Each takes about 300 bytes in addition to its
	// reply. A key is never forgotten early: when the limit is reached, calls with new keys are
	// refused. Default 262,144.
	MaxKeys int
	// MaxBytes bounds the bytes of all replies. Beyond it, the replies that expire first are
	// forgotten, but not that their calls were executed. Default 64 MiB.
	MaxBytes int
}

// A Memory is a Store in the memory of this process. It ends with the process.
type Memory struct {
	MemoryOptions

	name  string
	parts [64]part
	keys  atomic.Int64
	bytes atomic.Int64
}

// A part holds a share of the keys.
type part struct {
	mu      sync.Mutex
	entries map[string]*entry
	settled []*entry // entries with an outcome, in the order in which they expire
	short   int      // how many entries at the beginning of settled were shortened or have no reply to give up
}

type entry struct {
	key, owner string
	value      []byte
	settled    bool
	ends       time.Time // when a settled entry expires
}

// NewMemory returns a store in memory. Nil means the default MemoryOptions.
func NewMemory(o *MemoryOptions) *Memory {
	m := &Memory{name: "process:" + rand.Text()}
	if o != nil {
		m.MemoryOptions = *o
	}
	m.MaxKeys = defaults.Positive(m.MaxKeys, 1<<18)
	m.MaxBytes = defaults.Positive(m.MaxBytes, 64<<20)
	return m
}

func (m *Memory) part(key string) *part {
	h := uint32(2166136261) // FNV-1a
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return &m.parts[h%uint32(len(m.parts))]
}

// Claim implements Store. The owner of a claimed key lives as long as this process.
func (m *Memory) Claim(ctx context.Context, key, owner string, value []byte, _, keep time.Duration) (found []byte, alive bool, whole time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, 0, err
	}
	now := time.Now()
	if found = m.find(key, now); found != nil {
		return found, true, 0, nil
	}
	if m.keys.Add(1) > int64(m.MaxKeys) {
		if after := m.sweep(now); m.keys.Load() > int64(m.MaxKeys) {
			m.keys.Add(-1)
			e := yodel.Errorf(yodel.ResourceExhausted, "%d idempotency keys are remembered, which is the limit", m.MaxKeys)
			e.RetryAfter = after
			return nil, false, 0, e
		}
	}
	p := m.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[key]; e != nil { // another call has claimed the key meanwhile
		m.keys.Add(-1)
		return e.value, true, 0, nil
	}
	if p.entries == nil {
		p.entries = make(map[string]*entry)
	}
	p.entries[key] = &entry{key: key, owner: owner, value: slices.Clone(value)}
	m.bytes.Add(int64(len(value)))
	return nil, false, keep, nil
}

// find returns the value of a key, or nil. It also removes expired entries.
func (m *Memory) find(key string, now time.Time) []byte {
	p := m.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	m.forget(p, now)
	if e := p.entries[key]; e != nil {
		return e.value
	}
	return nil
}

// forget removes the expired entries of p, whose lock is held.
func (m *Memory) forget(p *part, now time.Time) {
	n := 0
	for n < len(p.settled) && !now.Before(p.settled[n].ends) {
		m.remove(p, p.settled[n])
		p.settled[n] = nil
		n++
	}
	p.settled, p.short = p.settled[n:], max(p.short-n, 0)
}

// remove deletes an entry of p, whose lock is held.
func (m *Memory) remove(p *part, e *entry) {
	delete(p.entries, e.key)
	m.keys.Add(-1)
	m.bytes.Add(-int64(len(e.value)))
}

// sweep removes expired entries, and returns when the next ones expire.
func (m *Memory) sweep(now time.Time) (after time.Duration) {
	after = time.Second // if all calls are being executed
	for i := range m.parts {
		p := &m.parts[i]
		p.mu.Lock()
		m.forget(p, now)
		if len(p.settled) > 0 {
			after = min(after, p.settled[0].ends.Sub(now))
		}
		p.mu.Unlock()
	}
	return after
}

// Identity returns the unique name of this memory, which exists as long as the process.
func (m *Memory) Identity(context.Context) (string, error) { return m.name, nil }

// Renew implements Store.
func (m *Memory) Renew(context.Context, string, string, time.Duration) error { return nil }

// Put implements Store.
func (m *Memory) Put(_ context.Context, key, owner string, value []byte, keep time.Duration) error {
	m.settle(key, owner, value, time.Now().Add(keep))
	for p := m.part(key); m.bytes.Load() > int64(m.MaxBytes); {
		if !m.shorten(p) && !m.shortenAny() {
			break // no reply is left
		}
	}
	return nil
}

func (m *Memory) shortenAny() bool {
	for i := range m.parts {
		if m.shorten(&m.parts[i]) {
			return true
		}
	}
	return false
}

func (m *Memory) settle(key, owner string, value []byte, ends time.Time) {
	p := m.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[key]
	if e == nil || e.owner != owner || e.settled {
		return
	}
	m.bytes.Add(int64(len(value) - len(e.value)))
	e.value, e.settled, e.ends = slices.Clone(value), true, ends
	// It is nearly always the last place.
	i, _ := slices.BinarySearchFunc(p.settled, ends, func(e *entry, ends time.Time) int {
		return cmp.Or(e.ends.Compare(ends), -1)
	})
	p.settled, p.short = slices.Insert(p.settled, i, e), min(p.short, i)
}

// shorten removes the oldest reply of a part, and reports whether there was one.
func (m *Memory) shorten(p *part) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.short < len(p.settled) {
		e := p.settled[p.short]
		p.short++
		if short := shortened(e.value); len(short) < len(e.value) {
			m.bytes.Add(int64(len(short) - len(e.value)))
			e.value = short
			return true
		}
	}
	return false
}

// Drop implements Store.
func (m *Memory) Drop(_ context.Context, key, owner string) error {
	p := m.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[key]; e != nil && e.owner == owner && !e.settled {
		m.remove(p, e)
	}
	return nil
}
