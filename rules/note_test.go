// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// An eventLog has the events of a client.
type eventLog struct {
	mu  sync.Mutex
	all []introspect.Event
}

func (l *eventLog) add(e introspect.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

// take returns the events since the last call.
func (l *eventLog) take() []introspect.Event {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.all = nil }()
	return l.all
}

// noted follows the rules of the service Shop as a client does, until stop is called.
func noted(r *rules.Rules, l *eventLog) (stop func()) {
	ctx, cancel := context.WithCancel(introspect.WithNote(context.Background(), l.add))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Service("Shop").Watch(ctx, func([]discovery.Instance) {}) // it ends with ctx
	}()
	return func() {
		cancel()
		<-ended
	}
}

func TestEachChangeIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := memory.New(nil)
		book, ctx := open(t, in), t.Context()
		canary := rules.Rule{ID: "c", Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}, Author: "ann", Reason: "try v2"}
		put(t, book, canary)
		var l eventLog
		stop := noted(rules.With(in, nil), &l)
		defer stop()
		want := func(change, object, by, what string) {
			t.Helper()
			got := l.take()
			if len(got) != 1 || got[0].Kind != "rule" || got[0].Object != object || got[0].By != by || !strings.HasPrefix(got[0].What, what) || got[0].At.IsZero() {
				t.Errorf("%s: the events are %+v", change, got)
			}
			time.Sleep(10 * time.Second) // longer than a period
		}
		want("at the start", "Shop/c", "ann", "in force: send 10 % of the calls of Shop to version v2: try v2 (revision 1)")
		canary.Canary.Percent, canary.Author, canary.Expires = 20, "bob", time.Now().Add(time.Minute)
		put(t, book, canary)
		want("a change", "Shop/c", "bob", "changed: send 20 % of the calls of Shop to version v2: try v2 (revision 2)")
		time.Sleep(time.Minute)
		want("the end", "Shop/c", "expiry", "expired: ")
		put(t, book, rules.Rule{ID: "t", Service: "Shop", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}, Author: "ann", Reason: "slow"})
		want("another rule", "Shop/t", "ann", "in force: ")
		if err := in.Keep(ctx, "Shop", "rules", "t", []byte(`{"author":"eve","timeout":1}`)); err != nil {
			t.Fatal(err)
		}
		want("an invalid record", "Shop/t", "eve", "refused, and revision 3 stays: ")
		if err := in.Keep(ctx, "Shop", "rules", "x", []byte("{")); err != nil {
			t.Fatal(err)
		}
		want("another invalid record", "Shop/x", "", "refused: ")
		put(t, book, rules.Rule{ID: "t", Service: "Shop", Off: true, Timeout: &rules.Timeout{After: rules.Duration(time.Second)}, Author: "ann", Reason: "fast again"})
		want("a rule that is switched off", "Shop/t", "ann", "switched off: fast again (revision 4)")
		if err := book.Remove(ctx, "Shop", "t", 0, "ann", "tidy"); err != nil {
			t.Fatal(err)
		}
		if got := l.take(); len(got) != 0 {
			t.Errorf("the removal of a rule that is off has the events %+v", got)
		}
		time.Sleep(time.Second)
		put(t, book, rules.Rule{ID: "r", Service: "Shop", Retry: &rules.Retry{Times: 2}, Author: "ann", Reason: "a test"})
		want("a last rule", "Shop/r", "ann", "in force: ")
		if err := book.Remove(ctx, "Shop", "r", 0, "ann", "tidy"); err != nil {
			t.Fatal(err)
		}
		want("a removal", "Shop/r", "", "removed: ")
	})
}

// Rules that change all the time have few events, and these count all changes.
func TestManyChangesAreFewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := memory.New(nil)
		book := open(t, in)
		var l eventLog
		stop := noted(rules.With(in, nil), &l)
		defer stop()
		changes := fewer(1000, 4)
		for i := range changes {
			put(t, book, rules.Rule{ID: fmt.Sprint("r", i%7), Service: "Shop", Retry: &rules.Retry{Times: 1 + i%5}, Author: "ann", Reason: "a test"})
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		events, sum := l.take(), 0
		for _, e := range events {
			n := 1
			if e.Object == "Shop" {
				if _, err := fmt.Sscanf(e.What, "%d changes of the rules of Shop: ", &n); err != nil || e.By != "ann" {
					t.Errorf("an event is %+v", e)
				}
			}
			sum += n
		}
		if sum != changes || len(events) > 20 {
			t.Errorf("%d changes have %d events, which count %d", changes, len(events), sum)
		}
		put(t, book, rules.Rule{ID: "calm", Service: "Shop", Retry: &rules.Retry{Times: 2}, Author: "ann", Reason: "a test"})
		if got := l.take(); len(got) != 1 || got[0].Object != "Shop/calm" {
			t.Errorf("after a pause, the events are %+v", got)
		}
	})
}

// What changes while no client watches is told to the next one.
func TestEventsWaitForAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := memory.New(nil)
		book, r := open(t, in), rules.With(in, nil)
		stop := watched(r) // without a function for events
		for i := range 100 {
			put(t, book, rules.Rule{ID: "r", Service: "Shop", Retry: &rules.Retry{Times: 1 + i%5}, Author: "ann", Reason: fmt.Sprint("change ", i)})
			time.Sleep(5 * time.Minute)
		}
		var l eventLog
		defer noted(r, &l)()
		if got := l.take(); len(got) != 64 || !strings.Contains(got[63].What, "change 99") {
			t.Errorf("the first client gets %d events: %+v", len(got), got)
		}
		var next eventLog
		defer noted(r, &next)()
		if got := next.take(); len(got) != 0 {
			t.Errorf("the second client gets %+v", got)
		}
		stop()
	})
}

// An event of a rule is in the live data of a server once, although the server and its client
// follow the rule.
func TestLiveDataHasTheRules(t *testing.T) {
	in := memory.New(nil)
	r := rules.With(in, nil)
	book := open(t, in)
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}, AnnounceEvery: time.Second, Diagnostics: true})
	var client *yodel.Client
	buy.Handle(s, func(context.Context, *order) (*order, error) { return &order{}, nil })
	yodel.Method[order, order]("Shop.Ask").Handle(s, func(ctx context.Context, in *order) (*order, error) { return buy.Call(ctx, client, in) })
	serve(t, s)
	client = yodel.NewClient(r.Service("Shop"), nil)
	t.Cleanup(client.Close)
	await(t, 20*time.Second, "the server is announced", func() bool { return client.Ready(t.Context()) == nil })
	if _, err := yodel.Method[order, order]("Shop.Ask").Call(t.Context(), client, &order{}); err != nil {
		t.Fatal(err)
	}
	told := func() (n int) {
		for _, e := range s.Live(nil).Events {
			if e.Kind == "rule" && e.Object == "Shop/s" && e.By == "ann" {
				n++
			}
		}
		return n
	}
	put(t, book, rules.Rule{ID: "s", Service: "Shop", Switch: &rules.Switch{Name: "new", On: true}, Author: "ann", Reason: "a test"})
	await(t, 20*time.Second, "the rule is an event", func() bool { return told() == 1 })
	put(t, book, rules.Rule{ID: "t", Service: "Shop", Switch: &rules.Switch{Name: "old", On: true}, Author: "ann", Reason: "a test"})
	await(t, 20*time.Second, "the next rule is an event", func() bool {
		return slices.ContainsFunc(s.Live(nil).Events, func(e introspect.Event) bool { return e.Object == "Shop/t" })
	})
	if n := told(); n != 1 {
		t.Errorf("the rule has %d events", n)
	}
}
