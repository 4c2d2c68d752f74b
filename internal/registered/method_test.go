// SPDX-License-Identifier: Apache-2.0

package registered_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/wire"
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

func TestAMethodFindsTheCodecsThatDoNotCarryItsTypes(t *testing.T) {
	number, word := reflect.TypeFor[int](), reflect.TypeFor[string]()
	codecs := map[string]codec{"json": {}, "words": {number}, "numbers": {word}}
	m := &registered.Method{Args: []reflect.Type{number}, Results: []reflect.Type{number}}
	if err := registered.Carry(m, codecs, "all"); err != nil || len(m.Uncarried) != 1 || m.Uncarried["words"] == nil {
		t.Errorf("got %v, and not carried by %v", err, m.Uncarried)
	}
	err := registered.Carry(m, map[string]codec{"json": {number}, "words": {number}}, "json, words")
	if err == nil || !strings.Contains(err.Error(), "none of the codecs json, words carries its types: it does not carry int") {
		t.Errorf("got %v", err)
	}
	m.Args = []reflect.Type{reflect.TypeFor[func()]()}
	if err := registered.Carry(m, codecs, "all"); err == nil {
		t.Error("a function can be sent")
	}
}

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

func TestAMethodCallsAFunction(t *testing.T) {
	none := func(reflect.Type) (reflectcall.StreamParam[*pipe.Pipe], bool) {
		return reflectcall.StreamParam[*pipe.Pipe]{}, false
	}
	fn, err := reflectcall.Of[[]any](reflect.ValueOf(func(in *int) (*int, error) { return new(2 * *in), nil }), none)
	if err != nil {
		t.Fatal(err)
	}
	m := new(registered.Method)
	m.Use(fn)
	in := m.NewArgs()
	*in.(*int) = 21 // it panics if the test fails
	out, err := m.Call(context.Background(), in)
	if n, ok := out.(*int); err != nil || !ok || *n != 42 || m.Kind != wire.Unary || m.Positional {
		t.Errorf("got %v, %v of %+v", out, err, m.Signature())
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
	if got := m.Traits(); got != 0 {
		t.Errorf("got %b", got)
	}
	m.Idempotent.Store(true)
	if got := m.Traits(); got != registered.TraitIdempotent {
		t.Errorf("idempotent: got %b", got)
	}
	m.Nests.Store(true)
	if got := m.Traits(); got != registered.TraitIdempotent|registered.TraitNests {
		t.Errorf("and it nests: got %b", got)
	}
}
