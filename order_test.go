// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A Step is number N of its key.
type Step struct {
	Key string
	N   int
}

const Run yodel.Method[Step, Step] = "Order.Run"

// A track is the servers of a test and what they have executed.
type track struct {
	t       *testing.T
	network *mem.Network
	handler func(ctx context.Context, step *Step) error // what executing a step takes

	mu    sync.Mutex
	steps []string // as they began, "key:n"
	conns map[string][]net.Conn
}

// onTrack runs a test in fake time.
func onTrack(t *testing.T, test func(t *testing.T, tr *track)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &track{t: t, network: mem.New(), conns: make(map[string][]net.Conn)})
	})
}

// serve runs a server, until the test ends or stop is called, which lets it finish what it has.
func (tr *track) serve(addr string, o *yodel.ServerOptions) (stop func()) {
	tr.t.Helper()
	l, err := tr.network.Listen(addr)
	must(tr.t, err)
	s := yodel.NewServer(o)
	Run.Handle(s, func(ctx context.Context, step *Step) (*Step, error) {
		tr.mu.Lock()
		tr.steps = append(tr.steps, fmt.Sprint(step.Key, ":", step.N))
		nc := yodel.CallFrom(ctx).Peer().Conn
		if !slices.Contains(tr.conns[addr], nc) {
			tr.conns[addr] = append(tr.conns[addr], nc)
		}
		tr.mu.Unlock()
		if tr.handler == nil {
			return step, nil
		}
		return step, tr.handler(ctx, step)
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-served
		})
	}
	tr.t.Cleanup(stop)
	return stop
}

// cut ends the connections to a server without a word.
func (tr *track) cut(addr string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, nc := range tr.conns[addr] {
		nc.Close()
	}
	tr.conns[addr] = nil
}

func (tr *track) client(o *yodel.ClientOptions, addrs ...string) *yodel.Client {
	if o == nil {
		o = &yodel.ClientOptions{}
	}
	o.Transport = tr.network
	return newClient(tr.t, o, addrs...)
}

// want checks what was executed.
func (tr *track) want(steps ...string) {
	tr.t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !slices.Equal(tr.steps, steps) {
		tr.t.Errorf("executed: %v, want %v", tr.steps, steps)
	}
}

func stepOf(key string, n int) *yodel.Call {
	return &yodel.Call{Method: string(Run), Args: &Step{key, n}, Reply: new(Step), Key: key, Ordered: true}
}

// A goes is the outcomes of asynchronous calls, as they come.
type goes struct {
	mu      sync.Mutex
	ended   []int
	errs    map[int]error
	pending sync.WaitGroup
}

func (g *goes) call(ctx context.Context, c *yodel.Client, call *yodel.Call) {
	n := call.Args.(*Step).N
	g.pending.Add(1)
	c.Go(ctx, call, func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.errs == nil {
			g.errs = make(map[int]error)
		}
		g.ended, g.errs[n] = append(g.ended, n), err
		g.pending.Done()
	})
}

func (g *goes) order() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ended)
}

func (g *goes) err(n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.errs[n]
}

// through is middleware that does nothing, and so makes a client take another way.
func through(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error { return next(ctx, call) }
}

// The ways that a call can take through a client.
var orderedClients = map[string]func() *yodel.ClientOptions{
	"direct":     func() *yodel.ClientOptions { return &yodel.ClientOptions{} },
	"middleware": func() *yodel.ClientOptions { return &yodel.ClientOptions{Middleware: []yodel.Middleware{through}} },
	"endpoint middleware": func() *yodel.ClientOptions {
		return &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler { return through(next) }}}
	},
	"observer": func() *yodel.ClientOptions { return &yodel.ClientOptions{Observers: []yodel.Observer{{}}} },
	"window 1": func() *yodel.ClientOptions { return &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 1}} },
	"window 1, middleware": func() *yodel.ClientOptions {
		return &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 1}, Middleware: []yodel.Middleware{through}}
	},
	"several connections": func() *yodel.ClientOptions { return &yodel.ClientOptions{ConnsPerEndpoint: 4} },
	"retry": func() *yodel.ClientOptions {
		return &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(3)}}
	},
}

