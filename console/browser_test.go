// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	yodelhttp "github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// A screen is a page, and what it shows with data.
type screen struct{ name, path, want string }

func screensOf(s *shop) []screen {
	stock := s.addrs["Stock"]
	return []screen{
		{"overview", "/", "services"},
		{"services", "/services", "Stock"},
		{"service", "/services/Stock", "Calls per second"},
		{"service-methods", "/services/Stock?tab=methods", "Stock.Reserve"},
		{"service-instances", "/services/Stock?tab=instances", stock[0]},
		{"service-callers", "/services/Stock?tab=callers", "orders"},
		{"service-rules", "/services/Stock?tab=rules", "No rules"},
		{"service-schema", "/services/Stock?tab=schema", "Stock.Reserve"},
		{"service-samples", "/services/Stock?tab=samples", "unavailable"},
		{"instance", "/services/Stock/" + stock[0], "Goroutines"},
		{"samples", "/samples?service=Stock", "the shelf of tea is empty"},
		{"topology", "/topology?focus=Stock&hops=2", "Orders"},
		{"topology-whole", "/topology?whole=1", "Mail"},
		{"rules", "/rules", "No rules"},
		{"rule-form", "/rules?new=canary&service=Stock", "An estimate"},
		{"live", "/live?service=Stock", "Stock.Reserve"},
		{"call", "/call?service=Stock&method=Stock.Reserve", "item"},
		{"registry", "/registry", stock[0]},
		{"audit", "/audit", "login"},
		{"checks", "/checks", "YDL1003"},
	}
}

// enter logs a browser in, by the link that a program prints.
func (b *browser) enter(c *Console, base, want string) {
	b.t.Helper()
	b.open(base+c.LoginLink(User{"ann", Admin}), want)
	if at := b.eval("location.hash + location.search"); at != `""` {
		b.t.Errorf("after the login the address has %s", at)
	}
}

func TestBrowserShowsEveryScreen(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Stock")
	b.open(base+"/samples?service=Stock", "the shelf of tea is empty") // the shop has had failures
	for _, screen := range screensOf(s) {
		b.open(base+screen.path, screen.want)
		b.check(screen.name)
		b.shoot(screen.name)
	}
	for _, language := range []string{"zh", "en"} {
		for _, theme := range []string{"dark", "light"} {
			b.eval(fmt.Sprintf("localStorage.setItem('yodel-language', %q), localStorage.setItem('yodel-theme', %q)", language, theme))
			for _, screen := range screensOf(s)[:3] {
				want := map[string]string{"zh": "总览", "en": "Overview"}[language]
				b.open(base+screen.path, want)
				b.waitFor("Stock")
				b.check(screen.name + " " + language + " " + theme)
				b.shoot(screen.name + "-" + language + "-" + theme)
			}
		}
	}
}

func TestBrowserWithoutServices(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil)}
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.open(base+"/", "You are not logged in")
	b.mu.Lock()
	b.faults = nil // the status 401
	b.mu.Unlock()
	b.enter(c, base, "No service is registered yet")
	for path, want := range map[string]string{
		"/": "yodel dev --demo", "/services": "No service is registered yet", "/topology": "No service is registered yet", "/live": "No service is registered yet", "/samples": "No records of this kind",
		"/rules": "No rules", "/call": "No service is registered yet", "/registry": "The registry has no instances", "/audit": "login", "/checks": "All checks passed",
	} {
		b.open(base+path, want)
		b.check(path)
		b.shoot("empty" + strings.ReplaceAll(path, "/", "-"))
	}
	// The page finds the first service by itself.
	b.open(base+"/", "No service is registered yet")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	must(t, s.registry.Announce(ctx, "Late", discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	b.waitFor("Late")
}

func TestBrowserShowsFailures(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	// An instance that does not listen, and a service without live data.
	must(t, s.registry.Announce(t.Context(), "Gone", discovery.Instance{Addr: "127.0.0.1:1", Version: "v1"}, 0))
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "need attention")
	b.waitFor("Gone")
	b.check("overview")
	b.shoot("failures")
	for path, want := range map[string]string{
		"/services?show=unhealthy": "instances cannot be reached", "/services/Gone": "instances cannot be reached", "/services/Gone/127.0.0.1:1": "unreachable", "/samples?service=Gone": "share no live data",
		"/topology?focus=Gone": "Gone has no calls in this time", "/registry": "127.0.0.1:1", "/checks": "instances cannot be reached",
		"/call?service=Gone": "No methods are known",
	} {
		if path == "/services/Gone/127.0.0.1:1" {
			want = "down"
		}
		b.open(base+path, want)
		b.check(path)
		b.shoot("failures" + strings.NewReplacer("/", "-", "?", "-", ":", "-").Replace(path))
	}
	for path, status := range map[string]string{"/services/Nowhere": "has no service", "/services/Stock/127.0.0.1:2": "has no instance"} {
		b.open(base+path, status)
		b.mu.Lock()
		b.faults = nil // the status 404
		b.mu.Unlock()
	}
	// A call that fails says so.
	b.open(base+"/call?service=Stock&method=Stock.Reserve&mode=json", "Arguments")
	b.tabTo("form textarea")
	b.eval("document.activeElement.select()")
	b.write(`{"count":"x"}`)
	b.tabTo("button[type=submit]")
	b.press("Enter")
	b.waitFor("invalid_argument")
	b.check("call")
	b.shoot("failures-call")
}

