// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A reply says where the time went when it was asked, when the call took long, and when it failed.
func TestRepliesSayWhereTheTimeWent(t *testing.T) {
	for _, test := range []struct {
		name    string
		inline  bool
		explain uint64
		waits   time.Duration // before the method
		takes   time.Duration // the method itself
		code    uint16
		says    bool
	}{
		{name: "short"},
		{name: "short, inline", inline: true},
		{name: "asked", explain: 1, waits: 2 * time.Millisecond, takes: time.Millisecond, says: true},
		{name: "asked, inline", inline: true, explain: 1, waits: 2 * time.Millisecond, takes: time.Millisecond, says: true},
		{name: "asked, and no time passed", explain: 1, says: true},
		{name: "long", waits: time.Second, takes: time.Minute, says: true},
		{name: "failed", waits: time.Millisecond, code: 5, says: true},
		{name: "failed, inline", inline: true, code: 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target := &handler{inline: test.inline, serve: func(r *mux.Request) {
					time.Sleep(test.waits)
					r.Began = monotime.Now()
					time.Sleep(test.takes)
					if r.Reply.Code = test.code; test.code != 0 {
						r.Reply.Fields = &wire.Fields{Message: []byte("it cannot be done")}
					}
					r.Reply.Body = []byte("body")
				}}
				s := &setup{server: mux.Config{
					Limits: defaultLimits(),
					Bind:   func(*mux.Conn, *wire.Binding) (mux.Target, wire.Info) { return target, wire.Info{Known: 1} },
				}}
				c, _ := s.inMemory(t)
				out := &mux.Out{Method: echo, Fields: wire.Fields{Explain: test.explain}}
				began := monotime.Now()
				a, err := c.Call(context.Background(), out)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Release()
				if took := a.At - began; took != test.waits+test.takes {
					t.Errorf("the answer came after %v, want %v", took, test.waits+test.takes)
				}
				var f wire.Fields
				if err := wire.ParseFields(a.Fields, &f); err != nil {
					t.Fatal(err)
				}
				var want wire.Fields
				if test.says {
					want.ServerTime = uint64(max((test.waits + test.takes).Microseconds(), 1))
					want.ServerWait = uint64(test.waits.Microseconds())
				}
				if f.ServerTime != want.ServerTime || f.ServerWait != want.ServerWait || string(a.Body) != "body" {
					t.Errorf("got %q after %d µs, of which %d before the method, want %d and %d", a.Body, f.ServerTime, f.ServerWait, want.ServerTime, want.ServerWait)
				}
			})
		})
	}
}

// What a request waits for the window is known afterwards, whether it was sent then or not.
func TestTheWaitForTheWindowIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &handler{serve: func(r *mux.Request) { time.Sleep(time.Second) }}
		limits := defaultLimits()
		limits.MaxOpen = 1
		s := &setup{server: mux.Config{
			Limits: limits,
			Bind:   func(*mux.Conn, *wire.Binding) (mux.Target, wire.Info) { return target, wire.Info{Known: 1} },
		}}
		c, _ := s.inMemory(t)
		if a, err := c.Call(context.Background(), &mux.Out{Method: echo}); err != nil { // with it come the settings
			t.Fatal(err)
		} else {
			a.Release()
		}
		outs := make([]mux.Out, 3)
		waited := make(chan error, len(outs))
		for i := range outs {
			outs[i].Method = echo
			if i == 2 {
				outs[i].Deadline = time.Now().Add(1500 * time.Millisecond)
			}
			go func() {
				a, err := c.Call(context.Background(), &outs[i])
				if err == nil {
					a.Release()
				}
				waited <- err
			}()
			synctest.Wait()
		}
		var failed []error
		for range outs {
			if err := <-waited; err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) != 1 || !errors.Is(failed[0], mux.ErrDeadline) {
			t.Errorf("got %v, want that the last one was too late", failed)
		}
		for i, want := range []time.Duration{0, time.Second, 1500 * time.Millisecond} {
			if outs[i].Waited != want {
				t.Errorf("request %d waited %v, want %v", i, outs[i].Waited, want)
			}
		}
		outs[1].Reset()
		if outs[1].Waited != 0 {
			t.Error("a request that is used again has waited already")
		}
	})
}
