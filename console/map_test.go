// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// A street is a fleet in which the processes a1 and a2 of Shop call Bank, and a1 calls Mail. Which
// service is the first differs from one reading to the next.
type street struct {
	client *yodel.Client
	reads  int
}

func (s *street) Client(string) *yodel.Client { return s.client }
func (s *street) Close()                      { s.client.Close() }

func (s *street) Read(context.Context, ...string) (*fleet.View, error) {
	v := &fleet.View{At: time.Now(), Span: time.Second}
	add := func(name string, processes []string, callers ...string) {
		of := &fleet.Service{Name: name, State: fleet.Healthy, Up: len(processes), Traffic: portraitTraffic(10, 1)}
		for i, process := range processes {
			in := &fleet.Instance{Instance: discovery.Instance{Addr: fmt.Sprintf("10.0.%d.%d:1", len(v.Services), i)}, Service: name, State: fleet.Up}
			in.Live = &introspect.Live{Now: v.At, Step: time.Second, Name: process}
			in.Weight = 1 + 2*i
			in.Info = &introspect.Info{}
			of.Instances = append(of.Instances, in)
		}
		for _, caller := range callers {
			of.Callers = append(of.Callers, fleet.Caller{Name: caller, Traffic: portraitTraffic(5, 1)})
		}
		v.Services = append(v.Services, of)
	}
	add("Shop", []string{"a1", "a2"}, "web")
	add("Bank", []string{"bank"}, "a1", "a2")
	add("Mail", []string{"mail", "mail2"}, "a1")
	for i := range 5 {
		name := fmt.Sprintf("Mail.Send%d", i)
		v.Services[2].Methods = append(v.Services[2].Methods, fleet.Method{Method: introspect.Method{Name: name}})
		// Shop calls a method of Depot0 that always fails as often as one that never does.
		for _, method := range []string{fmt.Sprintf("Depot%d.Get", i), "Depot0.Put"}[:2-min(i, 1)] {
			one := introspect.Series{Side: "client", Method: method, Calls: []uint64{10, 0}, P50: make([]time.Duration, 2), P90: make([]time.Duration, 2), P99: make([]time.Duration, 2)}
			if method == "Depot0.Put" {
				one.Errors = map[string][]uint64{"internal": {10, 0}}
			}
			v.Services[0].Instances[0].Live.Series = append(v.Services[0].Instances[0].Live.Series, one)
		}
	}
	s.reads++
	for range s.reads % 3 {
		v.Services = append(v.Services[1:], v.Services[0])
	}
	return v, nil
}

func newStreet(t *testing.T) *Console {
	t.Helper()
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	c.fleet.open = func(time.Duration) reader { return &street{client: yodel.NewClient(discovery.Static(), nil)} }
	return c
}

// The nodes of the map have the same order whichever service is the worst, and each edge has the
// names that its clients have sent.
func TestMapHasAnOrderAndCallers(t *testing.T) {
	c := newStreet(t)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Viewer})
	worst := make(map[string]bool)
	eventually(t, "two services were the worst", func() bool {
		status, _, body := request{path: "/api/graph", header: as}.send(t, base)
		var g struct {
			Nodes []node
			Edges []edge
			Worst string
		}
		must(t, json.Unmarshal([]byte(body), &g))
		var all []string
		for i := range g.Nodes {
			all = append(all, g.Nodes[i].ID)
		}
		for i := range g.Edges {
			all = append(all, fmt.Sprint(g.Edges[i].From, " > ", g.Edges[i].To, g.Edges[i].Callers))
		}
		const want = "Bank Mail Shop → web Shop > Bank[a1 a2] Shop > Mail[a1] → web > Shop[web]"
		if got := strings.Join(all, " "); status != http.StatusOK || got != want {
			t.Fatalf("the map has %d %s, want %s", status, got, want)
		}
		worst[g.Worst] = true
		return len(worst) > 1
	})
}

