// SPDX-License-Identifier: Apache-2.0

package reflectcall_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A list is the type of positional values.
type list []any

type message struct{ N int }

// A stream collects messages in a test.
type stream struct{ sent []int }

// send and receive are parameters that belong to a stream.
type (
	send    func(n int)
	receive func() int
)

func param(t reflect.Type) (reflectcall.StreamParam[*stream], bool) {
	switch t {
	case reflect.TypeFor[send]():
		return reflectcall.StreamParam[*stream]{Sends: true, Message: reflect.TypeFor[int](), On: func(s *stream) reflect.Value {
			return reflect.ValueOf(send(func(n int) { s.sent = append(s.sent, n) }))
		}}, true
	case reflect.TypeFor[receive]():
		return reflectcall.StreamParam[*stream]{Message: reflect.TypeFor[string](), On: func(*stream) reflect.Value {
			return reflect.ValueOf(receive(func() int { return 42 }))
		}}, true
	case reflect.TypeFor[*send]():
		return reflectcall.StreamParam[*stream]{}, true
	}
	return reflectcall.StreamParam[*stream]{}, false
}

func of(f any, first ...reflect.Value) (*reflectcall.Func[*stream], error) {
	return reflectcall.Of[list](reflect.ValueOf(f), param, first...)
}

var errTest = errors.New("it fails")

type receiver struct{ plus int }

func (r *receiver) Add(_ context.Context, in *message) (*message, error) {
	return &message{in.N + r.plus}, nil
}

// fill sets the arguments that NewArgs has made, to 7 and 8.
func fill(args any) any {
	switch args := args.(type) {
	case *message:
		args.N = 7
	case list:
		for i, v := range args {
			*v.(*int) = 7 + i
		}
	}
	return args
}

func TestCallPassesArgumentsAndResults(t *testing.T) {
	tests := []struct {
		name       string
		f          any
		positional bool
		want       string // the reply and the error
	}{
		{"plain", func(_ context.Context, in *message) (*message, error) { return &message{in.N * 2}, nil }, false, "&{14} <nil>"},
		{"no context", func(in *message) (*message, error) { return &message{in.N * 2}, errTest }, false, "&{14} it fails"},
		{"nil reply", func(*message) (*message, error) { return nil, nil }, false, "&{0} no reply"},
		{"nil reply and an error", func(*message) (*message, error) { return nil, errTest }, false, "&{0} it fails"},
		{"nil reply without content", func(*message) (*struct{}, error) { return nil, nil }, false, "&{} <nil>"},
		{"reply argument", func(in message, out *message) error { out.N = in.N + 1; return nil }, false, "&{8} <nil>"},
		{"reply argument, pointers", func(_ context.Context, in, out *message) error { out.N = in.N; return errTest }, false, "&{7} it fails"},
		{"map as reply argument", func(in message, out *map[int]int) error { (*out)[in.N] = 1; return nil }, false, "&map[7:1] <nil>"},
		{"slice as reply argument", func(_ message, out *[]int) error {
			if *out == nil {
				return errTest
			}
			return nil
		}, false, "&[] <nil>"},
		{"values", func(_ context.Context, a, b int) (int, int, error) { return a + b, a * b, nil }, true, "[15 56] <nil>"},
		{"values without an error", func(a int) int { return a }, true, "[7] <nil>"},
		{"no values", func() error { return errTest }, true, "[] it fails"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, err := of(test.f)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second call uses the frame of the first one
				reply, err := f.Call(t.Context(), fill(f.NewArgs()))
				if got := fmt.Sprint(reply, " ", err); strings.ReplaceAll(got, "  ", " ") != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			}
			if f.Positional != test.positional || f.Kind != wire.Unary {
				t.Errorf("positional %v, kind %d", f.Positional, f.Kind)
			}
		})
	}
}

