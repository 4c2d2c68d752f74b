// SPDX-License-Identifier: Apache-2.0

package governed

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/rules"
)

// A Registry is one to try.
type Registry struct {
	Addr string
	Open Open
	// Restart restarts its server. Nil for a registry without a server.
	Restart func()
	// Operator changes the rules. Default: a rules.Book.
	Operator Operator
}

// An Operator changes rules as a rules.Book does.
type Operator interface {
	Put(ctx context.Context, r rules.Rule) (rules.Rule, error)
	Remove(ctx context.Context, service, id string, revision int, author, reason string) error
	Rollback(ctx context.Context, service string, revision, from int, author, reason string) error
}

// A world is the processes of a test.
type world struct {
	t        *testing.T
	registry Registry
	book     *rules.Book
	operator Operator
	changed  time.Time // when the last change of the rules was stored
	v1, v2   *process
	addr     string // of v2
	client   *process
	pause    time.Duration // between two calls of a caller of the client
	slowest  time.Duration // the longest time until a rule acted
}

// newWorld starts the processes. Between two of its calls, each caller of the client waits for
// pause.
func newWorld(t *testing.T, r Registry, pause time.Duration) *world {
	t.Helper()
	book, err := rules.Open(r.Open(r.Addr))
	must(t, err)
	w := &world{t: t, registry: r, book: book, operator: r.Operator, pause: pause}
	if w.operator == nil {
		w.operator = book
	}
	w.v1, _ = startServer(t, "v1", r.Addr, "127.0.0.1:0")
	w.v2, w.addr = startServer(t, "v2", r.Addr, "127.0.0.1:0")
	w.client = startClient(t, r.Addr, pause)
	w.until("both versions get calls", 30*time.Second, both)
	return w
}

// next returns the next report of the client.
func (w *world) next() dated {
	w.t.Helper()
	var r dated
	line, err := await.Line(w.client.lines, "a report of the client", w.client.cmd.Process)
	must(w.t, err)
	must(w.t, json.Unmarshal([]byte(line), &r))
	return r
}

// until waits for three reports in a row that together meet a condition.
func (w *world) until(what string, patience time.Duration, condition func(r report) bool) {
	w.t.Helper()
	w.since(time.Now(), what, patience, condition)
}

// since is until for the calls that began after a time. It returns how long it took from then on.
func (w *world) since(began time.Time, what string, patience time.Duration, condition func(r report) bool) time.Duration {
	w.t.Helper()
	var last [3]report
	for n := 0; ; {
		next := w.next()
		if next.At.Before(began.Add(every)) {
			continue // some of its calls are earlier
		}
		if next.At.Sub(began) > patience {
			w.t.Fatalf("not within %v: %s; the last reports: %v", patience, what, last)
		}
		last[n%3] = next.Report
		n++
		sum := make(report)
		for _, r := range last {
			sum.merge(r)
		}
		if n >= 3 && condition(sum) {
			return next.At.Sub(began)
		}
	}
}

// within is how long a rule, its end or a process may take to act. Rules act within 2 s; a machine
// that runs the tests of other packages too, with the race detector, may need longer.
var within = flag.Duration("governed.within", 15*time.Second, "how long a rule may take to act")

// soon is since the last change of the rules, which has to act within the time of the flag.
func (w *world) soon(what string, condition func(r report) bool) {
	w.t.Helper()
	w.slowest = max(w.slowest, w.since(w.changed, what, *within, condition))
}

// change changes the rules, and reads when the change was stored. An operator may return later than
// that. Do returns the revision, or 0 for the last one.
func (w *world) change(do func(ctx context.Context) (revision int, err error)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	revision, err := do(ctx)
	must(w.t, err)
	history, err := w.book.History(ctx, service)
	must(w.t, err)
	for i := range history {
		if revision == 0 || history[i].Revision == revision {
			w.changed = history[i].At
			return
		}
	}
	w.t.Fatalf("the history has no revision %d", revision)
}

