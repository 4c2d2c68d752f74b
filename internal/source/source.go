// SPDX-License-Identifier: Apache-2.0

// Package source words what the errors of a client say of its resolver: the registry, why the
// resolver failed, which instances were left out, and services of the registry with similar names.
package source

import (
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

// Limits for the use of a resolver in messages.
const (
	maxName = 120
	// listTime is how long a registry may take to list its services. firstTime is how long the
	// client waits for the list before it uses a first set of instances that is empty.
	listTime  = 2 * time.Second
	firstTime = 250 * time.Millisecond

	maxProtocols    = 5 // in a message
	maxProtocolName = 20
)

// A Source is the resolver of a client in messages. Its methods may be called concurrently.
type Source struct {
	name       string
	services   func(ctx context.Context) (asked string, known []string, err error)
	background func(f func(ctx context.Context)) bool

	mu      sync.Mutex
	similar string // a suffix for a message that names similar services; "" if unknown
	listing bool
}

// SetUp sets the name of the resolver, which may be empty. Services lists the services of the
// registry. It is nil if the resolver cannot list them. Background runs a function on a goroutine
// of the client, or returns false without calling it.
func (s *Source) SetUp(name string, services func(ctx context.Context) (asked string, known []string, err error), background func(f func(ctx context.Context)) bool) {
	s.name, s.services, s.background = text.Clip(name, maxName), services, background
}

// Name returns the name of the resolver, or "".
func (s *Source) Name() string { return s.name }

// List lists the services of the registry in the background, because there are no instances.
func (s *Source) List() { s.list() }

// ListFirst is List before the client uses a first set of instances, which is empty. It waits for a
// short time, so that the errors of the first calls name similar services.
func (s *Source) ListFirst(ctx context.Context) {
	done := s.list()
	if done == nil {
		return
	}
	timer := time.NewTimer(firstTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// list returns a channel that is closed when the services are listed. It returns nil if they are
// not, or if that is under way.
func (s *Source) list() <-chan struct{} {
	s.mu.Lock()
	busy := s.services == nil || s.listing
	s.listing = true
	s.mu.Unlock()
	if busy {
		return nil
	}
	done := make(chan struct{})
	begun := s.background(func(life context.Context) {
		defer close(done)
		similar, known := "", false
		defer func() { // also if services panics or ends its goroutine
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.listing = false; known {
				s.similar = similar
			}
		}()
		limited, cancel := context.WithTimeout(life, listTime)
		defer cancel()
		if asked, services, err := s.services(limited); err == nil {
			similar, known = nearest.Services(asked, services), true
		}
	})
	if !begun {
		return nil
	}
	return done
}

// Of returns the name as a suffix for "the resolver".
func (s *Source) Of() string {
	if s.name == "" {
		return ""
	}
	return " of " + s.name
}

// The failures of a resolver that a client was made without.
var (
	ErrNone      = errors.New("NewClient was given no resolver")
	ErrNoAddress = errors.New("the client was given no address: yodel.Dial and discovery.Static take at least one")
)

// Trouble returns the last failure of the resolver as a suffix for a message, or "" if it works.
// Said is the text of err.
func Trouble(said string, err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrNone), errors.Is(err, ErrNoAddress):
		return ": " + said
	}
	return "; it failed: " + said
}

// Nobody returns, as a text, why a client has no endpoint. Left counts the instances of the last
// set that did not become endpoints. It is nil before the first set. Trouble is the result of the
// function Trouble.
func (s *Source) Nobody(left *LeftOut, trouble string) string {
	switch {
	case left != nil && left.instances > 0:
		return "no instance" + s.Of() + left.unspoken() + trouble
	case left != nil && left.Inactive > 0:
		return fmt.Sprintf("no instance is active of %d that are known%s%s", left.Inactive, s.Of(), trouble)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return "no instance is known" + s.Of() + s.similar + trouble
}

// A LeftOut counts the instances of a set that did not become endpoints.
type LeftOut struct {
	Inactive int

	instances int      // for whose protocols the client has no Wire
	protocols []string // sorted, without duplicates
}

// Unspoken counts an instance, none of whose protocols the client speaks.
func (l *LeftOut) Unspoken(protocols []string) {
	l.instances++
	for _, p := range protocols {
		if i, found := slices.BinarySearch(l.protocols, p); !found && len(l.protocols) < maxProtocols {
			l.protocols = slices.Insert(l.protocols, i, text.Clip(p, maxProtocolName))
		}
	}
}

// Count sets Inactive for a set of named instances, of which active are endpoints.
func (l *LeftOut) Count(named, active int) { l.Inactive = named - active - l.instances }

// unspoken returns the end of a message that begins with "no instance".
func (l *LeftOut) unspoken() string {
	return fmt.Sprintf(" speaks a protocol that this client has: they speak %s, and ClientOptions.Wires has no Wire for it", strings.Join(l.protocols, " and "))
}