// Calls of a key begin, and are told, in the order in which they were made, one after the other,
// whichever way they take; other keys go on beside them, and instances share the keys.
func TestOrderedCallsOfAKeyBeginAndReturnInOrder(t *testing.T) {
	t.Attr("rerun", "never")
	const keys, each = 7, 60
	for name, options := range orderedClients {
		t.Run(name, func(t *testing.T) {
			onTrack(t, func(t *testing.T, tr *track) {
				var running [keys]atomic.Int32
				var most, all atomic.Int32
				tr.handler = func(_ context.Context, step *Step) error {
					key := int(step.Key[0] - 'a')
					if running[key].Add(1) != 1 {
						t.Errorf("two of key %s are executed at once", step.Key)
					}
					if n := all.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					all.Add(-1)
					running[key].Add(-1)
					if step.N%10 == 7 {
						return yodel.Errorf(yodel.NotFound, "a failure is an outcome too")
					}
					return nil
				}
				tr.serve("one", nil)
				tr.serve("two", nil)
				c := tr.client(options(), "one", "two")
				must(t, c.Ready(t.Context()))
				var outcomes [keys]goes
				notified := 0
				for n := range each {
					for key := range keys {
						call := stepOf(string(rune('a'+key)), n)
						if n%10 == 3 {
							call.OneWay, call.Reply = true, nil
							notified++
						}
						if n%15 == 14 { // waits for all before it
							if err := c.Do(t.Context(), call); err != nil && n%10 != 7 {
								t.Error(err)
							}
							if got := len(outcomes[key].order()); got != n-n/15 {
								t.Errorf("key %d: call %d returned when %d of the calls before it had, want %d", key, n, got, n-n/15)
							}
							continue
						}
						outcomes[key].call(t.Context(), c, call)
					}
				}
				for key := range outcomes {
					o := &outcomes[key]
					o.pending.Wait()
					if !slices.IsSorted(o.ended) || len(o.ended) != each-each/15 {
						t.Errorf("key %d: told in the order %v", key, o.ended)
					}
					for n, err := range o.errs {
						if failed := n%10 == 7; failed != errors.Is(err, yodel.NotFound) || !failed && err != nil {
							t.Errorf("key %d, call %d: %v", key, n, err)
						}
					}
				}
				time.Sleep(time.Second) // the last one-way calls are executed
				next := make(map[string]int)
				for _, step := range tr.steps {
					key, n, _ := strings.Cut(step, ":")
					if n != fmt.Sprint(next[key]) {
						t.Errorf("key %s: %s is executed, want %d", key, n, next[key])
					}
					next[key]++
				}
				for key := range keys {
					if n := next[string(rune('a'+key))]; n != each {
						t.Errorf("key %d: %d calls were executed", key, n)
					}
				}
				if most.Load() < 3 && !strings.Contains(name, "window 1") {
					t.Errorf("at most %d keys were executed at once", most.Load())
				}
				synctest.Wait() // who is told may be so before the key is forgotten
				if n := c.OrderedKeys(); n != 0 {
					t.Errorf("%d keys are remembered", n)
				}
			})
		})
	}
}

// Calls are sent without waiting for replies, also those that wait for theirs.
func TestOrderedCallsArePipelined(t *testing.T) {
	for name, options := range orderedClients {
		if strings.Contains(name, "window 1") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			onTrack(t, func(t *testing.T, tr *track) {
				received := atomic.Int32{}
				tr.serve("one", &yodel.ServerOptions{Observers: []yodel.Observer{{Start: func(ctx context.Context, _ *yodel.Call) context.Context {
					received.Add(1)
					return ctx
				}}}})
				release := make(chan struct{})
				tr.handler = func(context.Context, *Step) error { <-release; return nil }
				c := tr.client(options(), "one")
				var wg sync.WaitGroup
				for n := range 10 {
					wg.Go(func() {
						if err := c.Do(t.Context(), stepOf("k", n)); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				if n := c.Endpoints()[0].Inflight(); n != 10 || received.Load() != 1 {
					t.Errorf("%d calls are in flight and %d have begun, want 10 and 1", n, received.Load())
				}
				close(release)
				wg.Wait()
				tr.want("k:0", "k:1", "k:2", "k:3", "k:4", "k:5", "k:6", "k:7", "k:8", "k:9")
			})
		})
	}
}

// refuse is server middleware that refuses some steps, once each.
func refuse(code yodel.Code, steps ...string) yodel.Middleware {
	var mu sync.Mutex
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if err := call.Decode(); err != nil {
				return err
			}
			step := call.Args.(*Step)
			mu.Lock()
			i := slices.Index(steps, fmt.Sprint(step.Key, ":", step.N))
			if i >= 0 {
				steps = slices.Delete(steps, i, i+1)
			}
			mu.Unlock()
			if i >= 0 {
				return &yodel.Error{Code: code, Message: "not now", NotProcessed: true}
			}
			return next(ctx, call)
		}
	}
}

