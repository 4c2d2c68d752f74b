// SPDX-License-Identifier: Apache-2.0

package yodel

import "github.com/yodel-rpc/yodel/internal/catalogue"

// is reports whether the error's ID has the trait.
func (e *Error) is(t catalogue.Traits) bool { return catalogue.Of(e.ID).Traits&t != 0 }

// AboutMessage reports whether the types or the size of a message made the call fail: the message
// does not fit the method, cannot be encoded or decoded, or exceeds a limit. A second attempt would
// fail too, even on another server with the same limits. AboutMessage is false for a message that
// was damaged in transit, and for errors of handlers.
func (e *Error) AboutMessage() bool { return e.is(catalogue.AboutMessage) }

// AboutConnection reports whether the call failed because there was no connection to a server, or
// because the connection ended.
func (e *Error) AboutConnection() bool { return e.is(catalogue.AboutConnection) }

// OfClient reports whether the error comes from the client itself, for example because no instance
// is known, a breaker is open, the client is closed, or the caller stopped waiting. Such an error
// says nothing about the health of a server.
func (e *Error) OfClient() bool { return e.is(catalogue.OfClient) }

// Stale reports whether the connection was at fault and not the server: the connection had just
// ended, or the server was shutting down. Another connection to the same address may work.
func (e *Error) Stale() bool { return e.is(catalogue.Stale) }

// NotRepeated reports whether the client did not send the call again because the server to which it
// would have gone does not remember the call's idempotency key.
func (e *Error) NotRepeated() bool { return e.is(catalogue.NotRepeated) }
