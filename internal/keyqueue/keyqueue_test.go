// SPDX-License-Identifier: Apache-2.0

package keyqueue_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel/internal/keyqueue"
)

type (
	queues = keyqueue.Queues[string]
	entry  = keyqueue.Entry[string]
)

func newEntry(request, key string, epoch uint64) *entry {
	return keyqueue.New(request, []byte(key), epoch)
}

// name returns the request of an entry, and whether it is refused.
func name(e *entry) string {
	switch {
	case e == nil:
		return "none"
	case e.Refused():
		return e.Request + " is refused"
	}
	return e.Request
}

func TestTheRequestsOfAKeyFollowEachOther(t *testing.T) {
	var q queues
	a1, a2, a3, b := newEntry("a1", "a", 1), newEntry("a2", "a", 1), newEntry("a3", "a", 1), newEntry("b", "b", 1)
	if !q.Put(a1) || q.Put(a2) || q.Put(a3) || !q.Put(b) {
		t.Error("a request of another key waits, or one of the same key does not")
	}
	if a1.Waits() || !a2.Waits() || !a3.Waits() || b.Waits() || (*entry)(nil).Waits() {
		t.Error("not those behind another one wait")
	}
	if next := q.Remove(a2, false); next != nil {
		t.Errorf("%s follows a request that has waited", name(next))
	}
	if next := q.Remove(a2, false); next != nil {
		t.Errorf("%s follows a request that is in no queue", name(next))
	}
	if got := name(q.Remove(a1, false)); got != "a3" {
		t.Errorf("%s follows, want a3", got)
	}
	if got := name(q.Remove(a3, false)) + ", " + name(q.Remove(b, false)); got != "none, none" {
		t.Errorf("behind the last ones: %s", got)
	}
	if keys, broken, floor := q.Sizes(); keys != 0 || broken != 0 || floor != 0 || !q.Whole() {
		t.Errorf("%d keys and %d broken keys are left, floor %d", keys, broken, floor)
	}
}

func TestARefusalBreaksItsKeyAndEpoch(t *testing.T) {
	var q queues
	first, second, later := newEntry("first", "a", 1), newEntry("second", "a", 1), newEntry("later", "a", 2)
	for _, e := range []*entry{first, second, later} {
		q.Put(e)
	}
	if got := name(q.Remove(first, true)); got != "second is refused" {
		t.Errorf("behind a refused request: %s", got)
	}
	if !q.Broken(newEntry("", "a", 1)) || q.Broken(newEntry("", "a", 2)) || q.Broken(newEntry("", "b", 1)) {
		t.Error("not the epoch of the refused request is broken")
	}
	// It is refused because of an earlier one, and breaks nothing.
	if got := name(q.Remove(second, true)); got != "later" {
		t.Errorf("in a new epoch: %s", got)
	}
	if old := newEntry("old", "a", 1); q.Put(old) || !old.Refused() {
		t.Error("a request of the broken epoch is not refused")
	}
	if mends := newEntry("mends", "a", 2); q.Put(mends) || mends.Refused() || !q.Whole() {
		t.Error("a request of a new epoch does not mend the key")
	}
}

// A client can break any number of keys.
func TestBrokenKeysAreBounded(t *testing.T) {
	for what, key := range map[string]func(i int) string{
		"many": strconv.Itoa,
		"long": func(i int) string { return fmt.Sprintf("%01000d", i) },
	} {
		var q queues
		n := 0
		for ; n <= keyqueue.MaxBroken; n++ {
			q.Break(newEntry("", key(n), uint64(n+1)))
			if _, broken, floor := q.Sizes(); floor > 0 {
				if broken != 0 || floor != uint64(n) {
					t.Errorf("%s: beyond the bound %d keys are broken, and all up to epoch %d of %d", what, broken, floor, n)
				}
				break
			}
			q.Break(newEntry("", key(n), uint64(n+1))) // again
			q.Broken(newEntry("", "new", uint64(n+1)))
		}
		if most := map[string]int{"many": keyqueue.MaxBroken, "long": 65}[what]; n != most {
			t.Errorf("%s: %d keys are remembered, want %d", what, n, most)
		}
		if !q.Broken(newEntry("", "any", uint64(n))) || q.Broken(newEntry("", "any", uint64(n+1))) || q.Whole() {
			t.Errorf("%s: not all epochs before are broken", what)
		}
	}
}
