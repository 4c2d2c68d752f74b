// SPDX-License-Identifier: Apache-2.0

package ordered_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// User code that is interrupted while a one-way call is sent again does not keep its key.
func TestInterruptedRepeatsLeaveTheirKey(t *testing.T) {
	for name, how := range map[string]func(){"panic": func() { panic("picker") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				first := w.enter(false)
				w.sendOneWay(t, first)
				first.connect = how // user code between Await and the connection, as a Picker
				w.answer(1, refused, nil)
				synctest.Wait()
				second := w.enter(false)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				_, err := second.Await(ctx, "A.B", time.Time{}, 0)
				if err != nil {
					t.Errorf("the call behind it: %v", err)
				}
			})
		})
	}
}

// The late answer to an attempt does not change the outcome of a call that has ended.
func TestALateAnswerLeavesTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, second := w.enter(true), w.enter(true)
		conn := w.sendAt(t, first)
		w.sendAt(t, second)
		outcome := errors.New("the middleware has given up")
		second.Finish(outcome, false) // waits for first
		w.answer(conn, good, nil)     // first
		w.answer(conn, good, nil)     // second, late
		w.ended.Wait()
		first.Finish(nil, false)
		synctest.Wait()
		if !errors.Is(second.err, outcome) {
			t.Errorf("got %v, want %v", second.err, outcome)
		}
	})
}

// A call that ends while it waits for its turn is forgotten.
func TestAWaitingCallThatEndsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, second := w.enter(false), w.enter(false)
		waiting := make(chan error, 1)
		go func() {
			_, err := second.Await(context.Background(), "A.B", time.Time{}, 0)
			waiting <- err
		}()
		synctest.Wait()
		second.Leave(context.Background(), time.Time{}, true)
		if err := <-waiting; err == nil {
			t.Error("the call that has ended may be sent")
		}
		w.sendOneWay(t, first)
		w.answer(1, good, nil)
		if n := w.queues.Len(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}
