// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// overridesBase is the folder of the settings of operators in the key-value store:
// yodel-overrides/SERVICE/ADDR.
const overridesBase = "yodel-overrides"

// Describe implements the optional method of discovery.Registrar.
func (r *Registry) Describe() yodel.Description {
	return yodel.Description{Overrides: r.Overrides, Override: r.Override, Writable: r.Writable}
}

// Override sets the state and the weight of an instance, as registry.Override does. It writes the
// setting to Consul's key-value store, in the data center where this registry's clients look. The
// token needs key:write.
func (r *Registry) Override(ctx context.Context, service, addr, state string, weight int) error {
	value, err := registry.Setting(service, addr, state, weight)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	key := overrideKey(service, addr)
	method := http.MethodPut
	if value == nil {
		method = http.MethodDelete
	}
	resp, err := r.send(ctx, method, key, r.there(url.Values{}), value)
	if err != nil {
		return fmt.Errorf("consul: %s %s: %w", method, key, err)
	}
	return resp.Body.Close()
}

// Overrides returns a resolver for the settings of operators for a service. It reads them in the
// agent's data center, where servers register.
func (r *Registry) Overrides(service string) discovery.Resolver {
	return r.keys(overridesBase, escape(service), registry.Settings, url.Values{"recurse": {"1"}})
}

func overrideKey(service, addr string) string {
	return path("v1", "kv", overridesBase, escape(service), registry.JSON.Name(addr))
}

// settled returns in with the settings of operators. If the token may not read the key-value store,
// settled returns in unchanged.
func (r *Registry) settled(ctx context.Context, service string, in discovery.Instance) (discovery.Instance, error) {
	key := overrideKey(service, in.Addr)
	resp, err := r.send(ctx, http.MethodGet, key, nil, nil)
	if no, refused := errors.AsType[*refusal](err); refused && (no.code == http.StatusNotFound || no.code == http.StatusForbidden) {
		return in, nil
	}
	if err != nil {
		return in, fmt.Errorf("consul: GET %s: %w", key, err)
	}
	defer resp.Body.Close()
	var pairs []struct {
		Value []byte `json:"Value"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&pairs); err != nil || len(pairs) == 0 {
		return in, err
	}
	set, err := registry.Settings.Instance(registry.JSON.Name(in.Addr), pairs[0].Value)
	if err != nil {
		return in, nil // a broken setting does not count; the Watch of the settings logs it
	}
	in.State, in.Weight = cmp.Or(set.State, in.State), cmp.Or(set.Weight, in.Weight)
	return in, nil
}
