// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

func pass(context.Context, *yodel.Call) error { return nil }

// limited returns a handler behind a limit.
func limited(l *rate.Limit) func(call *yodel.Call) error {
	h := rate.With(l)(pass)
	return func(call *yodel.Call) error { return h(context.Background(), call) }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refusal returns the error of a refused call, and fails the test if it is none.
func refusal(t *testing.T, err error) *yodel.Error {
	t.Helper()
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.Code != yodel.ResourceExhausted || e.ID != "YDL3301" || !e.NotProcessed || e.RetryAfter <= 0 {
		t.Fatalf("got %#v, want a refusal", err)
	}
	return e
}

// A model of a token bucket, in exact numbers: of nanoseconds' worth of calls.
type model struct {
	interval, room, level int64
	at                    time.Time
}

func (m *model) take(now time.Time) (ok bool, after time.Duration) {
	m.level, m.at = min(m.room, m.level+int64(now.Sub(m.at))), now
	if m.level < m.interval {
		return false, time.Duration(m.interval - m.level)
	}
	m.level -= m.interval
	return true, 0
}

func TestALimitIsATokenBucket(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 33))
			perSecond := []float64{0.5, 1, 8, 100, 5000, 1e6}[random.IntN(6)]
			burst := 1 + random.IntN(20)
			interval := int64(float64(time.Second) / perSecond)
			call := limited(&rate.Limit{PerSecond: perSecond, Burst: burst})
			m := &model{interval, interval * int64(burst), interval * int64(burst), time.Now()}
			for i := range 2000 {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(interval) * random.Float64() * 2))
				want, after := m.take(time.Now())
				err := call(&yodel.Call{Method: "A"})
				if (err == nil) != want {
					t.Fatalf("seed %d, call %d: got %v, the model passes it: %v", seed, i, err, want)
				}
				if err != nil {
					if e := refusal(t, err); e.RetryAfter != max(after, time.Microsecond) {
						t.Fatalf("seed %d, call %d: come back in %v, want %v", seed, i, e.RetryAfter, after)
					}
				}
			}
		})
	}
}

func TestManyAtOnceGetTheBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 100
		call := limited(&rate.Limit{PerSecond: 10, Burst: burst, By: rate.Method})
		var passed atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 10 {
					if call(&yodel.Call{Method: "A"}) == nil {
						passed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := passed.Load(); n != burst {
			t.Errorf("%d calls passed at once, want %d", n, burst)
		}
	})
}

func TestBadNumbersAreCorrected(t *testing.T) {
	for _, none := range []float64{0, -1, math.NaN(), math.Inf(-1)} {
		call := limited(&rate.Limit{PerSecond: none})
		for range 100 {
			must(t, call(&yodel.Call{}))
		}
	}
	must(t, rate.With(nil)(pass)(t.Context(), &yodel.Call{}))
	for _, l := range []rate.Limit{
		{PerSecond: math.Inf(1)},
		{PerSecond: math.MaxFloat64, Burst: math.MaxInt},
		{PerSecond: math.SmallestNonzeroFloat64, Burst: math.MaxInt},
		{PerSecond: 1, Burst: -1, Wait: -1, MaxKeys: -1, By: rate.Method, Batch: -1, Timeout: -1},
		{PerSecond: 1, Batch: math.MaxInt, Store: rate.NewMemory(-1)},
		{PerSecond: 1e-9},
	} {
		if err := limited(&l)(&yodel.Call{}); err != nil {
			t.Errorf("%+v: the first call: %v", l, err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // by default
		call := limited(&rate.Limit{PerSecond: 100})
		for range 10 {
			must(t, call(&yodel.Call{}))
		}
		refusal(t, call(&yodel.Call{}))
	})
}

func TestKeysHaveLimitsOfTheirOwn(t *testing.T) {
	for name, test := range map[string]struct {
		by   func(context.Context, *yodel.Call) rate.Key
		a, b *yodel.Call
		says string
	}{
		"method":   {rate.Method, &yodel.Call{Method: "A"}, &yodel.Call{Method: "B"}, "of this method"},
		"tenant":   {rate.Tenant, &yodel.Call{Tenant: "a"}, &yodel.Call{Tenant: "b"}, `of the tenant "a"`},
		"metadata": {rate.Metadata("user"), &yodel.Call{Metadata: yodel.Metadata{"user": "secret"}}, &yodel.Call{}, "of this caller"},
		"both": {func(_ context.Context, call *yodel.Call) rate.Key {
			return rate.Key{Method: call.Method, Tenant: call.Tenant}
		}, &yodel.Call{Method: "ab", Tenant: "c"}, &yodel.Call{Method: "a", Tenant: "bc"}, "of this method of the tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			call := limited(&rate.Limit{PerSecond: 0.01, By: test.by})
			for _, one := range []*yodel.Call{test.a, test.b} {
				must(t, call(one))
				e := refusal(t, call(one))
				if strings.Contains(e.Message, "secret") {
					t.Errorf("the message shows the key: %s", e.Message)
				}
			}
			if e := refusal(t, call(test.a)); !strings.Contains(e.Message, test.says) {
				t.Errorf("got %q, want it to say %q", e.Message, test.says)
			}
			if a, b := test.by(t.Context(), test.a), test.by(t.Context(), test.b); a.String() == b.String() {
				t.Error("two keys are one text")
			}
		})
	}
}

