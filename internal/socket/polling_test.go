// SPDX-License-Identifier: Apache-2.0

//go:build unix && !indirect

package socket

import (
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A looker has a Polling and what comes to it.
type looker struct {
	Polling
	t      *testing.T
	all    Pollers
	socket Conn
	limit  time.Duration
	peer   net.Conn
}

func newLooker(t *testing.T) *looker { t.Helper(); return newLookerFor(t, time.Millisecond) }

// newLookerFor returns one that looks so long; with 0 it naps.
func newLookerFor(t *testing.T, d time.Duration) *looker {
	t.Helper()
	a, b := tcpPair(t)
	l := &looker{t: t, socket: Of(a), limit: d, peer: b}
	l.Init()
	l.all.SetProcessors()
	return l
}

func tcpPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// poll looks when it pays, and reports whether something came.
func (l *looker) poll(now time.Duration) bool {
	n, _ := l.Poll(&l.all, l.socket, int64(now), l.limit, make([]byte, 1))
	return n > 0
}

func (l *looker) drain() { _, _ = l.socket.ReadNow(make([]byte, 1)) }

// looks reports whether it looks, when something is there.
func (l *looker) looks() bool {
	l.t.Helper()
	if _, err := l.peer.Write([]byte{1}); err != nil {
		l.t.Fatal(err)
	}
	looked := l.poll(0)
	l.drain()
	return looked
}

// inVain has it look for nothing.
func (l *looker) inVain() {
	l.t.Helper()
	if l.poll(0) {
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
	l.Quick += int32(leastQuick - 1)
	if l.looks() {
		t.Error("it polls too early")
	}
	l.Quick += int32(1)
	if !l.looks() {
		t.Error("it does not poll")
	}
	l.Waited(int64(time.Millisecond), l.limit)
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
	if !napping {
		t.Skip("no naps on this system")
	}
	severalProcessors(t, 2)
	vainLooksGetRare(t, newLookerFor(t, 0))
}

func vainLooksGetRare(t *testing.T, l *looker) {
	t.Helper()
	for need := leastQuick; need <= 4*leastQuick; need *= 2 {
		l.Quick += int32(need - 1)
		if l.looks() {
			t.Fatalf("it polls after %d batches, less than %d", need-1, need)
		}
		l.Quick += int32(1)
		if !l.looks() {
			t.Fatalf("it does not poll after %d batches", need)
		}
		for range fullCredit / vainCost {
			l.inVain()
		}
	}
	l.Quick += int32(mostQuick)
	for range 100 {
		if !l.looks() {
			t.Fatal("it does not poll")
		}
	}
	l.Waited(int64(time.Second), l.limit)
	l.Quick += int32(leastQuick)
	if !l.looks() {
		t.Error("success has not made up for what was in vain")
	}
}

// A nap ends as soon as something comes.
func TestANapEndsWithWhatComes(t *testing.T) {
	if !napping {
		t.Skip("no naps on this system")
	}
	severalProcessors(t, 2)
	l := newLookerFor(t, 0)
	for range 20 { // the machine may be too busy for one of them
		l.Quick += int32(mostQuick)
		l.drain()
		go l.peer.Write([]byte{1})
		if l.poll(0) {
			return
		}
	}
	t.Error("nothing came in 20 naps")
}

// With a single processor there is none to spare.
func TestASingleProcessorDoesNotPoll(t *testing.T) {
	severalProcessors(t, 1)
	l := newLooker(t)
	l.Quick += int32(mostQuick)
	if l.looks() {
		t.Error("it polls")
	}
}

// There is one processor more than pollers, and each of them sleeps now and then all the same.
func TestPollersLeaveAProcessorToOthers(t *testing.T) {
	severalProcessors(t, 3)
	l := newLooker(t)
	l.Quick += int32(mostQuick)
	for others, want := range []bool{true, true, false, false} {
		l.all.n.Add(int32(others))
		if got := l.looks(); got != want {
			t.Errorf("beside %d others on 3 processors, it polls: %t", others, got)
		}
		l.all.n.Add(-int32(others))
	}
	if l.poll(time.Second) {
		t.Error("it looked")
	}
	if _, err := l.peer.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !l.poll(time.Second) {
		t.Error("it has slept once, and does not poll")
	}
}

// What the socket takes at once is written, and the rest is returned.
func TestWritesDoNotBlock(t *testing.T) {
	a, b := tcpPair(t)
	all := make([]byte, 16<<20)
	for i := range all {
		all[i] = byte(i % 251)
	}
	var count atomic.Uint64
	n, left, err := Of(a).WriteParts(&count, net.Buffers{all[:100], all[100:]})
	if err != nil || n == 0 || n+len(slices.Concat(left...)) != len(all) || len(left) == 0 || count.Load() == 0 {
		t.Fatalf("wrote %d bytes with %d system calls, %v; %d parts are left", n, count.Load(), err, len(left))
	}
	got := make([]byte, n)
	if _, err := io.ReadFull(b, got); err != nil || !slices.Equal(got, all[:n]) {
		t.Errorf("what was written did not arrive: %v", err)
	}
	b.Close()
	for err == nil { // until the reset arrives; a socket that is full takes nothing
		_, err = Of(a).Write(&count, all[:100])
	}
	if n, err := Of(a).ReadNow(got); n != 0 || err == nil {
		t.Errorf("got %d bytes from a socket whose peer has gone, %v", n, err)
	}
}

func TestAScattererFillsItsParts(t *testing.T) {
	if !Vectored {
		t.Skip("no vectored reads on this system")
	}
	a, b := tcpPair(t)
	s := Of(a).Scatterer()
	go b.Write([]byte("head and body")) // it waits for data
	parts := [][]byte{make([]byte, 5), make([]byte, 4), make([]byte, 100)}
	got := 0
	for got < 13 {
		n, err := s.Read([][]byte{parts[0], parts[1], parts[2]})
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if string(parts[0])+string(parts[1])+string(parts[2][:4]) != "head and body" {
		t.Errorf("got %q, %q and %q", parts[0], parts[1], parts[2][:4])
	}
	b.Close()
	if n, err := s.Read(parts); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes after the end, %v", n, err)
	}
}

// wrapped is a connection that wraps another, as a TLS connection does.
type wrapped struct {
	net.Conn
	below func() net.Conn
}

func (w wrapped) NetConn() net.Conn { return w.below() }

// What the system knows of the peer is found below wrappers, but not if their code is broken.
func TestTheSocketBelowIsAsked(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says what the peer has acknowledged")
	}
	a, b := tcpPair(t)
	var w wrapped
	w = wrapped{a, func() net.Conn { return a }}
	if n, ok := Unacknowledged(w); n != 0 || !ok {
		t.Errorf("got %d bytes, %t", n, ok)
	}
	look := func(wantUnread, wantGone bool) {
		t.Helper()
		unread, gone := Look(w)
		for end := time.Now().Add(10 * time.Second); (unread != wantUnread || gone != wantGone) && time.Now().Before(end); {
			runtime.Gosched()
			unread, gone = Look(w)
		}
		if unread != wantUnread || gone != wantGone {
			t.Errorf("unread: %t, want %t; gone: %t, want %t", unread, wantUnread, gone, wantGone)
		}
	}
	look(false, false)
	if _, err := b.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	look(true, false)
	if _, err := a.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	look(false, false)
	b.Close()
	look(true, true) // the end can be read
	for name, below := range map[string]func() net.Conn{
		"none": func() net.Conn { return nil }, "itself": func() net.Conn { return w },
		"a panic": func() net.Conn { panic("broken") }, "an exit": func() net.Conn { runtime.Goexit(); return nil },
	} {
		w = wrapped{a, below}
		unread, gone := Look(w)
		if _, ok := Unacknowledged(w); ok || unread || gone || Of(w).Exists() {
			t.Errorf("%s: a socket was found", name)
		}
	}
}
