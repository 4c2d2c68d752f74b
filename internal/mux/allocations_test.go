// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// told is where the one-way handler of the test below says that it ran.
var told atomic.Pointer[chan struct{}]

// In steady state a call costs one allocation on both sides together: the Request, which is the
// context of its handler and may be kept by it.
func TestACallAllocatesItsRequestOnly(t *testing.T) {
	ways := map[string]func(t *testing.T, c *mux.Conn, out *mux.Out) func(){
		"call": func(t *testing.T, c *mux.Conn, out *mux.Out) func() {
			return func() {
				a, err := c.Call(context.Background(), out)
				if err != nil {
					t.Fatal(err)
				}
				a.Release()
			}
		},
		"start": func(t *testing.T, c *mux.Conn, out *mux.Out) func() {
			told := make(chan struct{}, 1)
			back := mux.Completer(completed(func(_ *mux.Answer, err error) {
				if err != nil {
					t.Error(err)
				}
				told <- struct{}{}
			}))
			return func() {
				if err := c.Start(context.Background(), out, back); err != nil {
					t.Fatal(err)
				}
				<-told
			}
		},
		"notify": func(t *testing.T, c *mux.Conn, out *mux.Out) func() {
			answered := make(chan struct{}, 1)
			out = &mux.Out{Method: third, Body: out.Body, Attachment: out.Attachment, Metadata: out.Metadata, Fields: out.Fields, Checksum: out.Checksum}
			told.Store(&answered)
			return func() {
				if err := c.Notify(context.Background(), out); err != nil {
					t.Fatal(err)
				}
				<-answered
			}
		},
	}
	requests := map[string]mux.Out{
		"plain":      {Body: filled('x', 500)},
		"empty":      {},
		"attachment": {Body: filled('x', 500), Attachment: filled('a', 100), Checksum: true},
		"deadline":   {Body: filled('x', 500), Deadline: time.Now().Add(time.Hour)},
	}
	s := &setup{serves: map[string]*handler{
		"echo":  {inline: true, serve: answerEcho},
		"other": {serve: answerEcho},
		"third": {inline: true, serve: func(*mux.Request) { *told.Load() <- struct{}{} }},
	}}
	c, _ := s.overTCP(t)
	allowed, runs := 1.0, 2000
	if raceEnabled { // a sync.Pool forgets on purpose then
		allowed, runs = 4, 200
	}
	for way, caller := range ways {
		for what, out := range requests {
			for _, m := range []*mux.Method{echo, other} {
				out.Method = m
				once := caller(t, c, &out)
				for range 100 {
					once()
				}
				if allocs := testing.AllocsPerRun(runs, once); allocs > allowed {
					t.Errorf("%s, %s, %s: %v allocations for each", way, what, m.Name, allocs)
				}
			}
		}
	}
}

// What has more in its fields than a timeout costs one allocation more, for the fields.
func TestFieldsAllocateThemselvesOnly(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, _ := s.overTCP(t)
	out := &mux.Out{Method: echo, Metadata: wire.AppendPair(nil, "user", "anna")}
	once := func() {
		a, err := c.Call(context.Background(), out)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	once()
	allowed := 2.0
	if raceEnabled {
		allowed = 5
	}
	if allocs := testing.AllocsPerRun(2000, once); allocs > allowed {
		t.Errorf("%v allocations for each", allocs)
	}
}

// A stream that has grown its window keeps the memory for it, instead of taking as much again for
// each windowful.
func TestAFastStreamTakesMemoryOnce(t *testing.T) {
	const size, count = 60_000, 2000
	s := &setup{serves: map[string]*handler{"drain": {serve: func(r *mux.Request) {
		st := r.Stream()
		st.Accept()
		for {
			if _, _, err := st.Receive(r); err != nil {
				return
			}
		}
	}}}}
	c, _ := s.overTCP(t)
	st := open(t, c, streamMethod("drain", wire.Upload), nil)
	if err := st.Accepted(t.Context()); err != nil {
		t.Fatal(err)
	}
	msg := filled('x', size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range count {
		if err := st.Send(t.Context(), 0, msg); err != nil {
			t.Fatal(err)
		}
	}
	st.End()
	if _, err := st.Wait(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > size*count/2 {
		t.Errorf("a stream of %d bytes took %d bytes of memory", size*count, taken)
	}
}
