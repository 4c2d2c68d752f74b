// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// This file reads and names the settings of operators for instances.

// A setting is what an operator has set for an instance. A zero field leaves the instance its own
// value.
type setting struct {
	state  string
	weight int
}

func (s setting) String() string {
	switch {
	case s == setting{}:
		return "its own state and weight"
	case s.weight == 0:
		return s.state
	case s.state == "":
		return fmt.Sprintf("weight %d", s.weight)
	}
	return fmt.Sprintf("%s, weight %d", s.state, s.weight)
}

// An overrider is a registry that keeps settings of operators.
type overrider interface {
	Override(ctx context.Context, service, addr, state string, weight int) error
}

// overrider returns the registry if it keeps settings of operators, or nil.
func (c *Console) overrider() overrider {
	o, _ := c.source.(overrider)
	return o
}

// maxSettings bounds how many services the console keeps settings of.
const maxSettings = 1024

// settings returns the settings for a service by address, at most a second old.
func (c *Console) settings(ctx context.Context, of *fleet.Service) (map[string]setting, error) {
	c.setMu.Lock()
	one := c.set[of.Name]
	if one == nil {
		if c.set == nil || len(c.set) >= maxSettings {
			c.set = make(map[string]*kept[map[string]setting])
		}
		one = new(kept[map[string]setting])
		c.set[of.Name] = one
	}
	c.setMu.Unlock()
	return one.get(ctx, &c.fleet, func(ctx context.Context) (map[string]setting, error) { return c.readSettings(ctx, of) })
}

// allSettings returns the settings for all services, and why those of some cannot be read, by
// service.
func (c *Console) allSettings(ctx context.Context, services []*fleet.Service) (sets map[string]map[string]setting, failed map[string]error) {
	var mu sync.Mutex
	sets, failed = make(map[string]map[string]setting), make(map[string]error)
	each(ctx, c, services, func(ctx context.Context, of *fleet.Service, err error) {
		var set map[string]setting
		if err == nil {
			set, err = c.settings(ctx, of)
		}
		mu.Lock()
		defer mu.Unlock()
		sets[of.Name] = set
		if err != nil {
			failed[of.Name] = err
		}
	})
	return sets, failed
}

// forgetSettings makes the next call of settings read those of all services again.
func (c *Console) forgetSettings() {
	c.setMu.Lock()
	defer c.setMu.Unlock()
	c.set = nil
}

// readSettings reads the settings for a service, by address. An instance learns its setting late,
// and tells it only while it is up. So the registry is asked, if it has the settings.
func (c *Console) readSettings(ctx context.Context, of *fleet.Service) (map[string]setting, error) {
	from, ok := c.source.(interface {
		Overrides(service string) yodel.Resolver
	})
	if !ok {
		return toldSettings(of), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var found map[string]setting // nil before the first update
	err := fleet.Bounded(from.Overrides(of.Name)).Watch(ctx, func(all []yodel.Instance) {
		found = make(map[string]setting, len(all))
		for i := range all {
			found[all[i].Addr] = setting{all[i].State, max(all[i].Weight, 0)}
		}
		cancel()
	})
	switch {
	case found != nil:
		return found, nil
	case err == nil:
		err = errors.New("the registry has not answered in time")
	}
	return nil, yodel.Errorf(yodel.Unavailable, "the settings of operators for %s cannot be read: %s", of.Name, errorText(err))
}

// toldSettings returns the settings that the instances of a service report.
func toldSettings(of *fleet.Service) map[string]setting {
	found := make(map[string]setting)
	for _, in := range of.Instances {
		if in.Info == nil {
			continue
		}
		for _, o := range in.Info.Overrides {
			if o.Service == of.Name {
				found[in.Addr] = setting{o.State, o.Weight}
			}
		}
	}
	return found
}
