// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A method is a function that a server executes under one or more names.
type method struct {
	names      []string // registered name, then aliases; guarded by Server.methodsMu
	positional bool
	in, out    []reflect.Type // without pointers, for messages
	newArgs    func() any     // returns a pointer, or Values of pointers; nil when the request has no body
	call       func(ctx context.Context, args any) (reply any, err error)
	kind       uint64 // a kind of package wire
	// in place of call, if the method has a stream
	stream     func(ctx context.Context, p *pipe, args any) (reply any, err error)
	dynamic    Handler // instead of call, for HandleCall
	views      bool    // it is unary and takes one View
	idempotent atomic.Bool
	nests      atomic.Bool  // its handler makes calls with its context
	unnamed    atomic.Bool  // one of its names was unregistered: see target.find
	where      atomic.Int32 // a hint, see whereInline
	stats      stats.Method
	replySize  atomic.Int64 // the recent size of replies; 0 if they are small
}

// Register registers the exported methods of rcvr, a pointer to a struct, under the name of its
// type: "Arith.Mul". If methods are given, it registers only these. A method must have one of these
// shapes:
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
// another package. It also skips methods of other shapes. It logs one line at level Info with the
// registered methods, and with the skipped methods and the reasons.
//
// Register fails if no method is left, if a name in methods does not exist or has another shape, or
// if a name is taken. It may be called while the server serves.
func (s *Server) Register(rcvr any, methods ...string) error {
	t := reflect.TypeOf(rcvr)
	for t != nil && t.Kind() == reflect.Pointer {
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

// RegisterName is Register with a service name: "shop.Cart" makes "shop.Cart.Add". A service name
// that ends in a slash is used without a dot: "shop.Cart/" makes "shop.Cart/Add".
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
	var skipped []string
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		if len(methods) > 0 && !slices.Contains(methods, name) {
			continue
		}
		if len(methods) == 0 {
			if why := unmeant(v.Type(), v.Type().Method(i)); why != "" {
				skipped = append(skipped, name+": "+why)
				continue
			}
		}
		m, err := newMethod(v.Type().Method(i).Func, v)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		found[prefix+name] = m
	}
	for _, name := range methods {
		if found[prefix+name] == nil && !strings.HasPrefix(strings.Join(skipped, "\n"), name+": ") && !v.MethodByName(name).IsValid() {
			skipped = append(skipped, fmt.Sprintf("%s: %T has no exported method of this name", name, rcvr))
		}
	}
	if len(found) == 0 && v.NumMethod() == 0 && v.Kind() == reflect.Struct && reflect.PointerTo(v.Type()).NumMethod() > 0 {
		skipped = append(skipped, fmt.Sprintf("the methods of %T have pointer receivers; register a pointer", rcvr))
	}
	if len(found) == 0 || len(skipped) > 0 && len(methods) > 0 {
		return failure("YDL4001", "register %T as %s: no suitable method%s", rcvr, service, because(skipped))
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

func because(skipped []string) string {
	if len(skipped) == 0 {
		return ": it has no exported methods"
	}
	return "; " + strings.Join(skipped, "; ")
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
	m, err := newMethod(v)
	if err != nil {
		return failure("YDL4001", "handle %s: %v", name, err)
	}
	return s.add(name, m)
}

// HandleCall registers a unary method whose types are not known when the program is compiled, for
// bridges and proxies. Handler gets the call with its body encoded: Call.DecodeInto decodes it,
// Call.Request copies it. It sets Call.Reply to a value, which is encoded in the codec of the call,
// or to an *Encoded, which is sent as it is; nil is a reply without content. It must not keep the
// call.
func (s *Server) HandleCall(name string, handler Handler) error {
	if handler == nil {
		return failure("YDL4001", "handle %s: the handler is nil", name)
	}
	return s.add(name, &method{kind: wire.Unary, dynamic: handler})
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

// Unregister removes names of methods that Register, Handle or Alias have registered. If there is
// no method of one of the names, it removes none and returns an error. After Unregister has
// returned, calls of these names are refused with Unimplemented on every connection. Calls that
// have begun continue. Other names of the same methods stay. The names may be registered again.
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
		if m := methods[name]; m != nil { // else names contains it twice
			m.names = slices.DeleteFunc(m.names, func(other string) bool { return other == name })
			delete(methods, name)
			removed = append(removed, m)
		}
	}
	s.methods.Store(&methods)
	for _, m := range removed {
		m.unnamed.Store(true)
	}
	s.methodsMu.Unlock()
	s.announceAgain()
	return nil
}

// MarkIdempotent says that registered methods may be executed twice. Clients then may send a call
// again that may have been executed. It panics if there is no method of a name.
func (s *Server) MarkIdempotent(names ...string) {
	s.mark(names, func(m *method) { m.idempotent.Store(true) })
}

// MarkInline hints that registered methods are short, so that they run on the reader goroutine.
// Without a hint the server measures the methods. It panics if there is no method of a name.
func (s *Server) MarkInline(names ...string) {
	s.mark(names, func(m *method) { m.where.Store(whereInline) })
}

// MarkConcurrent hints that registered methods take long or wait, so that each call gets a
// goroutine. Without a hint the server measures the methods. It panics if there is no method of a
// name.
func (s *Server) MarkConcurrent(names ...string) {
	s.mark(names, func(m *method) { m.where.Store(whereConcurrent) })
}

func (s *Server) mark(names []string, mark func(*method)) {
	for _, name := range names {
		m := (*s.methods.Load())[name]
		if m == nil {
			panic("yodel: mark: " + s.unknown(name, s.nearest(name)).Message)
		}
		mark(m)
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
	for _, t := range slices.Concat(m.in, m.out) {
		if err := usable(t); err != nil {
			panic("yodel: " + failure("YDL4001", "register %s: %v", name, err).Error())
		}
	}
	if err := s.add(name, m); err != nil {
		panic("yodel: " + err.Error())
	}
}

// addAll adds all methods to the table, or none. Of is the method of which the names are aliases,
// or "" for new methods. OnRegister runs first. Until it has accepted all names, the methods cannot
// be called, and the names are reserved.
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
	return nil
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// newMethod makes a method of a function, by reflection. First holds the values of its first
// parameters: a receiver or nothing.
func newMethod(f reflect.Value, first ...reflect.Value) (*method, error) {
	t := f.Type()
	if t.IsVariadic() {
		return nil, errors.New("it takes a variable number of arguments; take a slice instead")
	}
	in := slices.Collect(t.Ins())[len(first):]
	out := slices.Collect(t.Outs())
	sh := &shape{f: f, first: first}
	if len(in) > 0 && isStream(in[len(in)-1]) {
		return newStreamMethod(f, in, out, first)
	}
	if len(in) > 0 && in[0] == contextType {
		sh.ctx = true
		in = in[1:]
	}
	if len(out) > 0 && out[len(out)-1] == errorType {
		sh.err = true
		out = out[:len(out)-1]
	}
	for _, t := range append(slices.Clone(in), out...) {
		if err := usable(t); err != nil {
			return nil, err
		}
	}
	sh.in, sh.out = in, out
	sh.frames.New = func() any { return sh.newFrame() }
	switch {
	case len(in) == 2 && len(out) == 0 && sh.err:
		if in[1].Kind() != reflect.Pointer {
			return nil, fmt.Errorf("its second parameter is %v; make it *%v, so that the result can be written", in[1], in[1])
		}
		return sh.replyArgument(), nil
	case len(in) == 1 && len(out) == 1 && sh.err && in[0].Kind() == reflect.Pointer && out[0].Kind() == reflect.Pointer:
		return sh.plain(), nil
	}
	return sh.values(), nil
}

func isStream(t reflect.Type) bool { return t.Implements(reflect.TypeFor[streamParam]()) }

// newStreamMethod makes a method of a function that takes a Send, a Recv, or both.
func newStreamMethod(f reflect.Value, in, out []reflect.Type, first []reflect.Value) (*method, error) {
	const shapes = "it takes a stream, but is none of func(context.Context, *In, Send[Out]) error, " +
		"func(context.Context, Recv[In]) (*Out, error) and func(context.Context, Recv[In], Send[Out]) error"
	if len(in) < 2 || in[0] != contextType || len(out) == 0 || out[len(out)-1] != errorType {
		return nil, errors.New(shapes)
	}
	in, out = in[1:], out[:len(out)-1]
	params := make([]streamParam, len(in))
	for i, t := range in {
		params[i], _ = reflect.TypeAssert[streamParam](reflect.Zero(t)) // nil for a message
	}
	head, last := params[0], params[len(params)-1]
	m := &method{}
	switch {
	case len(in) == 2 && len(out) == 0 && last.sends() && head == nil && in[0].Kind() == reflect.Pointer:
		m.kind = wire.Feed
		m.in, m.out = []reflect.Type{in[0].Elem()}, []reflect.Type{last.message()}
		m.newArgs = func() any { return reflect.New(m.in[0]).Interface() }
	case len(in) == 2 && len(out) == 0 && last.sends() && head != nil && !head.sends():
		m.kind = wire.Duplex
		m.in, m.out = []reflect.Type{head.message()}, []reflect.Type{last.message()}
	case len(in) == 1 && len(out) == 1 && !last.sends() && out[0].Kind() == reflect.Pointer:
		m.kind = wire.Upload
		m.in, m.out = []reflect.Type{last.message()}, []reflect.Type{out[0].Elem()}
	default:
		return nil, errors.New(shapes)
	}
	m.stream = func(ctx context.Context, p *pipe, args any) (any, error) {
		values := append(slices.Clip(first), reflect.ValueOf(ctx))
		for _, param := range params {
			if param == nil {
				values = append(values, reflect.ValueOf(args))
			} else {
				values = append(values, param.on(p))
			}
		}
		return streamResults(m, f.Call(values))
	}
	return m, nil
}

func streamResults(m *method, results []reflect.Value) (reply any, err error) {
	err, _ = reflect.TypeAssert[error](results[len(results)-1])
	switch {
	case m.kind != wire.Upload:
		return nil, err
	case results[0].IsNil():
		if err == nil && !hasNoContent(m.out[0]) {
			err = errNoReply
		}
		return reflect.New(m.out[0]).Interface(), err
	}
	return results[0].Interface(), err
}

// usable reports why a value of type t cannot be sent.
func usable(t reflect.Type) error {
	if of := structOf(t); hidesAll(of) {
		return fmt.Errorf("%v has no exported fields, so that nothing of it would be sent", of)
	}
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return fmt.Errorf("a %v cannot be sent", t)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("an interface (%v) cannot be decoded into; use a concrete type", t)
		}
	}
	return nil
}

