// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// In steady state a message costs no allocation on either side: not going there, nor coming back,
// nor in pieces.
func TestAMessageOfAStreamAllocatesNothing(t *testing.T) {
	s := &setup{serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, _ := s.overTCP(t)
	ctx := context.Background()
	runs := 2000
	if raceEnabled { // allocations are not judged
		runs = 200
	}
	for _, checksum := range []bool{false, true} {
		for _, size := range []int{0, 100, 10_000, 100_000} {
			st := mux.NewStream()
			out := &mux.Out{Method: streamMethod("duplex", wire.Duplex), Checksum: checksum, Stream: st}
			if err := c.Start(ctx, out, st); err != nil {
				t.Fatal(err)
			}
			msg := make([]byte, size)
			once := func() {
				if err := st.Send(ctx, 0, msg); err != nil {
					t.Fatal(err)
				}
				if got, _, err := st.Receive(ctx); err != nil || len(got) != size {
					t.Fatalf("got %d bytes, %v", len(got), err)
				}
			}
			for range 200 {
				once()
			}
			allowed := 0.0
			if size > 64<<10 { // whoever waits for room in the middle of a message makes a channel for that
				allowed = 8
			}
			if allocs := testing.AllocsPerRun(runs, once); allocs > allowed && !raceEnabled {
				t.Errorf("%d bytes, checksum %t: %v allocations for each", size, checksum, allocs)
			}
			st.End()
			if a, err := st.Wait(); err != nil || a.Code != 0 {
				t.Fatalf("got %+v, %v", a, err)
			}
		}
	}
}

// The same for messages that follow each other, which wait for credit now and then.
func TestManyMessagesOfAStreamAllocateNextToNothing(t *testing.T) {
	const batch = 1000
	s := &setup{serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, _ := s.overTCP(t)
	st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
	ctx := context.Background()
	msg, begin := make([]byte, 128), make(chan struct{})
	defer close(begin)
	go func() {
		for range begin {
			for range batch {
				if err := st.Send(ctx, 0, msg); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	once := func() {
		begin <- struct{}{}
		for range batch {
			if _, _, err := st.Receive(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 20 {
		once()
	}
	if allocs := testing.AllocsPerRun(100, once); allocs > batch/20 && !raceEnabled {
		t.Errorf("%v allocations for %d messages there and back", allocs, batch)
	}
}

// Messages per second on one stream, one way.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{16, 128, 1024, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := &setup{serves: map[string]*handler{"upload": {serve: func(r *mux.Request) {
				r.Stream().Accept()
				for {
					if _, _, err := r.Stream().Receive(r); err != nil {
						return
					}
				}
			}}}}
			c, srv := s.overTCP(b)
			st := mux.NewStream()
			ctx := context.Background()
			if err := c.Start(ctx, &mux.Out{Method: streamMethod("upload", wire.Upload), Stream: st}, st); err != nil {
				b.Fatal(err)
			}
			if err := st.Accepted(ctx); err != nil {
				b.Fatal(err)
			}
			msg := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := st.Send(ctx, 0, msg); err != nil {
					b.Fatal(err)
				}
			}
			st.End()
			if _, err := st.Wait(); err != nil {
				b.Fatal(err)
			}
			reportWrites(b, c, srv)
		})
	}
}

// A message there and one back, one after the other.
func BenchmarkStreamEcho(b *testing.B) {
	s := &setup{serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, srv := s.overTCP(b)
	st := mux.NewStream()
	ctx := context.Background()
	if err := c.Start(ctx, &mux.Out{Method: streamMethod("duplex", wire.Duplex), Stream: st}, st); err != nil {
		b.Fatal(err)
	}
	msg := make([]byte, 128)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := st.Send(ctx, 0, msg); err != nil {
			b.Fatal(err)
		}
		if _, _, err := st.Receive(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	st.End()
	if _, err := st.Wait(); err != nil {
		b.Fatal(err)
	}
	reportWrites(b, c, srv)
}
