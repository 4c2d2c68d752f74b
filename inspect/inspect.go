// SPDX-License-Identifier: Apache-2.0

// Package inspect asks a server about itself: which methods it has, how they are doing, and what
// became of its last calls.
//
//	health, err := inspect.Health.Call(ctx, client, &inspect.Empty{})
//
// Every server has these methods, unless ServerOptions.NoIntrospection is set. They pass through
// the server's middleware as other methods do, so that authorization covers them. Their messages,
// which are in package introspect, need a codec that encodes any struct: a client of protobuf
// messages calls them with Do, and yodel.JSON as Call.Codec.
package inspect

import (
	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Empty is a message without content. It is struct{}, which methods of your own use for it, too.
type Empty = struct{}

const (
	// Info returns the server's methods with their types, its codecs and its compressors.
	Info yodel.Method[Empty, introspect.Info] = "yodel.Info"
	// Health returns whether the server accepts calls.
	Health yodel.Method[Empty, introspect.Health] = "yodel.Health"
	// Ping does nothing.
	Ping yodel.Method[Empty, Empty] = "yodel.Ping"

	// Stats returns how often each method was called, with what outcome, and how long the calls
	// took. It names methods, so that it answers only if ServerOptions.Diagnostics is set.
	Stats yodel.Method[Empty, introspect.Stats] = "yodel.Stats"
	// Samples returns records of calls that the server has carried out, and of calls that it and
	// its handlers have made: of calls that failed lately, that were slow, and that were to be
	// explained. They name peers and tenants and have the texts of errors, so that it answers only
	// if ServerOptions.Diagnostics is set.
	Samples yodel.Method[introspect.SamplesQuery, introspect.Samples] = "yodel.Samples"
)
