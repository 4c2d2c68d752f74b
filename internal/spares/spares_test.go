// SPDX-License-Identifier: Apache-2.0

package spares

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// collectUntil collects garbage until done reports true, for at most ten seconds. What follows a
// collection runs on a goroutine of its own.
func collectUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); runtime.GC() {
		if time.Now().After(end) {
			t.Fatalf("not within ten seconds: %s", what)
		}
		runtime.Gosched()
	}
}

// spare returns how many bytes wait to be used again, and how many are in reserve.
func (m *Set) spare() (spare, reserve int) {
	for i := range m.spares {
		s := &m.spares[i]
		s.Lock()
		for _, b := range s.free {
			spare += cap(b)
		}
		s.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return spare, cap(m.reserve)
}

// What is used again is there while large messages come, and goes when none come any more.
func TestSpareMemoryGoesWithTheTraffic(t *testing.T) {
	m := new(Set)
	b := m.Take(1 << 20)
	m.Give(b)
	again := m.Take(1<<20 - 100)
	if &b[:1][0] != &again[:1][0] {
		t.Error("memory that was given back is not used again")
	}
	m.Give(again)
	collectUntil(t, "all has gone", func() bool {
		spare, _ := m.spare()
		return spare == 0
	})
	for _, n := range []int{Least - 1, maxLarge + 1} {
		if m.Give(m.Take(n)); cap(m.Take(n)) < n {
			t.Errorf("got too little memory for %d bytes", n)
		}
		if spare, _ := m.spare(); spare != 0 {
			t.Errorf("%d bytes are kept, though they are too few or too many", n)
		}
	}
}

// A process that collects its garbage often has a reserve as long as messages come, and only then.
func TestTheReserveIsForManyMessages(t *testing.T) {
	old := debug.SetMemoryLimit(math.MaxInt64 - 1)
	defer debug.SetMemoryLimit(old)
	m := new(Set)
	for range 20 {
		m.MessageArrived()
		runtime.GC()
		if _, reserve := m.spare(); reserve != 0 {
			t.Fatalf("got a reserve of %d bytes although memory is limited", reserve)
		}
	}
	debug.SetMemoryLimit(math.MaxInt64)
	collectUntil(t, "there is a reserve", func() bool {
		m.MessageArrived()
		_, reserve := m.spare()
		return reserve == reserveSize
	})
	collectUntil(t, "it has gone with the messages", func() bool {
		_, reserve := m.spare()
		return reserve == 0
	})
}

func TestWhenThereIsAReserve(t *testing.T) {
	for _, c := range []struct {
		apart     time.Duration
		has, want bool
	}{
		{oftenApart - 1, false, true},
		{oftenApart, false, false},
		{oftenApart, true, true}, // with a reserve they are less often
		{seldomApart, true, true},
		{seldomApart + 1, true, false},
	} {
		if got := wantsReserve(c.has, c.apart); got != c.want {
			t.Errorf("collections %v apart, there is a reserve: %v: got %v, want %v", c.apart, c.has, got, c.want)
		}
	}
}
