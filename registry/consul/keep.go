// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// keptBase returns the folder of the records of a kind in the key-value store, for example
// yodel-rules/SERVICE/ID.
func keptBase(kind string) string { return "yodel-" + kind }

// Keep stores a record of an operator, as registry.Registry.Keep does, in Consul's key-value store
// in the data center where this registry's clients look. The token needs key:write.
func (r *Registry) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	key, method := path("v1", "kv", keptBase(kind), escape(service), registry.Records.Name(id)), http.MethodPut
	if value == nil {
		method = http.MethodDelete
	}
	resp, err := r.send(ctx, method, key, r.there(url.Values{}), value)
	if err != nil {
		return fmt.Errorf("consul: %s %s: %w", method, key, err)
	}
	return resp.Body.Close()
}

// Kept calls update with all records of a kind for a service, by ID, at once and after every
// change, until ctx ends.
func (r *Registry) Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error {
	of := r.keys(keptBase(kind), escape(service), registry.Records, r.there(url.Values{"recurse": {"1"}}))
	return of.Watch(ctx, func(instances []discovery.Instance) { update(registry.RecordsIn(instances)) })
}

// KeptServices returns the services that have records of a kind.
func (r *Registry) KeptServices(ctx context.Context, kind string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	key := path("v1", "kv", keptBase(kind), "")
	resp, err := r.send(ctx, http.MethodGet, key, r.there(url.Values{"keys": {"1"}, "separator": {"/"}}), nil)
	if no, refused := errors.AsType[*refusal](err); refused && no.code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("consul: GET %s: %w", key, err)
	}
	defer resp.Body.Close()
	var folders, services []string
	if err := json.NewDecoder(resp.Body).Decode(&folders); err != nil {
		return nil, fmt.Errorf("consul: GET %s: %w", key, err)
	}
	for _, folder := range folders {
		name := strings.Trim(strings.TrimPrefix(folder, keptBase(kind)), "/")
		if plain, err := url.PathUnescape(name); err == nil && plain != "" {
			services = append(services, plain)
		}
	}
	return services, hidden(resp.Header)
}
