// SPDX-License-Identifier: Apache-2.0

// Package collect collects a message that arrives in pieces, with other messages between them. Its
// memory is counted before it is allocated. A peer that announces a large message, and does not
// send it, makes this side hold little.
package collect

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/spares"
)

const (
	// FirstGrant is how many bytes of a large message must arrive before memory for the whole
	// message is allocated. Before that, the memory is a multiple of the bytes that have arrived.
	FirstGrant = 256 << 10
	// earlyGrant is that multiple if the memory is then large enough for the whole message.
	// Otherwise the multiple is lateGrant, and the message is copied once more later.
	earlyGrant, lateGrant = 16, 4
	// leastGrant is the least memory that is allocated for a message of at least that size.
	leastGrant = 4 << 10
)

// The errors of messages that do not have the announced size.
var (
	ErrLonger  = errors.New("it is longer than announced")
	ErrShorter = errors.New("it is shorter than announced")
)

// errDropped is the error of a message that is no longer wanted. Its receiver does not see it.
var errDropped = errors.New("it was dropped")

// Memory is where a message gets its memory.
type Memory struct {
	Mu      sync.Locker // guards taken and filling of the Messages
	Account *memory.Account
	Spares  *spares.Set
}

// A Message is a message that arrives in pieces. The goroutine that reads the connection owns it
// until it is complete. Other goroutines may drop it meanwhile. A Message whose Memory is the zero
// value stands for messages that are not wanted; it has an Err from the beginning.
type Message struct {
	Of   Memory // does not change
	Buf  []byte // what has arrived
	Size int    // the length of Buf when all pieces have arrived
	Err  error  // why the message cannot be read: a broken piece, or no memory

	taken   int         // bytes counted for Buf; guarded by Mu
	filling bool        // see Fill; guarded by Mu
	dropped atomic.Bool // the message is no longer wanted; changed with Mu held
}

// Begin begins a message with size bytes. Opening is the beginning of it, and first is how many
// further bytes have arrived with it. The caller adds them. Begin returns false if there is no
// memory.
func (m *Message) Begin(opening []byte, size, first int) bool {
	m.Size = size
	n := len(opening) + first
	if n >= leastGrant {
		n = m.grant(n)
	} // the pieces that follow decide how much memory is allocated
	if !m.grow(n) {
		return false
	}
	m.Buf = append(m.Buf, opening...)
	return true
}

// Add appends a piece.
func (m *Message) Add(piece []byte) {
	if m.MakeRoom(len(piece)) {
		m.Buf = append(m.Buf, piece...)
	}
}

// MakeRoom makes room for n more bytes in Buf. It returns false if the message would be longer than
// announced, or if there is no memory.
func (m *Message) MakeRoom(n int) bool {
	n += len(m.Buf)
	if n > m.Size {
		m.Err = ErrLonger
		return false
	}
	return n <= cap(m.Buf) || m.grow(m.grant(n))
}

// grant returns how many bytes to allocate when n bytes have arrived.
func (m *Message) grant(n int) int {
	if n > FirstGrant || m.Size <= earlyGrant*n {
		return max(n, m.Size)
	}
	return max(n, min(m.Size, max(leastGrant, lateGrant*n)))
}

// grow moves the message to memory of n bytes. It counts these bytes before it allocates them.
func (m *Message) grow(n int) bool {
	of := &m.Of
	of.Mu.Lock()
	switch {
	case m.dropped.Load():
		m.Err = errDropped
	case !of.Account.Take(n):
		m.Err = memory.ErrFull
	default:
		m.taken += n
	}
	of.Mu.Unlock()
	if m.Err != nil {
		return false
	}
	buf := append(of.Spares.Take(n), m.Buf...)
	of.Spares.Give(m.Buf)
	old := cap(m.Buf)
	m.Buf = buf
	if old > 0 {
		of.Mu.Lock()
		if !m.dropped.Load() {
			m.taken, old = n, m.taken-n
			of.Account.Give(old)
		}
		of.Mu.Unlock()
	}
	return true
}

// Fill says that the reader is going to read bytes directly into Buf. Until Filled, it holds the
// memory of the message even if the message is dropped.
func (m *Message) Fill() {
	m.Of.Mu.Lock()
	m.filling = true
	m.Of.Mu.Unlock()
}

// Filled ends Fill. If the message was dropped meanwhile, its memory is garbage now.
func (m *Message) Filled() {
	m.Of.Mu.Lock()
	defer m.Of.Mu.Unlock()
	m.filling = false
	if m.dropped.Load() {
		m.Of.Account.Keep(-m.taken)
		m.Of.Account.Give(m.taken)
		m.taken = 0
	}
}

// Complete says that the last piece has arrived.
func (m *Message) Complete() {
	if m.Err == nil && len(m.Buf) != m.Size {
		m.Err = ErrShorter
	}
}

// Dropped reports whether the message is no longer wanted.
func (m *Message) Dropped() bool { return m.dropped.Load() }

// Drop uncounts the memory of a message that is no longer wanted, or that was passed to its
// receiver. The tables of the owner must no longer have the message, so that its memory is garbage
// then.
func (m *Message) Drop() {
	if m.Of.Mu != nil {
		m.Of.Mu.Lock()
		defer m.Of.Mu.Unlock()
		m.DropLocked()
	}
}

// DropLocked is Drop for a caller that holds Mu. It does nothing for a nil Message.
func (m *Message) DropLocked() {
	if m == nil || m.Of.Mu == nil || m.dropped.Load() {
		return
	}
	m.dropped.Store(true)
	if m.filling { // Filled uncounts it
		m.Of.Account.Keep(m.taken)
		return
	}
	m.Of.Account.Give(m.taken)
	m.taken = 0
}

// TakeOverLocked makes the caller, which holds Mu, responsible for uncounting the memory of a
// complete message. It returns how many bytes that are.
func (m *Message) TakeOverLocked() (taken int) {
	m.dropped.Store(true)
	taken, m.taken = m.taken, 0
	return taken
}
