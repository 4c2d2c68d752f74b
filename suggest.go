// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/nearest"
)

// This file answers calls of methods that a server does not have. Any peer can make such calls, so
// that a refusal takes constant work: the services are looked up in a set, and the search for a
// similar name is made once per method number of a connection, at a bounded rate, among a bounded
// number of names.

// A suggester bounds the searches for similar names.
type suggester struct {
	services atomic.Pointer[serviceSet]
	// on the clock, 0 before the first: how far it is behind is how many searches are left at once
	due atomic.Int64
}

// A serviceSet is the services that a server has methods of.
type serviceSet struct {
	methods  *map[string]*method // from which it was made
	services map[string]bool
	empty    bool // there are only built-in methods
}

const (
	suggestEvery = 100 * time.Millisecond // one search, after a burst of
	suggestBurst = 50
)

// suggestion returns the name of a method that is most like the one that b has no method for, or
// "".
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

// nearest returns the name of a method that is most like name, or "".
func (s *Server) nearest(name string) string {
	return nearest.Name(name, *s.methods.Load(), serviceOf)
}

// admit takes one search from the rate and reports whether there was one left.
func (g *suggester) admit(now time.Duration) bool {
	for {
		due := g.due.Load()
		from := int64(now - suggestBurst*suggestEvery)
		if due != 0 { // it was used before
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

// servicesOf returns the set of services, which it makes again after methods have been registered.
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

// unknown explains that there is no method of this name. Similar is a name to suggest, or "".
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
