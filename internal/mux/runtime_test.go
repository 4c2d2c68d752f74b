// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// The age at which a connection is replaced depends on the random numbers of its Runtime alone.
func TestARuntimeHasItsOwnRandomNumbers(t *testing.T) {
	const age = time.Hour
	for _, random := range []int64{0, 1, int64(age / 5)} {
		synctest.Test(t, func(t *testing.T) {
			rt := mux.NewRuntime()
			rt.Rand = func(n int64) int64 {
				if n != int64(age/5)+1 {
					t.Errorf("got a request for a number below %d", n)
				}
				return random
			}
			s := echoes()
			s.client.Limits, s.client.Runtime = agingLimits(0, age), rt
			began := time.Now()
			c, _ := s.inMemory(t)
			mustEcho(t, c, echo, "text")
			<-c.Ended()
			took, want := time.Since(began), age-age/10+time.Duration(random)
			if took < want || took > want+time.Second {
				t.Errorf("with the random number %d: the connection ended after %v, want %v", random, took, want)
			}
		})
	}
}

// A Runtime decides what time it is for its connections: the server, whose time jumps, finds the
// deadline passed, and its client does not.
func TestARuntimeHasItsOwnTime(t *testing.T) {
	var ahead atomic.Int64
	rt := mux.NewRuntime()
	rt.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	type seen struct {
		before, after bool
		left          time.Duration
	}
	got := make(chan seen, 1)
	s := &setup{limits: defaultLimits(), serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
		var now seen
		now.before = r.Expired()
		at, _ := r.Deadline()
		now.left = at.Sub(rt.Now())
		ahead.Store(int64(2 * time.Hour))
		now.after = r.Expired()
		got <- now
		answerEcho(r)
	}}}}
	s.server.Runtime = rt
	c, _ := s.overTCP(t)
	if _, _, err := callOut(context.Background(), c, &mux.Out{Method: echo, Deadline: time.Now().Add(time.Hour)}); err != nil {
		t.Errorf("the call: got error %v, want none", err)
	}
	now := within(t, "the handler has run", got)
	if now.before || !now.after || now.left < 59*time.Minute || now.left > time.Hour {
		t.Errorf("got expired: %t before the jump with %v left, and %t after it; want false with almost an hour, and true", now.before, now.left, now.after)
	}
}

// Connections with a Runtime of their own are parked by it, and not by the one of the process.
func TestARuntimeParksItsConnections(t *testing.T) {
	if !mux.CanPark {
		t.Skip("connections are not parked on this system")
	}
	rt := mux.NewRuntime()
	s := echoes()
	s.client.Runtime = rt
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "text")
	untilBothParked(t, c, srv)
	if n := rt.Watched(); n != 1 {
		t.Errorf("the Runtime of the client watches %d sockets, want 1", n)
	}
	mustEcho(t, c, echo, "again")
	c.Close()
	srv.Close()
	eventually(t, "the Runtime watches no socket", func() bool { return rt.Watched() == 0 })
}
