// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/memory"
)

func TestAShareHasItsOwnBoundAndThatOfItsLimit(t *testing.T) {
	m := memory.NewLimit(1000 << 10)
	var s, other memory.Share
	s.Init(m, 300<<10)
	other.Init(m, 1000<<10)
	if !s.Take(300<<10) || s.Take(1) {
		t.Error("a share of 300 KiB did not have these 300 KiB")
	}
	if other.Take(400 << 10) { // only 300 KiB would remain for a new peer
		t.Error("a greedy peer got more than remains free")
	}
	if !other.Take(350<<10) || m.Used() != 650<<10 {
		t.Errorf("%d KiB are used, want 650", m.Used()>>10)
	}
	s.Give(300 << 10)
	other.Give(350 << 10)
	if m.Used() != 0 {
		t.Errorf("%d bytes are used in the end", m.Used())
	}
	if !s.Take(300 << 10) {
		t.Error("a share does not have what was given back")
	}
}
