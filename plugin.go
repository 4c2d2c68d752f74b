// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"net"
	"time"
)

// This file contains all interfaces that authors of plug-ins implement. To write a plug-in, copy
// the smallest existing plug-in of its kind, and run the test suite for that kind from yodeltest.
// Nothing needs to be registered.

// A Codec turns messages into bytes and back. Its methods are called concurrently.
//
// The name of a codec travels on the wire: both sides must give the same bytes the same name.
//
// A message arrives as it was sent, or is an error. A codec that does not carry every type has a
// method CheckType(t reflect.Type) error, which returns why it does not carry messages of type t.
// T may be a pointer. Calls with such types fail before the method runs: see docs/values.md.
type Codec interface {
	// Name returns the codec's name on the wire, for example "json".
	Name() string
	// Append appends the encoding of v to dst and returns the extended slice. V may be a pointer or
	// a value. Append must not keep dst or v. On error the returned slice is ignored.
	Append(dst []byte, v any) ([]byte, error)
	// Decode decodes the whole of src into v, which is a pointer, and replaces all that v held. On
	// error v may hold anything. The caller reuses src when Decode returns, so Decode must copy any
	// part of src that v keeps. Decode must not panic, whatever src holds.
	Decode(src []byte, v any) error
}

// A Compressor makes encoded messages smaller. Its methods are called concurrently.
type Compressor interface {
	// Name returns the compressor's name on the wire, for example "gzip".
	Name() string
	// Append appends the compressed src to dst and returns the extended slice.
	Append(dst, src []byte) ([]byte, error)
	// Decompress appends the decompressed src to dst and returns the extended slice. It must stop
	// with an error that matches ErrTooLarge as soon as it would append more than limit bytes. In
	// one call it may allocate about twice limit, plus memory that it keeps for later calls. It
	// must not allocate memory of a length that src only announces.
	Decompress(dst, src []byte, limit int) ([]byte, error)
}

// A Transport moves bytes between two addresses. Its methods are called concurrently.
//
// A Transport may know better than its caller why a connection failed. In that case Dial, or Read
// or Write of the connection, should return an *Error whose message begins with the peer's address.
// The client returns the error to its caller with the ID, and the server logs it.
//
// A Transport that encrypts needs a method NewListener(net.Listener) (net.Listener, error), because
// Server.Serve may get any listener. The result leaves connections of Listen as they are.
type Transport interface {
	// Dial connects to addr, which has the form that the transport's Listen takes. It completes
	// every handshake of the transport before it returns. It returns when ctx ends. Ctx always has
	// a deadline.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Listen returns a listener for connections at addr. The listener's Accept must not wait for a
	// handshake with a client. After Close, Accept returns an error that matches net.ErrClosed. An
	// accepted connection has a remote address, and its Read returns io.EOF after the peer has
	// called Close. Its own Close does not wait for the peer.
	Listen(addr string) (net.Listener, error)
}

// A Protocol serves clients that do not speak yodel's own protocol. Its methods are called
// concurrently. The server recognizes connections in yodel's own protocol first, so a Protocol does
// no work for them.
//
// It may have a method Codecs() []string, which returns the names of the codecs that it can use.
// Server.Serve fails if ServerOptions.Codecs has none of them (YDL2003).
type Protocol interface {
	// Name returns the protocol's name in logs and errors, for example "netrpc".
	Name() string
	// Match reports whether a connection speaks this protocol. First holds the first 1 to 512 bytes
	// that the client has sent. If further bytes may change the result, Match sets more. Match must
	// not block.
	Match(first []byte) (ok, more bool)
	// Serve serves the connection and returns when it has ended. The server then closes the
	// connection. Serve returns an error if the client did not end the connection in a regular way.
	// Serve returns when ctx ends: the server cancels ctx and closes the connection when Shutdown
	// runs out of time. If a protocol runs calls on further goroutines, it starts these goroutines
	// with Session.Go.
	Serve(ctx context.Context, s *Session) error
}

