// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
)

// measuredClient returns a client of a server. If on is set, both have live data.
func measuredClient(t testing.TB, on bool) *yodel.Client {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: on})
	must(t, s.Register(Arith{}))
	o := &yodel.ClientOptions{}
	if on {
		o.Server = yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	}
	return connect(t, s, o)
}

// Live data allocates nothing per call, neither for the server nor for the client.
func TestLiveDataAllocatesNothingPerCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var allocated [2]float64
	for i, on := range []bool{false, true} {
		c := measuredClient(t, on)
		in, out := &Args{A: 2, B: 3}, new(Reply)
		call := func() { must(t, c.Call(t.Context(), string(Mul), in, out)) }
		for range 1000 {
			call()
		}
		allocated[i] = testing.AllocsPerRun(5000, call)
	}
	if allocated[1] > allocated[0]+0.5 {
		t.Errorf("a call allocates %v objects with live data, and %v without", allocated[1], allocated[0])
	}
}
