// SPDX-License-Identifier: Apache-2.0

// Package recovery lets a program do something of its own with a panic: report it to a tracker,
// choose the error that the caller gets.
//
// A server needs no middleware to survive a panic in a method: it logs it, counts it, and answers
// with an error (YDL5001) that says nothing of it. A client does not catch panics, of codecs or
// middleware, unless this package does.
//
// It belongs outermost, where it sees the panics of the other middleware too.
//
// It is not called recover, after the built-in function, because a file that imported a package of
// that name could not call the function any more.
package recovery

import (
	"context"
	"runtime/debug"

	"github.com/yodel-rpc/yodel"
)

// With calls f when what is below panics, with the value of the panic and the stack of the
// goroutine. The error that f returns is the call's; what a server's caller learns of the panic is
// what f writes into it. When f returns nil, the panic goes on as if nobody had caught it: on a
// server it is logged, counted and answered.
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
