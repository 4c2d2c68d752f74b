// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// steps returns the counts of 60 steps, of which the last has not ended: each has n calls.
func steps(n uint64, last int) []uint64 {
	all := make([]uint64, 60)
	for i := max(59-last, 0); i < 59; i++ {
		all[i] = n
	}
	return all
}

// histograms returns a histogram for each count, of calls that took d.
func histograms(counts []uint64, d time.Duration) [][]introspect.Bucket {
	all := make([][]introspect.Bucket, len(counts))
	for i, n := range counts {
		if n > 0 {
			all[i] = []introspect.Bucket{{UpTo: d, Calls: n}}
		}
	}
	return all
}

func served(method, peer string, calls []uint64) introspect.Series {
	return introspect.Series{Side: "server", Method: method, Peer: peer, Calls: calls, P50: durations(0), P90: durations(0), P99: durations(0)}
}

func durations(d time.Duration) []time.Duration {
	all := make([]time.Duration, 60)
	for i := range all {
		all[i] = d
	}
	return all
}

// process serves what a process that has run for some time says.
func process(t *testing.T, age time.Duration, series ...introspect.Series) string {
	t.Helper()
	return serveOwn(t, func(s *yodel.Server) {
		now := time.Now().Truncate(time.Second)
		answerLive(s, &introspect.Live{Now: now, Step: time.Second, Series: series, Process: introspect.Process{Started: now.Add(-age)}})
	})
}

func kinds(s *fleet.Service) string {
	var all []string
	for _, p := range s.Problems {
		all = append(all, string(p.Severity)+" "+p.Kind)
	}
	return strings.Join(all, ", ")
}

// The calls of a young instance are counted in the time that it has lived, and those of its service
// in the time of the oldest one.
func TestRatesAreOfTheTimeThatProcessesHaveLived(t *testing.T) {
	young, old := served("Shop.Buy", "web", steps(2, 12)), served("Shop.Buy", "web", steps(1, 59))
	young.Errors = map[string][]uint64{"internal": steps(1, 2)}
	f := fleet.New(services{
		"Shop": {{Addr: process(t, 12*time.Second, young), Version: "v2"}, {Addr: process(t, time.Hour, old), Version: "v1"}},
		"New":  {{Addr: process(t, 2500*time.Millisecond, served("New.Do", "web", steps(8, 3)))}},
	}, nil)
	defer f.Close()
	view := read(t, f)
	shop := view.Service("Shop")
	for _, in := range shop.Instances {
		calls, span := int64(59), 59*time.Second
		if in.Version == "v2" {
			calls, span = 24, 12*time.Second
		}
		if tr := in.Traffic; tr.Span != span || tr.Calls(tr.Rate) != calls {
			t.Errorf("%s: %d calls in %v, want %d in %v", in.Version, tr.Calls(tr.Rate), tr.Span, calls, span)
		}
	}
	if tr := shop.Traffic; tr.Span != 59*time.Second || tr.Calls(tr.Rate) != 83 || fmt.Sprintf("%.5f", tr.Failed) != fmt.Sprintf("%.5f", 2.0/83) {
		t.Errorf("%d calls in %v, of which %.5f failed, want 83 and 2", tr.Calls(tr.Rate), tr.Span, tr.Failed)
	}
	if tr := view.Service("New").Traffic; tr.Span != 2500*time.Millisecond || fmt.Sprintf("%.3f", tr.Rate) != "9.600" {
		t.Errorf("the new service has %.3f calls/s in %v, want 24 in 2.5s", tr.Rate, tr.Span)
	}
	var sum fleet.Traffic
	sum.Add(&shop.Traffic)
	other := view.Service("New").Traffic
	if sum.Add(&other); sum.Calls(sum.Rate) != 107 || sum.Calls(sum.Failed*sum.Judged()) != 2 {
		t.Errorf("in all %d calls, of which %.5f failed, want 107 and 2", sum.Calls(sum.Rate), sum.Failed)
	}
}