func (w *world) put(r rules.Rule) (stored rules.Rule) {
	w.t.Helper()
	r.Service, r.Author, r.Reason = service, "ann", "a test"
	w.change(func(ctx context.Context) (revision int, err error) {
		stored, err = w.operator.Put(ctx, r)
		return stored.Revision, err
	})
	return stored
}

func (w *world) remove(r rules.Rule) {
	w.t.Helper()
	w.change(func(ctx context.Context) (revision int, err error) {
		return 0, w.operator.Remove(ctx, service, r.ID, 0, "ann", "done")
	})
}

// The conditions of reports.
func both(r report) bool { return r["failed"] == 0 && share(r) > 0.3 && share(r) < 0.7 }

func share(r report) float64 { return float64(r["v2"]) / float64(max(r.calls(), 1)) }

func only(key string) func(report) bool {
	return func(r report) bool { return r.calls() > 10 && r[key] == r.calls() }
}

func some(key string) func(report) bool { return func(r report) bool { return r[key] > 2 } }

// EveryKind shows that every kind of rule moves the calls of other processes within 2 s, and that
// its end does.
func EveryKind(t *testing.T, r Registry) { kinds(t, r, true) }

// SomeKinds is EveryKind for six kinds, because how a rule acts does not depend on the registry.
// With -governed.all it is EveryKind.
func SomeKinds(t *testing.T, r Registry) { kinds(t, r, *everyKind) }

var everyKind = flag.Bool("governed.all", false, "SomeKinds tests every kind of rule")

// kinds tests all kinds of rules, or two in five.
func kinds(t *testing.T, r Registry, all bool) {
	w := newWorld(t, r, shortPause) // some conditions are about one call in a hundred
	v2 := rules.Target{Version: "v2"}
	second := rules.Duration(time.Second)
	for i, step := range []struct {
		what  string
		rules []rules.Rule // the last one is under test
		shown func(r report) bool
	}{
		{"weight", []rules.Rule{{Weight: &rules.Weight{To: v2, Percent: 10}}}, func(r report) bool { return share(r) > 0 && share(r) < 0.2 }},
		{"canary", []rules.Rule{{Canary: &rules.Canary{To: v2, Percent: 10}}}, func(r report) bool { return share(r) > 0.01 && share(r) < 0.2 }},
		{"route", []rules.Rule{{Caller: "web", Route: &rules.Route{To: rules.Target{Tag: "only-v2"}}}}, only("v2")},
		{"disable an instance", []rules.Rule{{Disable: &rules.Disable{To: &rules.Target{Addr: w.addr}}}}, only("v1")},
		{"disable a method", []rules.Rule{{Method: "Buy", Disable: &rules.Disable{}}}, only("YDL3601")},
		{"disable a caller on servers", []rules.Rule{{Side: "server", Disable: &rules.Disable{Except: []string{"batch"}}}}, only("YDL3601")},
		{"limit", []rules.Rule{{Limit: &rules.Limit{PerSecond: 20, By: "caller"}}}, some("YDL3301")},
		{"timeout", []rules.Rule{{Side: "server", Fault: &rules.Fault{Delay: second}}, {Timeout: &rules.Timeout{After: second / 20}}}, some("YDL1004")},
		{"retry", []rules.Rule{{Side: "server", Fault: &rules.Fault{Percent: 3, Lose: "request"}}, {Retry: &rules.Retry{Times: 4, Backoff: second / 1000}}},
			func(r report) bool { return r["failed"] == 0 && r.calls() > 100 }},
		{"hedge", []rules.Rule{{Side: "server", Fault: &rules.Fault{Percent: 1, Delay: second / 5}}, {Hedge: &rules.Hedge{After: second / 50}}},
			func(r report) bool { return r["slow"]*200 < r.calls() }},
		{"breaker", []rules.Rule{{Side: "server", Fault: &rules.Fault{Lose: "request"}}, {Breaker: &rules.Breaker{Errors: 3, Open: second}}},
			func(r report) bool { return r["failed"] > 20 && r["YDL3511"]*4 < r["failed"] }}, // few calls meet the fault
		{"fault", []rules.Rule{{Fault: &rules.Fault{Percent: 50, Code: "internal"}}}, some("YDL3511")},
		{"mock", []rules.Rule{{Mock: &rules.Answer{Reply: json.RawMessage(`{"by":"mock"}`)}}}, only("mock")},
		{"fallback", []rules.Rule{{Side: "server", Fault: &rules.Fault{Lose: "request"}}, {Fallback: &rules.Answer{Reply: json.RawMessage(`{"by":"mock"}`)}}}, only("mock")},
		{"switch", []rules.Rule{{Switch: &rules.Switch{Name: "new", On: true}}}, some("switch")},
	} {
		if !all && i%5 > 1 {
			continue
		}
		var made []rules.Rule
		for _, one := range step.rules {
			made = append(made, w.put(one))
		}
		w.soon(step.what, step.shown)
		for _, one := range made {
			w.remove(one)
		}
		w.since(w.changed, "the end of "+step.what, *within+time.Second, func(r report) bool { return both(r) && r["switch"] == 0 && r["slow"] == 0 })
	}
	t.Logf("the slowest rule acted after %v", w.slowest)
}

