// SPDX-License-Identifier: Apache-2.0

package deadlines_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/deadlines"
	"github.com/yodel-rpc/yodel/internal/monotime"
)

// A table is a table with deadlines, as the owner of an Index has one.
type table struct {
	deadlines.Index
	entries []int64 // 0 without a deadline
	looked  int     // how many entries expire has looked at
}

func (t *table) set(i int, at int64) {
	t.entries[i] = at
	t.Add(i, at)
}

// expire ends the entries whose deadlines have passed, in as many blocks as most says.
func (t *table) expire(now int64, most int) (ended []int) {
	for b := range t.Due(now) {
		if most--; most < 0 {
			return ended
		}
		soonest := int64(monotime.Never)
		for i := b * deadlines.Block; i < min(len(t.entries), (b+1)*deadlines.Block); i++ {
			t.looked++
			switch at := t.entries[i]; {
			case at == 0:
			case at > now:
				soonest = min(soonest, at)
			default:
				t.entries[i] = 0
				ended = append(ended, i)
			}
		}
		t.Reset(b, soonest)
	}
	return ended
}

func TestPassedDeadlinesAreFound(t *testing.T) {
	const n = 3*deadlines.Block + 5
	tab := table{entries: make([]int64, n)}
	if at := tab.Soonest(); at != monotime.Never || tab.expire(1<<60, n) != nil {
		t.Errorf("without deadlines, one passes at %d", at)
	}
	tab.set(n-1, 300)
	tab.set(0, 200)
	tab.set(1, 100)
	tab.set(2, 150)
	want := func(now, soonest int64, ended ...int) {
		t.Helper()
		if got := tab.expire(now, n); !slices.Equal(got, ended) || tab.Soonest() != soonest {
			t.Errorf("at %d: %d have ended, and the next is at %d; want %d and %d", now, got, tab.Soonest(), ended, soonest)
		}
	}
	want(99, 100)
	want(100, 150, 1)
	tab.entries[2] = 0 // the call has ended
	want(160, 200)
	want(250, 300, 0)
	want(300, monotime.Never, n-1)
}

// A search goes on where it has stopped.
func TestASearchHasRounds(t *testing.T) {
	const blocks = 5
	tab := table{entries: make([]int64, blocks*deadlines.Block)}
	for i := range tab.entries {
		tab.set(i, 10)
	}
	for round := range blocks {
		if tab.Soonest() != 10 {
			t.Fatalf("round %d: the rest is due at %d", round, tab.Soonest())
		}
		got := tab.expire(10, 1)
		if len(got) != deadlines.Block || got[0] != round*deadlines.Block {
			t.Errorf("round %d ended %d entries from %d on", round, len(got), got[0])
		}
	}
	if tab.Soonest() != monotime.Never {
		t.Error("after all rounds, deadlines are left")
	}
}

// Each deadline is found when it passes, not before and not later. The search looks at few entries.
func TestASearchLooksAtFew(t *testing.T) {
	const n, steps = 20_000, 300
	r := rand.New(rand.NewPCG(1, 2))
	tab := table{entries: make([]int64, n)}
	for i := range tab.entries {
		tab.set(i, 1+r.Int64N(100*steps))
	}
	for now := range int64(steps) {
		for range 10 { // calls that end, and others that begin in their slots
			if i := r.IntN(n); r.IntN(2) == 0 {
				tab.entries[i] = 0
			} else {
				tab.set(i, now+1+r.Int64N(2*steps))
			}
		}
		tab.looked = 0
		tab.expire(now, n)
		if late := slices.IndexFunc(tab.entries, func(at int64) bool { return at != 0 && at <= now }); late >= 0 {
			t.Fatalf("%d: entry %d is late", now, late)
		}
		if tab.looked > n/10 {
			t.Fatalf("%d: a search has looked at %d of %d entries", now, tab.looked, n)
		}
	}
}

// A search that ends early goes on where it ended: deadlines that pass all the time in the first
// blocks do not keep those in the last ones waiting.
func TestEachBlockHasItsTurn(t *testing.T) {
	const blocks = 10
	tab := table{entries: make([]int64, blocks*deadlines.Block)}
	found := make(map[int]bool)
	for now := int64(1); now <= blocks; now++ {
		for b := range blocks {
			tab.set(b*deadlines.Block, now)
		}
		for _, i := range tab.expire(now, 2) {
			found[i/deadlines.Block] = true
		}
	}
	if len(found) != blocks {
		t.Errorf("of %d blocks with passed deadlines, the searches have found those in %v", blocks, found)
	}
}
