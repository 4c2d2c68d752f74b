// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// This file lets operators change a server through a registry. The state and the weight that an
// operator sets there override those that the server announces, until the operator removes them.
// The registrar writes them into the record. The server watches them, so that they take effect at
// once and appear in its log and in inspect.Info.

// An overrider is a Registrar that stores operators' settings. Its Announce writes them in place of
// the instance's own values. Overrides returns the settings for the instances of a service as
// records, of which only Addr, State and Weight are used.
type overrider interface {
	Overrides(service string) Resolver
}

// overrides holds the operators' settings for one server in one registry.
type overrides struct {
	announcer *announcer
	registrar Registrar

	mu       sync.Mutex
	services map[string][]Instance // by service; nil before the registry has answered
}

// follow starts to watch the settings for a service, once, until ctx ends.
func (o *overrides) follow(ctx context.Context, service string) {
	of, ok := o.registrar.(overrider)
	if !ok {
		return
	}
	o.mu.Lock()
	_, follows := o.services[service]
	if !follows {
		o.services[service] = nil
	}
	o.mu.Unlock()
	if !follows {
		o.announcer.wg.Go(func() {
			var settings Resolver
			if o.announcer.server.guard.apart("the Registrar's Overrides", nil, func() error {
				settings = of.Overrides(service)
				return nil
			}) == nil && settings != nil {
				o.watch(ctx, service, settings)
			}
		})
	}
}

// watch keeps the settings for a service up to date. While the registry fails, the last settings
// stay in force.
func (o *overrides) watch(ctx context.Context, service string, settings Resolver) {
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, lastBackoff) {
		// Announcements fail too then, and their errors are logged.
		_ = o.announcer.server.guard.apart("the Watch of a registry's settings", nil, func() error {
			return settings.Watch(ctx, func(all []Instance) {
				backoff = firstBackoff
				o.update(service, all)
			})
		})
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
	}
}

// update stores the settings for a service, and announces the server again if they change its
// record.
func (o *overrides) update(service string, all []Instance) {
	addr := o.announcer.advertised()
	o.mu.Lock()
	before := settingFor(o.services[service], addr)
	o.services[service] = slices.Clone(all)
	now := settingFor(all, addr)
	o.mu.Unlock()
	if now.State == before.State && now.Weight == before.Weight {
		return
	}
	s, registry := o.announcer.server, o.announcer.registryName(o.registrar)
	if now.State == "" && now.Weight == 0 {
		s.opts.Logger.Info("yodel: an operator's settings were removed", "service", service, "registry", registry, "addr", addr)
	} else {
		s.opts.Logger.Info("yodel: an operator has set the instance", "service", service, "registry", registry, "addr", addr,
			"state", now.State, "weight", now.Weight)
	}
	s.announceAgain()
}

// settingFor returns the setting for the instance at addr, or a zero Instance if there is none.
func settingFor(all []Instance, addr string) Instance {
	for _, in := range all {
		if in.Addr == addr {
			return in
		}
	}
	return Instance{}
}

// describe lists the settings in force.
func (o *overrides) describe() (list []introspect.Override) {
	addr, registry := o.announcer.advertised(), o.announcer.registryName(o.registrar)
	o.mu.Lock()
	defer o.mu.Unlock()
	for service, all := range o.services {
		if set := settingFor(all, addr); set.State != "" || set.Weight != 0 {
			list = append(list, introspect.Override{Service: service, Registry: registry, Addr: addr, State: set.State, Weight: set.Weight})
		}
	}
	return list
}

// overrides returns the operators' settings for the server, sorted by service and registry.
func (s *Server) overrides() (list []introspect.Override) {
	s.mu.Lock()
	announced := slices.Clone(s.announced)
	s.mu.Unlock()
	for _, a := range announced {
		for _, o := range a.overrides {
			list = append(list, o.describe()...)
		}
	}
	slices.SortFunc(list, introspect.Override.Compare)
	return list
}
