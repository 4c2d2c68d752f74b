// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Feed is the name of a method that answers one request with a stream of messages.
//
//	const Watch yodel.Feed[Query, Tick] = "Market.Watch"
//
//	for tick, err := range Watch.Call(ctx, client, &Query{"GOOG"}) { … }
type Feed[In, Out any] string

// An Upload is the name of a method that answers a stream of messages with one reply.
type Upload[In, Out any] string

// A Duplex is the name of a method with a stream of messages in each direction.
type Duplex[In, Out any] string

// Call calls the method when the caller ranges over the result. The caller may range over it once.
// An error is the second value of the last iteration. Leaving the loop cancels the call. That is
// not an error: the caller, middleware and observers see the call end without an error.
func (m Feed[In, Out]) Call(ctx context.Context, c Caller, in *In) Recv[Out] {
	return m.Do(ctx, c, &Call{}, in)
}

// Do is Call with all options of a Call, as in Method.Do. The trailer is set when the loop has
// ended.
func (m Feed[In, Out]) Do(ctx context.Context, c Caller, call *Call, in *In) Recv[Out] {
	used, reuse := false, false
	return func(yield func(*Out, error) bool) {
		if yield == nil { // see Recv.Reuse
			reuse = true
			return
		}
		if used {
			yield(nil, refusal("YDL2007", "%s: the result of a call was ranged over twice", m))
			return
		}
		used = true
		left := false
		err := carry(ctx, c, call, string(m), in, nil, &outgoingStream{Talk: pipe.Talk{Kind: wire.Feed}, receives: reflect.TypeFor[Out]()}, func(p *pipe.Pipe) error {
			p.Reuse = reuse
			for msg, err := range receiver[Out](p) {
				if err != nil {
					return err
				}
				if left = !yield(msg, nil); left {
					return pipe.ErrLeft
				}
			}
			return nil
		})
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// Call calls the method and runs body, which sends the messages, when a server has accepted the
// call. When body returns nil, Call waits for the reply. When body returns an error, the call is
// canceled and Call returns that error. A server may reply before it has received all messages.
// Send then returns io.EOF, and body may return io.EOF too.
func (m Upload[In, Out]) Call(ctx context.Context, c Caller, body func(send Send[In]) error) (*Out, error) {
	return m.Do(ctx, c, &Call{}, body)
}

// Do is Call with all options of a Call, as in Method.Do.
func (m Upload[In, Out]) Do(ctx context.Context, c Caller, call *Call, body func(send Send[In]) error) (*Out, error) {
	out := new(Out)
	err := carry(ctx, c, call, string(m), nil, out, &outgoingStream{Talk: pipe.Talk{Kind: wire.Upload}, sends: reflect.TypeFor[In]()}, func(p *pipe.Pipe) error { return body(sender[In](p)) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Call calls the method and runs body when a server has accepted the call. When body returns nil,
// Call sends no more messages and waits for the server to end the call, discarding further
// messages. When body returns an error, the call is canceled and Call returns that error. Body may
// send and receive on different goroutines, and should wait for them before it returns.
func (m Duplex[In, Out]) Call(ctx context.Context, c Caller, body func(recv Recv[Out], send Send[In]) error) error {
	return m.Do(ctx, c, &Call{}, body)
}

// Do is Call with all options of a Call, as in Method.Do.
func (m Duplex[In, Out]) Do(ctx context.Context, c Caller, call *Call, body func(recv Recv[Out], send Send[In]) error) error {
	return carry(ctx, c, call, string(m), nil, nil, &outgoingStream{Talk: pipe.Talk{Kind: wire.Duplex}, sends: reflect.TypeFor[In](), receives: reflect.TypeFor[Out]()}, func(p *pipe.Pipe) error {
		return body(receiver[Out](p), sender[In](p))
	})
}

// Handle registers f as the handler of the method. The context of f ends with the stream, and the
// result of f ends the stream. Handle panics if the name is taken or f is nil.
func (m Feed[In, Out]) Handle(s *Server, f func(ctx context.Context, in *In, send Send[Out]) error) {
	s.mustAdd(string(m), f == nil, feed(f))
}

// Handle registers f as the handler of the method, as Feed.Handle does.
func (m Upload[In, Out]) Handle(s *Server, f func(ctx context.Context, recv Recv[In]) (*Out, error)) {
	s.mustAdd(string(m), f == nil, &method{
		Kind: wire.Upload, Args: []reflect.Type{reflect.TypeFor[In]()}, Results: []reflect.Type{reflect.TypeFor[Out]()},
		Stream: func(ctx context.Context, p *pipe.Pipe, _ any) (any, error) {
			return reflectcall.Outcome(f(ctx, receiver[In](p)))
		},
	})
}

// Handle registers f as the handler of the method, as Feed.Handle does.
func (m Duplex[In, Out]) Handle(s *Server, f func(ctx context.Context, recv Recv[In], send Send[Out]) error) {
	s.mustAdd(string(m), f == nil, &method{
		Kind: wire.Duplex, Args: []reflect.Type{reflect.TypeFor[In]()}, Results: []reflect.Type{reflect.TypeFor[Out]()},
		Stream: func(ctx context.Context, p *pipe.Pipe, _ any) (any, error) {
			return nil, f(ctx, receiver[In](p), sender[Out](p))
		},
	})
}

// carry makes a call that has a stream.
func carry(ctx context.Context, c Caller, call *Call, method string, in, out any, s *outgoingStream, body func(*pipe.Pipe) error) error {
	call.Method, call.Args, call.Reply, call.stream, s.Body = method, in, out, s, body
	err := error(errGone)
	defer func() { // also when body panics
		call.stream = nil
		s.Finish(finalError{cmp.Or(err, error(errGone))})
	}()
	if c == nil {
		return missing(ctx, call.Method)
	}
	err = c.Do(ctx, call)
	if own, ok := errors.AsType[*pipe.BodyError](err); ok {
		return own.Err
	}
	return err
}