// A call that was refused is sent again in its place, by the client itself or by middleware, and
// those sent behind it wait for it. When it is not, they go on without it.
func TestARefusedCallKeepsItsPlace(t *testing.T) {
	tests := []struct {
		name    string
		code    yodel.Code
		client  *yodel.ClientOptions
		addrs   []string
		retried bool
	}{
		{"sent elsewhere", yodel.Unavailable, &yodel.ClientOptions{}, []string{"one", "two"}, true},
		{"sent elsewhere, with middleware", yodel.Unavailable, &yodel.ClientOptions{Middleware: []yodel.Middleware{through}}, []string{"one", "two"}, true},
		{"retried", yodel.ResourceExhausted, &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(3)}}, []string{"one"}, true},
		{"not retried", yodel.ResourceExhausted, &yodel.ClientOptions{}, []string{"one"}, false},
		{"not retried, with middleware", yodel.ResourceExhausted, &yodel.ClientOptions{Middleware: []yodel.Middleware{through}}, []string{"one", "two"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onTrack(t, func(t *testing.T, tr *track) {
				tr.handler = func(context.Context, *Step) error { time.Sleep(time.Millisecond); return nil }
				o := &yodel.ServerOptions{Middleware: []yodel.Middleware{refuse(test.code, "k:2", "k:4", "k:5")}}
				for _, addr := range test.addrs {
					tr.serve(addr, o)
				}
				c := tr.client(test.client, test.addrs...)
				must(t, c.Ready(t.Context()))
				var g goes
				for n := range 8 {
					g.call(t.Context(), c, stepOf("k", n))
				}
				g.pending.Wait()
				if got := g.order(); !slices.IsSorted(got) {
					t.Errorf("told in the order %v", got)
				}
				var want []string
				for n := range 8 {
					refused := n == 2 || n == 4 || n == 5
					err := g.err(n)
					if !refused || test.retried {
						want = append(want, fmt.Sprint("k:", n))
						must(t, err)
					} else if !errors.Is(err, test.code) || !yodel.NotProcessed(err) {
						t.Errorf("call %d: %v", n, err)
					}
				}
				tr.want(want...)
				synctest.Wait() // who is told may be so before the key is forgotten
				if n := c.OrderedKeys(); n != 0 {
					t.Errorf("%d keys are remembered", n)
				}
			})
		})
	}
}

// A call that was executed is not sent again, idempotent or not, when one behind it may have been
// executed.
func TestNothingIsExecutedBehindALaterCall(t *testing.T) {
	t.Attr("rerun", "never")
	onTrack(t, func(t *testing.T, tr *track) {
		tr.handler = func(_ context.Context, step *Step) error {
			time.Sleep(time.Millisecond)
			if step.N == 0 {
				return yodel.Errorf(yodel.Unavailable, "executed, and failed")
			}
			return nil
		}
		tr.serve("one", nil)
		c := tr.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(3)}, Idempotent: []string{string(Run)}}, "one")
		must(t, c.Ready(t.Context()))
		var g goes
		g.call(t.Context(), c, stepOf("k", 0))
		g.call(t.Context(), c, stepOf("k", 1))
		g.pending.Wait()
		var report *introspect.CallReport
		if err := g.err(0); !errors.Is(err, yodel.Unavailable) || !errors.As(err, &report) || len(report.Attempts) != 1 {
			t.Errorf("got %+v", err)
		}
		must(t, g.err(1))
		tr.want("k:0", "k:1")
		// One that nobody follows is.
		if err := c.Do(t.Context(), stepOf("k", 0)); !errors.Is(err, yodel.Unavailable) {
			t.Errorf("got %v", err)
		}
		tr.want("k:0", "k:1", "k:0", "k:0", "k:0")
	})
}

