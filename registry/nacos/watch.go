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

// Service returns the instances of a service that are healthy and enabled.
func (r *Registry) Service(name string) yodel.Resolver { return &service{r, name} }

// A service is one of a registry, as a resolver.
type service struct {
	of   *Registry
	name string
}

// Watch implements yodel.Resolver.
func (s *service) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	var text []byte // of the last answer: as long as it is the same it need not be read again
	var known []yodel.Instance
	for first := true; ctx.Err() == nil; first = false {
		answer, err := s.of.list(ctx, s.name)
		var hosts []host
		if err == nil && !bytes.Equal(answer, text) {
			hosts, err = s.of.hosts(answer)
		}
		switch {
		case ctx.Err() != nil: // whatever the answer was
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
		case <-time.After(every - every/8 + rand.N(every/4+1)): // not all clients at once
		case <-ctx.Done():
		}
	}
	return nil
}