// The counters of a process that has restarted begin at zero. The calls of the process before it
// remain those of the last minute, so the sums neither drop nor jump.
func TestARestartChangesNoSum(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	one := served("Shop.Buy", "web", steps(2, 59))
	one.Calls[59] = 1 // read in the middle of this second
	one.Errors = map[string][]uint64{"internal": steps(1, 10)}
	live := &introspect.Live{Now: began, Step: time.Second, Series: []introspect.Series{one}, Process: introspect.Process{Started: began.Add(-time.Hour)}}
	addr := serveOwn(t, func(s *yodel.Server) { answerLive(s, live) })
	steady := process(t, time.Hour, served("Shop.Buy", "web", steps(1, 59)))
	source := services{"Shop": {{Addr: addr}, {Addr: steady}}}
	f := fleet.New(source, nil)
	defer f.Close()
	want := func(what string, calls, failed int64) {
		t.Helper()
		shop := read(t, f).Service("Shop")
		if tr := shop.Traffic; tr.Span != 59*time.Second || tr.Calls(tr.Rate) != calls || tr.Calls(tr.Failed*tr.Judged()) != failed {
			t.Errorf("%s: %d calls in %v, of which %d failed, want %d and %d", what, tr.Calls(tr.Rate), tr.Span, tr.Calls(tr.Failed*tr.Judged()), calls, failed)
		}
	}
	want("before", 3*59, 10)
	delete(source, "Shop") // while it restarts
	if view := read(t, f); len(view.Services) > 0 {
		t.Errorf("got %d services, want none", len(view.Services))
	}
	source["Shop"] = []discovery.Instance{{Addr: addr}, {Addr: steady}}
	// Ten seconds later, a process that is six seconds old has executed three calls in each of the
	// last five.
	two := served("Shop.Buy", "web", steps(3, 5))
	live.Now, live.Series, live.Process.Started = began.Add(10*time.Second), []introspect.Series{two}, began.Add(4*time.Second)
	want("after", 59+49*2+1+5*3, 10)
	two = served("Shop.Buy", "web", steps(3, 55))
	live.Now, live.Series = began.Add(60*time.Second), []introspect.Series{two}
	want("a minute later", 59+55*3, 0)
}

// A service with an instance that is down comes before one that has more calls and no fault of an
// instance, and after one that fails.
func TestServicesAreInTheOrderOfCauses(t *testing.T) {
	limited, failing := served("A.Do", "web", steps(20, 59)), served("C.Do", "web", steps(1, 59))
	limited.Errors = map[string][]uint64{"resource_exhausted": steps(2, 59)}
	failing.Errors = map[string][]uint64{"internal": steps(1, 20)}
	f := fleet.New(services{
		"A": {{Addr: process(t, time.Hour, limited)}},
		"B": {{Addr: process(t, time.Hour, served("B.Do", "web", steps(1, 59)))}, {Addr: "127.0.0.1:1"}},
		"C": {{Addr: process(t, time.Hour, failing)}},
	}, nil)
	defer f.Close()
	var order []string
	for _, s := range read(t, f).Services {
		order = append(order, s.Name+" "+string(s.State))
	}
	if got := strings.Join(order, ", "); got != "C degraded, B degraded, A degraded" {
		t.Errorf("the order is %s", got)
	}
}

// An instance to which a rule leaves no calls says so, and is up.
func TestAnInstanceNamesTheRuleThatHoldsIt(t *testing.T) {
	held, free := process(t, time.Hour, served("Shop.Buy", "web", steps(1, 59))), process(t, time.Hour, served("Shop.Buy", "web", steps(9, 59)))
	f := fleet.New(services{"Shop": {{Addr: held, Version: "v2"}, {Addr: free, Version: "v1"}}}, &fleet.Options{Rules: func(context.Context) ([]fleet.Ruling, error) {
		return []fleet.Ruling{{Service: "Shop", ID: "try", Kind: "canary", Holds: func(in *discovery.Instance) bool { return in.Version == "v2" }}}, nil
	}})
	defer f.Close()
	shop := read(t, f).Service("Shop")
	want := map[string]string{held: "gets no calls because of rule try (canary)", free: ""}
	for _, in := range shop.Instances {
		if in.Why != want[in.Addr] || in.State != fleet.Up {
			t.Errorf("%s is %s: %q, want up: %q", in.Version, in.State, in.Why, want[in.Addr])
		}
	}
	if shop.State != fleet.Healthy {
		t.Errorf("the service is %s: %s", shop.State, shop.Note)
	}
}

