// SPDX-License-Identifier: Apache-2.0

package outlier_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/outlier"
)

// stub makes endpoints whose attempts end as answer says, without servers. Eject stands in front of
// it.
func stub(t testing.TB, n int, o *outlier.Options, answer func(ctx context.Context, i int, call *yodel.Call) error) *yodel.Client {
	t.Helper()
	var addrs []string
	for i := range n {
		addrs = append(addrs, fmt.Sprint(i))
	}
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Balancer: balance.Random,
		EndpointMiddleware: []yodel.EndpointMiddleware{eject(o), func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
			i := slices.Index(addrs, ep.Addr())
			return func(ctx context.Context, call *yodel.Call) error { return answer(ctx, i, call) }
		}},
	})
	t.Cleanup(c.Close)
	return c
}

// eject is outlier.Eject, for isOut to know who is ejected.
func eject(o *outlier.Options) yodel.EndpointMiddleware {
	var p outlier.Options
	if o != nil {
		p = *o
	}
	p.OnEject = func(ep *yodel.Endpoint, why string, d time.Duration) {
		outOf(ep).Store(d > 0)
		if o != nil && o.OnEject != nil {
			o.OnEject(ep, why, d)
		}
	}
	return outlier.Eject(&p)
}

type outKey struct{}

func outOf(ep *yodel.Endpoint) *atomic.Bool {
	return ep.State(outKey{}, func() any { return new(atomic.Bool) }).(*atomic.Bool)
}

// isOut reports whether an endpoint is ejected. One that is tried just now is, and may be ready for
// a moment.
func isOut(ep *yodel.Endpoint) bool { return outOf(ep).Load() }

// load makes calls at random times, so many a second on average, and waits until they have ended.
func load(r *rand.Rand, c *yodel.Client, rate int, d time.Duration) {
	ended := make(chan struct{}, rate*int(d/time.Second+1)*2)
	begun := 0
	for end := time.Now().Add(d); time.Now().Before(end); begun++ {
		go func() {
			c.Call(context.Background(), string(work), &struct{}{}, nil)
			ended <- struct{}{}
		}()
		time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second) / float64(rate)))
	}
	for range begun {
		<-ended
	}
}

func readyOf(c *yodel.Client) (n int) {
	for _, ep := range c.Endpoints() {
		if ep.Ready() {
			n++
		}
	}
	return n
}

// What is bad with all of them alike ejects nobody, or hardly ever: five minutes each. Where one
// call of ten is heavy, at 1000 a second, chance has about two ejections in that time.
func TestAllAlikeAreNotEjected(t *testing.T) {
	t.Parallel()
	minutes := 5
	if brief() {
		minutes = 2
	}
	for name, answer := range map[string]func(r *rand.Rand, since time.Duration) error{
		"times differ": func(r *rand.Rand, _ time.Duration) error {
			time.Sleep(time.Duration(math.Exp(r.NormFloat64()/2) * float64(20*time.Millisecond)))
			return nil
		},
		"one of ten is heavy": func(r *rand.Rand, _ time.Duration) error {
			if r.IntN(10) == 0 {
				time.Sleep(time.Second)
			}
			time.Sleep(5 * time.Millisecond)
			return nil
		},
		"one of twenty fails": func(r *rand.Rand, _ time.Duration) error {
			time.Sleep(20 * time.Millisecond)
			if r.IntN(20) == 0 {
				return yodel.Internal
			}
			return nil
		},
		"half fails": func(r *rand.Rand, _ time.Duration) error {
			time.Sleep(20 * time.Millisecond)
			if r.IntN(2) == 0 {
				return errors.New("no such user")
			}
			return nil
		},
		"all become slow at times": func(_ *rand.Rand, since time.Duration) error {
			time.Sleep(20 * time.Millisecond)
			if since%time.Minute > 50*time.Second {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		},
		"all fail at times": func(_ *rand.Rand, since time.Duration) error {
			time.Sleep(20 * time.Millisecond)
			if since%time.Minute > 50*time.Second {
				return errors.New("the database is down")
			}
			return nil
		},
		"pauses of 200 ms": func(*rand.Rand, time.Duration) error {
			time.Sleep(20 * time.Millisecond)
			return nil
		},
	} {
		for _, rate := range []int{20, 200, 1000} {
			if brief() && rate != 200 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d a second", name, rate), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(6, uint64(rate)))
					ejections := 0
					o := &outlier.Options{OnEject: func(ep *yodel.Endpoint, why string, d time.Duration) {
						if d > 0 && !strings.Contains(why, "still") {
							ejections++
							t.Log(ep.Addr(), why)
						}
					}}
					began := time.Now()
					c := stub(t, 10, o, func(_ context.Context, i int, call *yodel.Call) error {
						if call.Method != string(work) {
							return nil
						}
						since := time.Since(began)
						if name == "pauses of 200 ms" { // of one after the other
							if cycle := since % (2 * time.Second); cycle < 200*time.Millisecond && int(since/(2*time.Second))%10 == i {
								time.Sleep(200*time.Millisecond - cycle)
							}
						}
						return answer(rand.New(rand.NewPCG(rand.Uint64(), 1)), since)
					})
					load(r, c, rate, time.Duration(minutes)*time.Minute)
					if ejections > 2*minutes {
						t.Errorf("there were %d ejections in %d minutes", ejections, minutes)
					}
				})
			})
		}
	}
}

