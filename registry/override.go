// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// This file stores the settings of operators for instances. A setting is a separate record next to
// the service's records, so that it outlives the announcement and a restart of the server:
//
//	yodel/Inventory/10.0.0.7:8972             what the server announces
//	yodel/Inventory^overrides/10.0.0.7:8972   what an operator has set: {"addr":"10.0.0.7:8972","state":"inactive"}

// overridden is appended to the escaped name of a service to form the name for its settings. No
// service has such a name, because escape does not leave a ^.
const overridden = "^overrides"

// Override sets the state and the weight of the instance of a service at addr. These settings take
// precedence over the values that the instance announces. They survive a restart of the instance,
// and stay until an empty state and a weight of 0 remove them. If only one of the two is empty, the
// instance decides about that one. State is "active" or "inactive". An inactive instance gets no
// calls. A server that is announced at addr applies the settings at once, and inspect.Info lists
// them.
//
// Registries made by New support such settings, and so do Consul and Nacos. For others, Override
// returns an error.
func Override(ctx context.Context, r discovery.Registrar, service, addr, state string, weight int) error {
	d := yodel.Description{}.Over(r)
	if d.Override == nil {
		return fmt.Errorf("override: a %T keeps no settings of operators", r)
	}
	return d.Override(ctx, service, addr, state, weight)
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
// set, in the layout Settings. It returns nil if there is nothing to store, and the same errors as
// Override.
func Setting(service, addr, state string, weight int) ([]byte, error) {
	err := checkSetting(state, weight)
	if addr == "" {
		err = errors.New("no address is given")
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("override %s: %w", service, err)
	case state == "" && weight == 0:
		return nil, nil
	}
	return json.Marshal(discovery.Instance{Addr: addr, State: state, Weight: weight})
}

func checkSetting(state string, weight int) error {
	switch {
	case state != "" && state != "active" && state != "inactive":
		return fmt.Errorf(`the state %q is neither "active" nor "inactive"`, state)
	case weight < 0:
		return fmt.Errorf("the weight %d is negative", weight)
	}
	return nil
}

// Overrides returns a resolver for the settings of operators for a service. Only Addr, State and
// Weight of its instances count, and the problem in their metadata: see Settings. Servers watch it.
func (r *Registry) Overrides(name string) discovery.Resolver {
	opts := r.opts
	opts.Layout = Settings // even if the service itself uses the layout of another system
	return &service{&Registry{store: r.store, opts: opts}, name, r.overridePrefix(name)}
}

// Settings is the layout of the settings of operators. It is JSON, and the address is the name of
// the record, so a person may leave out the field addr. If a record is not a valid setting, its
// instance has neither a state nor a weight, and the reason is in its metadata under the key
// "problem".
var Settings Layout = settingLayout{JSON}

type settingLayout struct{ Layout }

func (settingLayout) Instance(name string, value []byte) (in discovery.Instance, err error) {
	if err = json.Unmarshal(value, &in); err == nil {
		err = checkSetting(in.State, in.Weight)
	}
	in = discovery.Instance{Addr: unescape(name), State: in.State, Weight: in.Weight}
	if err != nil {
		in.State, in.Weight, in.Metadata = "", 0, yodel.Metadata{problemKey: err.Error()}
	}
	return in, err
}

// problemKey is the key of the metadata of a setting that cannot be read.
const problemKey = "problem"

func (r *Registry) overridePrefix(service string) string {
	return strings.TrimSuffix(r.prefix(service), "/") + overridden + "/"
}

func (r *Registry) overrideKey(service, addr string) string {
	return r.overridePrefix(service) + JSON.Name(addr)
}

// settled returns the record to announce for in, with the settings of operators. If the record in
// the registry differs from the one that this process last wrote there, an operator has edited it,
// and settled stores the edit as a setting. Known is the record without an edit that could not be
// stored, so that the next announcement finds the edit again.
func (r *Registry) settled(ctx context.Context, service string, in discovery.Instance) (announced, known discovery.Instance, err error) {
	set, err := r.setting(ctx, service, in.Addr)
	if err != nil {
		return in, in, err
	}
	edit, err := r.edited(ctx, service, in.Addr)
	if err != nil {
		return in, in, err
	}
	known = set.applied(in)
	if edit.value != nil { // it is no setting, but it is kept until the operator has seen it
		r.keepEdit(ctx, service, in.Addr, edit.value)
		return known, known, nil
	}
	if edit.setting == (setting{}) {
		return known, known, nil
	}
	set = setting{cmp.Or(edit.state, set.state), cmp.Or(edit.weight, set.weight)}
	value, err := json.Marshal(discovery.Instance{Addr: in.Addr, State: set.state, Weight: set.weight})
	if err != nil {
		return in, in, err
	}
	announced = set.applied(in)
	if r.keepEdit(ctx, service, in.Addr, value) {
		known = announced
	}
	return announced, known, nil
}

// keepEdit stores the edit of a record as a setting. A failure does not fail the announcement,
// because a server may lack the permission.
func (r *Registry) keepEdit(ctx context.Context, service, addr string, value []byte) bool {
	err := r.store.Put(ctx, r.overrideKey(service, addr), value, 0)
	if err != nil {
		cmp.Or(r.opts.Logger, slog.Default()).Warn("yodel: an operator has edited a record, and the edit could not be stored as a setting",
			"rpcService", service, "addr", addr, "err", err)
	}
	return err == nil
}

// A setting is what an operator has set for an instance. A field with its zero value does not
// override the instance's own value.
type setting struct {
	state  string
	weight int
}

func (s setting) applied(in discovery.Instance) discovery.Instance {
	in.State, in.Weight = cmp.Or(s.state, in.State), cmp.Or(s.weight, in.Weight)
	return in
}

// setting returns the setting for an instance. A setting that cannot be read counts as none. Those
// that watch the settings report it.
func (r *Registry) setting(ctx context.Context, service, addr string) (setting, error) {
	value, err := r.store.Get(ctx, r.overrideKey(service, addr))
	if err != nil || value == nil {
		return setting{}, err
	}
	in, err := Settings.Instance(JSON.Name(addr), value)
	if err != nil {
		return setting{}, nil //nolint:nilerr // see above
	}
	return setting{in.State, in.Weight}, nil
}

// An edit is the change that an operator has made in the record of an instance.
type edit struct {
	setting

	value []byte // the record, if the edit is not a valid setting
}

// edited returns the edit of the record of an instance.
func (r *Registry) edited(ctx context.Context, service, addr string) (change edit, err error) {
	key := r.key(service, addr)
	r.mu.Lock()
	wrote := r.written[key]
	r.mu.Unlock()
	if !wrote.certain {
		return change, nil
	}
	value, err := r.store.Get(ctx, key)
	if err != nil || value == nil {
		return change, err
	}
	own, err := r.opts.Layout.Value(wrote.in)
	if err != nil || bytes.Equal(own, value) {
		return change, err
	}
	found, err := r.opts.Layout.Instance(r.opts.Layout.Name(addr), value)
	if err == nil && !found.Started.Equal(wrote.in.Started) {
		return change, nil // another process at the address
	}
	if found.State != wrote.in.State {
		change.state = cmp.Or(found.State, "active")
	}
	if found.Weight != wrote.in.Weight {
		change.weight = cmp.Or(found.Weight, 1)
	}
	if err != nil || checkSetting(change.state, change.weight) != nil {
		change = edit{value: value}
	}
	return change, nil
}

// wrote remembers what this process has written under key.
func (r *Registry) wrote(key string, w written) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written[key] = w
}
