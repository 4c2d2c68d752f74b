// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/nearest"
	"github.com/yodel-rpc/yodel/internal/text"
)

// A source describes a client's resolver in errors and logs: which service it resolves, where, and
// which services there have similar names.
type source struct {
	name   string        // what the resolver says it resolves; "" if it does not say
	lister serviceLister // nil if the resolver cannot list services

	mu      sync.Mutex
	similar string // names of services, as a part of a message; "" if none are known
	listing bool
}

// A serviceLister is a Resolver that knows which services its registry has. See Resolver.
type serviceLister interface {
	Services(ctx context.Context) (asked string, known []string, err error)
}

// Bounds of what is asked of a resolver for the sake of messages.
const (
	maxSourceName = 120
	// listTime is how long the services of a registry may take to list, and firstListTime is how
	// long the first set of instances is held back for it if that is empty.
	listTime      = 2 * time.Second
	firstListTime = 250 * time.Millisecond
	shownServices = 3
)

// describe takes over what r says of itself.
func (s *source) describe(r Resolver) {
	if named, ok := r.(fmt.Stringer); ok {
		s.name = text.Clip(named.String(), maxSourceName)
	}
	s.lister, _ = r.(serviceLister)
}

// list lists the services of the registry on a goroutine of c, and waits for the result, at most
// for patience. No call waits for it, except that the first set of instances comes later.
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
		defer func() { // also when Services panics or ends its goroutine
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.listing = false; known {
				s.similar = similar
			}
		}()
		limited, cancel := context.WithTimeout(life, listTime)
		defer cancel()
		if asked, services, err := s.lister.Services(limited); err == nil {
			similar, known = similarServices(asked, services), true
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

// of names what is resolved, behind "the resolver".
func (s *source) of() string {
	if s.name == "" {
		return ""
	}
	return " of " + s.name
}

// none says that there is no instance, of which service in which registry, and what similar
// services there are.
func (s *source) none() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "no instance is known" + s.of() + s.similar
}

// similarServices names the known services that are most like the one that was asked for, as the
// end of a message.
func similarServices(asked string, known []string) string {
	type service struct {
		name     string
		distance int
	}
	limit := len(asked)/3 + 1
	var near, others []service
	for _, name := range known {
		d := 0
		if !strings.EqualFold(name, asked) {
			d = nearest.Distance(name, asked, limit)
		}
		switch {
		case name == asked: // it has records, and no instance
		case d < limit:
			near = append(near, service{name, d})
		default:
			others = append(others, service{name, limit})
		}
	}
	found := near
	if len(near) == 0 {
		found = others
	}
	if len(found) == 0 {
		return "; the registry knows no other service there"
	}
	slices.SortFunc(found, func(a, b service) int { return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name)) })
	shown := make([]string, 0, shownServices)
	for _, f := range found[:min(len(found), shownServices)] {
		shown = append(shown, fmt.Sprintf("%.40q", f.name))
	}
	list := strings.Join(shown, " or ")
	if len(near) > 0 {
		return "; did you mean " + list + "?"
	}
	list = strings.Join(shown, ", ")
	if more := len(found) - len(shown); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return "; the services there are " + list
}

// errNoAddress is why a client has no instance that was made for no address.
var errNoAddress = errors.New("the client was given no address: yodel.Dial and yodel.Static take at least one")
