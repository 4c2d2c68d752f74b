// SPDX-License-Identifier: Apache-2.0

package introspect

// ConnEventKind is what happened to a connection or a listener: see yodel.ConnEvent.
type ConnEventKind string

// The kinds of connection events. A connection that was accepted or connected ends with exactly one
// of Disconnected, ReadFailed, WriteFailed and Closed, or is refused.
const (
	ListenFailed  ConnEventKind = "listen failed"  // a listener could not be opened, or does not accept any more
	Refused       ConnEventKind = "refused"        // by a server: the accept filter, a limit, the Connect hook
	Accepted      ConnEventKind = "accepted"       // a server has let a connection in
	ConnectFailed ConnEventKind = "connect failed" // a client could not connect
	Connected     ConnEventKind = "connected"      // a client's connection is ready for calls
	Disconnected  ConnEventKind = "disconnected"   // the peer closed the connection
	ReadFailed    ConnEventKind = "read failed"    // or what was read is not the protocol
	WriteFailed   ConnEventKind = "write failed"
	Closed        ConnEventKind = "closed" // this side closed the connection
)
