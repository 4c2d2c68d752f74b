// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A resolver that combines or stores others has all that they can do.
func TestWrappersHideNothing(t *testing.T) {
	for name, wrap := range map[string]func(discovery.Resolver) discovery.Resolver{
		"Snapshot": func(r discovery.Resolver) discovery.Resolver { return registry.Snapshot("unused", r) },
		"Merge":    func(r discovery.Resolver) discovery.Resolver { return registry.Merge(r) },
		"Merge of a list and it": func(r discovery.Resolver) discovery.Resolver {
			return registry.Merge(describedService{discovery.Static("a:1"), "the inner Service"}, r)
		},
		"Prefer": func(r discovery.Resolver) discovery.Resolver { return registry.Prefer(r, r) },
	} {
		t.Run(name, func(t *testing.T) {
			yodeltest.TestWrapper(t, func(inner yodeltest.Described) any { return wrap(inner) })
		})
	}
}

type describedService struct {
	discovery.Resolver
	service string
}

func (s describedService) Describe() yodel.Description { return yodel.Description{Service: s.service} }
