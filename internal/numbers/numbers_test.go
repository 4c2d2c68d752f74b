// SPDX-License-Identifier: Apache-2.0

package numbers_test

import (
	"math/rand/v2"
	"testing"

	"github.com/yodel-rpc/yodel/internal/numbers"
)

func TestAMethodKeepsItsNumber(t *testing.T) {
	var table numbers.Table
	if _, ok := table.Of(5, 0); ok {
		t.Error("a method has a number that was not given")
	}
	for i, handle := range []int{5, 0, 3} {
		if n, id := table.Give(handle, 0, 10); int(n) != i || int(id) != i+1 {
			t.Errorf("handle %d has number %d with id %d, want %d and %d", handle, n, id, i, i+1)
		}
	}
	for i, handle := range []int{5, 0, 3} {
		if n, ok := table.Of(handle, 0); int(n) != i || !ok {
			t.Errorf("handle %d has number %d, %t, want %d", handle, n, ok, i)
		}
	}
	for _, handle := range []int{1, 2, 4, 6} { // beside those that have numbers
		if _, ok := table.Of(handle, 0); ok {
			t.Errorf("handle %d has a number that was not given", handle)
		}
	}
	if h, g, ok := table.Method(2, 3); h != 3 || g != 0 || !ok {
		t.Errorf("number 2 stands for %d, %d, %t", h, g, ok)
	}
}

// A handle that is used again keeps its number, under a new id.
func TestTheNextMethodOfAHandleTakesOverItsNumber(t *testing.T) {
	var table numbers.Table
	table.Give(0, 0, 10)
	table.Give(1, 0, 10)
	if _, ok := table.Of(1, 1); ok {
		t.Error("the next method of a handle has a number before one is given")
	}
	if n, id := table.Give(1, 1, 10); n != 1 || id != 3 {
		t.Errorf("got number %d with id %d", n, id)
	}
	if _, ok := table.Of(1, 0); ok {
		t.Error("the earlier method still has its number")
	}
	if _, _, ok := table.Method(1, 2); ok {
		t.Error("the announcement of the earlier method still counts")
	}
	if _, _, ok := table.Method(9, 0); ok {
		t.Error("a number that was not given stands for a method")
	}
}

// Numbers are given again when they have run out. Two methods never have the same number.
func TestNumbersAreGivenAgain(t *testing.T) {
	const most, handles = 5, 12
	r := rand.New(rand.NewPCG(1, 2))
	var table numbers.Table
	generations := make([]uint32, handles)
	for i := range uint32(2000) {
		handle := r.IntN(handles)
		if r.IntN(4) == 0 {
			generations[handle]++
		}
		n, ok := table.Of(handle, generations[handle])
		if !ok {
			var id uint32
			n, id = table.Give(handle, generations[handle], most)
			if h, g, ok := table.Method(n, id); h != handle || g != generations[handle] || !ok {
				t.Fatalf("%d: number %d stands for %d, %d, %t", i, n, h, g, ok)
			}
		}
		if n >= most {
			t.Fatalf("%d: got number %d, want less than %d", i, n, most)
		}
		for other, generation := range generations {
			if same, ok := table.Of(other, generation); ok && same == n && other != handle {
				t.Fatalf("%d: the handles %d and %d have number %d", i, handle, other, n)
			}
		}
	}
}