// What waits behind a call whose outcome is unknown fails, and what is made afterwards begins
// afresh.
func TestAnInterruptedCallEndsThoseBehindIt(t *testing.T) {
	for _, way := range []string{"waiting", "given up", "one-way"} {
		for name, middleware := range map[string][]yodel.Middleware{"direct": nil, "middleware": {through}} {
			t.Run(way+", "+name, func(t *testing.T) {
				onTrack(t, func(t *testing.T, tr *track) {
					tr.serve("one", nil)
					release := make(chan struct{})
					defer close(release)
					tr.handler = func(_ context.Context, step *Step) error {
						if step.N == 0 {
							<-release
						}
						return nil
					}
					// With a window of 2, the third call cannot be sent.
					c := tr.client(&yodel.ClientOptions{Middleware: middleware, Limits: yodel.Limits{MaxOpen: 2}}, "one")
					must(t, c.Ready(t.Context()))
					ctx, cancel := context.WithCancel(t.Context())
					var g goes
					first := stepOf("k", 0)
					if way == "one-way" {
						first.OneWay, first.Reply = true, nil
					}
					go g.call(ctx, c, first)
					synctest.Wait()
					ended := make(chan error, 3)
					for n := 1; n <= 3; n++ {
						go func() { ended <- c.Do(t.Context(), stepOf("k", n)) }()
						synctest.Wait()
					}
					cancel()
					synctest.Wait()
					if way == "given up" {
						wantError(t, g.err(0), yodel.Canceled, "YDL1006")
					}
					if len(ended) != 0 {
						t.Fatalf("a call behind it ended: %v", <-ended)
					}
					tr.cut("one")
					synctest.Wait()
					if way == "waiting" && !errors.Is(g.err(0), yodel.Canceled) {
						t.Errorf("the first: %v", g.err(0))
					}
					// The second was sent, the others were not.
					errs := []error{<-ended, <-ended, <-ended}
					sent := slices.IndexFunc(errs, func(err error) bool { return yodel.CodeOf(err) == yodel.Unavailable })
					if e := wantError(t, errs[max(sent, 0)], yodel.Unavailable, "YDL1104"); e.NotProcessed {
						t.Errorf("got %v", e)
					}
					for _, err := range slices.Delete(errs, max(sent, 0), max(sent, 0)+1) {
						e := wantError(t, err, yodel.Aborted, "YDL1009")
						if !e.NotProcessed || !strings.Contains(e.Error(), `an earlier call with the key "k" was interrupted`) {
							t.Errorf("got %v", e)
						}
					}
					time.Sleep(time.Second) // the client connects again
					if err := c.Do(t.Context(), stepOf("k", 4)); err != nil {
						t.Errorf("a call made afterwards: %v", err)
					}
					tr.want("k:0", "k:4")
					synctest.Wait() // who is told may be so before the key is forgotten
					if n := c.OrderedKeys(); n != 0 {
						t.Errorf("%d keys are remembered", n)
					}
				})
			})
		}
	}
}

// An interrupted call that may be sent again is, and those that wait behind it wait for it.
func TestAnInterruptedCallIsSentAgainInItsPlace(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		release := make(chan struct{})
		defer close(release)
		first := true
		tr.handler = func(_ context.Context, step *Step) error {
			if step.N == 0 && first {
				first = false
				<-release
			}
			return nil
		}
		c := tr.client(&yodel.ClientOptions{
			Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 10})}, Limits: yodel.Limits{MaxOpen: 1}, Idempotent: []string{string(Run)},
		}, "one")
		must(t, c.Ready(t.Context()))
		ended := make(chan error, 3)
		for n := range 3 {
			go func() { ended <- c.Do(t.Context(), stepOf("k", n)) }()
			synctest.Wait()
		}
		tr.cut("one")
		for range 3 {
			must(t, <-ended)
		}
		tr.want("k:0", "k:0", "k:1", "k:2")
	})
}

