// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/console"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// This file compares every number that the command and the console show with the books of a fleet:
// its methods count their own calls.

// An account is what the books say of a service or an instance: how its calls ended.
type account struct{ calls, failed, canceled, limited int64 }

func (a account) String() string {
	return fmt.Sprintf("%d calls, %d failed, %d canceled, %d limited", a.calls, a.failed, a.canceled, a.limited)
}

// books are the accounts of a fleet, by the name of a service and by address.
type books struct {
	mu   sync.Mutex
	of   map[string]account
	seen map[int]int // executions, by the number of the call
}

// end enters a call that has ended with err under names.
func (b *books) end(err error, names ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		a := b.of[name]
		a.calls++
		switch yodel.CodeOf(err) {
		case yodel.Internal, yodel.FailedPrecondition: // the latter: refused by a rule
			a.failed++
		case yodel.Canceled:
			a.canceled++
		case yodel.ResourceExhausted:
			a.limited++
		}
		b.of[name] = a
	}
}

func (b *books) get(name string) account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[name]
}

// A purchase says what Price.Quote does: "ok", "fail", "hang" until the call is canceled, or
// "lose": hang when it is executed first, so that a hedged request wins.
type purchase struct {
	Number int
	Mode   string
}

const (
	buy   yodel.Method[purchase, struct{}] = "Gate.Buy"
	quote yodel.Method[purchase, struct{}] = "Price.Quote"
)

// A ledger is a fleet with books: web calls Gate, which calls Price.
type ledger struct {
	t       *testing.T
	folder  string
	books   books
	web     *yodel.Client
	bare    *yodel.Client          // of Gate
	hedged  *yodel.Client          // of Gate, with hedges
	wary    *yodel.Client          // of Gate, with outlier ejection
	sick    atomic.Pointer[string] // the address at which all quotes fail
	mute    atomic.Pointer[string] // the address of an instance that misses a poll
	asked   atomic.Int64           // questions to it: it leaves the first one unanswered
	refused int                    // calls that a rule has refused
	shut    bool                   // whether it does so on the instances, and not in the client
	number  int
	site    string // the URL of the console
	lines   []string
}

// serve starts an instance, and returns its address and what ends it.
func (l *ledger) serve(service, version string, register func(s *yodel.Server, addr string)) (addr string, end func()) {
	l.t.Helper()
	return l.serveAt("127.0.0.1:0", service, version, register)
}

// serveAt is serve at an address.
func (l *ledger) serveAt(addr, service, version string, register func(s *yodel.Server, addr string)) (at string, end func()) {
	l.t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		l.t.Fatal(err)
	}
	addr = listener.Addr().String()
	s := yodel.NewServer(&yodel.ServerOptions{
		Diagnostics: true, Logger: silence(), Instance: discovery.Instance{Version: version}, DrainTimeout: time.Second,
		Registrars: []discovery.Registrar{l.governed()}, Middleware: []yodel.Middleware{l.silences(addr)},
	})
	register(s, addr)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener) }()
	end = sync.OnceFunc(func() { stop(); <-served })
	l.t.Cleanup(end)
	until(l.t, addr+" is announced", func() bool { return strings.Contains(run(l.t, l.folder, "ls", service, "-o", "name").out, addr) })
	return addr, end
}

// silences makes the mute instance leave questions about itself unanswered.
func (l *ledger) silences(addr string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if mute := l.mute.Load(); mute != nil && *mute == addr && call.Method == "yodel.Health" && l.asked.Add(1) == 1 {
				<-ctx.Done()
			}
			return next(ctx, call)
		}
	}
}

func (l *ledger) governed() *rules.Rules {
	return rules.With(file.New(l.folder, nil), &rules.Options{Logger: silence()})
}

