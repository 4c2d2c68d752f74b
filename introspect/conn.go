// SPDX-License-Identifier: Apache-2.0

package introspect

// A ConnEvent is something that happened to a connection or a listener.
type ConnEvent struct {
	// Kind is the kind of event.
	Kind ConnEventKind
	// Addr is the address of the peer, or of the listener.
	Addr string
	// Err is the reason, for the kinds that have one.
	Err error
}

// ConnEventKind is the kind of a ConnEvent.
type ConnEventKind string

// These are the kinds of connection events. A connection that was accepted or connected ends with
// exactly one of Disconnected, ReadFailed, WriteFailed and Closed, or it is refused.
const (
	ListenFailed  ConnEventKind = "listen failed"  // a listener could not be opened, or has stopped accepting
	Refused       ConnEventKind = "refused"        // by a server: the accept filter, a limit, the Connect hook
	Accepted      ConnEventKind = "accepted"       // a server has accepted a connection
	ConnectFailed ConnEventKind = "connect failed" // a client could not connect
	Connected     ConnEventKind = "connected"      // a client's connection is ready for calls
	Disconnected  ConnEventKind = "disconnected"   // the peer closed the connection
	ReadFailed    ConnEventKind = "read failed"    // reading failed, or the peer did not speak the protocol
	WriteFailed   ConnEventKind = "write failed"
	Closed        ConnEventKind = "closed" // this side closed the connection
)
