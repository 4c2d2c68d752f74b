// SPDX-License-Identifier: Apache-2.0

// Package middleware is an example of a middleware of your own. It gives each call a request id and
// logs failed calls with it: one search finds the log lines of all processes that a call passed.
//
// On a client, put it first in ClientOptions.Middleware. There it sees a call once, so all attempts
// have the same id. On a server, put it first too: then it also logs calls that other middleware
// refuses.
package middleware

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"

	"github.com/yodel-rpc/yodel"
)

// Key is the key of the request id in the metadata of a call.
const Key = "request-id"

// region middleware

// RequestID returns a middleware for clients and servers. It adds a request id to calls that have
// none, and writes a line to log for each call that fails. A call that a handler makes with its own
// context gets the id of the call that the handler is executing.
func RequestID(log *slog.Logger) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			id := call.Metadata[Key]
			if id == "" {
				id = newID(ctx)
				given := call.Metadata
				call.Metadata = with(given, id)
				defer func() { call.Metadata = given }() // the caller may use the Call again
			}
			err := next(ctx, call)
			if err != nil {
				log.LogAttrs(ctx, slog.LevelWarn, "call failed", slog.String(Key, id),
					slog.String("method", call.Method), slog.Any("err", err))
			}
			return err
		}
	}
}

// newID returns the id of the call that a handler is executing with ctx, or a new id.
func newID(ctx context.Context) string {
	if executing := yodel.CallFrom(ctx); executing != nil && executing.Metadata[Key] != "" {
		return executing.Metadata[Key]
	}
	return rand.Text()
}

// with returns a copy of m with an id. M itself belongs to the caller, who may use it for other
// calls at the same time.
func with(m yodel.Metadata, id string) yodel.Metadata {
	m = maps.Clone(m)
	if m == nil {
		m = make(yodel.Metadata, 1)
	}
	m[Key] = id
	return m
}

// endregion middleware