// quote is the method of an instance of Price.
func (l *ledger) quote() func(*yodel.Server, string) {
	return func(s *yodel.Server, addr string) {
		quote.Handle(s, func(ctx context.Context, in *purchase) (out *struct{}, err error) {
			l.books.mu.Lock()
			l.books.seen[in.Number]++
			first := l.books.seen[in.Number] == 1
			l.books.mu.Unlock()
			sick := l.sick.Load()
			switch {
			case in.Mode == "hang", in.Mode == "lose" && first:
				<-ctx.Done()
				err = yodel.Errorf(yodel.Canceled, "given up")
			case in.Mode == "fail", sick != nil && *sick == addr:
				err = yodel.Errorf(yodel.Internal, "no price")
			}
			l.books.end(err, "Price", addr)
			return &struct{}{}, err
		})
		s.MarkIdempotent(string(quote))
	}
}

// gate is the method of an instance of Gate.
func (l *ledger) gate() func(*yodel.Server, string) {
	return func(s *yodel.Server, addr string) {
		buy.Handle(s, func(ctx context.Context, in *purchase) (*struct{}, error) {
			client := l.bare
			switch in.Mode {
			case "lose", "warm":
				client = l.hedged
			case "eject":
				client = l.wary
			}
			out, err := quote.Call(ctx, client, in)
			if ctx.Err() != nil {
				err = yodel.Errorf(yodel.Canceled, "given up")
			}
			l.books.end(err, "Gate", addr)
			return out, err
		})
	}
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{t: t, folder: filepath.Join(t.TempDir(), ".yodel"), books: books{of: make(map[string]account), seen: make(map[int]int)}}
	if err := os.MkdirAll(filepath.Join(l.folder, "yodel"), 0o750); err != nil {
		t.Fatal(err)
	}
	client := func(service, name string, o *yodel.ClientOptions) *yodel.Client {
		o.Name, o.Logger = name, silence()
		c := yodel.NewClient(l.governed().Service(service), o)
		t.Cleanup(c.Close)
		return c
	}
	l.bare = client("Price", "gate", &yodel.ClientOptions{})
	l.hedged = client("Price", "gate", &yodel.ClientOptions{Middleware: []yodel.Middleware{hedge.With(&hedge.Options{After: 20 * time.Millisecond, Share: 1})}})
	l.wary = client("Price", "gate", &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{outlier.Eject(&outlier.Options{Ejection: time.Minute})}})
	l.web = client("Gate", "web", &yodel.ClientOptions{})
	source := file.New(l.folder, nil)
	c, err := console.New(source, &console.Options{Logger: slog.New(slog.DiscardHandler), Tokens: map[string]console.User{strings.Repeat("t", 32): {Name: "ci", Role: console.Viewer}}})
	if err != nil {
		t.Fatal(err)
	}
	site := httptest.NewServer(c)
	l.site = site.URL
	t.Cleanup(func() { _ = c.Close(); site.Close() })
	return l
}

// call makes n calls of a mode, one after the other, and enters what Gate answers.
func (l *ledger) call(n int, mode string) {
	l.t.Helper()
	for range n {
		l.number++
		in := &purchase{l.number, mode}
		ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
		if mode == "hang" {
			go func() { // until the call is executed
				until(l.t, "a call hangs", func() bool {
					l.books.mu.Lock()
					defer l.books.mu.Unlock()
					return l.books.seen[in.Number] > 0
				})
				cancel()
			}()
		}
		_, err := buy.Call(ctx, l.web, in)
		cancel()
		switch yodel.CodeOf(err) {
		case yodel.ResourceExhausted: // by Price, whose method has not seen the call
			l.books.end(err, "Price")
		case yodel.FailedPrecondition:
			if l.refused++; l.shut {
				l.books.end(err, "Price")
			}
		}
	}
}

// A shownRow is a row of the command in JSON, or of the console.
type shownRow struct {
	Name, Addr, State                string
	Calls, Failed, Canceled, Limited int64
	Span                             time.Duration
	Instances, Methods               []shownRow
	Problems                         []fleet.Problem
}

func (r *shownRow) account() account { return account{r.Calls, r.Failed, r.Canceled, r.Limited} }

// yodel runs the command and decodes its JSON.
func (l *ledger) yodel(into any, args ...string) {
	l.t.Helper()
	r := run(l.t, l.folder, append(args, "-o", "json")...)
	if r.code != exitOK && r.code != exitCheck {
		l.t.Fatalf("yodel %v: exit code %d: %s", args, r.code, r.err)
	}
	if err := json.Unmarshal([]byte(r.out), into); err != nil {
		l.t.Fatalf("yodel %v: %v\n%s", args, err, r.out)
	}
}

