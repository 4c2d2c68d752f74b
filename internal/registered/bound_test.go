// SPDX-License-Identifier: Apache-2.0

package registered_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func json() string { return "json" }

func TestABoundNameFollowsItsMethod(t *testing.T) {
	s := of(t)
	b := &registered.Bound{In: s, Name: "Arith.Mul", Kind: wire.Unary}
	if b.Find() != nil || b.Last() != nil || b.Fits(nil) {
		t.Error("there is a method before it was registered")
	}
	first := register(t, s, "Arith.Mul")
	if b.Find() != first || b.Last() != first || b.Fits(first) || b.Check(first, json) != nil || !b.Fits(first) {
		t.Error("the method is not found, or does not fit")
	}
	if _, missing := s.Remove([]string{"Arith.Mul"}); missing != "" {
		t.Fatal(missing)
	}
	first.Unnamed.Store(true)
	if b.Find() != nil {
		t.Error("the method is found after it was removed")
	}
	second := register(t, s, "Arith.Mul")
	if b.Find() != second || b.Fits(second) {
		t.Error("the new method is not found, or fits before it was checked")
	}
}

func TestABoundNameSaysWhyItsCallsFail(t *testing.T) {
	s := of(t, "Arith.Mul")
	s.Codecs, s.Compressors = "json, raw", "none"
	number := []reflect.Type{reflect.TypeFor[int]()}
	unary := &registered.Method{Args: number, Results: number, Uncarried: map[string]error{"raw": errors.New("no int")}}
	feed := &registered.Method{Kind: wire.Feed, Args: number, Results: number}
	dynamic := &registered.Method{Dynamic: func() {}}
	for _, test := range []struct {
		b      *registered.Bound
		m      *registered.Method
		codec  string
		id     string
		text   string // "" if the call can succeed
		public string
		misfit bool
	}{
		{b: &registered.Bound{Name: "A.B"}, m: unary, codec: "json"},
		{b: &registered.Bound{Name: "A.B", Kind: registered.AnyKind}, m: feed, codec: "json"},
		{b: &registered.Bound{Name: "A.B", Positional: true}, m: dynamic, codec: "json"},
		{b: &registered.Bound{Name: "A.B", Wrong: registered.WrongTime}, m: unary, id: catalogue.ShuttingDown, text: "A.B: the server has been shut down"},
		{b: &registered.Bound{Name: "A.B", Wrong: registered.WrongCodec, Absent: "gob"}, id: catalogue.NoCodec, text: `A.B: this server does not have the codec "gob"; it has json, raw`},
		{b: &registered.Bound{Name: "A.B", Wrong: registered.WrongCompressor, Absent: "zstd"}, id: catalogue.NoCompressor, text: `A.B: this server does not have the compressor "zstd"; it has none`},
		{b: &registered.Bound{Name: strings.Repeat("a", 50), Wrong: registered.WrongName}, id: catalogue.NoService, text: strings.Repeat("a", 40) + "…: a method's name is UTF-8 of at most 255 bytes, without control characters"},
		{b: &registered.Bound{Name: "Arith.Mil"}, id: catalogue.NoMethod, text: `Arith.Mil: service "Arith" has no method "Mil"; did you mean "Arith.Mul"?`},
		{b: &registered.Bound{Name: "A.B"}, m: feed, id: catalogue.WrongKind, text: "A.B: the method is a feed of int to int; the call is for a unary method", public: "the method is a feed"},
		{b: &registered.Bound{Name: "A.B", Positional: true}, m: unary, id: catalogue.WrongShape, text: "A.B: the method is int to int: give one message, not yodel.Values", misfit: true},
		{b: &registered.Bound{Name: "A.B"}, m: unary, codec: "raw", id: catalogue.NoCodec, text: "A.B: the method is int to int: give one message, not yodel.Values: no int (codec raw)", misfit: true},
	} {
		b := test.b
		b.In = s
		f := b.Check(test.m, func() string { return test.codec })
		if test.text == "" {
			if f != nil || !b.Fits(test.m) {
				t.Errorf("%s: got %v", b.Name, f)
			}
			continue
		}
		if f == nil || f.Error() != test.text || f.ID != test.id || f.Public != test.public || f.Misfit != test.misfit || !f.Unprocessed || b.Fits(test.m) {
			t.Errorf("got %+v, want %s: %s", f, test.id, test.text)
		}
	}
}

// A name that was found to be similar is remembered, until its method is removed.
func TestABoundNameRemembersTheSimilarOne(t *testing.T) {
	s := of(t, "Arith.Mul")
	b := &registered.Bound{In: s, Name: "Arith.Mil"}
	says := func(what string) bool { return strings.Contains(b.Check(nil, json).Text, what) }
	if !says("Arith.Mul") {
		t.Error("the similar name is missing")
	}
	register(t, s, "Arith.Mill")
	if !says("Arith.Mul") {
		t.Error("the name was searched again")
	}
	if _, missing := s.Remove([]string{"Arith.Mul"}); missing != "" || !says("Arith.Mill") {
		t.Error("a name that was removed is suggested")
	}
}
