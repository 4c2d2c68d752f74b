// SPDX-License-Identifier: Apache-2.0

package registered

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/nearest"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file answers calls of methods that a server does not have. Any peer can make such calls, so
// each refusal takes constant time. Services are looked up in a set. The search for a similar name
// takes place at a limited rate and among a limited number of names.

// A search is allowed every interval, after a burst of 50.
const (
	searchEvery = 100 * time.Millisecond
	searchBurst = 5 * time.Second
)

// services are the services of a table.
type services struct {
	has     map[string]bool
	list    []string // sorted, without the built-in service
	encoded []byte
	empty   bool // all methods are built in
}

// serviceOf returns the part of a method's name before its last dot or slash.
func serviceOf(name string) string {
	return name[:max(strings.LastIndexAny(name, "./"), 0)]
}

func servicesOf(byName map[string]*Method, builtIn string) *services {
	s := &services{has: make(map[string]bool), empty: true}
	for name := range byName {
		service := serviceOf(name)
		s.has[service] = true
		s.empty = s.empty && service == builtIn
		if service == "" {
			service = name
		}
		if service != builtIn {
			s.list = append(s.list, service)
		}
	}
	slices.Sort(s.list)
	s.list = slices.Compact(s.list)
	for _, name := range s.list {
		s.encoded = wire.AppendService(s.encoded, name)
	}
	if len(s.list) > wire.MaxServices || len(s.encoded) > wire.MaxServicesBytes {
		s.encoded = nil
	}
	return s
}

// Services returns the names of the services whose methods there are, sorted, except the built-in
// service. A method without a service name is a service of its own. The result belongs to the
// caller.
func (s *Methods) Services() []string { return slices.Clone(s.now().services().list) }

// EncodedServices returns the services in the encoding of a server's settings. It returns nil, that
// is unknown, if there is no service, or if the services do not fit in the settings. The caller
// must not change the result.
func (s *Methods) EncodedServices() []byte { return s.now().services().encoded }

// HasService reports whether there is a method of a service.
func (s *Methods) HasService(service string) bool { return s.now().services().has[service] }

// AdmitSearch reports whether Similar may be called for the call of a peer.
func (s *Methods) AdmitSearch(now time.Duration) bool {
	return s.searches.Take(now, searchEvery, searchBurst)
}

// Similar returns the name that is most similar to name, or "".
func (s *Methods) Similar(name string) string {
	return nearest.Name(name, s.now().byName, serviceOf)
}

// Unknown returns the fault of a call of a method that does not exist. Similar is a name to
// suggest, or "".
func (s *Methods) Unknown(name, similar string) *fault.Fault {
	all, service := s.now().services(), serviceOf(name)
	id, text := catalogue.NoService, fmt.Sprintf("this server has no service %q", service)
	if all.has[service] {
		id, text = catalogue.NoMethod, fmt.Sprintf("service %q has no method %q", service, name[min(len(service)+1, len(name)):])
	}
	if service == "" {
		text = "this server has no such method"
	}
	switch {
	case similar != "":
		text += fmt.Sprintf("; did you mean %q?", similar)
	case all.empty:
		text += ": no methods were registered"
	}
	return fault.Of(id, name, "%s", text).NotProcessed()
}
