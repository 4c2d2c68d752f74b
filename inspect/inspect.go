// SPDX-License-Identifier: Apache-2.0

// Package inspect has the built-in methods with which a client asks a server about itself: which
// methods it has, their statistics, and records of recent calls.
//
//	health, err := inspect.Health.Call(ctx, client, &inspect.Empty{})
//
// Every server has these methods, unless ServerOptions.NoIntrospection is set. They pass through
// the server's middleware as other methods do, so authorization covers them. Their messages are in
// package introspect, and need a codec that can encode any struct. A client whose codec is Protocol
// Buffers calls them with Do, and with yodel.JSON as Call.Codec.
package inspect

import (
	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Empty is a message without content. It is struct{}, which other methods may use too.
type Empty = struct{}

const (
	// Info returns the server's methods with their types, its codecs and its compressors.
	Info yodel.Method[Empty, introspect.Info] = "yodel.Info"
	// Health returns whether the server accepts calls.
	Health yodel.Method[Empty, introspect.Health] = "yodel.Health"
	// Ping does nothing.
	Ping yodel.Method[Empty, Empty] = "yodel.Ping"

	// Stats returns how often each method was called, with what outcome, and how long the calls
	// took. It names methods, so it answers only if ServerOptions.Diagnostics is set.
	Stats yodel.Method[Empty, introspect.Stats] = "yodel.Stats"
	// Samples returns records of recent calls: of the calls that the server has executed, and of
	// the calls that it and its handlers have made. A call has a record if it failed, was slow, or
	// was to be explained. The records name peers and tenants and contain the texts of errors, so
	// Samples answers only if ServerOptions.Diagnostics is set.
	Samples yodel.Method[introspect.SamplesQuery, introspect.Samples] = "yodel.Samples"

	// Live returns the calls of the last seconds, minutes or hours by method and caller, those that
	// the server's handlers have made by method and endpoint, the last events, and the state of the
	// process. It answers only if ServerOptions.Diagnostics is set.
	Live yodel.Method[introspect.LiveQuery, introspect.Live] = "yodel.Live"
	// Conns returns the open connections of the server and of the clients that its handlers use. It
	// answers only if ServerOptions.Diagnostics is set.
	Conns yodel.Method[Empty, introspect.Conns] = "yodel.Conns"
	// Tap sends the calls of the server when they end, at most TapQuery.PerSecond in a second, and
	// counts those that it leaves out. It sends calls of built-in methods only if TapQuery.Method
	// names them. It ends after ten minutes, and when the server drains. A server has at most 16
	// open taps. Tap answers only if ServerOptions.Diagnostics is set.
	Tap yodel.Feed[introspect.TapQuery, introspect.Tapped] = "yodel.Tap"
	// Rules returns the rules that the process follows, with their counters: see package rules. The
	// rules name callers and services, so it answers only if ServerOptions.Diagnostics is set.
	Rules yodel.Method[Empty, introspect.Rules] = "yodel.Rules"

	// Actors returns the actors with the longest inboxes of a process that uses package actor. It
	// answers only if ServerOptions.Diagnostics is set.
	Actors yodel.Method[introspect.ActorsQuery, introspect.Actors] = "actors.List"
)
