// SPDX-License-Identifier: Apache-2.0

package reuse_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/reuse"
)

func TestValuesOfAGroupAreUsedOnce(t *testing.T) {
	var g reuse.Group[int]
	used := make(map[*int]bool)
	if got := testing.AllocsPerRun(799, func() { // and once more before
		x := g.Next()
		if *x != 0 || used[x] {
			t.Fatal("the value was used before")
		}
		*x = 1
	}); got != 0 { // rounded down from one eighth
		t.Errorf("%v allocations for each value", got)
	}
	for range 100 {
		x := g.Next()
		if *x != 0 || used[x] {
			t.Fatal("the value was used before")
		}
		*x, used[x] = 1, true
	}
}
