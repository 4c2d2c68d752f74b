// SPDX-License-Identifier: Apache-2.0

//go:build !race

package recommended_test

import (
	"context"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/recommended"
)

// Both chains together allocate nothing for a call that goes well, but for the contexts of calls
// that may be hedged, which are made 16 at a time and not used again.
func TestTheChainAllocatesNothing(t *testing.T) {
	allocs := func(method yodel.Method[int, int], co *yodel.ClientOptions, so *yodel.ServerOptions) float64 {
		addrs, _ := newShelves(t, 3, so, nil)
		c := newClient(t, addrs, co)
		in, out := 7, 0
		call := func() {
			if err := c.Call(context.Background(), string(method), &in, &out); err != nil {
				t.Error(err)
			}
		}
		for range 2000 { // until everything is learned
			call()
		}
		return testing.AllocsPerRun(2000, call)
	}
	o := &yodel.ClientOptions{Timeout: time.Minute}
	for _, method := range []yodel.Method[int, int]{take, look} {
		bare, chain := allocs(method, o, nil), allocs(method, recommended.Client(o), recommended.Server(nil))
		if chain > bare {
			t.Errorf("%s: %v allocations for each call, without the chain %v", method, chain, bare)
		}
	}
}
