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

// announced returns the name that a caller has announced.
func announced(said *wire.Binding, late, codec, compressor bool) *registered.Bound {
	b := new(registered.Bound)
	b.SetCalled(nil, said, late, codec, compressor)
	return b
}

func TestANameIsAnnounced(t *testing.T) {
	s := of(t)
	b := new(registered.Bound)
	b.SetCalled(s, &wire.Binding{Name: []byte("A.B"), Kind: wire.Feed, Positional: 1}, false, true, false)
	if b.In != s || b.Name != "A.B" || b.Kind != wire.Feed || !b.Positional || b.Wrong != 0 {
		t.Errorf("got %+v", b)
	}
	if b = announced(&wire.Binding{Name: []byte("A\nB"), Compressor: []byte("gzip")}, false, true, true); b.Wrong != registered.WrongName || b.Name == "A\nB" {
		t.Errorf("got %d, %q", b.Wrong, b.Name)
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
		{b: announced(&wire.Binding{Name: []byte("A.B")}, true, false, false), m: unary, id: catalogue.ShuttingDown, text: "A.B: the server has been shut down"},
		{b: &registered.Bound{Name: "A.B", Wrong: registered.WrongCodec, Absent: "gob"}, id: catalogue.NoCodec, text: `A.B: this server does not have the codec "gob"; it has json, raw`},
		{b: announced(&wire.Binding{Name: []byte("A.B"), Codec: []byte("gob")}, false, false, false), id: catalogue.NoCodec, text: `A.B: this server does not have the codec "gob"; it has json, raw`},
		{b: announced(&wire.Binding{Name: []byte("A.B"), Compressor: []byte("zstd")}, false, true, false), id: catalogue.NoCompressor, text: `A.B: this server does not have the compressor "zstd"; it has none`},
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

func TestABoundNameSaysWhereItsMethodRuns(t *testing.T) {
	s := of(t)
	b := &registered.Bound{In: s, Name: "Arith.Mul"}
	b.Find()
	if inline, timed := b.Inline(); inline || !timed || b.Expects() != 0 {
		t.Error("a method that does not exist runs inline, is not timed, or has replies")
	}
	m := register(t, s, "Arith.Mul")
	b.Find()
	m.Hint(false)
	if inline, timed := b.Inline(); inline || !timed {
		t.Error("a long method runs inline, or is not timed")
	}
	m.Hint(true)
	if inline, _ := b.Inline(); !inline {
		t.Error("a short method does not run inline")
	}
	m.Replies.Add(40_000)
	if b.Expects() != m.Replies.Expected() || b.Expects() == 0 {
		t.Errorf("it expects %d bytes", b.Expects())
	}
}

func TestABoundNameMeansAMethod(t *testing.T) {
	s := of(t, "shop.Cart.Add")
	long := strings.Repeat("a", wire.MaxName+1)
	for asked, want := range map[string]struct {
		name  string
		found bool
		wrong registered.Wrong
	}{
		"shop.Cart.Add": {"shop.Cart.Add", true, 0},
		"shop.Cart/Add": {"shop.Cart.Add", true, 0},
		"shop.Cart/Buy": {"shop.Cart/Buy", false, 0},
		"shop\n":        {"shop ", false, registered.WrongName},
		long:            {"", false, registered.WrongName},
	} {
		var b registered.Bound
		found := b.SetMeant(s, asked)
		if want.name != "" && b.Name != want.name || len(b.Name) > wire.MaxName || found != want.found || b.Wrong != want.wrong || b.Kind != registered.AnyKind {
			t.Errorf("%.20q: got %.20q, %t, wrong %d, want %+v", asked, b.Name, found, b.Wrong, want)
		}
	}
}
