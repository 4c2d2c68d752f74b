// SPDX-License-Identifier: Apache-2.0

// Package ratetest has the tests for implementations of rate.Store.
package ratetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/middleware/rate"
)

// Test checks that a store fulfills the contract of rate.Store. Open returns the store as another
// process would open it: all opened stores share their counts. The tests use different keys.
func Test(t *testing.T, open func(t *testing.T) rate.Store) {
	t.Helper()
	for name, test := range map[string]func(t *testing.T, s *opened){
		"the burst is there at once":     burst,
		"what is taken comes back":       refill,
		"keys have buckets of their own": keys,
		"processes count together":       together,
		"many at once":                   concurrent,
		"rates":                          rates,
		"it ends with its context":       ends,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, &opened{t, open(t), open, fmt.Sprintf("%s %d", name, time.Now().UnixNano())})
		})
	}
}

type opened struct {
	*testing.T
	rate.Store

	open func(t *testing.T) rate.Store
	key  string
}

// take takes n calls. It fails the test if the store returns values that the contract does not
// allow.
func (s *opened) take(key string, n int, perSecond float64, burst int) (got int, after time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	got, after, err := s.Take(ctx, key, n, perSecond, burst)
	switch {
	case err != nil:
		s.Fatal(err)
	case got < 0 || got > n:
		s.Fatalf("asked for %d calls it gave %d", n, got)
	case got == 0 && (after <= 0 || after > time.Duration(float64(time.Second)/perSecond)+time.Millisecond):
		s.Fatalf("come back in %v, of %v calls a second", after, perSecond)
	}
	return got, after
}

func burst(_ *testing.T, s *opened) {
	for i, want := range []int{1, 4, 5, 0, 0} { // with a burst of 10
		if got, _ := s.take(s.key, []int{1, 4, 100, 1, 100}[i], 0.01, 10); got != want {
			s.Errorf("the take %d got %d, want %d", i+1, got, want)
		}
	}
}

func refill(_ *testing.T, s *opened) {
	const perSecond, burst = 50, 5
	began := time.Now()
	total := 0
	for time.Since(began) < 500*time.Millisecond {
		got, after := s.take(s.key, 2, perSecond, burst)
		total += got
		if got == 0 {
			<-time.After(after)
			if got, _ = s.take(s.key, 1, perSecond, burst); got == 0 {
				s.Errorf("there was nothing %v later", after)
			}
			total += got
		}
	}
	took := time.Since(began).Seconds()
	if most := burst + perSecond*took + 1; float64(total) > most || float64(total) < perSecond*took/2 {
		s.Errorf("got %d calls in %.3f s, want at most %.1f and not much less", total, took, most)
	}
}

func keys(_ *testing.T, s *opened) {
	for _, key := range []string{"", "a", "a b", "{a}", "a\x00b", "ä", strings.Repeat("x", 5000), "a:b|c*"} {
		if got, _ := s.take(s.key+key, 3, 0.01, 2); got != 2 {
			s.Errorf("the key %.20q gave %d calls, want 2", key, got)
		}
	}
}

func together(t *testing.T, s *opened) {
	other := *s
	other.Store = s.open(t)
	first, _ := s.take(s.key, 3, 0.01, 5)
	second, _ := other.take(s.key, 3, 0.01, 5)
	third, _ := s.take(s.key, 3, 0.01, 5)
	if first != 3 || second != 2 || third != 0 {
		s.Errorf("got %d, %d and %d calls, want 3, 2 and 0", first, second, third)
	}
}

func concurrent(_ *testing.T, s *opened) {
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				got, _, err := s.Take(ctx, s.key, 1, 0.01, 100)
				cancel()
				if err != nil {
					s.Error(err)
				}
				total.Add(int64(got))
			}
		})
	}
	wg.Wait()
	if total.Load() != 100 {
		s.Errorf("got %d calls, want 100", total.Load())
	}
}

func rates(_ *testing.T, s *opened) {
	for i, perSecond := range []float64{1e-6, 0.1, 1, 1.0 / 3, 1e4, 1e8} {
		if got, _ := s.take(fmt.Sprint(s.key, i), 7, perSecond, 10); got != 7 {
			s.Errorf("of %v calls a second and a burst of 10 it gave %d, want 7", perSecond, got)
		}
	}
}

func ends(t *testing.T, s *opened) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, _, err := s.Take(ctx, s.key, 1, 1, 1); err == nil {
		s.Errorf("got %d calls for one who had gone", got)
	}
}
