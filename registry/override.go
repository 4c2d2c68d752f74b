// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// This file stores the settings of operators for instances. A setting is a separate record next to
// the service's records, so that it outlives the announcement and a restart of the server:
//
//	yodel/Inventory/10.0.0.7:8972             what the server announces
//	yodel/Inventory^overrides/10.0.0.7:8972   what an operator has set: {"addr":"10.0.0.7:8972","state":"inactive"}

// overridden is appended to the escaped name of a service to form the name for its settings. No
// service has such a name, because escape does not leave a ^.
const overridden = "^overrides"

// An overrider is a registry that stores the settings of operators.
type overrider interface {
	Override(ctx context.Context, service, addr, state string, weight int) error
}

// Override sets the state and the weight of the instance of a service at addr. These settings take
// precedence over the values that the instance announces. They survive a restart of the instance,
// and stay until an empty state and a weight of 0 remove them. If only one of the two is empty, the
// instance decides about that one. State is "active" or "inactive". An inactive instance gets no
// calls. A server that is announced at addr applies the settings at once, and inspect.Info lists
// them.
//
// Registries made by New support such settings, and so does Consul. For others, Override returns an
// error.
func Override(ctx context.Context, r yodel.Registrar, service, addr, state string, weight int) error {
	o, ok := r.(overrider)
	if !ok {
		return fmt.Errorf("override: a %T keeps no settings of operators", r)
	}
	return o.Override(ctx, service, addr, state, weight)
}

// Override sets the state and the weight of an instance: see the function Override.
func (r *Registry) Override(ctx context.Context, service, addr, state string, weight int) error {
	value, err := Setting(service, addr, state, weight)
	switch {
	case err != nil:
		return err
	case value == nil:
		return r.store.Delete(ctx, r.overrideKey(service, addr))
	}
	return r.store.Put(ctx, r.overrideKey(service, addr), value, 0)
}

// Setting returns the value that a registry stores for the state and weight that an operator has
// set, in the layout JSON. It returns nil if there is nothing to store, and the same errors as
// Override.
func Setting(service, addr, state string, weight int) ([]byte, error) {
	switch {
	case addr == "":
		return nil, fmt.Errorf("override %s: no address is given", service)
	case state != "" && state != "active" && state != "inactive":
		return nil, fmt.Errorf(`override %s: the state %q is neither "active" nor "inactive"`, service, state)
	case weight < 0:
		return nil, fmt.Errorf("override %s: the weight %d is negative", service, weight)
	case state == "" && weight == 0:
		return nil, nil
	}
	return json.Marshal(yodel.Instance{Addr: addr, State: state, Weight: weight})
}

// Overrides returns a resolver for the settings of operators for a service. Only Addr, State and
// Weight of its instances count. Servers watch it.
func (r *Registry) Overrides(name string) yodel.Resolver {
	opts := r.opts
	opts.Layout = JSON // even if the service itself uses the layout of another system
	return &service{&Registry{store: r.store, opts: opts}, name, r.overridePrefix(name)}
}

func (r *Registry) overridePrefix(service string) string {
	return strings.TrimSuffix(r.prefix(service), "/") + overridden + "/"
}

func (r *Registry) overrideKey(service, addr string) string {
	return r.overridePrefix(service) + JSON.Name(addr)
}

// settled returns in with the settings of operators. If the state or the weight in the record of
// the instance differs from the value that this process last wrote there, an operator has changed
// it, and settled stores the change as a setting.
func (r *Registry) settled(ctx context.Context, service string, in yodel.Instance) (yodel.Instance, error) {
	set, err := r.setting(ctx, service, in.Addr)
	if err != nil {
		return in, err
	}
	edited, err := r.edited(ctx, service, in.Addr)
	if err != nil {
		return in, err
	}
	if edited != (setting{}) {
		set = setting{cmp.Or(edited.state, set.state), cmp.Or(edited.weight, set.weight)}
		if err := r.Override(ctx, service, in.Addr, set.state, set.weight); err != nil {
			return in, fmt.Errorf("keep what an operator has set for %s: %w", in.Addr, err)
		}
	}
	in.State, in.Weight = cmp.Or(set.state, in.State), cmp.Or(set.weight, in.Weight)
	return in, nil
}

// A setting is what an operator has set for an instance. A field with its zero value does not
// override the instance's own value.
type setting struct {
	state  string
	weight int
}

// setting returns the setting for an instance.
func (r *Registry) setting(ctx context.Context, service, addr string) (setting, error) {
	value, err := r.store.Get(ctx, r.overrideKey(service, addr))
	if err != nil || value == nil {
		return setting{}, err
	}
	in, err := JSON.Instance("", value)
	if err != nil {
		return setting{}, nil //nolint:nilerr // a broken setting is none: those who watch the settings log it
	}
	return setting{in.State, max(in.Weight, 0)}, nil
}

// edited returns the changes that an operator has made in the record of an instance.
func (r *Registry) edited(ctx context.Context, service, addr string) (change setting, err error) {
	key := r.key(service, addr)
	r.mu.Lock()
	wrote, known := r.written[key]
	r.mu.Unlock()
	if !known {
		return change, nil
	}
	value, err := r.store.Get(ctx, key)
	if err != nil || value == nil {
		return change, err
	}
	found, err := r.opts.Layout.Instance(r.opts.Layout.Name(addr), value)
	if err != nil || !found.Started.Equal(wrote.Started) {
		return change, nil //nolint:nilerr // a broken record, or that of another process at the address, is replaced
	}
	if found.State != wrote.State {
		change.state = cmp.Or(found.State, "active")
	}
	if found.Weight != wrote.Weight {
		change.weight = max(found.Weight, 1)
	}
	return change, nil
}

// wrote remembers the instance that this process has written under key.
func (r *Registry) wrote(key string, in yodel.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written[key] = in
}

// forget notes that the value of key in the registry is unknown.
func (r *Registry) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.written, key)
}
