// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// Service returns a resolver for the healthy and enabled instances of a service.
func (r *Registry) Service(name string) discovery.Resolver { return &service{r, name} }

// A service is the resolver for one service of a registry.
type service struct {
	of   *Registry
	name string
}

// Watch implements discovery.Resolver.
func (s *service) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	var text []byte // of the last answer; an identical answer need not be parsed
	var known []discovery.Instance
	return poll(ctx, s.of.opts.Every, update, func() ([]discovery.Instance, error) {
		answer, err := s.of.list(ctx, s.name, s.of.opts.Cluster)
		if err != nil || text != nil && bytes.Equal(answer, text) {
			return known, err
		}
		hosts, err := s.of.hosts(answer)
		if err != nil {
			return nil, err
		}
		text, known = answer, registry.Distinct(instances(hosts))
		return known, nil
	})
}

// poll passes what read returns to update, at first and after each change, until ctx ends or read
// fails. Every is the approximate interval.
func poll[T any](ctx context.Context, every time.Duration, update func(T), read func() (T, error)) error {
	var known T
	for first := true; ctx.Err() == nil; first = false {
		now, err := read()
		switch {
		case ctx.Err() != nil: // ctx has ended, so the answer does not count
			continue
		case err != nil:
			return err
		case first || !reflect.DeepEqual(now, known):
			update(now)
			known = now
		}
		select {
		case <-time.After(every - every/8 + rand.N(every/4+1)): // spreads the requests of many clients
		case <-ctx.Done():
		}
	}
	return nil
}
