// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// block serves requests that stay open until the test ends.
func block(t *testing.T) *handler {
	t.Helper()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return &handler{serve: func(r *mux.Request) {
		select {
		case <-release:
		case <-r.Done():
		}
	}}
}

// nothingHeld waits until nothing is counted any more.
func (s *setup) nothingHeld(t *testing.T, m *memory.Limit) {
	t.Helper()
	eventually(t, "all memory has been given back", func() bool { return m.Used() == 0 })
}

// What a request holds is counted, whichever part of it is large, and refused when it is too much.
// Nothing is left when the peer goes.
func TestRequestsAreRefusedWhenThereIsNoMemory(t *testing.T) {
	const limit, size, many = 2 << 20, 60_000, 100
	opening := func(slot uint32) wire.Header {
		return wire.Header{Type: wire.Request, ID: wire.NextID(slot)}
	}
	for name, frames := range map[string]func(slot uint32) []byte{
		"body": func(slot uint32) []byte { return frameOf(opening(slot), nil, make([]byte, size)) },
		"fields": func(slot uint32) []byte {
			return frameOf(opening(slot), &wire.Fields{Trace: make([]byte, size)}, nil)
		},
		"unfinished": func(slot uint32) []byte {
			h := opening(slot)
			h.Flags |= wire.More
			return frameOf(h, &wire.Fields{Size: 20 * size}, make([]byte, size))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.NewLimit(64 << 20)
			limits := defaultLimits()
			limits.MaxMemory = limit
			s := &setup{server: mux.Config{Limits: limits, Memory: m}, serves: map[string]*handler{"block": block(t)}}
			peer, srv := s.facingServer(t)
			written := make(chan struct{})
			go func() {
				defer close(written)
				peer.write(hello(nil), method(0, "block"))
				for i := range uint32(many) {
					peer.write(frames(i))
				}
			}()
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			least := many - limit/size
			if name == "unfinished" {
				least = many - 9 // four times what has come is allocated
			}
			for i := range least {
				h, f, _ := peer.expectAnyReply()
				if h.Arg != codeExhausted || h.Flags&wire.NotProcessed == 0 || string(f.ErrorID) != "YDL3007" {
					t.Fatalf("reply %d: got code %d, %s %q", i, h.Arg, f.ErrorID, f.Message)
				}
			}
			<-written
			if used := m.Used(); used > limit+limit/8 {
				t.Errorf("%d bytes are in use, the limit is %d", used, limit)
			}
			peer.nc.Close()
			<-srv.Ended()
			s.nothingHeld(t, m)
		})
	}
}

// The names of methods count as long as the connection, and a number that gets another meaning is
// counted once.
func TestNamesOfMethodsAreCounted(t *testing.T) {
	m := memory.NewLimit(64 << 20)
	limits := defaultLimits()
	limits.MaxMemory = 100_000
	s := &setup{server: mux.Config{Limits: limits, Memory: m, Bind: echoName}}
	peer, _ := s.facingServer(t)
	peer.write(hello(nil))
	for range 1000 {
		peer.write(method(0, "a"))
	}
	peer.write(request(0, wire.NextID(0), ""))
	peer.expectHello()
	for range 1000 {
		peer.expect(wire.MethodInfo)
	}
	peer.expectReply(wire.NextID(0))
	for i := range uint16(300) {
		peer.write(method(i, "a"))
	}
	for {
		if h, _, err := peer.frame(); err != nil || h.Type == wire.GoAway {
			if err != nil || h.Arg != codeExhausted {
				t.Errorf("got %+v, %v; want a refusal with code %d", h, err, codeExhausted)
			}
			break
		}
	}
	peer.nc.Close()
	s.nothingHeld(t, m)
}

// A large message whose sender says nothing but pings does not stay. One that moves does, however
// slowly.
func TestARequestThatDoesNotComeWholeEnds(t *testing.T) {
	m := memory.NewLimit(64 << 20)
	limits := defaultLimits()
	limits.MaxMemory, limits.KeepAlive = 16<<20, 50*time.Millisecond
	s := &setup{server: mux.Config{Limits: limits, Memory: m}, serves: map[string]*handler{"echo": {serve: func(r *mux.Request) { r.Reply.Body = []byte("whole") }}}}
	peer, _ := s.facingServer(t)
	const size, pieces = 400_000, 40
	h := wire.Header{Type: wire.Request, Flags: wire.More, ID: wire.NextID(0)}
	peer.write(hello(nil), method(0, "echo"), frameOf(h, &wire.Fields{Size: size}, make([]byte, size/pieces)))
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for i := range pieces - 1 {
		h := wire.Header{Type: wire.Data, ID: wire.NextID(0)}
		if i < pieces-2 {
			h.Flags |= wire.More
		}
		peer.write(frameOf(h, nil, make([]byte, size/pieces)))
		<-pause.C // 40 pieces take 8 times as long as it takes to find a peer dead
	}
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	if h, _, body := peer.expectAnyReply(); h.Arg != 0 || body != "whole" {
		t.Errorf("a slow request: got code %d, %q", h.Arg, body)
	}
	h.ID = wire.NextID(h.ID)
	peer.write(frameOf(h, &wire.Fields{Size: size}, make([]byte, 50_000)))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = peer.nc.Write(ping(n))
			}
		}
	}()
	if h, f, _ := peer.expectAnyReply(); h.Arg != codeDeadline || h.Flags&wire.NotProcessed == 0 || string(f.ErrorID) != "YDL3008" {
		t.Errorf("a request that stands still: got code %d, %s %q", h.Arg, f.ErrorID, f.Message)
	}
	eventually(t, "its memory has been given back", func() bool { return m.Used() < 100_000 })
}

