// SPDX-License-Identifier: Apache-2.0

// Package instanceevents words the events of a client about the instances that its resolver adds
// and removes.
package instanceevents

import (
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel/introspect"
)

// These are the kinds of the events.
const (
	Up   = "instance up"
	Down = "instance down"
)

// Of returns the events of n instances of a service that the resolver has added or removed. The
// function at returns the address of instance i, and whether its record says that it is inactive.
// Many instances at once make one event.
func Of(kind, service string, n int, at func(i int) (addr string, inactive bool)) (events []introspect.Event) {
	const single, listed = 8, 3
	of := ""
	if service != "" {
		of = " of " + service
	}
	if n > single {
		var addrs []string
		disabled := 0
		for i := range n {
			addr, inactive := at(i)
			if i < listed {
				addrs = append(addrs, addr)
			}
			if inactive {
				disabled++
			}
		}
		what := fmt.Sprintf("%d instances%s: %s and others: %s", n, of, strings.Join(addrs, ", "), newsOfMany(kind, n, disabled))
		return []introspect.Event{{Kind: kind, Object: service, What: what, By: "resolver"}}
	}
	for i := range n {
		addr, inactive := at(i)
		news := "it has left"
		switch {
		case kind == Up:
			news = "the resolver names it"
		case inactive:
			news = "it is disabled"
		}
		events = append(events, introspect.Event{Kind: kind, Object: addr, What: "an instance" + of + ": " + news, By: "resolver"})
	}
	return events
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
