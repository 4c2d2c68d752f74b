// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// unary returns the method that a function is.
func unary[In, Out any](f func(ctx context.Context, in *In) (*Out, error)) *method {
	return &method{
		Args: []reflect.Type{reflect.TypeFor[In]()}, Results: []reflect.Type{reflect.TypeFor[Out]()},
		NewArgs: func() any { return new(In) },
		Call: func(ctx context.Context, args any) (any, error) {
			return reflectcall.Outcome(f(ctx, args.(*In))) //nolint:forcetypeassert // NewArgs made it
		},
	}
}

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
	t := reflect.TypeOf(rcvr)
	for t != nil && t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	if t == nil {
		return failure("YDL4001", "register: nil has no methods")
	}
	if t.Name() == "" {
		return failure("YDL4001", "register %T: it has no type name; use RegisterName", rcvr)
	}
	return s.RegisterName(t.Name(), rcvr, methods...)
}

// RegisterName is Register with a service name: "shop.Cart" makes "shop.Cart.Add". After a service
// name that ends in a slash, no dot is inserted: "shop.Cart/" makes "shop.Cart/Add".
func (s *Server) RegisterName(service string, rcvr any, methods ...string) error {
	v := reflect.ValueOf(rcvr)
	if !v.IsValid() {
		return failure("YDL4001", "register %s: nil has no methods", service)
	}
	prefix := service + "."
	if strings.HasSuffix(service, "/") {
		prefix = service
	}
	found := make(map[string]*method)
	skipped, err := reflectcall.Methods[Values](v, streamParamOf, methods, func(name string, fn *reflectcall.Func[*pipe.Pipe]) (err error) {
		found[prefix+name], err = methodOf(s.codecs, fn)
		return err
	})
	if err != nil {
		return failure("YDL4001", "register %T as %s: %v", rcvr, service, err)
	}
	all := slices.Sorted(maps.Keys(found)) // before the methods can be called
	if err := s.addAll("", found); err != nil {
		return err
	}
	line := []any{"methods", strings.Join(all, " ")}
	if len(skipped) > 0 {
		line = append(line, "skipped", strings.Join(skipped, "; "))
	}
	s.opts.Logger.Info("yodel: registered", line...)
	return nil
}

// Handle registers a function or closure under any name. It must have one of the shapes listed at
// Register.
func (s *Server) Handle(name string, function any) error {
	v := reflect.ValueOf(function)
	if v.Kind() != reflect.Func {
		return failure("YDL4001", "handle %s: %T is not a function", name, function)
	}
	if v.IsNil() {
		return failure("YDL4001", "handle %s: the %T is nil", name, function)
	}
	fn, err := reflectcall.Of[Values](v, streamParamOf)
	if err != nil {
		return failure("YDL4001", "handle %s: %v", name, err)
	}
	m, err := methodOf(s.codecs, fn)
	if err != nil {
		return failure("YDL4001", "handle %s: %v", name, err)
	}
	return s.add(name, m)
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
	in, out := inAndOut(types)
	return s.add(name, &method{Kind: wire.Unary, Args: in, Results: out, Dynamic: handler})
}

func inAndOut(types []reflect.Type) (in, out []reflect.Type) {
	if len(types) != 2 {
		return nil, nil
	}
	return types[:1:1], types[1:]
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
	in, out := inAndOut(types)
	return s.add(name, &method{Kind: number, Args: in, Results: out, Stream: func(ctx context.Context, p *pipe.Pipe, _ any) (any, error) {
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
	}})
}

// Alias gives a registered method further names.
func (s *Server) Alias(name string, aliases ...string) error {
	m := s.methods.Get(name)
	if m == nil {
		return s.unknown(name, s.methods.Similar(name))
	}
	for _, alias := range aliases {
		if err := s.addAll(name, map[string]*method{alias: m}); err != nil {
			return err
		}
	}
	return nil
}

