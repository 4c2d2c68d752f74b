// SPDX-License-Identifier: Apache-2.0

package unpack_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/unpack"
)

// A compressor calls a function for each attempt, with the number of bytes that it expects.
type compressor func(body []byte, limit int) ([]byte, error)

func (c compressor) Decompress(_, src []byte, limit int) ([]byte, error) { return c(src, limit) }

// grows returns a compressor whose results have a size.
func grows(size int, attempts *[]int) compressor {
	return func(_ []byte, limit int) ([]byte, error) {
		if *attempts = append(*attempts, limit); size > limit {
			return nil, unpack.ErrTooLarge
		}
		return make([]byte, size), nil
	}
}

func TestAttemptsGrowUpToTheLimit(t *testing.T) {
	for _, test := range []struct {
		body, size, limit int
		want              []int
	}{
		{10, 4096, 1 << 20, []int{4096}},
		{10, 5000, 1 << 20, []int{4096, 32_768}},
		{1000, 8001, 1 << 20, []int{8000, 64_000}},
		{16_384, 1 << 24, 1_638_400, []int{131_072, 1_638_400}},
		{16_384, 200_000, 1 << 24, []int{131_072, 1 << 20}},
		{1 << 20, 1 << 20, 1 << 22, []int{1 << 22}},
		{1000, 1001, 1000, []int{1000}},
	} {
		m, attempts := memory.NewLimit(1<<30), []int(nil)
		out, err := new(unpack.Gate).Decompress(t.Context(), grows(test.size, &attempts), m, nil, make([]byte, test.body), test.limit)
		if !slices.Equal(attempts, test.want) {
			t.Errorf("%+v: the attempts expected %d bytes", test, attempts)
		}
		if fits := test.size <= test.limit; fits && (err != nil || len(out) != test.size) || !fits && !errors.Is(err, unpack.ErrTooLarge) {
			t.Errorf("%+v: got %d bytes, %v", test, len(out), err)
		}
		if used := m.Used(); used != len(out) {
			t.Errorf("%+v: %d bytes are counted, want %d", test, used, len(out))
		}
	}
}

// A compressor that panics keeps neither the memory that was counted for its body nor its place.
// Otherwise a peer with a body that makes it panic could use up both for all connections.
func TestPanicOfACompressorGivesBack(t *testing.T) {
	m, gate := memory.NewLimit(1<<30), new(unpack.Gate)
	for range 2 * runtime.GOMAXPROCS(0) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic does not get through")
				}
			}()
			_, _ = gate.Decompress(t.Context(), compressor(func([]byte, int) ([]byte, error) { panic("a broken block") }), m, nil, make([]byte, 1<<20), 1<<24)
		}()
	}
	if used := m.Used(); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// A slow compressor tells which decompressions run, and ends one after the other.
type slow struct {
	mu      sync.Mutex
	running []string
	end     chan struct{}
}

func (s *slow) Decompress(_, src []byte, _ int) ([]byte, error) {
	s.mu.Lock()
	s.running = append(s.running, string(src[:1]))
	s.mu.Unlock()
	<-s.end
	return nil, nil
}

func (s *slow) began() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.running)
}

func TestAtMostAllProcessorsButOneDecompress(t *testing.T) {
	for _, processors := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(processors), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			synctest.Test(t, func(t *testing.T) {
				s, gate, m := &slow{end: make(chan struct{})}, new(unpack.Gate), memory.NewLimit(1<<30)
				var all sync.WaitGroup
				decompress := func(name string, size int) {
					all.Go(func() {
						body := append([]byte(name), make([]byte, size)...)
						if _, err := gate.Decompress(t.Context(), s, m, nil, body, 1<<24); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				most, want := max(processors-1, 1), []string(nil)
				for range most {
					decompress("a", 1<<20)
					want = append(want, "a")
				}
				decompress("l", 1<<20) // it waits
				decompress("m", 1<<16)
				decompress("n", 1<<18)
				decompress("s", 1<<10) // it is small
				if want = append(want, "s"); s.began() != fmt.Sprint(want) {
					t.Errorf("%s run, want %s", s.began(), want)
				}
				if used := m.Used(); used > most<<23+1<<16 {
					t.Errorf("%d bytes are counted: the ones that wait count nothing", used)
				}
				for range most + 1 {
					s.end <- struct{}{}
				}
				for range 3 {
					synctest.Wait()
					s.end <- struct{}{}
				}
				all.Wait()
				got := []string{"m", "n", "l"} // in this order, and with several processors some of them at once
				if now := s.began(); processors <= 2 && now != fmt.Sprint(append(want, got...)) {
					t.Errorf("%s have run, want %s", now, append(want, got...))
				}
			})
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		s, gate, m := &slow{end: make(chan struct{})}, new(unpack.Gate), memory.NewLimit(1<<30)
		var all sync.WaitGroup
		run := func(ctx context.Context, want error) {
			all.Go(func() {
				if _, err := gate.Decompress(ctx, s, m, nil, make([]byte, 1<<20), 1<<24); !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
			synctest.Wait()
		}
		run(t.Context(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		run(ctx, context.Canceled)
		run(t.Context(), nil)
		cancel()
		synctest.Wait()
		run(ctx, context.Canceled) // it does not begin to wait
		s.end <- struct{}{}
		s.end <- struct{}{}
		all.Wait()
		run(t.Context(), nil) // the place of the one that left is free
		s.end <- struct{}{}
		all.Wait()
		if used := m.Used(); used != 0 {
			t.Errorf("%d bytes are still counted", used)
		}
	})
}
