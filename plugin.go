// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"net"
	"time"
)

// This file contains the interfaces that authors of plug-ins implement. Those of registries are in
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

// A Learner is a balance.Learner.
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
