// SPDX-License-Identifier: Apache-2.0

// Package deadlines finds the entries of a table whose deadlines have passed, without a timer for
// each of them and without looking at all of them. The table may be large, and most of its entries
// lose their deadline long before it passes.
package deadlines

import (
	"iter"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

// Block is how many consecutive entries of the table are looked at together.
const Block = 64

// An Index knows for each block of a table a time before which no deadline of the block passes. The
// deadlines themselves are in the table. An entry that loses its deadline is not taken out of the
// Index: when the time of its block has come, the owner looks at the block and sets the time anew.
// So a deadline costs one comparison. The zero Index has no deadlines.
type Index struct {
	blocks []int64 // 0 for a block without deadlines
	next   int     // the block with which the next search begins
}

// Add notes that entry i has a deadline at t, which is not 0.
func (x *Index) Add(i int, t int64) {
	b := i / Block
	if b >= len(x.blocks) {
		x.blocks = append(x.blocks, make([]int64, b+1-len(x.blocks))...)
	}
	if at := &x.blocks[b]; *at == 0 || t < *at {
		*at = t
	}
}

// Due ranges over the blocks that may have an entry whose deadline has passed. Block b begins with
// entry b*Block. The loop calls Reset for each block that it has looked at, and Add for none. If it
// ends early, the next one begins with the block at which it ended, so that each has its turn.
func (x *Index) Due(now int64) iter.Seq[int] {
	return func(yield func(int) bool) {
		first := x.next
		for i := range x.blocks {
			b := (first + i) % len(x.blocks)
			if t := x.blocks[b]; t != 0 && t <= now && !yield(b) {
				x.next = b
				return
			}
		}
	}
}

// Reset sets the time of a block to the earliest deadline in it, or to monotime.Never.
func (x *Index) Reset(b int, soonest int64) {
	if soonest == monotime.Never {
		soonest = 0
	}
	x.blocks[b] = soonest
}

// Soonest returns a time before which no deadline passes, or monotime.Never if there is none.
func (x *Index) Soonest() int64 {
	soonest := int64(monotime.Never)
	for _, t := range x.blocks {
		if t != 0 {
			soonest = min(soonest, t)
		}
	}
	return soonest
}
