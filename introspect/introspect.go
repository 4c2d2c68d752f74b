// SPDX-License-Identifier: Apache-2.0

// Package introspect has the messages of a server's built-in methods, with which a server describes
// itself. Package inspect has the methods. Package introspect also has the kinds of connection
// events.
package introspect

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
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
	// Overrides are the settings of operators for the server in registries. They take precedence
	// over the values that the server announces.
	Overrides []Override `json:"overrides,omitempty"`
	// Limits is only set with ServerOptions.Diagnostics.
	Limits *Limits `json:"limits,omitempty"`
}

// Limits is what a server may use, as far as yodel.ServerOptions and yodel.Limits bound it.
type Limits struct {
	MaxConns   int `json:"maxConns"`
	MaxOpen    int `json:"maxOpen"`    // open requests
	MaxMemory  int `json:"maxMemory"`  // bytes
	MaxMessage int `json:"maxMessage"` // bytes
	ConnOpen   int `json:"connOpen"`   // open requests of a connection
	ConnMemory int `json:"connMemory"` // bytes of a connection
}

// String returns the limits in words, or "" for nil.
func (l *Limits) String() string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%d connections, %d open requests (%d of a connection), %s of memory (%s of a connection), messages of %s",
		l.MaxConns, l.MaxOpen, l.ConnOpen, size(l.MaxMemory), size(l.ConnMemory), size(l.MaxMessage))
}

// size returns a number of bytes with at most one decimal.
func size(n int) string {
	units, f := []string{"B", "KiB", "MiB", "GiB", "TiB"}, float64(n)
	i := 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + " " + units[i]
}

// An Override is the setting of an operator for an instance of a service in a registry.
type Override struct {
	Service  string `json:"service"`
	Registry string `json:"registry,omitempty"` // only with ServerOptions.Diagnostics
	Addr     string `json:"addr"`
	State    string `json:"state,omitempty"`  // empty: the instance's own state counts
	Weight   int    `json:"weight,omitempty"` // 0: the instance's own weight counts
	// Problem is why the setting cannot be read. Such a setting overrides nothing.
	Problem string `json:"problem,omitempty"`
}

// Compare orders overrides by service, registry and address.
func (o Override) Compare(other Override) int {
	return cmp.Or(strings.Compare(o.Service, other.Service), strings.Compare(o.Registry, other.Registry), strings.Compare(o.Addr, other.Addr))
}

// Method describes a method of a server.
type Method struct {
	Name       string   `json:"name"`
	Aliases    []string `json:"aliases,omitempty"`
	Args       []Schema `json:"args"`    // one, except for methods that take Values
	Results    []Schema `json:"results"` // one, except for methods that return Values
	Values     bool     `json:"values,omitempty"`
	Kind       string   `json:"kind,omitempty"` // feed, upload or duplex; empty for one request and one reply
	Idempotent bool     `json:"idempotent,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"` // callers over HTTP may use GET
}

// Infrastructure reports whether a service describes servers and belongs to no program: the
// built-in service, and health and reflection of gRPC. Servers do not announce it, and lists and
// metrics leave it out.
func Infrastructure(service string) bool {
	return service == "yodel" || strings.HasPrefix(service, "grpc.health.") || strings.HasPrefix(service, "grpc.reflection.")
}

// Schema describes a type of Go. A type that contains itself is described in the outermost place.
// In an inner place, an object has no Fields, and an array or a map has no Elem. The same holds for
// the inner types of a message with more than 1,000 types, and for the messages of a server after
// the first 40,000 types.
type Schema struct {
	Name   string   `json:"name,omitempty"`   // of a field, in JSON
	Type   string   `json:"type"`             // as Go writes it
	Kind   string   `json:"kind"`             // object, array, map, string, integer, number, boolean, bytes or any
	Fields []Schema `json:"fields,omitempty"` // of an object
	Elem   *Schema  `json:"elem,omitempty"`   // of an array or a map
}

// Stats is the statistics of a server since it started.
type Stats struct {
	Since time.Time `json:"since"`
	Conns int       `json:"conns"` // open connections
	// Open is the number of open requests, without those of short methods; see
	// yodel.ServerOptions.MaxOpen.
	Open    int    `json:"open"`
	Granted int    `json:"granted"` // open requests that the clients are allowed now
	MaxOpen int    `json:"maxOpen"` // yodel.ServerOptions.MaxOpen
	Panics  uint64 `json:"panics"`  // panics of handlers
	// LeftOut counts pairs of metadata that replies were sent without, because the protocol of the
	// client could not carry them or they exceeded the server's limits. The server's log has their
	// keys.
	LeftOut uint64        `json:"leftOut,omitempty"`
	Methods []MethodStats `json:"methods"`
	// Draining is true from the beginning of the server's shutdown.
	Draining bool `json:"draining,omitempty"`
	// Announced has the state of the server's announcement in each registry, for each listener.
	Announced []Announced `json:"announced,omitempty"`
}

// Announced is the state of a server's announcement in a registry.
type Announced struct {
	Registry string `json:"registry"`
	Addr     string `json:"addr"` // of the listener, as clients can reach it
	// At is when the registry last accepted all records of the server. It is zero before the first
	// time. The records expire when they have not been renewed for three times
	// yodel.ServerOptions.AnnounceEvery.
	At      time.Time `json:"at,omitzero"`
	Failing bool      `json:"failing,omitempty"` // whether the last attempt failed
}