// Unregister removes names of methods that Register, Handle or Alias have registered. If the server
// has no method for one of the names, Unregister removes no name and returns an error. After
// Unregister has returned, calls of these names are refused with Unimplemented on every connection.
// Calls that have begun continue. Other names of the same methods remain registered. The removed
// names may be registered again.
func (s *Server) Unregister(names ...string) error {
	removed, missing := s.methods.Remove(names)
	if missing != "" {
		return s.unknown(missing, s.methods.Similar(missing))
	}
	for _, m := range removed {
		m.Unnamed.Store(true)
	}
	s.announced.Again()
	return nil
}

// MarkIdempotent declares that registered methods may be executed twice. Clients may then send a
// call again even if it may have been executed. MarkIdempotent panics if the server has no method
// for one of the names.
func (s *Server) MarkIdempotent(names ...string) {
	s.mark(names, func(m *method) { m.Idempotent.Store(true) })
}

// MarkReadOnly declares that registered methods change nothing. They are idempotent, and callers
// over HTTP may call them with GET. MarkReadOnly panics if the server has no method for one of the
// names.
func (s *Server) MarkReadOnly(names ...string) {
	s.mark(names, func(m *method) {
		m.Idempotent.Store(true)
		m.ReadOnly.Store(true)
	})
}

// MarkInline is a hint that registered methods are short, so that they run on the reader goroutine.
// Without a hint the server measures the methods. MarkInline panics if the server has no method for
// one of the names.
func (s *Server) MarkInline(names ...string) { s.mark(names, func(m *method) { m.Hint(true) }) }

// MarkConcurrent is a hint that registered methods take long or wait, so that each call gets its
// own goroutine. Without a hint the server measures the methods. MarkConcurrent panics if the
// server has no method for one of the names.
func (s *Server) MarkConcurrent(names ...string) {
	s.mark(names, func(m *method) { m.Hint(false) })
}

func (s *Server) mark(names []string, mark func(*method)) {
	for _, name := range names {
		m := s.methods.Get(s.methods.Meant(name))
		if m == nil {
			panic("yodel: mark: " + s.unknown(name, s.methods.Similar(name)).Message)
		}
		mark(m)
		s.methods.Marked()
	}
}

// add adds a method to the table.
func (s *Server) add(name string, m *method) error {
	return s.addAll("", map[string]*method{name: m})
}

// mustAdd is add for a typed function, which may be nil. It panics if add fails.
func (s *Server) mustAdd(name string, isNil bool, m *method) {
	if isNil {
		panic("yodel: " + failure("YDL4001", "register %s: the function is nil", name).Error())
	}
	if err := registered.Carry(m, s.codecs, names(s.codecs)); err != nil {
		panic("yodel: " + failure("YDL4001", "register %s: %v", name, err).Error())
	}
	if err := s.add(name, m); err != nil {
		panic("yodel: " + err.Error())
	}
}

// addAll adds either all methods to the table or no method. If the names are aliases, of is the
// method to which they belong. For new methods it is "". OnRegister runs first. Until it has
// accepted all names, the methods cannot be called, and the names are reserved.
func (s *Server) addAll(of string, added map[string]*method) error {
	names := slices.Sorted(maps.Keys(added))
	if err := s.methods.Reserve(names); err != nil {
		return failure("YDL4001", "%v", err)
	}
	defer s.methods.Release(names) // also if OnRegister panics
	for _, name := range names {
		if m := added[name]; of == "" {
			m.Views = m.Takes(reflect.TypeFor[raw.View]())
		}
		if s.opts.OnRegister == nil {
			continue
		}
		if err := s.opts.OnRegister(name); err != nil {
			return fmt.Errorf("register %s: %w", name, err)
		}
	}
	if !s.methods.Add(of, added) {
		return s.unknown(of, "")
	}
	s.announced.Again()
	return nil
}

// methodOf makes a method from a function that is called by reflection.
func methodOf(codecs map[string]Codec, fn *reflectcall.Func[*pipe.Pipe]) (*method, error) {
	m := new(method)
	m.Use(fn)
	return m, registered.Carry(m, codecs, names(codecs))
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

func names[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// unknown returns the error for a call of a method that does not exist. Similar is a name to
// suggest, or "".
func (s *Server) unknown(name, similar string) *Error {
	return faultError(s.methods.Unknown(name, similar))
}
