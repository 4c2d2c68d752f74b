// SPDX-License-Identifier: Apache-2.0

package ordered_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// sendOneWay sends a one-way call, whose caller then leaves.
func (w *world) sendOneWay(t *testing.T, c *call) {
	t.Helper()
	ep, err := c.Await(t.Context(), "A.B", time.Time{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err = c.Attempt(t.Context(), c, "A.B", time.Time{}, max(ep, 1), true); err != nil {
		t.Fatal(err)
	}
	c.Leave(t.Context(), time.Time{}, false)
}

// A one-way call that was refused after its caller had returned is sent again before the calls
// behind it, and releases what it holds for its key.
func TestARefusedOneWayCallKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, second := w.enter(false), w.enter(false)
		hold := new(keyscope.Hold)
		first.Hold.Store(hold)
		hold.Claim(keyscope.Attempt{Addr: "a:1"}, false)
		first.repeat = true
		w.sendOneWay(t, first)
		w.answer(1, refused, nil)
		synctest.Wait()
		if got := w.conns[2]; len(got) != 1 || got[0].of != first {
			t.Fatalf("the refused call was not sent again: %v", w.conns)
		}
		if _, open := hold.First(); open {
			t.Error("the refused request holds its key")
		}
		w.sendOneWay(t, second)
		if got := w.conns[2]; len(got) != 2 || got[1].of != second {
			t.Fatalf("the second call did not follow: %v", w.conns)
		}
		w.answer(2, good, nil)
		w.answer(2, good, nil)
		w.checkEnd(t, 0)
	})
}

// A one-way call that is refused everywhere is sent to a bounded number of endpoints. Then the
// calls behind it are sent.
func TestAOneWayCallIsDropped(t *testing.T) {
	for repeat, attempts := range map[bool]int{true: 5, false: 2} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(1)
			first := w.enter(false)
			w.sendOneWay(t, first)
			first.send = func() error { return errUnsent }
			first.repeat = repeat
			w.answer(1, refused, nil)
			synctest.Wait()
			if len(first.dropped) != 1 || !errors.Is(first.dropped[0], errUnsent) || w.newest != attempts {
				t.Errorf("repeat %v: %d attempts were made, want %d, dropped with %v", repeat, w.newest, attempts, first.dropped)
			}
			second := w.enter(false)
			w.sendOneWay(t, second)
			w.answer(w.newest, good, nil)
			w.checkEnd(t, 0)
		})
	}
}

// errUnsent is the error of a request that was not sent, because its connection has ended.
var errUnsent error = &mux.CallError{Cause: errors.New("the connection has ended"), NotProcessed: true}

// atOnce begins an asynchronous call that can be sent at once.
func (w *world) atOnce(t *testing.T, conn int) *call {
	t.Helper()
	c := &call{w: w}
	entered, needsConn := w.queues.EnterAtOnce(&c.Turn, c, "A.B", "key", 0, 1, conn)
	if !entered || needsConn {
		t.Fatalf("entered %v, needs a connection %v", entered, needsConn)
	}
	return c
}