// A Wire lets a client call servers that speak another protocol than yodel's own: see
// ClientOptions.Wires. Its methods are called concurrently.
type Wire interface {
	// Name returns the protocol's name, as in Instance.Protocols, for example "netrpc".
	Name() string
	// Connect completes the protocol's handshake on nc, a connection to ep that the client's
	// Transport has dialled, and returns the Link that owns it. Connect returns when ctx ends. Ctx
	// always has a deadline. If Connect fails, the client closes nc. If nc is a socket, it has a
	// method NetConn() net.Conn, which returns the *net.TCPConn or *net.UnixConn for its settings.
	Connect(ctx context.Context, nc net.Conn, ep *Endpoint) (Link, error)
}

// A Link is a connection on which a Wire carries calls. Its methods are called concurrently.
//
// It may have a method Full() bool, which reports whether another call would have to wait for the
// calls in flight. The client then makes another connection, if ClientOptions.ConnsPerEndpoint
// allows more than one. Full must not block.
//
// A Link that does not decode the reply of a call in Call.Encoding has a method Codec(call *Call)
// Codec, which returns the codec that decodes it. A call whose reply this codec does not carry is
// not sent.
type Link interface {
	// Do makes one attempt of a call. It returns when the reply is decoded into call.Reply. If ctx
	// ends first, it returns the cause of ctx. The deadline of ctx is not later than the deadline
	// of the call. Do sends call.Method and call.Args, which Call.AppendArgs encodes. If
	// call.OneWay is set, it does not wait for a reply. If call.Streams returns true, Do calls
	// Call.Converse, which runs the caller's function. Do must not keep the call, its arguments or
	// its reply. The Link counts the memory of replies with Endpoint.Reserve before it allocates
	// it.
	//
	// An *Error that Do returns is the server's answer, or says that the call cannot be sent in
	// this protocol. If the connection failed before the whole request was sent, Do may return an
	// *Error with the code Unavailable, NotProcessed and the Cause. Any other error means that the
	// call may have been executed. See docs/plugins.md, "What an error of a Link means".
	Do(ctx context.Context, call *Call) error
	// Closing returns a channel that is closed when the connection accepts no more calls. The
	// endpoint then makes another connection.
	Closing() <-chan struct{}
	// Done returns a channel that is closed when the connection has ended.
	Done() <-chan struct{}
	// Err returns why the connection accepts no more calls. It is called when Closing or Done is
	// closed.
	Err() error
	// Close ends the connection. If whenIdle is set, it does so when no call is in flight, and
	// otherwise at once. It does not wait for the end. It may be called several times.
	Close(whenIdle bool)
}

// Messages carries the messages of one stream in a protocol other than yodel's. A Protocol sets it
// as Served.Stream, and the handler's Send and Recv call it. Bodies are in the codec of the call,
// and compressed with its compressor if compressed is set. Send and End are never called
// concurrently. Receive is called by one goroutine at a time, concurrently with Send and End.
//
// Messages may have a method SendHeader() error, which sends Call.Header before the first message.
// Call.SendHeader calls it. It is not called concurrently with Send or End.
type Messages interface {
	// Send sends a message to the client. It waits while the client does not read, and returns when
	// ctx ends. It must not keep body.
	Send(ctx context.Context, body []byte, compressed bool) error
	// Receive waits for the next message of the client, and returns when ctx ends. It returns
	// io.EOF after the last message. The body is valid until the next call. A Protocol that reads
	// ahead of the handler counts the bytes that it holds with Session.Reserve.
	Receive(ctx context.Context) (body []byte, compressed bool, err error)
	// End tells the client that the handler sends no more messages. It may be called more than
	// once.
	End()
}

// A Resolver knows the instances of one service. It may have a method Describe, which tells
// clients what else it can do: see Description.
type Resolver interface {
	// Watch calls update with the whole set of instances, at once and after every change, until ctx
	// ends. The receiver does not change the slice. If Watch returns an error, the set is no longer
	// known: the client keeps using the last set and calls Watch again after a pause. Ctx carries a
	// function that adds events to the live data of the client: see introspect.NoteOf.
	Watch(ctx context.Context, update func([]Instance)) error
}

