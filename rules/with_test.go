// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// An order is the request and the reply of Shop.Buy. By is the version that has executed it.
type order struct {
	By   string        `json:"by,omitempty"`
	Left time.Duration `json:"left,omitempty"` // until the deadline
}

const buy yodel.Method[order, order] = "Shop.Buy"

// A shop is an instance of the service Shop.
type shop struct {
	addr  string
	calls atomic.Int64
	fail  atomic.Bool
	hang  atomic.Bool
}

// open starts a shop that r announces, until the test ends.
func openShop(t *testing.T, r discovery.Registrar, in discovery.Instance) *shop {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}, Instance: in, AnnounceEvery: time.Second, Diagnostics: true})
	one := &shop{}
	buy.Handle(s, func(ctx context.Context, _ *order) (*order, error) {
		one.calls.Add(1)
		if one.hang.Load() {
			<-ctx.Done()
		}
		if one.fail.Load() {
			return nil, yodel.Errorf(yodel.Unavailable, "broken")
		}
		out := &order{By: in.Version}
		if deadline, ok := ctx.Deadline(); ok {
			out.Left = time.Until(deadline)
		}
		return out, nil
	})
	one.addr = serve(t, s)
	return one
}

// serve serves until the test ends, and returns the address.
func serve(t *testing.T, s *yodel.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l.Addr().String()
}

// within fails the test if the condition is not true within two seconds: the time in which a rule
// has to act.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await(t, 2*time.Second, what, condition)
}

// await waits until condition holds, which has to be so within limit.
func await(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// A mall has two shops of different versions and a client.
type mall struct {
	t      *testing.T
	v1, v2 *shop
	book   *rules.Book
	rules  *rules.Rules
	client *yodel.Client
}

func newMall(t *testing.T, o *yodel.ClientOptions) *mall {
	t.Helper()
	registry := memory.New(nil)
	m := &mall{t: t, book: open(t, registry)}
	m.rules = rules.With(registry, nil)
	m.v1 = openShop(t, m.rules, discovery.Instance{Version: "v1", Group: "blue", Zone: "east"})
	m.v2 = openShop(t, m.rules, discovery.Instance{Version: "v2", Tags: []string{"gray"}, Group: "red,green", Zone: "west"})
	if o == nil {
		o = &yodel.ClientOptions{}
	}
	o.Name = "web"
	m.client = yodel.NewClient(m.rules.Service("Shop"), o)
	t.Cleanup(m.client.Close)
	seen := make(map[string]bool)
	within(t, "both versions get calls", func() bool {
		if out, err := m.call(&yodel.Call{}); err == nil {
			seen[out.By] = true
		}
		return len(seen) == 2
	})
	return m
}

// share makes n calls and returns the share that v2 has executed.
func (m *mall) share(n int) float64 {
	m.t.Helper()
	at := 0
	for range n {
		out, err := buy.Call(m.t.Context(), m.client, &order{})
		if err != nil {
			m.t.Fatal(err)
		}
		if out.By == "v2" {
			at++
		}
	}
	return float64(at) / float64(n)
}

func (m *mall) put(r rules.Rule) rules.Rule {
	m.t.Helper()
	r.Service, r.Author, r.Reason = "Shop", "ann", "a test"
	return put(m.t, m.book, r)
}

func (m *mall) remove(r rules.Rule) {
	m.t.Helper()
	if err := m.book.Remove(m.t.Context(), "Shop", r.ID, 0, "ann", "done"); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mall) call(o *yodel.Call) (*order, error) {
	out := &order{}
	o.Method, o.Args, o.Reply = string(buy), &order{}, out
	return out, m.client.Do(m.t.Context(), o)
}

// failsWith reports whether a call fails with the ID.
func (m *mall) failsWith(id string) bool {
	_, err := m.call(&yodel.Call{})
	e, ok := errors.AsType[*yodel.Error](err)
	return ok && e.ID == id
}

func (m *mall) works() bool {
	_, err := m.call(&yodel.Call{})
	return err == nil
}

// work reports whether n calls succeed.
func (m *mall) work(n int) bool {
	for range n {
		if !m.works() {
			return false
		}
	}
	return true
}

func TestRulesMoveCalls(t *testing.T) {
	m := newMall(t, nil)
	v2 := rules.Target{Version: "v2"}
	for _, step := range []struct {
		what       string
		rule       rules.Rule
		least, top float64
	}{
		{"canary", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}, 0.02, 0.2},
		{"all to the canary", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 100}}, 1, 1},
		{"route by tag", rules.Rule{Caller: "w*b", Route: &rules.Route{To: rules.Target{Tag: "gray"}, Strict: true}}, 1, 1},
		{"a route of another caller", rules.Rule{Caller: "batch", Route: &rules.Route{To: v2}}, 0.3, 0.7},
		{"a route of another method", rules.Rule{Method: "Sell", Route: &rules.Route{To: v2}}, 0.3, 0.7},
		{"disable an instance", rules.Rule{Disable: &rules.Disable{To: &rules.Target{Addr: m.v2.addr}}}, 0, 0},
		{"weight", rules.Rule{Weight: &rules.Weight{To: v2, Percent: 25}}, 0.1, 0.3},
		{"no weight", rules.Rule{Weight: &rules.Weight{To: v2}}, 0, 0},
		{"weight of a group", rules.Rule{Weight: &rules.Weight{To: rules.Target{Group: "green"}, Percent: 25}}, 0.1, 0.3},
		{"weight of a zone", rules.Rule{Weight: &rules.Weight{To: rules.Target{Zone: "west"}, Percent: 25}}, 0.1, 0.3},
		{"a zone and another group", rules.Rule{Weight: &rules.Weight{To: rules.Target{Zone: "west", Group: "blue"}}}, 0.3, 0.7},
		{"a target that does not exist", rules.Rule{Route: &rules.Route{To: rules.Target{Version: "v3"}}}, 0.3, 0.7},
	} {
		r := m.put(step.rule)
		within(t, step.what, func() bool { s := m.share(200); return s >= step.least && s <= step.top })
		m.remove(r)
		within(t, "the end of "+step.what, func() bool { s := m.share(100); return s > 0.35 && s < 0.65 })
	}
}