// A fleet of 500 services with 10 instances each: the first paint takes less than a second, and a
// map of 300 nodes less than half a second. Timings are judged without the race detector.
func TestBrowserWithALargeFleet(t *testing.T) {
	if raceEnabled {
		t.Skip("it judges time, which make test-timing does")
	}
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	c.fleet.open = func(time.Duration) reader { return newCrowd(500, 10) }
	base := serveConsole(t, c)
	b.enter(c, base, "of 500 services need attention")
	for path, want := range map[string]string{
		"/": "of 500 services need attention", "/services": "Service000", "/services/team00.Service000": "Calls per second", "/services/team00.Service000?tab=instances": "10.0.0.10:9001",
		"/topology?whole=1": "Service499", "/topology?focus=team00.Service000": "Service000", "/registry": "10.0.0.1:9001", "/checks": "cannot be reached", "/call": "Service499"[:7], "/samples": "No records",
	} {
		b.open(base+path, want)
		b.check(path)
		b.shoot("large" + strings.NewReplacer("/", "-", "?", "-", ":", "-").Replace(path))
	}
	paint, headline := math.Inf(1), math.Inf(1) // the best of three, because others use the machine
	for range 3 {
		b.open(base+"/", "of 500 services need attention")
		paint = min(paint, b.timing("performance.getEntriesByType('paint').find(p => p.name === 'first-contentful-paint').startTime"))
		headline = min(headline, b.timing("performance.getEntriesByName('headline')[0].startTime"))
	}
	t.Logf("first paint after %.0f ms, headline after %.0f ms", paint, headline)
	if paint > 1000 || headline > 1000 {
		t.Errorf("first paint after %.0f ms and headline after %.0f ms, want less than 1 s", paint, headline)
	}

	few := newConsole(t, &shop{registry: memory.New(nil)}, &Options{Tokens: map[string]User{}})
	few.fleet.open = func(time.Duration) reader { return newCrowd(300, 2) }
	base = serveConsole(t, few)
	b.enter(few, base, "of 300 services")
	b.open(base+"/topology?whole=1", "Service299")
	b.waitFor("Whole map")
	took := b.timing("performance.getEntriesByName('map')[0].duration")
	nodes := b.timing("document.querySelectorAll('.map .box').length")
	t.Logf("a map of %.0f nodes after %.0f ms", nodes, took)
	if nodes < 300 || took > 500 {
		t.Errorf("a map of %.0f nodes took %.0f ms, want 300 nodes in less than 500 ms", nodes, took)
	}
	b.check("map")
	b.shoot("large-map")
}

// timing returns a number of the page. It waits until the expression has one: the page notes the
// time of a paint a moment after it.
func (b *browser) timing(expression string) float64 {
	b.t.Helper()
	var n float64
	must(b.t, json.Unmarshal([]byte(b.eval(fmt.Sprintf(`(async () => {
		for (let i = 0; i < 500; i++) {
			try { return %s } catch { await new Promise(r => setTimeout(r, 20)) }
		}
	})()`, expression))), &n))
	return n
}