// Endpoints become bad and well again by chance: there are never more ejected than may be, and in
// the end none.
func TestMaximumShareIsNeverExceeded(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 10, 20} {
		if brief() && n > 7 {
			continue
		}
		for _, share := range []float64{0, 0.1, 0.5, 1} {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(7, uint64(n)))
				bad := make([]atomic.Int32, n)
				var c *yodel.Client
				ejected, most, times := 0, max(int(max(share, 0.3*float64(min(1, int(1-min(share*10, 1)))))*float64(n)+1e-9), 1), 0
				if n == 1 {
					most = 0
				}
				o := &outlier.Options{MaxEjected: share, OnEject: func(_ *yodel.Endpoint, why string, d time.Duration) {
					switch {
					case d == 0:
						ejected--
					case !strings.Contains(why, "still"):
						ejected++
						times++
					}
					if ejected > most || ejected > n/2+n%2 || n-readyOf(c) > most {
						t.Errorf("%d of %d are ejected, want at most %d", ejected, n, most)
					}
				}}
				c = stub(t, n, o, func(ctx context.Context, i int, _ *yodel.Call) error {
					time.Sleep(20 * time.Millisecond)
					switch bad[i].Load() {
					case 1:
						return yodel.Unavailable
					case 2:
						time.Sleep(200 * time.Millisecond)
					case 3:
						select {
						case <-time.After(time.Second):
						case <-ctx.Done():
						}
						return yodel.DeadlineExceeded
					}
					return nil
				})
				for range 40 {
					bad[r.IntN(n)].Store(int32(r.IntN(4)))
					load(r, c, 20*n, time.Second)
				}
				for i := range bad {
					bad[i].Store(0)
				}
				load(r, c, 20*n, 70*time.Second)
				if times == 0 && n > 2 || readyOf(c) != n {
					t.Errorf("of %d with share %v: %d ejections, and %d are ready at the end", n, share, times, readyOf(c))
				}
			})
		}
	}
}

// Three of ten that fail all alike are all ejected, which a mean and its deviation would not do.
func TestSeveralAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(8, 8))
		var mu sync.Mutex
		out, most := map[string]bool{}, 0
		o := &outlier.Options{OnEject: func(ep *yodel.Endpoint, _ string, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if delete(out, ep.Addr()); d > 0 {
				out[ep.Addr()] = true
			}
			if most = max(most, len(out)); ep.Addr() >= "3" {
				t.Errorf("%s is ejected", ep.Addr())
			}
		}}
		c := stub(t, 10, o, func(_ context.Context, i int, call *yodel.Call) error {
			if i < 3 && call.Method == string(work) && rand.IntN(2) == 0 {
				return errors.New("x")
			}
			return nil
		})
		load(r, c, 300, 3*time.Second)
		mu.Lock()
		defer mu.Unlock()
		if most != 3 {
			t.Errorf("%d were ejected at a time, want 3", most)
		}
	})
}

