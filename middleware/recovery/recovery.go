// SPDX-License-Identifier: Apache-2.0

// Package recovery lets a program handle panics itself: report them to a tracker, or choose the
// error that the caller gets.
//
// A server survives a panic in a method without this package. It logs and counts the panic, and
// answers with an error (YDL5001) that reveals nothing about it. A client does not catch panics of
// codecs or middleware, unless it uses this package.
//
// Put it outermost, where it also sees the panics of other middleware.
//
// It is not named recover, like the built-in function, because a file that imports a package of
// that name cannot call the function.
package recovery

import (
	"context"
	"runtime/debug"

	"github.com/yodel-rpc/yodel"
)

// With calls f when code below it panics, with the value of the panic and the stack of the
// goroutine. The call fails with the error that f returns. The caller of a server learns only what
// f puts into it. If f returns nil, the panic goes on as if it had not been caught: on a server it
// is logged, counted and answered.
//
// F is called concurrently.
func With(f func(ctx context.Context, call *yodel.Call, value any, stack []byte) error) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) (err error) {
			defer func() {
				value := recover()
				if value == nil {
					return
				}
				if err = f(ctx, call, value, debug.Stack()); err == nil {
					panic(value)
				}
			}()
			return next(ctx, call)
		}
	}
}
