// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/health"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// A patient is a server that answers checks as it is told.
type patient struct {
	*yodeltest.Server
	answer atomic.Pointer[func(ctx context.Context) error]
	checks atomic.Int32
	calls  atomic.Int32
}

func (p *patient) becomes(f func(ctx context.Context) error) { p.answer.Store(&f) }

func well(context.Context) error { return nil }

func newPatient(t *testing.T, o yodel.ServerOptions) *patient {
	t.Helper()
	p := &patient{}
	p.becomes(well)
	o.Middleware = append(o.Middleware, func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == string(work) {
				return next(ctx, call)
			}
			p.checks.Add(1)
			if err := (*p.answer.Load())(ctx); err != nil {
				return err
			}
			return next(ctx, call)
		}
	})
	p.Server = yodeltest.NewServer(t, &o)
	work.Handle(p.Server.Server, func(context.Context, *struct{}) (*struct{}, error) {
		p.calls.Add(1)
		return &struct{}{}, nil
	})
	return p
}

func client(t *testing.T, o *health.Options, servers ...*patient) *yodel.Client {
	t.Helper()
	var list []*yodeltest.Server
	for _, s := range servers {
		list = append(list, s.Server)
	}
	return yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{health.Check(o)}}, list...)
}

func fails(err error) func(context.Context) error { return func(context.Context) error { return err } }

func TestEndpointThatIsNotWellGetsNoCalls(t *testing.T) {
	for name, ill := range map[string]func(context.Context) error{
		"an error":  fails(yodel.Errorf(yodel.Unavailable, "x")),
		"no answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"a panic":   fails(yodel.Errorf(yodel.Internal, "x")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newPatient(t, yodel.ServerOptions{}), newPatient(t, yodel.ServerOptions{})
				var mu sync.Mutex
				var told []error
				o := &health.Options{Every: time.Second, OnChange: func(_ *yodel.Endpoint, err error) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, err)
				}}
				c := client(t, o, a, b)
				shares := func(want bool) {
					t.Helper()
					a.calls.Store(0)
					for range 10 {
						if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
							t.Fatal(err)
						}
					}
					if got := a.calls.Load() > 0; got != want {
						t.Errorf("it gets calls: %v", got)
					}
				}
				time.Sleep(10 * time.Second)
				if n := a.checks.Load(); n < 7 || n > 14 {
					t.Errorf("%d checks in 10 s", n)
				}
				shares(true)
				a.becomes(func(ctx context.Context) error { // for one check
					a.becomes(well)
					return ill(ctx)
				})
				time.Sleep(3 * time.Second)
				mu.Lock()
				if len(told) > 0 {
					t.Errorf("one bad check will do: %v", told)
				}
				mu.Unlock()
				a.becomes(ill)
				time.Sleep(6 * time.Second)
				shares(false)
				a.becomes(well)
				time.Sleep(4 * time.Second)
				shares(true)
				mu.Lock()
				defer mu.Unlock()
				if len(told) < 2 || told[len(told)-1] != nil || told[len(told)-2] == nil {
					t.Errorf("OnChange was told %v", told)
				}
			})
		})
	}
}

// A server that is not serving, though it answers.
func TestNotServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPatient(t, yodel.ServerOptions{NoIntrospection: true}), newPatient(t, yodel.ServerOptions{})
		var serving atomic.Bool
		inspect.Health.Handle(a.Server.Server, func(context.Context, *struct{}) (*introspect.Health, error) {
			return &introspect.Health{Serving: serving.Load()}, nil
		})
		c := client(t, nil, a, b)
		time.Sleep(1500 * time.Millisecond) // the first check will do
		ep := c.Endpoints()[0]
		if ep.Ready() {
			t.Error("it is ready and does not serve")
		}
		serving.Store(true)
		time.Sleep(15 * time.Second)
		if !ep.Ready() {
			t.Error("it is not ready and serves")
		}
	})
}

func TestAnswersThatWillDo(t *testing.T) {
	for name, o := range map[string]yodel.ServerOptions{
		"no such method": {NoIntrospection: true},
		"no token": {Middleware: []yodel.Middleware{auth.Check(func(context.Context, string, string) (context.Context, error) {
			return nil, errors.New("x")
		})}},
		"too much to do": {Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			return func(context.Context, *yodel.Call) error { return yodel.ResourceExhausted }
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := client(t, nil, newPatient(t, o))
				time.Sleep(time.Minute)
				if !c.Endpoints()[0].Ready() {
					t.Error("it is not ready")
				}
			})
		})
	}
}

func TestAnotherMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		var ill atomic.Bool
		s.Handle("App.Ready", func(context.Context, *struct{}) (*struct{}, error) {
			if ill.Load() {
				return nil, errors.New("the cache is cold")
			}
			return &struct{}{}, nil
		})
		c := yodeltest.NewClient(t, &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{health.Check(&health.Options{Method: "App.Ready", Every: time.Second})},
		}, s)
		ep := c.Endpoints()[0]
		for i := range 4 {
			ill.Store(i%2 == 1)
			time.Sleep(5 * time.Second)
			if ep.Ready() == ill.Load() {
				t.Errorf("ill is %v, and ready is %v", ill.Load(), ep.Ready())
			}
		}
	})
}

// When nobody is well, calls go on.
func TestNobodyIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPatient(t, yodel.ServerOptions{}), newPatient(t, yodel.ServerOptions{})
		a.becomes(fails(yodel.Unavailable))
		b.becomes(fails(yodel.Unavailable))
		c := client(t, nil, a, b)
		time.Sleep(20 * time.Second)
		for _, ep := range c.Endpoints() {
			if ep.Ready() {
				t.Errorf("%s is ready", ep.Addr())
			}
		}
		for range 10 {
			if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A new chain does not begin a second goroutine, and changes the period; the goroutine ends with
// the endpoint.
func TestNewChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newPatient(t, yodel.ServerOptions{})
		var ep *yodel.Endpoint
		first := health.Check(&health.Options{Every: 100 * time.Second})
		c := yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{
			func(e *yodel.Endpoint, next yodel.Handler) yodel.Handler { ep = e; return first(e, next) },
		}}, a.Server)
		time.Sleep(2 * time.Second)
		next := func(context.Context, *yodel.Call) error { return nil }
		for range 3 {
			health.Check(&health.Options{Every: time.Second})(ep, next)
		}
		time.Sleep(130 * time.Second)
		a.checks.Store(0)
		time.Sleep(20 * time.Second)
		if n := a.checks.Load(); n < 15 || n > 28 {
			t.Errorf("%d checks in 20 s", n)
		}
		c.Close()
		a.checks.Store(0)
		time.Sleep(20 * time.Second)
		if n := a.checks.Load(); n != 0 {
			t.Errorf("%d checks of a closed client", n)
		}
	})
}

func TestBadOptionsAreCorrected(t *testing.T) {
	for _, o := range []*health.Options{nil, {Every: -1, Timeout: -1, Failures: -1, Successes: -1}} {
		synctest.Test(t, func(t *testing.T) {
			a := newPatient(t, yodel.ServerOptions{})
			client(t, o, a)
			time.Sleep(time.Minute)
			if n := a.checks.Load(); n < 10 || n > 16 {
				t.Errorf("%d checks in a minute", n)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		a := newPatient(t, yodel.ServerOptions{})
		client(t, &health.Options{Every: 1}, a) // a nanosecond
		time.Sleep(2 * time.Second)
		if n := a.checks.Load(); n > 260 {
			t.Errorf("%d checks in 2 s", n)
		}
	})
}

// Many clients do not ask at once.
func TestChecksAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newPatient(t, yodel.ServerOptions{})
		for range 50 {
			client(t, nil, a)
		}
		time.Sleep(20 * time.Second)
		most := int32(0)
		for range 200 {
			a.checks.Store(0)
			time.Sleep(100 * time.Millisecond)
			most = max(most, a.checks.Load())
		}
		if most > 15 {
			t.Errorf("%d of 50 ask within 100 ms", most)
		}
	})
}

func TestItCostsCallsNothing(t *testing.T) {
	c := yodel.Dial("a")
	defer c.Close()
	var called bool
	h := health.Check(nil)(c.Endpoints()[0], func(context.Context, *yodel.Call) error { called = true; return nil })
	ctx, call := context.Background(), &yodel.Call{}
	if n := testing.AllocsPerRun(100, func() {
		if err := h(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 || !called {
		t.Errorf("got %v allocations, and called is %v", n, called)
	}
}

// Who wants hardly any checks gets hardly any.
func TestChecksWithoutEnd(t *testing.T) {
	for _, every := range []time.Duration{math.MaxInt64, 1 << 62, math.MaxInt64 / 3 * 2} {
		synctest.Test(t, func(t *testing.T) {
			a := newPatient(t, yodel.ServerOptions{})
			client(t, &health.Options{Every: every}, a)
			time.Sleep(time.Minute)
			if n := a.checks.Load(); n != 1 {
				t.Errorf("%d checks, want the first one", n)
			}
		})
	}
}
