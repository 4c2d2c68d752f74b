// SPDX-License-Identifier: Apache-2.0

// Package reflectcall calls functions and methods by reflection. It determines the types of the
// arguments and results of a function, allocates memory for the arguments, and calls the function.
// It also decides which methods of a value are meant for remote callers.
package reflectcall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Func is a function that can be called by reflection. Streams are of type S. A Func may be used
// concurrently.
type Func[S any] struct {
	Kind       uint64         // a kind of package wire
	Positional bool           // the function takes and returns lists of values instead of single messages
	In, Out    []reflect.Type // without pointers, for messages

	// NewArgs returns a pointer to a new message, or a list of pointers. It is nil if the arguments
	// are a stream.
	NewArgs func() any
	// Call calls a unary function with args from NewArgs. The reply is a pointer to a message, or a
	// list of values. If the function returns a nil reply without an error, the error is
	// ErrNoReply, unless the type of the reply has no content.
	Call func(ctx context.Context, args any) (reply any, err error)
	// Stream replaces Call for a function with a stream.
	Stream func(ctx context.Context, stream S, args any) (reply any, err error)
}

// A StreamParam describes a type of parameters through which a function sends or receives the
// messages of a stream.
type StreamParam[S any] struct {
	Sends   bool                         // the function sends messages; otherwise it receives them
	Message reflect.Type                 // nil if no function can take such a parameter
	On      func(stream S) reflect.Value // returns the parameter for a stream
}

// ErrNoReply is the error of a function that returned neither a reply nor an error. It is returned
// bare.
var ErrNoReply = errors.New("no reply")

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// Of returns the Func of a function. Lists of values are of type V. Stream returns the StreamParam
// of a type, and reports whether parameters of that type belong to a stream. First holds the values
// of the function's first parameters: a receiver or nothing. Of fails if a remote caller cannot
// call the function.
func Of[V ~[]any, S any](
	f reflect.Value, stream func(reflect.Type) (StreamParam[S], bool), first ...reflect.Value,
) (*Func[S], error) {
	t := f.Type()
	if t.IsVariadic() {
		return nil, errors.New("it takes a variable number of arguments; take a slice instead")
	}
	in := slices.Collect(t.Ins())[len(first):]
	out := slices.Collect(t.Outs())
	sh := &shape{f: f, first: first}
	if len(in) > 0 {
		if _, streams := stream(in[len(in)-1]); streams {
			return ofStream(f, in, out, stream, first)
		}
	}
	if len(in) > 0 && in[0] == contextType {
		sh.ctx = true
		in = in[1:]
	}
	if len(out) > 0 && out[len(out)-1] == errorType {
		sh.err = true
		out = out[:len(out)-1]
	}
	if err := misplaced(in, out, sh.err); err != nil {
		return nil, err
	}
	for _, t := range append(slices.Clone(in), out...) {
		if err := Usable(t); err != nil {
			return nil, err
		}
	}
	sh.in, sh.out = in, out
	sh.frames.New = func() any { return sh.newFrame() }
	switch {
	case len(in) == 2 && len(out) == 0 && sh.err:
		if ofThrift(in[1]) {
			return nil, fmt.Errorf("its parameters, such as %v, are of Apache Thrift's generated code, where both are arguments; "+
				"register the generated processor with package codec/apachethrift", in[1])
		}
		if in[1].Kind() != reflect.Pointer {
			return nil, fmt.Errorf("its second parameter is %v; make it *%v, so that the result can be written", in[1], in[1])
		}
		return withReplyArgument[S](sh), nil
	case len(in) == 1 && len(out) == 1 && sh.err && in[0].Kind() == reflect.Pointer && out[0].Kind() == reflect.Pointer:
		return plain[S](sh), nil
	}
	return values[V, S](sh), nil
}

// misplaced returns an error if a function takes a context or returns an error in a way that only
// resembles a suitable one. In lacks a context at the beginning, and out an error at the end, which
// fails reports.
func misplaced(in, out []reflect.Type, fails bool) error {
	for _, t := range in {
		switch {
		case t == contextType:
			return errors.New("it has a context.Context after its first parameter; make it the first one, and the only one")
		case isContext(t):
			return fmt.Errorf("it takes a %v, which callers cannot send; take a context.Context as the first parameter", t)
		case t.Implements(contextualType):
			return fmt.Errorf("it takes a %v, a stream of gRPC; register the generated service with package protocol/grpcgo", t)
		}
	}
	for i, t := range out {
		switch {
		case t == errorType:
			return fmt.Errorf("its result %d is an error; make error the last result, and the only one", i+1)
		case !fails && i == len(out)-1 && ownError(t):
			return fmt.Errorf("its last result is a %v, which is an error, but would be sent as a value; make the type of the result error", t)
		}
	}
	return nil
}