// A peer that asks for large replies and does not read them has few handlers begun. All of its
// requests are answered once it reads.
func TestRepliesWaitBeforeTheyAreMade(t *testing.T) {
	for name, test := range map[string]struct{ size, requests, most int }{
		"large":  {1 << 20, 300, 20},  // MaxMemory, MaxUnsent, and what the system buffers
		"medium": {30_000, 3000, 650}, // MaxMemory, MaxUnsent in the output, and up to 10 MiB that the system buffers
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.NewLimit(64 << 20)
			limits := defaultLimits()
			limits.MaxMemory, limits.MaxUnsent = 8<<20, 1<<20
			var begun atomic.Int64
			big := new(handler)
			big.serve = func(r *mux.Request) {
				begun.Add(1)
				r.Reply.Body = make([]byte, test.size)
				big.expects.Store(int64(test.size))
			}
			s := &setup{server: mux.Config{Limits: limits, Memory: m}, serves: map[string]*handler{"big": big}}
			peer, srv := s.facingServer(t)
			peer.write(hello(nil), method(0, "big"), request(0, wire.NextID(0), ""))
			eventually(t, "the size of a reply is known", func() bool { return big.expects.Load() > 0 })
			for i := range uint32(test.requests - 1) {
				peer.write(request(0, wire.NextID(i+1), ""))
			}
			eventually(t, "nothing moves", func() bool {
				was, received := begun.Load(), srv.Received()
				<-time.After(100 * time.Millisecond)
				return begun.Load() == was && was > 0 && srv.Received() == received
			})
			t.Logf("%d of %d requests have come, %d handlers were begun, %d bytes are in use", srv.Received(), test.requests, begun.Load(), m.Used())
			if n := begun.Load(); n > int64(test.most) {
				t.Errorf("%d handlers were begun though no reply was read, want at most %d", n, test.most)
			}
			if used := m.Used(); used > 16<<20 {
				t.Errorf("%d bytes are in use", used)
			}
			peer.expectHello()
			for n := 0; n < test.requests; {
				h, _, err := peer.frame()
				if err != nil {
					t.Fatalf("after %d of %d replies: %v", n, test.requests, err)
				}
				if (h.Type == wire.Reply || h.Type == wire.Data) && h.Flags&wire.More == 0 {
					n++
				}
			}
			peer.nc.Close()
			<-srv.Ended()
			s.nothingHeld(t, m)
		})
	}
}

// A connection that ends with requests that were not begun leaves none behind.
func TestRequestsThatWaitForMemoryEndWithTheirConnection(t *testing.T) {
	m := memory.NewLimit(64 << 20)
	limits := defaultLimits()
	limits.MaxMemory, limits.MaxUnsent = 8<<20, 1<<20
	big := &handler{serve: func(r *mux.Request) { r.Reply.Body = make([]byte, 1<<20) }}
	big.expects.Store(1 << 20)
	s := &setup{server: mux.Config{Limits: limits, Memory: m, Pool: mux.NewPool()}, serves: map[string]*handler{"big": big}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "big"))
	for i := range uint32(200) {
		peer.write(request(0, wire.NextID(i), ""))
	}
	eventually(t, "all requests have come", func() bool { return srv.Received() == 200 })
	peer.nc.Close()
	<-srv.Ended()
	<-s.server.Pool.Settled()
	s.nothingHeld(t, m)
}

// expectAnyReply reads the next reply, whatever comes before it.
func (p *rawPeer) expectAnyReply() (h wire.Header, f wire.Fields, body string) {
	p.t.Helper()
	for {
		h, frame, err := p.frame()
		if err != nil {
			p.t.Fatalf("waiting for a reply: %v", err)
		}
		if h.Type != wire.Reply {
			continue
		}
		fields, message, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
		if err == nil {
			err = wire.ParseFields(fields, &f)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		return h, f, string(message)
	}
}