// When its callback is called, a call is the user's again, who may make it again.
func TestAnOrderedCallIsUsedAgainInItsCallback(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		c := tr.client(nil, "one")
		must(t, c.Ready(t.Context()))
		var all sync.WaitGroup
		all.Add(4)
		for i := range 4 {
			calls := 0
			call := stepOf(fmt.Sprint(i%2), 0)
			call.OneWay = i == 3
			var again func(err error)
			again = func(err error) {
				if err != nil {
					t.Error(err)
				}
				if calls++; calls == 500 {
					all.Done()
					return
				}
				call.Args.(*Step).N = calls
				call.OneWay = call.OneWay != (calls%100 == 99)
				c.Go(context.Background(), call, again)
			}
			go c.Go(context.Background(), call, again)
		}
		all.Wait()
		synctest.Wait()
		if n := len(tr.steps); n != 4*500 {
			t.Errorf("%d calls were executed", n)
		}
	})
}

// Whoever gives up leaves at once, before and after sending; the others keep their order.
func TestACallerThatGivesUpLeavesAtOnce(t *testing.T) {
	for name, options := range orderedClients {
		t.Run(name, func(t *testing.T) {
			onTrack(t, func(t *testing.T, tr *track) {
				tr.serve("one", nil)
				tr.handler = func(_ context.Context, step *Step) error { // ignores its context
					time.Sleep(time.Minute)
					return nil
				}
				c := tr.client(options(), "one")
				must(t, c.Ready(t.Context()))
				began := time.Now()
				type outcome struct {
					n     int
					err   error
					after time.Duration
				}
				ended := make(chan outcome, 10)
				for n := range 6 {
					ctx, cancel := context.WithCancel(t.Context())
					call := stepOf("k", n)
					switch n {
					case 0: // is executed meanwhile
						time.AfterFunc(time.Second, cancel)
					case 2:
						time.AfterFunc(2*time.Second, cancel)
					case 3:
						call.Deadline = began.Add(3 * time.Second)
					case 4:
						var stop context.CancelFunc
						ctx, stop = context.WithTimeout(ctx, 4*time.Second)
						defer stop()
					}
					defer cancel()
					if n%2 == 0 {
						go c.Go(ctx, call, func(err error) { ended <- outcome{n, err, time.Since(began)} })
					} else {
						go func() { err := c.Do(ctx, call); ended <- outcome{n, err, time.Since(began)} }()
					}
					synctest.Wait()
				}
				want := []outcome{
					{0, yodel.Canceled, time.Second}, {2, yodel.Canceled, 2 * time.Second}, {3, yodel.DeadlineExceeded, 3 * time.Second},
					{4, yodel.DeadlineExceeded, 4 * time.Second}, {1, nil, 2 * time.Minute}, {5, nil, 3 * time.Minute},
				}
				for _, want := range want {
					got := <-ended
					if got.n != want.n || got.after != want.after || !errors.Is(got.err, want.err) {
						t.Errorf("got call %d, %v after %v, want %v", got.n, got.err, got.after, want)
					}
				}
				tr.want("k:0", "k:1", "k:5")
				synctest.Wait()
				synctest.Wait() // who is told may be so before the key is forgotten
				if n := c.OrderedKeys(); n != 0 {
					t.Errorf("%d keys are remembered", n)
				}
			})
		})
	}
}

