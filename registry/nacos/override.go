// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// This file stores the settings of operators for instances. They are records of the kind overrides
// in configurations of Nacos, by the address of the instance:
//
//	yodel-overrides:Shop    {"10.0.0.7:8972": {"addr": "10.0.0.7:8972", "state": "inactive"}}

const overrides = "overrides"

// Describe implements the optional method of discovery.Registrar.
func (r *Registry) Describe() yodel.Description {
	return yodel.Description{Overrides: r.Overrides, Override: r.Override}
}

// Override sets the state and the weight of an instance, as registry.Override does. The user needs
// the same permissions as for Keep.
func (r *Registry) Override(ctx context.Context, service, addr, state string, weight int) error {
	value, err := registry.Setting(service, addr, state, weight)
	if err != nil {
		return err
	}
	return r.Keep(ctx, service, overrides, registry.Settings.Name(addr), value)
}

// Overrides returns a resolver for the settings of operators for a service. It polls.
func (r *Registry) Overrides(service string) discovery.Resolver { return settings{r, service} }

// settings is the resolver for the settings for one service.
type settings struct {
	of   *Registry
	name string
}

// Watch implements discovery.Resolver.
func (s settings) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return s.of.kept(ctx, s.of.opts.Every, s.name, overrides, func(records map[string][]byte) {
		all := make([]discovery.Instance, 0, len(records))
		for name, value := range records {
			in, _ := registry.Settings.Instance(name, value) // the instance says what is wrong
			all = append(all, in)
		}
		update(all)
	})
}

// settled returns in with the setting of an operator. If the user may not read configurations, it
// returns in unchanged.
func (r *Registry) settled(ctx context.Context, service string, in discovery.Instance) (discovery.Instance, error) {
	content, err := r.readConfiguration(ctx, r.opts.Group, keptID(overrides, service))
	if failed, ok := errors.AsType[httpError](err); ok && failed.status == http.StatusForbidden {
		return in, nil
	}
	if err != nil {
		return in, err
	}
	records, err := recordsIn(content)
	if err != nil {
		return in, nil //nolint:nilerr // settings that cannot be read do not count; the watch of the settings reports them
	}
	name := registry.Settings.Name(in.Addr)
	if value := records[name]; value != nil {
		if set, err := registry.Settings.Instance(name, value); err == nil {
			in.State, in.Weight = cmp.Or(set.State, in.State), cmp.Or(set.Weight, in.Weight)
		}
	}
	return in, nil
}