// expires shows that a rule ends by itself. It lasts longer than it may take to act.
func (w *world) expires() {
	w.put(rules.Rule{Route: &rules.Route{To: rules.Target{Version: "v2"}}, Expires: time.Now().Add(*within + 2*time.Second)})
	w.soon("a rule that expires", only("v2"))
	w.until("the rule has expired", *within+4*time.Second, both)
}

// rollsBack shows both ways back.
func (w *world) rollsBack() {
	r := w.put(rules.Rule{Route: &rules.Route{To: rules.Target{Version: "v2"}}})
	w.soon("route", only("v2"))
	w.change(func(ctx context.Context) (revision int, err error) {
		return 0, w.operator.Rollback(ctx, service, r.Revision-1, 0, "bob", "undo")
	})
	w.soon("an operator's rollback", both)
	w.put(rules.Rule{ID: "bad", Fault: &rules.Fault{Percent: 50, Code: "internal"}, Rollback: &rules.Rollback{Below: 90, For: rules.Duration(time.Second)}})
	w.soon("a fault", some("YDL3511"))
	w.until("an automatic rollback", *within+4*time.Second, both)
	var last rules.Change
	written := func() bool { // a process rolls back for itself first, and the registry may take seconds to store that
		history, err := w.book.History(w.t.Context(), service)
		must(w.t, err)
		last = history[0]
		return last.What == "auto-rollback" && last.Rule == "bad" && last.After.Off
	}
	for end := time.Now().Add(*within + 8*time.Second); !written(); <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("the history has %+v", last)
		}
	}
}

// Restarts shows that rules act within 2 s, survive restarts of the registry, of a server and of a
// client, expire, and roll back.
func Restarts(t *testing.T, r Registry) {
	w := newWorld(t, r, *longPause)
	w.expires()
	w.rollsBack()
	off := w.put(rules.Rule{Disable: &rules.Disable{To: &rules.Target{Addr: w.addr}}})
	w.soon("disable", only("v1"))
	if r.Restart != nil {
		r.Restart()
		w.until("after a restart of the registry", *within+3*time.Second, only("v1"))
	}
	w.v2.kill()
	w.v2, _ = startServer(t, "v2", r.Addr, w.addr)
	for range 20 { // 2 s
		if last := w.next().Report; last["v2"] > 0 || last["failed"] > 0 {
			t.Fatalf("after a restart of the server: %v", last)
		}
	}
	w.client.stop()
	w.client = startClient(t, r.Addr, w.pause)
	for range 20 {
		if last := w.next().Report; last["v2"] > 0 || last["failed"] > 0 {
			t.Fatalf("after a restart of the client: %v", last)
		}
	}
	w.remove(off)
	w.until("the end of the rule", *within+8*time.Second, both) // a client may still wait to dial the server
	t.Logf("the slowest rule acted after %v", w.slowest)
}

