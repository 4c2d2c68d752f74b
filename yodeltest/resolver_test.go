// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
)

func TestResolverSuitePassesStatic(t *testing.T) {
	TestResolver(t, discovery.Static("127.0.0.1:1", "127.0.0.1:2"), nil, nil)
}

func TestResolverSuitePassesASoundOne(t *testing.T) {
	s := newSource()
	TestResolver(t, s, s.set, s.fail)
}

// A source is a resolver and what it looks at. Its faults are off.
type source struct {
	mu        sync.Mutex
	instances []discovery.Instance
	changed   chan struct{}
	failed    bool

	late, deaf, differences, sameSlice, atOnce, emptyOnFailure, once, afterEnd bool
	watched                                                                    bool
	shared                                                                     []discovery.Instance
}

func newSource() *source { return &source{changed: make(chan struct{})} }

func (s *source) set(instances []discovery.Instance) {
	s.change(func() { s.instances = slices.Clone(instances) })
}
func (s *source) fail() { s.change(func() { s.failed = true }) }

func (s *source) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

var errSource = errors.New("the source failed")

func (s *source) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	var said []discovery.Instance
	for first := true; ; first = false {
		s.mu.Lock()
		instances, changed, failed := s.instances, s.changed, s.failed
		again := s.watched && s.once
		s.watched = true
		s.mu.Unlock()
		switch {
		case failed && s.emptyOnFailure:
			update(nil)
			return errSource
		case failed:
			return errSource
		case again && first:
			return errSource
		case s.late && first:
		case s.differences:
			fresh := slices.DeleteFunc(slices.Clone(instances), func(in discovery.Instance) bool {
				return slices.ContainsFunc(said, func(old discovery.Instance) bool { return old.Addr == in.Addr })
			})
			said = instances
			update(fresh)
		case s.sameSlice:
			s.mu.Lock()
			s.shared = append(s.shared[:0], instances...)
			s.mu.Unlock()
			update(s.shared)
		case s.atOnce:
			go update(slices.Clone(instances))
		default:
			update(slices.Clone(instances))
		}
		done := ctx.Done()
		if s.deaf {
			done = nil
		}
		select {
		case <-changed:
		case <-done:
			if s.afterEnd {
				go func() { <-changed; update(nil) }()
			}
			return nil
		}
	}
}

func TestResolverRulesCatchFaults(t *testing.T) {
	for _, fault := range []struct {
		rule string
		put  func(*source)
	}{
		{"at once", func(s *source) { s.late = true }},
		{"ends", func(s *source) { s.deaf = true }},
		{"ends", func(s *source) { s.afterEnd = true }},
		{"ended before", func(s *source) { s.deaf = true }},
		{"several watches", func(s *source) { s.once = true }},
		{"updates", func(s *source) { s.differences = true }},
		{"slices", func(s *source) { s.sameSlice = true }},
		{"one at a time", func(s *source) { s.atOnce = true }},
		{"failure", func(s *source) { s.emptyOnFailure = true }},
	} {
		t.Run(fault.rule, func(t *testing.T) {
			s := newSource()
			fault.put(s)
			defer s.fail() // ends what is deaf
			for _, r := range resolverRules(s, s.set, s.fail, 100*time.Millisecond) {
				if r.name == fault.rule && r.broken() == nil {
					t.Error("the rule does not notice")
				}
			}
		})
	}
}
