// SPDX-License-Identifier: Apache-2.0

//go:build unix

package socket

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

// A thread naps when calls have come one after another, and not while calls are open.
func TestNaps(t *testing.T) {
	if !napping {
		t.Skip("no naps on this system")
	}
	severalProcessors(t, 2)
	a, b := tcpPair(t)
	socket, buf := Of(a), make([]byte, 1)
	var naps Naps
	naps.Init()
	napped := func(alone bool) bool {
		t.Helper()
		if _, err := b.Write(buf); err != nil {
			t.Fatal(err)
		}
		naps.slept = int64(monotime.Now()) // now and then it sleeps all the same
		n, err := naps.Read(socket, alone, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if n, err := a.Read(buf); n != 1 || err != nil {
				t.Fatalf("read %d bytes, %v", n, err)
			}
		}
		return n > 0
	}
	for range 3 {
		for i := range leastQuick - 1 {
			if napped(true) {
				t.Fatalf("it naps after %d calls", i)
			}
		}
		if !napped(true) {
			t.Fatal("it does not nap")
		}
		if napped(false) {
			t.Fatal("it naps while a call is open")
		}
	}
	naps.Quick, naps.began = leastQuick, naps.began-int64(2*napTime)
	naps.Woke()
	if napped(true) {
		t.Error("it naps although the last call took long to come")
	}
}
