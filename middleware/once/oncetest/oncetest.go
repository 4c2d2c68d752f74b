// SPDX-License-Identifier: Apache-2.0

// Package oncetest has the tests for implementations of once.Store.
package oncetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/middleware/once"
)

// Test checks that a store fulfills the contract of once.Store. Open returns the store as another
// process would open it: all opened stores share the same keys. Leases says whether the store
// outlives its processes, and so needs leases. The tests use different keys.
func Test(t *testing.T, leases bool, open func(t *testing.T) once.Store) {
	t.Helper()
	for name, test := range map[string]func(t *testing.T, s *opened){
		"the first claim is the owner's":     first,
		"an outcome replaces the claim":      outcome,
		"a key that was dropped is free":     dropped,
		"only the owner may change anything": owners,
		"one of many gets it":                many,
		"values and keys are any bytes":      values,
		"a key is forgotten after its time":  forgotten,
		"leases end":                         lease,
		"it ends with its context":           ends,
	} {
		t.Run(name, func(t *testing.T) {
			s := &opened{t, open(t), leases, fmt.Sprintf("%s %d", name, time.Now().UnixNano())}
			test(t, s)
		})
	}
}

type opened struct {
	*testing.T
	once.Store

	leases bool
	key    string
}

const keep = time.Minute

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

func (s *opened) claim(key, owner, value string, lease time.Duration) (found string, alive bool) {
	s.Helper()
	ctx, cancel := soon()
	defer cancel()
	got, alive, whole, err := s.Claim(ctx, key, owner, []byte(value), lease, keep)
	if err != nil {
		s.Fatal(err)
	}
	if got == nil && whole <= 0 {
		s.Errorf("the store has not lost a key for %v", whole)
	}
	return string(got), alive
}

// want claims the key for a late caller, and compares the value that is stored.
func (s *opened) want(value string, alive bool) {
	s.Helper()
	if found, lives := s.claim(s.key, "late", "too late", time.Minute); found != value || lives != alive {
		s.Errorf("got %q, alive: %v; want %q, %v", found, lives, value, alive)
	}
}

func (s *opened) put(key, owner, value string) {
	s.Helper()
	ctx, cancel := soon()
	defer cancel()
	if err := s.Put(ctx, key, owner, []byte(value), keep); err != nil {
		s.Error(err)
	}
}

func (s *opened) drop(owner string) {
	s.Helper()
	ctx, cancel := soon()
	defer cancel()
	if err := s.Drop(ctx, s.key, owner); err != nil {
		s.Error(err)
	}
}

func (s *opened) renew(owner string) {
	s.Helper()
	ctx, cancel := soon()
	defer cancel()
	if err := s.Renew(ctx, s.key, owner, time.Minute); err != nil {
		s.Error(err)
	}
}

func first(_ *testing.T, s *opened) {
	if found, _ := s.claim(s.key, "a", "claim of a", time.Minute); found != "" {
		s.Errorf("a new key has %q", found)
	}
	s.want("claim of a", true)
	s.want("claim of a", true)
}

func outcome(_ *testing.T, s *opened) {
	s.claim(s.key, "a", "claim", time.Minute)
	s.put(s.key, "a", "outcome")
	s.want("outcome", true)
	s.put(s.key, "a", "another one") // the key has an outcome already
	s.renew("a")
	s.drop("a")
	s.want("outcome", true)
}

func dropped(_ *testing.T, s *opened) {
	s.claim(s.key, "a", "claim", time.Minute)
	s.drop("a")
	s.drop("a")
	s.put(s.key, "a", "outcome")
	if found, _ := s.claim(s.key, "b", "claim of b", time.Minute); found != "" {
		s.Errorf("a key that was dropped has %q", found)
	}
	s.want("claim of b", true)
}

func owners(_ *testing.T, s *opened) {
	s.put(s.key, "nobody", "outcome")
	s.renew("nobody")
	s.drop("nobody")
	s.claim(s.key, "a", "claim", time.Minute)
	s.put(s.key, "b", "outcome")
	s.drop("b")
	s.want("claim", true)
}

func many(_ *testing.T, s *opened) {
	for round := range 20 {
		key := fmt.Sprint(s.key, round)
		var got atomic.Int32
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if found, _ := s.claim(key, fmt.Sprint(i), "claim", time.Minute); found == "" {
					got.Add(1)
				}
			})
		}
		wg.Wait()
		if got.Load() != 1 {
			s.Errorf("%d of 10 got the key", got.Load())
		}
	}
}

func values(_ *testing.T, s *opened) {
	for i, value := range []string{"\x00", "\xff\r\n", strings.Repeat("x", 1<<20), "$5\r\nhello"} {
		for _, key := range []string{"a b", "{x}", "\x00\xff", "*"} {
			key = fmt.Sprint(s.key, i, key)
			s.claim(key, "a", "claim", time.Minute)
			given := []byte(value)
			ctx, cancel := soon()
			if err := s.Put(ctx, key, "a", given, keep); err != nil {
				s.Error(err)
			}
			cancel()
			copy(given, "changed") // the owner changes its copy
			found, _ := s.claim(key, "b", "", time.Minute)
			if !bytes.Equal([]byte(found), []byte(value)) {
				s.Errorf("of %d bytes %d came back", len(value), len(found))
			}
		}
	}
}

func forgotten(_ *testing.T, s *opened) {
	ctx, cancel := soon()
	defer cancel()
	s.claim(s.key, "a", "claim", time.Minute)
	if err := s.Put(ctx, s.key, "a", []byte("outcome"), 50*time.Millisecond); err != nil {
		s.Error(err)
	}
	<-time.After(60 * time.Millisecond)
	if found, _ := s.claim(s.key, "b", "claim", time.Minute); found != "" {
		s.Errorf("it still has %q", found)
	}
}

func lease(t *testing.T, s *opened) {
	if !s.leases {
		t.Skip("this store ends with its process")
	}
	s.claim(s.key, "a", "claim", 50*time.Millisecond)
	<-time.After(60 * time.Millisecond)
	s.want("claim", false)
	s.renew("a")
	s.want("claim", true)
	other := *s
	other.key += " other"
	other.claim(other.key, "a", "claim", time.Millisecond)
	<-time.After(10 * time.Millisecond)
	other.want("claim", false)
	other.put(other.key, "a", "outcome") // the owner is alive after all
	other.want("outcome", true)
}

func ends(t *testing.T, s *opened) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := s.Claim(ctx, s.key, "a", []byte("claim"), time.Minute, keep); err == nil {
		s.Error("it was claimed for one who had gone")
	}
}
