// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The tests of deadlines run in fake time, so that they are exact.

func TestADeadlineEndsTheCallOnBothSides(t *testing.T) {
	for _, inline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var ended time.Time
			var why, cause error
			s := &setup{serves: map[string]*handler{"echo": {inline: inline, serve: func(r *mux.Request) {
				<-r.Done()
				ended, why, cause = time.Now(), r.Err(), r.Cause()
				time.Sleep(time.Microsecond) // or its reply and the caller's deadline would come at the same moment
				answerEcho(r)
			}}, "other": {serve: answerEcho}}}
			c, srv := s.inMemory(t)
			start := time.Now()
			_, _, err := callOut(context.Background(), c, &mux.Out{Method: echo, Deadline: start.Add(100 * time.Millisecond)})
			if took := time.Since(start); !errors.Is(err, mux.ErrDeadline) || took != 100*time.Millisecond {
				t.Errorf("got error %v after %v, want ErrDeadline after 100ms", err, took)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if late := ended.Sub(start.Add(100 * time.Millisecond)); late < 0 || late > time.Millisecond || why != context.DeadlineExceeded || cause != mux.ErrDeadline {
				t.Errorf("inline %t: the handler's context ended %v after the deadline with %v, cause %v", inline, late, why, cause)
			}
			for name, conn := range map[string]*mux.Conn{"client": c, "server": srv} {
				if n := conn.Tables(); n.Open+n.Taken+n.In+n.InOpen != 0 {
					t.Errorf("the %s has calls left: %+v", name, n)
				}
			}
			mustEcho(t, c, other, "") // the connection goes on
		})
	}
}

// The slot of a call that was given up stays taken until the final frame has come, so that its id
// is not reused while the peer may still answer.
func TestASlotIsKeptUntilTheFinalFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{}, nil))
		defer c.Close()
		peer := newRawPeer(t, server)
		peer.write(hello(nil))
		ctx, cancel := context.WithCancelCause(context.Background())
		byContext := startCall(c, ctx, &mux.Out{Method: echo})
		synctest.Wait()
		byDeadline := startCall(c, context.Background(), &mux.Out{Method: echo, Deadline: time.Now().Add(time.Second)})
		synctest.Wait()
		peer.expectHello()
		peer.expect(wire.Method)
		first, _ := peer.expect(wire.Request)
		second, _ := peer.expect(wire.Request)
		gone := errors.New("gone")
		cancel(gone)
		if got := <-byContext; got.err != gone {
			t.Errorf("got %+v, want the cause", got)
		}
		if h, _ := peer.expect(wire.Cancel); h.ID != first.ID || h.Arg != codeCanceled {
			t.Errorf("got %+v, want the cancellation of %#x", h, first.ID)
		}
		if got := <-byDeadline; !errors.Is(got.err, mux.ErrDeadline) {
			t.Errorf("got %+v, want ErrDeadline", got)
		}
		if h, _ := peer.expect(wire.Cancel); h.ID != second.ID || h.Arg != codeDeadline {
			t.Errorf("got %+v, want the cancellation of %#x", h, second.ID)
		}
		if n := c.Tables(); n.Open != 2 || n.Taken != 2 {
			t.Errorf("canceled calls do not count as open: %+v", n)
		}
		third := startCall(c, context.Background(), &mux.Out{Method: echo})
		h, _ := peer.expect(wire.Request)
		if wire.Slot(h.ID) == wire.Slot(first.ID) || wire.Slot(h.ID) == wire.Slot(second.ID) {
			t.Errorf("call %#x is in a slot of %#x and %#x, which are open", h.ID, first.ID, second.ID)
		}
		peer.write(reply(first.ID, "too late"), reply(second.ID, "too late"), reply(h.ID, "in time"), reply(first.ID, "twice"))
		if got := <-third; got.err != nil || got.reply != "in time" {
			t.Errorf("got %+v", got)
		}
		synctest.Wait()
		if n := c.Tables(); n.Open != 0 || n.Taken != 0 || n.OpenBytes != 0 {
			t.Errorf("calls are left: %+v", n)
		}
	})
}

// No call has a timer of its own: a call whose deadline is later than another one's costs none.
func TestDeadlinesCostNoTimers(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, _ := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	out := &mux.Out{Method: echo, Body: []byte("body")}
	allocs := testing.AllocsPerRun(1000, func() {
		out.Deadline = time.Now().Add(time.Hour)
		a, err := c.Call(context.Background(), out)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	})
	// the Request, on the server; a sync.Pool forgets on purpose with the race detector
	if allocs > 1.1 && !raceEnabled {
		t.Errorf("%v allocations for a call with a deadline, want 1", allocs)
	}
}

