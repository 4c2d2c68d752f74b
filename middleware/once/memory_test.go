// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/once/oncetest"
)

func TestMemory(t *testing.T) {
	m := once.NewMemory(nil)
	oncetest.Test(t, false, func(*testing.T) once.Store { return m })
}

func TestTheMemoryRefusesKeysWhenItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, &once.Options{Keep: time.Minute, Store: once.NewMemory(&once.MemoryOptions{MaxKeys: 100})}, nil)
		for i := range 100 {
			if i == 50 {
				time.Sleep(10 * time.Second)
			}
			c.want(fmt.Sprint("a ", i+1), int32(i+1))(c.try(fmt.Sprint(i), "a"))
		}
		e := c.wantID("YDL3404", 100)(c.try("one more", "a"))
		if e.Code != yodel.ResourceExhausted || !e.NotProcessed || e.RetryAfter <= 0 || e.RetryAfter > time.Second {
			t.Errorf("got %+v", e)
		}
		c.want("a 8", 100)(c.try("7", "a")) // what it knows it answers
		time.Sleep(50 * time.Second)
		for i := range 50 {
			c.want(fmt.Sprint("a ", 101+i), int32(101+i))(c.try(fmt.Sprint("new ", i), "a"))
		}
		c.wantID("YDL3404", 150)(c.try("one more", "a"))
		c.want("a 51", 150)(c.try("50", "a"))
	})
}

func TestTheMemoryForgetsTheOldestReplies(t *testing.T) {
	t.Attr("rerun", "never")
	const size = 1000
	c := newCounter(t, &once.Options{Store: once.NewMemory(&once.MemoryOptions{MaxBytes: 100 * size})}, func(_ context.Context, in string) error {
		if strings.HasPrefix(in, "fail") {
			return yodel.Errorf(yodel.NotFound, "%s", in)
		}
		return nil
	})
	long := strings.Repeat("x", size)
	for i := range 400 {
		in := long
		if i%4 == 0 {
			in = "fail" + long
		}
		_, _ = c.try(fmt.Sprint(i), in)
	}
	kept, unkept, failed := 0, 0, 0
	for i := range 400 {
		in := long
		if i%4 == 0 {
			in = "fail" + long
		}
		switch _, err := c.try(fmt.Sprint(i), in); yodel.CodeOf(err) {
		case 0:
			kept++
		case yodel.AlreadyExists:
			unkept++
		case yodel.NotFound:
			failed++
		default:
			t.Errorf("key %d: %v", i, err)
		}
	}
	if c.n.Load() != 400 || failed != 100 || kept < 20 || kept > 75 || unkept < 200 {
		t.Errorf("executed %d times; %d replies are kept, %d are not, %d failed", c.n.Load(), kept, unkept, failed)
	}
}

func TestALargeReplyIsNotKept(t *testing.T) {
	c := newCounter(t, &once.Options{MaxReply: 100}, func(_ context.Context, in string) error {
		if in[0] == 'e' {
			return &yodel.Error{Code: yodel.NotFound, Message: in, Details: []yodel.Detail{{Value: []byte(in)}}}
		}
		return nil
	})
	large := strings.Repeat("x", 100)
	c.want(large+" 1", 1)(c.try("k", large))
	if e := c.wantID("YDL3403", 1)(c.try("k", large)); e.Code != yodel.AlreadyExists || e.NotProcessed {
		t.Errorf("got %+v", e)
	}
	for range 2 { // of an error the code is
		if _, err := c.try("e", strings.Repeat("e", 1000)); !errors.Is(err, yodel.NotFound) || c.n.Load() != 2 {
			t.Errorf("got %v after %d executions", err, c.n.Load())
		}
	}
}

// Keys that come and go leave nothing behind.
func TestTheMemoryIsBounded(t *testing.T) {
	m := once.NewMemory(&once.MemoryOptions{MaxKeys: 1000})
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	fill := func(from, n int) {
		for i := range n {
			key := fmt.Sprint("key", from+i)
			if _, _, _, err := m.Claim(t.Context(), key, "a", make([]byte, 33), time.Minute, time.Minute); err != nil && !errors.Is(err, yodel.ResourceExhausted) {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				must(t, m.Put(t.Context(), key, "a", make([]byte, 1000), time.Nanosecond))
			case 1:
				must(t, m.Drop(t.Context(), key, "a"))
			}
		}
	}
	fill(0, 5_000)
	before := heap()
	fill(5_000, 20_000)
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	runtime.KeepAlive(m)
}

// Two servers with one Memory are two owners: one that gives up does not free the key of the other.
func TestServersOfOneProcessShareAMemory(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		o := &once.Options{Store: once.NewMemory(nil)}
		slow := func(context.Context, string) error { time.Sleep(time.Second); return nil }
		a, b := newCounter(t, o, slow), newCounter(t, o, slow)
		first := make(chan error)
		go func() { _, err := a.try("k", "a"); first <- err }()
		synctest.Wait()
		b.wantID("YDL1004", 0)(b.with(&yodel.Call{IdempotencyKey: "k", Deadline: time.Now().Add(100 * time.Millisecond)}, "a"))
		b.want("a 1", 0)(b.try("k", "a"))
		must(t, <-first)
		if a.n.Load() != 1 {
			t.Errorf("executed %d times", a.n.Load())
		}
	})
}