// The reason of each later ejection has the first one, which says what is wrong.
func TestAnInstanceThatIsStillBadSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string
		o := &outlier.Options{OnEject: func(_ *yodel.Endpoint, why string, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if d > 0 {
				said = append(said, why)
			}
		}}
		c := stub(t, 4, o, func(_ context.Context, i int, call *yodel.Call) error {
			if i == 0 && call.Method == string(work) {
				return errors.New("x")
			}
			return nil
		})
		load(rand.New(rand.NewPCG(8, 8)), c, 300, 20*time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(said) < 3 || said[1] != "it is still bad: "+said[0] || said[2] != said[1] {
			t.Errorf("got the reasons %q", said)
		}
	})
}

// When most fail the median says nothing, and the share of failures by itself does.
func TestMostAreBad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls [10]atomic.Int64
		c := stub(t, 10, nil, func(_ context.Context, i int, call *yodel.Call) error {
			if call.Method != string(work) {
				return nil
			}
			if calls[i].Add(1); i < 7 {
				return errors.New("x")
			}
			return nil
		})
		r := rand.New(rand.NewPCG(9, 9))
		load(r, c, 300, 3*time.Second)
		var before [10]int64
		for i := range calls {
			before[i] = calls[i].Load()
		}
		load(r, c, 300, 10*time.Second)
		few := 0
		for i := range calls {
			if n := calls[i].Load() - before[i]; n < 100 { // of 300
				few++
				if i >= 7 {
					t.Errorf("the good one %d has got %d calls of 3000", i, n)
				}
			}
		}
		if few != 3 {
			t.Errorf("%d have got few calls, want 3", few)
		}
	})
}

// When too few are ready, for whatever reason, those that were ejected come back; and when none is
// ready, calls go on all the same.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(10, 10))
		var calls [4]atomic.Int32
		c := stub(t, 4, nil, func(_ context.Context, i int, call *yodel.Call) error {
			calls[i].Add(1)
			if i == 0 && call.Method == string(work) {
				return yodel.Unavailable
			}
			return nil
		})
		eps := c.Endpoints()
		load(r, c, 200, 2*time.Second)
		if !isOut(eps[0]) {
			t.Fatal("it is not ejected")
		}
		for _, ep := range eps[1:3] {
			ep.SetReady("test", false)
		}
		load(r, c, 200, time.Second)
		if isOut(eps[0]) {
			t.Error("one of four is left, and the ejected one is not back")
		}
		for _, ep := range eps {
			ep.SetReady("test", false)
			calls[slices.Index(eps, ep)].Store(0)
		}
		load(r, c, 200, time.Second)
		for i := range calls {
			if n := calls[i].Load(); n < 20 {
				t.Errorf("none is ready, and %d has got %d calls of 200", i, n)
			}
		}
	})
}

// Those that remain are more than half, and balance.Panic wants more: it uses the ejected ones too.
func TestPanicOfTheBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		c := yodel.NewClient(discovery.Static("a", "b", "c"), &yodel.ClientOptions{
			Balancer: balance.Panic(0.9, balance.Random),
			EndpointMiddleware: []yodel.EndpointMiddleware{eject(nil), func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
				return func(_ context.Context, call *yodel.Call) error {
					if ep.Addr() == "a" && call.Method == string(work) {
						calls.Add(1)
						return yodel.Unavailable
					}
					return nil
				}
			}},
		})
		defer c.Close()
		r := rand.New(rand.NewPCG(11, 11))
		load(r, c, 200, time.Second)
		calls.Store(0)
		load(r, c, 200, time.Second)
		if n := calls.Load(); !isOut(c.Endpoints()[0]) || n < 30 {
			t.Errorf("ejected is %v, and it has got %d calls", isOut(c.Endpoints()[0]), n)
		}
	})
}

func TestStateOutlivesTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ejections := 0
		o := &outlier.Options{OnEject: func(_ *yodel.Endpoint, why string, d time.Duration) {
			if d > 0 && !strings.Contains(why, "still") {
				ejections++
			}
		}}
		c := yodel.NewClient(discovery.Static("a", "b", "c"), &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
				below := func(_ context.Context, call *yodel.Call) error {
					if ep.Addr() == "a" && call.Method == string(work) {
						return errors.New("x")
					}
					return nil
				}
				return func(ctx context.Context, call *yodel.Call) error { // a new chain for each call
					return eject(o)(ep, below)(ctx, call)
				}
			}},
		})
		defer c.Close()
		load(rand.New(rand.NewPCG(12, 12)), c, 100, 10*time.Second)
		if ejections != 1 || !isOut(c.Endpoints()[0]) {
			t.Errorf("%d ejections, ejected is %v", ejections, isOut(c.Endpoints()[0]))
		}
	})
}

// A call that tries, and takes as long as many others do, does not keep its endpoint out until it
// ends.
func TestALongPollMayTry(t *testing.T) {
	const poll yodel.Method[struct{}, struct{}] = "Test.Poll"
	synctest.Test(t, func(t *testing.T) {
		var sick atomic.Bool
		c := stub(t, 3, nil, func(ctx context.Context, i int, call *yodel.Call) error {
			switch {
			case call.Method == string(poll):
				<-ctx.Done()
			case i == 0 && call.Method == string(work) && sick.Load():
				return yodel.Unavailable
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pollOn := func(ep *yodel.Endpoint) {
			go c.Do(ctx, &yodel.Call{Method: string(poll), Endpoint: ep})
		}
		r := rand.New(rand.NewPCG(17, 17))
		load(r, c, 100, time.Second)
		ep := c.Endpoints()[0]
		for _, other := range c.Endpoints()[1:] { // so that one that does not end is nothing special
			for range 3 {
				pollOn(other)
			}
		}
		sick.Store(true)
		load(r, c, 100, time.Second)
		if !isOut(ep) {
			t.Fatal("it is not ejected")
		}
		sick.Store(false)
		for !ep.Ready() {
			time.Sleep(10 * time.Millisecond)
		}
		pollOn(ep)
		synctest.Wait()
		if ep.Ready() {
			t.Error("two calls try at a time")
		}
		time.Sleep(5 * time.Second)
		if isOut(ep) || !ep.Ready() {
			t.Errorf("is it out: %t, is it ready: %t", isOut(ep), ep.Ready())
		}
	})
}

func TestPinnedCallsAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stub(t, 3, nil, func(_ context.Context, i int, call *yodel.Call) error {
			if i == 0 && call.Method == string(work) {
				return yodel.Unavailable
			}
			return nil
		})
		load(rand.New(rand.NewPCG(13, 13)), c, 100, 2*time.Second)
		ep := c.Endpoints()[0]
		err := c.Do(t.Context(), &yodel.Call{Method: string(work), Endpoint: ep})
		if e, ok := errors.AsType[*yodel.Error](err); !isOut(ep) || !errors.Is(err, yodel.Unavailable) || ok && e.NotProcessed {
			t.Errorf("got %v", err)
		}
	})
}

