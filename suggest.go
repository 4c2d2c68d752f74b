// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/nearest"
)

// This file answers calls of methods that a server does not have. Any peer can make such calls, so
// each refusal must take constant time. Services are looked up in a set. The search for a similar
// name runs once per method number of a connection, at a limited rate and over a limited number of
// names.

// A suggester limits the rate of searches for similar names.
type suggester struct {
	services atomic.Pointer[serviceSet]
	// due is when the burst is used up, on the clock; 0 before the first search. Its distance to
	// the present determines how many searches are left.
	due atomic.Int64
}

// A serviceSet holds the names of the services whose methods a server has.
type serviceSet struct {
	methods  *map[string]*method // the methods from which the set was made
	services map[string]bool
	empty    bool // all methods are built in
}

const (
	suggestEvery = 100 * time.Millisecond // one search per interval, after a burst
	suggestBurst = 50
)

// suggestion returns the method name that is most similar to b.name, or "". It is called if there
// is no method of that name.
func (b *boundMethod) suggestion() string {
	s := b.server
	if known := b.similar.Load(); known != nil && (*known == "" || (*s.methods.Load())[*known] != nil) {
		return *known
	}
	if !s.suggester.admit(clock()) {
		return ""
	}
	found := s.nearest(b.name)
	b.similar.Store(&found)
	return found
}

// nearest returns the method name that is most similar to name, or "".
func (s *Server) nearest(name string) string {
	return nearest.Name(name, *s.methods.Load(), serviceOf)
}

// admit reports whether the rate allows another search, and counts it.
func (g *suggester) admit(now time.Duration) bool {
	for {
		due := g.due.Load()
		from := int64(now - suggestBurst*suggestEvery)
		if due != 0 { // not the first search
			from = max(from, due)
		}
		if from >= int64(now) {
			return false
		}
		if g.due.CompareAndSwap(due, from+int64(suggestEvery)) {
			return true
		}
	}
}

// servicesOf returns the set of services. It is cached until methods change.
func (s *Server) servicesOf(methods *map[string]*method) *serviceSet {
	if set := s.suggester.services.Load(); set != nil && set.methods == methods {
		return set
	}
	set := &serviceSet{methods: methods, services: make(map[string]bool), empty: true}
	for name := range *methods {
		service := serviceOf(name)
		set.services[service] = true
		set.empty = set.empty && service == builtInService
	}
	s.suggester.services.Store(set)
	return set
}

// unknown returns the error for a call of a method that does not exist. Similar is a name to
// suggest, or "".
func (s *Server) unknown(name, similar string) *Error {
	set := s.servicesOf(s.methods.Load())
	service := serviceOf(name)
	id, what := "YDL2001", fmt.Sprintf("%s: this server has no service %q", name, service)
	if service == "" {
		what = fmt.Sprintf("%s: this server has no such method", name)
	}
	if set.services[service] {
		id = "YDL2002"
		if service != "" {
			what = fmt.Sprintf("%s: service %q has no method %q", name, service, name[len(service)+1:])
		}
	}
	switch {
	case similar != "":
		what += fmt.Sprintf("; did you mean %q?", similar)
	case set.empty:
		what += ": no methods were registered"
	}
	return refusal(id, "%s", what)
}
