// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
)

// A Method is the name of a method together with the types of its request and its reply: the
// contract that both sides share.
//
//	const Mul yodel.Method[Args, Reply] = "Arith.Mul"
//
// A method without arguments takes a struct{}. A method without a result replies with a struct{},
// for which its handler may return nil.
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

// Do is Call with all that a Call can carry: call has metadata, an attachment, a deadline, a codec
// and so on, and afterwards the trailer and the reply's attachment. Its method, arguments and reply
// are set by Do.
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

// Go calls the method without waiting. In belongs to the call until it has ended.
func (m Method[In, Out]) Go(ctx context.Context, c Caller, in *In) *Future[Out] {
	f := &Future[Out]{ended: make(chan struct{})}
	f.Call.Method, f.Call.Args, f.Call.Reply = string(m), in, &f.out
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
		client.then(ctx, string(m), in, &t.out, t)
		return
	}
	begin(ctx, c, &Call{Method: string(m), Args: in, Reply: &t.out}, t.ended)
}

// A then is the reply of a call and who waits for it, in one allocation.
type then[Out any] struct {
	out  Out
	done func(*Out, error)
}

func (t *then[Out]) ended(err error) {
	if err != nil {
		t.done(nil, err)
		return
	}
	t.done(&t.out, nil)
}

// An ender is who is told that an asynchronous call has ended.
type ender interface{ ended(err error) }

// A callback is a function that is told so.
type callback func(error)

func (f callback) ended(err error) {
	if f != nil {
		f(err)
	}
}

// Handle registers the function that carries out the method, without reflection at call time. It
// panics when the name is taken, or f is nil.
func (m Method[In, Out]) Handle(s *Server, f func(ctx context.Context, in *In) (*Out, error)) {
	s.mustAdd(string(m), f == nil, m.method(f))
}

func (m Method[In, Out]) method(f func(ctx context.Context, in *In) (*Out, error)) *method {
	return &method{
		in: []reflect.Type{reflect.TypeFor[In]()}, out: []reflect.Type{reflect.TypeFor[Out]()},
		newArgs: func() any { return new(In) },
		call: func(ctx context.Context, args any) (any, error) {
			out, err := f(ctx, args.(*In)) //nolint:forcetypeassert // newArgs made it
			if out == nil {
				return orNothing[Out](err)
			}
			return out, err
		},
	}
}

// errNoReply is what a method returns whose handler returned neither a reply nor an error.
var errNoReply = errors.New("no reply")

// orNothing returns what a handler's nil reply stands for: the error beside it, or an empty reply
// if the type has no content. A caller cannot tell any other nil from a reply of zeros.
func orNothing[Out any](err error) (any, error) {
	out := new(Out)
	if err == nil && !hasNoContent(reflect.TypeFor[Out]()) {
		err = errNoReply
	}
	return out, err
}

// hasNoContent reports whether all values of a type are the same, as those of struct{} are.
func hasNoContent(t reflect.Type) bool { return t.Size() == 0 }

// A Future is a call that was begun with Go.
type Future[Out any] struct {
	// Call is the call, to be looked at when it has ended: its trailer, its attachment.
	Call  Call
	out   Out
	err   error
	ended chan struct{}
}

// Done is closed when the call has ended.
func (f *Future[Out]) Done() <-chan struct{} { return f.ended }

// Get waits for the call to end and returns its outcome. The call ends with the context it was
// begun with.
func (f *Future[Out]) Get() (*Out, error) {
	<-f.ended
	if f.err != nil {
		return nil, f.err
	}
	return &f.out, nil
}

// begin carries out a call without waiting, on any caller.
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
	go func() {
		g := guard{log: slog.Default()}
		known, err := false, error(nil)
		defer func() {
			if value := recover(); !known {
				err = g.interrupted(ctx, call.Method, value)
			}
			g.tell(callback(done), err)
		}()
		err = c.Do(ctx, call)
		known = true
	}()
}
