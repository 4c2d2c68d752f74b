// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A calling is a call that was made on a goroutine of its own.
type calling struct {
	reply string
	err   error
}

func startCall(c *mux.Conn, ctx context.Context, out *mux.Out) <-chan calling { //nolint:revive // the connection is what the test is about
	ended := make(chan calling, 1)
	go func() {
		_, reply, err := callOut(ctx, c, out)
		ended <- calling{reply, err}
	}()
	return ended
}

// fullWindow returns a client whose window of open requests is used up, the peer, and the ids of
// the open calls.
func fullWindow(t *testing.T, s *setup, open int) (peer *rawPeer, c *mux.Conn, ids []uint32, ends []<-chan calling) {
	t.Helper()
	peer, c = s.facingClient(t)
	peer.write(hello(&wire.Limits{MaxOpen: uint64(open), MaxOpenBytes: 1000}), ping(1))
	peer.expectHello()
	peer.expect(wire.Pong) // now the client knows the window
	for i := range open {
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("open")}))
		if i == 0 {
			peer.expect(wire.Method)
		}
		h, _ := peer.expect(wire.Request)
		ids = append(ids, h.ID)
	}
	return peer, c, ids, ends
}

func waiting(t *testing.T, c *mux.Conn, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d callers wait for the window", n), func() bool { return c.Tables().Waiting == n })
}

func TestCallersBeyondTheWindowWaitInOrder(t *testing.T) {
	peer, c, ids, ends := fullWindow(t, new(setup), 2)
	const callers = 10
	for i := range callers {
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte(fmt.Sprint(i))}))
		waiting(t, c, i+1)
	}
	for i := range callers {
		peer.write(reply(ids[0], ""))
		h, frame := peer.expect(wire.Request)
		if got := string(frame[wire.HeaderSize:]); got != fmt.Sprint(i) {
			t.Errorf("caller %s was sent as number %d", got, i)
		}
		ids = append(ids[1:], h.ID)
	}
	for _, id := range ids {
		peer.write(reply(id, ""))
	}
	for _, end := range ends {
		if got := within(t, "the call ends", end); got.err != nil {
			t.Error(got.err)
		}
	}
	wantEmpty(t, "the client", c)
	if n := c.Tables().Slots; n > 2 {
		t.Errorf("%d slots were made for a window of 2", n)
	}
}

func TestTheWindowBoundsBytesToo(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	peer.write(hello(&wire.Limits{MaxOpen: 100, MaxOpenBytes: 100}))
	start := func(size int) <-chan calling {
		return startCall(c, context.Background(), &mux.Out{Method: echo, Body: filled('x', size)})
	}
	early := start(60)
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	peer.write(reply(h.ID, ""))
	within(t, "a call ends, so that the settings have been read", early)
	first := start(60)
	h1, _ := peer.expect(wire.Request)
	second := start(60)
	waiting(t, c, 1)
	third := start(10) // would fit, and waits its turn
	waiting(t, c, 2)
	peer.write(reply(h1.ID, ""))
	h2, _ := peer.expect(wire.Request)
	h3, _ := peer.expect(wire.Request)
	alone := start(500) // more than the whole window
	waiting(t, c, 1)
	peer.write(reply(h2.ID, ""))
	peer.write(reply(h3.ID, ""))
	h4, frame := peer.expect(wire.Request)
	if len(frame) != wire.HeaderSize+500 {
		t.Errorf("got a request of %d bytes", len(frame))
	}
	last := start(0)
	waiting(t, c, 1)
	peer.write(reply(h4.ID, ""))
	h5, _ := peer.expect(wire.Request)
	peer.write(reply(h5.ID, ""))
	for _, end := range []<-chan calling{first, second, third, alone, last} {
		if got := within(t, "the call ends", end); got.err != nil {
			t.Error(got.err)
		}
	}
	wantEmpty(t, "the client", c)
}

func TestWaitingForTheWindowEndsAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	errGone := errors.New("the caller is gone")
	tests := []struct {
		name string
		ctx  context.Context
		out  mux.Out
		end  func(peer *rawPeer, c *mux.Conn)
		want error
	}{
		{"context", ctx, mux.Out{}, func(*rawPeer, *mux.Conn) { cancel(errGone) }, errGone},
		{"deadline", context.Background(), mux.Out{Deadline: time.Now().Add(500 * time.Millisecond)}, nil, mux.ErrDeadline},
		{"close", context.Background(), mux.Out{}, func(_ *rawPeer, c *mux.Conn) { c.Close() }, mux.ErrClosed},
		{"drain", context.Background(), mux.Out{}, func(peer *rawPeer, _ *mux.Conn) {
			peer.write(wire.AppendGoAway(nil, 0, &wire.Drain{Count: 1}))
		}, mux.ErrDrained},
		{"no wait", context.Background(), mux.Out{NoWait: true}, nil, mux.ErrWindow},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			peer, c, ids, open := fullWindow(t, new(setup), 1)
			out := test.out
			out.Method = echo
			first := startCall(c, test.ctx, &out)
			if !out.NoWait {
				waiting(t, c, 1)
			}
			behind := startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("behind")})
			started := make(chan error, 1)
			go func() {
				o := test.out
				o.Method = echo
				started <- c.Start(test.ctx, &o, completed(func(*mux.Answer, error) { t.Error("a call that was not sent was completed") }))
			}()
			if test.end != nil {
				waiting(t, c, 3)
				test.end(peer, c)
			}
			got := within(t, "the call ends", first)
			if !errors.Is(got.err, test.want) || !notProcessed(got.err) {
				t.Errorf("Call: got error %v, not processed: %t, want %v", got.err, notProcessed(got.err), test.want)
			}
			if err := within(t, "Start returns", started); !errors.Is(err, test.want) || !notProcessed(err) {
				t.Errorf("Start: got error %v, want %v", err, test.want)
			}
			switch test.name {
			case "close", "drain":
				if got := within(t, "the call behind it ends", behind); !notProcessed(got.err) {
					t.Errorf("the call behind it: got %v", got.err)
				}
			default: // the one behind moves up
				peer.write(reply(ids[0], ""))
				h, _ := peer.expect(wire.Request)
				peer.write(reply(h.ID, "moved up"))
				if got := within(t, "the call behind it ends", behind); got.err != nil || got.reply != "moved up" {
					t.Errorf("the call behind it: got %+v", got)
				}
			}
			if test.name == "drain" {
				peer.write(reply(ids[0], ""))
				if err := wantEnd(t, c); !errors.Is(err, mux.ErrDrained) {
					t.Errorf("the connection ended with %v", err)
				}
			}
			if got := within(t, "the open call ends", open[0]); got.err != nil && test.name != "close" {
				t.Errorf("the open call: %v", got.err)
			}
			wantEmpty(t, "the client", c)
		})
	}
}

// A caller may be admitted just when the peer stops accepting requests: its place must not be
// forgotten.
func TestACallerAdmittedIntoADrainGivesItsPlaceBack(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the reader is through before the caller wakes
	for range 20 {
		peer, c, ids, open := fullWindow(t, new(setup), 1)
		behind := startCall(c, context.Background(), &mux.Out{Method: echo})
		waiting(t, c, 1)
		peer.write(reply(ids[0], ""), wire.AppendGoAway(nil, 0, &wire.Drain{Count: 1}))
		within(t, "the open call ends", open[0])
		go func() { // it may have been sent all the same
			if h, _, err := peer.frame(); err == nil {
				peer.write(frameOf(wire.Header{Type: wire.Reply, Flags: wire.NotProcessed, Arg: codeUnavailable, ID: h.ID}, nil, nil))
			}
		}()
		within(t, "the call behind it ends", behind)
		if err := wantEnd(t, c); !errors.Is(err, mux.ErrDrained) {
			t.Fatalf("the connection ended with %v", err)
		}
	}
}

