// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rpcx

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A call takes memory for its body, which the handler may keep, and for what a method that is
// called by reflection gets and returns. All else of a call is used again.
func TestAllocationsOfACall(t *testing.T) {
	const calls, most = 5000, 6
	s := serve(t, yodel.ServerOptions{})
	s.MarkInline("Arith.Echo")
	c := dial(t, s.addr)
	request := head{path: "Arith", method: "Echo", payload: 2}
	sent := append(request.append(nil), "hi"...)
	reply := request
	reply.flags = response
	want := append(reply.append(nil), "hi"...)
	got := make([]byte, len(want))
	call := func() {
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c.Conn, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	for range 1000 {
		call()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		call()
	}
	runtime.ReadMemStats(&after)
	if n := float64(after.Mallocs-before.Mallocs) / calls; n > most+0.5 {
		t.Errorf("a call makes %.2f allocations, want at most %d", n, most)
	} else {
		t.Logf("a call makes %.2f allocations", n)
	}
}
