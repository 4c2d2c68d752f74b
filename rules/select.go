// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// This file chooses the rules of a call by its method, once for each method. So the rules of other
// methods cost a call nothing.

// A selection is the rules whose scope has a method, as bits by their index in table.rules and in
// table.routing.
type selection struct {
	method         string
	rules, routing uint64
}

// everything selects all rules.
var everything = selection{rules: ^uint64(0), routing: ^uint64(0)}

const (
	// methodSlots is how many selections a table remembers.
	methodSlots = 512
	// methodProbes is in how many slots the selection of a method may be.
	methodProbes = 8
)

var methodSeed = maphash.MakeSeed()

// finish prepares the table for calls. It does not change afterwards.
func (t *table) finish() {
	for i, a := range t.rules {
		if a.Method != "" {
			t.scoped |= 1 << i
		}
	}
	if t.scoped != 0 {
		t.methods = make([]atomic.Pointer[selection], methodSlots)
	}
}

// selected returns the rules whose scope has a method. It remembers the selections of methods, each
// in one of a few slots. If all of these are taken, the method takes the first one.
func (t *table) selected(method string) selection {
	if t.scoped == 0 {
		return everything
	}
	first := maphash.String(methodSeed, method)
	free := &t.methods[first%methodSlots]
	for i := range uint64(methodProbes) {
		slot := &t.methods[(first+i)%methodSlots]
		s := slot.Load()
		if s == nil {
			free = slot
			break
		}
		if s.method == method {
			return *s
		}
	}
	s := t.choose(strings.Clone(method))
	free.Store(&s)
	return s
}

// choose compares a method with the scopes of all rules.
func (t *table) choose(method string) selection {
	s := selection{method: method}
	_, short := splitMethod(method)
	in := func(a *active) bool { return a.hasMethod(method, short) }
	for i, a := range t.rules {
		if in(a) {
			s.rules |= 1 << i
		}
	}
	for i, a := range t.routing {
		if in(a) {
			s.routing |= 1 << i
		}
	}
	return s
}

// hasMethod reports whether the scope has a method. Short is its name without the service.
func (r *Rule) hasMethod(method, short string) bool {
	switch {
	case r.Method == "":
		return true
	case strings.ContainsAny(r.Method, "./"):
		return like(r.Method, method)
	}
	return like(r.Method, short)
}

// splitMethod splits a method's name at its last dot or slash.
func splitMethod(method string) (service, short string) {
	for i := len(method) - 1; i >= 0; i-- {
		if method[i] == '.' || method[i] == '/' {
			return method[:i], method[i+1:]
		}
	}
	return "", method
}
