// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/halt"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Calls that are given up before they are sent, while they are open, and when they have just been
// answered leave nothing behind, and disturb nobody.
func TestCanceledCallsLeaveNothing(t *testing.T) {
	const calls, callers = 10_000, 100
	serve := func(r *mux.Request) {
		if len(r.Body) > 0 && r.Body[0] == 's' { // slow: until it is canceled
			<-r.Done()
		}
		answerEcho(r)
	}
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: serve}, "other": {serve: serve}}}
	c, srv := s.overTCP(t)
	var succeeded, canceled atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for j := range calls / callers {
				body := fmt.Sprintf("%c %d %d", "qs"[random.IntN(2)], i, j)
				if random.IntN(20) == 0 {
					body += string(make([]byte, 200_000))
				}
				ctx, cancel := context.WithCancel(context.Background())
				mustSucceed := false
				out := &mux.Out{Method: []*mux.Method{echo, other}[random.IntN(2)], Body: []byte(body)}
				switch random.IntN(4) {
				case 0:
					cancel() // before
				case 1:
					time.AfterFunc(time.Duration(random.IntN(1000))*time.Microsecond, cancel)
				case 2:
					out.Deadline = time.Now().Add(time.Duration(random.IntN(1000)) * time.Microsecond)
				default: // by the deadline at last
					out.Deadline = time.Now().Add(20 * time.Millisecond)
					if body[0] == 'q' {
						out.Deadline = time.Now().Add(patience)
						mustSucceed = true
					}
				}
				var reply string
				var err error
				switch random.IntN(4) {
				case 0:
					_, reply, err = callOut(ctx, c, out)
				case 1:
					_, reply, err = callOut(&halting{Context: ctx}, c, out)
				default:
					_, reply, err = startAndWait(ctx, c, out)
				}
				cancel() // perhaps after
				switch {
				case mustSucceed && (err != nil || reply != body):
					t.Errorf("%.20q, %d bytes by %s: got %.20q, error %v", body, len(body), out.Method.Name, reply, err)
				case err == nil && reply == body:
					succeeded.Add(1)
				case errors.Is(err, context.Canceled), errors.Is(err, mux.ErrDeadline):
					canceled.Add(1)
				case err == nil && reply == "": // the server had noticed first that it was too late
					canceled.Add(1)
				default:
					t.Errorf("%.20q: got %.20q, error %v", body, reply, err)
				}
			}
		})
	}
	wg.Wait()
	if succeeded.Load() < calls/50 || canceled.Load() < calls/50 {
		t.Errorf("%d calls succeeded and %d were given up: the test does not mix them", succeeded.Load(), canceled.Load())
	}
	mustEcho(t, c, echo, "the connection goes on")
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A halting context ends by telling the connection.
type halting struct {
	context.Context

	stop   func() bool
	halted chan struct{}
}

func (h *halting) Outer() <-chan struct{} { return nil }

func (h *halting) Await(conn halt.Conn, id uint32) {
	if h.stop != nil && !h.stop() {
		<-h.halted
	}
	h.stop = nil
	if conn != nil {
		halted := make(chan struct{})
		h.halted = halted
		h.stop = context.AfterFunc(h.Context, func() {
			defer close(halted)
			conn.Halt(id)
		})
	}
}

func startAndWait(ctx context.Context, c *mux.Conn, out *mux.Out) (code uint16, reply string, err error) {
	ended := make(chan struct{})
	var times atomic.Int64
	started := c.Start(ctx, out, completed(func(a *mux.Answer, e error) {
		if times.Add(1) > 1 {
			panic("a call was completed twice")
		}
		if err = e; e == nil {
			code, reply = a.Code, string(a.Body)
		}
		close(ended)
	}))
	if started != nil {
		return 0, "", started
	}
	<-ended
	return code, reply, err
}

func TestCancelingACallCancelsItsHandler(t *testing.T) {
	for _, inline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			errGone := errors.New("gone")
			var why, cause error
			var after atomic.Int64
			s := &setup{serves: map[string]*handler{"echo": {inline: inline, serve: func(r *mux.Request) {
				stop := r.AfterFunc(func() { after.Add(1) })
				unused := r.AfterFunc(func() { after.Add(100) })
				if !unused() || unused() {
					t.Error("stopping a function that had not run: got false, or twice true")
				}
				if r.Err() != nil || r.Cause() != nil {
					t.Errorf("before: error %v, cause %v", r.Err(), r.Cause())
				}
				<-r.Done()
				why, cause = r.Err(), r.Cause()
				time.Sleep(time.Millisecond) // in fake time: the functions have run
				if stop() {
					t.Error("stopping a function that had run: got true")
				}
				r.AfterFunc(func() { after.Add(10) })
				answerEcho(r)
			}}}}
			c, srv := s.inMemory(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			ended := startCall(c, ctx, &mux.Out{Method: echo})
			synctest.Wait()
			cancel(errGone)
			if got := <-ended; got.err != errGone {
				t.Errorf("got %+v, want the cause", got)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if why != context.Canceled || cause == nil {
				t.Errorf("inline %t: the handler got error %v, cause %v", inline, why, cause)
			}
			if n := after.Load(); n != 11 {
				t.Errorf("the functions that run afterwards: got %d, want 11", n)
			}
			wantEmpty(t, "the server", srv)
		})
	}
}