// Without calls nobody sweeps, and with calls again somebody does.
func TestNothingRunsWithoutCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bad atomic.Bool
		c := stub(t, 3, nil, func(_ context.Context, i int, _ *yodel.Call) error {
			if i == 0 && bad.Load() {
				return yodel.Unavailable
			}
			return nil
		})
		r := rand.New(rand.NewPCG(14, 14))
		sweeping := func() int {
			text := make([]byte, 1<<20)
			return strings.Count(string(text[:runtime.Stack(text, true)]), "outlier.(*fleet).run(")
		}
		for range 3 {
			bad.Store(false)
			load(r, c, 100, time.Second)
			synctest.Wait()
			if n := sweeping(); n != 1 {
				t.Errorf("%d goroutines sweep while there are calls, want one", n)
			}
			time.Sleep(15 * time.Second)
			if n := sweeping(); n != 0 {
				t.Errorf("%d goroutines sweep without calls", n)
			}
			bad.Store(true)
			load(r, c, 100, time.Second)
			if !isOut(c.Endpoints()[0]) {
				t.Error("it is not ejected")
			}
			bad.Store(false)
			time.Sleep(5 * time.Second)
			load(r, c, 100, 5*time.Second)
			if isOut(c.Endpoints()[0]) {
				t.Error("it is not back")
			}
		}
	})
}

// An endpoint leaves that the sweeps run on, and another one that is ejected.
func TestEndpointsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := make(chan []discovery.Instance)
		c := yodel.NewClient(resolver(sets), &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{eject(nil), func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
				return func(_ context.Context, call *yodel.Call) error {
					if strings.HasPrefix(ep.Addr(), "bad") && call.Method == string(work) {
						return yodel.Unavailable
					}
					return nil
				}
			}},
		})
		defer c.Close()
		r := rand.New(rand.NewPCG(15, 15))
		for round := range 6 {
			var set []discovery.Instance
			for i := range 5 {
				set = append(set, discovery.Instance{Addr: fmt.Sprint("good", (round*3+i)%11)})
			}
			set = append(set, discovery.Instance{Addr: fmt.Sprint("bad", round/2)})
			sets <- set
			synctest.Wait()
			load(r, c, 200, 2*time.Second)
			for _, ep := range c.Endpoints() {
				if out := isOut(ep); out != strings.HasPrefix(ep.Addr(), "bad") {
					t.Errorf("round %d: ejected is %v of %s", round, out, ep.Addr())
				}
			}
		}
	})
}

type resolver chan []discovery.Instance

func (r resolver) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case set := <-r:
			update(set)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Streams may be long, and count when they fail.
func TestStreams(t *testing.T) {
	const watch yodel.Feed[struct{}, struct{}] = "Test.Watch"
	synctest.Test(t, func(t *testing.T) {
		var sick atomic.Bool
		c := stub(t, 3, nil, func(_ context.Context, i int, call *yodel.Call) error {
			if call.Method != string(watch) {
				return nil
			}
			if i == 0 && sick.Load() {
				return yodel.Unavailable
			}
			if i == 1 {
				time.Sleep(time.Minute)
			}
			return nil
		})
		open := func(n int) {
			for range n {
				go func() {
					for range watch.Call(context.Background(), c, &struct{}{}) {
					}
				}()
				time.Sleep(10 * time.Millisecond)
			}
		}
		load(rand.New(rand.NewPCG(16, 16)), c, 100, time.Second)
		open(300)
		if slices.ContainsFunc(c.Endpoints(), isOut) {
			t.Error("one is ejected whose streams are long")
		}
		sick.Store(true)
		open(100)
		if !isOut(c.Endpoints()[0]) {
			t.Error("one whose streams fail is not ejected")
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestWhatIsAFailure(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{yodel.Unavailable, true},
		{yodel.Errorf(yodel.DeadlineExceeded, "x"), true},
		{fmt.Errorf("x: %w", yodel.Errorf(yodel.Internal, "x")), true},
		{yodel.DataLoss, true}, {errors.New("x"), true}, {yodel.Unimplemented, true},
		{&yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true}, true},
		{&yodel.Error{Code: yodel.DataLoss, ID: "YDL2205"}, true},
		{yodel.ResourceExhausted, false},
		{&yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL2201", NotProcessed: true}, false},
		{&yodel.Error{Code: yodel.Internal, ID: "YDL2102"}, false},
		{yodel.InvalidArgument, false}, {yodel.NotFound, false}, {yodel.AlreadyExists, false}, {yodel.PermissionDenied, false},
		{yodel.FailedPrecondition, false}, {yodel.Aborted, false}, {yodel.OutOfRange, false}, {yodel.Unauthenticated, false}, {yodel.Canceled, false},
	} {
		if got := outlier.Failed(test.err); got != test.want {
			t.Errorf("%v: got %v", test.err, got)
		}
	}
}

func TestBadOptionsAreCorrected(t *testing.T) {
	for name, o := range map[string]*outlier.Options{
		"nil":          nil,
		"negative":     {MaxEjected: -1, Margin: -1, SlowBy: -1, Ejection: -1, MaxEjection: -1},
		"not a number": {MaxEjected: math.NaN(), Margin: math.NaN(), Slow: math.NaN()},
		"too much":     {MaxEjected: 7, Margin: 7, Slow: 0.5, Ejection: time.Second, MaxEjection: 1},
		"no rules":     {Errors: -1, Slow: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := stub(t, 10, o, func(_ context.Context, i int, call *yodel.Call) error {
					if i == 0 && call.Method == string(work) {
						return yodel.Unavailable
					}
					return nil
				})
				load(rand.New(rand.NewPCG(17, 17)), c, 200, 3*time.Second)
				for i, ep := range c.Endpoints() {
					if isOut(ep) != (i == 0) {
						t.Errorf("ejected is %v of %d", isOut(ep), i)
					}
				}
			})
		})
	}
}