// contextualType is an interface of the streams in gRPC's generated code.
var contextualType = reflect.TypeFor[interface{ Context() context.Context }]()

// ofThrift reports whether t is a struct that Apache Thrift's compiler generated.
func ofThrift(t reflect.Type) bool {
	read, reads := t.MethodByName("Read") // a name that is computed makes the linker keep all methods
	write, writes := t.MethodByName("Write")
	return t.Kind() == reflect.Pointer && reads && writes && takesProtocol(read.Type) && takesProtocol(write.Type)
}

func takesProtocol(method reflect.Type) bool {
	return method.NumIn() == 3 && method.In(1) == contextType && method.In(2).Name() == "TProtocol"
}

// isContext reports whether t is a context, a pointer to one, or a type that is also one.
func isContext(t reflect.Type) bool {
	return t.Implements(contextType) || t == reflect.PointerTo(contextType)
}

// ownError reports whether t is a type of errors other than error itself.
func ownError(t reflect.Type) bool {
	return t != errorType && (t.Implements(errorType) || t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(errorType))
}

// ofStream is Of for a function that sends, receives, or both.
func ofStream[S any](
	f reflect.Value, in, out []reflect.Type, stream func(reflect.Type) (StreamParam[S], bool), first []reflect.Value,
) (*Func[S], error) {
	const shapes = "it takes a stream, but is none of func(context.Context, *In, Send[Out]) error, " +
		"func(context.Context, Recv[In]) (*Out, error) and func(context.Context, Recv[In], Send[Out]) error"
	if len(in) < 2 || in[0] != contextType || len(out) == 0 || out[len(out)-1] != errorType {
		return nil, errors.New(shapes)
	}
	in, out = in[1:], out[:len(out)-1]
	params := make([]*StreamParam[S], len(in)) // nil for a message
	for i, t := range in {
		p, ok := stream(t)
		switch {
		case ok && p.Message == nil:
			return nil, errors.New(shapes)
		case ok:
			params[i] = &p
		}
	}
	head, last := params[0], params[len(params)-1]
	m := &Func[S]{}
	switch {
	case len(in) == 2 && len(out) == 0 && last.Sends && head == nil && in[0].Kind() == reflect.Pointer:
		m.Kind = wire.Feed
		m.In, m.Out = []reflect.Type{in[0].Elem()}, []reflect.Type{last.Message}
		m.NewArgs = func() any { return reflect.New(m.In[0]).Interface() }
	case len(in) == 2 && len(out) == 0 && last.Sends && head != nil && !head.Sends:
		m.Kind = wire.Duplex
		m.In, m.Out = []reflect.Type{head.Message}, []reflect.Type{last.Message}
	case len(in) == 1 && len(out) == 1 && !last.Sends && out[0].Kind() == reflect.Pointer:
		m.Kind = wire.Upload
		m.In, m.Out = []reflect.Type{last.Message}, []reflect.Type{out[0].Elem()}
	default:
		return nil, errors.New(shapes)
	}
	for _, t := range slices.Concat(m.In, m.Out) {
		if err := Usable(t); err != nil {
			return nil, err
		}
	}
	m.Stream = func(ctx context.Context, s S, args any) (any, error) {
		values := append(slices.Clip(first), reflect.ValueOf(ctx))
		for _, param := range params {
			if param == nil {
				values = append(values, reflect.ValueOf(args))
			} else {
				values = append(values, param.On(s))
			}
		}
		return streamResults(m, f.Call(values))
	}
	return m, nil
}

func streamResults[S any](m *Func[S], results []reflect.Value) (reply any, err error) {
	err, _ = reflect.TypeAssert[error](results[len(results)-1])
	switch {
	case m.Kind != wire.Upload:
		return nil, err
	case results[0].IsNil():
		if err == nil && !HasNoContent(m.Out[0]) {
			err = ErrNoReply
		}
		return reflect.New(m.Out[0]).Interface(), err
	}
	return results[0].Interface(), err
}

