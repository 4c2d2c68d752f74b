// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[int, int] = "Test.Work"

// start returns a client of a server, with faults on one side, and how often the method was
// executed.
func start(t testing.TB, side string, faults *fault.Injector, above ...yodel.Middleware) (*yodel.Client, *atomic.Int32) {
	t.Helper()
	executed := new(atomic.Int32)
	so, co := &yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}, &yodel.ClientOptions{Middleware: above}
	switch side {
	case "server":
		so.Middleware = []yodel.Middleware{faults.Calls}
	case "calls":
		co.Middleware = append(co.Middleware, faults.Calls)
	case "attempts":
		co.EndpointMiddleware = []yodel.EndpointMiddleware{faults.Attempts}
	}
	server := yodeltest.NewServer(t, so)
	work.Handle(server.Server, func(_ context.Context, in *int) (*int, error) {
		executed.Add(1)
		return in, nil
	})
	return yodeltest.NewClient(t, co, server), executed
}

var sides = []string{"server", "calls", "attempts"}

func set(t testing.TB, faults *fault.Injector, rules ...fault.Rule) {
	t.Helper()
	if err := faults.Set(rules...); err != nil {
		t.Fatal(err)
	}
}

func TestWhatAFaultDoes(t *testing.T) {
	for _, side := range sides {
		for _, test := range []struct {
			name     string
			rule     fault.Rule
			code     yodel.Code // 0 is success
			unsent   bool
			executed int32
			took     time.Duration
		}{
			{"delay", fault.Rule{Delay: time.Second}, 0, false, 1, time.Second},
			{"code", fault.Rule{Code: yodel.ResourceExhausted}, yodel.ResourceExhausted, true, 0, 0},
			{"delay and code", fault.Rule{Delay: time.Second, Code: yodel.Internal}, yodel.Internal, true, 0, time.Second},
			{"lost request", fault.Rule{Lose: fault.Request}, yodel.Unavailable, false, 0, 0},
			{"lost reply", fault.Rule{Lose: fault.Reply}, yodel.Unavailable, false, 1, 0},
		} {
			synctest.Test(t, func(t *testing.T) {
				var faults fault.Injector
				c, executed := start(t, side, &faults)
				set(t, &faults, test.rule)
				began := time.Now()
				reply := 0
				call := &yodel.Call{Method: string(work), Args: 7, Reply: &reply}
				err := c.Do(t.Context(), call)
				took := time.Since(began)
				if yodel.CodeOf(err) != test.code || yodel.NotProcessed(err) != test.unsent || executed.Load() != test.executed || took != test.took {
					t.Errorf("%s, %s: got %v after %v, %d executions, want %v after %v, %d executions", side, test.name, err, took, executed.Load(), test.code, test.took, test.executed)
				}
				if err == nil {
					return
				}
				if reply != 0 || call.Trailer != nil {
					t.Errorf("%s, %s: a call that failed has the reply %d, and the trailer %v", side, test.name, reply, call.Trailer)
				}
				if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL3511" || !strings.Contains(e.Message, "an injected fault (fault rule 1)") {
					t.Errorf("%s, %s: the error is not marked: %v", side, test.name, err)
				}
			})
		}
	}
}

// The connection is closed for real: what the client sees is its own.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var faults fault.Injector
		c, executed := start(t, "server", &faults)
		set(t, &faults, fault.Rule{Reset: true})
		_, err := work.Call(t.Context(), c, new(7))
		if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL1104" || e.NotProcessed || executed.Load() != 0 {
			t.Errorf("got %v, %d executions", err, executed.Load())
		}
		set(t, &faults)
		synctest.Wait()
		time.Sleep(time.Second)
		if _, err := work.Call(t.Context(), c, new(7)); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	var faults fault.Injector
	c, executed := start(t, "attempts", &faults)
	set(t, &faults, fault.Rule{Reset: true})
	if _, err := work.Call(t.Context(), c, new(7)); !errors.Is(err, yodel.Unavailable) || yodel.NotProcessed(err) || executed.Load() != 0 {
		t.Errorf("on a client: got %v, %d executions", err, executed.Load())
	}
}