func TestTheWindowGrowsAndShrinks(t *testing.T) {
	peer, c, ids, ends := fullWindow(t, new(setup), 2)
	for i := range 4 {
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo}))
		waiting(t, c, i+1)
	}
	peer.write(wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: 4}))
	for range 2 {
		h, _ := peer.expect(wire.Request)
		ids = append(ids, h.ID)
	}
	peer.write(wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: 1}), reply(ids[0], ""), reply(ids[1], ""), reply(ids[2], ""), ping(1))
	peer.expect(wire.Pong) // before any request: one is still open
	waiting(t, c, 2)
	for range 2 {
		peer.write(reply(ids[3], ""))
		h, _ := peer.expect(wire.Request)
		ids[3] = h.ID
	}
	peer.write(reply(ids[3], ""))
	for _, end := range ends {
		if got := within(t, "the call ends", end); got.err != nil {
			t.Error(got.err)
		}
	}
	wantEmpty(t, "the client", c)
}

// Before the peer's settings have come, a window of 1024 is used; the rest waits.
func TestRequestsAreSentBeforeTheSettingsHaveCome(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	var ends []<-chan calling
	for range mux.InitialWindow + 10 {
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo}))
	}
	waiting(t, c, 10)
	peer.expectHello()
	peer.expect(wire.Method)
	var answers [][]byte
	for range mux.InitialWindow {
		h, _ := peer.expect(wire.Request)
		answers = append(answers, reply(h.ID, ""))
	}
	peer.write(hello(&wire.Limits{MaxOpen: 2000}))
	for range 10 {
		h, _ := peer.expect(wire.Request)
		answers = append(answers, reply(h.ID, ""))
	}
	peer.write(answers...)
	for _, end := range ends {
		if got := within(t, "the call ends", end); got.err != nil {
			t.Error(got.err)
		}
	}
	wantEmpty(t, "the client", c)
}

