// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A shop is all instances there were, and what was done to them.
type shop struct {
	etcd      string
	instances []*instance
	steps     []step
}

// A step is something that happened to the instances, and the time after it, in which nothing else
// did.
type step struct {
	what       string
	took       time.Duration  // until the client knew
	shares     map[string]int // of the calls, by instance
	began, end time.Time      // the calls that were made in between are to be shared out so
}

func (s *shop) open(ctx context.Context, name string) error {
	in, err := start(ctx, name, s.etcd)
	if err == nil {
		s.instances = append(s.instances, in)
	}
	return err
}

func (s *shop) named(name string) *instance {
	return s.instances[slices.IndexFunc(s.instances, func(in *instance) bool { return in.name == name })]
}

// takeSteps takes one step after the other, until ctx ends.
func (s *shop) takeSteps(ctx context.Context, l *load, length time.Duration) error {
	for _, next := range []struct {
		what string
		do   func() error
	}{
		{"a, b, c serve", func() error { return nil }},
		{"d is added", func() error { return s.open(ctx, "d") }},
		{killed, func() error { s.named("b").Kill(); return nil }},
		{"c weighs 3", func() error { return s.named("c").say(3, active) }},
		{"a is disabled", func() error { return s.named("a").say(1, inactive) }},
		{"a is enabled", func() error { return s.named("a").say(1, active) }},
		{"d is drained", func() error { s.named("d").ShutDown(); return nil }},
		{"e is added", func() error { return s.open(ctx, "e") }},
	} {
		if ctx.Err() != nil {
			break // and report what there was
		}
		if err := s.take(ctx, l, next.what, next.do, length); err != nil {
			return fmt.Errorf("%s: %w", next.what, err)
		}
	}
	l.event("the end")
	return nil //nolint:nilerr // an interrupt is no failure
}

// killed is the step after which nobody can say what an instance has executed.
const killed = "b is killed"

// take takes a step, and waits until the client knows, and then for a while.
func (s *shop) take(ctx context.Context, l *load, what string, do func() error, length time.Duration) error {
	done := func() {}
	if what == killed { // and what it has begun may be executed again
		done = l.onlyIdempotent()
	}
	defer done()
	l.event(what)
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	if err := l.follows(ctx, s.instances); err != nil {
		return err
	}
	next := step{what: what, shares: make(map[string]int), began: time.Now()}
	next.took = next.began.Sub(began)
	for _, in := range s.instances {
		next.shares[in.name] = in.share()
	}
	done()
	l.watch(ctx, length)
	next.end = time.Now()
	s.steps = append(s.steps, next)
	return nil
}

// follows waits until the client knows what the instances were told to say, and who is gone.
func (l *load) follows(ctx context.Context, instances []*instance) error {
	want := make(map[string]int) // shares by address
	for _, in := range instances {
		if n := in.share(); n > 0 {
			want[in.addr] = n
		}
	}
	patience := time.After(10 * time.Second)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !l.knows(want) {
		select {
		case <-again.C:
		case <-patience:
			return errors.New("the client did not learn it within 10 s")
		case <-ctx.Done():
			return nil // the rest is left out
		}
	}
	return nil
}

// knows reports whether the client would share out calls so.
func (l *load) knows(want map[string]int) bool {
	n := 0
	for _, ep := range l.client.Endpoints() {
		if !ep.Ready() {
			continue // it does not answer
		}
		if n++; want[ep.Addr()] != weightOf(ep) {
			return false
		}
	}
	return n == len(want)
}