func TestWhichCallsARuleIsFor(t *testing.T) {
	for _, side := range sides {
		var faults fault.Injector
		c, _ := start(t, side, &faults)
		for _, test := range []struct {
			name string
			rule fault.Rule
			hits bool
		}{
			{"all", fault.Rule{}, true},
			{"the method", fault.Rule{Methods: []string{"Test.Other", "Test.Work"}}, true},
			{"another method", fault.Rule{Methods: []string{"Test.Other"}}, false},
			{"metadata", fault.Rule{Metadata: yodel.Metadata{"user": "ali"}}, true},
			{"other metadata", fault.Rule{Metadata: yodel.Metadata{"user": "bob"}}, false},
			{"more metadata", fault.Rule{Metadata: yodel.Metadata{"user": "ali", "x": ""}}, false},
			{"another address", fault.Rule{Addr: "10.0.0.1:1"}, false},
			{"yes", fault.Rule{If: func(_ context.Context, call *yodel.Call) bool { return call.Method == "Test.Work" }}, true},
			{"no", fault.Rule{If: func(context.Context, *yodel.Call) bool { return false }}, false},
		} {
			test.rule.Code = yodel.Internal
			set(t, &faults, test.rule)
			_, err := work.Do(t.Context(), c, &yodel.Call{Metadata: yodel.Metadata{"user": "ali"}}, new(7))
			if (err != nil) != test.hits || (faults.Rules()[0].Injected == 1) != test.hits {
				t.Errorf("%s, %s: got %v, applied %d times", side, test.name, err, faults.Rules()[0].Injected)
			}
		}
		addr := ""
		set(t, &faults, fault.Rule{Delay: 1, If: func(_ context.Context, call *yodel.Call) bool {
			if call.Peer() != nil {
				addr = call.Peer().Addr.String()
			} else if call.Endpoint != nil {
				addr = call.Endpoint.Addr()
			}
			return false
		}})
		// where no endpoint is chosen yet
		if _, err := work.Call(t.Context(), c, new(7)); err != nil || (addr == "") != (side == "calls") {
			t.Errorf("%s: the address is %q, %v", side, addr, err)
		}
		set(t, &faults, fault.Rule{Addr: addr, Code: yodel.Internal})
		if _, err := work.Call(t.Context(), c, new(7)); err == nil {
			t.Errorf("%s: the rule for %q does not hit", side, addr)
		}
	}
}

func TestTheFirstRuleThatHitsIsTheOne(t *testing.T) {
	var faults fault.Injector
	c, _ := start(t, "attempts", &faults)
	set(t, &faults,
		fault.Rule{Methods: []string{"Test.Other"}, Code: yodel.Internal},
		fault.Rule{Name: "busy", Code: yodel.ResourceExhausted, Message: "too much to do"},
		fault.Rule{Code: yodel.NotFound})
	_, err := work.Call(t.Context(), c, new(7))
	if !errors.Is(err, yodel.ResourceExhausted) || !strings.Contains(err.Error(), "server-1: too much to do (fault rule busy)") {
		t.Errorf("got %v", err)
	}
	set(t, &faults)
	if _, err := work.Call(t.Context(), c, new(7)); err != nil {
		t.Errorf("without rules: %v", err)
	}
}

func TestThePercentage(t *testing.T) {
	ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
	for _, percent := range []float64{0.01, 0.5, 20, 99.5, 100} {
		var faults fault.Injector
		set(t, &faults, fault.Rule{Percent: percent, Code: yodel.Internal})
		h := faults.Calls(func(context.Context, *yodel.Call) error { return nil })
		const calls = 100_000
		hits := 0
		for range calls {
			if h(ctx, call) != nil {
				hits++
			}
		}
		want := calls * percent / 100
		if slack := 6 * math.Sqrt(want*(1-percent/100)); math.Abs(float64(hits)-want) > slack {
			t.Errorf("%v %%: %d of %d calls, want %.0f ± %.0f", percent, hits, calls, want, slack)
		}
		if n := faults.Rules()[0].Injected; int(n) != hits {
			t.Errorf("%v %%: %d were counted, %d hit", percent, n, hits)
		}
	}
}

func TestADelayEndsWithTheCallersPatience(t *testing.T) {
	t.Attr("rerun", "never")
	for _, side := range sides {
		synctest.Test(t, func(t *testing.T) {
			var faults fault.Injector
			c, executed := start(t, side, &faults)
			set(t, &faults, fault.Rule{Delay: time.Hour, Jitter: time.Minute})
			began := time.Now()
			_, err := work.Do(t.Context(), c, &yodel.Call{Deadline: began.Add(time.Second)}, new(7))
			if !errors.Is(err, yodel.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%s: deadline: got %v after %v", side, err, time.Since(began))
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err = work.Call(ctx, c, new(7)); !errors.Is(err, yodel.Canceled) || time.Since(began) != 2*time.Second {
				t.Errorf("%s: canceled: got %v after %v", side, err, time.Since(began))
			}
			synctest.Wait()
			if executed.Load() != 0 {
				t.Errorf("%s: executed %d times", side, executed.Load())
			}
		})
	}
}

// Retries see faults of attempts as they see those of servers.
func TestRetriesSeeFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var faults fault.Injector
		c, executed := start(t, "attempts", &faults, retry.Times(5))
		n := 0
		third := func(context.Context, *yodel.Call) bool { n++; return n < 3 }
		set(t, &faults, fault.Rule{If: third, Code: yodel.Unavailable})
		if _, err := work.Call(t.Context(), c, new(7)); err != nil || executed.Load() != 1 {
			t.Errorf("got %v, %d executions", err, executed.Load())
		}
		n = 0
		set(t, &faults, fault.Rule{If: third, Lose: fault.Reply})
		if _, err := work.Call(t.Context(), c, new(7)); !errors.Is(err, yodel.Unavailable) || executed.Load() != 2 {
			t.Errorf("it may have been executed, and is not idempotent: got %v, %d executions", err, executed.Load())
		}
	})
}

