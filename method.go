// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"math"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/wire"
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
	s.mustAdd(string(m), f == nil, registered.Unary(f))
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

func (Send[T]) message() reflect.Type { return reflect.TypeFor[T]() }

func (Send[T]) sends() bool { return true }

func (Send[T]) on(p *pipe.Pipe) reflect.Value { return reflect.ValueOf(sender[T](p)) }

func (Recv[T]) message() reflect.Type { return reflect.TypeFor[T]() }

func (Recv[T]) sends() bool { return false }

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
			why := reason.OfStream(ctx, err, where.String())
			return failure(why.ID, "%s: %s", b.Name, why.Text).because(err)
		},
	}
	if w := c.server.watchers.messages; len(w) > 0 {
		p.Watch = &messageWatch{w, c.server.guard, &c.call}
	}
	return c.method.Stream(ctx, p, c.call.Args)
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