// Calls that are canceled or limited are neither successes nor failures.
func TestOutcomesOfTraffic(t *testing.T) {
	one := served("Shop.Buy", "web", steps(10, 59))
	one.Errors = map[string][]uint64{"canceled": steps(4, 59), "resource_exhausted": steps(1, 59), "not_found": steps(1, 1)}
	source := services{"Shop": {{Addr: process(t, time.Hour, one)}}}
	for _, limited := range []bool{false, true} {
		o := &fleet.Options{Rules: func(context.Context) ([]fleet.Ruling, error) {
			if limited {
				return []fleet.Ruling{{Service: "Shop", ID: "l", Kind: "limit"}}, nil
			}
			return nil, nil
		}}
		f := fleet.New(source, o)
		shop := read(t, f).Service("Shop")
		f.Close()
		if tr := shop.Traffic; tr.Rate != 10 || tr.Canceled != 4 || tr.Limited != 1 || tr.Judged() != 5 || tr.OK() != 1 {
			t.Errorf("got the traffic %+v", tr)
		}
		want, state := "warn limited", fleet.Degraded
		if limited { // by an operator, who knows it
			want, state = "info limited", fleet.Healthy
		}
		if kinds(shop) != want || shop.State != state {
			t.Errorf("limited by a rule %t: it is %s, with %s", limited, shop.State, kinds(shop))
		}
	}
}

// A service that a rule has stopped is down and comes first, also before one that fails by itself.
// What the rule refuses counts as failed, with its rate, and the callers pass it on.
func TestAStoppedServiceIsNamedAndNotItsCallers(t *testing.T) {
	gate := served("Gate.Buy", "web", steps(10, 59))
	gate.Errors = map[string][]uint64{introspect.Disabled: steps(8, 59)}
	refused := introspect.Series{Side: "client", Method: "Price.Quote", Calls: steps(8, 59), Errors: map[string][]uint64{introspect.Disabled: steps(8, 59)}}
	foreign, bad := served("Price.Quote", "curl", steps(2, 59)), served("Aaa.Do", "web", steps(50, 59))
	foreign.Errors, bad.Errors = map[string][]uint64{introspect.Disabled: steps(2, 59)}, map[string][]uint64{"internal": steps(50, 59)}
	f := fleet.New(services{
		"Aaa":   {{Addr: process(t, time.Hour, bad)}},
		"Gate":  {{Addr: process(t, time.Hour, gate, refused)}},
		"Price": {{Addr: process(t, time.Hour, foreign)}},
	}, &fleet.Options{Rules: func(context.Context) ([]fleet.Ruling, error) {
		return []fleet.Ruling{{Service: "Price", ID: "boom", Kind: "disable", Author: "root", What: "refuse the calls of Price", Since: time.Now().Add(-18*time.Second - 200*time.Millisecond), Stops: true, All: true}}, nil
	}})
	defer f.Close()
	view := read(t, f)
	price, caller := view.Services[0], view.Service("Gate")
	if price.Name != "Price" || price.State != fleet.Down || kinds(price) != "bad stopped, bad disabled" || price.Problems[0].Rule != "boom" {
		t.Errorf("first is %s, %s, with %s", price.Name, price.State, kinds(price))
	}
	if price.Note != "rule boom of root stops all calls: refuse the calls of Price (18s ago); 10 calls a second fail, because a rule refuses them" {
		t.Errorf("got the note %q", price.Note)
	}
	if u := price.Unsent; u.Calls(u.Rate) != 8*59 || u.Failed != 1 || price.Traffic.Failed != 1 {
		t.Errorf("%d calls reached no instance, of which %.2f failed, and %.2f of the others", u.Calls(u.Rate), u.Failed, price.Traffic.Failed)
	}
	if caller.State != fleet.Degraded || caller.Traffic.Failed != 0.8 || caller.Note != "80 % of the calls fail, mostly with disabled, as the calls to Price do" {
		t.Errorf("the caller is %s: %s", caller.State, caller.Note)
	}
}

