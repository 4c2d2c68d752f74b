// SPDX-License-Identifier: Apache-2.0

package registered_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
)

// A codec carries no message of one type.
type codec struct{ not reflect.Type }

// CheckType is asked by package carries.
func (c codec) CheckType(t reflect.Type) error {
	if t == c.not {
		return errors.New("it does not carry " + t.String())
	}
	return nil
}

type functions = registered.Functions[[]any, codec]

// functionsOf returns the functions of a server with these codecs.
func functionsOf(s *registered.Methods, codecs map[string]codec) functions {
	return functions{In: s, Codecs: codecs, Param: func(reflect.Type) (reflectcall.StreamParam[*pipe.Pipe], bool) {
		return reflectcall.StreamParam[*pipe.Pipe]{}, false
	}}
}

// wantFault compares the text of the fault of a method that cannot be registered.
func wantFault(t *testing.T, err error, id, want string) {
	t.Helper()
	f, ok := err.(*fault.Fault) // it is returned bare
	if !ok || f.Error() != want || f.ID != id || f.Misfit {
		t.Errorf("got %v, want %s: %s", err, id, want)
	}
}

func TestAMethodFindsTheCodecsThatDoNotCarryItsTypes(t *testing.T) {
	number, word := reflect.TypeFor[int](), reflect.TypeFor[string]()
	s := of(t)
	s.Codecs = "json, words"
	f := functionsOf(s, map[string]codec{"json": {}, "words": {number}, "numbers": {word}})
	m := &method{Args: []reflect.Type{number}, Results: []reflect.Type{number}}
	if err := f.Typed("A", false, m); err != nil || len(m.Uncarried) != 1 || m.Uncarried["words"] == nil {
		t.Errorf("got %v, and not carried by %v", err, m.Uncarried)
	}
	err := functionsOf(s, map[string]codec{"json": {number}, "words": {number}}).Typed("B", false, m)
	wantFault(t, err, "YDL4001", "register B: none of the codecs json, words carries its types: it does not carry int")
	m.Args = []reflect.Type{reflect.TypeFor[func()]()}
	if err := f.Typed("C", false, m); err == nil {
		t.Error("a function can be sent")
	}
	wantFault(t, f.Typed("D", true, nil), "YDL4001", "register D: the function is nil")
}

func TestAFunctionBecomesAMethod(t *testing.T) {
	s := of(t)
	f := functionsOf(s, map[string]codec{"json": {reflect.TypeFor[string]()}})
	if err := f.Handle("Twice", func(in *int) (*int, error) { return new(2 * *in), nil }); err != nil {
		t.Fatal(err)
	}
	m := s.Get("Twice")
	in := m.NewArgs()
	*in.(*int) = 21 // it panics if the test fails
	out, err := m.Call(context.Background(), in)
	if n, ok := out.(*int); err != nil || !ok || *n != 42 || m.Kind != 0 || m.Positional {
		t.Errorf("got %v, %v of %+v", out, err, m.Signature())
	}
	for _, test := range []struct {
		function any
		want     string
	}{
		{7, "handle Twice: int is not a function"},
		{(func(*int) (*int, error))(nil), "handle Twice: the func(*int) (*int, error) is nil"},
		{func(*int) (*int, error) { return nil, nil }, "register Twice: the name is taken"},
		{func(*string) (*string, error) { return nil, nil }, "handle Twice: none of the codecs  carries its types: it does not carry string"},
	} {
		wantFault(t, f.Handle("Twice", test.function), "YDL4001", test.want)
	}
	if err := f.Handle("Thrice", func(context.Context, func()) error { return nil }); err == nil || !strings.HasPrefix(err.Error(), "handle Thrice: ") {
		t.Errorf("got %v", err)
	}
}

// Arith has one method that is meant for callers.
type Arith struct{ Lockable }

func (Arith) Mul(in *int) (*int, error) { return in, nil }
func (Arith) Close() error              { return nil }

// Lockable has a method without a request.
type Lockable struct{}

func (Lockable) Lock() {}

// Broken has a method whose request cannot be sent.
type Broken struct{}

func (Broken) Mul(context.Context, func()) error { return nil }

