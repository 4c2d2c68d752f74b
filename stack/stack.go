// SPDX-License-Identifier: Apache-2.0

// Package stack calls methods with up to four values in and out by typed stubs. A Method is the
// contract that client and server share:
//
//	const DivMod stack.Method[stack.V2[int, int], stack.V2[int, int]] = "Arith.DivMod"
//
//	DivMod.Handle(server, func(ctx context.Context, in stack.V2[int, int]) (stack.V2[int, int], error) {
//		a, b := in.Pop()
//		return stack.Push2(a/b, a%b), nil
//	})
//
//	out, err := DivMod.Call(ctx, client, stack.Push2(17, 5))
//	quotient, remainder := out.Pop()
//
// Pop returns the values in the order in which they were pushed. The values are those of
// yodel.Values, so other clients and servers may use yodel.Values or an ordinary Go function with
// the same parameters. Protocols without calls of several values refuse a call before it is sent.
//
// A Stack pushes and pops one value after the other, without a stub.
package stack

import (
	"context"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel"
)

// A Pushed is several values: a V0, V1, V2, V3 or V4.
type Pushed interface {
	values() yodel.Values
}

type (
	// A V0 is no value.
	V0 struct{} //nolint:recvcheck // as the types with fields, of which pointers are set
	// A V1 is one value. Its type, like those of the other types, must not be a pointer.
	V1[A any] struct{ a A }
	// A V2 is two values.
	V2[A, B any] struct {
		a A
		b B
	}
	// A V3 is three values.
	V3[A, B, C any] struct {
		a A
		b B
		c C
	}
	// A V4 is four values.
	V4[A, B, C, D any] struct {
		a A
		b B
		c C
		d D
	}
)

// Push1 returns one value.
func Push1[A any](a A) V1[A] { return V1[A]{a} }

// Push2 returns two values.
func Push2[A, B any](a A, b B) V2[A, B] { return V2[A, B]{a, b} }

// Push3 returns three values.
func Push3[A, B, C any](a A, b B, c C) V3[A, B, C] { return V3[A, B, C]{a, b, c} }

// Push4 returns four values.
func Push4[A, B, C, D any](a A, b B, c C, d D) V4[A, B, C, D] { return V4[A, B, C, D]{a, b, c, d} }

// Pop returns the value.
func (v V1[A]) Pop() A { return v.a }

// Pop returns the values.
func (v V2[A, B]) Pop() (A, B) { return v.a, v.b }

// Pop returns the values.
func (v V3[A, B, C]) Pop() (A, B, C) { return v.a, v.b, v.c }

// Pop returns the values.
func (v V4[A, B, C, D]) Pop() (A, B, C, D) { return v.a, v.b, v.c, v.d }

func (v V0) values() yodel.Values             { return yodel.Values{} }
func (v V1[A]) values() yodel.Values          { return yodel.Values{v.a} }
func (v V2[A, B]) values() yodel.Values       { return yodel.Values{v.a, v.b} }
func (v V3[A, B, C]) values() yodel.Values    { return yodel.Values{v.a, v.b, v.c} }
func (v V4[A, B, C, D]) values() yodel.Values { return yodel.Values{v.a, v.b, v.c, v.d} }

// pointersTo returns pointers to the values of v, a pointer to a Pushed.
func pointersTo(v any) yodel.Values { return v.(interface{ pointers() yodel.Values }).pointers() } //nolint:forcetypeassert // all have it

func (v *V0) pointers() yodel.Values             { return yodel.Values{} }
func (v *V1[A]) pointers() yodel.Values          { return yodel.Values{&v.a} }
func (v *V2[A, B]) pointers() yodel.Values       { return yodel.Values{&v.a, &v.b} }
func (v *V3[A, B, C]) pointers() yodel.Values    { return yodel.Values{&v.a, &v.b, &v.c} }
func (v *V4[A, B, C, D]) pointers() yodel.Values { return yodel.Values{&v.a, &v.b, &v.c, &v.d} }

// A Method is the name of a method together with the values that it takes and returns.
type Method[In, Out Pushed] string

// Call calls the method and waits for the values that it returns.
func (m Method[In, Out]) Call(ctx context.Context, c yodel.Caller, in In) (Out, error) {
	return m.Do(ctx, c, &yodel.Call{}, in)
}