// hidesAll reports whether t is a struct whose fields are all invisible to codecs. It is false for
// a type with methods, which may encode itself.
func hidesAll(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || hasNoContent(t) || reflect.PointerTo(t).NumMethod() > 0 {
		return false
	}
	for field := range t.Fields() {
		if field.IsExported() || field.Anonymous {
			return false
		}
	}
	return true
}

// A shape is a function and the layout of its parameters and results.
type shape struct {
	f        reflect.Value
	first    []reflect.Value // its receiver, if it has one
	ctx, err bool
	in, out  []reflect.Type
	frames   sync.Pool // of *frame
}

// A frame holds the parameters for one call of a function, and is reused. The context is stored in
// a variable of type context.Context. If reflection gets a context of another type, it looks up all
// methods of the interface for each call: 2.1 µs per call with five allocations, against 0.4 µs
// with three.
type frame struct {
	ctx  context.Context //nolint:containedctx // for the time of a call
	args []reflect.Value // the fixed ones first, then those of the call
}

func (sh *shape) newFrame() *frame {
	fr := &frame{args: slices.Clone(sh.first)}
	if sh.ctx {
		fr.args = append(fr.args, reflect.ValueOf(&fr.ctx).Elem())
	}
	return fr
}

// call calls the function. If the function panics or ends its goroutine, the frame is not reused.
func (sh *shape) call(ctx context.Context, args ...reflect.Value) (results []reflect.Value) {
	fr := sh.frames.Get().(*frame) //nolint:forcetypeassert // the pool holds nothing else
	n := len(fr.args)
	fr.ctx, fr.args = ctx, append(fr.args, args...)
	results = sh.f.Call(fr.args)
	clear(fr.args[n:]) // do not keep the user's values
	fr.ctx, fr.args = nil, fr.args[:n]
	sh.frames.Put(fr)
	return results
}

