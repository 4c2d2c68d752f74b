// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// fieldsOf returns the fields of a request.
func (p *rawPeer) fieldsOf(h wire.Header, frame []byte) (f wire.Fields) {
	p.t.Helper()
	fields, _, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

// nestedRequest is a request in the service of call parent.
func nestedRequest(number uint16, id, parent uint32, body string) []byte {
	return frameOf(wire.Header{Type: wire.Request, Arg: number, ID: id}, &wire.Fields{Parent: uint64(parent)}, []byte(body))
}

func TestARequestThatServesACallGoesBeyondTheWindow(t *testing.T) {
	for _, inline := range []bool{false, true} {
		kept := make(chan context.Context, 1)
		ended := make(chan struct{})
		back := func(r *mux.Request) {
			kept <- context.WithoutCancel(r)
			ctx, cancel := context.WithCancel(r)
			defer cancel()
			code, reply, err := callOut(ctx, r.Conn(), &mux.Out{Method: echo, Body: r.Body, NoWait: true})
			if err != nil || code != 0 {
				t.Errorf("the handler's call: got code %d, error %v", code, err)
			}
			r.Reply.Body = []byte(reply)
		}
		s := &setup{clientServes: map[string]*handler{"back": {inline: inline, serve: back, done: func(*mux.Request, bool) { close(ended) }}}}
		peer, c, ids, ends := fullWindow(t, s, 1)
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo}))
		waiting(t, c, 1)
		peer.write(method(0, "back"), request(0, callID(7, 1), "round"))
		peer.expect(wire.MethodInfo)
		h, frame := peer.expect(wire.Request)
		if f := peer.fieldsOf(h, frame); f.Parent != uint64(callID(7, 1)) {
			t.Errorf("the request names call %#x, want %#x", f.Parent, callID(7, 1))
		}
		peer.write(reply(h.ID, "trip"))
		if _, _, body := peer.expectReply(callID(7, 1)); body != "trip" {
			t.Errorf("the handler's reply is %q", body)
		}
		// It is a place of its own: it was not given to the caller that waits, and the end of it
		// admits nobody.
		waiting(t, c, 1)
		within(t, "the handler has ended", ended)
		if _, _, err := callOut(<-kept, c, &mux.Out{Method: echo, NoWait: true}); !errors.Is(err, mux.ErrWindow) {
			t.Errorf("with the context of a handler that has ended: got %v", err)
		}
		peer.write(reply(ids[0], ""))
		h, _ = peer.expect(wire.Request)
		if h.Flags&wire.HasFields != 0 {
			t.Error("a request within the window names a call")
		}
		peer.write(reply(h.ID, ""))
		for _, end := range ends {
			if got := within(t, "the call ends", end); got.err != nil {
				t.Error(got.err)
			}
		}
		wantEmpty(t, "the client", c)
	}
}

// A recursion without end ends: nothing that serves a call waits.
func TestRequestsBeyondTheWindowHaveALimitToo(t *testing.T) {
	const extra = 1024 // with a window of 1
	results, begun := make(chan error, extra+1), make(chan struct{})
	back := func(r *mux.Request) {
		done := make(chan error, extra+1)
		for range extra + 1 {
			err := r.Conn().Start(r, &mux.Out{Method: echo}, completed(func(_ *mux.Answer, err error) { done <- err }))
			if err != nil {
				done <- err
			}
		}
		close(begun)
		for range extra + 1 {
			results <- <-done
		}
	}
	peer, c, ids, ends := fullWindow(t, &setup{clientServes: map[string]*handler{"back": {serve: back}}}, 1)
	peer.write(method(0, "back"), request(0, callID(0, 1), ""))
	peer.expect(wire.MethodInfo)
	var answers [][]byte
	for range extra {
		h, _ := peer.expect(wire.Request)
		if slot := wire.Slot(h.ID); slot > extra {
			t.Fatalf("slot %d is beyond the limit", slot)
		}
		answers = append(answers, reply(h.ID, ""))
	}
	within(t, "all calls have begun", begun)
	peer.write(answers...)
	peer.expectReply(callID(0, 1))
	full := 0
	for range extra + 1 {
		switch err := within(t, "a call ends", results); {
		case errors.Is(err, mux.ErrWindow) && notProcessed(err):
			full++
		case err != nil:
			t.Error(err)
		}
	}
	if full != 1 {
		t.Errorf("%d calls were too many, want 1", full)
	}
	peer.write(reply(ids[0], ""))
	within(t, "the first call ends", ends[0])
	wantEmpty(t, "the client", c)
}

