// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/schema"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A method is a function that a server executes under one or more names.
type method struct {
	names      []string // registered name, then aliases; guarded by Server.methodsMu
	positional bool
	in, out    []reflect.Type   // without pointers, for messages
	uncarried  map[string]error // why codecs do not carry these types, by the names of the codecs
	newArgs    func() any       // returns a pointer, or Values of pointers; nil when the request has no body
	call       func(ctx context.Context, args any) (reply any, err error)
	kind       uint64 // a kind of package wire
	// in place of call, if the method has a stream
	stream     func(ctx context.Context, p *pipe, args any) (reply any, err error)
	dynamic    Handler // instead of call, for HandleCall
	views      bool    // it is unary and takes one View
	idempotent atomic.Bool
	readOnly   atomic.Bool
	nests      atomic.Bool  // its handler makes calls with its context
	unnamed    atomic.Bool  // one of its names was unregistered: see target.find
	where      atomic.Int32 // a hint, see whereInline
	stats      stats.Method
	replySize  atomic.Int64         // the recent size of replies; 0 if they are small
	first      admission.FirstCalls // the first calls in other protocols
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
	funcs, skipped, err := reflectcall.Methods[Values](v, streamParamOf, methods)
	if err != nil {
		return failure("YDL4001", "register %T as %s: %v", rcvr, service, err)
	}
	found := make(map[string]*method)
	for _, name := range slices.Sorted(maps.Keys(funcs)) {
		m, err := methodOf(s.codecs, funcs[name])
		if err != nil {
			return failure("YDL4001", "register %T as %s: %s: %v; or leave it out with %q", rcvr, service, name, err, "-"+name)
		}
		found[prefix+name] = m
	}
	registered := slices.Sorted(maps.Keys(found)) // before the methods can be called
	if err := s.addAll("", found); err != nil {
		return err
	}
	line := []any{"methods", strings.Join(registered, " ")}
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
	return s.add(name, &method{kind: wire.Unary, dynamic: handler, in: in, out: out})
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
	return s.add(name, &method{kind: number, in: in, out: out, stream: func(ctx context.Context, p *pipe, _ any) (any, error) {
		call := CallFrom(ctx)
		recv := func(msg any) error {
			body, err := p.receive()
			if err != nil {
				return err
			}
			return p.decode(body, msg)
		}
		send := func(msg any) error {
			if msg == nil || iface.IsNil(msg) && reflect.TypeOf(msg).Kind() == reflect.Pointer {
				return p.noMessage(msg)
			}
			return p.send(msg)
		}
		err := handler(ctx, call, recv, send)
		if err == nil && number == wire.Upload && call.Reply == nil {
			err = reflectcall.ErrNoReply
		}
		return call.Reply, err
	}})
}

