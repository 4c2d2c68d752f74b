// SPDX-License-Identifier: Apache-2.0

package once

import (
	"context"
	"crypto/rand"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Keys is a middleware for clients. It gives each call of the named methods, or of all methods, a
// new unique idempotency key, unless the call has one. A program that may be restarted between two
// attempts needs a key of its own for that, for example its order number. A key helps only if the
// servers remember keys: see With.
//
// It also encodes the arguments of calls with a key once for all attempts. A server compares
// encoded arguments, and most codecs encode a map differently each time. Calls with streams get no
// key.
func Keys(methods ...string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Peer() != nil || call.Streams() {
				return next(ctx, call)
			}
			key, args := call.IdempotencyKey, call.Args
			if key == "" {
				if len(methods) > 0 && !slices.Contains(methods, call.Method) {
					return next(ctx, call)
				}
				call.IdempotencyKey = rand.Text()
			}
			if args != nil {
				if _, err := call.Encode(); err != nil {
					call.IdempotencyKey = key
					return err
				}
			}
			err := next(ctx, call)
			call.IdempotencyKey, call.Args = key, args // the caller may reuse the call
			return err
		}
	}
}
