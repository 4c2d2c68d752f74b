// SPDX-License-Identifier: Apache-2.0

// Package peer is what the program of a framework under test is made of: the framework says how it
// serves and how it is called, and the package does the rest, the same for all of them: it makes
// the load, checks the outcomes and measures.
//
// A program is one call of Main with a Peer. The command in the folder above starts it twice, as a
// server and as a client, and talks to both over their standard input and output.
package peer

import (
	"context"
	"crypto/tls"
	"time"
)

// A Peer is a framework as its own users would set it up.
type Peer struct {
	Name   string // as in tables: "grpc-go"
	Module string // the Go module whose version is reported: "google.golang.org/grpc"
	Setup  string // what a reader has to know to judge it: "vtprotobuf, one connection, 1 MiB windows"
	Works  []Work // what its client can do; nil for a program that only serves the clients of other peers
	Actors bool   // its client can have actors: Options.Local and Options.Idle
	// its client gives each call a deadline if Options.Deadline is set
	Deadlines bool

	// Serve serves all Works on addr, a loopback address with port 0, until stop is called.
	Serve func(addr string) (actual string, stop func(), err error)

	// ServeTLS is Serve with TLS as config has it. If it is set, the client takes Options.TLS. Nil
	// is without TLS.
	ServeTLS func(addr string, config *tls.Config) (actual string, stop func(), err error)

	// Dial connects to servers that Serve has made. The context ends with the program. An error
	// that is errors.ErrUnsupported says that the framework does not do such a load, which is no
	// failure.
	Dial func(ctx context.Context, o Options) (Client, error)
}

// A Work is what a call carries and what the server does with it.
type Work string

// The works.
const (
	// Message is the BenchmarkMessage of 581 bytes in protobuf. The server sets field1 to "OK" and
	// field2 to 100 in the message it has decoded, and returns it. The client checks both, and that
	// field102 has come back.
	Message Work = "message"
	// Echo is Options.Size random bytes that come back, compared. No codec: the framework's raw
	// bytes, or its shortest way to send bytes.
	Echo Work = "echo"
	// Kiss is kiss-rpc's call: (s string, num, i int64, d float64) is answered by (s + ":server
	// response" + i, num, i+1, d+0.2), all four compared.
	Kiss Work = "kiss"
	// Plain is the message as a plain struct, a PlainMessage, encoded by reflection with
	// Options.Codec. The server has the method registered by reflection, too, and each reply is
	// decoded into a new one.
	Plain Work = "plain"
	// Wait is Message with a handler that blocks for Pause before it answers.
	Wait Work = "wait"
	// Duplex is one call in which both sides stream. The client sends Options.Messages messages of
	// Options.Size bytes without waiting, the server sends each back, and the client compares it.
	Duplex Work = "duplex"
	// Stream is one server-streaming call of Options.Messages messages of Options.Size bytes, each
	// compared.
	Stream Work = "stream"
	// Send is Options.Messages messages of Options.Size bytes without an answer, to an actor that
	// no other caller uses, and a question for how many it has got since the last question,
	// compared.
	Send Work = "send"
)

// Options says how to dial.
type Options struct {
	Work    Work
	Addrs   []string // of one server, or of several that the calls are spread over as the framework does that
	Size    int      // bytes of an Echo and of a message of a Stream or Duplex
	Callers int      // how many goroutines will call at once
	Async   bool     // Start will be called instead of Caller, by one goroutine

	// Conns is how many connections to use: 0 is as many as the framework's users would take to be
	// fastest with so many callers; otherwise exactly as many.
	Conns int

	Messages int    // of one Stream, Duplex or Send
	Codec    string // of a Plain: gob, json or msgpack

	Deadline time.Duration // of each call, from its begin; 0 is none; only if Peer.Deadlines is set
	TLS      *tls.Config   // of the connections; nil is without TLS; only if Peer.ServeTLS is set

	Local bool // the actors are in this process, and Addrs is not used; only if Peer.Actors is set
	Idle  int  // how many further actors this process has, which do nothing; only if Peer.Actors is set
}

// A Client makes calls.
type Client interface {
	// Caller returns what one goroutine calls with: a function that makes one call of the work,
	// waits for the reply and checks it. It is called once for each calling goroutine, before the
	// measurement.
	Caller() (func() error, error)
	// Close ends the connections.
	Close() error
}

// A Resizer is a Client of the work Echo that can echo bodies of other sizes on the connections
// that it has.
type Resizer interface {
	Client
	// CallerOf is Caller for bodies of size bytes instead of Options.Size.
	CallerOf(size int) (func() error, error)
}

// A Starter is a Client that can call asynchronously.
type Starter interface {
	Client
	// Start makes one call without waiting for the reply. done is called once with the outcome,
	// when the reply has come and was checked, from any goroutine; it does not block. Start may
	// block while the framework holds it up. One goroutine calls Start.
	Start(done func(error))
}