// A user without a mouse makes a rule, sees what it would do, applies it, watches the traffic of
// five processes move, and rolls it back.
func TestBrowserChangesRulesByKeyboard(t *testing.T) {
	b := newBrowser(t)
	s := newShopOfProcesses(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Stock")
	b.press("/")
	b.write("Stock")
	b.waitFor("Stock.Reserve")
	b.press("Enter")
	b.waitFor("Calls per second")

	b.press("g", "r")
	b.waitFor("No rules")
	b.press("n") // the first kind of rule
	b.tabTo(`.intents a[href*="new=canary"]`)
	b.press("Enter")
	b.waitFor("Only for these calls")
	b.tabTo("select[name=service]")
	b.write("S") // Stock
	b.tabTo(`input[name="to.version"]`)
	b.write("v2")
	b.tabTo("input[name=percent]")
	b.eval("document.activeElement.select()")
	b.write("100")
	b.waitFor("version v2")
	eventually(t, "the preview has the instances", func() bool { return b.timing("document.querySelectorAll('[data-preview] tbody tr').length") == 3 })
	b.shoot("rule-preview")
	b.check("preview")
	b.tabTo("input[name=reason]")
	b.write("try v2")
	b.tabTo("form.rule button[type=submit]")
	b.press("Enter")
	b.waitFor("History")
	b.waitFor("try v2")

	share := func(version string) float64 {
		view, err := c.fleet.get(t.Context(), time.Minute)
		must(t, err)
		now, all := 0.0, 0.0
		for _, in := range view.Service("Stock").Instances {
			points := in.Traffic.Points
			if len(points) == 0 {
				continue
			}
			last := points[len(points)-1]
			if all += last; in.Version == version {
				now += last
			}
		}
		return now / max(all, 1)
	}
	eventually(t, "all calls go to v2", func() bool { return share("v2") > 0.95 })
	b.waitFor("applied by")
	eventually(t, "the rule has acted", func() bool { return b.timing("Number(document.querySelector('[data-rate]')?.dataset.rate ?? 0)") > 0 })
	b.shoot("rule-applied")
	b.check("rule applied")

	b.tabTo("button[data-undo]")
	b.press("Enter")
	b.waitFor("Reason for going back")
	b.tabTo("input[name=undoreason]")
	b.write("v2 fails")
	b.press("Enter")
	b.waitFor("rolled back")
	eventually(t, "the calls are spread again", func() bool { return share("v1") > 0.5 })
	b.waitFor("No rules")
	b.shoot("rule-rolled-back")
	b.check("rule rolled back")

	b.press("g", "a")
	b.waitFor("rules rolled back")
	b.waitFor("try v2")
	b.check("audit")
	b.shoot("audit-rules")
	b.press("g", "s")
	b.waitFor("Attention")
	b.press("j", "j", "Enter")
	b.waitFor("Calls per second")
	b.check("service by keyboard")
}

// The console is served by a yodel server, on the port where it also takes calls.
func TestBrowserOnTheServersOwnPort(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	c := newConsole(t, s, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := yodel.NewServer(&yodel.ServerOptions{
		Diagnostics: true, Registrars: []discovery.Registrar{s.registry}, Logger: slog.New(slog.DiscardHandler),
		Protocols: []yodel.Protocol{yodelhttp.New(&yodelhttp.Options{Handler: c})},
	})
	must(t, server.Handle("Desk.Ask", func(q string) (string, error) { return "42", nil }))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		must(t, c.Close())
		stop()
		must(t, <-served)
	})
	base := "http://" + l.Addr().String()
	b.enter(c, base, "Desk")
	b.open(base+"/live?service=Stock", "Watching 3 instances")
	b.waitFor("Stock.Reserve")
	b.check("live")
	b.open(base+"/call?service=Desk&method=Desk.Ask&mode=json", "Arguments")
	b.tabTo("form textarea")
	b.eval("document.activeElement.select()")
	b.write(`["?"]`)
	b.tabTo("button[type=submit]")
	b.press("Enter")
	b.waitFor(`"42"`)
	b.check("call")
}

// flaky is a registry that fails while its error is set.
type flaky struct {
	*registry.Registry

	failing atomic.Bool
}

func (f *flaky) Services(ctx context.Context) ([]string, error) {
	if f.failing.Load() {
		return nil, errors.New("registry 10.0.0.1:2379: connection refused")
	}
	return f.Registry.Services(ctx)
}

// While the registry is down, the pages show the last data and say why they have no newer. A viewer
// sees no form.
func TestBrowserWhileTheRegistryIsDown(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	r := &flaky{Registry: s.registry}
	c, err := New(r, &Options{Logger: slog.New(slog.DiscardHandler), Environment: "PROD"})
	must(t, err)
	base := serveConsole(t, c)
	b.open(base+"/", "You are not logged in")
	b.mu.Lock()
	b.faults = nil // the status 401
	b.mu.Unlock()
	b.open(base+c.LoginLink(User{"vic", Viewer}), "Stock")
	r.failing.Store(true)
	b.waitFor("connection refused")
	b.waitFor("The registry does not answer: 3 services")
	b.check("overview")
	b.shoot("registry-down")
	b.open(base+"/registry", "connection refused")
	b.check("registry")
	b.open(base+"/checks", "connection refused")
	b.check("checks")
	r.failing.Store(false)
	b.open(base+"/call?service=Stock&method=Stock.Reserve", "Your role, or the console, allows no changes.")
	b.check("call of a viewer")
	b.open(base+"/rules", "No rules")
	if n := b.timing("document.querySelectorAll('main form, .intents').length"); n != 0 {
		t.Errorf("a viewer sees %.0f forms of rules", n)
	}
	b.open(base+"/live?service=Stock", "needs the role operator")
	b.check("live of a viewer")
}
