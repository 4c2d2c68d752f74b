// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// These are labels of slices.
const (
	labelService = "kubernetes.io/service-name"
	labelVersion = "app.kubernetes.io/version"
	labelGroup   = ours + "group"
	labelWeight  = ours + "weight"
)

// Service returns a resolver for the instances of a Kubernetes Service. The target is
// NAMESPACE/NAME:PORT. The namespace may be omitted, and so may the port if the Service has only
// one. The port is the name of a port, or its number on the pods.
//
// A pod that is ready is an instance. The instance has the zone of the pod, and its metadata has
// the names of the pod and the node. A pod that terminates is an inactive instance, although it may
// still serve calls. It gets no new calls as soon as Kubernetes has decided to stop it, so that it
// can use the whole grace period for its current calls. A pod that is not ready is not listed. If
// most pods disappear at once, a client continues to call those that answer, because Kubernetes
// also reports the pods of unreachable nodes as not ready.
//
// Version, group and weight apply to all pods of the Service. They come from its labels
// app.kubernetes.io/version, yodel-rpc.github.io/group and yodel-rpc.github.io/weight, which
// Kubernetes copies to the slices. Reading the labels of each pod would require the permission to
// read pods. If a pod has an IPv4 and an IPv6 address, the IPv4 address is used.
func Service(target string, o *Options) discovery.Resolver {
	s := &service{opts: o}
	namespace, name, ok := strings.Cut(target, "/")
	if !ok {
		namespace, name = "", target
	}
	s.namespace = namespace
	s.name, s.port, _ = strings.Cut(name, ":")
	return s
}

// A service is the resolver for one Service of Kubernetes.
type service struct {
	opts                  *Options
	namespace, name, port string
}

// Watch implements discovery.Resolver.
func (s *service) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	a, err := connect(s.opts) //nolint:contextcheck // its connections outlive ctx, by the time that a watch needs to end
	if err != nil {
		return err
	}
	defer a.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := &view{of: s, news: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- s.read(ctx, a, v)
		cancel()
	}()
	err = v.tell(ctx, update)
	cancel()
	return errors.Join(err, <-ended)
}

// read keeps v in step with the API server until ctx ends or the server fails.
func (s *service) read(ctx context.Context, a *api, v *view) error {
	for ctx.Err() == nil {
		// The random part spreads the times at which clients list everything.
		one, cancel := context.WithTimeout(ctx, a.Reconcile-rand.N(a.Reconcile/4+1))
		err := a.follow(one, cmp.Or(s.namespace, a.Namespace), labelService+"="+s.name, v)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// A view is the slices of a service. Changes that follow each other closely become one update.
type view struct {
	of   *service
	news chan struct{} // capacity 1

	mu     sync.Mutex
	slices map[string]slice
}

// pause is the least time between two updates.
const pause = 20 * time.Millisecond

func (v *view) replace(all []slice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.slices = make(map[string]slice, len(all))
	for _, s := range all {
		v.slices[s.Metadata.Name] = s
	}
	v.changed()
}

func (v *view) change(s slice, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if gone {
		delete(v.slices, s.Metadata.Name)
	} else {
		v.slices[s.Metadata.Name] = s
	}
	v.changed()
}

func (v *view) changed() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// tell calls update with the instances when they have changed, until ctx ends.
func (v *view) tell(ctx context.Context, update func([]discovery.Instance)) error {
	var known []discovery.Instance
	for first := true; ; {
		select {
		case <-v.news:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		v.mu.Lock()
		now, err := v.of.instances(slices.Collect(maps.Values(v.slices)))
		v.mu.Unlock()
		if err != nil {
			return err
		}
		if first || !slices.EqualFunc(now, known, same) {
			update(now)
			known, first = now, false
		}
		select {
		case <-time.After(max(pause, 4*time.Since(began))): // at most a fifth of a processor
		case <-ctx.Done():
			return nil
		}
	}
}

func same(a, b discovery.Instance) bool {
	return a.Addr == b.Addr && a.Group == b.Group && a.Version == b.Version && a.Weight == b.Weight && a.Zone == b.Zone &&
		a.State == b.State && maps.Equal(a.Metadata, b.Metadata)
}

// instances returns the instances that the slices of the service describe together.
func (s *service) instances(all []slice) ([]discovery.Instance, error) {
	slices.SortFunc(all, func(a, b slice) int {
		return cmp.Or(strings.Compare(a.AddressType, b.AddressType), strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	pods := make(map[string]discovery.Instance)
	var wrong error
	for _, part := range all {
		number, err := s.number(part)
		if err != nil {
			wrong = err
			continue
		}
		for _, e := range part.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if len(e.Addresses) == 0 || !ready && !e.Conditions.Terminating {
				continue
			}
			in := part.instance(e, number)
			pod := cmp.Or(e.TargetRef.UID, in.Addr)
			// A pod that moves from one slice to another may be in both for a moment.
			if before, ok := pods[pod]; !ok || before.Addr == in.Addr && before.State == inactive {
				pods[pod] = in
			}
		}
	}
	if len(pods) == 0 && wrong != nil {
		return nil, wrong
	}
	// A pod may have the address of one that terminates.
	return registry.Distinct(slices.SortedFunc(maps.Values(pods), func(a, b discovery.Instance) int {
		return cmp.Or(strings.Compare(a.Addr, b.Addr), strings.Compare(a.Metadata["pod"], b.Metadata["pod"]))
	})), nil
}

const inactive = "inactive"

// number returns the port on the pods of a slice to which clients connect.
func (s *service) number(part slice) (int, error) {
	wanted, _ := strconv.Atoi(s.port) // 0 if it is a name
	var names []string
	for _, p := range part.Ports {
		if s.port == "" && len(part.Ports) == 1 && p.Port > 0 || p.Name == s.port && p.Port > 0 || p.Port == wanted && wanted > 0 {
			return p.Port, nil
		}
		names = append(names, fmt.Sprintf("%q (%d)", p.Name, p.Port))
	}
	switch {
	case len(part.Ports) == 0 && wanted > 0:
		return wanted, nil
	case len(part.Endpoints) == 0: // a Service without pods has no ports in its slices
		return 0, nil
	case s.port == "":
		return 0, fmt.Errorf("kubernetes: the Service %s needs a port: it has %s", s.name, strings.Join(names, ", "))
	}
	return 0, fmt.Errorf("kubernetes: the Service %s has no port %q: it has %s", s.name, s.port, strings.Join(names, ", "))
}

// instance returns the instance for an endpoint of a slice.
func (part slice) instance(e endpoint, number int) discovery.Instance {
	labels := part.Metadata.Labels
	in := discovery.Instance{
		Addr: net.JoinHostPort(e.Addresses[0], strconv.Itoa(number)), Zone: e.Zone, Version: labels[labelVersion], Group: labels[labelGroup],
	}
	in.Weight, _ = strconv.Atoi(labels[labelWeight]) // an invalid label counts as no weight
	if e.Conditions.Terminating {
		in.State = inactive
	}
	for key, value := range map[string]string{"pod": e.TargetRef.Name, "node": e.NodeName} {
		if value == "" {
			continue
		}
		if in.Metadata == nil {
			in.Metadata = make(yodel.Metadata)
		}
		in.Metadata[key] = value
	}
	return in
}
