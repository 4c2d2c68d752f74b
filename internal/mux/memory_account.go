// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
)

// This file counts the memory that peers make this side hold, before it is allocated. A server, or
// a client, has one Memory, and each of its connections has a holding in that. What counts:
// requests and their fields, messages that have not come whole, replies that wait to be sent,
// windows of streams and what has come in them, decompressed bodies, metadata, the names of
// methods.

// ErrMemory says that a peer's message needs more memory than this side lets its peers take.
var ErrMemory = errors.New("this side has no memory left for what its peers make it hold")

// A Memory bounds the bytes that all connections of a server, or of a client, make it hold
// together. Its methods may be called concurrently.
//
// A single connection gets at most as much as is left for all others: one that takes all it can get
// has half, and of n such connections each has a part of n+1, so that there is always room for a
// newcomer.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a bound of limit bytes.
func NewMemory(limit int) *Memory { return &Memory{limit: int64(limit)} }

// Used returns how many bytes the connections have been granted.
func (m *Memory) Used() int { return int(m.used.Load()) }

// smallHolding is what a connection may hold as long as there is anything left, however much the
// others have.
const smallHolding = 64 << 10

// grant lets a connection have n bytes more, which is used in all then.
func (m *Memory) grant(n, used int64) bool {
	now := m.used.Add(n)
	if left := m.limit - now; left >= 0 && (used <= smallHolding || used <= left) {
		return true
	}
	m.used.Add(-n)
	return false
}

// A holding is the memory that one connection's peer makes this side hold. It takes from Memory in
// pieces, so that most calls of take and give touch nothing that other connections use.
type holding struct {
	of      *Memory // nil for none
	limit   int64   // of this connection
	used    atomic.Int64
	granted atomic.Int64 // by Memory; at least used, but for a moment

	closed atomic.Bool // the connection has ended

	mu   sync.Mutex // held while granted changes
	kept int        // of used, until the connection ends
}

const (
	// mostGrant is how much a holding takes from Memory ahead of its need, at most.
	mostGrant = 64 << 10
	// leastGrantAhead is the least of it.
	leastGrantAhead = 4 << 10
)

func (h *holding) init(of *Memory, limit int) {
	h.of, h.limit = of, int64(limit)
	if limit <= 0 {
		h.limit = math.MaxInt64
	}
}

// take counts n bytes that are about to be allocated. It returns false when they must not be.
func (h *holding) take(n int) bool {
	if used := h.used.Add(int64(n)); used <= h.granted.Load() {
		return true
	}
	if h.extend(false) {
		return true
	}
	h.give(n)
	return false
}

// force counts n bytes that cannot be refused. Others are refused because of them.
func (h *holding) force(n int) {
	if h.used.Add(int64(n)) > h.granted.Load() {
		h.extend(true)
	}
}

// keep counts n bytes that are held until the connection ends; less than 0 when some are not held
// any more.
func (h *holding) keep(n int) bool {
	if !h.take(n) {
		return false
	}
	h.mu.Lock()
	ended := h.closed.Load()
	if !ended {
		h.kept += n
	}
	h.mu.Unlock()
	if ended {
		h.give(n)
	}
	return !ended
}

// extend has more granted.
func (h *holding) extend(force bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	used, granted := h.used.Load(), h.granted.Load()
	need := used - granted
	switch {
	case need <= 0:
		return true
	case force:
	case used > h.limit:
		return false
	}
	more := need
	if !h.closed.Load() && used <= h.limit {
		more += min(max(granted, leastGrantAhead), mostGrant)
	}
	switch {
	case h.of == nil:
	case h.of.grant(more, used):
	case h.of.grant(need, used):
		more = need
	case force:
		more = need
		h.of.used.Add(need)
	default:
		return false
	}
	h.granted.Add(more)
	return true
}

// give takes back what was taken.
func (h *holding) give(n int) {
	used := h.used.Add(-int64(n))
	if h.closed.Load() || h.granted.Load()-used > 3*mostGrant {
		h.shrink(mostGrant)
	}
}

// shrink gives back what is granted beyond what is used and ahead.
func (h *holding) shrink(ahead int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Load() {
		ahead = 0
	}
	if back := h.granted.Load() - h.used.Load() - ahead; back > 0 {
		h.granted.Add(-back)
		if h.of != nil {
			h.of.used.Add(-back)
		}
	}
}

// close says that the connection has ended. What is still in use is given back by those that use
// it.
func (h *holding) close() {
	h.mu.Lock()
	h.closed.Store(true)
	kept := h.kept
	h.kept = 0
	h.mu.Unlock()
	h.used.Add(-int64(kept))
	h.shrink(0)
}

const (
	// requestCost is what an open request takes beside its bytes, its goroutine excepted: what is
	// known of it, and its context.
	requestCost = 1 << 10
	// methodCost is what a method number takes beside its names.
	methodCost = 512
	// mostStash is how much of the holding is kept for the next requests, in Conn.stash.
	mostStash = 64 << 10
)

// takeLocked is holding.take for a request. Most requests take what an earlier one has given back,
// which costs an addition.
func (c *Conn) takeLocked(n int) bool {
	if c.stash >= n {
		c.stash -= n
		return true
	}
	if ahead := min(7*n, mostStash/2); c.memory.take(n + ahead) {
		c.stash += ahead
		return true
	}
	return c.memory.take(n)
}

// giveLocked gives back what takeLocked took.
func (c *Conn) giveLocked(n int) {
	switch c.stash += n; {
	case c.err != nil:
		c.memory.give(c.stash)
		c.stash = 0
	case c.stash > mostStash:
		c.memory.give(c.stash - mostStash/2)
		c.stash = mostStash / 2
	}
}

// trimMemoryLocked gives back what an idle connection has beyond its need.
func (c *Conn) trimMemoryLocked() {
	if c.inOpen == 0 {
		c.memory.give(c.stash)
		c.stash = 0
	}
	c.memory.shrink(leastGrantAhead)
}

// closeMemoryLocked is called when the connection has ended.
func (c *Conn) closeMemoryLocked() {
	c.memory.give(c.stash + c.replies.inOut)
	c.stash = 0
	if c.replies.inOut != 0 {
		c.replies.inOut = 0
	}
	c.memory.close()
}

// Take counts n bytes that the peer of one call makes the owner hold, for the connections together.
// It returns false when they must not be allocated. Give takes them back.
func (m *Memory) Take(n int) bool { return m.grant(int64(n), int64(n)) }

// Give takes back what was counted with Take.
func (m *Memory) Give(n int) { m.used.Add(-int64(n)) }

// Take counts n bytes that the request makes the owner hold. It returns false when they must not be
// allocated. Give takes them back.
func (r *Request) Take(n int) bool { return r.conn.memory.take(n) }

// Give takes back what was counted with Take.
func (r *Request) Give(n int) { r.conn.memory.give(n) }

// Take counts n bytes for a message of the stream. It returns false when they must not be
// allocated. Give takes them back, and so does the end of the call.
func (st *Stream) Take(n int) bool {
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	switch {
	case st.gone: // what is still received has come before, and nobody else waits for its memory
		return true
	case !st.conn.memory.take(n):
		return false
	}
	st.taken += n
	return true
}

// Give takes back what was counted with Take.
func (st *Stream) Give(n int) {
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	n = min(n, st.taken)
	st.taken -= n
	st.conn.memory.give(n)
}

// Keep counts n bytes that are held until the connection ends. It returns false when they must not
// be allocated.
func (c *Conn) Keep(n int) bool { return c.memory.keep(n) }
