// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/rate/ratetest"
)

func TestMemory(t *testing.T) {
	m := rate.NewMemory(0)
	ratetest.Test(t, func(*testing.T) rate.Store { return m })
}

// A moody store counts how often it is asked, and may fail, or hang.
type moody struct {
	rate.Store

	asked atomic.Int32
	err   atomic.Pointer[error]
	hang  atomic.Bool
}

func (m *moody) fail(err error) { m.err.Store(&err) }

func (m *moody) Take(ctx context.Context, key string, n int, perSecond float64, burst int) (int, time.Duration, error) {
	m.asked.Add(1)
	if m.hang.Load() {
		<-ctx.Done()
		return 0, 0, ctx.Err()
	}
	if err := m.err.Load(); err != nil && *err != nil {
		return 0, 0, *err
	}
	return m.Store.Take(ctx, key, n, perSecond, burst)
}

func TestTheStoreIsAskedOncePerBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moody{Store: rate.NewMemory(0)}
		call := limited(&rate.Limit{PerSecond: 0.1, Burst: 100, Batch: 20, By: rate.Tenant, Store: m})
		for range 100 {
			must(t, call(&yodel.Call{Tenant: "a"}))
		}
		for range 100 { // and of what is used up, not again
			refusal(t, call(&yodel.Call{Tenant: "a"}))
		}
		if n := m.asked.Load(); n != 6 {
			t.Errorf("the store was asked %d times for 100 calls in batches of 20 and 100 refusals, want 6", n)
		}
		must(t, call(&yodel.Call{Tenant: "b"}))
	})
}

// Two limits that nobody has named do not count in one bucket because they have a store in common:
// one call of the slow one would cost the fast one a second.
func TestLimitsOfOneStoreAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rate.NewMemory(0)
		fast := limited(&rate.Limit{PerSecond: 1000, Burst: 100, Store: store})
		slow := limited(&rate.Limit{PerSecond: 1, Burst: 1, Store: store})
		must(t, slow(&yodel.Call{}))
		for range 100 {
			must(t, fast(&yodel.Call{}))
		}
		refusal(t, fast(&yodel.Call{}))
		// the same in another process
		refusal(t, limited(&rate.Limit{PerSecond: 1, Burst: 1, Store: store})(&yodel.Call{}))
	})
}

// Several processes with one store, against the bound that Limit.Batch gives.
func TestProcessesKeepToOneLimit(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			const processes, perSecond, burst, batch = 5, 100, 50, 7
			random := rand.New(rand.NewPCG(seed, 35))
			store := rate.NewMemory(0)
			var calls []func(*yodel.Call) error
			for range processes {
				calls = append(calls, limited(&rate.Limit{PerSecond: perSecond, Burst: burst, Batch: batch, Store: store}))
			}
			var passed []time.Time
			for range 2000 {
				time.Sleep(time.Duration(random.IntN(4)*random.IntN(2)) * time.Millisecond)
				if calls[random.IntN(processes)](&yodel.Call{}) == nil {
					passed = append(passed, time.Now())
				}
			}
			for i := range passed {
				for j := i; j < len(passed); j++ {
					most := burst + perSecond*passed[j].Sub(passed[i]).Seconds() + processes*(batch-1)
					if n := j - i + 1; float64(n) > most+1e-6 {
						t.Fatalf("seed %d: %d calls in %v, want at most %.1f", seed, n, passed[j].Sub(passed[i]), most)
					}
				}
			}
			if least := perSecond * passed[len(passed)-1].Sub(passed[0]).Seconds() * 0.9; float64(len(passed)) < least {
				t.Errorf("seed %d: %d calls passed, want %.0f", seed, len(passed), least)
			}
		})
	}
}

func TestWaitingForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := limited(&rate.Limit{PerSecond: 10, Burst: 1, Wait: 2 * time.Second, Store: rate.NewMemory(0)})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := call(&yodel.Call{}); err != nil || time.Since(began) != time.Duration(i)*100*time.Millisecond {
					t.Errorf("call %d got %v after %v", i, err, time.Since(began))
				}
			})
			synctest.Wait()
		}
		refusal(t, call(&yodel.Call{Deadline: time.Now().Add(1500 * time.Millisecond)}))
		if time.Since(began) != 0 {
			t.Error("it was not refused at once")
		}
		wg.Wait()
	})
}

func TestWithoutTheStoreEachProcessCountsAlone(t *testing.T) {
	for name, hang := range map[string]bool{"it fails": false, "it hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged bytes.Buffer
				m := &moody{Store: rate.NewMemory(0)}
				m.hang.Store(hang)
				m.fail(errors.New("connection refused"))
				call := limited(&rate.Limit{PerSecond: 10, Burst: 5, Store: m, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
				began := time.Now()
				var passed atomic.Int32
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						if call(&yodel.Call{}) == nil {
							passed.Add(1)
						}
					})
				}
				wg.Wait()
				if took := time.Since(began); passed.Load() != 5 || took > 250*time.Millisecond {
					t.Errorf("%d calls passed within %v, want the burst of 5 within 250ms", passed.Load(), took)
				}
				time.Sleep(2500 * time.Millisecond)
				must(t, call(&yodel.Call{}))
				if n := m.asked.Load(); n != 2 || strings.Count(logged.String(), "does not answer") != 1 {
					t.Errorf("the store was asked %d times, want 2; logged is\n%s", n, logged.String())
				}
				m.hang.Store(false)
				m.fail(nil)
				time.Sleep(time.Second)
				for range 5 {
					must(t, call(&yodel.Call{}))
				}
				refusal(t, call(&yodel.Call{}))
				if strings.Count(logged.String(), "answers again") != 1 {
					t.Errorf("logged is\n%s", logged.String())
				}
			})
		})
	}
}

func TestAStrictLimitRefusesWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moody{Store: rate.NewMemory(0)}
		m.fail(errors.New("connection refused"))
		call := limited(&rate.Limit{PerSecond: 10, Store: m, Strict: true, Logger: slog.New(slog.DiscardHandler)})
		for range 3 {
			err := call(&yodel.Call{Method: "A"})
			if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unavailable || e.ID != "YDL3302" || !e.NotProcessed {
				t.Errorf("got %v, want it refused", err)
			}
		}
	})
}

// A caller who goes away is no reason to think that the store has.
func TestACallerWhoGoesAwayDoesNotMakeTheStoreSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &moody{Store: rate.NewMemory(0)}
		m.hang.Store(true)
		h := rate.With(&rate.Limit{PerSecond: 10, Store: m, Strict: true})(pass)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := h(ctx, &yodel.Call{Method: "A"}); !errors.Is(err, yodel.DeadlineExceeded) || !yodel.NotProcessed(err) {
			t.Errorf("got %v", err)
		}
		m.hang.Store(false)
		must(t, h(t.Context(), &yodel.Call{}))
	})
}
