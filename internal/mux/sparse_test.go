// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// untilCanceled is a method that waits for its context.
func untilCanceled(r *mux.Request) {
	<-r.Done()
	r.Reply = mux.Outcome{Code: codeCanceled}
}

// highestSlot is the highest one that the default limits allow.
const highestSlot = 3*16384 - 1

// A peer that uses the highest slot and the highest method number takes memory for one request and
// one method.
func TestHighNumbersTakeLittleMemory(t *testing.T) {
	const conns, most = 100, 40 << 10
	s := &setup{serves: map[string]*handler{"wait": {serve: untilCanceled}}}
	cfg := s.config(t, mux.Config{}, s.serves)
	before := heapInUse()
	open := make([]*mux.Conn, conns)
	for i := range open {
		client, server := memoryPair(0)
		open[i] = mux.New(server, nil, false, cfg)
		t.Cleanup(open[i].Close)
		_, _ = client.Write(hello(nil))
		_, _ = client.Write(method(1023, "wait"))
		_, _ = client.Write(request(1023, callID(highestSlot, 1), ""))
	}
	for _, c := range open {
		eventually(t, "the request is open", func() bool { return c.Tables().InOpen == 1 })
	}
	if each := (int(heapInUse()) - int(before)) / conns; each > most {
		t.Errorf("a connection with one request takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(open)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A request is found by its id in whatever slot its peer opened it.
func TestRequestsAreFoundInAnySlot(t *testing.T) {
	s := &setup{serves: map[string]*handler{"wait": {serve: untilCanceled}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "wait"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	slots := []uint32{0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 4095, 20000, highestSlot - 1, highestSlot}
	for range 10 {
		rand.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		for _, slot := range slots {
			peer.write(request(0, callID(slot, 1), ""))
		}
		eventually(t, "all requests are open", func() bool { tables := srv.Tables(); return tables.InOpen == len(slots) && tables.In == len(slots) })
		rand.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		for _, slot := range slots {
			peer.write(cancelOf(callID(slot, 1), codeCanceled))
			peer.expectReply(callID(slot, 1))
		}
		wantEmpty(t, "the server", srv)
	}
}
