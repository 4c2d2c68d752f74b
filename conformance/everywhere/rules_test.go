// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/rules"
)

// Rules of each kind hold over every wire, in clients and in servers. A switch is not about calls.
func TestRulesOverEveryWire(t *testing.T) {
	t.Parallel()
	kinds := make(map[string]bool)
	for _, r := range ruleKinds {
		kinds[r.rule.Kind()] = true
	}
	for _, kind := range rules.Kinds() {
		if !kinds[kind] && kind != "switch" {
			t.Errorf("no rule of the kind %s is tried", kind)
		}
	}
	overWires(t, ruleGuarantees(), inTurn())
}

func ruleGuarantees() (all []Guarantee) {
	for _, r := range ruleKinds {
		all = append(all, r.guarantees()...)
	}
	return all
}

// A ruleKind is a kind of rule, and the guarantee that it gives.
type ruleKind struct {
	rule    rules.Rule
	servers bool // it acts in servers too
	of      Guarantee
}

var ruleKinds = []ruleKind{
	{rule: rules.Rule{Weight: &rules.Weight{To: rules.Target{Version: "0"}}}, of: Guarantee{Servers: 2, Check: checkAvoids}},
	{rule: rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "1"}, Percent: 100}}, of: Guarantee{Servers: 2, Check: checkAvoids}},
	{rule: rules.Rule{Route: &rules.Route{To: rules.Target{Version: "1"}}}, of: Guarantee{Servers: 2, Check: checkAvoids}},
	{
		rule: rules.Rule{Disable: &rules.Disable{}}, servers: true,
		of: Guarantee{Check: func(ctx context.Context, c *Cell) error {
			return c.refuses(ctx, yodel.FailedPrecondition)
		}},
	},
	{
		rule: rules.Rule{Limit: &rules.Limit{PerSecond: 1e-3, Burst: 2}}, servers: true,
		of: Guarantee{Check: CheckRate},
	},
	{
		rule: rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(20 * time.Millisecond)}},
		of:   Guarantee{Only: noStreams, Prepare: closeGate, Check: checkTimeout},
	},
	{
		rule: rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(20 * time.Millisecond), Streams: true}},
		of:   Guarantee{Name: "timeout of streams", Lacks: isNoStream, Prepare: closeGate, Check: checkTimeout},
	},
	{
		rule: rules.Rule{Retry: &rules.Retry{Times: 3, Backoff: rules.Duration(time.Millisecond)}},
		of: Guarantee{
			Only:    oneAttempt,
			Prepare: func(tr *Trial) { failTwice(tr); tr.Client.Idempotent = methods },
			Check:   func(ctx context.Context, c *Cell) error { return c.replies(ctx, 3) },
		},
	},
	{
		rule: rules.Rule{Hedge: &rules.Hedge{After: rules.Duration(10 * time.Millisecond)}},
		of:   hedging,
	},
	{
		rule: rules.Rule{Breaker: &rules.Breaker{Errors: 1, Open: rules.Duration(time.Minute)}},
		of: Guarantee{
			Prepare: func(tr *Trial) { tr.fail = always(yodel.Errorf(yodel.Unavailable, planned)) },
			Check: func(ctx context.Context, c *Cell) error {
				if _, err := c.Call(ctx, yodel.Call{}); !isPlanned(err) {
					return fmt.Errorf("the first call does not fail as planned: %w", err)
				}
				return c.refuses(ctx, yodel.Unavailable)
			},
		},
	},
	{
		rule: rules.Rule{Fault: &rules.Fault{Code: "data_loss"}}, servers: true,
		of: Guarantee{Check: func(ctx context.Context, c *Cell) error { return c.refuses(ctx, yodel.DataLoss) }},
	},
	{
		rule: rules.Rule{Mock: &rules.Answer{Reply: json.RawMessage(`{"n":77}`)}}, servers: true,
		of: Guarantee{
			Only:  "a stream has no reply",
			Check: func(ctx context.Context, c *Cell) error { return c.replies(ctx, 77) },
		},
	},
	{
		rule: rules.Rule{Fallback: &rules.Answer{Reply: json.RawMessage(`{"n":77}`)}}, servers: true,
		of: Guarantee{
			Only:    "a stream has no reply",
			Prepare: func(tr *Trial) { tr.fail = always(yodel.Errorf(yodel.Unavailable, planned)) },
			Check:   func(ctx context.Context, c *Cell) error { return c.replies(ctx, 77) },
		},
	},
}

// guarantees returns the rows of a kind: one for clients, and one for servers if it acts in servers
// too. The rule is there before the first call, and in a control it is not.
func (r ruleKind) guarantees() []Guarantee {
	g := r.of
	g.Name = cmp.Or(g.Name, r.rule.Kind())
	prepare := g.Prepare
	g.Prepare = func(tr *Trial) {
		if prepare != nil {
			prepare(tr)
		}
		followRules(tr)
	}
	put := func(side string) func(t *testing.T, tr *Trial) {
		return func(t *testing.T, tr *Trial) {
			t.Helper()
			book, err := rules.Open(tr.rules)
			if err != nil {
				t.Fatal(err)
			}
			rule := r.rule
			rule.Service, rule.Author, rule.Reason = "All", "ann", "a test"
			if r.servers {
				rule.Side = side
			}
			if _, err := book.Put(t.Context(), rule); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.Client = put("client")
	if !r.servers {
		return []Guarantee{g}
	}
	own := g
	own.Client, own.Server = nil, put("server")
	own.Lacks = func(w *Wire, _ Shape) string {
		if w.Name == "in process" || w.Name == "server to client" {
			return "a server that does not listen is announced nowhere, and follows no rules"
		}
		return "" // a server sees the error of the handler, whatever the wire
	}
	return []Guarantee{g, own}
}