// MethodStats is the statistics of a method of a server, or of the calls that a client makes of a
// method.
type MethodStats struct {
	Name  string `json:"name"`
	Calls uint64 `json:"calls"` // calls that have ended
	// Errors has the calls that failed, by code.
	Errors   map[string]uint64 `json:"errors,omitempty"`
	Inflight int64             `json:"inflight"`           // 0 on a client
	Received uint64            `json:"received,omitempty"` // messages on streams
	Sent     uint64            `json:"sent,omitempty"`     // messages on streams
	// BytesIn and BytesOut are the bytes of the bodies, attachments, metadata and messages of the
	// calls that have ended, received and sent. A server counts them if
	// yodel.ServerOptions.CountBytes is set.
	BytesIn  uint64 `json:"bytesIn,omitempty"`
	BytesOut uint64 `json:"bytesOut,omitempty"`
	// Retries and Hedges are, on a client, the attempts after the first one of each call. Hedges
	// ran beside another attempt of the call.
	Retries uint64 `json:"retries,omitempty"`
	Hedges  uint64 `json:"hedges,omitempty"`
	// Latency has the number of calls in each bucket. On a server it is how long the calls took
	// there, including middleware and decoding. On a client it is how long they took for the
	// caller, with all attempts. It lacks streams, whose duration is no latency, and canceled
	// calls.
	Latency []Bucket `json:"latency,omitempty"`
	// Took is how long the calls in Latency took together.
	Took time.Duration `json:"took,omitempty"`
	// Callers has the calls by the name of the caller, on a server with
	// yodel.ServerOptions.Diagnostics, sorted by name.
	Callers []CallerStats `json:"callers,omitempty"`
}

// CallerStats is the calls of a method by one caller. A caller that has not called for a day may be
// missing, and begins at zero again when it calls.
type CallerStats struct {
	// Name is the name of the caller as in Series.Peer. It is "other" for all callers beyond the
	// first 64 of the method.
	Name   string            `json:"name"`
	Calls  uint64            `json:"calls"`            // calls that have ended
	Errors map[string]uint64 `json:"errors,omitempty"` // by code
}

// A Bucket is the number of calls that took at most UpTo and more than the UpTo of the previous
// bucket.
type Bucket struct {
	UpTo  time.Duration `json:"upTo"` // nanoseconds
	Calls uint64        `json:"calls"`
}

// Quantile returns the latency that a share q of the calls did not exceed. For example, 0.99 is the
// 99th percentile. The result is at most a fifth too high. It is 0 if there were no calls.
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

// ClientStats is the statistics of a client since it was created.
type ClientStats struct {
	Since     time.Time       `json:"since"`
	Endpoints []EndpointStats `json:"endpoints"` // sorted by address
	Resolver  Resolver        `json:"resolver"`
	// Methods has the calls of each method, sorted by name, if yodel.ClientOptions.CountCalls is
	// set. All methods beyond the first 1000 share the name "other", and so do those that no server
	// has beyond the first 500.
	Methods []MethodStats `json:"methods,omitempty"`
}

// EndpointStats is the statistics of an endpoint of a client.
type EndpointStats struct {
	Addr     string `json:"addr"`
	Protocol string `json:"protocol"` // "yodel", or the name of a Wire
	// Picks counts the calls that were sent to the endpoint, and the calls that found no connection
	// to it.
	Picks       uint64 `json:"picks"`
	Attempts    uint64 `json:"attempts"`              // attempts that were sent
	Failed      uint64 `json:"failed,omitempty"`      // attempts that ended with an error, and were not canceled
	Unconnected uint64 `json:"unconnected,omitempty"` // picks that found no connection
	Inflight    int    `json:"inflight,omitempty"`    // attempts in flight, and calls that wait for a connection
	Load        int    `json:"load,omitempty"`        // calls that the server is working on, as far as the client knows
	// RTT is the last measured round trip.
	RTT   time.Duration `json:"rtt,omitempty"`
	Ready bool          `json:"ready"`
	// NotReady has the reasons why the endpoint is not ready.
	NotReady []string `json:"notReady,omitempty"`
	// Ejections counts how often the endpoint became not ready, by reason. "connection" means that
	// the last connection was lost.
	Ejections map[string]uint64 `json:"ejections,omitempty"`
	Unlisted  bool              `json:"unlisted,omitempty"` // the resolver no longer reports it
	Conns     []Conn            `json:"conns,omitempty"`    // open connections
}

// Conn is the statistics of one connection since it began.
type Conn struct {
	Open      int    `json:"open"`                // calls of this side in flight
	Full      bool   `json:"full,omitempty"`      // whether a further call would have to wait
	BytesIn   uint64 `json:"bytesIn,omitempty"`   // read from the transport
	BytesOut  uint64 `json:"bytesOut,omitempty"`  // written to the transport
	FramesIn  uint64 `json:"framesIn,omitempty"`  // of yodel's own protocol
	FramesOut uint64 `json:"framesOut,omitempty"` // of yodel's own protocol
	Reads     uint64 `json:"reads,omitempty"`     // Read calls on the transport
	Writes    uint64 `json:"writes,omitempty"`    // Write calls on the transport
}

// Health is the state of a server.
type Health struct {
	Serving bool `json:"serving"` // false while the server is shutting down, or is not ready
}
