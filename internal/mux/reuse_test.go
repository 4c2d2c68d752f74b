// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A waiter goes back to the pool after its call's slot was cleared. Before that the reader of its
// connection could complete a call on another connection, which had taken the waiter from the pool
// and had the same id.
func TestAWaiterIsReusedOnlyAfterItsSlotIsCleared(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that a pool returns what was put there last
	for range 8 {                                   // the race detector has pools drop some of it
		swapWaiters(t)
	}
}

// swapWaiters has a caller give up when the reply to its call has been read, and has a call made on
// another connection before the first caller can clear its slot.
func swapWaiters(t *testing.T) {
	t.Helper()
	s := new(setup)
	cfg := s.config(t, mux.Config{}, nil) // with one pool for both connections
	facing := func() (*rawPeer, *mux.Conn) {
		client, server := tcpPair(t)
		c := mux.New(client, nil, true, cfg)
		t.Cleanup(c.Close)
		return newRawPeer(t, server), c
	}
	request := func(peer *rawPeer) uint32 {
		peer.expectHello()
		peer.expect(wire.Method)
		h, _ := peer.expect(wire.Request)
		return h.ID
	}
	peer1, c1 := facing()
	peer2, c2 := facing()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, second := make(chan error, 1), make(chan string, 1)
	go func() {
		_, _, err := call(ctx, c1, echo, "")
		first <- err
	}()
	id := request(peer1)
	peer1.write(hello(&wire.Limits{MaxOpen: 100}))
	eventually(t, "the settings have come", func() bool { open, _ := c1.Window(); return open == 100 })

	release := c1.Hold()
	peer1.write(reply(id, "of another connection"))
	untilRunning(t, "mux.(*reader).deliver(")
	cancel()
	untilRunning(t, "mux.(*callsOut).abandon(")
	go func() {
		_, got, err := call(context.Background(), c2, echo, "")
		if err != nil {
			got = err.Error()
		}
		second <- got
	}()
	if other := request(peer2); other != id {
		t.Fatalf("the calls have ids %#x and %#x, which must be the same for the test to mean anything", id, other)
	}
	release()
	if err := within(t, "the first call ends", first); !errors.Is(err, context.Canceled) {
		t.Errorf("the first call: got error %v, want one that says that it was canceled", err)
	}
	wantEmpty(t, "the first connection", c1)
	peer2.write(hello(nil), reply(id, "own"))
	if got := within(t, "the second call ends", second); got != "own" {
		t.Errorf("the second call: got %q, want its own reply", got)
	}
}

// untilRunning waits until a goroutine is in function.
func untilRunning(t *testing.T, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	eventually(t, "a goroutine is in "+function, func() bool {
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(function))
	})
}

// Canceling a stream that has ended does not end a later call that got the same id.
func TestALateCancelDoesNotEndALaterCallWithItsID(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	peer.write(hello(&wire.Limits{MaxOpen: 1}))
	st := mux.NewStream()
	if err := c.Start(context.Background(), &mux.Out{Method: streamMethod("feed", wire.Feed), Stream: st}, st); err != nil {
		t.Fatal(err)
	}
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	first := h.ID
	peer.write(reply(first, ""))
	if _, err := st.Wait(); err != nil {
		t.Fatal(err)
	}
	for {
		ended := startCall(c, context.Background(), &mux.Out{Method: echo})
		h, _, err := peer.frame()
		for err == nil && h.Type != wire.Request {
			h, _, err = peer.frame()
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ID == first {
			st.Cancel(errors.New("too late"))
		}
		peer.write(reply(h.ID, "own"))
		if got := within(t, "the call ends", ended); got.reply != "own" {
			t.Fatalf("call %#x: got %+v, want its own reply", h.ID, got)
		}
		if h.ID == first {
			return
		}
	}
}
