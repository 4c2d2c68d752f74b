// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// A scripted reader returns what the test says.
type scripted struct {
	*crowd
	read func() (*fleet.View, error)
}

func (s *scripted) Read(context.Context, ...string) (*fleet.View, error) { return s.read() }

// newScripted returns a console that reads what the test says. The test closes it.
func newScripted(t *testing.T, read func() (*fleet.View, error)) *Console {
	t.Helper()
	c := newDirect(t, memory.New(nil), Options{})
	c.fleet.open = func(time.Duration) reader { return &scripted{newCrowd(0, 0), read} }
	return c
}

// up returns an instance of Shop that answers, with some methods.
func up(port int, now time.Time, methods ...string) *fleet.Instance {
	in := &fleet.Instance{
		Instance: discovery.Instance{Addr: fmt.Sprintf("10.0.0.1:%d", port)}, Service: "Shop", State: fleet.Up, Info: &introspect.Info{}, Live: &introspect.Live{Now: now},
	}
	for _, m := range methods {
		in.Info.Methods = append(in.Info.Methods, introspect.Method{Name: m})
	}
	return in
}

func TestChecks(t *testing.T) {
	began := time.Now()
	many := make([]string, 50)
	for i := range many {
		many[i] = fmt.Sprintf("Shop.M%02d", i)
	}
	lacking := []*fleet.Instance{up(0, began, many...)}
	for i := range 10 {
		lacking = append(lacking, up(i+1, began))
	}
	for name, one := range map[string]struct {
		instances []*fleet.Instance
		methods   []string
		took      time.Duration
		err       string
		kind      string
		want      []string // "severity args"
	}{
		"a clock that is right, read late": {instances: []*fleet.Instance{up(1, began.Add(9*time.Second))}, took: 10 * time.Second, kind: "skew"},
		"a clock that is late by the duration of the read": {
			instances: []*fleet.Instance{up(1, began.Add(-9*time.Second))}, took: 10 * time.Second, kind: "skew", want: []string{"warn 10.0.0.1:1 9s"},
		},
		"a clock that is early":                                     {instances: []*fleet.Instance{up(1, began.Add(13*time.Second))}, took: 10 * time.Second, kind: "skew", want: []string{"warn 10.0.0.1:1 13s"}},
		"a rule without its service":                                {kind: "orphan", want: []string{"warn r"}},
		"a rule with a service that the registry may have left out": {err: "no quorum", kind: "orphan"},
		"a part of the registry that fails":                         {err: "no quorum", kind: "registry", want: []string{"bad no quorum"}},
		"a method that one lacks": {
			instances: []*fleet.Instance{up(1, began, "Shop.A"), up(2, began)}, methods: []string{"Shop.A"}, kind: "lacks", want: []string{"warn Shop.A 10.0.0.1:2"},
		},
		"a method that many lack": {
			instances: lacking, methods: many[:1], kind: "lacks", want: []string{"warn Shop.M00 10.0.0.1:1, 10.0.0.1:2, 10.0.0.1:3, +7"},
		},
		"many methods that many lack": {instances: lacking, methods: many, kind: "lacks", want: append(func() (all []string) {
			for _, m := range many[:maxLacks-1] {
				all = append(all, "warn "+m+" 10.0.0.1:1, 10.0.0.1:2, 10.0.0.1:3, +7")
			}
			return all
		}(), "warn Shop.M19, +30 …")},
	} {
		c := newScripted(t, func() (*fleet.View, error) { return &fleet.View{}, nil })
		if status, answer := direct(t, c, http.MethodPost, "/api/rules/put", `{"service":"Stock","id":"r","limit":{"perSecond":50},"reason":"test"}`); status != http.StatusOK {
			t.Fatalf("got %d %s", status, answer)
		}
		shop := &fleet.Service{Name: "Shop", State: fleet.Healthy, Instances: one.instances}
		for _, m := range one.methods {
			shop.Methods = append(shop.Methods, fleet.Method{Method: introspect.Method{Name: m}})
		}
		view := &fleet.View{At: began, Err: one.err, Services: []*fleet.Service{shop}}
		c.fleet.last[time.Minute] = &snapshot{View: view, took: one.took, tried: time.Now(), pause: time.Hour}
		_, answer := direct(t, c, http.MethodGet, "/api/checks", "")
		var out struct{ Findings []finding }
		must(t, json.Unmarshal([]byte(answer), &out))
		var got []string
		for _, f := range out.Findings {
			if f.Kind == one.kind {
				got = append(got, f.Severity+" "+strings.Join(f.Args, " "))
			}
		}
		if strings.Join(got, "\n") != strings.Join(one.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(one.want, "\n"))
		}
	}
}

// The overview does not call a fleet healthy while a service is degraded, or while the registry
// fails.
func TestOverviewSaysWhatIsWrong(t *testing.T) {
	failing := &fleet.Service{Name: "Shop", State: fleet.Degraded, Up: 1, Instances: []*fleet.Instance{up(1, time.Now())}}
	failing.Traffic = fleet.Traffic{Known: true, Span: time.Minute, Rate: 0.1, Failed: 0.5, Errors: map[string]float64{"internal": 0.05}}
	failing.Problems = []fleet.Problem{{Kind: "failing", Severity: fleet.Warn, Args: []string{"50 %", "internal"}}}
	for name, one := range map[string]struct {
		view *fleet.View
		want string
	}{
		"a service with few calls that fail":    {&fleet.View{Services: []*fleet.Service{failing}}, "1 of 1 service needs attention."},
		"no service, and a registry that fails": {&fleet.View{Err: "no quorum"}, "Not all is shown: no quorum\nNo service is registered yet."},
		"no service":                            {&fleet.View{}, "No service is registered yet."},
	} {
		c := newScripted(t, func() (*fleet.View, error) { return one.view, nil })
		one.view.At = time.Now()
		if _, answer := direct(t, c, http.MethodGet, "/", ""); !strings.Contains(answer, one.want) {
			t.Errorf("%s: got %s, want %s", name, answer, one.want)
		}
	}
}

