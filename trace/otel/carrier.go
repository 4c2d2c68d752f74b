// SPDX-License-Identifier: Apache-2.0

package otel

import "strings"

// A carrier is a trace context in the form of yodel.Call.Trace: a traceparent, which a space and a
// tracestate may follow.
type carrier struct{ text string }

// Get implements propagation.TextMapCarrier.
func (c *carrier) Get(key string) string {
	parent, state, _ := strings.Cut(c.text, " ")
	switch key {
	case "traceparent":
		return parent
	case "tracestate":
		return state
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c *carrier) Set(key, value string) {
	parent, state, _ := strings.Cut(c.text, " ")
	switch key {
	case "traceparent":
		parent = value
	case "tracestate":
		state = value
	}
	if c.text = parent; state != "" {
		c.text += " " + state
	}
}

// Keys implements propagation.TextMapCarrier.
func (c *carrier) Keys() []string { return []string{"traceparent", "tracestate"} }
