// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// kept is a registry that keeps rules, and that inner describes.
type kept struct {
	rules.Registry
	inner yodeltest.Described
}

func (k kept) Describe() yodel.Description       { return k.inner.Describe() }
func (k kept) Service(string) discovery.Resolver { return k.inner }

// A registry with rules, and its resolvers, have all that the registry can do.
func TestRulesHideNothing(t *testing.T) {
	with := func(inner yodeltest.Described) *rules.Rules { return rules.With(kept{memory.New(nil), inner}, nil) }
	t.Run("registry", func(t *testing.T) {
		yodeltest.TestWrapper(t, func(inner yodeltest.Described) any { return with(inner) }, "Rules")
	})
	t.Run("resolver", func(t *testing.T) {
		yodeltest.TestWrapper(t, func(inner yodeltest.Described) any { return with(inner).Service("Shop") })
	})
	t.Run("settings of operators", func(t *testing.T) { // a server watches them
		calls := 0
		r := rules.With(described{memory.New(nil), yodel.Description{Overrides: func(string) discovery.Resolver { calls++; return nil }}}, nil)
		if s := (yodel.Description{}).Over(r).Overrides("Shop"); s == nil || calls != 1 {
			t.Errorf("got the settings %v after %d calls of the registry's Overrides, want a resolver after one", s, calls)
		}
	})
}

type described struct {
	rules.Registry
	d yodel.Description
}

func (d described) Describe() yodel.Description { return d.d }
