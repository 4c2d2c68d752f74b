// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// hiding is a wrapper without a method Describe.
type hiding struct{ discovery.Resolver }

// partial is a wrapper that forwards the fields of Description that its author knew.
type partial struct{ Described }

func (p partial) Describe() yodel.Description {
	d := p.Described.Describe()
	return yodel.Description{Name: d.Name, Refresh: d.Refresh}
}

// whole is a wrapper that forwards the description, and has a service of its own.
type whole struct{ discovery.Resolver }

func (w whole) Describe() yodel.Description {
	return yodel.Description{Service: "Other"}.Over(w.Resolver)
}

func TestWrappersThatHideAreFound(t *testing.T) {
	var names []string
	for field := range reflect.TypeFor[yodel.Description]().Fields() {
		names = append(names, field.Name)
	}
	for name, test := range map[string]struct {
		wrap  func(Described) any
		own   []string
		hides []string
	}{
		"an embedded interface":       {func(in Described) any { return hiding{in} }, nil, names},
		"only the known fields":       {func(in Described) any { return partial{in} }, []string{"Service"}, names[3:]},
		"a field of its own":          {func(in Described) any { return whole{in} }, nil, []string{"Service"}},
		"a declared field of its own": {func(in Described) any { return whole{in} }, []string{"Service"}, nil},
		"the inner one":               {func(in Described) any { return in }, nil, nil},
	} {
		var hidden []string
		if err := wrapperFault(test.wrap, test.own); err != nil {
			for line := range strings.Lines(err.Error()) {
				hidden = append(hidden, strings.Fields(line)[4])
			}
		}
		if strings.Join(hidden, " ") != strings.Join(test.hides, " ") {
			t.Errorf("%s: found that it hides %q, want %q", name, hidden, test.hides)
		}
	}
}
