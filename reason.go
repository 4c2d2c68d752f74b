// SPDX-License-Identifier: Apache-2.0

package yodel

import "github.com/yodel-rpc/yodel/internal/catalogue"

// is reports whether the error's ID has the trait.
func (e *Error) is(t catalogue.Traits) bool { return catalogue.Of(e.ID).Traits&t != 0 }

// AboutMessage reports whether the types or the size of a message made the call fail: the message
// does not fit the method, cannot be encoded or decoded, or exceeds a limit. A second attempt would
// fail too, and so would another server with the same limits. AboutMessage is false for a message
// that was damaged in transit, and for errors of handlers.
func (e *Error) AboutMessage() bool { return e.is(catalogue.AboutMessage) }

// AboutConnection reports whether the call failed because there was no connection to a server, or
// because the connection ended.
func (e *Error) AboutConnection() bool { return e.is(catalogue.AboutConnection) }

// OfClient reports whether the client failed the call by itself, for example because no instance is
// known, a breaker is open, the client is closed, or the caller gave up. Such an error says nothing
// about the server.
func (e *Error) OfClient() bool { return e.is(catalogue.OfClient) }

// Stale reports whether the connection was at fault and not the server: the connection had just
// ended, or the server was shutting down. Another connection to the same address may work.
func (e *Error) Stale() bool { return e.is(catalogue.Stale) }

// NotRepeated reports whether the call was not sent again because its idempotency key is not
// remembered where it would have gone.
func (e *Error) NotRepeated() bool { return e.is(catalogue.NotRepeated) }