// numbersShown are the numbers of the console: rates, of which counts can be computed.
type numbersShown struct {
	Name, Addr, State           string
	Rate, OK, Canceled, Limited float64
	Span                        float64
}

func (n *numbersShown) account() account {
	count := func(rate float64) int64 { return int64(math.Round(rate * n.Span)) }
	judged := count(n.Rate) - count(n.Canceled) - count(n.Limited)
	return account{count(n.Rate), int64(math.Round(float64(judged) * (1 - n.OK))), count(n.Canceled), count(n.Limited)}
}

// page reads an answer of the console's API.
func (l *ledger) page(into any, path string) {
	l.t.Helper()
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, l.site+"/api/"+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 32))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		l.t.Fatal(err)
	}
}

// overview adds the accounts of the first page of the console, by where and what.
func (l *ledger) overview(all map[string]account) {
	var o struct{ Services []numbersShown }
	l.page(&o, "overview")
	for i := range o.Services {
		all["console overview "+o.Services[i].Name] = o.Services[i].account()
	}
}

// shown returns all accounts that the command and the console show, by where and what.
func (l *ledger) shown() map[string]account {
	all := make(map[string]account)
	var services []shownRow
	l.yodel(&services, "ls")
	for i := range services {
		all["ls "+services[i].Name] = services[i].account()
	}
	for _, name := range []string{"Gate", "Price"} {
		var one shownRow
		l.yodel(&one, "ls", name)
		all["ls "+name+" (head) "+name] = one.account()
		for i := range one.Instances {
			all["ls "+name+" "+one.Instances[i].Addr] = one.Instances[i].account()
		}
		for i := range one.Methods {
			all["ls "+name+" (method) "+name] = one.Methods[i].account()
		}
		l.consoleService(all, name)
	}
	for _, by := range []string{"services", "methods", "instances"} {
		var rows []shownRow
		l.yodel(&rows, "top", "--by", by, "-n", "1")
		for i := range rows {
			name := rows[i].Name
			name = name[strings.LastIndex(name, "@")+1:]
			name, _, _ = strings.Cut(name, "/")
			all["top "+by+" "+name] = rows[i].account()
		}
	}
	l.overview(all)
	return all
}

// consoleService adds what the console's screens of a service and its instances show.
func (l *ledger) consoleService(all map[string]account, name string) {
	var s struct {
		View               numbersShown
		Instances, Methods []numbersShown
	}
	l.page(&s, "service?service="+name)
	all["console service (head) "+name] = s.View.account()
	for i := range s.Methods {
		all["console service (method) "+name] = s.Methods[i].account()
	}
	for i := range s.Instances {
		addr := s.Instances[i].Addr
		all["console service "+addr] = s.Instances[i].account()
		var one struct {
			View    numbersShown
			Methods []numbersShown
		}
		l.page(&one, "instance?service="+name+"&addr="+url.QueryEscape(addr))
		all["console instance "+addr] = one.View.account()
		var described shownRow
		l.yodel(&described, "describe", addr)
		for i := range described.Methods {
			all["describe "+addr] = described.Methods[i].account()
		}
	}
}

// settle waits until everything that is shown is what the books say, and notes the comparison.
// Wanted selects where it is shown; nil selects all. The commands read the fleet each time, and the
// console once a second: they are compared when the first page of the console is right.
func (l *ledger) settle(phase string, wanted func(where string) bool) {
	l.t.Helper()
	end := time.Now().Add(15 * time.Second)
	compare := func(all map[string]account) (lines []string, wrong int) {
		for _, where := range slices.Sorted(maps.Keys(all)) {
			name := where[strings.LastIndex(where, " ")+1:]
			if wanted != nil && !wanted(where) {
				continue
			}
			want, mark := l.books.get(name), "="
			if got := all[where]; got != want {
				mark = "≠"
				wrong++
			}
			lines = append(lines, fmt.Sprintf("%-10s %-45s %s %s %s", phase, where, all[where], mark, want))
		}
		return lines, wrong
	}
	for tick := time.Tick(20 * time.Millisecond); ; <-tick {
		first := make(map[string]account)
		l.overview(first)
		if _, wrong := compare(first); wrong > 0 && time.Now().Before(end) {
			continue
		}
		all := l.shown()
		lines, wrong := compare(all)
		if wrong == 0 && len(all) > 10 {
			l.lines = append(l.lines, lines...)
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%d of %d differ:\n%s", wrong, len(all), strings.Join(lines, "\n"))
		}
	}
}

