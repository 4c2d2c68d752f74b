// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
)

// This file counts the memory that peers make this side hold, before it is allocated. A server or a
// client has one Memory, and each of its connections has a holding in it. The count includes
// requests and their fields, incomplete messages, replies that wait to be sent, windows of streams
// and the data in them, decompressed bodies, metadata, and the names of methods.

// ErrMemory says that a peer's message needs more memory than this side allows its peers.
var ErrMemory = errors.New("this side has no memory left for what its peers make it hold")

// A Memory bounds the bytes that the peers of all connections of a server or a client make it hold.
// Its methods may be called concurrently.
//
// A connection gets at most as much memory as remains free. So one greedy connection gets half of
// the limit. Each of n greedy connections gets 1/(n+1) of the limit, and the same amount remains
// for a new connection.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a Memory with a limit in bytes.
func NewMemory(limit int) *Memory { return &Memory{limit: int64(limit)} }

// Used returns how many bytes are granted to connections.
func (m *Memory) Used() int { return int(m.used.Load()) }

// smallHolding is how many bytes a connection may hold as long as the limit is not reached, however
// much other connections hold.
const smallHolding = 64 << 10

// grant grants a connection n more bytes. Used is how many bytes the connection then uses in all.
func (m *Memory) grant(n, used int64) bool {
	now := m.used.Add(n)
	if left := m.limit - now; left >= 0 && (used <= smallHolding || used <= left) {
		return true
	}
	m.used.Add(-n)
	return false
}

// A holding is the memory that the peer of one connection makes this side hold. It takes memory
// from its Memory in chunks, so that most calls of take and give touch no state that is shared by
// connections.
type holding struct {
	of      *Memory // nil for no Memory
	limit   int64   // the limit of this connection
	used    atomic.Int64
	granted atomic.Int64 // bytes granted by Memory; at least used, except while take or force raises used

	closed atomic.Bool // the connection has ended

	mu   sync.Mutex // guards kept and changes of granted; taken after Conn.mu
	kept int        // the part of used that is held until the connection ends
}

const (
	// mostGrant is the most that a holding takes from Memory in advance.
	mostGrant = 64 << 10
	// leastGrantAhead is the least that a holding takes from Memory in advance.
	leastGrantAhead = 4 << 10
)

func (h *holding) init(of *Memory, limit int) {
	h.of, h.limit = of, int64(limit)
	if limit <= 0 {
		h.limit = math.MaxInt64
	}
}

// take counts n bytes that are about to be allocated. If it returns false, they must not be
// allocated.
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

// force counts n bytes that cannot be refused. Later calls of take may fail because of them.
func (h *holding) force(n int) {
	if h.used.Add(int64(n)) > h.granted.Load() {
		h.extend(true)
	}
}

// holdUntilEnd counts n bytes that are held until the connection ends. A negative n uncounts bytes.
// It returns false if the bytes must not be allocated.
func (h *holding) holdUntilEnd(n int) bool {
	return h.take(n) && h.keep(n)
}

// keep makes n bytes that are counted count until the connection ends. If it has ended, keep
// uncounts them and returns false.
func (h *holding) keep(n int) bool {
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

// extend takes more memory from Memory.
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

// give uncounts n bytes.
func (h *holding) give(n int) {
	used := h.used.Add(-int64(n))
	if h.closed.Load() || h.granted.Load()-used > 3*mostGrant {
		h.shrink(mostGrant)
	}
}

// shrink returns granted bytes to Memory. It keeps the bytes in use, and ahead bytes in advance.
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

// close marks that the connection has ended. Bytes that are still in use count until give uncounts
// them.
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
	// requestCost is what an open request takes in addition to its bytes: its state and its
	// context. Its goroutine is not counted.
	requestCost = 1 << 10
	// methodCost is what a method number takes in addition to its names.
	methodCost = 512
	// mostStash is the limit of callsIn.stash, the part of the holding that is kept for the next
	// requests.
	mostStash = 64 << 10
)

// takeLocked is holding.take for a request. Most requests take bytes that an earlier request has
// returned to the stash, which costs one addition.
func (ci *callsIn) takeLocked(n int) bool {
	c := ci.c
	if ci.stash >= n {
		ci.stash -= n
		return true
	}
	if ahead := min(7*n, mostStash/2); c.memory.take(n + ahead) {
		ci.stash += ahead
		return true
	}
	return c.memory.take(n)
}

// giveLocked uncounts bytes that takeLocked counted.
func (ci *callsIn) giveLocked(n int) {
	c := ci.c
	switch ci.stash += n; {
	case c.lifetime.err != nil:
		c.memory.give(ci.stash)
		ci.stash = 0
	case ci.stash > mostStash:
		c.memory.give(ci.stash - mostStash/2)
		ci.stash = mostStash / 2
	}
}

// trimMemoryLocked returns granted bytes that an idle connection does not need.
func (ci *callsIn) trimMemoryLocked() {
	c := ci.c
	if ci.inOpen == 0 {
		c.memory.give(ci.stash)
		ci.stash = 0
	}
	c.memory.shrink(leastGrantAhead)
}

// closeMemoryLocked ends the counting when the connection has ended.
func (ci *callsIn) closeMemoryLocked() {
	c := ci.c
	c.memory.give(ci.stash + ci.replies.inOut)
	ci.stash = 0
	if ci.replies.inOut != 0 {
		ci.replies.inOut = 0
	}
	c.memory.close()
}

// Take counts n bytes for one call that does not come over a connection of this package. If Take
// returns false, the caller must not allocate these bytes. Give uncounts them.
func (m *Memory) Take(n int) bool { return m.grant(int64(n), int64(n)) }

// TakeFor is Take for a connection that is not of this package. Held is how many bytes the
// connection then holds in all.
func (m *Memory) TakeFor(n, held int) bool { return m.grant(int64(n), int64(held)) }

// Give uncounts bytes that Take or TakeFor counted.
func (m *Memory) Give(n int) { m.used.Add(-int64(n)) }

// Take counts n bytes that the request makes the owner hold. If Take returns false, the owner must
// not allocate these bytes. Give uncounts them.
func (r *Request) Take(n int) bool { return r.conn.memory.take(n) }

// Give uncounts bytes that Take counted.
func (r *Request) Give(n int) { r.conn.memory.give(n) }

// Take counts n bytes for a message of the stream. If Take returns false, the caller must not
// allocate these bytes. Give and the end of the call uncount them.
func (st *Stream) Take(n int) bool {
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	switch {
	// Only messages that arrived before the end of the call can still be received. Their bytes are
	// not counted, because no other stream waits for their memory.
	case st.ended:
		return true
	case !st.conn.memory.take(n):
		return false
	}
	st.taken += n
	return true
}

// Give uncounts bytes that Take counted.
func (st *Stream) Give(n int) {
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	n = min(n, st.taken)
	st.taken -= n
	st.conn.memory.give(n)
}
