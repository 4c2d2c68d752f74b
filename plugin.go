// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"net"
	"time"
)

// This page holds every interface a plug-in author implements. To write one, copy its
// smallest neighbour and run the suite in yodeltest; nothing needs to be registered.

// A Codec turns messages into bytes and back. It is used concurrently.
//
// Its name travels on the wire: both sides must give the same bytes the same name.
type Codec interface {
	// Name is what the codec is called on the wire, for example "json".
	Name() string
	// Append encodes v behind dst and returns the extended slice. It must not keep dst or v.
	// It may be called with a pointer or with a value. On error the returned slice is ignored.
	Append(dst []byte, v any) ([]byte, error)
	// Decode decodes the whole of src into v, a pointer. Src is reused when Decode returns: what v
	// keeps of it must be copied. It must not panic, whatever src holds.
	Decode(src []byte, v any) error
}

// A Compressor makes encoded messages smaller. It is used concurrently.
type Compressor interface {
	// Name is what the compressor is called on the wire, for example "gzip".
	Name() string
	// Append compresses src behind dst and returns the extended slice.
	Append(dst, src []byte) ([]byte, error)
	// Decompress appends the decompressed src to dst. It must stop with an error that matches
	// ErrTooLarge as soon as more than limit bytes would be appended. All that it allocates must be
	// no more than about twice limit, beside what it keeps for the next call. It must not allocate
	// a length that src only announces.
	Decompress(dst, src []byte, limit int) ([]byte, error)
}

// A Transport moves bytes between two addresses. It is used concurrently.
//
// If a Transport knows better than the caller why a connection failed, the error of Dial or of the
// connection's Read or Write is an *Error, whose message begins with the peer's address. The caller
// of the client gets it with its ID, and the server logs it.
type Transport interface {
	// Dial connects to addr, which has the form that the transport's Listen takes. It ends with
	// ctx, which always has a deadline, and includes every handshake of the transport's own.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Listen accepts connections at addr. Accept must not wait for a peer's handshake, and after
	// Close returns an error that matches net.ErrClosed. A connection has a remote address, reads
	// io.EOF after its peer's Close, and does not wait for the peer in its own.
	Listen(addr string) (net.Listener, error)
}

// A Protocol serves connections to a server that do not speak yodel's own protocol. It is used
// concurrently. Yodel's connections cost it nothing: they are recognized first.
type Protocol interface {
	// Name is what logs and errors call the protocol, for example "netrpc".
	Name() string
	// Match reports from the first bytes that a client has sent, 1 to 512 of them, whether the
	// connection speaks this protocol. More says that more bytes may tell. It must not block.
	Match(first []byte) (ok, more bool)
	// Serve serves the connection and returns when that has ended, with the reason if it is not the
	// client's regular end. The server closes the connection then. It ends with ctx, which the
	// server cancels together with the connection when Shutdown cuts off what is left. Calls on
	// other goroutines than Serve's run in Session.Go.
	Serve(ctx context.Context, s *Session) error
}

// A Resolver knows the instances of one service. One that does not hear of every change at once may
// have a method Refresh(), which clients call when a connection to an instance could not be made or
// was lost: then it looks again soon. Refresh must not block.
//
// ServiceName() string, which is optional too, returns the service whose methods the client calls,
// or "". With it, a client does not use a server of another service that listens at the address of
// an instance (YDL1109).
//
// Two more optional methods are for the messages of errors. String() string returns what is
// resolved, without secrets, for example service "Arith" in etcd at 10.0.0.1:2379. Services(ctx
// context.Context) (asked string, known []string, err error) returns the name of the service that
// was asked for, and the names of the services that the registry knows, so that a client without
// instances can tell its callers which name was meant. It has two seconds, and may leave out names
// beyond some hundreds.
type Resolver interface {
	// Watch calls update with the whole set of instances, at once and after every change, until ctx
	// ends. The caller does not change the slice. An error means that the set is not known any
	// more: the last one stays in use and Watch is called again after a pause.
	Watch(ctx context.Context, update func([]Instance)) error
}

// A Registrar makes instances known to resolvers. It is used concurrently. A Registrar may have a
// method String, which names it in the server's log.
type Registrar interface {
	// Announce makes in the record of the instance at in.Addr in a service, in place of an earlier
	// one. The registry may forget it when it was not announced again for ttl, so that a server
	// that died is forgotten. Servers announce three times as often, and so a registry that has
	// lost its memory learns again: Announce must not rely on what it wrote before. It need not
	// write what has not changed, if it keeps it alive. It ends with ctx.
	//
	// A registry may let operators set the state and the weight of instances: then Announce writes
	// what was set in place of what in says, and the registrar has a method Overrides(service
	// string) Resolver, which tells servers of the settings as of instances.
	Announce(ctx context.Context, service string, in Instance, ttl time.Duration) error
	// Withdraw makes an instance unknown. That there is none is no error.
	Withdraw(ctx context.Context, service, addr string) error
}

// A Picker chooses the endpoint for one attempt of a call. It is used concurrently, stands on
// the hot path and must not block.
type Picker interface {
	// Pick returns nil when every endpoint is one that call avoids (see Call.Avoids). A picker that
	// has nobody to choose from may have a method String, which says why to whoever made the call.
	Pick(call *Call) *Endpoint
}

// A Learner is a Picker that wants to know how its picks end. A picker that is none costs no call
// anything for this.
type Learner interface {
	Picker
	// Ended is told once of each attempt that was made on ep, which may have left the picker's set
	// meanwhile: how long its reply took, and how it ended. It is called concurrently, also by the
	// goroutine that reads a connection, and must not block. Calls that are pinned to an endpoint
	// are told as well. One-way calls are not, because nobody knows how they end.
	//
	// Took is 0 of a stream, which lasts as long as it pleases and is told when it has ended, and
	// of a request that could not be sent. Err is an *Error; of one that the server answered with
	// it has Code and NotProcessed only.
	//
	// What it learns belongs in Endpoint.State: balancers that stand around another one may have
	// several pickers made of it, and tell one.
	Ended(ep *Endpoint, took time.Duration, err error)
}

// A Balancer makes a picker for a set of endpoints. It runs whenever the set changes, with the
// picker it made before, so that it can take over that one's state; last is nil the first time. A
// client runs it once at a time. It may call the client; calls use the set before until it returns.
type Balancer func(endpoints []*Endpoint, last Picker) Picker

// A Caller carries out calls: a Client is one, a Peer is one, and so is an in-memory server in a
// test.
type Caller interface {
	Do(ctx context.Context, call *Call) error
}
