// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// What was accepted before the drain is answered, what comes later is refused, and then the client
// closes.
func TestADrainFinishesWhatWasAccepted(t *testing.T) {
	release := make(chan struct{})
	s := &setup{serves: map[string]*handler{
		"echo":  {inline: true, serve: answerEcho},
		"other": {serve: func(r *mux.Request) { <-release; answerEcho(r) }},
	}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"), method(1, "other"), request(0, callID(0, 1), "short"), request(1, callID(1, 1), "long"),
		frameOf(wire.Header{Type: wire.Request, Arg: 1, Flags: wire.More, ID: callID(2, 1)}, &wire.Fields{Size: 9}, []byte("half ")))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	peer.expect(wire.MethodInfo)
	peer.expectReply(callID(0, 1))
	eventually(t, "the requests are known", func() bool { return srv.Tables().InOpen == 2 })
	srv.Drain()
	srv.Drain() // twice is once
	h, frame := peer.expect(wire.GoAway)
	var d wire.Drain
	if err := wire.ParseGoAway(frame[wire.HeaderSize:], &d); err != nil || h.Arg != 0 || d.Count != 3 {
		t.Errorf("got GoAway with code %d, %+v, %v, want a count of 3", h.Arg, d, err)
	}
	for i, number := range []uint16{0, 1} {
		peer.write(request(number, callID(uint32(3+i), 1), "late"))
		h, f, _ := peer.expectReply(callID(uint32(3+i), 1))
		if h.Arg != codeUnavailable || h.Flags&wire.NotProcessed == 0 || string(f.ErrorID) != "YDL3004" {
			t.Errorf("method %d: got %+v %+v, want a refusal", number, h, f)
		}
	}
	peer.write(frameOf(wire.Header{Type: wire.Data, ID: callID(2, 1)}, nil, []byte("more")))
	close(release)
	got := map[uint32]string{}
	for range 2 {
		h, frame := peer.expect(wire.Reply)
		got[h.ID] = messageOf(h, frame)
	}
	if got[callID(1, 1)] != "long" || got[callID(2, 1)] != "half more" {
		t.Errorf("got replies %v", got)
	}
	peer.nc.Close()
	if err := wantEnd(t, srv); err == nil {
		t.Error("the connection ended without a reason")
	}
}

// A request that the notice counts is answered, although the drain begins while the server reads
// it.
func TestADrainAnswersTheRequestThatIsBeingRead(t *testing.T) {
	var drain atomic.Pointer[mux.Conn]
	begun := func() { drain.Load().Drain() }
	s := &setup{serves: map[string]*handler{
		"inline": {inline: true, serve: answerEcho, begun: begun},
		"other":  {serve: answerEcho, begun: begun},
	}}
	for _, name := range []string{"inline", "other"} {
		peer, srv := s.facingServer(t)
		drain.Store(srv)
		peer.write(hello(nil), method(0, name), request(0, callID(0, 1), "counted"), request(0, callID(1, 1), "late"))
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		_, frame := peer.expect(wire.GoAway)
		var d wire.Drain
		if err := wire.ParseGoAway(frame[wire.HeaderSize:], &d); err != nil || d.Count != 1 {
			t.Errorf("%s: got %+v, %v, want a count of 1", name, d, err)
		}
		for range 2 {
			h, _ := peer.expect(wire.Reply) // in any order
			if late := h.ID == callID(1, 1); late != (h.Arg == codeUnavailable) {
				t.Errorf("%s: the call %#x got %+v", name, h.ID, h)
			}
		}
		peer.nc.Close()
		_ = wantEnd(t, srv)
	}
}