// An error is traced through the services that pass it on to the instance from which it comes, and
// none of the instances in between is blamed, also if it gives the error another code.
func TestErrorsThatArePassedOnNameTheirCause(t *testing.T) {
	fails := func(s introspect.Series, code string) introspect.Series {
		s.Errors = map[string][]uint64{code: steps(4, 59)}
		return s
	}
	made := func(method, addr, code string) introspect.Series {
		return fails(introspect.Series{Side: "client", Method: method, Peer: addr, Calls: steps(10, 59)}, code)
	}
	broken, well := process(t, time.Hour, fails(served("Price.Quote", "order", steps(10, 59)), "internal")), process(t, time.Hour, served("Price.Quote", "order", steps(10, 59)))
	order := process(t, time.Hour, fails(served("Order.Place", "gate", steps(10, 59)), "internal"), made("Price.Quote", broken, "internal"))
	other := process(t, time.Hour, served("Order.Place", "gate", steps(10, 59)))
	gate := process(t, time.Hour, fails(served("Gate.Buy", "web", steps(10, 59)), "unknown"), made("Order.Place", order, "internal"))
	f := fleet.New(services{"Gate": {{Addr: gate}}, "Order": {{Addr: order}, {Addr: other}}, "Price": {{Addr: broken}, {Addr: well}}}, nil)
	defer f.Close()
	view := read(t, f)
	for name, want := range map[string]string{
		"Price": "20 % of the calls fail, mostly with internal; " + broken + " fails 40 % of its calls, the others 0 %",
		"Order": "20 % of the calls fail, mostly with internal, as the calls to Price@" + broken + " do",
		"Gate":  "40 % of the calls fail, mostly with unknown, as the calls to Order → Price@" + broken + " do",
	} {
		if s := view.Service(name); s.Note != want {
			t.Errorf("%s: %s, want %s", name, s.Note, want)
		}
	}
	if first := view.Services[0]; first.Name != "Price" {
		t.Errorf("first is %s", first.Name)
	}
	why := map[string]string{order: "passes on errors of Price@" + broken, other: "", broken: "", gate: "passes on errors of Order → Price@" + broken}
	for _, s := range view.Services {
		for _, in := range s.Instances {
			if want, ok := why[in.Addr]; ok && (in.Why != want || in.Passes != strings.TrimPrefix(want, "passes on errors of ")) {
				t.Errorf("%s@%s: %q and %q, want %q", s.Name, in.Addr, in.Why, in.Passes, want)
			}
		}
		for _, p := range s.Problems {
			if p.Kind == "passed" && p.Cause != "Price" {
				t.Errorf("%s: the cause is %q", s.Name, p.Cause)
			}
		}
	}
}

// A service of which most calls fail is down, and not degraded like one with 2 % of failures.
func TestAServiceThatMostlyFailsIsDown(t *testing.T) {
	bad, callee := served("Order.Place", "gate", steps(10, 59)), served("Price.Quote", "order", steps(10, 59))
	bad.Errors, callee.Errors = map[string][]uint64{"internal": steps(8, 59)}, map[string][]uint64{"internal": steps(8, 59)}
	made := introspect.Series{Side: "client", Method: "Price.Quote", Peer: "x", Calls: steps(10, 59), Errors: callee.Errors}
	f := fleet.New(services{"Order": {{Addr: process(t, time.Hour, bad, made)}}, "Price": {{Addr: process(t, time.Hour, callee)}}}, nil)
	defer f.Close()
	view := read(t, f)
	if first := view.Services[0]; first.Name != "Price" || first.State != fleet.Down || kinds(first) != "bad failing" {
		t.Errorf("first is %s, %s, with %s", first.Name, first.State, kinds(first))
	}
	if order := view.Service("Order"); order.State != fleet.Degraded || !strings.Contains(order.Note, "as the calls to Price do") {
		t.Errorf("the caller is %s: %s", order.State, order.Note)
	}
}

// An instance that differs from the others is named, with the method.
func TestOutliersAreNamed(t *testing.T) {
	method := func(name string, d time.Duration) introspect.Series {
		s := served(name, "web", steps(2, 59))
		s.Latency = histograms(s.Calls, d)
		return s
	}
	slow, failing := method("Shop.Buy", 15*time.Millisecond), method("Shop.List", time.Millisecond)
	failing.Errors = map[string][]uint64{"internal": steps(1, 30)}
	f := fleet.New(services{"Shop": {
		{Addr: process(t, time.Hour, slow, failing)},
		{Addr: process(t, time.Hour, method("Shop.Buy", time.Millisecond), method("Shop.List", time.Millisecond))},
	}}, nil)
	defer f.Close()
	shop := read(t, f).Service("Shop")
	for _, want := range []string{"fails 25.4 % of its calls of List, the others 0 %", "is slow: its p90 of Buy is 15ms, that of the others 1ms"} {
		if !strings.Contains(shop.Note, want) {
			t.Errorf("the note %q does not say %q", shop.Note, want)
		}
	}
	if shop.State != fleet.Degraded {
		t.Errorf("it is %s", shop.State)
	}
}

