// SPDX-License-Identifier: Apache-2.0

//go:build !race

package http_test

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A connection of HTTP/2 that is idle after calls takes little memory, with its client's end, which
// is in the same process.
func TestIdleConnectionsTakeLittleMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // so that package spares allocates no reserve
	const many, most, tick = 300, 24 << 10, time.Second
	s := newSite(t, nil, yodel.ServerOptions{})
	used := func() int {
		var m runtime.MemStats
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	call := func(c *rawHTTP2) {
		c.request(c.next, openedRequest{path: "/Test/Echo", media: "application/grpc+json", body: envelopeOf(`{"text":"hello"}`), whole: true})
		c.next += 2
		c.awaitPong()
	}
	call(dialHTTP2(t, s.addr))
	before := used()
	for range many {
		c := dialHTTP2(t, s.addr)
		for range 3 {
			call(c)
		}
		c.out = nil
	}
	each := 0
	for range 5 {
		if each = (used() - before) / many; each <= most {
			break
		}
		<-time.After(tick) // goroutines that were idle for that time end
	}
	t.Logf("%d bytes for each connection", each)
	if each > most {
		t.Errorf("an idle connection takes %d bytes, want at most %d", each, most)
	}
}
