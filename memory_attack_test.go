// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// heapPeak measures the largest live heap until stop is called, which returns by how much it
// exceeded the beginning.
func heapPeak() (stop func() int64) {
	live := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) // far less
	}
	runtime.GC()
	before, peak := live(), int64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, live())
			case <-done:
				return
			}
		}
	}()
	return func() int64 {
		close(done)
		<-ended
		return max(peak, live()) - before
	}
}

// A few kilobytes of requests whose replies are not read do not make the server hold their replies.
func TestUnreadRepliesAreBounded(t *testing.T) {
	const requests, size = 1000, 1 << 20
	var begun atomic.Int64
	s := newServer(t, &yodel.ServerOptions{MaxMemory: 64 << 20})
	handle(t, s, "Big", func(*[]byte) (*[]byte, error) {
		begun.Add(1)
		b := make([]byte, size)
		return &b, nil
	})
	addr := serve(t, s)
	stop := heapPeak()
	p := newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Big"), Codec: []byte("raw")}))
	read := func(replies int) {
		for n := 0; n < replies; {
			if h, _ := p.frame(); (h.Type == wire.Reply || h.Type == wire.Data) && h.Flags&wire.More == 0 {
				n++
			}
		}
	}
	p.send(requestFrame(0, 0, nil, ""))
	read(1) // from now on the server knows how large the replies are
	for i := range uint32(requests - 1) {
		p.send(requestFrame(0, i+1, nil, ""))
	}
	until(t, "nothing moves", func() bool {
		was := begun.Load()
		<-time.After(100 * time.Millisecond)
		return was > 1 && begun.Load() == was
	})
	if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
		t.Errorf("another client: %v", err)
	}
	peak := stop()
	t.Logf("%d of %d handlers were begun, the heap grew by %d MiB", begun.Load(), requests, peak>>20)
	if peak > 160<<20 {
		t.Errorf("the heap grew by %d MiB, with a limit of 64 MiB and as much garbage", peak>>20)
	}
	read(requests - 1) // all are answered once they are read
}

// Messages that decompress to a multiple of what was sent are within the memory of their
// connection.
func TestDecompressedRequestsAreBounded(t *testing.T) {
	const requests, size = 100, 4 << 20
	bomb, err := flate.Compressor.Append(nil, make([]byte, size))
	must(t, err)
	release := make(chan struct{})
	var begun atomic.Int64
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}, MaxMemory: 32 << 20, Limits: yodel.Limits{MaxDecompressed: size}})
	handle(t, s, "Hold", func(ctx context.Context, _ *[]byte) (*[]byte, error) {
		begun.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return new([]byte), nil
	})
	addr := serve(t, s)
	stop := heapPeak()
	p := newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Hold"), Codec: []byte("raw"), Compressor: []byte("flate")}))
	for i := range uint32(requests) {
		h := wire.Header{Type: wire.Request, Flags: wire.Compressed, ID: wire.NextID(i)}
		p.send(wire.Finish(append(wire.Begin(nil, &h), bomb...), 0))
	}
	for range requests - 4 { // 16 MiB hold four
		if e := p.reply(); e.ID != "YDL3007" || !e.NotProcessed {
			t.Fatalf("got %v", e)
		}
	}
	until(t, "some are executed", func() bool { return begun.Load() > 0 })
	if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
		t.Errorf("another client: %v", err)
	}
	close(release)
	peak := stop()
	t.Logf("%d of %d were executed, the heap grew by %d MiB", begun.Load(), requests, peak>>20)
	if peak > 128<<20 {
		t.Errorf("the heap grew by %d MiB", peak>>20)
	}
}

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
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // then the runtime has no reserve of 8 MiB, which counts as heap
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