// Usable returns the reason why a value of type t cannot be sent, or nil if it can be sent.
func Usable(t reflect.Type) error {
	if of := structOf(t); hidesAll(of) {
		return fmt.Errorf("%v has no exported fields, so that nothing of it would be sent", of)
	}
	if of := endlessIn(t, make(map[reflect.Type]bool)); of != nil {
		return fmt.Errorf("%v points only to itself, so that it has no values to send", of)
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

// endlessIn returns a type in t that consists of pointers to itself, such as P in type P *P, or
// nil. A decoder would allocate pointers for it without end. Seen has the types that were checked.
func endlessIn(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	for pointers := make(map[reflect.Type]bool); t.Kind() == reflect.Pointer; t = t.Elem() {
		if pointers[t] {
			return t
		}
		pointers[t] = true
	}
	if seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Map:
		return cmp.Or(endlessIn(t.Key(), seen), endlessIn(t.Elem(), seen))
	case reflect.Slice, reflect.Array:
		return endlessIn(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.IsExported() || f.Anonymous {
				if of := endlessIn(f.Type, seen); of != nil {
					return of
				}
			}
		}
	}
	return nil
}

// hidesAll reports whether t is a struct whose fields are all invisible to codecs. It is false for
// a type with methods, which may encode itself.
func hidesAll(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || HasNoContent(t) || reflect.PointerTo(t).NumMethod() > 0 {
		return false
	}
	for field := range t.Fields() {
		if field.IsExported() || field.Anonymous {
			return false
		}
	}
	return true
}

// HasNoContent reports whether all values of a type are equal, like the values of struct{}.
func HasNoContent(t reflect.Type) bool { return t.Size() == 0 }

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
// methods of the interface for each call. That takes 2.1 µs and five allocations per call, instead
// of 0.4 µs and three allocations.
type frame struct {
	ctx  context.Context //nolint:containedctx // for the time of a call
	args []reflect.Value // first the fixed parameters, then those of the call
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

// plain returns the Func of func(ctx, *In) (*Out, error).
func plain[S any](sh *shape) *Func[S] {
	in, out := sh.in[0].Elem(), sh.out[0].Elem()
	return &Func[S]{
		In: []reflect.Type{in}, Out: []reflect.Type{out},
		NewArgs: func() any { return reflect.New(in).Interface() },
		Call: func(ctx context.Context, args any) (any, error) {
			results := sh.call(ctx, reflect.ValueOf(args))
			err := sh.error(results)
			if !results[0].IsNil() {
				return results[0].Interface(), err
			}
			if err == nil && !HasNoContent(out) {
				err = ErrNoReply
			}
			return reflect.New(out).Interface(), err
		},
	}
}

// withReplyArgument returns the Func of func(ctx, *In, *Out) error and func(In, *Out) error.
func withReplyArgument[S any](sh *shape) *Func[S] {
	in, out := sh.in[0], sh.in[1].Elem()
	pointer := in.Kind() == reflect.Pointer
	if pointer {
		in = in.Elem()
	}
	return &Func[S]{
		In: []reflect.Type{in}, Out: []reflect.Type{out},
		NewArgs: func() any { return reflect.New(in).Interface() },
		Call: func(ctx context.Context, args any) (any, error) {
			arg := reflect.ValueOf(args)
			if !pointer {
				arg = arg.Elem()
			}
			reply := reflect.New(out)
			switch out.Kind() { // like net/rpc, so that a handler can fill it
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

// values returns the Func of a function with any number of arguments and results.
func values[V ~[]any, S any](sh *shape) *Func[S] {
	return &Func[S]{
		Positional: true, In: sh.in, Out: sh.out,
		NewArgs: func() any {
			values := make(V, len(sh.in))
			for i, t := range sh.in {
				values[i] = reflect.New(t).Interface()
			}
			return values
		},
		Call: func(ctx context.Context, args any) (any, error) {
			values := make([]reflect.Value, len(sh.in))
			for i, v := range args.(V) { //nolint:forcetypeassert // newArgs made it
				values[i] = reflect.ValueOf(v).Elem()
			}
			results := sh.call(ctx, values...)
			reply := make(V, len(sh.out))
			for i := range reply {
				reply[i] = results[i].Interface()
			}
			return reply, sh.error(results)
		},
	}
}