// A registry that fails is not asked again by each request.
func TestFailedReadsPause(t *testing.T) {
	reads := 0
	c := newScripted(t, func() (*fleet.View, error) { reads++; return nil, errors.New("no quorum") })
	for range 3 {
		if status, answer := direct(t, c, http.MethodGet, "/api/pulse", ""); status != http.StatusBadGateway || !strings.Contains(answer, "no quorum") {
			t.Errorf("got %d %s", status, answer)
		}
		c.fleet.mu.Lock()
		if last := c.fleet.last[time.Minute]; last.pause < time.Second {
			t.Errorf("the pause is %v", last.pause)
		}
		c.fleet.last[time.Minute].pause = time.Hour
		c.fleet.mu.Unlock()
	}
	if reads != 1 {
		t.Errorf("the registry was read %d times", reads)
	}
}

// Traffic is added up in the same way for the fleet, for versions and in the topology.
func TestTrafficIsAddedUp(t *testing.T) {
	a, b := traffic(10, 0), traffic(30, 30)
	b.P50, b.P90, b.P99 = time.Millisecond, 9*time.Millisecond, 40*time.Millisecond
	a.Points, b.Points = []float64{1, 2}, []float64{5, 6, 7}
	view := &fleet.View{At: time.Now(), Span: time.Second}
	for i, t := range []fleet.Traffic{a, b} {
		s := &fleet.Service{Name: fmt.Sprint("S", i), State: fleet.Healthy, Traffic: t, Callers: []fleet.Caller{{Name: "web", Traffic: t}}}
		view.Services = append(view.Services, s)
		in := up(i, view.At)
		in.Traffic = t
		view.Services[0].Instances = append(view.Services[0].Instances, in)
	}
	calls := introspect.Series{Side: "client", Method: "Stock.Get", Calls: []uint64{10, 0}, Latency: [][]introspect.Bucket{{{UpTo: 1e6, Calls: 5}, {UpTo: 3e6, Calls: 4}, {UpTo: 8e6, Calls: 1}}, {}}}
	live := view.Services[0].Instances[0].Live
	live.Step, live.Series = time.Second, []introspect.Series{calls}
	c := newScripted(t, func() (*fleet.View, error) { return view, nil })
	callees := `"callees":[{"name":"Stock.Get","span":1,"rate":10,"ok":1,"p50":1,"p90":3,"p99":8,"inflight":0,"spark":[10]}]`
	if _, answer := direct(t, c, http.MethodGet, "/api/service?service=S0", ""); !strings.Contains(answer, callees) {
		t.Errorf("got %s, want %s", answer, callees)
	}
	want := `"rate":40,"ok":0.98,"p50":2,"p90":9,"p99":40,"inflight":0,"errors":{"unavailable":0.8},"spark":[5,7,9]`
	for _, path := range []string{"/api/overview", "/api/service?service=S0", "/api/graph"} {
		if _, answer := direct(t, c, http.MethodGet, path, ""); !strings.Contains(answer, want) {
			t.Errorf("%s: got %s, want %s", path, answer, want)
		}
	}
	if a.Errors["unavailable"] != 0.8 || len(view.Services[0].Traffic.Points) != 2 {
		t.Error("the sums have changed their parts")
	}
}

// A counted registry counts how often the records of a service are read.
type counted struct {
	*registry.Registry
	reads atomic.Int32
}

func (c *counted) Kept(ctx context.Context, service, kind string, update func(map[string][]byte)) error {
	c.reads.Add(1)
	return c.Registry.Kept(ctx, service, kind, update)
}

// A page reads the records of each service once: the valid rules and the other records are in one
// reading. A registry may have thousands of services, and a read of each is a watch.
func TestRulesAreReadOncePerPage(t *testing.T) {
	in := &counted{Registry: memory.New(nil)}
	c := newScripted(t, func() (*fleet.View, error) { return &fleet.View{At: time.Now()}, nil })
	book, err := rules.Open(in)
	must(t, err)
	c.book = book
	const services = 3
	for i := range services {
		service := fmt.Sprint("Shop", i)
		_, err := book.Put(t.Context(), rules.Rule{Service: service, ID: "hot", Limit: &rules.Limit{PerSecond: 5}, Author: "ann", Reason: "test"})
		must(t, err)
		must(t, in.Keep(t.Context(), service, "rules", "broken", []byte("{")))
	}
	for _, path := range []string{"/api/rules?service=", "/api/checks"} {
		in.reads.Store(0)
		c.kept.forget()
		if _, answer := direct(t, c, http.MethodGet, path, ""); strings.Count(answer, "broken") != services {
			t.Errorf("%s does not name %d broken records: %s", path, services, answer)
		}
		if n := in.reads.Load(); n != services {
			t.Errorf("%s reads %d times, want once for each of %d services", path, n, services)
		}
	}
}
