// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"io"
	"iter"
	"reflect"

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

// Send sends a message to the other side of a stream. It encodes msg before it returns, so the
// caller may change msg afterwards. It waits while the flow-control window of the other side is
// full. If the other side has ended the call, Send returns io.EOF, and the outcome of the call has
// the reason. If the stream has ended in another way, Send returns the reason. Messages that the
// other side has sent before can still be received. Send may be called concurrently. A nil msg is
// an error, and the stream goes on.
type Send[T any] func(msg *T) error

// End tells the other side that this side sends no more messages. Calling End twice is allowed. End
// calls s with nil. A Send that yodel did not make must accept that.
func (s Send[T]) End() error {
	err := s(nil)
	if from, ok := errors.AsType[unsentNil](err); ok {
		from.end()
		return nil
	}
	return err
}

// Recv iterates over the messages of a stream. A program converts it to an iter.Seq2 where that
// type is needed. The iteration ends after the last message, or with an error, which is the second
// value of the last iteration. Leaving the loop does not end the stream: a second loop continues
// with the next message. A Recv may be used by one goroutine at a time.
type Recv[T any] iter.Seq2[*T, error]

// Reuse makes r decode all messages into the same variable, and returns r. Each message is valid
// until the next one is received. This halves the cost of receiving many messages that the caller
// does not keep:
//
//	for tick, err := range Watch.Call(ctx, client, &Query{"GOOG"}).Reuse() { … }
//
// The variable is cleared before each message, but raw bytes keep their capacity. Reuse calls r
// with a nil yield function. A Recv that yodel did not make must accept that.
func (r Recv[T]) Reuse() Recv[T] {
	r(nil)
	return r
}

// Next waits for the next message. It returns io.EOF after the last message. If r is the result of
// Feed.Call, Next returns the first message and cancels the call.
func (r Recv[T]) Next() (*T, error) {
	next := struct { // one allocation; a loop would take three
		msg *T
		err error
	}{err: io.EOF}
	r(func(msg *T, err error) bool {
		next.msg, next.err = msg, err
		return false
	})
	return next.msg, next.err
}

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
		err := carry(ctx, c, call, string(m), in, nil, &outgoingStream{kind: wire.Feed, out: reflect.TypeFor[Out]()}, func(p *pipe) error {
			p.reuse = reuse
			for msg, err := range receiver[Out](p) {
				if err != nil {
					return err
				}
				if left = !yield(msg, nil); left {
					return errLeft
				}
			}
			return nil
		})
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// errLeft ends a call when its caller leaves the loop. The server sees the call canceled. The
// caller and the client's middleware see it end without an error.
var errLeft = errors.New("the caller left the loop")

// errGone ends a call whose caller cannot receive the outcome any more.
var errGone = failure("YDL1006", "the caller's own function panicked, or ended its goroutine")

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
	err := carry(ctx, c, call, string(m), nil, out, &outgoingStream{kind: wire.Upload, in: reflect.TypeFor[In]()}, func(p *pipe) error { return body(sender[In](p)) })
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
	return carry(ctx, c, call, string(m), nil, nil, &outgoingStream{kind: wire.Duplex, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}, func(p *pipe) error {
		return body(receiver[Out](p), sender[In](p))
	})
}

// Handle registers f as the handler of the method. The context of f ends with the stream, and the
// result of f ends the stream. Handle panics if the name is taken or f is nil.
func (m Feed[In, Out]) Handle(s *Server, f func(ctx context.Context, in *In, send Send[Out]) error) {
	s.mustAdd(string(m), f == nil, m.method(f))
}

func (m Feed[In, Out]) method(f func(ctx context.Context, in *In, send Send[Out]) error) *method {
	return &method{
		kind: wire.Feed, in: []reflect.Type{reflect.TypeFor[In]()}, out: []reflect.Type{reflect.TypeFor[Out]()},
		newArgs: func() any { return new(In) },
		stream: func(ctx context.Context, p *pipe, args any) (any, error) {
			return nil, f(ctx, args.(*In), sender[Out](p)) //nolint:forcetypeassert // newArgs made it
		},
	}
}