func TestRoutesSelectCalls(t *testing.T) {
	m := newMall(t, nil)
	m.put(rules.Rule{Header: map[string]string{"beta": "1*"}, Route: &rules.Route{To: rules.Target{Version: "v2"}}})
	m.put(rules.Rule{Tenant: "acme", Route: &rules.Route{To: rules.Target{Version: "v1"}}})
	all := func(want string, call func() *yodel.Call) func() bool {
		return func() bool {
			for range 50 {
				if out, err := m.call(call()); err != nil || out.By != want {
					return false
				}
			}
			return true
		}
	}
	within(t, "route by header", all("v2", func() *yodel.Call { return &yodel.Call{Metadata: yodel.Metadata{"beta": "12"}} }))
	within(t, "route by tenant", all("v1", func() *yodel.Call { return &yodel.Call{Tenant: "acme"} }))
	if s := m.share(100); s < 0.3 || s > 0.7 {
		t.Errorf("v2 gets %v of the other calls", s)
	}
	m.put(rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 50, By: "tenant"}})
	within(t, "a canary by tenant", func() bool {
		versions := make(map[string]int)
		for i := range 40 {
			tenant := string(rune('a' + i%20))
			out, err := m.call(&yodel.Call{Tenant: tenant})
			if err != nil {
				t.Fatal(err)
			}
			versions[tenant+out.By]++
		}
		return len(versions) == 20 // each tenant goes to one version
	})
}

func TestRulesGovernCalls(t *testing.T) {
	m := newMall(t, &yodel.ClientOptions{Timeout: 5 * time.Second})
	for _, step := range []struct {
		what string
		rule rules.Rule
		id   string // of the error of a call
	}{
		{"disable a method", rules.Rule{Method: "Buy", Disable: &rules.Disable{}}, "YDL3601"},
		{"disable on the server", rules.Rule{Method: "Shop.B*", Side: "server", Disable: &rules.Disable{}}, "YDL3601"},
		{"allow one caller", rules.Rule{Side: "server", Disable: &rules.Disable{Except: []string{"batch"}}}, "YDL3601"},
		{"a rate", rules.Rule{Limit: &rules.Limit{PerSecond: 0.1, By: "caller"}}, "YDL3301"},
		{"a rate in the client", rules.Rule{Side: "client", Limit: &rules.Limit{PerSecond: 0.1}}, "YDL3301"},
		{"a fault", rules.Rule{Fault: &rules.Fault{Code: "internal"}}, "YDL3511"},
		{"a fault on the server", rules.Rule{Side: "server", Fault: &rules.Fault{Code: "internal"}}, "YDL3511"},
		{"a mock with an error", rules.Rule{Mock: &rules.Answer{Code: "not_found"}}, "YDL3602"},
		{"a mock with an error on the server", rules.Rule{Side: "server", Mock: &rules.Answer{Code: "not_found"}}, "YDL3602"},
	} {
		r := m.put(step.rule)
		within(t, step.what, func() bool { return m.failsWith(step.id) })
		m.remove(r)
		within(t, "the end of "+step.what, func() bool { return m.work(4) })
	}
	reply := json.RawMessage(`{"by":"mock"}`)
	for _, side := range []string{"client", "server"} {
		mock := m.put(rules.Rule{Side: side, Mock: &rules.Answer{Reply: reply}})
		within(t, "a mock on the "+side, func() bool { out, err := m.call(&yodel.Call{}); return err == nil && out.By == "mock" })
		m.remove(mock)
		within(t, "no mock", func() bool { out, err := m.call(&yodel.Call{}); return err == nil && out.By != "mock" })
	}
	m.put(rules.Rule{Fault: &rules.Fault{Lose: "request"}})
	m.put(rules.Rule{Fallback: &rules.Answer{Reply: reply}})
	within(t, "a fallback", func() bool { out, err := m.call(&yodel.Call{}); return err == nil && out.By == "mock" })
}

