// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Lister is a Store that can list folders without reading the values in them. With a Lister, the
// error of a client without instances names the services that exist.
type Lister interface {
	// List returns the names of all folders directly below prefix, which ends with a slash. If it
	// returns an error, the names may be incomplete.
	List(ctx context.Context, prefix string) ([]string, error)
}

// Describe implements the optional method of discovery.Registrar.
func (r *Registry) Describe() yodel.Description {
	return yodel.Description{Overrides: r.Overrides, Override: r.Override, Writable: r.Writable}
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

// Services returns the names of all services in the registry, sorted. It may return names of
// services that have no instance any more. If it returns an error, the names may be incomplete. It
// returns an error if the store is not a Lister.
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

// hintTime bounds how long a resolver lists services for the hints in the errors of a client. The
// clients of a service without instances must not keep the registry busy.
const hintTime = 500 * time.Millisecond

// A writer is a Store that can say whether it takes writes, without a change: for example, a
// replica does not, nor does a full disk.
type writer interface {
	// Writable returns why key, which does not exist, could not be put.
	Writable(ctx context.Context, key string) error
}

// Writable returns an error if servers cannot announce themselves, because the store takes no
// writes, or none with the credentials of this registry. It changes nothing: if the store cannot
// say, Writable deletes a key that does not exist.
func (r *Registry) Writable(ctx context.Context) error {
	key := r.opts.Prefix + "/^writable/" + rand.Text() // no service has such a name
	if w, ok := r.store.(writer); ok {
		return w.Writable(ctx, key)
	}
	return r.store.Delete(ctx, key)
}

// hint returns the name of the service and those of all services. They may be incomplete.
func (s *service) hint(ctx context.Context) (asked string, known []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, hintTime)
	defer cancel()
	known, err = s.Services(ctx)
	if len(known) > 0 {
		err = nil
	}
	return s.name, known, err
}

func unescape(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}
