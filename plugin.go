// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/address"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/internal/jsoncodec"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file contains the interfaces that authors of plug-ins implement, and what a program has
// without plug-ins: JSON, TCP and RoundRobin. Those of registries are in
// package discovery, and that of compressors in package compress. To write a plug-in, copy the
// smallest existing plug-in of its kind, and run the test suite for that kind from yodeltest.
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
	// Name returns the protocol's name, as in discovery.Instance.Protocols, for example "netrpc".
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
// allows more than one. Full must not block. If the connection ends before a call that waits is
// sent, Do adds the ID YDL1110 to its error.
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
// as Served.Stream, and the handler's Send and Recv call it. A Link passes it to Call.Converse, and
// the server is then in the place of the client. Bodies are in the codec of the call,
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

// A Picker chooses the endpoint for one attempt of a call. It is called concurrently, for every
// attempt, and must not block.
type Picker interface {
	// Pick returns the endpoint for the next attempt. It returns nil if the call avoids every
	// endpoint (see Attempts.Avoids). If a picker returns nil for another reason, its optional
	// method String() string explains it to the caller. Its optional method Verdict(call *Call, ep,
	// picked *Endpoint) string is for the call's record: it returns why the call went to picked and
	// not to ep, or "". A picker that learns how attempts ended is a balance.Learner.
	Pick(call *Call) *Endpoint
}

// A learner is a balance.Learner. The root cannot import that package.
type learner interface {
	Picker
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

// A Description says what a discovery.Resolver or a discovery.Registrar can do besides what its
// interface requires. Both may have a method Describe() Description. Clients and servers call it
// when they are made. Each field may be zero, and the functions are called concurrently.
//
// A Resolver or Registrar that wraps another one should have this method too, and return
// Description{}.Over(inner). It then keeps all that the inner one can do, also what later versions
// add to Description. The test yodeltest.TestWrapper checks this.
type Description struct {
	// Name is the name of a registry, or describes a service and its registry, in errors and logs.
	// It has no secrets. For example, service "Arith" in etcd at 10.0.0.1:2379. Default: the result
	// of the method String() string, if there is one.
	Name string

	// Service is the service whose methods the clients of a Resolver call, or "". If it is set, a
	// client does not use a server of another service that listens at the address of an instance
	// (YDL1109).
	Service string
	// Refresh is called when a client of a Resolver could not connect to an instance or lost a
	// connection. The Resolver then looks the instances up again soon. Refresh must not block. A
	// Resolver that does not learn of every change at once should have it.
	Refresh func()
	// Services returns the name of the service that was asked for and the names of the services in
	// the registry of a Resolver. A client without instances uses them to suggest the name that its
	// caller meant. Services must return within two seconds, and may leave out names beyond a few
	// hundred.
	Services func(ctx context.Context) (asked string, known []string, err error)
	// AmendClient returns the options of a client that is made with a Resolver. It must not change
	// o. Package rules adds middleware in this way.
	AmendClient func(o *ClientOptions) *ClientOptions

	// AmendServer returns the options of s, a server that is being made with a Registrar. It must
	// not change o, and only middleware may use s.
	AmendServer func(s *Server, o *ServerOptions) *ServerOptions
	// Rules returns the rules that a Registrar applies to its servers.
	Rules func() introspect.Rules
	// Overrides returns the settings of operators for a service, in the form of instances. A
	// Registrar with settings announces the state and the weight that an operator has set in place
	// of those of the instance. The metadata of a setting that cannot be read has the reason under
	// "problem". Overrides may return nil.
	Overrides func(service string) discovery.Resolver
	// Override sets the state and the weight of an instance: see registry.Override.
	Override func(ctx context.Context, service, addr, state string, weight int) error
	// Writable returns an error if servers cannot announce themselves in the registry. It changes
	// nothing.
	Writable func(ctx context.Context) error
}

// Over returns the description of a wrapper of inner, a Resolver or a Registrar: the fields of d
// that are set, and otherwise those of inner. Without fields in d, it describes inner.
func (d Description) Over(inner any) Description {
	var of Description
	if r, ok := inner.(interface{ Describe() Description }); ok {
		of = r.Describe()
	}
	if named, ok := inner.(fmt.Stringer); ok && of.Name == "" && d.Name == "" {
		of.Name = named.String()
	}
	defaults.Fill(&d, of)
	return d
}

// amended returns the options of a client whose Resolver d describes.
func (o *ClientOptions) amended(d Description) *ClientOptions {
	if d.AmendClient == nil {
		return o
	}
	return d.AmendClient(o)
}

// amended returns the options of s, which has the Registrars of o.
func (o *ServerOptions) amended(s *Server) *ServerOptions {
	for _, r := range o.Registrars {
		if d := (Description{}).Over(r); d.AmendServer != nil {
			o = d.AmendServer(s, o)
		}
	}
	return o
}

// JSON encodes messages with encoding/json. It is the default codec.
//
// Values may be nested 1,000 deep. Append refuses deeper ones, and those that contain themselves,
// as the codecs of this repository do.
var JSON Codec = jsoncodec.New()

// TCP is the default transport of clients and servers. Addresses are host:port.
var TCP Transport = tcp{}

// RoundRobin is a Balancer that picks the endpoints in turn. It is the default.
func RoundRobin(endpoints []*Endpoint, last Picker) Picker {
	p := &roundRobin{endpoints: endpoints}
	if last, ok := last.(*roundRobin); ok {
		p.next.Store(last.next.Load()) // so that the first endpoints do not get more calls when the set often changes
	} else {
		p.next.Store(rand.Uint64()) // so that many new clients do not begin at the same endpoint
	}
	return p
}

type tcp struct{}

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := checkAddr(addr); err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (tcp) Listen(addr string) (net.Listener, error) {
	if err := checkAddr(addr); err != nil {
		return nil, err
	}
	var l net.ListenConfig
	return l.Listen(context.Background(), "tcp", addr)
}

func checkAddr(addr string) error {
	if why := address.Fault(addr); why != "" {
		return refusal("YDL4003", "%q is no address: %s; want host:port, for example 127.0.0.1:8972", addr, why)
	}
	return nil
}

type roundRobin struct {
	endpoints []*Endpoint
	next      atomic.Uint64
}

func (p *roundRobin) Pick(call *Call) *Endpoint {
	n := uint64(len(p.endpoints))
	switch n {
	case 0:
		return nil
	case 1: // so that callers do not all write to the counter
		if ep := p.endpoints[0]; !call.Attempts().Avoids(ep) {
			return ep
		}
		return nil
	}
	if ep := p.endpoints[p.next.Add(1)%n]; !call.Attempts().Avoids(ep) {
		return ep
	}
	// If the call avoids the next endpoint, pick a random one of the other endpoints. Always
	// picking the following endpoint would double its load.
	var picked *Endpoint
	left := 0
	for _, ep := range p.endpoints {
		if call.Attempts().Avoids(ep) {
			continue
		}
		if left++; rand.IntN(left) == 0 { // picks each remaining endpoint with the same probability
			picked = ep
		}
	}
	return picked
}
