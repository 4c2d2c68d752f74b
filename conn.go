// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Peer is the other side of a connection.
type Peer struct {
	// Addr is the peer's network address.
	Addr net.Addr
	// Conn is the connection. Reading from it, writing to it or closing it breaks the calls on it.
	Conn net.Conn
	// Metadata is what the peer said of itself when it connected: ClientOptions.ConnMetadata on the
	// server. It must not be changed.
	Metadata Metadata
	// Agent is the peer's implementation and version, for people.
	Agent string
}

// TLS returns the state of the connection's TLS, or nil if it has none.
func (p *Peer) TLS() *tls.ConnectionState {
	c, ok := p.Conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// A ConnEvent is something that happened to a connection or a listener.
type ConnEvent struct {
	Kind ConnEventKind
	// Addr is the peer's address, or that of the listener.
	Addr string
	// Err says why, for the kinds that need a reason.
	Err error
}

// A ConnEventKind is what happened.
type ConnEventKind uint8

// The kinds of connection events. A connection that was Accepted or Connected ends with exactly
// one of Disconnected, ReadFailed, WriteFailed and Closed, or Refused.
const (
	ListenFailed  ConnEventKind = 1 + iota // a listener does not accept any more
	Refused                                // a connection was not let in: the accept filter, a limit, the Connect hook
	Accepted                               // a server has let a connection in
	ConnectFailed                          // a client could not connect
	Connected                              // a client's connection is ready for calls
	Disconnected                           // the peer closed the connection
	ReadFailed                             // reading failed, or what was read is not the protocol
	WriteFailed                            // writing failed
	Closed                                 // this side closed the connection
)

var connEventNames = [...]string{
	"", "listen failed", "refused", "accepted", "connect failed", "connected", "disconnected", "read failed", "write failed", "closed",
}

// String returns the kind in words, for example "read failed".
func (k ConnEventKind) String() string {
	if int(k) < len(connEventNames) {
		return connEventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// ending is the event that the end of a connection is.
func ending(addr string, err error) ConnEvent {
	e := ConnEvent{Addr: addr, Err: err}
	op, _ := errors.AsType[*mux.IOError](err)
	switch {
	case errors.Is(err, mux.ErrClosed):
		e.Kind, e.Err = Closed, nil
	case errors.Is(err, mux.ErrDrained), op != nil && op.Op == mux.EndOfStream:
		e.Kind, e.Err = Disconnected, nil
	case op != nil && op.Op == mux.Write:
		e.Kind = WriteFailed
	default:
		e.Kind = ReadFailed
	}
	return e
}

// foreign says in words what a peer speaks that began with got, instead of this protocol.
func foreign(got []byte) string {
	s := string(got)
	for _, known := range []struct{ prefix, what string }{
		{"HTTP/", "it answered " + firstLine(s)},
		{"PRI * HTTP/2", "an HTTP/2 preface: a gRPC client?"},
		{"GET ", "an HTTP request"},
		{"POST ", "an HTTP request"},
		{"PUT ", "an HTTP request"},
		{"HEAD ", "an HTTP request"},
		{"CONNECT ", "an HTTP request"},
		{"OPTIONS ", "an HTTP request"},
		{"\x16\x03", "a TLS handshake; is TLS set up on one side only?"},
		{"\x15\x03", "a TLS alert; is TLS set up on one side only?"},
		{"SSH-", "an SSH server or client"},
		{"\x08", "an rpcx message"},
		{"{", "JSON"},
		{wire.Magic, fmt.Sprintf("another version of the protocol, %d; this is version %d", byteAt(s, len(wire.Magic)), wire.Preface[len(wire.Magic)])},
	} {
		if strings.HasPrefix(s, known.prefix) {
			return known.what
		}
	}
	return fmt.Sprintf("%.24q", s)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return fmt.Sprintf("%.60q", strings.TrimSpace(line))
}

func byteAt(s string, i int) byte {
	if i < len(s) {
		return s[i]
	}
	return 0
}

func parseMetadata(b []byte) (Metadata, error) {
	if len(b) == 0 {
		return nil, nil //nolint:nilnil // no metadata is a valid value
	}
	md := make(Metadata)
	err := wire.EachPair(b, func(key, value []byte) { md[string(key)] = string(value) })
	return md, err
}

func appendMetadata(dst []byte, md Metadata) []byte {
	for key, value := range md {
		dst = wire.AppendPair(dst, key, value)
	}
	return dst
}
