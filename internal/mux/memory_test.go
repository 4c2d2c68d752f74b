// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// The reserve is there while large messages come, and goes when none come any more.
func TestTheReserveGoesWithTheTraffic(t *testing.T) {
	mux.TakeMemory(1 << 20)
	if n := mux.Reserve(); n != mux.ReserveSize {
		t.Fatalf("got a reserve of %d bytes, want %d", n, mux.ReserveSize)
	}
	eventually(t, "the reserve has gone", func() bool {
		runtime.GC()
		return mux.Reserve() == 0
	})
	mux.TakeMemory(1 << 20)
	if n := mux.Reserve(); n != mux.ReserveSize {
		t.Errorf("got a reserve of %d bytes when messages came again, want %d", n, mux.ReserveSize)
	}
}