var changes = flag.Int("governed.changes", 200, "how many changes of rules Changes makes")

// Changes makes many changes of rules while a client calls, and shows that none of its calls fails.
func Changes(t *testing.T, r Registry) {
	t.Attr("rerun", "never")
	w := newWorld(t, r, shortPause)
	reports := make(chan report, 1)
	stop := make(chan struct{})
	go func() {
		sum := make(report)
		for {
			select {
			case <-stop:
				reports <- sum
				return
			default:
				sum.merge(w.next().Report)
			}
		}
	}()
	began := time.Now()
	for i := range *changes {
		one := rules.Rule{ID: fmt.Sprint("r", i%7), Service: service, Author: "ann", Reason: "a test"}
		switch i % 7 {
		case 0, 4:
			one.Canary = &rules.Canary{To: rules.Target{Version: "v2"}, Percent: float64(i % 101)}
		case 1:
			one.Weight = &rules.Weight{To: rules.Target{Version: "v1"}, Percent: i % 300}
		case 2:
			one.Timeout = &rules.Timeout{After: rules.Duration(time.Duration(5+i%9) * time.Second)}
		case 3:
			one.Retry = &rules.Retry{Times: 1 + i%5}
		case 5:
			one.Limit = &rules.Limit{PerSecond: float64(100_000 + i)}
		case 6:
			one.Disable = &rules.Disable{To: &rules.Target{Version: fmt.Sprint("v", 1+i%2)}}
		}
		_, err := w.operator.Put(t.Context(), one)
		must(t, err)
	}
	took := time.Since(began)
	close(stop)
	sum := <-reports
	t.Logf("%d changes in %v, %d calls: %v", *changes, took.Round(time.Millisecond), sum.calls(), sum)
	if sum["failed"] > 0 || sum["ok"] < 100 {
		t.Errorf("calls were lost: %v", sum)
	}
	for i := range 7 {
		w.remove(rules.Rule{ID: fmt.Sprint("r", i)})
	}
	w.soon("the end of the rules", both)
}

// Book shows that a registry keeps rules and their history, and reports changes.
func Book(t *testing.T, r rules.Registry) {
	book, err := rules.Open(r)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen, ended := make(chan []rules.Rule, 100), make(chan error)
	watching, stop := context.WithCancel(ctx)
	go func() { ended <- book.Watch(watching, "a/b c", func(all []rules.Rule) { seen <- all }) }()
	awaits := func(want int) {
		t.Helper()
		for {
			select {
			case all := <-seen:
				if len(all) == want {
					return
				}
			case <-ctx.Done():
				t.Fatalf("the change to %d rules is not reported", want)
			}
		}
	}
	awaits(0)
	one := rules.Rule{Service: "a/b c", Retry: &rules.Retry{Times: 2}, Author: "ann", Reason: "a test"}
	for want := 1; want < 3; want++ {
		_, err = book.Put(ctx, one)
		must(t, err)
		awaits(want)
	}
	all, err := book.List(ctx, "")
	if err != nil || len(all) != 2 {
		t.Errorf("the rules of all services are %v, %v", all, err)
	}
	must(t, book.Rollback(ctx, "a/b c", 0, 0, "bob", "undo"))
	awaits(0)
	history, err := book.History(ctx, "a/b c")
	if err != nil || len(history) != 4 || history[0].Revision != 4 || history[0].Author != "bob" {
		t.Errorf("the history is %+v, %v", history, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the watch has ended with %v", err)
	}
}
