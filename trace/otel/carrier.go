// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// A carrier is a trace context in the form of yodel.Call.Trace: a traceparent, which a space and a
// tracestate may follow. It is also the metadata of a request, for all other keys. These are lower
// case, as in protocols over HTTP.
type carrier struct {
	text     string
	metadata yodel.Metadata // nil for none
}

// Get implements propagation.TextMapCarrier.
func (c *carrier) Get(key string) string {
	parent, state, _ := strings.Cut(c.text, " ")
	switch key {
	case "traceparent":
		return parent
	case "tracestate":
		return state
	}
	return c.metadata[strings.ToLower(key)]
}

// Set implements propagation.TextMapCarrier.
func (c *carrier) Set(key, value string) {
	parent, state, _ := strings.Cut(c.text, " ")
	switch key {
	case "traceparent":
		parent = value
	case "tracestate":
		state = value
	default:
		if c.metadata != nil {
			c.metadata[strings.ToLower(key)] = value
		}
		return
	}
	if c.text = parent; state != "" {
		c.text += " " + state
	}
}

// Keys implements propagation.TextMapCarrier.
func (c *carrier) Keys() []string {
	return append([]string{"traceparent", "tracestate"}, slices.Sorted(maps.Keys(c.metadata))...)
}