// A broken store says no, or forgets.
type broken struct {
	once.Store

	claim, put, drop error
	garbage          []byte
	whole            time.Duration // how long the store has not lost a key, unless it is 0
	identified       int
}

func (b *broken) Identity(context.Context) (string, error) {
	b.identified++
	return fmt.Sprint("memory ", b.identified), nil
}

func (b *broken) Claim(ctx context.Context, key, owner string, value []byte, lease, keep time.Duration) ([]byte, bool, time.Duration, error) {
	if b.claim != nil || b.garbage != nil {
		return b.garbage, true, 0, b.claim
	}
	found, alive, whole, err := b.Store.Claim(ctx, key, owner, value, lease, keep)
	return found, alive, cmp.Or(b.whole, whole), err
}

func (b *broken) Put(ctx context.Context, key, owner string, value []byte, keep time.Duration) error {
	if b.put != nil {
		return b.put
	}
	return b.Store.Put(ctx, key, owner, value, keep)
}

func (b *broken) Drop(ctx context.Context, key, owner string) error {
	if b.drop != nil {
		return b.drop
	}
	return b.Store.Drop(ctx, key, owner)
}

func TestABrokenStore(t *testing.T) {
	down := errors.New("connection refused")
	quiet := slog.New(slog.DiscardHandler)
	t.Run("nothing is executed that cannot be claimed", func(t *testing.T) {
		c := newCounter(t, &once.Options{Logger: quiet, Store: &broken{Store: once.NewMemory(nil), claim: down, drop: down}}, nil)
		if e := c.wantID("YDL3405", 0)(c.try("k", "a")); e.Code != yodel.Unavailable || !e.NotProcessed {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("the first caller gets what cannot be recorded, and others nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCounter(t, &once.Options{Logger: quiet, Store: &broken{Store: once.NewMemory(nil), put: down}}, nil)
			c.want("a 1", 1)(c.try("k", "a"))
			c.wantID("YDL1004", 1)(c.with(&yodel.Call{IdempotencyKey: "k", Deadline: time.Now().Add(time.Minute)}, "a"))
		})
	})
	t.Run("what is not a record", func(t *testing.T) {
		for _, garbage := range []string{"x", "r" + strings.Repeat("p", 40), "?" + strings.Repeat("p", 32)} {
			c := newCounter(t, &once.Options{Logger: quiet, Store: &broken{garbage: []byte(garbage)}}, nil)
			if _, err := c.try("k", "a"); err == nil || c.n.Load() != 0 {
				t.Errorf("%q: got %v after %d executions", garbage, err, c.n.Load())
			}
		}
	})
}

// A store that has lost keys does not know which calls were executed before.
func TestAStoreThatLostKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, scope := range []string{"", "named by the program"} {
			s := &broken{Store: once.NewMemory(nil)}
			o := &once.Options{Store: s, Scope: scope, Logger: slog.New(slog.DiscardHandler)}
			memory := once.With(o)
			scopeOf := func() string {
				synctest.Wait() // the store is asked again in the background
				name, _ := memory.Scope()
				return name
			}
			if got := scopeOf(); got != cmp.Or(scope, "memory 1") || s.identified != 1 {
				t.Errorf("the memory is %q, and was asked for its name %d times", got, s.identified)
			}
			c := newCounterOf(t, memory, nil, func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					time.Sleep(time.Millisecond) // the network takes some time
					return next(ctx, call)
				}
			})
			c.want("a 1", 1)(c.try("before", "a"))
			s.whole = 1
			if e := c.wantID("YDL3402", 1)(c.try("lost", "a")); e.Code != yodel.Aborted || e.NotProcessed || !strings.Contains(e.Message, "lost this key") {
				t.Errorf("got %+v", e)
			}
			if got := scopeOf(); got != cmp.Or(scope, "memory 2") || s.identified != 2 {
				t.Errorf("the memory is %q, and was asked for its name %d times", got, s.identified)
			}
			s.whole = 0
			c.wantID("YDL3402", 1)(c.try("lost", "a"))
			c.want("a 1", 1)(c.try("before", "a"))
			c.want("a 2", 2)(c.try("after", "a"))
		}
	})
}

// Servers that keep outcomes for different times may share a memory: those whose time is over are
// forgotten behind others whose is not.
func TestAKeyIsForgottenBehindOneThatIsKeptForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := once.NewMemory(&once.MemoryOptions{MaxKeys: 1000, MaxBytes: 60_000})
		ctx, value := t.Context(), make([]byte, 100)
		settle := func(key string, keep time.Duration) {
			t.Helper()
			if found, _, _, err := m.Claim(ctx, key, "a", value, 0, keep); found != nil || err != nil {
				t.Fatalf("%s: %d bytes are there, %v", key, len(found), err)
			}
			if err := m.Put(ctx, key, "a", value, keep); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 500 {
			settle(fmt.Sprint("long ", i), time.Hour)
		}
		for round := range 5 {
			for i := range 500 {
				settle(fmt.Sprint("short ", round, i), time.Second)
			}
			time.Sleep(time.Second)
		}
		for i := range 500 {
			if found, _, _, err := m.Claim(ctx, fmt.Sprint("long ", i), "b", value, 0, time.Hour); found == nil || err != nil {
				t.Fatalf("long %d is gone before its time (%v)", i, err)
			}
		}
	})
}