// A callback may make calls of its own, with its key too, and wait for them; so may a handler.
func TestACallbackMakesOrderedCalls(t *testing.T) {
	for name, options := range orderedClients {
		t.Run(name, func(t *testing.T) {
			onTrack(t, func(t *testing.T, tr *track) {
				tr.serve("one", nil)
				c := tr.client(options(), "one")
				must(t, c.Ready(t.Context()))
				var mu sync.Mutex
				var told []int
				var all sync.WaitGroup
				tell := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, n)
				}
				for n := range 5 {
					all.Add(1)
					c.Go(t.Context(), stepOf("k", n), func(err error) {
						defer all.Done()
						if err != nil {
							t.Error(err)
						}
						tell(n)
						if n == 1 {
							if err := c.Do(t.Context(), stepOf("k", 100)); err != nil {
								t.Error(err)
							}
							for m := 101; m < 110; m++ {
								all.Add(1)
								c.Go(t.Context(), stepOf("k", m), func(err error) {
									defer all.Done()
									if err != nil {
										t.Error(err)
									}
									tell(m)
								})
							}
							time.Sleep(time.Second)
						}
						if n == 3 {
							runtime.Goexit()
						}
					})
				}
				all.Wait()
				// Which was made first of 4 and 101 is open.
				outer := slices.DeleteFunc(slices.Clone(told), func(n int) bool { return n > 100 })
				inner := slices.DeleteFunc(slices.Clone(told), func(n int) bool { return n < 100 })
				if !slices.Equal(outer, []int{0, 1, 2, 3, 4}) || len(inner) != 9 || !slices.IsSorted(inner) {
					t.Errorf("told in the order %v", told)
				}
				if len(tr.steps) != 15 {
					t.Errorf("executed: %v", tr.steps)
				}
			})
		})
	}
}

// A rolling restart loses no ordered call and keeps the order, without retries.
func TestARollingRestartKeepsTheOrder(t *testing.T) {
	t.Attr("rerun", "never")
	onTrack(t, func(t *testing.T, tr *track) {
		const calls = 3000
		tr.handler = func(context.Context, *Step) error { time.Sleep(100 * time.Microsecond); return nil }
		stop := tr.serve("one", nil)
		tr.serve("two", nil)
		c := tr.client(nil, "one", "two")
		must(t, c.Ready(t.Context()))
		down := make(chan struct{})
		go func() {
			defer close(down)
			for range 5 {
				time.Sleep(20 * time.Millisecond)
				stop()
				stop = tr.serve("one", nil)
			}
		}()
		var g [3]goes
		for n := range calls {
			for key := range g {
				g[key].call(t.Context(), c, stepOf(fmt.Sprint(key), n))
			}
			if n%10 == 9 {
				time.Sleep(time.Millisecond)
			}
		}
		for key := range g {
			g[key].pending.Wait()
			for n := range calls {
				if err := g[key].err(n); err != nil {
					t.Errorf("key %d, call %d: %v", key, n, err)
				}
			}
			if !slices.IsSorted(g[key].ended) {
				t.Errorf("key %d was told out of order", key)
			}
		}
		<-down
		next := make(map[string]int)
		for _, step := range tr.steps {
			key, n, _ := strings.Cut(step, ":")
			if n != fmt.Sprint(next[key]) {
				t.Fatalf("key %s: %s is executed, want %d", key, n, next[key])
			}
			next[key]++
		}
	})
}

// A call that cannot be encoded, and one without a method, fail in their turn and hold nobody up.
func TestACallThatCannotBeSentHoldsNobodyUp(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		tr.handler = func(context.Context, *Step) error { time.Sleep(time.Second); return nil }
		c := tr.client(nil, "one")
		must(t, c.Ready(t.Context()))
		var g goes
		g.call(t.Context(), c, stepOf("k", 0))
		told := make(chan error, 3)
		c.Go(t.Context(), &yodel.Call{Method: string(Run), Args: func() {}, Key: "k", Ordered: true}, func(err error) { told <- err })
		c.Go(t.Context(), &yodel.Call{Key: "k", Ordered: true}, nil)
		go func() {
			told <- c.Do(t.Context(), &yodel.Call{Method: string(Run), Args: func() {}, Key: "k", Ordered: true})
		}()
		g.call(t.Context(), c, stepOf("k", 1))
		synctest.Wait()
		if len(told) != 0 {
			t.Errorf("told before the call before it: %v", <-told)
		}
		g.pending.Wait()
		for range 2 {
			wantError(t, <-told, yodel.InvalidArgument, "YDL2103")
		}
		tr.want("k:0", "k:1")
	})
}

