// SPDX-License-Identifier: Apache-2.0

package registered_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestAMethodDescribesItself(t *testing.T) {
	number, word := []reflect.Type{reflect.TypeFor[int]()}, []reflect.Type{reflect.TypeFor[string]()}
	for _, test := range []struct {
		m                    *registered.Method
		signature            string
		takesOne, takesIntOf bool
	}{
		{&registered.Method{Args: number, Results: word}, "int to string: give one message, not yodel.Values", true, true},
		{&registered.Method{Positional: true, Args: number, Results: word}, "(int) to (string): give yodel.Values", true, false},
		{&registered.Method{Kind: wire.Feed, Args: number, Results: word}, "a feed of int to string", true, false},
		{&registered.Method{Kind: wire.Duplex, Args: number, Results: word}, "a duplex of int to string", false, false},
	} {
		m := test.m
		if got := m.Signature(); got != test.signature || m.TakesOne() != test.takesOne || m.Takes(number[0]) != test.takesIntOf || m.Takes(word[0]) {
			t.Errorf("got %q, takes one message %v, takes an int %v; want %+v", got, m.TakesOne(), m.Takes(number[0]), test)
		}
	}
}

func TestAMethodTakesItsTypesOrNone(t *testing.T) {
	number, word := reflect.TypeFor[int](), reflect.TypeFor[string]()
	if m := new(registered.Method).Typed([]reflect.Type{number, word}); m.Types() != "int to string" {
		t.Errorf("got %s", m.Types())
	}
	if m := new(registered.Method).Typed([]reflect.Type{number}); m.Args != nil || m.Results != nil {
		t.Errorf("got %s", m.Types())
	}
}

func TestAUnaryFunctionIsAMethod(t *testing.T) {
	m := registered.Unary(func(_ context.Context, in *int) (*int, error) {
		if *in == 0 {
			return nil, nil
		}
		return new(2 * *in), nil
	})
	in := m.NewArgs()
	if _, err := m.Call(t.Context(), in); err != reflectcall.ErrNoReply { // it is returned bare
		t.Errorf("got %v", err)
	}
	*in.(*int) = 21 // it panics if the test fails
	if out, err := m.Call(t.Context(), in); err != nil || *out.(*int) != 42 || m.Types() != "int to int" {
		t.Errorf("got %v, %v of %s", out, err, m.Types())
	}
}

func TestHintsDecideWhereAMethodRuns(t *testing.T) {
	m := new(registered.Method)
	for _, short := range []bool{true, false, true} {
		if m.Hint(short); m.Inline() != short {
			t.Errorf("with the hint %v, it runs inline: %v", short, m.Inline())
		}
	}
}

func TestTraitsOfAMethod(t *testing.T) {
	m := new(registered.Method)
	says := func(want wire.Info) {
		t.Helper()
		if got := registered.Info(m.Traits()); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	says(wire.Info{Known: 1})
	m.Nests.Store(true)
	says(wire.Info{Known: 1, Nests: 1})
	m.Idempotent.Store(true)
	says(wire.Info{Known: 1, Idempotent: 1, Nests: 1})
	m.Nests.Store(false)
	says(wire.Info{Known: 1, Idempotent: 1})
}
