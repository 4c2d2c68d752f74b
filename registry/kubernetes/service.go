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
)

// Labels of slices.
const (
	labelService = "kubernetes.io/service-name"
	labelVersion = "app.kubernetes.io/version"
	labelGroup   = ours + "group"
	labelWeight  = ours + "weight"
)

// Service returns the instances of a Service of Kubernetes: NAMESPACE/NAME:PORT, where the
// namespace may be missing, and the port too if the Service has only one. The port is its name or,
// of the pods, its number.
//
// A pod that is ready is an instance; zone, pod and node are told. One that terminates is inactive,
// though it may still serve: it gets no new calls from the moment at which Kubernetes has decided
// that it ends, because that gives it all its time for the calls that it has. One that is not ready
// is not listed. That is what a client doubts when it is said of most pods at once, as Kubernetes
// says of the pods of nodes that it cannot reach: those that answer are called on.
//
// Version, group and weight are of all pods of the Service: its labels app.kubernetes.io/version,
// yodel-rpc.github.io/group and yodel-rpc.github.io/weight, which Kubernetes copies to the slices.
// Those of each pod would need the permission to read pods. Of a pod with an address of IPv4 and
// one of IPv6 that of IPv4 is used.
func Service(target string, o *Options) yodel.Resolver {
	s := &service{opts: o}
	namespace, name, ok := strings.Cut(target, "/")
	if !ok {
		namespace, name = "", target
	}
	s.namespace = namespace
	s.name, s.port, _ = strings.Cut(name, ":")
	return s
}

// A service is one of Kubernetes, as a resolver.
type service struct {
	opts                  *Options
	namespace, name, port string
}

// Watch implements yodel.Resolver.
func (s *service) Watch(ctx context.Context, update func([]yodel.Instance)) error {
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
		// Not all clients at once.
		one, cancel := context.WithTimeout(ctx, a.Reconcile-rand.N(a.Reconcile/4+1))
		err := a.follow(one, cmp.Or(s.namespace, a.Namespace), labelService+"="+s.name, v)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// A view is the slices of a service. Many changes soon after each other are one update.
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
func (v *view) tell(ctx context.Context, update func([]yodel.Instance)) error {
	var known []yodel.Instance
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
		case <-time.After(max(pause, 4*time.Since(began))): // so that at most a fifth of a processor is used
		case <-ctx.Done():
			return nil
		}
	}
}

func same(a, b yodel.Instance) bool {
	return a.Addr == b.Addr && a.Group == b.Group && a.Version == b.Version && a.Weight == b.Weight && a.Zone == b.Zone &&
		a.State == b.State && maps.Equal(a.Metadata, b.Metadata)
}

// instances returns what the slices of the service say together.
func (s *service) instances(all []slice) ([]yodel.Instance, error) {
	slices.SortFunc(all, func(a, b slice) int {
		return cmp.Or(strings.Compare(a.AddressType, b.AddressType), strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	pods := make(map[string]yodel.Instance)
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
			// While it moves from one slice to another one it may be in both.
			if before, ok := pods[pod]; !ok || before.Addr == in.Addr && before.State == inactive {
				pods[pod] = in
			}
		}
	}
	if len(pods) == 0 && wrong != nil {
		return nil, wrong
	}
	return slices.SortedFunc(maps.Values(pods), func(a, b yodel.Instance) int { return strings.Compare(a.Addr, b.Addr) }), nil
}

const inactive = "inactive"

// number returns the port that clients connect to.
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
	case len(part.Endpoints) == 0: // of a Service without pods not even the ports are known
		return 0, nil
	case s.port == "":
		return 0, fmt.Errorf("kubernetes: the Service %s needs a port: it has %s", s.name, strings.Join(names, ", "))
	}
	return 0, fmt.Errorf("kubernetes: the Service %s has no port %q: it has %s", s.name, s.port, strings.Join(names, ", "))
}

// instance returns an endpoint of a slice.
func (part slice) instance(e endpoint, number int) yodel.Instance {
	labels := part.Metadata.Labels
	in := yodel.Instance{
		Addr: net.JoinHostPort(e.Addresses[0], strconv.Itoa(number)), Zone: e.Zone, Version: labels[labelVersion], Group: labels[labelGroup],
	}
	in.Weight, _ = strconv.Atoi(labels[labelWeight]) // what is no number is no weight
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