// A deadline travels as the time that is left, and is left out when there is none.
func TestADeadlineTravelsAsTheTimeThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		limits := defaultLimits()
		limits.KeepAlive = 0
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: limits}, nil))
		defer c.Close()
		peer := newRawPeer(t, server)
		peer.write(hello(nil))
		out := mux.Out{Method: echo}
		timeout := func() uint64 {
			synctest.Wait()
			h, frame := peer.expect(wire.Request)
			fields, _, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
			if err != nil {
				t.Fatal(err)
			}
			var f wire.Fields
			if err := wire.ParseFields(fields, &f); err != nil {
				t.Fatal(err)
			}
			return f.Timeout
		}
		start := func(left time.Duration) uint64 {
			out.Deadline = time.Time{}
			if left != 0 {
				out.Deadline = time.Now().Add(left)
			}
			if err := c.Start(context.Background(), &out, completed(func(*mux.Answer, error) {})); err != nil {
				t.Fatal(err)
			}
			return timeout()
		}
		if err := c.Start(context.Background(), &out, completed(func(*mux.Answer, error) {})); err != nil {
			t.Fatal(err)
		}
		peer.expectHello()
		peer.expect(wire.Method)
		if got := timeout(); got != 0 {
			t.Errorf("without a deadline: got timeout %d", got)
		}
		for _, test := range []struct {
			left time.Duration
			want uint64
		}{
			{0, 0}, {time.Second, 1_000_000}, {1500 * time.Nanosecond, 2}, {0, 0}, {time.Nanosecond, 1},
		} {
			if got := start(test.left); got != test.want {
				t.Errorf("with %v left: got timeout %d, want %d", test.left, got, test.want)
			}
		}
		const century = 100 * 365 * 24 * time.Hour
		if got := start(century); got != uint64(century/time.Microsecond) {
			t.Errorf("with %v left: got timeout %d", century, got)
		}
		if got := start(1<<63 - 1); got != 0 {
			t.Errorf("with all the time there is: got timeout %d, want none", got)
		}
	})
}

// Work that is too late when its turn comes is told so.
func TestTheDeadlineIsKnownToTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
			deadline, ok := r.Deadline()
			left := time.Until(deadline)
			if !ok || left <= 0 || left > time.Second || r.Expired() {
				t.Errorf("got deadline %v, %t: %v left, expired %t", deadline, ok, left, r.Expired())
			}
			time.Sleep(2 * time.Second)
			if !r.Expired() || r.Err() != context.DeadlineExceeded {
				t.Errorf("after the deadline: expired %t, error %v", r.Expired(), r.Err())
			}
			answerEcho(r)
		}}, "other": {serve: func(r *mux.Request) {
			if deadline, ok := r.Deadline(); ok || !deadline.IsZero() || r.Expired() {
				t.Errorf("got deadline %v, want none", deadline)
			}
			answerEcho(r)
		}}}}
		c, _ := s.inMemory(t)
		_, _, err := callOut(context.Background(), c, &mux.Out{Method: echo, Deadline: time.Now().Add(time.Second)})
		if !errors.Is(err, mux.ErrDeadline) {
			t.Errorf("got error %v", err)
		}
		mustEcho(t, c, other, "none")
		time.Sleep(time.Minute)
	})
}

func TestACallWhoseDeadlineHasPassedIsNotSent(t *testing.T) {
	var executed atomic.Int64
	s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) { executed.Add(1); answerEcho(r) }}}}
	c, _ := s.overTCP(t)
	for _, left := range []time.Duration{0, -time.Second, -1 << 62} {
		out := &mux.Out{Method: echo, Deadline: time.Now().Add(left)}
		_, _, err := callOut(context.Background(), c, out)
		if !errors.Is(err, mux.ErrDeadline) || !notProcessed(err) {
			t.Errorf("Call with %v left: got error %v, not processed: %t", left, err, notProcessed(err))
		}
		if err := c.Notify(context.Background(), out); !errors.Is(err, mux.ErrDeadline) {
			t.Errorf("Notify with %v left: got error %v", left, err)
		}
	}
	mustEcho(t, c, echo, "counted")
	if n := executed.Load(); n != 1 {
		t.Errorf("%d calls were executed, want 1", n)
	}
	wantEmpty(t, "the client", c)
}

// A peer that does not read must not keep a caller longer than its deadline or its context,
// wherever it waits.
func TestADeadlineEndsWaitingForAPeerThatDoesNotRead(t *testing.T) {
	for _, way := range []string{"large call", "large start", "many starts", "many calls", "one-way"} {
		for _, end := range []string{"deadline", "context"} {
			t.Run(way+" "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testEndWithoutReading(t, way, end) })
			})
		}
	}
}

func testEndWithoutReading(t *testing.T, way, end string) {
	client, server := memoryPair(64 << 10) // nobody reads it
	limits := defaultLimits()
	limits.KeepAlive, limits.Handshake = 0, 0
	c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: limits}, nil))
	defer c.Close()
	defer server.Close()
	start := time.Now()
	out := mux.Out{Method: echo, Body: filled('x', 60_000)}
	ctx := context.Background()
	if end == "deadline" {
		out.Deadline = start.Add(time.Second)
	} else {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ctx = short
	}
	told := make(chan error, 100)
	back := completed(func(_ *mux.Answer, err error) { told <- err })
	expected, calls := 0, 1
	var direct error
	switch way {
	case "large call":
		out.Body = filled('x', 5<<20)
		_, _, direct = callOut(ctx, c, &out)
	case "large start":
		out.Body = filled('x', 5<<20)
		if err := c.Start(ctx, &out, back); err != nil {
			t.Errorf("Start: %v", err)
		}
		direct = <-told
	case "many starts":
		for ; direct == nil; calls++ {
			if direct = c.Start(ctx, &out, back); direct == nil {
				expected++
			}
		}
	case "many calls":
		for range 50 {
			go func() {
				o := out
				_, _, err := callOut(ctx, c, &o)
				told <- err
			}()
		}
		expected, direct = 49, <-told
	case "one-way":
		for direct == nil {
			direct = c.Notify(ctx, &out)
		}
	}
	if took := time.Since(start); took != time.Second {
		t.Errorf("it took %v, want 1s", took)
	}
	for range expected {
		if err := <-told; err == nil {
			t.Error("a call without a reply succeeded")
		}
	}
	want := fmt.Sprint(mux.ErrDeadline)
	if end == "context" {
		want = fmt.Sprint(context.DeadlineExceeded)
	}
	if fmt.Sprint(direct) != want {
		t.Errorf("got error %v, want %v", direct, want)
	}
}
