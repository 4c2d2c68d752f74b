// SPDX-License-Identifier: Apache-2.0

package inline_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/inline"
)

// A conn is a connection whose reader runs user code.
type conn struct {
	state   inline.State
	watched inline.Watched
	taken   chan time.Time
}

func newConn() *conn { return &conn{taken: make(chan time.Time, 1)} }

func (c *conn) State() *inline.State { return &c.state }

func (c *conn) HandOver(of *inline.State, run uint64) {
	if of.Take(run) {
		c.taken <- time.Now()
	}
}

// A reader that is in one run for two ticks loses the reading. One whose runs are short keeps it.
func TestAWatchTakesTheReadingFromABlockedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := inline.NewWatch()
		blocked, busy := newConn(), newConn()
		began := time.Now()
		run := blocked.state.Begin(false)
		blocked.watched.Join(w, blocked)
		for range 100 {
			short := busy.state.Begin(true)
			busy.watched.Join(w, busy)
			time.Sleep(100 * time.Microsecond)
			if !busy.state.End(short) {
				t.Fatal("a reader with short runs has lost the reading")
			}
		}
		if took := (<-blocked.taken).Sub(began); took < 750*time.Microsecond || took > 2*time.Millisecond {
			t.Errorf("a blocked reader lost the reading after %v, want 1 to 2 ticks", took)
		}
		if blocked.state.End(run) || !blocked.state.Taken() {
			t.Error("a reader that has lost the reading goes on")
		}
	})
}

// A Watch forgets a reader that runs nothing, and watches it again when a run begins.
func TestAWatchGoesOnAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := inline.NewWatch()
		for range 3 {
			c := newConn()
			run := c.state.Begin(false)
			c.watched.Join(w, c)
			if !c.state.End(run) {
				t.Fatal("no tick has passed")
			}
			time.Sleep(time.Second) // the timer of the Watch has stopped
			run = c.state.Begin(false)
			c.watched.Join(w, c)
			<-c.taken
			if c.state.End(run) {
				t.Error("the reader has kept the reading")
			}
		}
	})
}

// What a State says of a reader.
func TestStates(t *testing.T) {
	var s inline.State
	if _, runs := s.Run(); runs || s.Taken() {
		t.Error("a new reader runs something")
	}
	handler := s.Begin(false)
	if run, runs := s.Run(); !runs || run != handler {
		t.Errorf("got run %d, %t, want %d", run, runs, handler)
	}
	if _, runs := s.InCallback(); runs {
		t.Error("a handler counts as a callback")
	}
	if !s.End(handler) || s.End(handler) || s.Take(handler) {
		t.Error("a run does not end once")
	}
	callback := s.Begin(true)
	if run, runs := s.InCallback(); !runs || run != callback || run == handler {
		t.Errorf("got run %d, %t, want %d", run, runs, callback)
	}
	if s.Take(handler) || !s.Take(callback) || s.End(callback) || !s.Taken() {
		t.Error("the reading is not taken once")
	}
	if _, runs := s.Run(); runs {
		t.Error("a reader that has lost the reading runs something")
	}
}
