// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// A Lister is a Store that can list folders without reading the values in them. With a Lister, the
// error of a client without instances names the services that exist.
type Lister interface {
	// List returns the names of the folders directly below prefix, which ends with a slash. It may
	// omit names after the first few hundred.
	List(ctx context.Context, prefix string) ([]string, error)
}

// String names the registry in logs, without secrets, for example "etcd at 10.0.0.1:2379". A Store
// without a method String is named by its package.
func (r *Registry) String() string {
	if store, ok := r.store.(fmt.Stringer); ok {
		return store.String()
	}
	name, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", r.store), "*"), ".")
	return name
}

// String describes the resolver in errors and logs: the service, the registry and the prefix of the
// keys. A Store names itself with a method String, without secrets.
func (s *service) String() string {
	where := "a registry"
	if store, ok := s.store.(fmt.Stringer); ok {
		where = store.String()
	}
	return fmt.Sprintf("service %q in %s (keys %s…)", s.name, where, s.prefix)
}

// Services returns the names of the services in the registry, sorted. It returns an error if the
// store is not a Lister. It may omit names after the first few hundred, and may return names of
// services that have no instance any more.
func (r *Registry) Services(ctx context.Context) ([]string, error) {
	lister, ok := r.store.(Lister)
	if !ok {
		return nil, fmt.Errorf("%T cannot list services", r.store)
	}
	folders, err := lister.List(ctx, r.opts.Prefix+"/")
	var names []string
	for _, folder := range folders {
		if !strings.Contains(folder, "^") { // a folder of operators' records
			names = append(names, unescape(folder))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Services implements the optional method of yodel.Resolver.
func (s *service) Services(ctx context.Context) (asked string, known []string, err error) {
	known, err = s.Registry.Services(ctx)
	return s.name, known, err
}

// String describes the resolver in errors and logs.
func (s *several) String() string {
	names := make([]string, 0, len(s.resolvers))
	for _, r := range s.resolvers {
		names = append(names, nameOf(r))
	}
	return strings.Join(names, " and ")
}

// Services implements the optional method of yodel.Resolver. It asks the first resolver that can
// list services.
func (s *several) Services(ctx context.Context) (asked string, known []string, err error) {
	err = errors.New("no resolver can list services")
	for _, r := range s.resolvers {
		if asked, known, err = servicesOf(ctx, r); err == nil {
			return asked, known, nil
		}
	}
	return "", nil, err
}

// ServiceName implements the optional method of yodel.Resolver. It returns "" unless all resolvers
// resolve the same service.
func (s *several) ServiceName() string {
	name := ""
	for i, r := range s.resolvers {
		if of := serviceOf(r); i == 0 {
			name = of
		} else if of != name {
			return ""
		}
	}
	return name
}

// serviceOf returns the name of the service that r resolves, or "" if r does not say.
func serviceOf(r yodel.Resolver) string {
	if of, ok := r.(interface{ ServiceName() string }); ok {
		return of.ServiceName()
	}
	return ""
}

// nameOf returns the description of r if it has a method String.
func nameOf(r yodel.Resolver) string {
	if named, ok := r.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("a %T", r)
}

func servicesOf(ctx context.Context, r yodel.Resolver) (asked string, known []string, err error) {
	lister, ok := r.(interface {
		Services(ctx context.Context) (asked string, known []string, err error)
	})
	if !ok {
		return "", nil, fmt.Errorf("%T cannot list services", r)
	}
	return lister.Services(ctx)
}

func unescape(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}