// A limit of calls at a time counts a stream until it ends, on either side.
func TestALimitRuleCountsStreams(t *testing.T) {
	const watch yodel.Feed[order, order] = "Feeds.Watch"
	for _, side := range []string{"server", "client"} {
		registry := memory.New(nil)
		follow := rules.With(registry, nil)
		s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{follow}})
		watch.Handle(s, func(ctx context.Context, in *order, send yodel.Send[order]) error {
			if err := send(in); err != nil || in.By == "short" {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		serve(t, s)
		client := yodel.NewClient(follow.Service("Feeds"), nil)
		defer client.Close()
		short := func() (err error) {
			for _, err = range watch.Call(t.Context(), client, &order{By: "short"}) {
				if err != nil {
					break
				}
			}
			return err
		}
		within(t, "a stream is served", func() bool { return short() == nil })
		put(t, open(t, registry), rules.Rule{
			Service: "Feeds", Author: "ann", Reason: "a test", Side: side, Limit: &rules.Limit{Concurrent: 1, Queue: -1},
		})
		within(t, "a second stream on the "+side+" is refused", func() (refused bool) {
			for _, err := range watch.Call(t.Context(), client, &order{By: "long"}) { // before or after the rule is known
				if err == nil {
					e, ok := errors.AsType[*yodel.Error](short())
					refused = ok && e.ID == "YDL3201" && e.NotProcessed
				}
				break
			}
			return refused
		})
		within(t, "a stream is served again", func() bool { return short() == nil })
	}
}

func TestTimeoutAndRetryRules(t *testing.T) {
	m := newMall(t, &yodel.ClientOptions{Timeout: 10 * time.Second, Idempotent: []string{string(buy)}})
	left := func() time.Duration {
		out, err := m.call(&yodel.Call{})
		if err != nil {
			t.Fatal(err)
		}
		return out.Left
	}
	if l := left(); l < time.Second || l > 10*time.Second {
		t.Errorf("without a rule, %v are left", l)
	}
	if out, err := m.call(&yodel.Call{Deadline: time.Now().Add(time.Hour)}); err != nil || out.Left < 50*time.Minute {
		t.Errorf("a call with a deadline in an hour: %+v, %v", out, err)
	}
	m.put(rules.Rule{ID: "t", Timeout: &rules.Timeout{After: rules.Duration(time.Minute)}})
	within(t, "a longer timeout", func() bool { return left() > 50*time.Second })
	m.put(rules.Rule{ID: "t", Timeout: &rules.Timeout{After: rules.Duration(900 * time.Millisecond)}})
	within(t, "a shorter timeout", func() bool { return left() < time.Second })
	m.v2.fail.Store(true)
	within(t, "a call fails", func() bool { return !m.works() })
	m.put(rules.Rule{Retry: &rules.Retry{Times: 3, Backoff: rules.Duration(time.Millisecond)}})
	within(t, "retries", func() bool { return m.work(5) })
}

func TestAHedgeRule(t *testing.T) {
	m := newMall(t, &yodel.ClientOptions{Idempotent: []string{string(buy)}})
	m.put(rules.Rule{Hedge: &rules.Hedge{After: rules.Duration(5 * time.Millisecond)}})
	m.v1.hang.Store(true)
	within(t, "calls that hang at v1 are answered by v2", func() bool {
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			out, err := buy.Call(ctx, m.client, &order{})
			cancel()
			if err != nil || out.By != "v2" {
				return false
			}
		}
		return true
	})
}