// Numbers that are meant to be without end are: nothing is slow.
func TestNothingIsEverSlow(t *testing.T) {
	for name, o := range map[string]*outlier.Options{
		"times": {Slow: math.Inf(1)},
		"by":    {SlowBy: math.MaxInt64},
		"both":  {Slow: math.MaxFloat64, SlowBy: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o.OnEject = func(_ *yodel.Endpoint, why string, _ time.Duration) { t.Error(why) }
				c := stub(t, 5, o, func(_ context.Context, i int, _ *yodel.Call) error {
					time.Sleep(time.Millisecond)
					if i == 0 {
						time.Sleep(50 * time.Millisecond)
					}
					return nil
				})
				load(rand.New(rand.NewPCG(18, 18)), c, 200, 3*time.Second)
			})
		})
	}
}

// In real time, for the race detector.
func TestConcurrentCalls(t *testing.T) {
	var n atomic.Int64
	c := stub(t, 5, &outlier.Options{Ejection: time.Millisecond, MaxEjection: 10 * time.Millisecond}, func(_ context.Context, i int, call *yodel.Call) error {
		if i == 0 && call.Method == string(work) && n.Add(1)%20 < 10 {
			return yodel.Unavailable
		}
		return nil
	})
	ended := make(chan int)
	for range 8 {
		go func() {
			failed := 0
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
				if c.Call(t.Context(), string(work), &struct{}{}, nil) != nil {
					failed++
				}
			}
			ended <- failed
		}()
	}
	failed := 0
	for range 8 {
		failed += <-ended
	}
	if failed == 0 {
		t.Error("no call failed")
	}
}

func BenchmarkSuccess(b *testing.B) {
	answer := func(context.Context, int, *yodel.Call) error { return nil }
	ctx, in := context.Background(), &struct{}{}
	run := func(b *testing.B, c *yodel.Client) {
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Call(ctx, string(work), in, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("with", func(b *testing.B) { run(b, stub(b, 2, nil, answer)) })
	b.Run("without", func(b *testing.B) {
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
			Balancer: balance.Random,
			EndpointMiddleware: []yodel.EndpointMiddleware{func(*yodel.Endpoint, yodel.Handler) yodel.Handler {
				return func(context.Context, *yodel.Call) error { return nil }
			}},
		})
		b.Cleanup(c.Close)
		run(b, c)
	})
}
