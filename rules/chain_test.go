// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A call that is within a rule when another rule comes meets all rules below: that a chain is being
// built hides none of them.
func TestACallMeetsAllRulesWhileAChainIsBuilt(t *testing.T) {
	refused := errors.New("the rule below has refused the call")
	rule := func(r Rule, wrap yodel.Middleware) *active {
		return &active{Rule: r, kind: r.kind(), counts: new(counts), wrap: func(*yodel.Server) yodel.Middleware { return wrap }}
	}
	through := func(next yodel.Handler) yodel.Handler { return next }
	above := rule(Rule{Side: "client", Limit: &Limit{}}, through)
	below := rule(Rule{Mock: &Answer{}}, func(yodel.Handler) yodel.Handler {
		return func(context.Context, *yodel.Call) error { return refused }
	})
	of := newService(nil, "Shop")
	c := &chain{
		service: of, side: "client", stages: []*kind{&limitKind, &timeoutKind, &mockKind},
		next: func(context.Context, *yodel.Call) error { return nil },
	}
	call := func() error { return c.do(t.Context(), new(yodel.Call)) }
	of.table.Store(&table{rules: []*active{above, below}})
	if err := call(); !errors.Is(err, refused) {
		t.Fatalf("got %v", err)
	}
	inside := c.nodes[above].handler // where a call is that the rule above has let through
	var during error
	late := rule(Rule{Timeout: &Timeout{}}, func(next yodel.Handler) yodel.Handler {
		during = inside(t.Context(), new(yodel.Call)) // the chain is being built
		return next
	})
	of.table.Store(&table{rules: []*active{above, below, late}})
	if err := call(); !errors.Is(err, refused) || !errors.Is(during, refused) {
		t.Errorf("a call got %v; while the chain was built, %v", err, during)
	}
}