func TestABreakerRule(t *testing.T) {
	m := newMall(t, nil)
	m.v2.fail.Store(true)
	r := m.put(rules.Rule{Breaker: &rules.Breaker{Errors: 3, Open: rules.Duration(time.Hour)}})
	within(t, "the breaker opens", func() bool { return m.work(20) })
	m.v2.fail.Store(false)
	m.remove(r)
	within(t, "the endpoint is ready without the breaker", func() bool { return m.share(50) > 0.3 })
}

func TestRecordsNameRules(t *testing.T) {
	m := newMall(t, nil)
	r := m.put(rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 100}})
	within(t, "the record names the rule", func() bool {
		call := &yodel.Call{Explain: true}
		if _, err := m.call(call); err != nil {
			t.Fatal(err)
		}
		text := call.Report().String()
		return strings.Contains(text, "rule "+r.ID+": send 100 % of the calls of Shop to version v2") && strings.Contains(text, "left out by rule "+r.ID)
	})
	var all introspect.Rules
	if err := m.client.Call(t.Context(), "yodel.Rules", &struct{}{}, &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Rules) != 1 || all.Rules[0].ID != r.ID || all.Rules[0].Hits == 0 || all.Rules[0].State != "active" || all.Name != "web" {
		t.Errorf("yodel.Rules returns %+v", all)
	}
}

func TestInvalidRecordsKeepTheLastRule(t *testing.T) {
	m := newMall(t, nil)
	r := m.put(rules.Rule{ID: "c", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 100}})
	within(t, "canary", func() bool { return m.share(20) == 1 })
	for _, broken := range []string{"", "{", `{"schema":9,"id":"c","service":"Shop"}`, `{"schema":1,"id":"x","service":"Shop","canary":{"to":{"tag":"a"},"percent":1},"author":"","reason":""}`} {
		if err := m.rules.Keep(t.Context(), "Shop", "rules", "c", []byte(broken)); err != nil {
			t.Fatal(err)
		}
		within(t, "the record is refused", func() bool {
			all := m.rules.Rules().Rules
			return len(all) == 1 && all[0].State == "invalid" && strings.Contains(all[0].Problem, "YDL-R00") && all[0].Revision == r.Revision
		})
		if s := m.share(50); s != 1 {
			t.Errorf("with the record %q, v2 gets %v of the calls", broken, s)
		}
	}
}

func TestSwitches(t *testing.T) {
	m := newMall(t, nil)
	if m.rules.Switch("Shop", "new", false) {
		t.Error("the switch is on")
	}
	r := m.put(rules.Rule{Switch: &rules.Switch{Name: "new", On: true}})
	within(t, "the switch is on", func() bool { return m.rules.Switch("Shop", "new", false) })
	m.remove(r)
	within(t, "the switch is off", func() bool { return !m.rules.Switch("Shop", "new", false) })
}

func TestARuleIsRolledBack(t *testing.T) {
	m := newMall(t, nil)
	m.v2.fail.Store(true)
	r := m.put(rules.Rule{
		Canary:   &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 50},
		Rollback: &rules.Rollback{Below: 90, For: rules.Duration(time.Second)},
	})
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		m.works()
		history, err := m.book.History(t.Context(), "Shop")
		if err != nil {
			t.Fatal(err)
		}
		if history[0].What != "auto-rollback" {
			continue
		}
		if c := history[0]; c.Author != "auto-rollback" || !strings.HasPrefix(c.Reason, "0 % of ") || !c.After.Off || c.Rule != r.ID {
			t.Errorf("the history has %+v", c)
		}
		return
	}
	t.Error("the rule was not rolled back")
}

// A rule that has not changed keeps its state when another rule changes.
func TestUnchangedRulesKeepTheirState(t *testing.T) {
	m := newMall(t, nil)
	r := m.put(rules.Rule{Side: "client", Limit: &rules.Limit{PerSecond: 0.001, Burst: 3}})
	within(t, "the rule acts", func() bool { return m.failsWith("YDL3301") })
	for i := range 5 {
		other := m.put(rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Duration(i+1) * time.Second)}})
		within(t, "the other rule acts", func() bool { m.works(); return stateOf(m.rules, other.ID).Hits > 0 })
		if !m.failsWith("YDL3301") {
			t.Fatal("the limit began anew")
		}
		m.remove(other)
	}
	if hits := stateOf(m.rules, r.ID).Hits; hits < 8 {
		t.Errorf("the rule has %d hits", hits)
	}
}