func (sh *shape) error(results []reflect.Value) error {
	if !sh.err {
		return nil
	}
	err, _ := reflect.TypeAssert[error](results[len(results)-1])
	return err
}

// plain returns the method for func(ctx, *In) (*Out, error).
func (sh *shape) plain() *method {
	in, out := sh.in[0].Elem(), sh.out[0].Elem()
	return &method{
		in: []reflect.Type{in}, out: []reflect.Type{out},
		newArgs: func() any { return reflect.New(in).Interface() },
		call: func(ctx context.Context, args any) (any, error) {
			results := sh.call(ctx, reflect.ValueOf(args))
			err := sh.error(results)
			if !results[0].IsNil() {
				return results[0].Interface(), err
			}
			if err == nil && !hasNoContent(out) {
				err = errNoReply
			}
			return reflect.New(out).Interface(), err
		},
	}
}

// replyArgument returns the method for func(ctx, *In, *Out) error and func(In, *Out) error.
func (sh *shape) replyArgument() *method {
	in, out := sh.in[0], sh.in[1].Elem()
	pointer := in.Kind() == reflect.Pointer
	if pointer {
		in = in.Elem()
	}
	return &method{
		in: []reflect.Type{in}, out: []reflect.Type{out},
		newArgs: func() any { return reflect.New(in).Interface() },
		call: func(ctx context.Context, args any) (any, error) {
			arg := reflect.ValueOf(args)
			if !pointer {
				arg = arg.Elem()
			}
			reply := reflect.New(out)
			switch out.Kind() { // as net/rpc does, so that a handler can fill it
			case reflect.Map:
				reply.Elem().Set(reflect.MakeMap(out))
			case reflect.Slice:
				reply.Elem().Set(reflect.MakeSlice(out, 0, 0))
			}
			results := sh.call(ctx, arg, reply)
			return reply.Interface(), sh.error(results)
		},
	}
}

