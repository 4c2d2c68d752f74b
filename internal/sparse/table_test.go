// SPDX-License-Identifier: Apache-2.0

package sparse_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/sparse"
)

// A Table holds the same as a map.
func TestATableHoldsWhatWasStored(t *testing.T) {
	for range 100 {
		var table sparse.Table[int]
		want := make(map[int]int)
		highest := 1 << (1 + rand.IntN(16))
		for range rand.IntN(200) {
			i := rand.IntN(highest)
			if e := table.At(i); e != nil && *e != want[i] {
				t.Fatalf("element %d is %d, want %d", i, *e, want[i])
			}
			want[i] = 1 + rand.Int()
			*table.Grow(i) = want[i]
		}
		for i, n := range want {
			if e := table.At(i); e == nil || *e != n {
				t.Fatalf("element %d is %v, want %d", i, e, n)
			}
		}
		if e := table.At(1 << 20); e != nil {
			t.Fatalf("an element that was never stored is %d", *e)
		}
		for _, from := range []int{0, 1, 63, 64, 65, highest / 2, highest, 1 << 20} {
			last, found := from-1, 0
			for i, e := range table.All(from) {
				if i <= last || *e != want[i] || e != table.At(i) {
					t.Fatalf("from %d: element %d, after %d, is %d, want %d", from, i, last, *e, want[i])
				}
				if last = i; *e != 0 {
					found++
				}
			}
			stored := 0
			for i := range want {
				if i >= from {
					stored++
				}
			}
			if found != stored {
				t.Fatalf("from %d: found %d elements, want %d", from, found, stored)
			}
		}
	}
}

// A loop over a Table can end early, and go on where it was.
func TestALoopGoesOnWhereItWas(t *testing.T) {
	var table sparse.Table[bool]
	indices := []int{0, 1, 62, 63, 64, 65, 127, 128, 5000}
	for _, i := range indices {
		*table.Grow(i) = true
	}
	var got []int
	for at := 0; at <= indices[len(indices)-1]; {
		for i, e := range table.All(at) {
			at = i + 1
			if *e {
				got = append(got, i)
				break
			}
		}
	}
	if !slices.Equal(got, indices) {
		t.Errorf("got %v, want %v", got, indices)
	}
}

// One element at a high index takes little memory.
func TestAHighIndexTakesLittleMemory(t *testing.T) {
	const tables, most = 100, 20 << 10
	all := make([]sparse.Table[*int], tables)
	before := heapInUse()
	for i := range all {
		*all[i].Grow(100_000) = new(int)
	}
	if each := (int(heapInUse()) - int(before)) / tables; each > most {
		t.Errorf("a table with one element takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(all)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
