// SPDX-License-Identifier: Apache-2.0

package yodel

import "time"

// An Instance is one running server of a service, as a registry lists it. A registry keeps it as
// JSON, for people to read. What it points to must not be changed.
type Instance struct {
	// Addr is where it listens, in the form that the client's transport dials.
	Addr string `json:"addr"`
	// Group is a part of the fleet that clients may keep to: a team's, a canary's. Several are
	// separated by commas.
	Group string `json:"group,omitempty"`
	// Version is what clients that want one ask for.
	Version string `json:"version,omitempty"`
	// Weight is its share of the calls, for balancers that look at it. 0 is 1.
	Weight int `json:"weight,omitempty"`
	// Zone is where it runs, for balancers that prefer their own: a data center, a rack.
	Zone string `json:"zone,omitempty"`
	// Latitude and Longitude are where on earth it runs, in degrees. Both 0 is unknown.
	Latitude  float64 `json:"latitude,omitempty"`
	Longitude float64 `json:"longitude,omitempty"`
	// State is empty or "active" for one that gets calls, and "inactive" for one that gets none.
	State string `json:"state,omitempty"`
	// Tags are words that clients may ask for.
	Tags []string `json:"tags,omitempty"`
	// Metadata describes it further.
	Metadata Metadata `json:"metadata,omitempty"`
	// Started is when it began to serve.
	Started time.Time `json:"started,omitzero"`
	// Incarnation identifies the run of the server that the record is of, and is set by it. A
	// client tells by it whether the server that it has connected to is the one that was announced.
	Incarnation string `json:"incarnation,omitempty"`
	// CallRate is how many calls it executed per second when the record was written, and Inflight
	// how many were open. Servers write them again when they have changed much.
	CallRate float64 `json:"callRate,omitempty"`
	Inflight int     `json:"inflight,omitempty"`
}

// inactive is the State of an instance that gets no calls.
const inactive = "inactive"
