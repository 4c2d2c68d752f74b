// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/stats"
)

func TestTheExpectedSizeOfRepliesFallsSlowly(t *testing.T) {
	var r stats.Replies
	for _, n := range []int{0, 100, 8<<10 - 1} {
		if r.Add(n); r.Expected() != 0 {
			t.Fatalf("after a reply of %d bytes, %d are expected", n, r.Expected())
		}
	}
	for _, test := range []struct{ reply, want int }{{64 << 10, 64 << 10}, {0, 56 << 10}, {56 << 10, 56 << 10}, {100 << 10, 100 << 10}, {10, 87.5 * (1 << 10)}} {
		if r.Add(test.reply); r.Expected() != test.want {
			t.Fatalf("after a reply of %d bytes, %d are expected, want %d", test.reply, r.Expected(), test.want)
		}
	}
	n := 0
	for before := r.Expected(); before > 0; n++ {
		r.Add(0)
		now := r.Expected()
		if now >= before || now > 0 && now < 8<<10 {
			t.Fatalf("%d bytes are expected after %d", now, before)
		}
		before = now
	}
	if n < 10 {
		t.Errorf("%d small replies after large ones make the next one small", n)
	}
}