// Under load nothing is lost: each call is either answered or known not to have been executed.
func TestADrainLosesNothing(t *testing.T) {
	t.Attr("rerun", "never")
	rounds := 60
	if raceEnabled {
		rounds = 25
	}
	var refused, answered atomic.Int64
	for round := range rounds {
		var executed sync.Map
		serve := func(r *mux.Request) {
			n, _ := executed.LoadOrStore(string(r.Body), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			answerEcho(r)
		}
		s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: serve}, "other": {serve: serve}}}
		c, srv := s.overTCP(t)
		mustEcho(t, c, echo, "first")
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				for j := 0; ; j++ {
					body := fmt.Sprint(i, " ", j)
					if j%50 == 49 {
						body += string(make([]byte, 100<<10))
					}
					code, reply, err := call(context.Background(), c, []*mux.Method{echo, other}[i%2], body)
					n, ran := executed.Load(body)
					times := int64(0)
					if ran {
						times = n.(*atomic.Int64).Load()
					}
					switch {
					case err == nil && code == 0 && reply == body && times == 1:
						answered.Add(1)
						continue
					case err == nil && code == codeUnavailable && times == 0, notProcessed(err) && times == 0:
						refused.Add(1)
					default:
						t.Errorf("round %d, %.20q: code %d, error %v, executed %d times", round, body, code, err, times)
					}
					return
				}
			})
		}
		eventually(t, "calls are made", func() bool { return c.Counters().FramesIn > uint64(50+20*round%400) })
		srv.Drain()
		wg.Wait()
		if err := wantEnd(t, c); !errors.Is(err, mux.ErrDrained) {
			t.Errorf("the client ended with %v", err)
		}
		var end *mux.IOError
		if err := wantEnd(t, srv); !errors.As(err, &end) || end.Op != mux.EndOfStream {
			t.Errorf("the server ended with %v", err)
		}
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
	t.Logf("%d calls answered, %d refused", answered.Load(), refused.Load())
	if refused.Load() == 0 {
		t.Error("no call was refused: the test drains too late")
	}
}

// One-way requests that were sent before the notice was read are executed: nobody could be told of
// a refusal.
func TestOneWayRequestsAreExecutedDuringADrain(t *testing.T) {
	var executed atomic.Int64
	release := make(chan struct{})
	s := &setup{serves: map[string]*handler{
		"echo":  {serve: func(r *mux.Request) { <-release; answerEcho(r) }},
		"other": {inline: true, serve: func(*mux.Request) { executed.Add(1) }},
	}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"), method(1, "other"), request(0, callID(0, 1), "open"))
	peer.expectHello()
	eventually(t, "the request is known", func() bool { return srv.Tables().InOpen == 1 })
	srv.Drain()
	for range 10 {
		peer.write(frameOf(wire.Header{Type: wire.Request, Arg: 1, Flags: wire.OneWay}, nil, []byte("late")))
	}
	eventually(t, "all are executed", func() bool { return executed.Load() == 10 })
	close(release)
}

func TestOneWayRequestsAreWrittenBeforeADrainedClientCloses(t *testing.T) {
	for range 50 {
		var executed atomic.Int64
		s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": {serve: func(*mux.Request) { executed.Add(1) }}}}
		c, srv := s.overTCP(t)
		mustEcho(t, c, echo, "first")
		sent := int64(0)
		for range 100 {
			if c.Notify(context.Background(), &mux.Out{Method: other, Body: make([]byte, 1000)}) == nil {
				sent++
			}
			if sent == 50 {
				srv.Drain()
			}
		}
		wantEnd(t, c)
		wantEnd(t, srv)
		eventually(t, "all one-way requests are executed", func() bool { return executed.Load() == sent })
	}
}

// In fake time: how long a draining connection waits.
func TestADrainWaitsForHandlersHoweverLong(t *testing.T) {
	for _, way := range []string{"inline", "pool", "one-way", "call to the client"} {
		synctest.Test(t, func(t *testing.T) {
			long := func(r *mux.Request) { time.Sleep(time.Minute); answerEcho(r) }
			began := make(chan *mux.Conn, 1)
			s := &setup{
				serves: map[string]*handler{
					"echo":  {inline: way == "inline", serve: func(r *mux.Request) { began <- r.Conn(); long(r) }},
					"other": {serve: answerEcho},
				},
				clientServes: map[string]*handler{"third": {inline: true, serve: long}},
			}
			c, srv := s.inMemory(t)
			mustEcho(t, c, other, "first")
			var ended <-chan calling
			var executed atomic.Int64 // when
			start := time.Now()
			switch way {
			case "call to the client":
				ended = startCall(srv, context.Background(), &mux.Out{Method: third, Body: []byte("long")})
				synctest.Wait()
			case "one-way":
				s.serves["echo"].done = func(*mux.Request, bool) { executed.Store(int64(time.Since(start))) }
				if err := c.Notify(context.Background(), &mux.Out{Method: echo}); err != nil {
					t.Fatal(err)
				}
				<-began
			default:
				ended = startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("long")})
				<-began
			}
			srv.Drain()
			switch way {
			case "one-way":
				<-srv.Ended()
				synctest.Wait()
				time.Sleep(time.Hour)
				if took := time.Duration(executed.Load()); took != time.Minute {
					t.Errorf("the one-way handler ended after %v", took)
				}
				return
			default:
				if got := <-ended; got.err != nil || got.reply != "long" || time.Since(start) != time.Minute {
					t.Errorf("%s: got %+v after %v", way, got, time.Since(start))
				}
			}
			<-c.Ended()
			<-srv.Ended()
			if waited := time.Since(start) - time.Minute; waited > 2*time.Second {
				t.Errorf("%s: the connection ended %v later", way, waited)
			}
		})
	}
}

