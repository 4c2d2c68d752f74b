// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// counted returns what both sides did, once each has counted all that the other one saw.
func counted(t *testing.T, c, srv *mux.Conn) (client, server mux.Counters) {
	t.Helper()
	eventually(t, "all is counted", func() bool {
		client, server = c.Counters(), srv.Counters()
		return client.BytesIn == server.BytesOut && client.BytesOut == server.BytesIn
	})
	return client, server
}

// since returns what a connection did after it had counted so far.
func since(now, before mux.Counters) mux.Counters {
	return mux.Counters{
		Reads: now.Reads - before.Reads, Writes: now.Writes - before.Writes,
		BytesIn: now.BytesIn - before.BytesIn, BytesOut: now.BytesOut - before.BytesOut,
		FramesIn: now.FramesIn - before.FramesIn, FramesOut: now.FramesOut - before.FramesOut,
	}
}

func TestASingleCallerCostsOneWriteForEachCall(t *testing.T) {
	for _, inline := range []bool{true, false} {
		s := &setup{serves: map[string]*handler{"echo": {inline: inline, serve: answerEcho}}}
		c, srv := s.overTCP(t)
		for range 10 {
			mustEcho(t, c, echo, "first")
		}
		const calls = 2000
		client, server := counted(t, c, srv)
		for range calls {
			mustEcho(t, c, echo, "one at a time")
		}
		cn, sn := counted(t, c, srv)
		cn, sn = since(cn, client), since(sn, server)
		if cn.Writes != calls || sn.Writes != calls || cn.FramesOut != calls || sn.FramesOut != calls {
			t.Errorf("inline %t: %d calls took %+v on the client and %+v on the server, want a write for each", inline, calls, cn, sn)
		}
	}
}

// Two callers whose replies came together ask again together.
func TestTwoCallersShareAWrite(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	const calls = 2000
	client, server := counted(t, c, srv)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range calls / 2 {
				mustEcho(t, c, echo, "side by side")
			}
		})
	}
	wg.Wait()
	cn, sn := counted(t, c, srv)
	cn, sn = since(cn, client), since(sn, server)
	t.Logf("%d calls took %d writes on the client and %d on the server", calls, cn.Writes, sn.Writes)
	if cn.Writes > calls*4/5 && !raceEnabled { // the race detector delays the second caller
		t.Errorf("%d calls took %d writes on the client, want one for most pairs", calls, cn.Writes)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// With many calls open a write carries many of them, both ways, without waiting for any.
func TestManyCallsShareAWrite(t *testing.T) {
	const window, calls = 2000, 100_000
	want := 50.0
	if raceEnabled { // replies wait for each other for 200 µs at most, in which there is time for fewer
		want = 10
	}
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	tokens := make(chan struct{}, window)
	for range window {
		tokens <- struct{}{}
	}
	var failed error
	back := completed(func(a *mux.Answer, err error) {
		if err != nil {
			failed = err
		}
		tokens <- struct{}{}
	})
	client, server := counted(t, c, srv)
	out := &mux.Out{Method: echo, Body: filled('x', 128)}
	for range calls {
		<-tokens
		if err := c.Start(context.Background(), out, back); err != nil {
			t.Fatal(err)
		}
	}
	for range window {
		<-tokens
	}
	if failed != nil {
		t.Fatal(failed)
	}
	cn, sn := counted(t, c, srv)
	cn, sn = since(cn, client), since(sn, server)
	perWrite := func(n mux.Counters) float64 { return calls / float64(n.Writes) }
	t.Logf("calls per write: client %.0f, server %.0f; per read: client %.0f, server %.0f",
		perWrite(cn), perWrite(sn), calls/float64(cn.Reads), calls/float64(sn.Reads))
	if perWrite(cn) < want || perWrite(sn) < want {
		t.Errorf("got %.1f calls per write on the client and %.1f on the server, want %.0f at least", perWrite(cn), perWrite(sn), want)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}
