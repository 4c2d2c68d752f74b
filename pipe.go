// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/wire"
)

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
	if from, ok := errors.AsType[pipe.NilMessageError](err); ok {
		from.Of.End()
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

func sender[T any](p *pipe.Pipe) Send[T] {
	return func(msg *T) error {
		if msg == nil {
			return p.NilMessage()
		}
		return sendOn(p, msg)
	}
}

// sendOn sends a message, which may be encoded.
func sendOn(p *pipe.Pipe, msg any) error {
	if e, ok := msg.(*Encoded); ok {
		return p.Send(msg, &e.Body)
	}
	return p.Send(msg, nil)
}

func receiver[T any](p *pipe.Pipe) Recv[T] { return pipe.Messages[T](p) }

// A streamParam is a Send or a Recv. Registration by reflection uses it.
type streamParam interface {
	message() reflect.Type // the type of its messages
	sends() bool
	on(p *pipe.Pipe) reflect.Value
}

func (Send[T]) message() reflect.Type         { return reflect.TypeFor[T]() }
func (Send[T]) sends() bool                   { return true }
func (Send[T]) on(p *pipe.Pipe) reflect.Value { return reflect.ValueOf(sender[T](p)) }

func (Recv[T]) message() reflect.Type         { return reflect.TypeFor[T]() }
func (Recv[T]) sends() bool                   { return false }
func (Recv[T]) on(p *pipe.Pipe) reflect.Value { return reflect.ValueOf(receiver[T](p)) }

// An outgoingStream is the state of a call that opens a stream.
type outgoingStream struct {
	pipe.Talk
	sends    reflect.Type // of the messages to send, or nil
	receives reflect.Type // of the messages to receive, or nil
	to       destination  // of the present attempt
}

// A finalError wraps the error of a call, for the caller's function that still waits to send or
// receive.
type finalError struct{ error }

// errGone ends a call whose caller cannot receive the outcome any more.
var errGone = failure("YDL1006", "the caller's own function panicked, or ended its goroutine")

// runStream runs a method with a stream.
func (c *serverCall) runStream(ctx context.Context) (any, error) {
	b, where := c.as, c.peer.Addr
	pack := &b.format.Pack
	if c.plain {
		plain := b.format.Pack
		plain.Above = math.MaxInt
		pack = &plain
	}
	c.stream.Accept()
	p := &pipe.Pipe{
		Stream: c.stream, Context: ctx, Method: b.Name, Where: where, Each: c.call.rare.checks(), Torn: "YDL2101", Unfit: "YDL2101", Codec: b.format.Codec, Raw: b.format.Raw(), Pack: pack, MaxMessage: c.server.limits.MaxMessage, Stats: &c.method.Stats,
		Fail: func(err error) error {
			if f, ok := err.(*fault.Fault); ok { //nolint:errorlint // it is passed bare
				return errorOf(f)
			}
			if cause := c.protocol.Cause(); cause != nil { // the cause is more precise than the error of the context
				err = cause
			} else if e, ok := errors.AsType[*Error](err); ok { // an error of the Messages of another protocol
				return e
			}
			return explainStream(ctx, b.Name, where.String(), err)
		},
	}
	if w := c.server.watchers.messages; len(w) > 0 {
		p.Watch = &messageWatch{w, c.server.guard, &c.call}
	}
	return c.method.Stream(ctx, p, c.call.Args)
}

// explainStream returns the Error of a server's stream that ended before its method.
func explainStream(ctx context.Context, method, where string, err error) *Error {
	var e *Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e = failure("YDL1004", "%s: the deadline passed while the stream from %s was open", method, where)
	case errors.Is(err, mux.ErrCallerGone), errors.Is(err, context.Canceled):
		e = failure("YDL1006", "%s: the caller at %s canceled it", method, where)
	default:
		e = failure("YDL1104", "%s: the connection to %s was lost: %s", method, where, reason.Plain(err))
	}
	return e.because(err)
}

// feed returns the method that a function with a feed is.
func feed[In, Out any](f func(ctx context.Context, in *In, send Send[Out]) error) *method {
	return &method{
		Kind: wire.Feed, Args: []reflect.Type{reflect.TypeFor[In]()}, Results: []reflect.Type{reflect.TypeFor[Out]()},
		NewArgs: func() any { return new(In) },
		Stream: func(ctx context.Context, p *pipe.Pipe, args any) (any, error) {
			return nil, f(ctx, args.(*In), sender[Out](p)) //nolint:forcetypeassert // NewArgs made it
		},
	}
}
