// SPDX-License-Identifier: Apache-2.0

package yodel

import "time"

// An Instance is one running server of a service, as a registry lists it. A registry stores it as
// JSON that people can read. Slices and maps in an Instance must not be changed.
type Instance struct {
	// Addr is the address at which the server listens, in the form that the client's transport
	// dials.
	Addr string `json:"addr"`
	// Protocols are the protocols that the server speaks, for example "yodel" or "netrpc". A client
	// uses "yodel" if Protocols contains it, and otherwise the first of ClientOptions.Wires that
	// Protocols contains. If Protocols contains none of them, the client leaves the instance out.
	// Empty means yodel. A server with ServerOptions.Protocols announces "yodel" and their names,
	// unless its Instance sets the list.
	Protocols []string `json:"protocols,omitempty"`
	// Group is a part of the fleet that clients can select, for example a team's servers or a
	// canary. Several groups are separated by commas.
	Group string `json:"group,omitempty"`
	// Version is the version of the service, which clients can select.
	Version string `json:"version,omitempty"`
	// Weight is the instance's share of the calls, for balancers that use weights. 0 means 1.
	Weight int `json:"weight,omitempty"`
	// Zone is the data center or rack in which the server runs, for balancers that prefer their own
	// zone.
	Zone string `json:"zone,omitempty"`
	// Latitude and Longitude locate the server, in degrees. If both are 0, the location is unknown.
	Latitude  float64 `json:"latitude,omitempty"`
	Longitude float64 `json:"longitude,omitempty"`
	// State is empty or "active" if the instance receives calls, and "inactive" if it receives
	// none.
	State string `json:"state,omitempty"`
	// Tags are words by which clients can select instances.
	Tags []string `json:"tags,omitempty"`
	// Metadata describes the instance further.
	Metadata Metadata `json:"metadata,omitempty"`
	// Started is when the server began to serve.
	Started time.Time `json:"started,omitzero"`
	// Incarnation identifies one run of the server's process. The server sets it. A client compares
	// it with the incarnation that the connected server sends, to detect that another server now
	// listens at Addr.
	Incarnation string `json:"incarnation,omitempty"`
	// CallRate is how many calls the server executed per second when the record was written, and
	// Inflight is how many calls were in flight. Servers update the record when these values have
	// changed a lot.
	CallRate float64 `json:"callRate,omitempty"`
	Inflight int     `json:"inflight,omitempty"`
}

// inactive is the State of an instance that receives no calls.
const inactive = "inactive"
