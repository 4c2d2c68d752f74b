// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/nearest"
	"github.com/yodel-rpc/yodel/internal/text"
)

// A source describes a client's resolver in errors and logs: the service, the registry, and
// services with similar names.
type source struct {
	name   string        // the resolver's String; "" if it has none
	lister serviceLister // nil if the resolver cannot list services

	mu      sync.Mutex
	similar string // a suffix for a message that names similar services; "" if unknown
	listing bool
}

// A serviceLister is a Resolver that can list the services of its registry. See Resolver.
type serviceLister interface {
	Services(ctx context.Context) (asked string, known []string, err error)
}

// Limits for the use of a resolver in messages.
const (
	maxSourceName = 120
	// listTime is how long a registry may take to list its services. firstListTime is how long the
	// client waits for the list before it uses a first set of instances that is empty.
	listTime      = 2 * time.Second
	firstListTime = 250 * time.Millisecond
)

// describe sets s from r's optional methods.
func (s *source) describe(r Resolver) {
	if named, ok := r.(fmt.Stringer); ok {
		s.name = text.Clip(named.String(), maxSourceName)
	}
	s.lister, _ = r.(serviceLister)
}

// list lists the services of the registry on a goroutine of c. It waits for the result, at most for
// patience. Calls do not wait for the list, except that the first set of instances may come later
// because of it.
func (s *source) list(ctx context.Context, c *Client, patience time.Duration) {
	s.mu.Lock()
	busy := s.lister == nil || s.listing
	s.listing = true
	s.mu.Unlock()
	if busy {
		return
	}
	done := make(chan struct{})
	listing := c.Background(func(life context.Context) {
		defer close(done)
		similar, known := "", false
		defer func() { // also if Services panics or ends its goroutine
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.listing = false; known {
				s.similar = similar
			}
		}()
		limited, cancel := context.WithTimeout(life, listTime)
		defer cancel()
		if asked, services, err := s.lister.Services(limited); err == nil {
			similar, known = nearest.Services(asked, services), true
		}
	})
	if !listing || patience == 0 {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// of returns the resolver's name as a suffix for "the resolver".
func (s *source) of() string {
	if s.name == "" {
		return ""
	}
	return " of " + s.name
}

// none returns the message for a service without instances, with the registry and similar services.
func (s *source) none() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "no instance is known" + s.of() + s.similar
}

// errNoAddress is the error of a client that was given no address.
var errNoAddress = errors.New("the client was given no address: yodel.Dial and yodel.Static take at least one")