// state checks the state of a service, or of an instance of Price, everywhere.
func (l *ledger) state(phase, name string, want fleet.State, says string) {
	l.t.Helper()
	text := ""
	defer func() {
		if l.t.Failed() {
			l.t.Log(text)
		}
	}()
	until(l.t, fmt.Sprintf("%s: %s is %s everywhere, and %q", phase, name, want, says), func() bool {
		got := make(map[string]string)
		var services []shownRow
		l.yodel(&services, "ls")
		var price shownRow
		l.yodel(&price, "ls", "Price")
		var o struct{ Services []numbersShown }
		l.page(&o, "overview")
		var s struct{ Instances []numbersShown }
		l.page(&s, "service?service=Price")
		for _, one := range slices.Concat(services, price.Instances) {
			if cmp.Or(one.Addr, one.Name) == name {
				got["ls"] = one.State
			}
		}
		for _, one := range slices.Concat(o.Services, s.Instances) {
			if cmp.Or(one.Addr, one.Name) == name {
				got["console"] = one.State
			}
		}
		text = run(l.t, l.folder, "ls").out + run(l.t, l.folder, "ls", "Price").out + run(l.t, l.folder, "doctor").out
		for _, state := range got {
			if state != string(want) {
				return false
			}
		}
		l.lines = append(l.lines, fmt.Sprintf("%-10s %-45s %v", phase, name, got))
		return len(got) == 2 && strings.Count(text, says) >= 2
	})
}

func TestWhatIsShownIsWhatTheBooksSay(t *testing.T) {
	l := newLedger(t)
	first, _ := l.serve("Price", "v1", l.quote())
	second, _ := l.serve("Price", "v1", l.quote())
	l.serve("Gate", "v1", l.gate())
	until(t, "the clients know the instances", func() bool { l.call(1, "ok"); return l.books.get(first).calls > 0 && l.books.get(second).calls > 0 })
	l.call(20, "ok")
	l.call(3, "fail")
	l.settle("calls", nil)
	l.call(4, "hang")
	l.settle("cancels", nil)
	until(t, "the client of the hedges knows both instances", func() bool { l.call(1, "warm"); return l.hedged.Several() })
	l.call(4, "lose")
	l.settle("hedges", nil)
	if lost := l.books.get("Price").canceled; lost != 8 || l.books.get("Gate").canceled != 4 {
		t.Errorf("%d calls of Price and %d of Gate were canceled, want 4 of callers, and for Price 4 that lost", lost, l.books.get("Gate").canceled)
	}

	third, end := l.serve("Price", "v2", l.quote())
	l.rule(rules.Rule{ID: "try", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 50}})
	until(t, "the canary gets calls", func() bool { l.call(1, "ok"); return l.books.get(third).calls > 0 })
	l.settle("canary", nil)
	l.mute.Store(&first)
	l.settle("lost poll", nil)
	if l.asked.Load() == 0 {
		t.Error("no poll was lost")
	}
	l.sick.Store(&second)
	well := l.books.get(second).failed
	until(t, "the sick instance has failed", func() bool { l.call(1, "eject"); return l.books.get(second).failed >= well+5 })
	l.settle("ejection", nil)
	l.state("ejection", second, fleet.Ejected, "5 calls in a row failed")
	l.sick.Store(nil)
	l.remove("try")
	end()
	l.books.without("Price", third)
	until(t, "the instance has left", func() bool {
		var s struct{ Instances []numbersShown }
		l.page(&s, "service?service=Price")
		return len(s.Instances) == 2
	})
	l.settle("end", nil)

	l.rule(rules.Rule{ID: "few", Limit: &rules.Limit{PerSecond: 0.1, Burst: 1}})
	until(t, "calls are limited", func() bool { l.call(1, "ok"); return l.books.get("Gate").limited > 2 })
	service := func(where string) bool {
		return strings.HasSuffix(where, " Gate") || strings.HasSuffix(where, " Price")
	}
	l.settle("limit", service)
	l.state("limit", "Gate", fleet.Degraded, "of the calls are limited") // by the failures before
	l.remove("few")
	l.rule(rules.Rule{ID: "boom", Side: "client", Disable: &rules.Disable{}})
	until(t, "calls are refused", func() bool { l.call(1, "ok"); return l.refused > 12 })
	l.settle("stop", service)
	l.state("stop", "Price", fleet.Down, "rule boom of ann stops all calls")
	l.state("stop", "Price", fleet.Down, "calls a second fail, because a rule refuses them")
	l.state("stop", "Gate", fleet.Degraded, "of the calls fail, mostly with disabled, as the calls to Price do")
	if said := run(t, l.folder, "ls").err; !strings.Contains(said, "undo: yodel rule rm Price boom") {
		t.Errorf("ls does not say how to undo the rule: %s", said)
	}
	l.remove("boom")
	until(t, "calls are executed again", func() bool { was := l.refused; l.call(1, "ok"); return l.refused == was })
	l.shut, l.refused = true, 0
	l.rule(rules.Rule{ID: "shut", Side: "server", Disable: &rules.Disable{}})
	until(t, "instances refuse calls", func() bool { l.call(1, "ok"); return l.refused > 5 })
	l.settle("shut", service)
	l.state("shut", "Price", fleet.Down, "rule shut of ann stops all calls")
	l.remove("shut")
	t.Logf("%d comparisons:\n%s", len(l.lines), strings.Join(l.lines, "\n"))
}