// Calls that are sent at once share a connection. One that fails continues elsewhere, and the
// callers get the outcomes in order.
func TestCallsAreSentAtOnce(t *testing.T) {
	w := newWorld(1)
	none := &call{w: w}
	if entered, needsConn := w.queues.EnterAtOnce(&none.Turn, none, "A.B", "key", 0, 0, 0); entered || !needsConn || w.queues.Len() != 0 {
		t.Errorf("without a connection: entered %v, needs one %v", entered, needsConn)
	}
	first, second := w.atOnce(t, 7), (*call)(nil)
	if entered, _ := w.queues.EnterAtOnce(&none.Turn, none, "A.B", "key", 0, 1, 7); entered {
		t.Error("a call is to be sent before the first one")
	}
	if err := first.SendAtOnce(t.Context(), first, false); err != nil {
		t.Fatal(err)
	}
	if entered, needsConn := w.queues.EnterAtOnce(&none.Turn, none, "A.B", "key", 2, 0, 0); entered || needsConn {
		t.Errorf("pinned to another endpoint: entered %v, needs a connection %v", entered, needsConn)
	}
	second = w.atOnce(t, 0)
	if err := second.SendAtOnce(t.Context(), second, false); err != nil || second.Endpoint() != 1 {
		t.Fatalf("endpoint %d, error %v", second.Endpoint(), err)
	}
	if len(w.conns[7]) != 2 {
		t.Fatalf("on the connections are %v", w.conns)
	}
	w.answer(7, failed, nil)
	if len(first.resumed) != 1 || len(w.concluded) != 0 {
		t.Fatalf("the failed call was resumed with %v, %d calls were concluded", first.resumed, len(w.concluded))
	}
	w.answer(7, good, nil)
	if len(w.concluded) != 0 {
		t.Error("the second call was concluded before the first one")
	}
	first.Finish(first.resumed[0], false)
	w.checkEnd(t, 2)
	if w.concluded[0] != first || first.err == nil || second.err != nil {
		t.Errorf("concluded were %v", w.concluded)
	}
}

// An attempt that could not be sent leaves the connection to the calls behind it, unless the
// connection is at fault.
func TestAnAttemptThatIsNotSent(t *testing.T) {
	errCodec := errors.New("the codec cannot encode it")
	for name, test := range map[string]struct {
		err     error
		follows bool
	}{
		"the codec failed":     {errCodec, true},
		"the window is full":   {&mux.CallError{Cause: mux.ErrWindow, NotProcessed: true}, true},
		"the deadline passed":  {&mux.CallError{Cause: mux.ErrDeadline, NotProcessed: true}, true},
		"the connection ended": {errUnsent, false},
	} {
		w := newWorld(1)
		first := w.atOnce(t, 7)
		if err := first.SendAtOnce(t.Context(), first, false); err != nil {
			t.Fatal(err)
		}
		second := w.atOnce(t, 0)
		second.send = func() error { return test.err }
		if err := second.SendAtOnce(t.Context(), second, false); !errors.Is(err, test.err) {
			t.Errorf("%s: got %v", name, err)
		}
		second.Finish(test.err, false)
		third := &call{w: w}
		entered, _ := w.queues.EnterAtOnce(&third.Turn, third, "A.B", "key", 0, 0, 0)
		if entered != test.follows {
			t.Errorf("%s: the next call follows: %v", name, entered)
		}
		if entered {
			third.Finish(nil, false)
		}
		w.answer(7, good, nil)
		if w.queues.Len() != 0 {
			t.Errorf("%s: the key is not forgotten", name)
		}
	}
}

// Endpoint middleware may send an attempt that has ended again.
func TestMiddlewareSendsAnAttemptAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		c := w.enter(false)
		if _, err := c.Await(t.Context(), "A.B", time.Time{}, 0); err != nil {
			t.Fatal(err)
		}
		attempt := func() {
			w.ended.Go(func() { c.err = c.Attempt(t.Context(), c, "A.B", time.Time{}, 1, false) })
			synctest.Wait()
		}
		attempt()
		err := c.Attempt(t.Context(), c, "A.B", time.Time{}, 1, false)
		if err == nil || !strings.Contains(err.Error(), "not sent twice at once") {
			t.Errorf("while it was in flight: %v", err)
		}
		w.answer(1, failed, nil)
		w.ended.Wait()
		if c.err == nil {
			t.Error("the first attempt has not failed")
		}
		attempt()
		w.answer(2, good, nil)
		w.ended.Wait()
		if c.err != nil {
			t.Errorf("the second attempt: %v", c.err)
		}
		c.Leave(t.Context(), time.Time{}, false)
		w.checkEnd(t, 0)
	})
}

