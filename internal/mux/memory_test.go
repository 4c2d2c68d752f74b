// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// The reserve and what is used again are there while large messages come, and go when none come any more.
func TestTheReserveGoesWithTheTraffic(t *testing.T) {
	b := mux.TakeMemory(1 << 20)
	mux.GiveMemory(b)
	again := mux.TakeMemory(1 << 20)
	if &b[:1][0] != &again[:1][0] {
		t.Error("memory that was given back is not used again")
	}
	mux.GiveMemory(again)
	if n := mux.Reserve(); n != mux.ReserveSize {
		t.Fatalf("got a reserve of %d bytes, want %d", n, mux.ReserveSize)
	}
	eventually(t, "all has gone", func() bool {
		runtime.GC()
		return mux.Reserve() == 0
	})
	if n := mux.Spare(); n != 0 {
		t.Errorf("%d bytes are still kept", n)
	}
	mux.TakeMemory(1 << 20)
	if n := mux.Reserve(); n != mux.ReserveSize {
		t.Errorf("got a reserve of %d bytes when messages came again, want %d", n, mux.ReserveSize)
	}
}
