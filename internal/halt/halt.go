// SPDX-License-Identifier: Apache-2.0

// Package halt lets a context cancel a call without a channel. It is for a context that is created
// for each of many calls, as middleware/hedge does. A channel, and a goroutine that closes it,
// would cost too much there.
package halt

import "context"

// A Context is a cancelable context without a channel of its own: canceling it calls Halt of the
// connection on which its call is in flight. It also ends when its outer context ends.
//
// The parameter of Await has a type of this package, so that no context of other code is a Context
// by accident.
type Context interface {
	context.Context
	// Outer returns Done of the outer context.
	Outer() <-chan struct{}
	// Await names the call to halt, and halts it at once if the context has ended. A nil conn names
	// no call. Await waits until a running Halt has returned, so that conn is not used afterwards.
	Await(conn Conn, id uint32)
}

// A Conn is a connection with calls in flight.
type Conn interface {
	// Halt cancels a call if it has not ended.
	Halt(id uint32)
}

// Ends returns the channel on which the connection waits for the end of ctx. If ctx is a Context,
// Ends also returns it as h. The channel is then that of the outer context, because Halt closes no
// channel, and the connection must call h.Await.
func Ends(ctx context.Context) (done <-chan struct{}, h Context) {
	if h, ok := ctx.(Context); ok {
		return h.Outer(), h
	}
	return ctx.Done(), nil
}
