// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
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
	suggestEvery   = 100 * time.Millisecond // one search, after a burst of
	suggestBurst   = 50
	suggestAmong   = 256 // names at most are compared with the unknown one
	suggestLongest = 64  // bytes; longer names are not compared
)

// suggestion returns the name of a method that is most like the one that b has no method for, or
// "".
func (b *boundMethod) suggestion() string {
	if known := b.similar.Load(); known != nil {
		return *known
	}
	s := b.server
	if !s.suggester.admit(clock()) {
		return ""
	}
	found := nearest(b.name, *s.methods.Load())
	b.similar.Store(&found)
	return found
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

// nearest returns the method whose name is most like name, or "" if none is like it. Of two that
// are equally like it, it returns the first in alphabetical order.
func nearest(name string, methods map[string]*method) string {
	service := serviceOf(name)
	best, distance, compared := "", len(name), 0
	inService := "" // the method that name is without its service
	for other := range methods {
		if compared++; compared > suggestAmong {
			break
		}
		of := serviceOf(other)
		limit := len(name)/3 + 1
		if of == service { // what they have in common makes them no more alike
			limit = min(limit, (len(name)-len(service)+1)/3+1)
		}
		d := 0
		if !strings.EqualFold(other, name) {
			d = editDistance(name, other, limit)
		}
		if d < limit && (d < distance || d == distance && other < best) {
			best, distance = other, d
		}
		if service == "" && of != "" && strings.EqualFold(other[len(of)+1:], name) && (inService == "" || other < inService) {
			inService = other
		}
	}
	return cmp.Or(best, inService)
}

// editDistance is Levenshtein's: how many letters have to be changed, added or removed. It returns
// limit if there are at least that many, and for long names.
func editDistance(a, b string, limit int) int {
	if len(a) > suggestLongest || len(b) > suggestLongest || max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	var memory [suggestLongest + 1]int
	row := memory[:len(b)+1]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, least := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
			least = min(least, row[j+1])
		}
		if least >= limit {
			return limit
		}
	}
	return min(row[len(b)], limit)
}