func TestTheMethodsOfAValueBecomeAService(t *testing.T) {
	s := of(t)
	changes := 0
	s.Changed = func() { changes++ }
	f := functionsOf(s, map[string]codec{"json": {}})
	name, err := f.ServiceOf(new(new(Arith{})))
	if err != nil || name != "Arith" {
		t.Errorf("got %q, %v", name, err)
	}
	line, err := f.Service(name, Arith{}, nil)
	if said := fmt.Sprint(line...); err != nil || s.Get("Arith.Mul") == nil || !strings.HasPrefix(said, "methodsArith.Mulskipped") || !strings.Contains(said, "Close") {
		t.Errorf("got %q, %v", said, err)
	}
	if line, err = f.Service("shop/", Arith{}, []string{"Mul"}); err != nil || s.Get("shop/Mul") == nil || fmt.Sprint(line...) != "methodsshop/Mul" {
		t.Errorf("got %v, %v", line, err)
	}
	if changes != 2 {
		t.Errorf("%d changes were reported, want 2", changes)
	}
	_, err = f.Service("Arith", Arith{}, []string{"Mul"})
	wantFault(t, err, "YDL4001", "register Arith.Mul: the name is taken")
	_, err = f.Service("Arith", nil, nil)
	wantFault(t, err, "YDL4001", "register Arith: nil has no methods")
	_, err = f.ServiceOf(nil)
	wantFault(t, err, "YDL4001", "register: nil has no methods")
	_, err = f.ServiceOf(&struct{ Arith }{})
	wantFault(t, err, "YDL4001", "register *struct { registered_test.Arith }: it has no type name; use RegisterName")
	if _, err = f.Service("Broken", Broken{}, nil); err == nil || !strings.HasPrefix(err.Error(), "register registered_test.Broken as Broken: ") {
		t.Errorf("got %v", err)
	}
	if changes != 2 {
		t.Errorf("%d changes were reported, want 2", changes)
	}
}

func TestAnOwnerMayRefuseNames(t *testing.T) {
	s := of(t)
	why := errors.New("it is not ours")
	s.View = reflect.TypeFor[string]()
	s.Accept = func(name string) error {
		if s.Get("A") != nil {
			t.Error("a method can be called before all names were accepted")
		}
		if name == "B" {
			return why
		}
		return nil
	}
	word := []reflect.Type{s.View}
	if err := s.Publish(map[string]*method{"A": {}, "B": {}}); !errors.Is(err, why) || err.Error() != "register B: it is not ours" {
		t.Errorf("got %v", err)
	}
	m := &method{Args: word, Results: word}
	if err := s.Publish(map[string]*method{"A": m}); err != nil || s.Get("A") != m || !m.Views {
		t.Errorf("the name is not free after another one was refused: %v", err)
	}
	s.Accept = nil
	other := &method{Args: word, Results: word, Positional: true}
	if err := s.Publish(map[string]*method{"B": other}); err != nil || other.Views {
		t.Errorf("it takes a view: %v, %v", other.Views, err)
	}
}

func TestMethodsGetAndLoseNames(t *testing.T) {
	s := of(t, "Arith.Mul", "Arith.Add")
	changes := 0
	s.Changed = func() { changes++ }
	if err := s.Alias("Arith.Mul", []string{"Times", "Product"}); err != nil || s.Get("Product") != s.Get("Arith.Mul") || changes != 2 {
		t.Errorf("got %v after %d changes", err, changes)
	}
	wantFault(t, s.Alias("Arith.Mil", []string{"X"}), "YDL2002", `Arith.Mil: service "Arith" has no method "Mil"; did you mean "Arith.Mul"?`)
	wantFault(t, s.Alias("Arith.Mul", []string{"Arith.Add"}), "YDL4001", "register Arith.Add: the name is taken")
	s.Accept = func(string) error { return s.Unregister([]string{"Arith.Mul"}) }
	wantFault(t, s.Alias("Arith.Mul", []string{"X"}), "YDL2002", `Arith.Mul: service "Arith" has no method "Mul"`)
	if m := s.Get("Times"); m == nil || !m.Unnamed.Load() || s.Get("Arith.Mul") != nil || changes != 3 {
		t.Errorf("the name is still there, or its method does not know, after %d changes", changes)
	}
	wantFault(t, s.Unregister([]string{"Times", "Tims"}), "YDL2002", `Tims: this server has no such method; did you mean "Times"?`)
	if s.Get("Times") == nil || changes != 3 {
		t.Error("a name was removed although another one is unknown")
	}
}

func TestMethodsAreMarkedUnderAnyOfTheirNames(t *testing.T) {
	s := of(t, "Arith.Mul")
	version := s.Version()
	s.Mark([]string{"Arith/Mul"}, func(m *method) { m.ReadOnly.Store(true) })
	if !s.Get("Arith.Mul").ReadOnly.Load() || s.Version() == version {
		t.Error("the method is not marked, or the version has not changed")
	}
	defer func() {
		if got, want := fmt.Sprint(recover()), `yodel: mark: Arith.Mil: service "Arith" has no method "Mil"; did you mean "Arith.Mul"?`; got != want {
			t.Errorf("it panics with %s, want %s", got, want)
		}
	}()
	s.Mark([]string{"Arith.Mil"}, func(*method) {})
}
