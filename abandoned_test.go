// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// liveHeap returns how many bytes remain after garbage collections. The memory of large messages is
// kept until the second one.
func liveHeap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // far less
}

// wantHeap waits until the heap has grown by at most so many bytes since before.
func wantHeap(t testing.TB, before, most int64) {
	t.Helper()
	grown := int64(0)
	for end := time.Now().Add(patience / 4); ; { // long before the test's connections end
		if grown = liveHeap() - before; grown <= most {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d KiB remain in memory, want at most %d KiB", grown>>10, most>>10)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A lingerer is a client that shows signs of life as long as the test runs, and never completes a
// request.
type lingerer struct {
	*stranger
	mu   sync.Mutex // held during a write
	sign []byte
}

func newLingerer(t *testing.T, addr string) *lingerer {
	t.Helper()
	l := &lingerer{sign: wire.Finish(append(wire.Begin(nil, &wire.Header{Type: wire.Ping}), "8 bytes."...), 0)}
	l.stranger = newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Arith.Mul"), Codec: []byte("json")}))
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-t.Context().Done():
				return
			case <-tick.C:
				l.mu.Lock()
				_, _ = l.nc.Write(l.sign) // the server's reply is what the test waits for
				l.mu.Unlock()
			}
		}
	}()
	return l
}

// unfinished sends a request of size bytes without its end. Within says that what comes ends within
// a frame, of which the signs of life are then a part.
func (l *lingerer) unfinished(id uint32, size int, within bool) {
	const piece = 60_000
	h := wire.Header{Type: wire.Request, Flags: wire.HasFields | wire.More, ID: id}
	b := wire.Finish(wire.AppendFields(wire.Begin(nil, &h), &wire.Fields{Size: uint64(size)}), 0)
	for left := size - piece; left >= piece; left -= piece {
		b = wire.AppendFrame(b, &wire.Header{Type: wire.Data, Flags: wire.More, ID: id}, make([]byte, piece))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if within {
		b, l.sign = b[:len(b)-piece/2], make([]byte, len(l.sign))
	}
	l.send(b)
}

// A server that gives up a request which did not come whole also frees its memory, although the
// connection lives on.
func TestAbandonedRequestsAreFreed(t *testing.T) {
	const size = 4 << 20
	for _, conns := range []int{1, 8} {
		for name, requests := range map[string]uint32{"between two frames": 3, "within a frame": 1} {
			t.Run(fmt.Sprintf("%s, %d connections", name, conns), func(t *testing.T) {
				s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 200 * time.Millisecond}})
				addr := serve(t, s)
				before := liveHeap()
				for range 10 { // until the memory of the test before is free
					<-time.After(20 * time.Millisecond)
					before = min(before, liveHeap())
				}
				var peers []*lingerer
				for range conns {
					peers = append(peers, newLingerer(t, addr))
				}
				for slot := range requests {
					for _, p := range peers {
						p.unfinished(wire.NextID(slot), size, name == "within a frame")
					}
					for _, p := range peers {
						if e := p.reply(); e.ID != "YDL3008" || !e.NotProcessed {
							t.Fatalf("request %d: got %v", slot+1, e)
						}
					}
					wantHeap(t, before, int64(conns)*300_000)
				}
			})
		}
	}
}
