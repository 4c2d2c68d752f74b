// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"
	"math/bits"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Memory for large messages. At 1 MiB a message, allocating, clearing and collecting it takes more
// CPU time than all that a call does beside, so it is used again when nobody keeps it. What waits
// for that is no more than was in use at once, and goes with the second garbage collection that it
// waits through. A sync.Pool does not do: what one processor has put there the others do not find,
// and each time that costs 16 MiB.

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
	messagesCome()
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
		messagesCome() // it has to go again
	}
}

// uncleared allocates memory as it is. Clearing 16 MiB holds up everybody on a connection for 2 ms,
// and makes reading as much take a sixth longer. The library does the same for strings that are
// built.
func uncleared(n int) []byte {
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)                                            // an empty string has no address
	return unsafe.Slice(unsafe.StringData(b.String()), n)[:0] //nolint:gosec // b has n bytes, and nobody else sees its string
}

// Messages are garbage when a call has ended, and a process with little in use collects it after
// every 4 MiB: a server of 160,000 to 240,000 calls a second with messages of protobuf 63 to 113
// times a second, and with messages of 64 KiB 170 times a second. So while messages come and it
// runs often, there is reserveSize of memory that nothing is ever written to: 26 to 41 times
// instead, and 7 to 16 % less processor time. It takes no room, because the system gives only what
// is touched, but counts as live: the next collection comes after as much again, which does take
// room. Where more is in use the collector runs less often anyway, and there is no reserve. Who
// sets GOGC or GOMEMLIMIT knows better.
const (
	reserveSize = 8 << 20

	// Collections that are less apart run often, and those that are more apart seldom. With a
	// reserve they are up to four times as rare.
	oftenApart, seldomApart = 50 * time.Millisecond, 500 * time.Millisecond
)

// memory is what a process has for its messages, beside what is in use.
var memory struct {
	busy atomic.Bool // messages came since the last collection
	sync.Mutex
	watching bool          // the next collection is waited for
	last     time.Duration // when the one before was that was waited for, on Clock
	reserve  []byte        // nil for none
}

// messagesCome says so: what is kept for them is kept until the second collection from now.
func messagesCome() {
	m := &memory
	if m.busy.Load() {
		return
	}
	m.Lock()
	defer m.Unlock()
	m.busy.Store(true)
	if !m.watching {
		m.watching = true
		afterCollection(collected)
	}
}

// collected drops what has not been in use since the last collection, and has a reserve or not. It
// runs after each collection, until no message comes any more.
func collected() {
	for i := range spareMemory {
		spareMemory[i].drop()
	}
	m := &memory
	m.Lock()
	defer m.Unlock()
	if m.watching = m.busy.Swap(false); !m.watching {
		m.reserve = nil
		return
	}
	now := Clock()
	apart := now - m.last
	m.last = now
	switch has := m.reserve != nil; {
	case !wantsReserve(has, apart) || !byDefault():
		m.reserve = nil
	case !has:
		m.reserve = uncleared(reserveSize)
	}
	afterCollection(collected)
}

// byDefault reports whether the collector works as it does when nobody has set how.
func byDefault() bool {
	set := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(set)
	return set[0].Value.Uint64() == 100 && set[1].Value.Uint64() == math.MaxInt64
}

// wantsReserve decides when two collections were so much apart.
func wantsReserve(has bool, apart time.Duration) bool {
	return apart < oftenApart || has && apart <= seldomApart
}

// afterCollection has f run on a goroutine when the collector has run once more.
func afterCollection(f func()) {
	type garbage struct{ _ *byte } // has memory of its own, unlike what has no pointer
	runtime.AddCleanup(new(garbage), func(struct{}) { f() }, struct{}{})
}
