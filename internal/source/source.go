// SPDX-License-Identifier: Apache-2.0

// Package source reads the sets of instances that a client's resolver reports, and waits for the
// first one. It also words what the errors of the client say of the resolver: the registry, why the
// resolver failed, which instances were left out, and services of the registry with similar names.
package source

import (
	"context"
	"errors"
	"fmt"
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
)

// A Source is the resolver of a client in messages. Its methods may be called concurrently.
type Source struct {
	name       string
	services   func(ctx context.Context) (asked string, known []string, err error)
	background func(f func(ctx context.Context)) bool
	instances  list
	timeout    time.Duration

	mu      sync.Mutex
	similar string // a suffix for a message that names similar services; "" if unknown
	listing bool
	left    leftOut // of the last set that was read
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

// of returns the name as a suffix for "the resolver".
func (s *Source) of() string {
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

// Nobody returns, as a text, why a client has no endpoint.
func (s *Source) Nobody() string {
	trouble := s.trouble()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch left := &s.left; {
	case left.unspoken > 0:
		return "no instance" + s.of() + left.spoken() + trouble
	case left.inactive > 0:
		return fmt.Sprintf("no instance is active of %d that are known%s%s", left.inactive, s.of(), trouble)
	}
	return "no instance is known" + s.of() + s.similar + trouble
}
