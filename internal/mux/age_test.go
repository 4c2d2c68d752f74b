// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// The tests of age run in fake time.

func agingLimits(idle, age time.Duration) mux.Limits {
	limits := defaultLimits()
	limits.IdleTimeout, limits.MaxAge = idle, age
	return limits
}

// A connection is closed when it has been idle on the side that says so, and not while a call is
// open in either direction.
func TestAnIdleConnectionIsClosed(t *testing.T) {
	const idle = time.Minute
	for _, byClient := range []bool{true, false} {
		for _, called := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				slow := map[string]*handler{"echo": {serve: answerEcho}, "other": {serve: func(r *mux.Request) {
					time.Sleep(time.Hour)
					answerEcho(r)
				}}}
				s := &setup{serves: slow, clientServes: slow}
				if byClient {
					s.client.Limits = agingLimits(idle, 0)
				} else {
					s.server.Limits = agingLimits(idle, 0)
				}
				c, srv := s.inMemory(t)
				caller := c
				if called {
					caller = srv
				}
				mustEcho(t, caller, other, "for an hour")
				for range 20 {
					time.Sleep(idle * 9 / 10)
					mustEcho(t, caller, echo, "in time")
				}
				last := time.Now()
				<-c.Ended()
				if took := time.Since(last); took < idle || took > idle*5/4+time.Second {
					t.Errorf("by the client: %t, called by it: %t: it was closed after %v", byClient, !called, took)
				}
				<-srv.Ended()
				want := mux.ErrAged
				if !byClient {
					want = mux.ErrDrained
				}
				if !errors.Is(c.Err(), want) || !c.Aged() {
					t.Errorf("the client's connection ended with %v, because of its age: %t", c.Err(), c.Aged())
				}
			})
		}
	}
}

// A connection that has had its time finishes what is open, takes nothing new, and says that it was
// not sent. Connections that were made together do not end together.
func TestAnOldConnectionIsReplaced(t *testing.T) {
	const age = time.Hour
	for _, byClient := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const conns = 20
			var first, last time.Duration
			for i := range conns {
				replaced := make(chan struct{}, 1)
				s := &setup{serves: map[string]*handler{"echo": {serve: answerEcho}, "other": {serve: func(r *mux.Request) {
					time.Sleep(2 * age)
					answerEcho(r)
				}}}}
				s.client.Limits, s.server.Limits = defaultLimits(), defaultLimits()
				if byClient {
					s.client.MaxAge = age
				} else {
					s.server.MaxAge = age
				}
				s.client.Unusable = func(*mux.Conn) {
					select {
					case replaced <- struct{}{}:
					default: // it is told of the end too
					}
				}
				start := time.Now()
				c, _ := s.inMemory(t)
				long := startCall(c, context.Background(), &mux.Out{Method: other, Body: []byte("finished")})
				defer func() {
					if got := <-long; got.err != nil || got.reply != "finished" {
						t.Errorf("the call that was open: %+v", got)
					}
					<-c.Ended()
				}()
				<-replaced
				at := time.Since(start)
				synctest.Wait()
				if _, _, err := call(context.Background(), c, echo, "new"); !notProcessed(err) {
					t.Errorf("a new call: got %v", err)
				}
				if at < age*9/10 || at > age*11/10 || !c.Aged() {
					t.Errorf("by the client: %t: after %v its time was over, because of its age: %t", byClient, at, c.Aged())
				}
				if first, last = min(first, at), max(last, at); i == 0 {
					first, last = at, at
				}
			}
			if last-first < age/20 {
				t.Errorf("all ended between %v and %v", first, last)
			}
		})
	}
}
