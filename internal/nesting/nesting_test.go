// SPDX-License-Identifier: Apache-2.0

package nesting_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// A node has every kind of part through which a value can contain itself.
type node struct {
	Next  *node
	All   []*node
	Of    []node
	Pair  [2]*node
	Names map[string]*node
	Any   any
	Keys  map[any]bool
}

type (
	slice   []slice
	mapping map[string]mapping
	pointer *pointer
	closed  struct {
		ID    int
		Tags  map[string][]string
		At    time.Time
		Inner struct{ A, B *string }
	}
	hidden struct {
		ID     int
		parent *hidden
	}
	own    struct{ Parent *own }
	byAddr struct {
		Of     []byAddr
		Parent *byAddr
	}
)

func (own) MarshalJSON() ([]byte, error)     { return nil, nil }
func (*byAddr) MarshalJSON() ([]byte, error) { return nil, nil }

func newRules() *nesting.Rules {
	return &nesting.Rules{Methods: []reflect.Type{reflect.TypeFor[json.Marshaler]()}, Addressed: true}
}

// list returns n nodes, each in the one before.
func list(n int) *node {
	var head *node
	for range n {
		head = &node{Next: head}
	}
	return head
}

func TestCheckFindsValuesThatContainThemselves(t *testing.T) {
	made := func(set func(n *node)) *node {
		n := new(node)
		set(n)
		return n
	}
	in := make(slice, 1)
	in[0] = in
	m := mapping{}
	m["self"] = m
	var p pointer
	p = &p
	var x any
	x = &x
	values := map[string]any{
		"a pointer":      made(func(n *node) { n.Next = n }),
		"a slice":        made(func(n *node) { n.All = []*node{nil, n} }),
		"structs":        made(func(n *node) { n.Of = make([]node, 1); n.Of[0].Of = n.Of }),
		"an array":       made(func(n *node) { n.Pair[1] = n }),
		"a map":          made(func(n *node) { n.Names = map[string]*node{"a": n} }),
		"an interface":   made(func(n *node) { n.Any = n }),
		"a key":          made(func(n *node) { n.Keys = map[any]bool{n: true} }),
		"a value":        *made(func(n *node) { n.Next = n }),
		"a slice alone":  in,
		"a map alone":    m,
		"a pointer to p": &p,
		"an any":         &x,
		"an any in it":   map[string]any{"a": []any{x}},
		"a list":         list(nesting.Max + 1),
	}
	rules := newRules()
	for name, v := range values {
		for range 2 { // what is learned of a type changes nothing
			if err := rules.Check(v); err == nil {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}

func TestCheckPassesWhatEnds(t *testing.T) {
	shared := list(3)
	flat := &closed{ID: 1}
	cyclic := &hidden{ID: 1}
	cyclic.parent = cyclic
	self := &own{}
	self.Parent = self
	addressed := &byAddr{Of: make([]byAddr, 1)}
	addressed.Of[0].Parent = addressed
	rules := newRules()
	for _, v := range []any{
		nil, 1, "text", flat, *flat, (*node)(nil), list(nesting.Max - 1), cyclic, self, addressed,
		&node{Next: shared, All: []*node{shared, shared}, Any: shared, Pair: [2]*node{shared, nil}},
		map[string]any{"a": 1, "b": []any{"c", nil, map[string]any{"d": 1.5}}},
	} {
		for range 2 {
			if err := rules.Check(v); err != nil {
				t.Errorf("%T: %v", v, err)
			}
		}
	}
}

// A value that cannot be addressed has no use of the methods of a pointer to it.
func TestCheckKnowsWhoseMethodsEncode(t *testing.T) {
	v := byAddr{}
	v.Parent = &v
	if err := newRules().Check(struct{ Of any }{map[string]any{"a": []byAddr{v}}}); err != nil {
		t.Errorf("elements of a slice can be addressed: %v", err)
	}
	deep := byAddr{Of: make([]byAddr, 1)}
	deep.Of[0] = deep
	rules := newRules()
	rules.Addressed = false
	if err := rules.Check(deep); err != nil {
		t.Errorf("the methods of the pointer encode it: %v", err)
	}
}

func TestErrorsNameThePath(t *testing.T) {
	n := &node{}
	n.All = []*node{nil, {Next: n}}
	err := newRules().Check(n)
	const want = "nesting_test.node.All[1].Next.All…: nested more than 1000 levels, or it contains itself"
	if fmt.Sprint(err) != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A value whose parts are shared grows when it is encoded: 60 nodes would be 2⁶⁰.
func TestCheckBoundsTheParts(t *testing.T) {
	shared := &node{}
	for range 60 {
		shared = &node{Pair: [2]*node{shared, shared}}
	}
	rules := newRules()
	rules.MaxParts = 10_000
	if err := rules.Check(shared); err == nil || !strings.Contains(err.Error(), "more than 10000 parts") {
		t.Errorf("got %v", err)
	}
}

var errBad = errors.New("bad")

type (
	bad    struct{ ID int }
	holder struct {
		In   *holder
		Bad  *bad
		Many []bad
	}
)

func TestTypesThatCannotBeEncodedAreFoundFirst(t *testing.T) {
	rules := newRules()
	rules.Struct = func(t reflect.Type) error {
		if t == reflect.TypeFor[bad]() {
			return errBad
		}
		return nil
	}
	for _, v := range []any{bad{}, &bad{}, &holder{}, []holder(nil), map[string]any{"a": &bad{}}, []any{[]holder{}}} {
		if err := rules.Check(v); !errors.Is(err, errBad) {
			t.Errorf("%T: %v", v, err)
		}
	}
	if err := rules.CheckType(reflect.TypeFor[[]*holder]()); !errors.Is(err, errBad) {
		t.Errorf("CheckType: %v", err)
	}
	if err := rules.CheckType(reflect.TypeFor[*node]()); err != nil {
		t.Errorf("CheckType of a node: %v", err)
	}
	if err := rules.CheckType(reflect.TypeFor[pointer]()); !errors.Is(err, nesting.ErrPointers) {
		t.Errorf("CheckType of a pointer to itself: %v", err)
	}
}

func TestFlatForgetsButNeverInvents(t *testing.T) {
	var f nesting.Flat
	values := []any{1, "a", &closed{}, closed{}, 1.5, struct{}{}, []int{}, map[int]int{}}
	for i, v := range values {
		f.Add(v)
		for _, later := range values[i+1:] {
			if f.Has(later) {
				t.Errorf("%T was not added", later)
			}
		}
	}
	if !f.Has(2) {
		t.Error("the first type is forgotten")
	}
}

func BenchmarkCheck(b *testing.B) {
	rules := newRules()
	tree := &node{}
	for range 10 {
		tree.All = append(tree.All, &node{Of: make([]node, 10)})
	}
	values := map[string]any{"flat": &closed{}, "tree of 111": tree, "any": map[string]any{"a": 1, "b": []any{"c", 1, 2, 3}, "d": "e"}}
	for name, v := range values {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := rules.Check(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