// values returns the method for any number of arguments and results.
func (sh *shape) values() *method {
	return &method{
		positional: true, in: sh.in, out: sh.out,
		newArgs: func() any {
			values := make(Values, len(sh.in))
			for i, t := range sh.in {
				values[i] = reflect.New(t).Interface()
			}
			return values
		},
		call: func(ctx context.Context, args any) (any, error) {
			values := make([]reflect.Value, len(sh.in))
			for i, v := range args.(Values) { //nolint:forcetypeassert // newArgs made it
				values[i] = reflect.ValueOf(v).Elem()
			}
			results := sh.call(ctx, values...)
			reply := make(Values, len(sh.out))
			for i := range reply {
				reply[i] = results[i].Interface()
			}
			return reply, sh.error(results)
		},
	}
}

// signature describes the method for error messages.
func (m *method) signature() string {
	switch {
	case m.kind != wire.Unary:
		return fmt.Sprintf("%s of %s", oneOf(m.kind), m.types())
	case m.positional:
		return m.types() + ": give yodel.Values"
	}
	return m.types() + ": give one message, not yodel.Values"
}

// types lists the types of the arguments and the results.
func (m *method) types() string {
	list := func(ts []reflect.Type) string {
		names := make([]string, len(ts))
		for i, t := range ts {
			names[i] = t.String()
		}
		return strings.Join(names, ", ")
	}
	if m.positional {
		return fmt.Sprintf("(%s) to (%s)", list(m.in), list(m.out))
	}
	return fmt.Sprintf("%s to %s", list(m.in), list(m.out))
}

func (m *method) argsName() string {
	if m.positional {
		return "(" + strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(m.in), "["), "]") + ")"
	}
	return m.in[0].String()
}

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