// A flood is worth a sentence, with the caller. Its first seconds do not count as what was normal.
func TestAFloodIsNoticed(t *testing.T) {
	for _, since := range []int{10, 45} {
		calm, flood := served("Shop.Buy", "web", steps(40, 59)), served("Shop.Buy", "batch", steps(300, since))
		f := fleet.New(services{"Shop": {{Addr: process(t, time.Hour, calm, flood)}}}, nil)
		if shop := read(t, f).Service("Shop"); shop.State != fleet.Healthy || shop.Note != "340 calls a second, were 40: 300 come from batch" {
			t.Errorf("after %d seconds it is %s: %q", since, shop.State, shop.Note)
		}
		f.Close()
	}
}

// A canary whose rule has just given its version a share, or none, is shown with the calls that it
// gets, and not with the share of an ordinary instance. Few calls show no share.
func TestVersionsHaveTheSharesOfTheirCalls(t *testing.T) {
	for _, one := range []struct {
		old, canary []uint64
		want        float64 // of v2
	}{
		{steps(9, 59), steps(1, 59), 0.1},
		{steps(10, 59), before(5, 10), 0}, // held back for ten seconds
		{steps(1, 3), steps(1, 1), 0.5},
	} {
		f := fleet.New(services{"Shop": {
			{Addr: process(t, time.Hour, served("Shop.Buy", "web", one.old)), Version: "v1"},
			{Addr: process(t, time.Hour, served("Shop.Buy", "web", one.canary)), Version: "v2"},
		}}, nil)
		if got := read(t, f).Service("Shop").Versions; len(got) != 2 || got[1].Version != "v2" || math.Abs(got[1].Share-one.want) > 1e-9 {
			t.Errorf("got the versions %+v, want v2 with %v", got, one.want)
		}
		f.Close()
	}
}

// before returns the counts of 60 steps, of which the last has not ended: each but the last ones
// that have ended has n calls.
func before(n uint64, last int) []uint64 {
	all := steps(n, 59)
	for i := 59 - last; i < 59; i++ {
		all[i] = 0
	}
	return all
}

// For a minute, the numbers have calls that a rule has refused which is gone. The problem says that
// it is, if the reader knows all rules.
func TestARuleThatIsGoneRefusesNothing(t *testing.T) {
	refused := introspect.Series{Side: "client", Method: "Price.Quote", Calls: steps(8, 30), Errors: map[string][]uint64{introspect.Disabled: steps(8, 30)}}
	source := services{
		"Gate":  {{Addr: process(t, time.Hour, served("Gate.Buy", "web", steps(10, 59)), refused)}},
		"Price": {{Addr: process(t, time.Hour, served("Price.Quote", "Gate", steps(8, 59)))}},
	}
	for _, one := range []struct {
		rules []fleet.Ruling
		err   error
		want  string
	}{
		{nil, nil, "4.1 calls a second failed, because a rule refused them; no rule does now"},
		{[]fleet.Ruling{{Service: "Price", ID: "l", Kind: "limit"}}, nil, "4.1 calls a second failed, because a rule refused them; no rule does now"},
		{[]fleet.Ruling{{Service: "Price", ID: "boom", Kind: "disable"}}, nil, "4.1 calls a second fail, because a rule refuses them"},
		{nil, errors.New("gone"), "4.1 calls a second fail, because a rule refuses them"},
	} {
		f := fleet.New(source, &fleet.Options{Rules: func(context.Context) ([]fleet.Ruling, error) { return one.rules, one.err }})
		if price := read(t, f).Service("Price"); price.Note != one.want || price.State != fleet.Degraded {
			t.Errorf("with the rules %v, %v, it is %s: %q", one.rules, one.err, price.State, price.Note)
		}
		f.Close()
	}
}

// One question without an answer says nothing. The second one in a row does, with the address.
func TestOneMissedPollChangesNothing(t *testing.T) {
	var mute atomic.Bool
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if mute.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return next(ctx, call)
		}
	}}})
	echo(s, "Shop.Buy")
	addr := listen(t, s)
	f := fleet.New(services{"Shop": {{Addr: addr}}}, &fleet.Options{Timeout: 200 * time.Millisecond})
	defer f.Close()
	for i, want := range []fleet.State{fleet.Idle, fleet.Idle, fleet.Down, fleet.Idle} {
		mute.Store(i == 1 || i == 2)
		shop := read(t, f).Service("Shop")
		if shop.State != want {
			t.Errorf("read %d: it is %s (%s), want %s", i+1, shop.State, shop.Note, want)
		}
		if want == fleet.Down && !strings.Contains(shop.Note, addr) {
			t.Errorf("the note %q does not name %s", shop.Note, addr)
		}
	}
}
