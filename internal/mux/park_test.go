// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// overParked returns connections of which both sides are parked.
func overParked(t *testing.T, s *setup) (c, srv *mux.Conn) {
	t.Helper()
	if !mux.CanPark {
		t.Skip("connections are parked on Linux only")
	}
	c, srv = s.overTCP(t)
	untilBothParked(t, c, srv)
	return c, srv
}

func untilBothParked(t *testing.T, c, srv *mux.Conn) {
	t.Helper()
	eventually(t, "both sides are parked", func() bool { return c.Parked() && srv.Parked() })
}

func echoes() *setup {
	return &setup{limits: defaultLimits(), serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": blocked()}}
}

func TestCallsOnAParkedConnection(t *testing.T) {
	for name, calls := range map[string]func(t *testing.T, c *mux.Conn){
		"one":   func(t *testing.T, c *mux.Conn) { t.Helper(); mustEcho(t, c, echo, "first") },
		"alone": offeredCalls,
		"bound": func(t *testing.T, c *mux.Conn) {
			t.Helper()
			if _, reply, err := call(t.Context(), c, echo, "bound"); err != nil || reply != "bound" {
				t.Errorf("%q, %v", reply, err)
			}
		},
		"many": func(t *testing.T, c *mux.Conn) {
			t.Helper()
			ended := make(chan (<-chan calling), 100)
			for range cap(ended) {
				ended <- startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("many")})
			}
			for range cap(ended) {
				if got := <-<-ended; got.err != nil || got.reply != "many" {
					t.Errorf("%+v", got)
				}
			}
		},
		"too late": func(t *testing.T, c *mux.Conn) {
			t.Helper()
			_, _, err := callOut(context.Background(), c, &mux.Out{Method: other, Deadline: time.Now().Add(20 * time.Millisecond)})
			// the server's clock may be first, and its handler answers then
			if err != nil && !errors.Is(err, mux.ErrDeadline) {
				t.Error(err)
			}
		},
		"ping": func(t *testing.T, c *mux.Conn) {
			t.Helper()
			if _, err := c.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, srv := overParked(t, echoes())
			for range 2 {
				calls(t, c)
				untilBothParked(t, c, srv)
			}
			wantEmpty(t, "client", c)
			wantEmpty(t, "server", srv)
		})
	}
}

func offeredCalls(t *testing.T, c *mux.Conn) {
	t.Helper()
	untilOffered(t, c)
}

// The end of a parked connection is seen, and both sides end, whoever ended it and however.
func TestTheEndOfAParkedConnection(t *testing.T) {
	for name, end := range map[string]func(c, srv *mux.Conn){
		"closed":           func(c, _ *mux.Conn) { c.Close() },
		"aborted":          func(c, _ *mux.Conn) { c.Abort() },
		"when idle":        func(c, _ *mux.Conn) { c.CloseWhenIdle() },
		"closed by peer":   func(_, srv *mux.Conn) { srv.Close() },
		"aborted by peer":  func(_, srv *mux.Conn) { srv.Abort() },
		"drained by peer":  func(_, srv *mux.Conn) { srv.Drain() },
		"socket is closed": func(c, _ *mux.Conn) { c.NetConn().Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, srv := overParked(t, echoes())
			end(c, srv)
			wantEnd(t, c)
			wantEnd(t, srv)
		})
	}
}

// A peer that is gone without a word is found out while the connection is parked.
func TestKeepAliveOfAParkedConnection(t *testing.T) {
	s := echoes()
	s.limits.KeepAlive = 200 * time.Millisecond
	p, srv := s.facingServer(t)
	p.write(hello(nil))
	if !mux.CanPark {
		t.Skip("connections are parked on Linux only")
	}
	eventually(t, "it is parked", srv.Parked)
	wantEnd(t, srv)
	if err := srv.Err(); !errors.Is(err, mux.ErrDead) {
		t.Error(err)
	}
}

// On a busy machine a look may take so long that the next one is due.
func TestALookIsNotHeldUpByAnother(t *testing.T) {
	c, _ := overParked(t, echoes())
	mustEcho(t, c, echo, "awake")
	release := c.Hold()
	eventually(t, "a look waits for the connection", mux.Parking)
	looked := make(chan struct{}, 3)
	for range cap(looked) {
		go func() {
			mux.ParkIdle()
			looked <- struct{}{}
		}()
	}
	for range cap(looked) - 1 { // one of them may be the one that waits, if that had just ended
		select {
		case <-looked:
		case <-time.After(10 * time.Second):
			t.Error("several looks wait for the connection")
		}
	}
	release()
	mustEcho(t, c, echo, "well")
}

// A parked connection has dropped what ordered requests needed, unless a key is broken: later
// requests of that key and epoch are refused whether the connection was parked or not.
func TestAParkedConnectionKnowsBrokenKeys(t *testing.T) {
	t.Attr("rerun", "never")
	serve := func(r *mux.Request) {
		answerEcho(r)
		r.Reply.NotProcessed = string(r.Body) == "refuse"
		if r.Reply.NotProcessed {
			r.Reply.Code = codeNotFound
		}
	}
	c, srv := overParked(t, &setup{limits: defaultLimits(), serves: map[string]*handler{"echo": {serve: serve}}})
	for _, step := range []struct {
		body  string
		epoch uint64
		code  uint16
		keeps bool
	}{
		{"first", 1, 0, false}, {"refuse", 1, codeNotFound, true}, {"skipped", 1, codeUnavailable, true}, {"again", 2, 0, false},
	} {
		out := &mux.Out{Method: echo, Body: []byte(step.body)}
		out.Fields.Key, out.Fields.Epoch = []byte("k"), step.epoch
		a, err := c.Call(t.Context(), out)
		if err != nil {
			t.Fatal(step.body, err)
		}
		if a.Code != step.code {
			t.Errorf("%s: got code %d, want %d", step.body, a.Code, step.code)
		}
		a.Release()
		untilBothParked(t, c, srv)
		if got := srv.HasRequestState(); got != step.keeps {
			t.Errorf("%s: the parked connection has the state of requests: got %v, want %v", step.body, got, step.keeps)
		}
	}
}
