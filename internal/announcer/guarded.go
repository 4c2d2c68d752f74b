// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// put announces a record under a service. The Registrar cannot end the process or the announcing
// goroutine.
func (a *Announcer) put(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	return a.Guard.Apart("the Registrar's Announce", nil, func() error { return a.Registrar.Announce(ctx, service, in, ttl) })
}

// remove withdraws a record, in the same way.
func (a *Announcer) remove(ctx context.Context, at place) error {
	return a.Guard.Apart("the Registrar's Withdraw", nil, func() error { return a.Registrar.Withdraw(ctx, at.service, at.addr) })
}

// settings returns a function that opens the settings of operators in a registry. Neither it nor
// the Watch that it returns can end the process or the goroutine that watches the settings.
func (g *Group) settings(overrides func(service string) discovery.Resolver) func(service string) Watch {
	return func(service string) Watch {
		var r discovery.Resolver
		err := g.Guard.Apart("the Registrar's Overrides", nil, func() error {
			r = overrides(service)
			return nil
		})
		if err != nil || r == nil {
			return nil
		}
		return func(ctx context.Context, update func([]Setting)) error {
			ctx = introspect.WithNote(ctx, g.Note)
			return g.Guard.Apart("the Watch of a registry's settings", nil, func() error {
				return r.Watch(ctx, func(all []discovery.Instance) { update(settingsOf(all)) })
			})
		}
	}
}

// settingsOf reads settings that a registry returns in the form of instances.
func settingsOf(instances []discovery.Instance) []Setting {
	all := make([]Setting, len(instances))
	for i := range instances {
		in := &instances[i]
		all[i] = Setting{Addr: in.Addr, State: in.State, Weight: in.Weight, Problem: in.Metadata["problem"]}
	}
	return all
}