// A peer that was told to go and does not is left after a while.
func TestADrainDoesNotWaitForThePeerToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		srv := mux.New(server, nil, false, new(setup).config(t, mux.Config{}, nil))
		peer := newRawPeer(t, client)
		peer.write(hello(nil))
		synctest.Wait()
		start := time.Now()
		srv.Drain()
		<-srv.Ended()
		if took := time.Since(start); took != time.Second || !errors.Is(srv.Err(), mux.ErrClosed) {
			t.Errorf("it ended after %v with %v", took, srv.Err())
		}
	})
}

// A drained client that has calls of its own closes when they have ended; one that executes
// requests finishes them.
func TestCloseWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) { time.Sleep(time.Second); answerEcho(r) }}}}
		c, srv := s.inMemory(t)
		ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("open")})
		synctest.Wait()
		c.CloseWhenIdle()
		if _, _, err := call(context.Background(), c, echo, "late"); !errors.Is(err, mux.ErrRetired) || !notProcessed(err) {
			t.Errorf("a call afterwards: got %v", err)
		}
		if c.Usable() {
			t.Error("the connection is usable")
		}
		if got := <-ended; got.err != nil || got.reply != "open" {
			t.Errorf("the open call: got %+v", got)
		}
		<-c.Ended()
		if !errors.Is(c.Err(), mux.ErrRetired) {
			t.Errorf("the client ended with %v", c.Err())
		}
		<-srv.Ended()
	})
}

// The owner is told before the calls are, so that they can go elsewhere.
func TestADrainIsTold(t *testing.T) {
	var unusable atomic.Int64
	s := &setup{client: mux.Config{Unusable: func(c *mux.Conn) {
		if c.Usable() {
			t.Error("the connection is still usable")
		}
		unusable.Add(1)
	}}}
	peer, c, ids, open := fullWindow(t, s, 1)
	late := startCall(c, context.Background(), &mux.Out{Method: echo})
	waiting(t, c, 1)
	peer.write(wire.AppendGoAway(nil, 0, &wire.Drain{Count: 1}))
	got := within(t, "the waiting call ends", late)
	if !notProcessed(got.err) {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the owner is told", func() bool { return unusable.Load() == 1 })
	peer.write(reply(ids[0], ""))
	within(t, "the open call ends", open[0])
	wantEnd(t, c)
}

// Of two notices the smaller count is true: what it leaves out was certainly not executed.
func TestRequestsBeyondTheCountWereNotProcessed(t *testing.T) {
	peer, c, _, open := fullWindow(t, new(setup), 4)
	peer.write(wire.AppendGoAway(nil, 0, &wire.Drain{Count: 2}), wire.AppendGoAway(nil, codeInternal, &wire.Drain{Count: 4, Message: []byte("a breach")}))
	for i, end := range open {
		got := within(t, "the call ends", end)
		if want := i >= 2; notProcessed(got.err) != want {
			t.Errorf("call %d: not processed: %t, want %t (%v)", i, !want, want, got.err)
		}
		var refusal *mux.Refusal
		if !errors.As(got.err, &refusal) || refusal.Code != codeInternal || refusal.Message != "a breach" {
			t.Errorf("call %d: got error %v", i, got.err)
		}
	}
	wantEmpty(t, "the client", c)
}
