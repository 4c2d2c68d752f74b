// SPDX-License-Identifier: Apache-2.0

package introspect

import (
	"context"
	"time"
)

// LiveQuery selects what the built-in method yodel.Live returns.
type LiveQuery struct {
	// Span is how far the points go back. They are a second apart for a span of up to a minute, a
	// minute apart for up to an hour, and an hour apart for up to a day. 0 means a minute.
	Span time.Duration `json:"span,omitempty"`
	// Side, Method and Peer select series. An empty one selects all.
	Side   string `json:"side,omitempty"`
	Method string `json:"method,omitempty"`
	Peer   string `json:"peer,omitempty"`
	// Histograms asks for Series.Latency.
	Histograms bool `json:"histograms,omitempty"`
	// Tenants is how many tenants of each method Live.Tenants may have. 0 means none.
	Tenants int `json:"tenants,omitempty"`
}

// Live is what a process has measured in the course of time: the calls that its server has
// executed, and those that its clients have made.
type Live struct {
	Now  time.Time     `json:"now"`
	Step time.Duration `json:"step"` // nanoseconds between two points
	// Name is the name of the process in calls to others: yodel.ClientOptions.Name.
	Name   string   `json:"name,omitempty"`
	Series []Series `json:"series"`
	// Inflight has the calls that the server is executing, by method.
	Inflight map[string]int64 `json:"inflight,omitempty"`
	// Tenants has the tenants for which a method was executed most often in the last minute, if
	// LiveQuery.Tenants asks for them. It is sorted by method, and then by calls.
	Tenants []TenantCalls `json:"tenants,omitempty"`
	// Left counts the series that were left out, because the memory for live data is used up, or
	// because the reply would be too large.
	Left    int     `json:"left,omitempty"`
	Events  []Event `json:"events,omitempty"` // the oldest first
	Process Process `json:"process"`
}

// A TenantCalls is the calls of one method that a server has executed for one tenant in the last
// minute. A server knows a bounded number of tenants. If there are more, the calls of a tenant that
// displaced another one count from then on.
type TenantCalls struct {
	Method  string `json:"method"`
	Tenant  string `json:"tenant"` // yodel.Call.Tenant
	Calls   uint64 `json:"calls"`
	Failed  uint64 `json:"failed,omitempty"`  // those with the outcome Failed
	Limited uint64 `json:"limited,omitempty"` // those with the outcome Limited
}

// A Series has what became of the calls of one method with one peer. All its lists have an element
// for each step, the oldest first. The last step has not ended.
type Series struct {
	Side   string `json:"side"` // "server": calls that the process has executed; "client": calls that it has made
	Method string `json:"method"`
	// Peer is the name of the caller on the server's side, and the address of the instance on the
	// client's. It is empty if the caller has no name, and for calls that the client has sent to no
	// instance, for example because a rule refused them.
	Peer   string              `json:"peer,omitempty"`
	Calls  []uint64            `json:"calls"`            // calls that have ended
	Errors map[string][]uint64 `json:"errors,omitempty"` // by code
	// P50, P90 and P99 are quantiles of the latency, in nanoseconds; 0 if no call was measured.
	// Streams, whose duration is no latency, and canceled calls are not measured.
	P50 []time.Duration `json:"p50"`
	P90 []time.Duration `json:"p90"`
	P99 []time.Duration `json:"p99"`
	// Latency has the histogram of each step, if LiveQuery.Histograms is set. Histograms of several
	// processes can be added: their buckets end at the same durations.
	Latency [][]Bucket `json:"latency,omitempty"`
}

// An Event is something that has changed in a process.
type Event struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // "instance up", "instance down", "not ready", "ready", "ejected", "readmitted", "rule", "drain", "start"
	// Object is what has changed: the address of an instance, or the service and the ID of a rule,
	// such as Shop/canary-7f3a.
	Object string `json:"object"`
	// What says what has happened, for people.
	What string `json:"what"`
	// By is who has changed it, for example "breaker" or the author of a rule.
	By string `json:"by,omitempty"`
}

// noteKey is the key of the function of WithNote.
type noteKey struct{}

// WithNote returns a context that carries note, which adds an event to the live data of a process.
// The contexts of discovery.Resolver.Watch carry the method Note of the client or server that
// watches.
func WithNote(ctx context.Context, note func(Event)) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

// NoteOf returns the function that WithNote has added to ctx, or nil.
func NoteOf(ctx context.Context) func(Event) {
	note, _ := ctx.Value(noteKey{}).(func(Event))
	return note
}

// Process is the state of a process.
type Process struct {
	PID        int           `json:"pid"`
	Host       string        `json:"host,omitempty"`
	Version    string        `json:"version,omitempty"` // of the program's module
	Go         string        `json:"go"`
	Started    time.Time     `json:"started"`
	Goroutines int           `json:"goroutines"`
	Heap       uint64        `json:"heap"` // bytes
	CPU        time.Duration `json:"cpu"`  // processor time since the start
	GCs        uint32        `json:"gcs"`
}

// Conns is the connections of a process.
type Conns struct {
	Conns []ConnInfo `json:"conns"`
	Left  int        `json:"left,omitempty"` // connections that were left out, because there are too many
}

// ConnInfo describes a connection of a process.
type ConnInfo struct {
	Side     string    `json:"side"` // "server": the peer has connected; "client": the process has
	Addr     string    `json:"addr"` // of the peer
	Peer     string    `json:"peer,omitempty"`
	Agent    string    `json:"agent,omitempty"`
	Protocol string    `json:"protocol"`
	TLS      bool      `json:"tls,omitempty"`
	Since    time.Time `json:"since"`
	// Unlisted says that the client's resolver no longer reports the server. The client goes on
	// calling it while that is in doubt, or until its calls have ended.
	Unlisted bool `json:"unlisted,omitempty"`
	Conn
}

// TapQuery selects the calls that the built-in feed yodel.Tap sends.
type TapQuery struct {
	Method string        `json:"method,omitempty"` // empty: all
	Peer   string        `json:"peer,omitempty"`
	Tenant string        `json:"tenant,omitempty"`
	Failed bool          `json:"failed,omitempty"` // only those
	Slower time.Duration `json:"slower,omitempty"` // only calls that took at least so long
	// PerSecond is how many calls are sent in a second at most. 0 means 100; at most 1000.
	PerSecond int `json:"perSecond,omitempty"`
}

// A Tapped is a call that has ended, or the number of calls that were left out.
type Tapped struct {
	At      time.Time     `json:"at"`
	Method  string        `json:"method,omitempty"`
	Peer    string        `json:"peer,omitempty"` // the name of the caller, or its address
	Tenant  string        `json:"tenant,omitempty"`
	Code    string        `json:"code,omitempty"` // empty if the call succeeded
	Message string        `json:"message,omitempty"`
	Took    time.Duration `json:"took,omitempty"`
	In      int           `json:"in,omitempty"`  // bytes received
	Out     int           `json:"out,omitempty"` // bytes sent
	Trace   string        `json:"trace,omitempty"`
	Left    int           `json:"left,omitempty"` // calls that matched and were left out since the last message
}
