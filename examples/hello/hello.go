// SPDX-License-Identifier: Apache-2.0

// Package hello is what the server and the client of the first example share: the name of a method
// with the types of its request and its reply.
package hello

import "github.com/yodel-rpc/yodel"

// region contract

// Greet answers a name with a greeting.
const Greet yodel.Method[Request, Reply] = "Hello.Greet"

// Request is whom to greet.
type Request struct{ Name string }

// Reply is the greeting.
type Reply struct{ Text string }

// endregion contract
