// SPDX-License-Identifier: Apache-2.0

package spares

import "testing"

func TestBuffersAreUsedAgain(t *testing.T) {
	var p Buffers
	large := func(n int) *[]byte {
		b := make([]byte, 1, n)
		return &b
	}
	p.Put(large(mostKept + 1))
	if b := p.Get(); cap(*b) > mostKept {
		t.Error("a buffer was kept that is too large")
	}
	again := false
	for range 100 { // the race detector makes a pool forget some
		p.Put(large(mostKept))
		if b := p.GetFor(10); len(*b) != 0 || cap(*b) > 4<<10 {
			t.Fatalf("10 bytes are held in a buffer of %d", cap(*b))
		}
		b := p.GetFor(mostKept / 2)
		if len(*b) != 0 {
			t.Fatalf("a buffer of %d bytes is not empty", len(*b))
		}
		again = again || cap(*b) == mostKept
	}
	if !again {
		t.Error("no buffer was used again")
	}
}
