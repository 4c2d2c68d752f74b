// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"
	"math/bits"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Memory for large messages. At 1 MiB a message, allocating, clearing and collecting it takes more CPU time than all that a call does
// beside, so it is used again when nobody keeps it. What waits for that is no more than was in use at once, and goes with the second
// garbage collection that it waits through. A sync.Pool does not do: what one processor has put there the others do not find, and each
// time that costs 16 MiB.

const (
	// minLarge is the least that is kept so, and maxLarge the most.
	minLarge, maxLarge = 64 << 10, 64 << 20
	// pageSize is what large memory is rounded up to, as the runtime does.
	pageSize = 8 << 10
)

// spareMemory is for each quarter of a power of two.
var spareMemory [4 * (26 - 16 + 1)]spares

type spares struct {
	sync.Mutex
	free [][]byte
	idle int // of free have not been in use since the last collection
}

// quarter returns the spares for memory of n bytes.
func quarter(n int) *spares {
	power := bits.Len(uint(n)) - 1
	return &spareMemory[4*(power-16)+n>>(power-2)&3]
}

// take returns memory of n bytes or more, or nil.
func (s *spares) take(n int) []byte {
	s.Lock()
	defer s.Unlock()
	for i, b := range slices.Backward(s.free) {
		if cap(b) >= n {
			s.free = slices.Delete(s.free, i, i+1)
			s.idle = min(s.idle, len(s.free))
			return b
		}
	}
	return nil
}

func (s *spares) give(b []byte) {
	s.Lock()
	defer s.Unlock()
	s.free = append(s.free, b)
}

// drop drops those that have been idle since the last collection.
func (s *spares) drop() {
	s.Lock()
	defer s.Unlock()
	s.free = slices.Delete(s.free, 0, s.idle)
	s.idle = len(s.free)
}

// takeMemory returns memory of at least n bytes, with anything in it.
func takeMemory(n int) []byte {
	if n < minLarge || n > maxLarge {
		return make([]byte, 0, n)
	}
	keepReserve()
	n = (n + pageSize - 1) &^ (pageSize - 1)
	if b := quarter(n).take(n); b != nil {
		return b
	}
	return uncleared(n)
}

// giveMemory gives back memory that nobody uses any more.
func giveMemory(b []byte) {
	if n := cap(b); n >= minLarge && n <= maxLarge {
		quarter(n).give(b[:0])
		keepReserve() // it has to go again
	}
}

// uncleared allocates memory as it is. Clearing 16 MiB holds up everybody on a connection for 2 ms, and makes reading as much take a
// sixth longer. The library does the same for strings that are built.
func uncleared(n int) []byte {
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)                                            // an empty string has no address
	return unsafe.Slice(unsafe.StringData(b.String()), n)[:0] //nolint:gosec // b has n bytes, and nobody else sees its string
}

// What a handler may keep is not used again, and in a small process the collector would run after every 4 MiB of that: with messages of
// 64 KiB it took more CPU time than the server did for the calls (105 µs of a call instead of 48). So while large messages come, there is
// reserveSize of memory that nothing is ever written to. It takes no room, because the system gives only what is touched, but counts
// as live: the next collection comes after as much again, which does take room. It goes with the second collection that no large
// message came before.
const reserveSize = 8 << 20

var reserve struct {
	wanted atomic.Bool // large memory was taken or given back since the last collection
	sync.Mutex
	memory []byte // nil when nobody looks at the collections
}

func keepReserve() {
	r := &reserve
	if r.wanted.Load() {
		return
	}
	r.Lock()
	defer r.Unlock()
	r.wanted.Store(true)
	if r.memory == nil {
		r.memory = make([]byte, 0, 1)
		if debug.SetMemoryLimit(-1) == math.MaxInt64 { // else somebody knows better
			r.memory = uncleared(reserveSize)
		}
		afterCollection(dropIdle)
	}
}

// dropIdle drops what has not been in use since the last collection. It runs after each one, until no large message comes any more.
func dropIdle() {
	for i := range spareMemory {
		spareMemory[i].drop()
	}
	r := &reserve
	r.Lock()
	defer r.Unlock()
	if r.wanted.Swap(false) {
		afterCollection(dropIdle)
		return
	}
	r.memory = nil
}

// afterCollection has f run on a goroutine when the collector has run once more.
func afterCollection(f func()) {
	type garbage struct{ _ *byte } // has memory of its own, unlike what has no pointer
	runtime.AddCleanup(new(garbage), func(struct{}) { f() }, struct{}{})
}
