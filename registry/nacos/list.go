// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"net/url"
	"slices"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Services returns the names of the services in the namespace and the group, sorted, including
// those of other programs and those whose last instance has left: Nacos removes an empty service
// after a while. With version 3 of the API, Nacos lists services only for an administrator if it
// authenticates its users.
func (r *Registry) Services(ctx context.Context) ([]string, error) {
	listed, err := r.services(ctx, "")
	var names []string
	for _, name := range listed {
		if plain, bad := url.PathUnescape(name); bad == nil {
			name = plain
		}
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Describe implements the optional method of discovery.Resolver.
func (s *service) Describe() yodel.Description { return yodel.Description{Services: s.services} }

// services returns the name of the service and those of all services.
func (s *service) services(ctx context.Context) (asked string, known []string, err error) {
	known, err = s.of.Services(ctx)
	return s.name, known, err
}

var _ discovery.Resolver = (*service)(nil)
