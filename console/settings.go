// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// This file reads and names the settings of operators for instances.

// A setting is what an operator has set for an instance. A zero field leaves the instance its own
// value.
type setting struct {
	State  string `json:"set,omitempty"`
	Weight int    `json:"setWeight,omitempty"`
	// Problem is why the setting cannot be read. Such a setting sets nothing.
	Problem string `json:"setProblem,omitempty"`
}

// words returns the setting in words.
func (s setting) words() string {
	switch {
	case s.Problem != "":
		return "a setting that cannot be read: " + s.Problem
	case s == setting{}:
		return "its own state and weight"
	case s.Weight == 0:
		return s.State
	case s.State == "":
		return fmt.Sprintf("weight %d", s.Weight)
	}
	return fmt.Sprintf("%s, weight %d", s.State, s.Weight)
}

// maxProblem bounds the bytes of setting.Problem, which the registry may have from anyone.
const maxProblem = 300

// settingOf returns a setting. Problem is why it cannot be read, or "".
func settingOf(state string, weight int, problem string) setting {
	if problem != "" {
		return setting{Problem: strings.ToValidUTF8(problem[:min(len(problem), maxProblem)], "")}
	}
	return setting{State: state, Weight: max(weight, 0)}
}

// describe describes the registry. Its Override is nil if it keeps no settings of operators.
func (c *Console) describe() yodel.Description { return yodel.Description{}.Over(c.source) }

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
	from := c.describe()
	if from.Overrides == nil {
		return toldSettings(of), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var found map[string]setting // nil before the first update
	err := fleet.Bounded(from.Overrides(of.Name)).Watch(ctx, func(all []discovery.Instance) {
		found = make(map[string]setting, len(all))
		for i := range all {
			found[all[i].Addr] = settingOf(all[i].State, all[i].Weight, all[i].Metadata["problem"])
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
				found[in.Addr] = settingOf(o.State, o.Weight, o.Problem)
			}
		}
	}
	return found
}