// The end of the connection is the end of its requests, and the return of a handler that of its
// context. Of one-way requests nobody was waiting for the end: they go on until their owner wants
// an end.
func TestTheContextOfAHandlerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := make(chan *mux.Request, 2)
		pool := mux.NewPool()
		s := &setup{server: mux.Config{Pool: pool}, serves: map[string]*handler{
			"echo":  {inline: true, serve: func(r *mux.Request) { kept <- r; answerEcho(r) }},
			"other": {serve: func(r *mux.Request) { kept <- r; <-r.Done() }},
		}}
		c, srv := s.inMemory(t)
		mustEcho(t, c, echo, "x")
		synctest.Wait()
		if r := <-kept; r.Err() != context.Canceled {
			t.Errorf("after the handler: got %v", r.Err())
		} else {
			<-r.Done()
		}
		ended := startCall(c, context.Background(), &mux.Out{Method: other})
		twoWay := <-kept
		if err := c.Notify(context.Background(), &mux.Out{Method: other}); err != nil {
			t.Fatal(err)
		}
		oneWay := <-kept
		c.Close()
		<-ended
		<-twoWay.Done()
		// the server may be writing when the client closes, and learn of it by that
		if op, ok := twoWay.Cause().(*mux.IOError); !ok || op.Op != mux.EndOfStream && op.Op != "write" || errors.Is(op, io.EOF) {
			t.Errorf("after the end of the connection: got cause %v", twoWay.Cause())
		}
		synctest.Wait()
		settled := pool.Settled()
		select {
		case <-settled:
			t.Error("a one-way request is forgotten")
		default:
		}
		if oneWay.Err() != nil {
			t.Errorf("the one-way request ended with the connection: %v", oneWay.Err())
		}
		pool.Cancel()
		<-oneWay.Done()
		<-settled
		synctest.Wait()
		wantEmpty(t, "the server", srv)
	})
}

// A large request that is given up halfway is never executed, and its slot is free again soon.
func TestALargeRequestIsGivenUpHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var executed atomic.Int64
		s := &setup{
			buffer: 100 << 10, // so that it takes a while
			serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
				executed.Add(1)
				answerEcho(r)
			}}},
		}
		client, server := memoryPair(s.buffer)
		c := mux.New(client, nil, true, s.config(t, s.client, nil))
		defer c.Close()
		ctx, cancel := context.WithCancel(context.Background())
		ended := startCall(c, ctx, &mux.Out{Method: echo, Body: make([]byte, 8<<20)})
		synctest.Wait() // nobody reads: it is on its way
		cancel()
		if got := <-ended; got.err != context.Canceled {
			t.Errorf("got %+v", got)
		}
		srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
		defer srv.Close()
		mustEcho(t, c, echo, "small")
		synctest.Wait()
		if n := executed.Load(); n != 1 {
			t.Errorf("%d requests were executed, want the small one", n)
		}
		if in := srv.Counters().BytesIn; in > 2<<20 {
			t.Errorf("%d bytes were sent of a request that had been given up", in)
		}
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	})
}

// A large reply to a caller that gave up ends early, with one final frame all the same.
func TestALargeReplyToNobodyEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := defaultLimits()
		limits.MaxUnsent = 100 << 10
		s := &setup{
			buffer: 100 << 10, limits: limits,
			serves: map[string]*handler{"other": {serve: func(r *mux.Request) { r.Reply.Body = make([]byte, 8<<20) }}},
		}
		client, server := memoryPair(s.buffer)
		srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
		defer srv.Close()
		peer := newRawPeer(t, client)
		peer.write(hello(nil), method(0, "other"), request(0, callID(0, 1), ""))
		synctest.Wait()
		peer.write(frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: callID(0, 1)}, nil, nil))
		synctest.Wait()
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		h, _ := peer.expect(wire.Reply)
		size := h.Len
		for h.Flags&wire.More != 0 {
			h, _ = peer.expect(wire.Data)
			if h.ID != callID(0, 1) || h.Flags&wire.OfReply == 0 {
				t.Errorf("got %+v", h)
			}
			size += h.Len
		}
		if size > 1<<20 {
			t.Errorf("%d bytes were sent to nobody", size)
		}
		synctest.Wait()
		wantEmpty(t, "the server", srv)
	})
}

