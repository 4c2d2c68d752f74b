// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Service returns a resolver for the healthy and enabled instances of a service.
func (r *Registry) Service(name string) yodel.Resolver { return &service{r, name} }

// A service is the resolver for one service of a registry.
type service struct {
	of   *Registry
	name string
}

// Watch implements yodel.Resolver.
func (s *service) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	var text []byte // of the last answer; an identical answer need not be parsed
	var known []yodel.Instance
	for first := true; ctx.Err() == nil; first = false {
		answer, err := s.of.list(ctx, s.name)
		var hosts []host
		if err == nil && !bytes.Equal(answer, text) {
			hosts, err = s.of.hosts(answer)
		}
		switch {
		case ctx.Err() != nil: // ctx has ended, so the answer does not count
			continue
		case err != nil:
			return err
		case first || !bytes.Equal(answer, text):
			now := instances(hosts)
			if first || !reflect.DeepEqual(now, known) {
				update(now)
			}
			text, known = answer, now
		}
		every := s.of.opts.Every
		select {
		case <-time.After(every - every/8 + rand.N(every/4+1)): // spreads the requests of many clients
		case <-ctx.Done():
		}
	}
	return nil
}