func TestReceiverIsTheFirstParameter(t *testing.T) {
	v := reflect.ValueOf(&receiver{plus: 3})
	f, err := of(v.Type().Method(0).Func.Interface(), v)
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := f.Call(t.Context(), fill(f.NewArgs())); err != nil || *reply.(*message) != (message{10}) {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestStreamsAreParameters(t *testing.T) {
	tests := []struct {
		f       any
		kind    uint64
		in, out string
		want    string // the reply, the error and what was sent
	}{
		{func(_ context.Context, in *message, to send) error { to(in.N); return errTest }, wire.Feed, "message", "int", "<nil> it fails [7]"},
		{func(_ context.Context, from receive) (*message, error) { return &message{from()}, nil }, wire.Upload, "string", "message", "&{42} <nil> []"},
		{func(context.Context, receive) (*message, error) { return nil, nil }, wire.Upload, "string", "message", "&{0} no reply []"},
		{func(_ context.Context, from receive, to send) error { to(from()); return nil }, wire.Duplex, "string", "int", "<nil> <nil> [42]"},
	}
	for _, test := range tests {
		f, err := of(test.f)
		if err != nil {
			t.Errorf("%T: %v", test.f, err)
			continue
		}
		if in, out := f.In[0].Name(), f.Out[0].Name(); f.Kind != test.kind || in != test.in || out != test.out {
			t.Errorf("%T: kind %d of %s and %s", test.f, f.Kind, in, out)
		}
		var args any
		if f.NewArgs != nil {
			args = fill(f.NewArgs())
		}
		s := new(stream)
		reply, err := f.Stream(t.Context(), s, args)
		if got := fmt.Sprintf("%v %v %v", reply, err, s.sent); got != test.want {
			t.Errorf("%T: got %s, want %s", test.f, got, test.want)
		}
	}
}

func TestOtherShapesAreRefused(t *testing.T) {
	type hidden struct{ _ int }
	tests := []struct {
		f    any
		want string
	}{
		{func(...int) error { return nil }, "variable number"},
		{func(message, message) error { return nil }, "its second parameter is reflectcall_test.message"},
		{func(chan int) error { return nil }, "a chan int cannot be sent"},
		{func(error) error { return nil }, "an interface (error) cannot be decoded into"},
		{func(*hidden) error { return nil }, "no exported fields"},
		{func(*message, send) error { return nil }, "it takes a stream, but"},
		{func(context.Context, *message, *send) error { return nil }, "it takes a stream, but"},
		{func(context.Context, message, send) error { return nil }, "it takes a stream, but"},
		{func(context.Context, send, receive) error { return nil }, "it takes a stream, but"},
		{func(context.Context, receive) error { return nil }, "it takes a stream, but"},
	}
	for _, test := range tests {
		if _, err := of(test.f); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %v, want %q", test.f, err, test.want)
		}
	}
}

// A frame holds no value of the user after a call, and one that a panic has left is not used again.
func TestPanicLosesTheFrame(t *testing.T) {
	f, err := of(func(a, b int) int {
		if a > b {
			panic("no")
		}
		return b
	})
	if err != nil {
		t.Fatal(err)
	}
	call := func(a, b int) (reply any) {
		defer func() {
			if recover() != nil {
				reply = "panic"
			}
		}()
		reply, _ = f.Call(t.Context(), list{&a, &b})
		return reply
	}
	if got := fmt.Sprint(call(1, 2), call(2, 1), call(3, 4)); got != "[2]panic[4]" {
		t.Errorf("got %s", got)
	}
}

func TestUnmeant(t *testing.T) {
	tests := []struct {
		value any
		want  string
	}{
		{new(receiver), "Add: "},
		{new(strings.Builder), "String: it belongs to fmt.Stringer"},
		{new(struct{ *strings.Builder }), "Len: it is promoted from strings.Builder"},
		{silent{}, "Quiet: it has neither a context, a result nor an error"},
	}
	for _, test := range tests {
		typ := reflect.TypeOf(test.value)
		name, _, _ := strings.Cut(test.want, ":")
		m, ok := typ.MethodByName(name)
		if !ok {
			t.Fatalf("%v has no method %s", typ, name)
		}
		if got := name + ": " + reflectcall.Unmeant(typ, m); got != test.want {
			t.Errorf("%v: got %q, want %q", typ, got, test.want)
		}
	}
}

type silent struct{}

func (silent) Quiet() {}
