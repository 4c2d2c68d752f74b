// SPDX-License-Identifier: Apache-2.0

package mux

// This file counts the memory that the peer makes this side hold, before it is allocated: see
// package memory. The count includes requests and their fields, incomplete messages, replies that
// wait to be sent, windows of streams and the data in them, decompressed bodies, metadata, and the
// names of methods.

const (
	// requestCost is what an open request takes in addition to its bytes: its state and its
	// context. Its goroutine is not counted.
	requestCost = 1 << 10
	// methodCost is what a method number takes in addition to its names.
	methodCost = 512
)

// giveLocked uncounts the bytes of a request.
func (ci *callsIn) giveLocked(n int) {
	c := ci.c
	ci.stash.Give(&c.memory, n)
	if c.lifetime.err != nil {
		ci.stash.Empty(&c.memory)
	}
}

// trimMemoryLocked returns granted bytes that an idle connection does not need.
func (ci *callsIn) trimMemoryLocked() {
	c := ci.c
	if ci.inOpen == 0 {
		ci.stash.Empty(&c.memory)
	}
	c.memory.Trim()
}

// closeMemoryLocked ends the counting when the connection has ended.
func (ci *callsIn) closeMemoryLocked() {
	c := ci.c
	ci.stash.Empty(&c.memory)
	if n := ci.replies.inOut; n != 0 {
		c.memory.Give(n)
		ci.replies.inOut = 0
	}
	c.memory.Close()
}

// Take counts n bytes that the request makes the owner hold. If Take returns false, the owner must
// not allocate these bytes. Give uncounts them.
func (r *Request) Take(n int) bool { return r.conn.memory.Take(n) }

// Give uncounts bytes that Take counted.
func (r *Request) Give(n int) { r.conn.memory.Give(n) }

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
	case !st.conn.memory.Take(n):
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
	st.conn.memory.Give(n)
}