// A large reply whose caller gives up while it comes is not gathered any more.
func TestALargeReplyIsDroppedWhenItsCallerGivesUp(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := startCall(c, ctx, &mux.Out{Method: echo})
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	piece := make([]byte, 60_000)
	data := frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply | wire.More, ID: h.ID}, nil, piece)
	peer.write(hello(nil), frameOf(wire.Header{Type: wire.Reply, Flags: wire.More, ID: h.ID}, &wire.Fields{Size: 60_000 * 10}, piece), data)
	eventually(t, "the first pieces have come", func() bool { return c.Counters().FramesIn == 3 })
	cancel()
	if got := within(t, "the call ends", ended); got.err != context.Canceled {
		t.Errorf("got %+v", got)
	}
	peer.expect(wire.Cancel)
	for range 7 {
		peer.write(data)
	}
	if n := c.Tables(); n.Taken != 1 || n.Open != 1 {
		t.Errorf("before the final frame: %+v", n)
	}
	peer.write(frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply, ID: h.ID}, nil, piece))
	wantEmpty(t, "the client", c)
	next := startCall(c, context.Background(), &mux.Out{Method: echo})
	h, _ = peer.expect(wire.Request)
	peer.write(reply(h.ID, "next"))
	if got := within(t, "the next call ends", next); got.reply != "next" {
		t.Errorf("got %+v", got)
	}
}

// Waiters are reused: each call gets its own outcome, however it and the one before ended.
func TestWaitersAreNotMixedUp(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, srv := s.overTCP(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 1000 {
				body := fmt.Sprintf("%d %d", i, j)
				ctx, cancel := context.WithCancel(context.Background())
				if j%3 == 0 {
					go cancel()
				}
				var reply string
				var err error
				if j%2 == 0 {
					_, reply, err = startAndWait(ctx, c, &mux.Out{Method: echo, Body: []byte(body)})
				} else {
					_, reply, err = callOut(ctx, c, &mux.Out{Method: echo, Body: []byte(body)})
				}
				if err == nil && reply != body || err != nil && (j%3 != 0 || !errors.Is(err, context.Canceled)) {
					t.Errorf("%q: got %q, error %v", body, reply, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A cancellation for no reason is still one: the reply to what it stopped is no success.
func TestACancellationWithoutAReasonIsNoSuccess(t *testing.T) {
	peer, srv := new(setup).facingServer(t)
	peer.write(hello(nil), method(0, "nobody"))
	peer.expectHello()
	peer.write(
		frameOf(wire.Header{Type: wire.Request, Flags: wire.More, ID: callID(0, 1)}, &wire.Fields{Size: 10}, []byte("x")),
		frameOf(wire.Header{Type: wire.Cancel, ID: callID(0, 1)}, nil, nil),
	)
	if h, _, _ := peer.expectReply(callID(0, 1)); h.Arg != codeCanceled || h.Flags&wire.NotProcessed == 0 {
		t.Errorf("got %+v", h)
	}
	wantEmpty(t, "the server", srv)
}

// With all generations of a slot used, late frames of long ago still find nobody else.
func TestIDsAreReusedSafely(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	peer.write(hello(&wire.Limits{MaxOpen: 1}))
	var seen []uint32
	for i := range 5000 {
		ended := startCall(c, context.Background(), &mux.Out{Method: echo})
		if i == 0 {
			peer.expectHello()
			peer.expect(wire.Method)
		}
		h, _ := peer.expect(wire.Request)
		if len(seen) > 0 {
			peer.write(reply(seen[max(0, len(seen)-4000)], "of a call long ago"))
		}
		peer.write(reply(h.ID, "own"))
		if got := within(t, "the call ends", ended); got.reply != "own" {
			t.Fatalf("call %d: got %+v", i, got)
		}
		if i < 4095 && slices.Contains(seen, h.ID) {
			t.Fatalf("call %d: id %#x is reused", i, h.ID)
		}
		seen = append(seen, h.ID)
	}
	if n := c.Tables().Slots; n != 1 {
		t.Errorf("%d slots for one call at a time", n)
	}
}

// Whoever shuts down waits until nothing runs any more, wherever it runs, and its end has been
// told.
func TestThePoolSettlesWhenNothingRuns(t *testing.T) {
	for _, inline := range []bool{true, false} {
		for _, oneWay := range []bool{true, false} {
			for _, exits := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					pool := mux.NewPool()
					began := make(chan struct{})
					var done atomic.Int64
					s := &setup{server: mux.Config{Pool: pool}, serves: map[string]*handler{"echo": {
						inline: inline,
						serve: func(*mux.Request) {
							close(began)
							time.Sleep(time.Minute) // it does not notice that its caller has gone
							if exits {
								runtime.Goexit()
							}
						},
						done: func(*mux.Request, bool) { time.Sleep(time.Second); done.Add(1) },
					}}}
					c, srv := s.inMemory(t)
					if oneWay {
						if err := c.Notify(context.Background(), &mux.Out{Method: echo}); err != nil {
							t.Fatal(err)
						}
					} else {
						startCall(c, context.Background(), &mux.Out{Method: echo})
					}
					<-began
					c.Close()
					<-srv.Ended()
					start := time.Now()
					<-pool.Settled()
					if took := time.Since(start); done.Load() != 1 || took < 60_900*time.Millisecond || took > 62*time.Second {
						t.Errorf("inline %t, one-way %t, exits %t: settled after %v, %d ends told", inline, oneWay, exits, took, done.Load())
					}
					<-pool.Settled() // and stays so
				})
			}
		}
	}
}