// Calls that wait for their turn end with their client.
func TestWaitingOrderedCallsEndWithTheirClient(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		tr.handler = func(ctx context.Context, _ *Step) error { <-ctx.Done(); return nil }
		c := tr.client(&yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 1}}, "one")
		must(t, c.Ready(t.Context()))
		ended := make(chan error, 3)
		for n := range 3 {
			go func() { ended <- c.Do(t.Context(), stepOf("k", n)) }()
			synctest.Wait()
		}
		c.Close()
		for range 3 {
			if err := <-ended; err == nil {
				t.Error("a call succeeded")
			}
		}
		if n := c.OrderedKeys(); n != 0 {
			t.Errorf("%d keys are remembered", n)
		}
	})
}

// Middleware that leaves a key in a panic does not block it.
func TestAPanicDoesNotBlockItsKey(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		c := tr.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Args.(*Step).N == 0 {
					panic("in middleware")
				}
				return next(ctx, call)
			}
		}}}, "one")
		func() {
			defer func() { _ = recover() }()
			_ = c.Do(t.Context(), stepOf("k", 0))
		}()
		must(t, c.Do(t.Context(), stepOf("k", 1)))
		if n := c.OrderedKeys(); n != 0 {
			t.Errorf("%d keys are remembered", n)
		}
	})
}

// A shyContext is a context of the user that panics when it is asked for a value.
type shyContext struct{ context.Context }

func (shyContext) Value(any) any { panic("in a context") }

// A context that panics does not block the key of its call, whichever way the call is made.
func TestAPanicOfAContextDoesNotBlockItsKey(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		tr.serve("one", nil)
		c := tr.client(nil, "one")
		ctx := shyContext{t.Context()}
		begin := func() { c.Go(ctx, stepOf("k", 0), func(error) {}) }
		for _, call := range []func(){
			func() { _ = c.Do(ctx, stepOf("k", 0)) },
			begin, // without a connection
			func() { must(t, c.Do(t.Context(), stepOf("k", 1))) },
			begin, // at once, on the connection
			func() { must(t, c.Do(t.Context(), stepOf("k", 2))) },
		} {
			func() {
				defer func() { _ = recover() }()
				call()
			}()
			synctest.Wait()
			if n := c.OrderedKeys(); n != 0 {
				t.Fatalf("%d keys are remembered", n)
			}
		}
	})
}

// The handler learns that its call is ordered, and by which key; without one there is an order too.
func TestAHandlerLearnsOfTheOrder(t *testing.T) {
	onTrack(t, func(t *testing.T, tr *track) {
		var got []string
		tr.handler = func(ctx context.Context, _ *Step) error {
			call := yodel.CallFrom(ctx)
			got = append(got, fmt.Sprint(call.Ordered, call.Key))
			return nil
		}
		tr.serve("one", nil)
		c := tr.client(nil, "one")
		must(t, c.Do(t.Context(), stepOf("k", 0)))
		must(t, c.Do(t.Context(), stepOf("", 0)))
		call := stepOf("k", 0)
		call.Ordered = false
		must(t, c.Do(t.Context(), call))
		if !slices.Equal(got, []string{"truek", "true", "falsek"}) {
			t.Errorf("got %q", got)
		}
	})
}

// The record of an asynchronous call has when its first attempt began, also if it is ordered.
func TestTheRecordOfAnOrderedAsynchronousCallHasItsTimes(t *testing.T) {
	const slow = 20 * time.Millisecond
	s := newServer(t, nil)
	handle(t, s, "Slow", func(context.Context, *Empty) (*Empty, error) {
		<-time.After(slow)
		return nil, yodel.Errorf(yodel.Internal, "no")
	})
	c := connect(t, s, nil)
	must(t, c.Ready(t.Context()))
	for _, ordered := range []bool{false, true} {
		call := &yodel.Call{Method: "Slow", Args: &Empty{}, Ordered: ordered, Key: "k"}
		took := make(chan time.Duration, 1)
		c.Go(t.Context(), call, func(error) {
			if r := call.Report(); r != nil && len(r.Attempts) == 1 {
				took <- r.Attempts[0].Took
			}
			close(took)
		})
		if got := <-took; got < slow {
			t.Errorf("ordered %v: the attempt took %v, less than its method", ordered, got)
		}
	}
}
