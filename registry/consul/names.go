// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// ofService is the prefix of the paths of queries for a service.
const ofService = "/v1/health/service/"

// String describes the query in errors and logs.
func (q *query) String() string {
	where := "Consul at " + q.registry.base.Host
	if dc := q.values.Get("dc"); dc != "" {
		where += ", data center " + dc
	}
	if name, ok := q.service(); ok {
		return fmt.Sprintf("service %q in %s", name, where)
	}
	return fmt.Sprintf("the keys of %s in %s", q.path, where)
}

// service returns the name of the service that the query resolves. ok is false if the query reads
// the key-value store.
func (q *query) service() (name string, ok bool) {
	name, ok = strings.CutPrefix(q.path, ofService)
	for range 2 { // once for Consul's name, and once for the path
		if plain, err := url.PathUnescape(name); err == nil {
			name = plain
		}
	}
	return name, ok
}

// Describe implements the optional method of discovery.Resolver.
func (q *query) Describe() yodel.Description { return yodel.Description{Services: q.services} }

// services returns the service of the query and all services.
func (q *query) services(ctx context.Context) (asked string, known []string, err error) {
	asked, ok := q.service()
	if !ok {
		return "", nil, errors.New("consul: services in the key-value store are not listed")
	}
	known, err = q.registry.Services(ctx)
	return asked, known, err
}

// Services returns the names of the services in the catalog of Consul, sorted, including those that
// other programs have registered.
func (r *Registry) Services(ctx context.Context) ([]string, error) {
	resp, err := r.send(ctx, http.MethodGet, path("v1", "catalog", "services"), r.there(url.Values{}), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var services map[string][]string
	if err = json.NewDecoder(resp.Body).Decode(&services); err != nil {
		return nil, fmt.Errorf("consul: list services: %w", err)
	}
	delete(services, "consul") // the service of Consul itself
	var known []string
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if plain, err := url.PathUnescape(name); err == nil {
			name = plain
		}
		known = append(known, name)
	}
	return known, hidden(resp.Header)
}

// Writable returns an error if Consul cannot take writes because its servers have no leader. It
// changes nothing.
func (r *Registry) Writable(ctx context.Context) error {
	resp, err := r.send(ctx, http.MethodGet, path("v1", "status", "leader"), nil, nil)
	if err != nil {
		return fmt.Errorf("consul: %w", err)
	}
	defer resp.Body.Close()
	var leader string
	if err = json.NewDecoder(resp.Body).Decode(&leader); err == nil && leader == "" {
		err = errors.New("its servers have no leader")
	}
	if err != nil {
		return fmt.Errorf("consul: %w", err)
	}
	return nil
}