// A Registrar makes instances known to resolvers. Its methods are called concurrently. It may have
// a method Describe, which tells servers what else it can do: see Description.
type Registrar interface {
	// Announce writes in as the record for in.Addr under service, replacing any earlier record. The
	// registry may drop the record if it is not announced again within ttl, so that the record of a
	// server that died disappears. Servers announce three times per ttl. Announce must not rely on
	// an earlier write, because the registry may have lost its data. If the record is unchanged,
	// Announce may renew it without writing it. Announce returns when ctx ends.
	//
	// A registry may let operators set the state and the weight of instances. Announce then writes
	// the operator's values in place of the values of in: see Description.Overrides.
	Announce(ctx context.Context, service string, in Instance, ttl time.Duration) error
	// Withdraw removes the record for addr under service. It leaves the record of another server,
	// with another incarnation. Withdrawing an unknown instance succeeds.
	Withdraw(ctx context.Context, service, addr string) error
}

// A Picker chooses the endpoint for one attempt of a call. It is called concurrently, for every
// attempt, and must not block.
type Picker interface {
	// Pick returns the endpoint for the next attempt. It returns nil if the call avoids every
	// endpoint (see Attempts.Avoids). If a picker returns nil for another reason, its optional
	// method String() string explains it to the caller. Its optional method Verdict(call *Call, ep,
	// picked *Endpoint) string is for the call's record: it returns why the call went to picked and
	// not to ep, or "".
	Pick(call *Call) *Endpoint
}

// A Learner is a Picker that is told how attempts ended. Pickers that do not implement Learner
// cost nothing extra per call.
type Learner interface {
	Picker
	// Ended is called once for each attempt on ep, with the time until the reply and the outcome.
	// Ep may have left the picker's set by then. Ended is called concurrently, also by the
	// goroutine that reads a connection, and must not block. It is called for calls that are pinned
	// to an endpoint as well. It is not called for one-way calls, because their outcome is unknown.
	//
	// For a stream, Ended is called when the stream has ended, and took is 0. Took is also 0 for a
	// request that could not be sent. Err is an *Error. If the server answered with an error, only
	// its Code and NotProcessed are set.
	//
	// A Learner should keep what it learns in Endpoint.State. A balancer that wraps another one may
	// build several pickers from it and call Ended on only one of them.
	Ended(ep *Endpoint, took time.Duration, err error)
}

// A Balancer returns a picker for a set of endpoints. The client calls it whenever the set changes,
// never concurrently. The client does not change the slice of endpoints. A picker may keep it, and
// must not change it. Last is the picker that the Balancer returned before, so that the new picker
// can take over its state. Last is nil the first time. A Balancer may make calls with the client.
// Until the Balancer returns, calls use the previous picker.
type Balancer func(endpoints []*Endpoint, last Picker) Picker

// A Caller sends calls. Client and Peer are Callers, and a test can use an in-memory server.
type Caller interface {
	Do(ctx context.Context, call *Call) error
}

// A KeyMemory remembers the outcomes of calls that have an idempotency key. Package once has one.
// Its methods are called concurrently.
type KeyMemory interface {
	// Guard returns a handler that calls next once for each key, and answers later calls with the
	// same key with the outcome of the first. The server calls Guard once and puts the handler
	// below its middleware, so that it guards every method.
	Guard(next Handler) Handler
	// Scope returns the name of the memory, and how long the memory remembers a key after a call
	// with that key arrived. Servers that share a memory return the same name. Different memories
	// have different names. A name has at most 255 bytes. The server replaces a longer name by a
	// hash. The name of a memory that ends with its process begins with "process:". If the name is
	// empty, the memory is not ready, and the server tells clients that it remembers nothing. The
	// server calls Scope when it begins to serve and when each connection begins. The connection
	// waits until Scope returns.
	Scope() (name string, keep time.Duration)
}

// An Instance is one running server of a service, as a registry lists it. A registry stores it as
// JSON that people can read. Slices and maps in an Instance must not be changed.
type Instance struct {
	// Addr is the address of the server, in the form that the client's transport dials: HOST:PORT
	// for TCP. If it is empty, the server announces the address at which it listens, or that of the
	// host's default route if it listens at all addresses.
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