// If user code ends an attempt, the call fails, and the calls behind it continue.
func TestUserCodeInterruptsAnAttempt(t *testing.T) {
	for name, interrupt := range map[string]func(){"panicked": func() { panic("no") }, "ended its goroutine": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(1)
			first, second := w.enter(true), w.enter(true)
			first.land = interrupt
			conn := w.sendAt(t, first)
			w.sendAt(t, second)
			ended := make(chan struct{})
			go func() { // as the reader goroutine
				defer close(ended)
				w.answer(conn, good, nil)
			}()
			<-ended
			w.answer(conn, good, nil)
			w.ended.Wait()
			if first.err == nil || !strings.Contains(first.err.Error(), name) || !strings.HasPrefix(first.err.Error(), "A.B: ") || second.err != nil {
				t.Errorf("got %v, %v", first.err, second.err)
			}
			second.Finish(second.err, false)
			first.Finish(first.err, false)
			w.checkEnd(t, 2)
		})
	}
}

// The hold of a new attempt is set while the server refuses an earlier one, whose caller has given
// up. The race detector shows whether that is safe.
func TestTheHoldOfAnotherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		c, hold := w.enter(false), new(keyscope.Hold)
		claim := func() error {
			hold.Claim(keyscope.Attempt{Scope: keyscope.Scope{Name: "shared", Keep: time.Hour}}, false)
			c.Hold.Store(hold)
			return nil
		}
		c.send = claim
		conn := w.sendAt(t, c)
		w.abandon(conn)
		w.ended.Wait()
		earlier := w.conns[conn][0]
		w.conns[conn] = nil
		c.send = func() error {
			w.ended.Go(func() { earlier.to.Complete(refused, nil) })
			return claim()
		}
		again := w.sendAt(t, c)
		synctest.Wait()
		w.answer(again, good, nil)
		w.ended.Wait()
		if _, open := hold.First(); !open {
			t.Error("the refusal of the first attempt released what both hold")
		}
		c.Leave(t.Context(), time.Time{}, false)
		w.checkEnd(t, 0)
	})
}

// A brokenContext is a context of the user whose Done panics.
type brokenContext struct{ context.Context }

func (brokenContext) Done() <-chan struct{} { panic("no") }

// A context that panics while its call waits in the queue leaves the lock and the queue whole.
func TestAContextThatPanicsWhileItsCallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, second := w.enter(false), w.enter(false)
		panics := func(f func()) {
			t.Helper()
			defer func() {
				if recover() == nil {
					t.Error("it did not panic")
				}
			}()
			f()
		}
		ctx := brokenContext{t.Context()}
		panics(func() { _, _ = second.Await(ctx, "A.B", time.Time{}, 0) })
		panics(func() { second.Leave(ctx, time.Time{}, false) })
		conn := w.sendAt(t, first)
		w.answer(conn, good, nil)
		w.ended.Wait()
		first.Leave(t.Context(), time.Time{}, false)
		w.checkEnd(t, 0)
	})
	w := newWorld(0)
	first := w.enter(true)
	w.queues.Limit = 0 // so that the next call waits for room
	defer func() {
		if recover() == nil {
			t.Error("Enter did not panic")
		}
		first.Finish(nil, false)
		w.checkEnd(t, 1)
	}()
	c := &call{w: w}
	_ = w.queues.Enter(brokenContext{t.Context()}, &c.Turn, c, "key", true)
}

// A request keeps its place until the server has ended it, even if its caller no longer waits.
func TestTheRequestOfACallerThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first := w.enter(false)
		conn := w.sendAt(t, first)
		w.abandon(conn)
		w.ended.Wait()
		if !errors.Is(first.err, context.Canceled) {
			t.Errorf("got %v", first.err)
		}
		first.Leave(t.Context(), time.Time{}, true)
		second := w.enter(false)
		if got := w.sendAt(t, second); got != conn || w.queues.Len() != 1 {
			t.Errorf("the second call went over connection %d, not %d", got, conn)
		}
		w.answer(conn, nil, errLost)
		w.answer(conn, good, nil)
		w.ended.Wait()
		second.Leave(t.Context(), time.Time{}, false)
		w.checkEnd(t, 0)
	})
}
