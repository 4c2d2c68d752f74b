// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
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
	return int64(m.HeapAlloc)
}

// What has come of a reply is freed when its caller gives up, although the server neither ends the
// reply nor the connection. Until it is freed, it is counted.
func TestAbandonedRepliesAreFreed(t *testing.T) {
	const size, calls, piece = 1 << 20, 3, 60_000
	for _, conns := range []int{1, 8} {
		for name, within := range map[string]int{"between two frames": 0, "within a frame": piece / 2} {
			t.Run(fmt.Sprintf("%s, %d connections", name, conns), func(t *testing.T) {
				m := memory.NewLimit(1 << 30)
				s := &setup{client: mux.Config{Limits: defaultLimits(), Memory: m}}
				before := liveHeap()
				for range conns {
					peer, c := s.facingClient(t)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					var ended []<-chan calling
					for i := range calls {
						ended = append(ended, startCall(c, ctx, &mux.Out{Method: echo}))
						if i == 0 {
							peer.expectHello()
							peer.expect(wire.Method)
							peer.write(hello(nil))
						}
						h, _ := peer.expect(wire.Request)
						b := frameOf(wire.Header{Type: wire.Reply, Flags: wire.More, ID: h.ID}, &wire.Fields{Size: size}, make([]byte, piece))
						for left := size - piece; left >= piece; left -= piece {
							b = append(b, frameOf(wire.Header{Type: wire.Data, Flags: wire.More | wire.OfReply, ID: h.ID}, nil, make([]byte, piece))...)
						}
						last := i == calls-1
						if last {
							b = b[:len(b)-within]
						}
						peer.write(b)
						eventually(t, "the replies are counted", func() bool { return m.Used() >= (i+1)*size })
					}
					cancel()
					for _, end := range ended {
						<-end
					}
					if within > 0 {
						peer.write(make([]byte, 100)) // the reader lets go of the reply that it is reading
					}
					eventually(t, "nothing is counted", func() bool { return m.Used() < 100_000*conns })
				}
				eventually(t, "the memory is free", func() bool { return liveHeap()-before < int64(conns)*300_000 })
			})
		}
	}
}
