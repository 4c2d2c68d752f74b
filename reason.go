// SPDX-License-Identifier: Apache-2.0

package yodel

// Traits say what an error of yodel's own is about. Code asks for traits and never compares IDs or texts: an ID is for people, and the
// errors of handlers and of other systems have none.
type traits uint8

const (
	// aboutMessage: the types or the size of a message are why. Each server would say so.
	aboutMessage traits = 1 << iota
	// aboutConnection: there is no connection to the server, or there is none any more.
	aboutConnection
	// ofClient: the client decided it, or it is in the way itself. The server has no part in it.
	ofClient
	// stale: the connection was at fault, and another one to the same server may do.
	stale
	// draining: the server is shutting down. Such errors are stale.
	draining
	// impatient: the caller would not wait any longer.
	impatient
	// notRepeated: the call was not sent again, because its idempotency key is not remembered there.
	notRepeated
	// breach: the peer broke the protocol, which ended the connection.
	breach
)

// is reports whether the error is one of yodel's own that has the trait.
func (e *Error) is(t traits) bool { return catalogue[e.ID].traits&t != 0 }

// AboutMessage reports whether the types or the size of a message are why the call failed: a message that does not fit the method,
// cannot be encoded or decoded, or exceeds a limit. Another server with the same limits would fail it too, and so would a
// second attempt. Of a message that was damaged on its way it returns false, and of the errors of handlers.
func (e *Error) AboutMessage() bool { return e.is(aboutMessage) }

// AboutConnection reports whether the call failed because there was no connection to a server, or because the connection ended.
func (e *Error) AboutConnection() bool { return e.is(aboutConnection) }

// OfClient reports whether the client failed the call by itself, for example because no instance is known, a breaker is open, the
// client is closed, or the caller would not wait any longer. It says nothing of the server.
func (e *Error) OfClient() bool { return e.is(ofClient) }

// Stale reports whether the connection was at fault and not the server: it had just ended, or the server was shutting down. Another
// connection to the same address may do.
func (e *Error) Stale() bool { return e.is(stale) }

// NotRepeated reports whether the call was not sent again because its idempotency key is not remembered where it would have gone.
func (e *Error) NotRepeated() bool { return e.is(notRepeated) }