func TestPeersAreToldApartByAddress(t *testing.T) {
	var keys []rate.Key
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			keys = append(keys, rate.Peer(ctx, call))
			for addr, want := range map[string]string{
				"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::",
			} {
				call.Peer().Addr = &net.TCPAddr{IP: net.ParseIP(addr), Port: 7}
				if got := rate.Peer(ctx, call).Addr.String(); got != want {
					t.Errorf("%s has the key %s, want %s", addr, got, want)
				}
			}
			return next(ctx, call)
		}
	}}})
	work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	for range 2 { // another port
		c := yodel.Dial(l.Addr().String())
		_, err = work.Call(t.Context(), c, &struct{}{})
		must(t, err)
		c.Close()
	}
	cancel()
	must(t, <-served)
	if len(keys) != 2 || keys[0] != keys[1] || keys[0].Addr.String() != "127.0.0.1" {
		t.Errorf("got the keys %v", keys)
	}
	if rate.Peer(t.Context(), &yodel.Call{}) != (rate.Key{}) {
		t.Error("a call of a client has a peer")
	}
}

// Whoever invents keys makes no memory grow, and does not disturb a caller whose limit is used up.
func TestInventedKeysCostNoMemory(t *testing.T) {
	call := limited(&rate.Limit{PerSecond: 0.001, Burst: 1, By: rate.Tenant, MaxKeys: 1024})
	invent := func(from, n int) {
		for i := range n {
			if err := call(&yodel.Call{Tenant: fmt.Sprint("invented", from+i)}); err != nil {
				refusal(t, err)
			}
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	invent(0, 10_000)
	before := heap()
	invent(10_000, 50_000)
	if after := heap(); after > before+256<<10 {
		t.Errorf("50,000 keys made the heap grow from %d to %d bytes", before, after)
	}
}

func TestTheKeyThatIsFullMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := limited(&rate.Limit{PerSecond: 1, Burst: 1000, By: rate.Tenant, MaxKeys: 8})
		for range 1000 {
			must(t, call(&yodel.Call{Tenant: "busy"}))
		}
		for i := range 100 {
			must(t, call(&yodel.Call{Tenant: fmt.Sprint(i)}))
			time.Sleep(time.Second)
			must(t, call(&yodel.Call{Tenant: "busy"})) // the one that has come since
			refusal(t, call(&yodel.Call{Tenant: "busy"}))
		}
	})
}

func TestWaitingIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := limited(&rate.Limit{PerSecond: 10, Burst: 1, Wait: time.Hour})
		began := time.Now()
		type end struct {
			who int
			at  time.Duration
		}
		ends := make(chan end, 100)
		for i := range 50 {
			go func() {
				if err := call(&yodel.Call{}); err != nil {
					t.Error(err)
				}
				ends <- end{i, time.Since(began)}
			}()
			synctest.Wait()
		}
		for i := range 50 {
			if got, want := <-ends, (end{i, time.Duration(i) * 100 * time.Millisecond}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
	})
}

func TestACallWaitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := rate.With(&rate.Limit{PerSecond: 1, Burst: 1, Wait: 10 * time.Second})(pass)
		must(t, h(t.Context(), &yodel.Call{}))
		began := time.Now()
		try := func(ctx context.Context, within time.Duration) error {
			call := &yodel.Call{}
			if within > 0 {
				call.Deadline = time.Now().Add(within)
			}
			return h(ctx, call)
		}
		if e := refusal(t, try(t.Context(), 999*time.Millisecond)); e.RetryAfter != time.Second {
			t.Errorf("come back in %v, want 1s", e.RetryAfter)
		}
		short, cancel := context.WithTimeout(t.Context(), 999*time.Millisecond)
		defer cancel()
		refusal(t, try(short, 0))
		if took := time.Since(began); took != 0 {
			t.Errorf("calls whose turn comes too late waited %v", took)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := try(t.Context(), 0); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if e := refusal(t, try(t.Context(), 0)); e.RetryAfter != 11*time.Second {
			t.Errorf("come back in %v, want 11s", e.RetryAfter)
		}
		wg.Wait()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("ten calls took %v, want 10s", took)
		}
	})
}

func TestWhoGivesUpWhileWaitingUsesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := rate.With(&rate.Limit{PerSecond: 1, Burst: 1, Wait: time.Minute})(pass)
		must(t, h(t.Context(), &yodel.Call{}))
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 5)
		for range 5 {
			go func() { ended <- h(ctx, &yodel.Call{Method: "A"}) }()
		}
		synctest.Wait()
		last := make(chan error)
		go func() { last <- h(t.Context(), &yodel.Call{}) }()
		synctest.Wait()
		cancel()
		for range 5 {
			if err := <-ended; !errors.Is(err, yodel.Canceled) || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), "[YDL1006]") {
				t.Errorf("got %v, want canceled and not executed", err)
			}
		}
		must(t, <-last)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the one behind them waited %v, want 1s", took)
		}
	})
}

// Waiting against a model: whatever comes and goes, never more than the limit passes, and none
// waits when it need not.
func TestWaitingKeepsTheRate(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 34))
			const interval, burst = 10 * time.Millisecond, 5
			h := rate.With(&rate.Limit{PerSecond: 100, Burst: burst, Wait: 100 * time.Millisecond})(pass)
			var mu sync.Mutex
			var passed []time.Time
			refused := 0
			var wg sync.WaitGroup
			for range 500 {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(8*time.Millisecond)))
				patience := time.Duration(random.IntN(300)) * time.Millisecond
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					err := h(ctx, &yodel.Call{})
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						passed = append(passed, time.Now())
					} else {
						refused++
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			for i := range passed {
				if j := i + burst; j < len(passed) && passed[j].Sub(passed[i]) < interval {
					t.Fatalf("seed %d: %d calls passed within %v", seed, burst+1, passed[j].Sub(passed[i]))
				}
			}
			if len(passed) < 300 || refused == 0 || refused+len(passed) != 500 {
				t.Errorf("seed %d: %d passed, %d were refused", seed, len(passed), refused)
			}
		})
	}
}

func TestAServerRefusesAndSaysWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{rate.PerSecond(2)}})
		executed := 0
		work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { executed++; return nil, nil })
		c := yodeltest.NewClient(t, nil, s)
		_, err := work.Call(t.Context(), c, &struct{}{})
		must(t, err)
		_, err = work.Call(t.Context(), c, &struct{}{})
		if e := refusal(t, err); e.RetryAfter != 500*time.Millisecond || !strings.Contains(e.Message, "the limit of 2 calls a second is used up") {
			t.Errorf("got %v, come back in %v", e, e.RetryAfter)
		}
		for range 10 {
			_, err = inspect.Health.Call(t.Context(), c, &inspect.Empty{})
			must(t, err)
		}
		time.Sleep(500 * time.Millisecond)
		_, err = work.Call(t.Context(), c, &struct{}{})
		must(t, err)
		if executed != 2 {
			t.Errorf("%d calls were executed, want 2", executed)
		}
	})
}

func TestAClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{rate.With(&rate.Limit{PerSecond: 10, Burst: 1, Wait: time.Second})}}, s)
		began := time.Now()
		for range 5 {
			_, err := work.Call(t.Context(), c, &struct{}{})
			must(t, err)
		}
		if took := time.Since(began); took < 399*time.Millisecond || took > 401*time.Millisecond {
			t.Errorf("5 calls took %v, want about 400ms", took)
		}
	})
}

// A limit with a name finds the counts of the one before it on the same server, and not those of
// another server.
func TestANamedLimitKeepsItsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := func(perSecond float64) yodel.Middleware {
			return rate.With(&rate.Limit{Name: "all", PerSecond: perSecond, Burst: 4})
		}
		shared := named(1)
		for range 2 {
			// each call counts twice
			s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{shared, named(1)}})
			work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
			c := yodeltest.NewClient(t, nil, s)
			for range 2 {
				_, err := work.Call(t.Context(), c, &struct{}{})
				must(t, err)
			}
			_, err := work.Call(t.Context(), c, &struct{}{})
			refusal(t, err)
		}
	})
}

func TestPassingAllocatesNothing(t *testing.T) {
	for name, l := range limits() {
		h := rate.With(l)(pass)
		ctx, call := context.Background(), &yodel.Call{Method: "Test.Work", Tenant: "acme", Metadata: yodel.Metadata{"user": "x"}}
		if n := testing.AllocsPerRun(1000, func() { must(t, h(ctx, call)) }); n >= 1 {
			t.Errorf("%s: got %v allocations for each call, want 0", name, n)
		}
	}
}

func limits() map[string]*rate.Limit {
	return map[string]*rate.Limit{
		"all":      {PerSecond: 1e9, Burst: 1e9},
		"method":   {PerSecond: 1e9, Burst: 1e9, By: rate.Method},
		"tenant":   {PerSecond: 1e9, Burst: 1e9, By: rate.Tenant, Wait: time.Second},
		"metadata": {PerSecond: 1e9, Burst: 1e9, By: rate.Metadata("user")},
		"store":    {PerSecond: 1e9, Burst: 1e9, By: rate.Tenant, Store: rate.NewMemory(0), Batch: 1e8},
	}
}

func BenchmarkPass(b *testing.B) {
	all := limits()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range all {
			if !yield(name) {
				return
			}
		}
	}) {
		b.Run(name, func(b *testing.B) {
			h := rate.With(all[name])(pass)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				ctx, call := context.Background(), &yodel.Call{Method: "Test.Work", Tenant: "acme", Metadata: yodel.Metadata{"user": "x"}}
				for pb.Next() {
					if err := h(ctx, call); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// A chain is built anew with a limit of the same name that has no keys any more, or has keys.
func TestANamedLimitMayChangeItsKeys(t *testing.T) {
	for _, by := range [][2]func(context.Context, *yodel.Call) rate.Key{{rate.Tenant, nil}, {nil, rate.Tenant}} {
		var chains [2]yodel.Handler
		c := yodel.NewClient(discovery.Static("nobody"), &yodel.ClientOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			for i, by := range by {
				chains[i] = rate.With(&rate.Limit{Name: "all", PerSecond: 1, Burst: 1, By: by})(pass)
			}
			return func(ctx context.Context, call *yodel.Call) error { return chains[call.Budget](ctx, call) }
		}}})
		for i := range chains {
			if err := c.Do(t.Context(), &yodel.Call{Method: "Test.Work", Budget: i}); err != nil && i == 0 {
				t.Error(err)
			}
		}
		c.Close()
	}
}

// As many keys as there can be are as many as there is memory for.
func TestTooManyKeys(t *testing.T) {
	must(t, rate.With(&rate.Limit{PerSecond: 1, By: rate.Tenant, MaxKeys: math.MaxInt})(pass)(t.Context(), &yodel.Call{}))
	_, _, err := rate.NewMemory(math.MaxInt).Take(t.Context(), "key", 1, 1, 1)
	must(t, err)
}
