// SPDX-License-Identifier: Apache-2.0

// Package memory counts the bytes that peers make this side hold, before they are allocated. A
// server or a client has one Limit. Each of its connections has an Account in it, and calls that
// come over no connection take from the Limit itself. If Take returns false, the bytes must not be
// allocated. The caller gives back whatever it has taken.
package memory

import (
	"errors"
	"sync/atomic"
)

// ErrFull says that a peer's message needs more memory than this side allows its peers.
var ErrFull = errors.New("this side has no memory left for what its peers make it hold")

// A Limit bounds the bytes that the peers of all connections of a server or a client make it hold.
// Its methods may be called concurrently.
//
// A connection gets at most as much memory as remains free. So one greedy connection gets half of
// the limit. Each of n greedy connections gets 1/(n+1) of the limit, and the same amount remains
// for a new connection.
type Limit struct {
	limit int64
	used  atomic.Int64
}

// NewLimit returns a Limit of n bytes.
func NewLimit(n int) *Limit { return &Limit{limit: int64(n)} }

// Used returns how many bytes are granted to connections.
func (m *Limit) Used() int { return int(m.used.Load()) }

// smallAccount is how many bytes a connection may hold as long as the limit is not reached, however
// much other connections hold.
const smallAccount = 64 << 10

// grant grants a connection n more bytes. Used is how many bytes the connection then uses in all.
func (m *Limit) grant(n, used int64) bool {
	now := m.used.Add(n)
	if left := m.limit - now; left >= 0 && (used <= smallAccount || used <= left) {
		return true
	}
	m.used.Add(-n)
	return false
}

// Take counts n bytes for one call that comes over no connection. Give uncounts them.
func (m *Limit) Take(n int) bool { return m.grant(int64(n), int64(n)) }

// TakeFor is Take for a connection without an Account. Held is how many bytes the connection then
// holds in all.
func (m *Limit) TakeFor(n, held int) bool { return m.grant(int64(n), int64(held)) }

// Give uncounts bytes that Take or TakeFor counted.
func (m *Limit) Give(n int) { m.used.Add(-int64(n)) }
