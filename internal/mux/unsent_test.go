// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A peer that sends requests and does not read the replies: memory is bounded, and it goes on when
// it reads again.
func TestAPeerThatDoesNotReadCostsBoundedMemory(t *testing.T) {
	for _, inline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const bodySize, requests, running = 10_000, 500, 20
			var executed atomic.Int64
			limits := quietLimits(0, 0)
			limits.MaxUnsent, limits.MaxOpen = 100_000, running
			s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: inline, serve: func(r *mux.Request) {
				executed.Add(1)
				r.Scratch = append(r.Scratch, make([]byte, bodySize)...)
				r.Reply.Body = r.Scratch
			}}}}
			client, server := memoryPair(50_000)
			srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
			defer srv.Close()
			go func() { // more than the server takes
				all := append(hello(nil), method(0, "echo")...)
				for i := range uint32(requests) {
					all = append(all, request(0, callID(i%1024, i/1024+1), "")...)
				}
				_, _ = client.Write(all)
			}()
			synctest.Wait()
			bound := 2*limits.MaxUnsent + 2*mux.MaxFrame
			if n := srv.Tables().Unsent; n > bound {
				t.Errorf("inline %t: %d bytes wait to be written, the bound is %d", inline, n, bound)
			}
			if n := executed.Load(); n > int64((bound+50_000)/bodySize+running) || n == 0 {
				t.Errorf("inline %t: %d requests were executed for a peer that does not read", inline, n)
			}
			if in := srv.Counters().BytesIn; in > 30_000 {
				t.Errorf("inline %t: %d bytes were read from a peer that does not read", inline, in)
			}
			// It reads again.
			peer := newRawPeer(t, client)
			peer.expectHello()
			answered, refused := 0, 0
			for answered+refused < requests {
				h, frame, err := peer.frame()
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case h.Type == wire.MethodInfo:
				case h.Type == wire.Reply && h.Arg == 0 && len(frame) == wire.HeaderSize+bodySize:
					answered++
				case h.Type == wire.Reply && h.Arg == codeExhausted && h.Flags&wire.NotProcessed != 0:
					refused++
				default:
					t.Fatalf("got %+v", h)
				}
			}
			if int64(answered) != executed.Load() || inline && refused != 0 {
				t.Errorf("inline %t: %d requests were answered and %d refused, %d executed", inline, answered, refused, executed.Load())
			}
			wantEmpty(t, "the server", srv)
		})
	}
}

// What needs no handler is bounded too: refusals, pongs and method information.
func TestAnswersWithoutHandlersAreBounded(t *testing.T) {
	limits := quietLimits(0, 0)
	limits.MaxUnsent, limits.MaxOpen, limits.MaxMessage = 10_000, 1, 10
	tests := map[string]func(i uint32) []byte{
		"refusals": func(i uint32) []byte { return request(0, callID(i%1024, i/1024+1), "more than 10 bytes") },
		"pings":    func(i uint32) []byte { return ping(uint64(i)) },
		"methods":  func(i uint32) []byte { return method(uint16(i%1024), "echo") },
		"canceled": func(i uint32) []byte {
			id := callID(i%1024, i/1024+1)
			return append(
				frameOf(wire.Header{Type: wire.Request, Flags: wire.More, ID: id}, &wire.Fields{Size: 9}, nil),
				frameOf(wire.Header{Type: wire.Cancel, ID: id}, nil, nil)...)
		},
	}
	for name, frame := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
				client, server := memoryPair(1000)
				srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
				defer srv.Close()
				defer client.Close()
				go func() {
					_, _ = client.Write(append(hello(nil), method(0, "echo")...))
					for i := range uint32(200_000) {
						if _, err := client.Write(frame(i)); err != nil {
							return
						}
					}
				}()
				synctest.Wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				const bound = 2_000_000 // those of one read
				if n := srv.Tables().Unsent; n > bound {
					t.Errorf("%d bytes wait to be written to a peer that does not read", n)
				}
				// those that come too fast are not answered
				if in := srv.Counters().BytesIn; in > 1<<20 && name != "pings" {
					t.Errorf("%d bytes were read of a peer that does not read", in)
				}
				if srv.Err() != nil {
					t.Errorf("the connection ended: %v", srv.Err())
				}
			})
		})
	}
}

// Other connections do not notice.
func TestAPeerThatDoesNotReadDisturbsNobody(t *testing.T) {
	limits := defaultLimits()
	limits.MaxUnsent = 100_000
	s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	s.server.Pool = mux.NewPool() // shared by the connections, as those of a server
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"))
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for i := range uint32(100_000) {
			if _, err := peer.nc.Write(request(0, callID(i%1024, i/1024+1), string(make([]byte, 50_000)))); err != nil {
				return
			}
		}
	}()
	eventually(t, "its replies wait", func() bool { return srv.Tables().Unsent > 0 })
	t.Cleanup(func() {
		peer.nc.Close()
		<-stuck
	})
	client, server := tcpPair(t)
	cfg := s.config(t, mux.Config{Pool: mux.NewPool()}, s.serves)
	srv2 := mux.New(server, nil, false, cfg)
	t.Cleanup(srv2.Abort)
	c := mux.New(client, nil, true, s.config(t, s.client, nil))
	t.Cleanup(c.Close)
	for i := range 1000 {
		mustEcho(t, c, echo, fmt.Sprint(i))
	}
	if n := srv.Tables().Unsent; n > 2*limits.MaxUnsent+mux.MaxFrame {
		t.Errorf("%d bytes wait to be written", n)
	}
	srv.Abort()
}

// Both sides call each other with more than the sockets hold, and with handlers on the reading
// goroutine: neither may wait for the other to read.
func TestTwoSidesThatFloodEachOtherDoNotBlock(t *testing.T) {
	limits := quietLimits(0, 0)
	limits.MaxUnsent = 70_000
	for _, inline := range []bool{true, false} {
		s := &setup{
			limits: limits, buffer: 100_000,
			serves:       map[string]*handler{"echo": {inline: inline, serve: answerEcho}},
			clientServes: map[string]*handler{"echo": {inline: inline, serve: answerEcho}},
		}
		c, srv := s.inMemory(t)
		mustEcho(t, c, echo, "first")
		var wg sync.WaitGroup
		for i, conn := range []*mux.Conn{c, srv} {
			for range 20 {
				wg.Go(func() {
					body := filled(byte('a'+i), 50_000)
					for range 20 {
						ctx, cancel := context.WithTimeout(context.Background(), patience)
						_, got, err := callOut(ctx, conn, &mux.Out{Method: echo, Body: body})
						cancel()
						if err != nil || got != string(body) {
							t.Errorf("inline %t: got %d bytes, error %v", inline, len(got), err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
}

// A bound that is smaller than one message is kept as far as it goes.
func TestASmallBoundOfUnsentBytes(t *testing.T) {
	limits := defaultLimits()
	limits.MaxUnsent = 1
	s := &setup{limits: limits, serves: map[string]*handler{
		"echo":  {inline: true, serve: answerEcho},
		"other": {serve: answerEcho},
	}}
	c, srv := s.overTCP(t)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for j := range 50 {
				mustEcho(t, c, []*mux.Method{echo, other}[j%2], string(filled(byte('a'+i), i*j*1000)))
			}
		})
	}
	wg.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}