// A request with an attachment is as large as it is on the wire, on both sides.
func TestTheWindowIsTheSameOnBothSides(t *testing.T) {
	limits := defaultLimits()
	limits.MaxOpenBytes = 10_000
	var refused atomic.Int64
	s := &setup{limits: limits, serves: map[string]*handler{"echo": {serve: answerEcho}}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 100 {
				code, _, err := callOut(context.Background(), c, &mux.Out{Method: echo, Body: filled('b', 700), Attachment: filled('a', 300)})
				if err != nil {
					t.Error(err)
					return
				}
				if code != 0 {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := refused.Load(); n != 0 {
		t.Errorf("%d calls within the window were refused", n)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// One-way requests wait in the reader when there are too many, and do not use up the window of
// calls.
func TestOneWayRequestsHaveAWindowOfTheirOwn(t *testing.T) {
	limits := defaultLimits()
	limits.MaxOpen = 4
	release := make(chan struct{})
	var oneWay atomic.Int64
	s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{
		"echo":  {serve: answerEcho},
		"other": {serve: func(*mux.Request) { oneWay.Add(1); <-release }},
	}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	for range 4 {
		if err := c.Notify(context.Background(), &mux.Out{Method: other}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the one-way handlers run", func() bool { return oneWay.Load() == 4 })
	mustEcho(t, c, echo, "not refused")
	for range 6 {
		if err := c.Notify(context.Background(), &mux.Out{Method: other}); err != nil {
			t.Fatal(err)
		}
	}
	ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("behind them")})
	close(release)
	if got := within(t, "the call behind them ends", ended); got.err != nil || got.reply != "behind them" {
		t.Errorf("got %+v", got)
	}
	eventually(t, "all one-way requests are executed", func() bool { return oneWay.Load() == 10 })
	wantEmpty(t, "the server", srv)
}

// A peer that does not keep to the window is refused, and the table stays as small as the window.
func TestRequestsBeyondTheWindowAreRefused(t *testing.T) {
	limits := defaultLimits()
	limits.MaxOpen, limits.MaxOpenBytes, limits.MaxMessage = 3, 100, 50
	release := make(chan struct{})
	var executed atomic.Int64
	s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{
		"other": {serve: func(r *mux.Request) { executed.Add(1); <-release; answerEcho(r) }},
		"echo":  {inline: true, serve: answerEcho},
	}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "other"), method(1, "echo"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	peer.expect(wire.MethodInfo)
	refused := func(id uint32, what string) {
		t.Helper()
		h, f, _ := peer.expectReply(id)
		if h.Arg != codeExhausted || h.Flags&wire.NotProcessed == 0 || !strings.Contains(string(f.Message), what) {
			t.Errorf("got %+v %+v, want a refusal because of %q", h, f, what)
		}
	}
	peer.write(request(0, callID(0, 1), strings.Repeat("x", 50)))
	peer.write(request(0, callID(1, 1), strings.Repeat("x", 51)))
	refused(callID(1, 1), "has 51 bytes")
	peer.write(request(1, callID(1, 2), strings.Repeat("x", 51)))
	refused(callID(1, 2), "has 51 bytes") // a short handler's too
	peer.write(request(0, callID(1, 3), strings.Repeat("x", 50)))
	peer.write(request(0, callID(2, 1), "x"))
	refused(callID(2, 1), "hold 100 bytes")
	peer.write(request(0, callID(2, 2), ""))
	peer.write(request(0, callID(3, 1), ""))
	refused(callID(3, 1), "3 requests are open")
	close(release)
	for range 3 {
		h, _ := peer.expect(wire.Reply)
		if h.Arg != 0 {
			t.Errorf("got %+v, want a reply", h)
		}
	}
	if n := executed.Load(); n != 3 {
		t.Errorf("%d requests were executed, want 3", n)
	}
	wantEmpty(t, "the server", srv)
}

// A call that does not wait fails when MaxUnsent bytes are unwritten. Streams and asynchronous
// calls that may wait stop earlier, at HighWater. So the traffic of a stream does not make calls
// beside it fail.
func TestNoWaitFailsAtTheLimitOfUnsentBytes(t *testing.T) {
	for name, start := range map[string]func(c *mux.Conn) error{
		"a stream": func(c *mux.Conn) error {
			st := mux.NewStream()
			return c.Start(context.Background(), &mux.Out{Method: streamMethod("feed", wire.Feed), Body: make([]byte, 10_000), NoWait: true, Stream: st}, st)
		},
		"an asynchronous call": func(c *mux.Conn) error {
			return c.Start(context.Background(), &mux.Out{Method: echo, Body: make([]byte, 10_000), NoWait: true}, completed(func(*mux.Answer, error) {}))
		},
		"a one-way call": func(c *mux.Conn) error {
			return c.Notify(context.Background(), &mux.Out{Method: echo, Body: make([]byte, 10_000), NoWait: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits := quietLimits(0, 0)
				limits.MaxUnsent, limits.MaxOpen = 2*mux.HighWater, 1<<20
				s := &setup{limits: limits}
				client, server := memoryPair(1000)
				c := mux.New(client, nil, true, s.config(t, s.client, nil))
				defer c.Abort()
				peer := newRawPeer(t, server)
				peer.write(hello(nil))
				peer.expectHello()
				first := open(t, c, streamMethod("upload", wire.Upload), nil)
				peer.expect(wire.Method)
				h, _ := peer.expect(wire.Request)
				peer.write(credit(h.ID, wire.OfReply, 4<<20))
				go func() {
					for err := error(nil); err == nil; {
						err = first.Send(context.Background(), 0, make([]byte, 1000))
					}
				}()
				synctest.Wait() // the peer reads no more, so the stream waits
				if n := c.Tables().Unsent; n < mux.HighWater || n > mux.HighWater+2000 {
					t.Fatalf("the stream waits with %d unwritten bytes, want %d", n, mux.HighWater)
				}
				if err := start(c); err != nil {
					t.Errorf("while another stream waits: %v", err)
				}
				err := error(nil)
				for n := 0; err == nil && n < limits.MaxUnsent/10_000; n++ {
					err = start(c)
				}
				lost, _ := errors.AsType[*mux.CallError](err)
				if lost == nil || !errors.Is(err, mux.ErrWindow) || !lost.NotProcessed || lost.Awaited != mux.AwaitedOutput {
					t.Errorf("got %+v, want the error of a full output", err)
				}
				if n := c.Tables().Unsent; n < limits.MaxUnsent || n > limits.MaxUnsent+20_000 {
					t.Errorf("the last call failed with %d unwritten bytes, want %d", n, limits.MaxUnsent)
				}
			})
		})
	}
}
