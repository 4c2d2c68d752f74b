// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/memory"
)

func newAccount(of *memory.Limit, limit int) *memory.Account {
	a := new(memory.Account)
	a.Init(of, limit)
	return a
}

// A connection that takes all it can get has half, and leaves room for each that comes later.
func TestGreedyConnectionsLeaveRoomForOthers(t *testing.T) {
	const total = 64 << 20
	m := memory.NewLimit(total)
	sum := 0
	held := make(map[*memory.Account]int)
	for n := 1; n <= 8; n++ {
		h := newAccount(m, 0)
		got := 0
		for h.Take(16 << 10) {
			got += 16 << 10
		}
		if want := (total - sum) / 2; got < want-128<<10 || got > want+64<<10 {
			t.Errorf("connection %d: got %d bytes of %d that were left, want half", n, got, total-sum)
		}
		held[h] = got
		sum += got
	}
	small := newAccount(m, 0)
	if !small.Take(20 << 10) {
		t.Error("there is no room for a connection with little")
	}
	held[small] = 20 << 10
	for h, n := range held {
		h.Close()
		h.Give(n)
	}
	if used := m.Used(); used != 0 {
		t.Errorf("%d bytes are in use when all connections have ended", used)
	}
}

func TestAnAccountIsBoundedAndGivesAllBack(t *testing.T) {
	m := memory.NewLimit(64 << 20)
	h := newAccount(m, 1<<20)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 10_000 {
				if size := 1 + (n*7919*(i+1))%40_000; h.Take(size) {
					h.Give(size)
				}
			}
		})
	}
	wg.Wait()
	if h.Take(1<<20 + 1) {
		t.Error("took more than the limit")
	}
	if !h.Take(1 << 20) {
		t.Error("could not take what the limit allows")
	}
	if h.Take(100 << 10) {
		t.Error("took more than the limit")
	}
	h.Force(100 << 10)
	if h.Take(1) {
		t.Error("took something when more than the limit was in use")
	}
	h.Give(100<<10 + 1<<20)
	h.Close()
	if used := m.Used(); used != 0 {
		t.Errorf("%d bytes are in use, want none", used)
	}
}

// The end of an account gives back the memory that HoldUntilEnd took. After the end, HoldUntilEnd
// takes no more.
func TestTheEndGivesBackWhatIsHeldUntilThen(t *testing.T) {
	m := memory.NewLimit(1 << 20)
	a := newAccount(m, 0)
	if !a.HoldUntilEnd(5000) || !a.HoldUntilEnd(-1000) || !a.Take(300) {
		t.Fatal("got no memory")
	}
	a.Close()
	if used := m.Used(); used != 300 {
		t.Errorf("%d bytes are in use after the end, want those that were taken", used)
	}
	if a.HoldUntilEnd(1) {
		t.Error("bytes can be held until an end that has been")
	}
	a.Give(300)
	if used := m.Used(); used != 0 {
		t.Errorf("%d bytes are in use, want none", used)
	}
}

// A connection takes memory in advance, and gives it back when it is idle.
func TestAnIdleAccountKeepsLittle(t *testing.T) {
	m := memory.NewLimit(64 << 20)
	a := newAccount(m, 0)
	for range 100 {
		a.Take(1 << 10)
	}
	a.Give(100 << 10)
	before := m.Used()
	a.Trim()
	if used := m.Used(); used > 4<<10 || before <= used {
		t.Errorf("%d bytes are granted to an idle connection, and %d before, want 4 KiB at most", used, before)
	}
}

func TestCallsWithoutAnAccountAreCounted(t *testing.T) {
	m := memory.NewLimit(1 << 20)
	if !m.Take(500<<10) || m.TakeFor(200<<10, 400<<10) {
		t.Error("a connection that holds 400 KiB may take more than what then remains")
	}
	if !m.TakeFor(200<<10, 200<<10) || m.Take(400<<10) {
		t.Error("the calls are not counted together")
	}
	m.Give(700 << 10)
	if used := m.Used(); used != 0 {
		t.Errorf("%d bytes are in use, want none", used)
	}
}