// Alias gives a registered method further names.
func (s *Server) Alias(name string, aliases ...string) error {
	m := (*s.methods.Load())[name]
	if m == nil {
		return s.unknown(name, s.nearest(name))
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
	s.methodsMu.Lock()
	methods := maps.Clone(*s.methods.Load())
	for _, name := range names {
		if methods[name] == nil {
			s.methodsMu.Unlock()
			return s.unknown(name, s.nearest(name))
		}
	}
	var removed []*method
	for _, name := range names {
		if m := methods[name]; m != nil { // otherwise names contains the name twice
			m.names = slices.DeleteFunc(m.names, func(other string) bool { return other == name })
			delete(methods, name)
			removed = append(removed, m)
		}
	}
	s.methods.Store(&methods)
	for _, m := range removed {
		m.unnamed.Store(true)
	}
	s.methodsVersion.Add(1)
	s.methodsMu.Unlock()
	s.announceAgain()
	return nil
}

// MarkIdempotent declares that registered methods may be executed twice. Clients may then send a
// call again even if it may have been executed. MarkIdempotent panics if the server has no method
// for one of the names.
func (s *Server) MarkIdempotent(names ...string) {
	s.mark(names, func(m *method) { m.idempotent.Store(true) })
}

// MarkReadOnly declares that registered methods change nothing. They are idempotent, and callers
// over HTTP may call them with GET. MarkReadOnly panics if the server has no method for one of the
// names.
func (s *Server) MarkReadOnly(names ...string) {
	s.mark(names, func(m *method) {
		m.idempotent.Store(true)
		m.readOnly.Store(true)
	})
}

// MarkInline is a hint that registered methods are short, so that they run on the reader goroutine.
// Without a hint the server measures the methods. MarkInline panics if the server has no method for
// one of the names.
func (s *Server) MarkInline(names ...string) {
	s.mark(names, func(m *method) { m.where.Store(whereInline) })
}

// MarkConcurrent is a hint that registered methods take long or wait, so that each call gets its
// own goroutine. Without a hint the server measures the methods. MarkConcurrent panics if the
// server has no method for one of the names.
func (s *Server) MarkConcurrent(names ...string) {
	s.mark(names, func(m *method) { m.where.Store(whereConcurrent) })
}

func (s *Server) mark(names []string, mark func(*method)) {
	for _, name := range names {
		m := (*s.methods.Load())[s.meant(name)]
		if m == nil {
			panic("yodel: mark: " + s.unknown(name, s.nearest(name)).Message)
		}
		mark(m)
		s.methodsVersion.Add(1)
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
	if err := m.carriedBy(s.codecs); err != nil {
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
	if err := s.reserve(names); err != nil {
		return err
	}
	defer s.unreserve(names) // also if OnRegister panics
	for _, name := range names {
		if s.opts.OnRegister == nil {
			break
		}
		if err := s.opts.OnRegister(name); err != nil {
			return fmt.Errorf("register %s: %w", name, err)
		}
	}
	if err := s.publish(of, names, added); err != nil {
		return err
	}
	s.announceAgain()
	return nil
}

// reserve checks the names of methods, and prevents other registrations of them until unreserve.
func (s *Server) reserve(names []string) error {
	s.methodsMu.Lock()
	defer s.methodsMu.Unlock()
	for _, name := range names {
		why := ""
		switch {
		case name == "":
			why = "register: a method needs a name"
		case len(name) > wire.MaxName:
			why = fmt.Sprintf("register %.40s…: the name has %d bytes, the limit is %d", name, len(name), wire.MaxName)
		case text.Line(name) != name: // errors and logs would show it as another name
			why = fmt.Sprintf("register %q: the name has control characters, or is not valid UTF-8", name)
		case (*s.methods.Load())[name] != nil || s.reserved[name]:
			why = fmt.Sprintf("register %s: the name is taken", name)
		}
		if why != "" {
			return failure("YDL4001", "%s", why)
		}
	}
	for _, name := range names {
		s.reserved[name] = true
	}
	return nil
}

func (s *Server) unreserve(names []string) {
	s.methodsMu.Lock()
	defer s.methodsMu.Unlock()
	for _, name := range names {
		delete(s.reserved, name)
	}
}

// publish adds methods with reserved names to the table. It fails if they are aliases of a method
// that was unregistered in the meantime.
func (s *Server) publish(of string, names []string, added map[string]*method) error {
	s.methodsMu.Lock()
	defer s.methodsMu.Unlock()
	methods := maps.Clone(*s.methods.Load())
	for _, name := range names {
		m := added[name]
		switch {
		case of == "":
			m.views = m.kind == wire.Unary && !m.positional && len(m.in) == 1 && m.in[0] == reflect.TypeFor[View]()
		case methods[of] != m:
			return s.unknown(of, "")
		}
		m.names = append(m.names, name)
		methods[name] = m
	}
	s.methods.Store(&methods)
	s.methodsVersion.Add(1)
	return nil
}

// methodOf makes a method from a function that is called by reflection.
func methodOf(codecs map[string]Codec, fn *reflectcall.Func[*pipe]) (*method, error) {
	m := &method{
		kind: fn.Kind, positional: fn.Positional, in: fn.In, out: fn.Out,
		newArgs: fn.NewArgs, call: fn.Call, stream: fn.Stream,
	}
	return m, m.carriedBy(codecs)
}

// carriedBy finds the codecs that do not carry the types of the method. It fails if all of them do
// not.
func (m *method) carriedBy(codecs map[string]Codec) error {
	m.uncarried = make(map[string]error)
	types := slices.DeleteFunc(slices.Concat(m.in, m.out), reflectcall.HasNoContent) // one-way calls have no reply
	for name, codec := range codecs {
		if err := carries.Check(codec, types...); err != nil {
			m.uncarried[name] = err
		}
	}
	for _, t := range types {
		if err := reflectcall.Usable(t); err != nil {
			return err
		}
	}
	if len(m.uncarried) == len(codecs) {
		return fmt.Errorf("none of the codecs %s carries its types: %w", names(codecs), m.uncarried["json"])
	}
	return nil
}

// If t is a Send or a Recv, streamParamOf returns how a parameter of type t is made from a pipe.
// For a pointer to a Send or a Recv, the result has no Message, because a method cannot take such a
// parameter.
func streamParamOf(t reflect.Type) (reflectcall.StreamParam[*pipe], bool) {
	p, ok := reflect.TypeAssert[streamParam](reflect.Zero(t))
	if !ok || t.Kind() == reflect.Pointer {
		return reflectcall.StreamParam[*pipe]{}, ok
	}
	return reflectcall.StreamParam[*pipe]{Sends: p.sends(), Message: p.message(), On: p.on}, true
}

// signature describes the method for error messages.
func (m *method) signature() string {
	switch {
	case m.kind != wire.Unary:
		return fmt.Sprintf("%s of %s", kinds.OneOf(m.kind), m.types())
	case m.positional:
		return m.types() + ": give yodel.Values"
	}
	return m.types() + ": give one message, not yodel.Values"
}

// types lists the types of the arguments and the results.
func (m *method) types() string {
	return m.argsName() + " to " + schema.Names(m.out, m.positional)
}

func (m *method) argsName() string { return schema.Names(m.in, m.positional) }

// Hints for where a method runs; 0 means no hint.
const (
	whereInline = 1 + iota
	whereConcurrent
)

func (m *method) inline() bool {
	switch m.where.Load() {
	case whereInline:
		return true
	case whereConcurrent:
		return false
	default:
		return m.stats.Short()
	}
}

// serviceOf returns the part of a method's name before its last dot or slash.
func serviceOf(name string) string {
	return name[:max(strings.LastIndexAny(name, "./"), 0)]
}

func names[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// suggestion returns the method name that is most similar to b.name, or "". It is called if there
// is no method of that name. It searches once per method number of a connection.
func (b *boundMethod) suggestion() string {
	s := b.server
	if known := b.similar.Load(); known != nil && (*known == "" || (*s.methods.Load())[*known] != nil) {
		return *known
	}
	if !s.unknowns.Admit(clock()) {
		return ""
	}
	found := s.nearest(b.name)
	b.similar.Store(&found)
	return found
}

// nearest returns the method name that is most similar to name, or "".
func (s *Server) nearest(name string) string { return s.unknowns.Similar(s.methods.Load(), name) }

// unknown returns the error for a call of a method that does not exist. Similar is a name to
// suggest, or "".
func (s *Server) unknown(name, similar string) *Error {
	id := "YDL2001"
	message, hasService := s.unknowns.Unknown(s.methods.Load(), name, similar)
	if hasService {
		id = "YDL2002"
	}
	return refusal(id, "%s", message)
}
