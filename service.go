// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Register registers the exported methods of rcvr, a pointer to a struct, under the name of its
// type: "Arith.Mul". If methods are given, Register registers only these methods. A method must
// have one of these shapes:
//
//	func(ctx context.Context, in *In) (*Out, error)
//	func(ctx context.Context, in *In, out *Out) error      // rpcx
//	func(in In, out *Out) error                            // net/rpc; In may be a pointer
//	func(ctx context.Context, a A, b B) (C, D, error)      // any numbers of arguments and results, see Values
//	func(ctx context.Context, in *In, send Send[Out]) error             // a Feed
//	func(ctx context.Context, recv Recv[In]) (*Out, error)              // an Upload
//	func(ctx context.Context, recv Recv[In], send Send[Out]) error      // a Duplex
//
// The context may be left out. The error may be left out if there are results. In and Out are any
// types that the caller's codec can encode.
//
// Without names in methods, Register skips methods that were probably not meant for callers:
// methods with neither a context, a result nor an error, such as Lock; methods of well-known
// interfaces, such as Close and String; and methods that are promoted from an embedded type of
// another package. It also skips methods without a context that take or return what callers cannot
// send, such as a function, a channel or an interface. It logs one line at level Info with the
// registered methods, and with the skipped methods and the reasons.
//
// Register fails if another method has none of these shapes, if no method is left, if a name in
// methods does not exist or has another shape, or if a name is taken. The name "-Sync" in methods
// leaves the method Sync out. Register may be called while the server serves.
func (s *Server) Register(rcvr any, methods ...string) error {
	service, err := s.functions.ServiceOf(rcvr)
	if err != nil {
		return errorOf(err)
	}
	return s.RegisterName(service, rcvr, methods...)
}

// RegisterName is Register with a service name: "shop.Cart" makes "shop.Cart.Add". After a service
// name that ends in a slash, no dot is inserted: "shop.Cart/" makes "shop.Cart/Add".
func (s *Server) RegisterName(service string, rcvr any, methods ...string) error {
	line, err := s.functions.Service(service, rcvr, methods)
	if err != nil {
		return errorOf(err)
	}
	s.opts.Logger.Info("yodel: registered", line...)
	return nil
}

// Handle registers a function or closure under any name. It must have one of the shapes listed at
// Register.
func (s *Server) Handle(name string, function any) error {
	return errorOf(s.functions.Handle(name, function))
}

// HandleCall registers a unary method whose types are not known when the program is compiled, for
// bridges and proxies. Handler gets the call with its body still encoded: Call.DecodeInto decodes
// the body, and Call.Request copies it. Handler sets Call.Reply to a value, which is encoded in the
// codec of the call, or to an *Encoded, which is sent unchanged. A nil Reply is a reply without
// content. Handler must not keep the call. Types, if there are any, are the types of the request
// and the reply, without pointers. They describe the method: see Server.Types.
func (s *Server) HandleCall(name string, handler Handler, types ...reflect.Type) error {
	if handler == nil {
		return failure("YDL4001", "handle %s: the handler is nil", name)
	}
	return s.add(name, (&method{Kind: wire.Unary, Dynamic: handler}).Typed(types))
}

// HandleStream is HandleCall for a method with a stream. Kind is "feed", "upload" or "duplex".
// Handler sends messages with send, and receives them with recv, which returns io.EOF after the
// last message. Both take values of the call's codec; recv takes pointers. Send also takes an
// *Encoded, which is sent unchanged. A nil pointer is an error. In a feed, Call.DecodeInto decodes
// the request, and recv must not be called. In an upload, Handler must set Call.Reply, and must
// not call send. Handler must not keep the call.
func (s *Server) HandleStream(name, kind string, handler func(ctx context.Context, call *Call, recv, send func(msg any) error) error, types ...reflect.Type) error {
	number, streams := kinds.Stream(kind)
	if handler == nil || !streams {
		return failure("YDL4001", "handle %s: the handler is nil, or the kind %q is none of feed, upload and duplex", name, kind)
	}
	m := &method{Kind: number, Stream: func(ctx context.Context, p *pipe.Pipe, _ any) (any, error) {
		call := CallFrom(ctx)
		send := func(msg any) error {
			if msg == nil || iface.IsNil(msg) && reflect.TypeOf(msg).Kind() == reflect.Pointer {
				return p.NilMessage()
			}
			return sendOn(p, msg)
		}
		err := handler(ctx, call, p.Receive, send)
		if err == nil && number == wire.Upload && call.Reply == nil {
			err = reflectcall.ErrNoReply
		}
		return call.Reply, err
	}}
	return s.add(name, m.Typed(types))
}

// Alias gives a registered method further names.
func (s *Server) Alias(name string, aliases ...string) error {
	return errorOf(s.methods.Alias(name, aliases))
}

// Unregister removes names of methods that Register, Handle or Alias have registered. If the server
// has no method for one of the names, Unregister removes no name and returns an error. After
// Unregister has returned, calls of these names are refused with Unimplemented on every connection.
// Calls that have begun continue. Other names of the same methods remain registered. The removed
// names may be registered again.
func (s *Server) Unregister(names ...string) error { return errorOf(s.methods.Unregister(names)) }

// MarkIdempotent declares that registered methods may be executed twice. Clients may then send a
// call again even if it may have been executed. MarkIdempotent panics if the server has no method
// for one of the names.
func (s *Server) MarkIdempotent(names ...string) {
	s.methods.Mark(names, func(m *method) { m.Idempotent.Store(true) })
}

// MarkReadOnly declares that registered methods change nothing. They are idempotent, and callers
// over HTTP may call them with GET. MarkReadOnly panics if the server has no method for one of the
// names.
func (s *Server) MarkReadOnly(names ...string) {
	s.methods.Mark(names, func(m *method) {
		m.Idempotent.Store(true)
		m.ReadOnly.Store(true)
	})
}

// MarkInline is a hint that registered methods are short, so that they run on the reader goroutine.
// Without a hint the server measures the methods. MarkInline panics if the server has no method for
// one of the names.
func (s *Server) MarkInline(names ...string) { s.methods.Mark(names, func(m *method) { m.Hint(true) }) }

// MarkConcurrent is a hint that registered methods take long or wait, so that each call gets its
// own goroutine. Without a hint the server measures the methods. MarkConcurrent panics if the
// server has no method for one of the names.
func (s *Server) MarkConcurrent(names ...string) {
	s.methods.Mark(names, func(m *method) { m.Hint(false) })
}

// add adds a method to the table.
func (s *Server) add(name string, m *method) error {
	return errorOf(s.methods.Publish(map[string]*method{name: m}))
}

// mustAdd is add for a typed function, which may be nil. It panics if add fails.
func (s *Server) mustAdd(name string, isNil bool, m *method) {
	if err := s.functions.Typed(name, isNil, m); err != nil {
		panic("yodel: " + errorOf(err).Error())
	}
}

// If t is a Send or a Recv, streamParamOf returns how a parameter of type t is made from a pipe.
// For a pointer to a Send or a Recv, the result has no Message, because a method cannot take such a
// parameter.
func streamParamOf(t reflect.Type) (reflectcall.StreamParam[*pipe.Pipe], bool) {
	p, ok := reflect.TypeAssert[streamParam](reflect.Zero(t))
	if !ok || t.Kind() == reflect.Pointer {
		return reflectcall.StreamParam[*pipe.Pipe]{}, ok
	}
	return reflectcall.StreamParam[*pipe.Pipe]{Sends: p.sends(), Message: p.message(), On: p.on}, true
}