func TestRulesThatMakeNoSense(t *testing.T) {
	var faults fault.Injector
	set(t, &faults, fault.Rule{Name: "stays", Delay: time.Second})
	for _, test := range []struct {
		rule fault.Rule
		says string
	}{
		{fault.Rule{}, "does nothing"},
		{fault.Rule{Percent: 101, Code: 1}, "101 percent"},
		{fault.Rule{Percent: -1, Code: 1}, "-1 percent"},
		{fault.Rule{Percent: math.NaN(), Code: 1}, "NaN percent"},
		{fault.Rule{Percent: 0.001, Code: 1}, "the least is 0.01"},
		{fault.Rule{Delay: -1}, "negative delay"},
		{fault.Rule{Jitter: -1}, "negative delay"},
		{fault.Rule{Lose: "hope"}, `loses "hope"`},
		{fault.Rule{Code: 99}, "unknown code 99"},
		{fault.Rule{Code: yodel.Internal, Lose: fault.Reply}, "choose one"},
	} {
		err := faults.Set(fault.Rule{Code: yodel.Internal}, test.rule)
		if !errors.Is(err, yodel.InvalidArgument) || !strings.Contains(err.Error(), "rule 2") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: got %v", test.rule, err)
		}
	}
	if rules := faults.Rules(); len(rules) != 1 || rules[0].Name != "stays" {
		t.Errorf("the rules are %+v", rules)
	}
}

// For a console, rules come and go as JSON.
func TestRulesAsJSON(t *testing.T) {
	var faults fault.Injector
	var rules []fault.Rule
	const text = `[{"percent":0.5,"methods":["A.B"],"metadata":{"k":"v"},"addr":"a:1","delay":1000,"code":"unavailable"},{"lose":"reply"}]`
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		t.Fatal(err)
	}
	set(t, &faults, rules...)
	back, err := json.Marshal(faults.Rules())
	const want = `[{"name":"1","percent":0.5,"methods":["A.B"],"metadata":{"k":"v"},"addr":"a:1","delay":1000,"code":"unavailable","injected":0},` +
		`{"name":"2","lose":"reply","injected":0}]`
	if err != nil || string(back) != want {
		t.Errorf("got  %s, %v\nwant %s", back, err, want)
	}
}

func TestRulesChangeWhileCallsRun(t *testing.T) {
	var faults fault.Injector
	c, _ := start(t, "attempts", &faults)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				_, err := work.Call(t.Context(), c, new(7))
				if e, ok := errors.AsType[*yodel.Error](err); err != nil && (!ok || e.ID != "YDL3511") {
					t.Error(err)
				}
				_ = faults.Rules()
			}
		})
	}
	for range 100 {
		set(t, &faults, fault.Rule{Percent: 50, Code: yodel.Internal})
		set(t, &faults)
	}
	all.Wait()
}

func TestCallsWithoutAFaultAllocateNothing(t *testing.T) {
	ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
	var none, others fault.Injector
	set(t, &others, fault.Rule{Methods: []string{"Test.Other"}, Code: yodel.Internal}, fault.Rule{Metadata: yodel.Metadata{"a": "b"}, Delay: time.Hour})
	for _, faults := range []*fault.Injector{&none, &others} {
		h := faults.Calls(func(context.Context, *yodel.Call) error { return nil })
		if n := testing.AllocsPerRun(100, func() {
			if err := h(ctx, call); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("got %v allocations for each call, want 0", n)
		}
	}
}

func BenchmarkWithout(b *testing.B) {
	var faults fault.Injector
	for _, name := range []string{"no rule", "a rule for others"} {
		h := faults.Calls(func(context.Context, *yodel.Call) error { return nil })
		ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := h(ctx, call); err != nil {
					b.Fatal(err)
				}
			}
		})
		set(b, &faults, fault.Rule{Methods: []string{"Test.Other"}, Code: yodel.Internal})
	}
}

// A delay that is meant to be for ever is.
func TestADelayWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var faults fault.Injector
		c, executed := start(t, "calls", &faults)
		set(t, &faults, fault.Rule{Delay: math.MaxInt64, Jitter: math.MaxInt64})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := work.Call(ctx, c, new(1)); !errors.Is(err, yodel.DeadlineExceeded) || executed.Load() != 0 {
			t.Errorf("got %v after %d executions", err, executed.Load())
		}
	})
}

// What a rule was made of, and what Rules returns, may be changed while calls run.
func TestRulesShareNothing(t *testing.T) {
	var faults fault.Injector
	rule := fault.Rule{Methods: []string{"Test.Work"}, Metadata: yodel.Metadata{"user": "ali"}, Code: yodel.Unavailable}
	set(t, &faults, rule)
	rule.Methods[0], rule.Metadata["user"] = "Test.Other", "eve"
	states := faults.Rules()
	states[0].Methods[0], states[0].Metadata["user"] = "Test.Other", "eve"
	h := faults.Calls(func(context.Context, *yodel.Call) error { return nil })
	if err := h(t.Context(), &yodel.Call{Method: "Test.Work", Metadata: yodel.Metadata{"user": "ali"}}); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("got %v: somebody else's change has changed the rule", err)
	}
}
