// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// What is used again is there while large messages come, and goes when none come any more.
func TestSpareMemoryGoesWithTheTraffic(t *testing.T) {
	b := mux.TakeMemory(1 << 20)
	mux.GiveMemory(b)
	again := mux.TakeMemory(1 << 20)
	if &b[:1][0] != &again[:1][0] {
		t.Error("memory that was given back is not used again")
	}
	mux.GiveMemory(again)
	eventually(t, "all has gone", func() bool {
		runtime.GC()
		return mux.Spare() == 0
	})
}

// A process that collects its garbage often has a reserve as long as messages come, and only then.
func TestTheReserveIsForManyMessages(t *testing.T) {
	c, _ := echoes().overTCP(t)
	collect := func() int {
		runtime.GC()
		return mux.Reserve()
	}
	t.Cleanup(func() { debug.SetMemoryLimit(someLimit) })
	for range 20 {
		mustEcho(t, c, echo, "a message")
		if n := collect(); n != 0 {
			t.Fatalf("got a reserve of %d bytes although memory is limited", n)
		}
	}
	debug.SetMemoryLimit(math.MaxInt64)
	eventually(t, "there is a reserve", func() bool {
		mustEcho(t, c, echo, "a message")
		return collect() == mux.ReserveSize
	})
	eventually(t, "it has gone with the messages", func() bool { return collect() == 0 })
}

func TestWhenThereIsAReserve(t *testing.T) {
	for _, c := range []struct {
		apart     time.Duration
		has, want bool
	}{
		{mux.OftenApart - 1, false, true},
		{mux.OftenApart, false, false},
		{mux.OftenApart, true, true}, // with a reserve they are less often
		{mux.SeldomApart, true, true},
		{mux.SeldomApart + 1, true, false},
	} {
		if got := mux.WantsReserve(c.has, c.apart); got != c.want {
			t.Errorf("collections %v apart, there is a reserve: %v: got %v, want %v", c.apart, c.has, got, c.want)
		}
	}
}