// Do is Call with all options of a Call, as in yodel.Method.Do.
func (m Method[In, Out]) Do(ctx context.Context, c yodel.Caller, call *yodel.Call, in In) (Out, error) {
	var out, none Out
	m.fill(call, in, &out)
	if err := orNil(c).Do(ctx, call); err != nil {
		return none, err
	}
	return out, nil
}

// orNil returns c, or a nil client, whose calls fail, in place of nil.
func orNil(c yodel.Caller) yodel.Caller {
	if c == nil {
		return (*yodel.Client)(nil)
	}
	return c
}

func (m Method[In, Out]) fill(call *yodel.Call, in In, out *Out) {
	call.Method, call.Args, call.Reply = string(m), in.values(), pointersTo(out)
}

// Go calls the method without waiting for the values that it returns.
func (m Method[In, Out]) Go(ctx context.Context, c yodel.Caller, in In) *Future[Out] {
	f := &Future[Out]{ended: make(chan struct{})}
	m.Then(ctx, c, in, func(out Out, err error) {
		f.out, f.err = out, err
		close(f.ended)
	})
	return f
}

// Then is Go with a callback, which runs where the callback of Client.Go runs and should be short.
// Each call has a callback of its own. Callbacks of one client may run concurrently.
func (m Method[In, Out]) Then(ctx context.Context, c yodel.Caller, in In, done func(Out, error)) {
	var t struct {
		call yodel.Call
		out  Out
	}
	m.fill(&t.call, in, &t.out)
	ended := func(err error) {
		if err != nil {
			t.out = *new(Out)
		}
		done(t.out, err)
	}
	c = orNil(c)
	if client, ok := c.(interface {
		Go(ctx context.Context, call *yodel.Call, done func(error))
	}); ok {
		client.Go(ctx, &t.call, ended)
		return
	}
	go func() { ended(c.Do(ctx, &t.call)) }()
}

// A Future is a call that Method.Go has begun. Its methods may be called concurrently.
type Future[Out Pushed] struct {
	out   Out
	err   error
	ended chan struct{}
}

// Done returns a channel that is closed when the call has ended.
func (f *Future[Out]) Done() <-chan struct{} { return f.ended }

// Get waits until the call has ended, and returns its values or its error.
func (f *Future[Out]) Get() (Out, error) {
	<-f.ended
	return f.out, f.err
}

// Handle registers f as the handler of the method. It panics if the name is taken, if f is nil, or
// if one of the types is a pointer.
func (m Method[In, Out]) Handle(s *yodel.Server, f func(ctx context.Context, in In) (Out, error)) {
	if f == nil {
		panic(fmt.Sprintf("stack: handle %s: the handler is nil", string(m)))
	}
	in := append([]reflect.Type{reflect.TypeFor[context.Context]()}, m.types(pointersTo(new(In)))...)
	out := append(m.types(pointersTo(new(Out))), reflect.TypeFor[error]())
	function := reflect.MakeFunc(reflect.FuncOf(in, out, false), func(args []reflect.Value) []reflect.Value {
		var pushed In
		for i, to := range pointersTo(&pushed) {
			reflect.ValueOf(to).Elem().Set(args[i+1])
		}
		ctx, _ := reflect.TypeAssert[context.Context](args[0])
		popped, err := f(ctx, pushed)
		results := make([]reflect.Value, 0, len(out))
		for _, from := range pointersTo(&popped) {
			results = append(results, reflect.ValueOf(from).Elem())
		}
		return append(results, reflect.ValueOf(&err).Elem())
	})
	if err := s.Handle(string(m), function.Interface()); err != nil {
		panic(err)
	}
}

// types returns the types to which pointers point.
func (m Method[In, Out]) types(pointers yodel.Values) []reflect.Type {
	types := make([]reflect.Type, len(pointers))
	for i, p := range pointers {
		if types[i] = reflect.TypeOf(p).Elem(); types[i].Kind() == reflect.Pointer {
			panic(fmt.Sprintf("stack: handle %s: value %d is the pointer %v: push the value, or use yodel.Method for one message", string(m), i+1, types[i]))
		}
	}
	return types
}