func TestACallThatIsOpenLetsRequestsInBeyondTheWindow(t *testing.T) {
	const extra = 1024
	limits := defaultLimits()
	limits.MaxOpen, limits.MaxOpenBytes = 1, 100
	release := make(chan struct{})
	var executed atomic.Int64
	s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{
		"other": {serve: func(r *mux.Request) { executed.Add(1); <-release; answerEcho(r) }},
	}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "other"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	end := startCall(srv, context.Background(), &mux.Out{Method: echo})
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	parent := h.ID
	refused := func(id uint32, what string) {
		t.Helper()
		h, f, _ := peer.expectReply(id)
		if h.Arg != codeExhausted || h.Flags&wire.NotProcessed == 0 || !strings.Contains(string(f.Message), what) {
			t.Errorf("got %+v %+v, want a refusal because of %q", h, f, what)
		}
	}
	peer.write(nestedRequest(0, callID(1, 1), parent, strings.Repeat("x", 200))) // before the window is full
	peer.write(request(0, callID(0, 1), "x"))                                    // it does not use the window up
	peer.write(request(0, callID(2, 1), "x"))
	refused(callID(2, 1), "1 requests are open")
	for _, wrong := range []uint32{parent + 1, parent + 1<<wire.SlotBits, 1} {
		peer.write(nestedRequest(0, callID(2, 2), wrong, "x"))
		refused(callID(2, 2), "1 requests are open")
	}
	peer.write(frameOf(wire.Header{Type: wire.Request, ID: callID(2, 3)}, &wire.Fields{Parent: 1 << 40}, nil))
	refused(callID(2, 3), "1 requests are open")
	peer.write(nestedRequest(0, callID(2, 4), parent, strings.Repeat("x", 60<<10)))
	for slot := uint32(3); slot <= extra; slot++ {
		peer.write(nestedRequest(0, callID(slot, 1), parent, ""))
	}
	eventually(t, "all but the last are executed", func() bool { return executed.Load() == extra+1 })
	srv.Drain() // which is not for those
	peer.expect(wire.GoAway)
	close(release)
	for range extra + 1 {
		if h, _ := peer.expect(wire.Reply); h.Arg != 0 {
			t.Errorf("got %+v, want a reply", h)
		}
	}
	peer.write(request(0, callID(0, 2), ""), nestedRequest(0, callID(1, 2), parent, "still"))
	replies := map[uint32]uint16{}
	for range 2 {
		h, _ := peer.expect(wire.Reply)
		replies[h.ID] = h.Arg
	}
	if replies[callID(0, 2)] != codeUnavailable || replies[callID(1, 2)] != 0 {
		t.Errorf("during the drain: got codes %v", replies)
	}
	peer.write(reply(parent, ""))
	if got := within(t, "the server's call ends", end); got.err != nil {
		t.Error(got.err)
	}
	wantEmpty(t, "the server", srv)
}

// What serves a call of the peer is sent also when the peer drains the connection.
func TestADrainIsNotForRequestsThatServeACall(t *testing.T) {
	begun, drained := make(chan struct{}), make(chan struct{})
	back := func(r *mux.Request) {
		close(begun)
		<-drained
		if err := r.Conn().Notify(r, &mux.Out{Method: echo}); !errors.Is(err, mux.ErrDrained) {
			t.Errorf("a one-way request: got %v", err)
		}
		_, reply, err := callOut(r, r.Conn(), &mux.Out{Method: echo})
		if err != nil {
			t.Error(err)
		}
		r.Reply.Body = []byte(reply)
	}
	s := &setup{clientServes: map[string]*handler{"back": {serve: back}}}
	told := sync.OnceFunc(func() { close(drained) })
	s.client.Unusable = func(*mux.Conn) { told() }
	peer, c := s.facingClient(t)
	peer.write(hello(nil), method(0, "back"), request(0, callID(0, 1), ""))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	within(t, "the handler runs", begun)
	peer.write(wire.AppendGoAway(nil, 0, &wire.Drain{}))
	peer.expect(wire.Method)
	h, frame := peer.expect(wire.Request)
	if f := peer.fieldsOf(h, frame); f.Parent != uint64(callID(0, 1)) {
		t.Errorf("the request names call %#x", f.Parent)
	}
	peer.write(reply(h.ID, "late"))
	if _, _, body := peer.expectReply(callID(0, 1)); body != "late" {
		t.Errorf("got %q", body)
	}
	if err := wantEnd(t, c); !errors.Is(err, mux.ErrDrained) {
		t.Errorf("the connection ended with %v", err)
	}
}

