// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// watched follows the rules of the service Shop until stop is called.
func watched(r *rules.Rules) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
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

func stateOf(r *rules.Rules, id string) introspect.RuleState {
	for _, s := range r.Rules().Rules {
		if s.ID == id {
			return s
		}
	}
	return introspect.RuleState{}
}

func TestARuleExpiresWithoutAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := memory.New(nil)
		var changes [][]rules.Rule
		r := rules.With(in, &rules.Options{OnChange: func(_ string, all []rules.Rule) { changes = append(changes, all) }})
		stop := watched(r)
		defer stop()
		put(t, open(t, in), rules.Rule{
			ID: "s", Service: "Shop", Switch: &rules.Switch{Name: "new", On: true}, Author: "ann", Reason: "a test", Expires: time.Now().Add(time.Hour),
		})
		time.Sleep(time.Hour - time.Second)
		if !r.Switch("Shop", "new", false) || stateOf(r, "s").State != "active" {
			t.Error("the rule does not act before it expires")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if r.Switch("Shop", "new", false) || stateOf(r, "s").State != "expired" {
			t.Error("the rule acts after it has expired")
		}
		if len(changes) != 2 || len(changes[0]) != 1 || len(changes[1]) != 0 {
			t.Errorf("the hook was called with %v", changes)
		}
	})
}

// The hook is also called with the rules that are in the registry when the process begins.
func TestOnChangeHasTheFirstRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := memory.New(nil)
		put(t, open(t, in), rules.Rule{ID: "s", Service: "Shop", Switch: &rules.Switch{Name: "new", On: true}, Author: "ann", Reason: "a test"})
		var changes [][]rules.Rule
		stop := watched(rules.With(in, &rules.Options{OnChange: func(_ string, all []rules.Rule) { changes = append(changes, all) }}))
		synctest.Wait()
		stop()
		if len(changes) != 1 || len(changes[0]) != 1 || changes[0][0].ID != "s" {
			t.Errorf("the hook was called with %v", changes)
		}
	})
}

// A slow registry takes its time to return rules.
type slow struct {
	*registry.Registry

	takes time.Duration
}

func (s slow) Kept(ctx context.Context, service, kind string, update func(map[string][]byte)) error {
	select {
	case <-time.After(s.takes):
		return s.Registry.Kept(ctx, service, kind, update)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The first call of a client waits for the rules, for a second at most and only once.
func TestTheFirstCallWaitsForTheRules(t *testing.T) {
	for takes, waits := range map[time.Duration]time.Duration{999 * time.Millisecond: 999 * time.Millisecond, time.Minute: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			in := memory.New(nil)
			put(t, open(t, in), rules.Rule{ID: "off", Service: "Shop", Disable: &rules.Disable{}, Author: "ann", Reason: "a test"})
			c := yodel.NewClient(rules.With(slow{in, takes}, nil).Service("Shop"), nil)
			defer c.Close()
			synctest.Wait()
			for i, want := range []time.Duration{waits, 0} {
				began := time.Now()
				err := c.Do(t.Context(), &yodel.Call{Method: "Shop.Buy", NoWait: true})
				if took := time.Since(began); took != want || errors.Is(err, yodel.FailedPrecondition) != (takes == waits) {
					t.Errorf("with a registry that takes %v, call %d took %v, want %v, and got %v", takes, i, took, want, err)
				}
			}
		})
	}
}

// A failing registry keeps rules, and cannot be read while it is down.
type failing struct {
	*registry.Registry

	down chan struct{}
}

func (f failing) Kept(ctx context.Context, service, kind string, update func(map[string][]byte)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-f.down:
		return errors.New("the registry is down")
	default:
	}
	go func() {
		select {
		case <-f.down:
			cancel()
		case <-ctx.Done():
		}
	}()
	return f.Registry.Kept(ctx, service, kind, func(all map[string][]byte) { update(maps.Clone(all)) })
}

func TestRulesOutliveTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := failing{memory.New(nil), make(chan struct{})}
		r := rules.With(from, nil)
		stop := watched(r)
		defer stop()
		book := open(t, from)
		for name, life := range map[string]time.Duration{"short": time.Minute, "long": time.Hour} {
			put(t, book, rules.Rule{ID: name, Service: "Shop", Switch: &rules.Switch{Name: name, On: true}, Author: "ann", Reason: "a test", Expires: time.Now().Add(life)})
		}
		time.Sleep(time.Second)
		close(from.down)
		time.Sleep(10 * time.Minute)
		if got := []bool{r.Switch("Shop", "short", false), r.Switch("Shop", "long", false)}; !slices.Equal(got, []bool{false, true}) {
			t.Errorf("without a registry, the rules that act are %v", got)
		}
	})
}
