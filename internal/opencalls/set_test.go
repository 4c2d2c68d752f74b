// SPDX-License-Identifier: Apache-2.0

package opencalls_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/opencalls"
)

// A Set has the same calls as a slice to which the same was done.
func TestASetHasTheCallsThatWereAdded(t *testing.T) {
	var s opencalls.Set
	var want []*opencalls.Entry
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 10_000 {
		switch n := random.IntN(5); {
		case n < 2:
			e := &opencalls.Entry{Method: fmt.Sprint(i)}
			e.Running.Store(n == 0)
			s.Add(e)
			want = append(want, e)
		case n < 4 && len(want) > 0:
			at := random.IntN(len(want))
			s.Remove(want[at])
			want = slices.Delete(want, at, at+1)
		case len(want) > 0:
			want[random.IntN(len(want))].Running.Store(true)
		}
		var running []string
		for _, e := range slices.Backward(want) {
			if e.Running.Load() {
				running = append(running, e.Method+" a peer")
			}
		}
		var got []string
		for _, c := range s.Running("a peer") {
			got = append(got, c.Method+" "+c.Peer)
		}
		if !slices.Equal(got, running) || s.Len != len(want) {
			t.Fatalf("step %d: got %d calls, of which run %v; want %d, %v", i, s.Len, got, len(want), running)
		}
	}
}

func TestACallOfASetIsUsedAgain(t *testing.T) {
	var s opencalls.Set
	var a, b opencalls.Entry
	s.Add(&a)
	s.Add(&b)
	if got := testing.AllocsPerRun(100, func() {
		s.Remove(&a)
		s.Add(&a)
	}); got != 0 || s.Len != 2 {
		t.Errorf("%v allocations, %d calls", got, s.Len)
	}
}
