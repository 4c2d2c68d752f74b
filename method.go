// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"log/slog"

	"github.com/yodel-rpc/yodel/internal/guard"
)

// A Method is the name of a method together with the types of its request and its reply. A Method
// is the contract that client and server share.
//
//	const Mul yodel.Method[Args, Reply] = "Arith.Mul"
//
// A method without arguments takes a struct{}. A method without a result has the reply struct{},
// and its handler may return nil.
//
//	const Reset yodel.Method[struct{}, struct{}] = "Arith.Reset"
type Method[In, Out any] string

// Call calls the method and waits for the reply.
func (m Method[In, Out]) Call(ctx context.Context, c Caller, in *In) (*Out, error) {
	var err error
	out := new(Out)
	switch c := c.(type) {
	case *Client:
		err = c.Call(ctx, string(m), in, out)
	case *Peer:
		err = c.call(ctx, string(m), in, out)
	default:
		return m.Do(ctx, c, &Call{}, in)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Do is Call with all options of a Call. The caller may set the metadata, attachment, deadline,
// codec and other fields of call. Do sets its Method, Args and Reply. Afterwards call has the
// trailer and the attachment of the reply.
func (m Method[In, Out]) Do(ctx context.Context, c Caller, call *Call, in *In) (*Out, error) {
	out := new(Out)
	call.Method, call.Args, call.Reply = string(m), in, out
	if c == nil {
		return nil, missing(ctx, string(m))
	}
	if err := c.Do(ctx, call); err != nil {
		return nil, err
	}
	return out, nil
}

// Notify sends a request that gets no reply. It returns when the request is queued for sending.
func (m Method[In, Out]) Notify(ctx context.Context, c Caller, in *In) error {
	if c == nil {
		return missing(ctx, string(m))
	}
	return c.Do(ctx, &Call{Method: string(m), Args: in, OneWay: true})
}

// Go calls the method without waiting for the reply. In belongs to the call until the call has
// ended.
func (m Method[In, Out]) Go(ctx context.Context, c Caller, in *In) *Future[Out] {
	f := &Future[Out]{ended: make(chan struct{})}
	f.Call.Method, f.Call.Args, f.Call.Reply = string(m), in, &f.result
	begin(ctx, c, &f.Call, func(err error) {
		f.err = err
		close(f.ended)
	})
	return f
}

// Then is Go with a callback: done gets the reply or the error. It runs where the callback of
// Client.Go runs, and should be short. Callbacks of one client may run concurrently.
func (m Method[In, Out]) Then(ctx context.Context, c Caller, in *In, done func(*Out, error)) {
	t := &then[Out]{done: done}
	if client, ok := c.(*Client); ok {
		client.then(ctx, string(m), in, &t.result, t)
		return
	}
	begin(ctx, c, &Call{Method: string(m), Args: in, Reply: &t.result}, t.Ended)
}

// A then holds the reply and the callback of an asynchronous call in one allocation.
type then[Out any] struct {
	result Out
	done   func(*Out, error)
}

func (t *then[Out]) Ended(err error) {
	if err != nil {
		t.done(nil, err)
		return
	}
	t.done(&t.result, nil)
}

// Handle registers f as the handler of the method. Calls to it use no reflection. Handle panics if
// the name is taken or f is nil.
func (m Method[In, Out]) Handle(s *Server, f func(ctx context.Context, in *In) (*Out, error)) {
	s.mustAdd(string(m), f == nil, unary(f))
}

// A Future is a call that Method.Go has begun. Its methods may be called concurrently.
type Future[Out any] struct {
	// Call is the call itself. Once the call has ended, it has the trailer and the attachment of
	// the reply. The program must not use Call before the call has ended.
	Call   Call
	result Out
	err    error
	ended  chan struct{}
}

// Done returns a channel that is closed when the call has ended.
func (f *Future[Out]) Done() <-chan struct{} { return f.ended }

// Get waits until the call has ended, and returns its reply or its error. The call ends with the
// context that was given to Go.
func (f *Future[Out]) Get() (*Out, error) {
	<-f.ended
	if f.err != nil {
		return nil, f.err
	}
	return &f.result, nil
}

// begin sends a call through any Caller without waiting for the reply.
func begin(ctx context.Context, c Caller, call *Call, done func(error)) {
	if c == nil {
		done(missing(ctx, call.Method))
		return
	}
	if client, ok := c.(interface {
		Go(ctx context.Context, call *Call, done func(error))
	}); ok {
		client.Go(ctx, call, done)
		return
	}
	g := guard.New(slog.Default(), interruption)
	go g.Run(ctx, call.Method, func() error { return c.Do(ctx, call) }, func(err error) { g.Tell(callback(done), err) })
}