// Refuse accepts no more requests, finishes those that were accepted, and leaves the connection
// alone.
func TestASideThatRefusesGoesOn(t *testing.T) {
	release := make(chan struct{})
	begun := make(chan *mux.Request, 1)
	s := &setup{
		serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}},
		clientServes: map[string]*handler{
			"echo":  {inline: true, serve: answerEcho},
			"other": {inline: true, serve: func(r *mux.Request) { begun <- r; <-release; answerEcho(r) }},
		},
	}
	c, srv := s.overTCP(t)
	mustEcho(t, srv, echo, "before")
	open := startCall(srv, context.Background(), &mux.Out{Method: other, Body: []byte("accepted")})
	r := within(t, "the handler runs", begun)
	quiet := c.Refuse()
	within(t, "who asked is told", r.Draining())
	for _, m := range []*mux.Method{echo, other} {
		a, err := srv.Call(context.Background(), &mux.Out{Method: m})
		if err != nil {
			t.Fatal(err)
		}
		if a.Code != codeUnavailable || a.Flags&wire.NotProcessed == 0 {
			t.Errorf("%s: got code %d, flags %#x", m.Name, a.Code, a.Flags)
		}
		a.Release()
	}
	if err := srv.Notify(context.Background(), &mux.Out{Method: other}); err != nil {
		t.Error(err)
	}
	mustEcho(t, c, echo, "the other way round")
	select {
	case <-quiet:
		t.Error("it is quiet though a handler runs")
	default:
	}
	close(release)
	if got := within(t, "the accepted call ends", open); got.err != nil || got.reply != "accepted" {
		t.Errorf("got %+v", got)
	}
	within(t, "it is quiet", quiet)
	within(t, "it is quiet", c.Refuse())
	mustEcho(t, c, echo, "afterwards")
	if len(begun) != 0 {
		t.Error("a one-way request was executed after that")
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// No handler runs once it is quiet, wherever the connection is in its work.
func TestNothingRunsOnceASideIsQuiet(t *testing.T) {
	for round := range 50 {
		var running, after atomic.Int64
		s := &setup{clientServes: map[string]*handler{"echo": {inline: round%2 == 0, serve: func(r *mux.Request) {
			running.Add(1)
			answerEcho(r)
			running.Add(-1)
		}}}}
		c, srv := s.overTCP(t)
		ends := make(chan struct{})
		started := make(chan struct{}, 4)
		for range 4 {
			go func() {
				defer func() { ends <- struct{}{} }()
				for i := 0; ; i++ {
					code, _, err := call(context.Background(), srv, echo, "x")
					if err != nil || code == codeUnavailable {
						return
					}
					if i == 3 {
						started <- struct{}{}
					}
				}
			}()
		}
		within(t, "calls go on", started)
		within(t, "it is quiet", c.Refuse())
		after.Store(running.Load())
		for range 4 {
			within(t, "a caller is refused", ends)
		}
		if n := after.Load(); n != 0 {
			t.Fatalf("%d handlers ran", n)
		}
		wantEmpty(t, "the client", c)
	}
}

// More one-way requests come than are executed, and their handlers call back: their replies must be
// read. When there are more of them than that, the calls fail, and no request is lost.
func TestAFloodOfOneWayRequestsDoesNotBlockTheirHandlers(t *testing.T) {
	const flood = 3000
	limits := defaultLimits()
	limits.MaxOpen, limits.KeepAlive = 1, 500*time.Millisecond // none ends for so long
	var executed atomic.Int64
	flooded := make(chan error, flood)
	s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{"other": {serve: func(r *mux.Request) {
		if _, _, err := callOut(context.Background(), r.Conn(), &mux.Out{Method: echo}); err != nil {
			flooded <- err
		}
		executed.Add(1)
	}}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "other"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	var all []byte
	for range flood {
		all = append(all, frameOf(wire.Header{Type: wire.Request, Flags: wire.OneWay}, nil, nil)...)
	}
	peer.write(all)
	if err := within(t, "a call fails", flooded); !errors.Is(err, mux.ErrFlooded) {
		t.Errorf("got %v", err)
	}
	go func() { // from now on the peer answers
		for {
			h, _, err := peer.frame()
			if err != nil {
				return
			}
			if h.Type == wire.Request {
				if _, err := peer.nc.Write(reply(h.ID, "")); err != nil {
					return
				}
			}
		}
	}()
	eventually(t, "all are executed", func() bool { return executed.Load() == flood })
	close(flooded)
	for err := range flooded {
		if !errors.Is(err, mux.ErrFlooded) {
			t.Errorf("got %v", err)
		}
	}
	wantEmpty(t, "the server", srv)
	if code, _, err := call(context.Background(), srv, echo, "afterwards"); err != nil || code != 0 {
		t.Errorf("afterwards: got code %d, %v", code, err)
	}
}
