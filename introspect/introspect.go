// SPDX-License-Identifier: Apache-2.0

// Package introspect has the messages of a server's built-in methods: what a server says of itself.
// Package inspect has the methods. It also has the kinds of connection events.
package introspect

import (
	"cmp"
	"strings"
	"time"
)

// Info describes a server.
type Info struct {
	Agent       string    `json:"agent"`
	Started     time.Time `json:"started"`
	Codecs      []string  `json:"codecs"`
	Compressors []string  `json:"compressors,omitempty"`
	Methods     []Method  `json:"methods"`
	// Overrides is what operators have set for the server in registries. It wins over what the
	// server announces.
	Overrides []Override `json:"overrides,omitempty"`
}

// An Override is what an operator has set for an instance of a service in a registry.
type Override struct {
	Service  string `json:"service"`
	Registry string `json:"registry,omitempty"` // only with ServerOptions.Diagnostics
	Addr     string `json:"addr"`
	State    string `json:"state,omitempty"`  // empty leaves the instance's own
	Weight   int    `json:"weight,omitempty"` // 0 leaves the instance's own
}

// Compare orders overrides by service, registry and address.
func (o Override) Compare(other Override) int {
	return cmp.Or(strings.Compare(o.Service, other.Service), strings.Compare(o.Registry, other.Registry), strings.Compare(o.Addr, other.Addr))
}

// Method describes a method of a server.
type Method struct {
	Name       string   `json:"name"`
	Aliases    []string `json:"aliases,omitempty"`
	Args       []Schema `json:"args"`    // one, but for methods that take Values
	Results    []Schema `json:"results"` // likewise
	Values     bool     `json:"values,omitempty"`
	Kind       string   `json:"kind,omitempty"` // feed, upload or duplex; empty for one request and one reply
	Idempotent bool     `json:"idempotent,omitempty"`
}

// Schema describes a type of Go.
type Schema struct {
	Name   string   `json:"name,omitempty"`   // of a field, in JSON
	Type   string   `json:"type"`             // as Go writes it
	Kind   string   `json:"kind"`             // object, array, map, string, integer, number, boolean, bytes or any
	Fields []Schema `json:"fields,omitempty"` // of an object; left out where a type contains itself
	Elem   *Schema  `json:"elem,omitempty"`   // of an array or a map
}

// Stats is what a server counted since it started.
type Stats struct {
	Since time.Time `json:"since"`
	Conns int       `json:"conns"` // open now
	// requests open now, without those of short methods; see yodel.ServerOptions.MaxOpen
	Open    int           `json:"open"`
	Granted int           `json:"granted"` // requests that the clients may have open now
	Panics  uint64        `json:"panics"`  // of handlers
	Methods []MethodStats `json:"methods"`
}

// MethodStats is what a server counted of a method.
type MethodStats struct {
	Name     string            `json:"name"`
	Calls    uint64            `json:"calls"` // that have ended
	Errors   map[string]uint64 `json:"errors,omitempty"`
	Inflight int64             `json:"inflight"`
	Received uint64            `json:"received,omitempty"` // messages on streams
	Sent     uint64            `json:"sent,omitempty"`     // likewise
	// Latency is how long the calls took on the server, middleware and decoding included: the
	// number of calls in each bucket.
	Latency []Bucket `json:"latency,omitempty"`
}

// A Bucket is a number of calls that took at most UpTo, and more than the bucket before.
type Bucket struct {
	UpTo  time.Duration `json:"upTo"` // nanoseconds
	Calls uint64        `json:"calls"`
}

// Quantile returns the latency that a share q of the calls did not exceed, at most a fifth too
// high: 0.99 is the 99th percentile. It is 0 without calls.
func (m *MethodStats) Quantile(q float64) time.Duration {
	var total, seen uint64
	for _, b := range m.Latency {
		total += b.Calls
	}
	for _, b := range m.Latency {
		if seen += b.Calls; float64(seen) >= q*float64(total) {
			return b.UpTo
		}
	}
	return 0
}

// ClientStats is what a client has counted since it was made.
type ClientStats struct {
	Since     time.Time       `json:"since"`
	Endpoints []EndpointStats `json:"endpoints"` // sorted by address
}

// EndpointStats is what a client has counted of an endpoint.
type EndpointStats struct {
	Addr     string `json:"addr"`
	Protocol string `json:"protocol"` // "yodel", or the name of a Wire
	// Picks is how often a call was sent there, or found no connection.
	Picks       uint64 `json:"picks"`
	Attempts    uint64 `json:"attempts"`              // that were sent
	Failed      uint64 `json:"failed,omitempty"`      // attempts that ended with an error
	Unconnected uint64 `json:"unconnected,omitempty"` // picks that found no connection
	Inflight    int    `json:"inflight,omitempty"`    // attempts in flight, and calls that wait for a connection
	Load        int    `json:"load,omitempty"`        // calls that the server works on, as far as is known
	// RTT is the last round trip that was measured.
	RTT   time.Duration `json:"rtt,omitempty"`
	Ready bool          `json:"ready"`
	// NotReady has the reasons why it is not ready.
	NotReady []string `json:"notReady,omitempty"`
	// Ejections counts how often it became not ready, by reason. "connection" means that the last
	// connection was lost.
	Ejections map[string]uint64 `json:"ejections,omitempty"`
	Unlisted  bool              `json:"unlisted,omitempty"` // the resolver does not report it any more
	Conns     []Conn            `json:"conns,omitempty"`    // open now
}

// Conn is what was counted on one connection since it began.
type Conn struct {
	Open      int    `json:"open"`                // calls of this side in flight
	Full      bool   `json:"full,omitempty"`      // a further call would wait
	BytesIn   uint64 `json:"bytesIn,omitempty"`   // read from the transport
	BytesOut  uint64 `json:"bytesOut,omitempty"`  // written to it
	FramesIn  uint64 `json:"framesIn,omitempty"`  // of yodel's own protocol
	FramesOut uint64 `json:"framesOut,omitempty"` // likewise
	Reads     uint64 `json:"reads,omitempty"`     // calls of the transport
	Writes    uint64 `json:"writes,omitempty"`    // likewise
}

// Health is the state of a server.
type Health struct {
	Serving bool `json:"serving"` // false while it is shutting down
}