// Handle registers f as the handler of the method, as Feed.Handle does.
func (m Upload[In, Out]) Handle(s *Server, f func(ctx context.Context, recv Recv[In]) (*Out, error)) {
	s.mustAdd(string(m), f == nil, &method{
		kind: wire.Upload, in: []reflect.Type{reflect.TypeFor[In]()}, out: []reflect.Type{reflect.TypeFor[Out]()},
		stream: func(ctx context.Context, p *pipe, _ any) (any, error) {
			out, err := f(ctx, receiver[In](p))
			if out == nil {
				return orNothing[Out](err)
			}
			return out, err
		},
	})
}

// Handle registers f as the handler of the method, as Feed.Handle does.
func (m Duplex[In, Out]) Handle(s *Server, f func(ctx context.Context, recv Recv[In], send Send[Out]) error) {
	s.mustAdd(string(m), f == nil, &method{
		kind: wire.Duplex, in: []reflect.Type{reflect.TypeFor[In]()}, out: []reflect.Type{reflect.TypeFor[Out]()},
		stream: func(ctx context.Context, p *pipe, _ any) (any, error) {
			return nil, f(ctx, receiver[In](p), sender[Out](p))
		},
	})
}

// carry makes a call that has a stream.
func carry(ctx context.Context, c Caller, call *Call, method string, in, out any, s *outgoingStream, body func(*pipe) error) error {
	call.Method, call.Args, call.Reply, call.stream, s.body = method, in, out, s, body
	defer func() { call.stream = nil }() // also when body panics
	if c == nil {
		return missing(ctx, call.Method)
	}
	err := c.Do(ctx, call)
	if own, ok := errors.AsType[*bodyError](err); ok {
		return own.error
	}
	return err
}

func sender[T any](p *pipe) Send[T] {
	return func(msg *T) error {
		if msg == nil {
			return p.noMessage(msg)
		}
		return p.send(msg)
	}
}

func receiver[T any](p *pipe) Recv[T] {
	var last *T // with reuse
	return func(yield func(*T, error) bool) {
		if yield == nil { // see Recv.Reuse
			p.reuse = true
			return
		}
		for {
			msg, err := receive(p, last)
			if p.reuse {
				last = msg
			}
			if err == io.EOF { //nolint:errorlint // bare, it is the regular end
				return
			}
			if !yield(msg, err) || err != nil {
				return
			}
		}
	}
}

// receive waits for a message. If p.reuse is set and last is not nil, it decodes the message into
// last. It returns io.EOF after the last message.
func receive[T any](p *pipe, last *T) (*T, error) {
	body, err := p.receive()
	if err != nil {
		return nil, err
	}
	msg := last
	if _, bytes := any(msg).(*[]byte); bytes && p.raw {
		if !p.reuse {
			return any(p.cut(body)).(*T), nil //nolint:forcetypeassert // its type was checked above
		}
	} else if msg != nil { // not for raw bytes, which keep their capacity
		*msg = *new(T)
	}
	if msg == nil {
		msg = new(T)
	}
	if err := p.decode(body, msg); err != nil {
		return nil, err
	}
	return msg, nil
}

// A streamParam is a Send or a Recv. Registration by reflection uses it.
type streamParam interface {
	message() reflect.Type // the type of its messages
	sends() bool
	on(p *pipe) reflect.Value
}

func (Send[T]) message() reflect.Type    { return reflect.TypeFor[T]() }
func (Send[T]) sends() bool              { return true }
func (Send[T]) on(p *pipe) reflect.Value { return reflect.ValueOf(sender[T](p)) }

func (Recv[T]) message() reflect.Type    { return reflect.TypeFor[T]() }
func (Recv[T]) sends() bool              { return false }
func (Recv[T]) on(p *pipe) reflect.Value { return reflect.ValueOf(receiver[T](p)) }