// The map is used without a mouse. Its links keep the time range.
func TestBrowserGoesThroughTheMapByKeyboard(t *testing.T) {
	b := newBrowser(t)
	c := newStreet(t)
	base := serveConsole(t, c)
	b.enter(c, base, "3")
	b.open(base+"/topology?focus=Shop&range=1h&hops=2", "Bank")
	for to, want := range map[string]string{"Mail": "peer=a1", "Bank": "no peer"} {
		b.until(fmt.Sprintf("!!document.querySelector('.edge[aria-label^=\"Shop → %s\"]')", to))
		b.tabTo(fmt.Sprintf(".edge[aria-label^='Shop → %s']", to))
		b.press(map[string]string{"Mail": "Enter", "Bank": " "}[to])
		b.until(fmt.Sprintf("document.querySelector('aside h2')?.innerText === 'Shop → %s'", to))
		links := b.value("[...document.querySelectorAll('aside a')].map(e => e.search).join(' ')")
		if got := strings.Contains(links, "peer="); got != (want != "no peer") || got && !strings.Contains(links, want) || !strings.Contains(links, "range=1h") {
			t.Errorf("the edge to %s has the links %s, want %s", to, links, want)
		}
		if strings.Contains(links, "new=limit") != (want != "no peer") {
			t.Errorf("the edge to %s limits %s", to, links)
		}
	}
	b.tabTo(".box[aria-label=Bank]")
	b.press("Enter")
	b.until("location.search.includes('focus=Bank')")
	b.press("g", "s")
	b.until("location.pathname.endsWith('/services') && location.search === '?range=1h'")
	// The focused row stays under the user, and Enter opens it.
	b.waitFor("Mail")
	b.press("j", "j")
	focused := b.value("document.activeElement.innerText.split('\\t')[0]")
	b.eval("new Promise(done => { let n = 3; new MutationObserver((_, o) => --n || (o.disconnect(), done())).observe(document.querySelector('.pulse'), { childList: true, subtree: true, characterData: true }) })")
	if got := b.value("document.activeElement.innerText.split('\\t')[0]"); got != focused {
		t.Errorf("the focus has gone from %s to %s", focused, got)
	}
	b.press("Enter")
	b.until(fmt.Sprintf("location.pathname.endsWith('/services/%s')", focused))
	b.press("?")
	b.waitFor("next and previous row")
	b.until("document.activeElement.closest('.help') !== null")
	b.press("Escape")
	b.until("!document.querySelector('.help')")
	b.check("keyboard")
}

// The map that is opened without a service finds the first one by itself.
func TestBrowserMapOfAnEmptyFleet(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil)}
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "No service is registered yet")
	for _, path := range []string{"/topology?whole=1", "/topology?range=1h&hops=2&find=x"} {
		b.open(base+path, "No service is registered yet")
	}
	must(t, s.registry.Announce(t.Context(), "Late", discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	b.waitFor("No service has calls in this time")
	if got := b.value("location.search"); got != "?range=1h&hops=2&find=x" {
		t.Errorf("the address has %s", got)
	}
	b.check("map")
}

// The button of an entry of the audit log takes that entry back, also if newer ones come above it.
func TestBrowserKeepsTheFocusedEntry(t *testing.T) {
	b, _, c, base := newBrowserOf(t, nil)
	as := login(t, c, base, User{"ann", Operator})
	put := func(id string) {
		status, _, body := request{method: "POST", path: "/api/rules/put", body: fmt.Sprintf(`{"service":"Stock","id":%q,"reason":"x","limit":{"perSecond":5000}}`, id), header: as}.send(t, base)
		if status != http.StatusOK {
			t.Fatal(body)
		}
	}
	put("first")
	b.open(base+"/audit", "Stock first")
	b.eval("document.querySelector('[data-revert]').focus()")
	put("second")
	b.waitFor("Stock second")
	b.press("Enter")
	b.waitFor("Take back")
	if got := b.value("document.querySelector('form.panel h2').innerText"); !strings.Contains(got, "Stock first") {
		t.Errorf("the form says %s", got)
	}
}

// The page of a service adds the methods of a callee up, counts the callees that it leaves out, and
// compares the share of an instance with the one that its weight asks for.
func TestBrowserAddsCalleesUp(t *testing.T) {
	b := newBrowser(t)
	c := newStreet(t)
	base := serveConsole(t, c)
	b.enter(c, base, "Shop")
	b.open(base+"/services/Shop", "+ 1")
	b.waitFor("50.0 % · 20/s")
	b.check("callees")
	b.open(base+"/services/Mail?tab=instances", "10.0.2.1:1")
	if got := b.value("[...document.querySelectorAll('.share')].map(e => e.title).join()"); got != "25.0 %,75.0 %" {
		t.Errorf("the expected shares are %s", got)
	}
	b.check("shares")
}

// The checks have the same order at each reading.
func TestChecksHaveAnOrder(t *testing.T) {
	c := newStreet(t)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Viewer})
	for range 20 {
		_, _, body := request{path: "/api/checks", header: as}.send(t, base)
		var found struct{ Findings []finding }
		must(t, json.Unmarshal([]byte(body), &found))
		var lacks []string
		for _, f := range found.Findings {
			if f.Kind == "lacks" {
				lacks = append(lacks, f.Args[0])
			}
		}
		if got := strings.Join(lacks, " "); got != "Mail.Send0 Mail.Send1 Mail.Send2 Mail.Send3 Mail.Send4" {
			t.Fatalf("the checks say that %s are missing", got)
		}
	}
}

// A chart ends with the last step that has ended, at the time when that ended.
func TestChartEndsWithAStep(t *testing.T) {
	now := time.Date(2026, 11, 23, 15, 59, 59, 0, time.UTC)
	for step, want := range map[time.Duration]string{time.Second: "15:59:59", time.Minute: "15:59:00", time.Hour: "15:00:00"} {
		if got := chartOf([]*introspect.Live{{Now: now, Step: step}}, nil).End.Format(time.TimeOnly); got != want {
			t.Errorf("the chart in steps of %s ends at %s, want %s", step, got, want)
		}
	}
}
