// SPDX-License-Identifier: Apache-2.0

package nearest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/rate"
)

// Methods answers calls of methods that a server does not have. Any peer can make such calls, so
// each refusal must take constant time. Services are looked up in a set. The search for a similar
// name takes place at a limited rate and among a limited number of names. Methods may be used
// concurrently.
//
// Its methods take the table of methods by name. A table never changes: a server with other methods
// has another table.
type Methods[M any] struct {
	// Service returns the service part of a name, without the separator after it, or "".
	Service func(name string) string
	// BuiltIn is the service of the methods that every server has.
	BuiltIn string

	searches rate.Bucket
	services atomic.Pointer[serviceSet[M]]
}

// A serviceSet holds the names of the services whose methods a server has.
type serviceSet[M any] struct {
	methods  *map[string]M // the methods from which the set was made
	services map[string]bool
	empty    bool // all methods are built in
}

// A search is allowed every interval, after a burst of 50.
const (
	searchEvery = 100 * time.Millisecond
	searchBurst = 5 * time.Second
)

// Admit reports whether the rate allows another search, and counts it. Now is a reading of the
// clock.
func (m *Methods[M]) Admit(now time.Duration) bool {
	return m.searches.Take(now, searchEvery, searchBurst)
}

// Similar returns the method name that is most similar to name, or "".
func (m *Methods[M]) Similar(methods *map[string]M, name string) string {
	return Name(name, *methods, m.Service)
}

// HasService reports whether there is a method of a service.
func (m *Methods[M]) HasService(methods *map[string]M, service string) bool {
	return m.of(methods).services[service]
}

// of returns the set of services. It is cached until methods change.
func (m *Methods[M]) of(methods *map[string]M) *serviceSet[M] {
	if set := m.services.Load(); set != nil && set.methods == methods {
		return set
	}
	set := &serviceSet[M]{methods: methods, services: make(map[string]bool), empty: true}
	for name := range *methods {
		service := m.Service(name)
		set.services[service] = true
		set.empty = set.empty && service == m.BuiltIn
	}
	m.services.Store(set)
	return set
}

// Unknown returns the message for a call of a method that does not exist, and whether there are
// other methods of its service. Similar is a name to suggest, or "".
func (m *Methods[M]) Unknown(methods *map[string]M, name, similar string) (message string, hasService bool) {
	set, service := m.of(methods), m.Service(name)
	hasService = set.services[service]
	switch {
	case service == "":
		message = fmt.Sprintf("%s: this server has no such method", name)
	case hasService:
		message = fmt.Sprintf("%s: service %q has no method %q", name, service, name[len(service)+1:])
	default:
		message = fmt.Sprintf("%s: this server has no service %q", name, service)
	}
	switch {
	case similar != "":
		message += fmt.Sprintf("; did you mean %q?", similar)
	case set.empty:
		message += ": no methods were registered"
	}
	return message, hasService
}