// The counters of an instance that has restarted begin at zero. The console was reading it before,
// so that its sums neither drop nor jump. A command that begins later knows the new process only.
func TestARestartChangesNoSumOfTheConsole(t *testing.T) {
	l := newLedger(t)
	addr, end := l.serve("Price", "v1", l.quote())
	l.serve("Price", "v1", l.quote())
	l.serve("Gate", "v1", l.gate())
	until(t, "the client knows both instances", func() bool { l.call(1, "ok"); return l.books.get(addr).calls > 0 && l.bare.Several() })
	l.call(20, "ok")
	l.call(3, "fail")
	l.settle("before", nil)
	end()
	old := l.books.get(addr)
	l.serveAt(addr, "Price", "v1", l.quote())
	until(t, "the new process gets calls", func() bool { l.call(1, "ok"); return l.books.get(addr).calls >= old.calls+3 })
	l.call(2, "fail")
	l.settle("restart", func(where string) bool { return strings.HasPrefix(where, "console") })
	t.Logf("%d comparisons:\n%s", len(l.lines), strings.Join(l.lines, "\n"))
}

// rule writes a rule of Price.
func (l *ledger) rule(r rules.Rule) {
	l.t.Helper()
	r.Service, r.Author, r.Reason = "Price", "ann", "test"
	if _, err := l.book().Put(l.t.Context(), r); err != nil {
		l.t.Fatal(err)
	}
}

func (l *ledger) remove(id string) {
	l.t.Helper()
	if err := l.book().Remove(l.t.Context(), "Price", id, 0, "ann", "test"); err != nil {
		l.t.Fatal(err)
	}
}

func (l *ledger) book() *rules.Book {
	l.t.Helper()
	book, err := rules.Open(file.New(l.folder, nil))
	if err != nil {
		l.t.Fatal(err)
	}
	return book
}

// without takes the calls of an instance that has ended out of those of its service.
func (b *books) without(service, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, gone := b.of[service], b.of[addr]
	b.of[service] = account{a.calls - gone.calls, a.failed - gone.failed, a.canceled - gone.canceled, a.limited - gone.limited}
}
