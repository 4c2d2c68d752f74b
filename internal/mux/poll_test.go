// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux_test

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A looker has a Poll and what comes to it.
type looker struct {
	t    *testing.T
	poll *mux.Poll
	peer net.Conn
}

func newLooker(t *testing.T) *looker { t.Helper(); return newLookerFor(t, time.Millisecond) }

// newLookerFor returns one that looks so long; with 0 it naps.
func newLookerFor(t *testing.T, d time.Duration) *looker {
	t.Helper()
	a, b := tcpPair(t)
	return &looker{t, mux.NewPoll(a, d), b}
}

// looks reports whether it looks, when something is there.
func (l *looker) looks() bool {
	l.t.Helper()
	if _, err := l.peer.Write([]byte{1}); err != nil {
		l.t.Fatal(err)
	}
	looked := l.poll.Poll(0)
	l.poll.Drain()
	return looked
}

// inVain has it look for nothing.
func (l *looker) inVain() {
	l.t.Helper()
	if l.poll.Poll(0) {
		l.t.Error("something came")
	}
}

// severalProcessors sees to it that there are some.
func severalProcessors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func TestPollingBeginsAfterManyThatCameSoon(t *testing.T) {
	severalProcessors(t, 2)
	l := newLooker(t)
	l.poll.Batches(mux.LeastQuick - 1)
	if l.looks() {
		t.Error("it polls too early")
	}
	l.poll.Batches(1)
	if !l.looks() {
		t.Error("it does not poll")
	}
	l.poll.Waited(time.Millisecond)
	if l.looks() {
		t.Error("it polls although the last batch took long to come")
	}
}

// What is in vain is done less and less often.
func TestVainPollingGetsRare(t *testing.T) {
	severalProcessors(t, 2)
	vainLooksGetRare(t, newLooker(t))
}

func TestVainNapsGetRare(t *testing.T) {
	if !mux.Napping {
		t.Skip("no naps on this system")
	}
	severalProcessors(t, 2)
	vainLooksGetRare(t, newLookerFor(t, 0))
}

func vainLooksGetRare(t *testing.T, l *looker) {
	t.Helper()
	for need := mux.LeastQuick; need <= 4*mux.LeastQuick; need *= 2 {
		l.poll.Batches(need - 1)
		if l.looks() {
			t.Fatalf("it polls after %d batches, less than %d", need-1, need)
		}
		l.poll.Batches(1)
		if !l.looks() {
			t.Fatalf("it does not poll after %d batches", need)
		}
		for range mux.VainPolls {
			l.inVain()
		}
	}
	l.poll.Batches(mux.MostQuick)
	for range 100 {
		if !l.looks() {
			t.Fatal("it does not poll")
		}
	}
	l.poll.Waited(time.Second)
	l.poll.Batches(mux.LeastQuick)
	if !l.looks() {
		t.Error("success has not made up for what was in vain")
	}
}

// A nap ends as soon as something comes.
func TestANapEndsWithWhatComes(t *testing.T) {
	if !mux.Napping {
		t.Skip("no naps on this system")
	}
	severalProcessors(t, 2)
	l := newLookerFor(t, 0)
	for range 20 { // the machine may be too busy for one of them
		l.poll.Batches(mux.MostQuick)
		l.poll.Drain()
		go l.peer.Write([]byte{1})
		if l.poll.Poll(0) {
			return
		}
	}
	t.Error("nothing came in 20 naps")
}

// With a single processor there is none to spare.
func TestASingleProcessorDoesNotPoll(t *testing.T) {
	severalProcessors(t, 1)
	l := newLooker(t)
	l.poll.Batches(mux.MostQuick)
	if l.looks() {
		t.Error("it polls")
	}
}

// There is one processor more than pollers, and each of them sleeps now and then all the same.
func TestPollersLeaveAProcessorToOthers(t *testing.T) {
	severalProcessors(t, 3)
	l := newLooker(t)
	l.poll.Batches(mux.MostQuick)
	for others, want := range []bool{true, true, false, false} {
		mux.AddPollers(others)
		if got := l.looks(); got != want {
			t.Errorf("beside %d others on 3 processors, it polls: %t", others, got)
		}
		mux.AddPollers(-others)
	}
	if l.poll.Poll(time.Second) {
		t.Error("it looked")
	}
	if _, err := l.peer.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !l.poll.Poll(time.Second) {
		t.Error("it has slept once, and does not poll")
	}
}
