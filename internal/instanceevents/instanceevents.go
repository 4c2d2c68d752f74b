// SPDX-License-Identifier: Apache-2.0

// Package instanceevents words the events of a client about its instances: which of them its
// resolver adds and removes, and which are ready.
package instanceevents

import (
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// These are the kinds of the events.
const (
	Up   = "instance up"
	Down = "instance down"
)

// Of returns the events of instances of a service that the resolver has added or removed. Many
// instances at once make one event.
func Of(kind, service string, instances []*discovery.Instance) (events []introspect.Event) {
	const single, listed = 8, 3
	of := ""
	if service != "" {
		of = " of " + service
	}
	if n := len(instances); n > single {
		var addrs []string
		disabled := 0
		for i, in := range instances {
			if i < listed {
				addrs = append(addrs, in.Addr)
			}
			if in.State == discovery.Inactive {
				disabled++
			}
		}
		what := fmt.Sprintf("%d instances%s: %s and others: %s", n, of, strings.Join(addrs, ", "), newsOfMany(kind, n, disabled))
		return []introspect.Event{{Kind: kind, Object: service, What: what, By: "resolver"}}
	}
	for _, in := range instances {
		news := "it has left"
		switch {
		case kind == Up:
			news = "the resolver names it"
		case in.State == discovery.Inactive:
			news = "it is disabled"
		}
		events = append(events, introspect.Event{Kind: kind, Object: in.Addr, What: "an instance" + of + ": " + news, By: "resolver"})
	}
	return events
}

// OfReadiness returns the event of an instance that becomes ready, or not ready, for the reason by.
func OfReadiness(addr, by string, ready bool) introspect.Event {
	e := introspect.Event{Kind: "not ready", Object: addr, What: "gets no calls while others are ready", By: by}
	if ready {
		e.Kind, e.What = "ready", "no longer held back"
	}
	return e
}

// newsOfMany says what has happened to n instances. Of those that the resolver has removed, some
// are disabled, and the others have left.
func newsOfMany(kind string, n, disabled int) string {
	switch {
	case kind == Up:
		return "the resolver names them"
	case disabled == 0:
		return "they have left"
	case disabled < n:
		return fmt.Sprintf("%d are disabled, the others have left", disabled)
	}
	return "they are disabled"
}
