// SPDX-License-Identifier: Apache-2.0

package nesting_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

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
	text   string
	texts  []any
	own    struct{ Parent *own }
	byAddr struct {
		Of     []byAddr
		Parent *byAddr
	}
)

func (texts) String() string { return "" }

func (own) MarshalJSON() ([]byte, error)     { return nil, nil }
func (*byAddr) MarshalJSON() ([]byte, error) { return nil, nil }

func newRules() *nesting.Rules {
	return &nesting.Rules{Methods: []reflect.Type{reflect.TypeFor[json.Marshaler]()}}
}

// The lengths of texts are counted in maps of all types, of which some are read as other types.
func TestCheckCountsTextsInMaps(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	type flag [8]bool
	for _, v := range []any{
		map[string]string{"a": long}, map[text]text{text(long): "a"}, map[string]int{long: 1}, map[text]time.Duration{text(long): 1},
		map[string]any{"a": long}, map[string]any{long: nil}, map[string]any{"a": text(long)}, map[int]string{1: long}, map[string]flag{long: {}},
		map[string][]byte{"a": make([]byte, 1<<20)}, map[string]float32{long: 1}, map[any]int{long: 1}, map[string]fmt.Stringer{"a": texts{long}},
		[1]map[string]string{{"a": long}}, struct{ M map[string]any }{map[string]any{"a": struct{ M map[string]string }{map[string]string{"a": long}}}},
	} {
		err := newRules().Check(slices.Repeat([]any{v}, 65))
		if err == nil || !strings.Contains(err.Error(), "counting shared parts") {
			t.Errorf("65 times a %T with 1 MiB: %v", v, err)
		}
		if err := newRules().Check(slices.Repeat([]any{v}, 60)); err != nil {
			t.Errorf("60 times a %T with 1 MiB: %v", v, err)
		}
	}
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
		"one pointer":    struct{ P *node }{made(func(n *node) { n.Any = struct{ P *node }{n} })},
		"one in arrays":  made(func(n *node) { n.Any = [1]struct{ A [1]*node }{{[1]*node{n}}} }),
		"a map in any":   made(func(n *node) { n.Any = map[text]any{"a": n} }),
		"a map's parts":  made(func(n *node) { n.Any = map[int]any{1: struct{ A, B any }{1, n}} }),
		"with methods":   made(func(n *node) { n.Any = struct{ S fmt.Stringer }{texts{n}} }),
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

// A value whose pointer has the methods encodes itself, so its parts do not count.
func TestCheckKnowsWhoseMethodsEncode(t *testing.T) {
	v := byAddr{}
	v.Parent = &v
	if err := newRules().Check(struct{ Of any }{map[string]any{"a": []byAddr{v}}}); err != nil {
		t.Errorf("the methods of the pointer encode an element of a slice: %v", err)
	}
	deep := byAddr{Of: make([]byAddr, 1)}
	deep.Of[0] = deep
	if err := newRules().Check(deep); err != nil {
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

// A leaf has a part that other values share.
type leaf struct {
	A, B *leaf
	Data []byte
}

// Twos are types without an end, of which each has two pointers to the next.
type (
	two[T any]  struct{ A, B *T }
	twos[T any] = two[two[two[two[T]]]]
)

// sharedTwos returns a pointer to a value of t, whose two pointers are equal, at all levels.
func sharedTwos(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if t.Kind() == reflect.Struct {
		next := sharedTwos(t.Field(0).Type.Elem())
		v.Elem().Field(0).Set(next)
		v.Elem().Field(1).Set(next)
	}
	return v
}

// A value whose parts are shared grows when it is encoded: 60 nodes would be 2⁶⁰.
func TestCheckBoundsTheBytes(t *testing.T) {
	mib, text := make([]byte, 1<<20), strings.Repeat("x", 1<<20)
	nodes, leaves, anything := &node{Any: text}, &leaf{Data: mib}, []any{text}
	for range 60 {
		nodes = &node{Pair: [2]*node{nodes, nodes}}
		anything = []any{anything, anything}
	}
	for range 7 {
		leaves = &leaf{A: leaves, B: leaves}
	}
	array := new([1 << 20]int8)
	for name, v := range map[string]any{
		"nodes": nodes, "nodes over 1 MiB": leaves, "lists of anything": anything, "types of two pointers": sharedTwos(reflect.TypeFor[twos[twos[twos[twos[twos[[1 << 16]int8]]]]]]()).Interface(),
		"slices":   slices.Repeat([][][]int8{slices.Repeat([][]int8{make([]int8, 1<<16)}, 16)}, 65),
		"bytes":    slices.Repeat([][]byte{mib}, 65),
		"strings":  slices.Repeat([]string{text}, 65),
		"structs":  slices.Repeat([]struct{ Text string }{{text}}, 65),
		"arrays":   slices.Repeat([]*[1 << 20]int8{array}, 65),
		"any":      map[string]any{"list": slices.Repeat([]any{text}, 65)},
		"a map":    map[[65]int8][][]byte{{}: slices.Repeat([][]byte{mib}, 65)},
		"nothing":  [][]struct{}{make([]struct{}, math.MaxInt)},
		"elements": &[2][1 << 30][1 << 30]struct{}{},
	} {
		switch err := newRules().Check(v); {
		case name == "elements" && err != nil: // a type without paths is not walked
			t.Errorf("%s: %v", name, err)
		case name != "elements" && (err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes")):
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

// Check accepts a value whose message is small enough, however much memory the value takes.
func TestCheckLetsPass(t *testing.T) {
	mib := make([]byte, 1<<20)
	for name, v := range map[string]any{
		"bytes":         slices.Repeat([][]byte{mib}, 63),
		"numbers":       &struct{ Many []int64 }{make([]int64, 9<<20)},
		"flat":          make([]byte, 65<<20),
		"empty structs": slices.Repeat([]any{struct{ A, B, C, D, E, F, G, H *int }{}}, 1<<20),
	} {
		if err := newRules().Check(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A process whose clients or servers take larger messages also encodes larger values. The test
// leaves the larger bound to the tests after it, which do not need it.
func TestAllowBytes(t *testing.T) {
	if os.Getenv("NESTING_ALLOW") == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAllowBytes$")
		again.Env = append(os.Environ(), "NESTING_ALLOW=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	large := slices.Repeat([][]byte{make([]byte, 1<<20)}, 65)
	if err := newRules().Check(large); err == nil {
		t.Error("65 MiB are allowed")
	}
	for _, n := range []int{66 << 20, 1} {
		nesting.AllowBytes(n)
		if err := newRules().Check(large); err != nil {
			t.Errorf("after AllowBytes(%d): %v", n, err)
		}
	}
	nesting.AllowBytes(math.MaxInt)
	if err := errors.Join(newRules().Check(large), nesting.CheckBytes(math.MaxInt)); err != nil {
		t.Error(err)
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

func TestRecentForgetsButNeverInvents(t *testing.T) {
	var r nesting.Recent[string]
	values := []any{1, "a", &struct{ A int }{}, struct{ A int }{}, 1.5, struct{}{}, []int{}, map[int]int{}}
	for i, v := range values {
		r.Put(v, fmt.Sprintf("%T", v))
		for _, later := range values[i+1:] {
			if got := r.Get(later); got != nil {
				t.Errorf("%T was not put, and got %s", later, *got)
			}
		}
		if got := r.Get(v); got != nil && *got != fmt.Sprintf("%T", v) {
			t.Errorf("%T got %s", v, *got)
		}
	}
	if got := r.Get(2); got == nil || *got != "int" {
		t.Errorf("the first type is forgotten: %v", got)
	}
}

// Checks find values in each place, also if nothing else of the type is walked.
func TestCheckedValues(t *testing.T) {
	type (
		inner struct {
			N  int
			At time.Time
		}
		outer struct {
			Name string
			In   inner
			List []inner
			Ptr  *time.Time
			Any  any
			Pair [2]time.Time
			Keys map[time.Time]int
			Own  map[string]inner
		}
		both struct {
			A  inner
			In struct{ B inner }
		}
		flat struct { // with a check and what others may share
			At   time.Time
			Text string
			Next *inner
		}
	)
	bad := time.Unix(1, 0)
	in := inner{At: bad}
	rules := newRules()
	rules.Values = map[reflect.Type]func(unsafe.Pointer) error{reflect.TypeFor[time.Time](): func(v unsafe.Pointer) error {
		if (*time.Time)(v).Equal(bad) {
			return errBad
		}
		return nil
	}}
	for want, v := range map[string]any{
		"nesting_test.inner.At: bad": in, "nesting_test.both.In.B.At: bad": &both{In: struct{ B inner }{in}}, "nesting_test.both.A.At: bad": both{A: in},
		"nesting_test.outer.In.At: bad": &outer{In: in}, "nesting_test.outer.List[1].At: bad": outer{List: []inner{{}, in}}, "nesting_test.outer.Ptr: bad": &outer{Ptr: &bad},
		"nesting_test.outer.Any.At: bad": &outer{Any: in}, "nesting_test.outer.Any: bad": &outer{Any: &bad}, "nesting_test.outer.Pair[1]: bad": &outer{Pair: [2]time.Time{{}, bad}},
		"nesting_test.outer.Keys[a key]: bad": &outer{Keys: map[time.Time]int{bad: 1}}, "nesting_test.outer.Own[a value].At: bad": &outer{Own: map[string]inner{"a": in}},
		"time.Time: bad": bad, "[]time.Time[0]: bad": []time.Time{bad}, "nesting_test.flat.Next.At: bad": &flat{Next: &in}, "nesting_test.flat.At: bad": flat{At: bad},
		"map[string]interface {}[a value]: bad": map[string]any{"a": bad},
	} {
		if err := rules.Check(v); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, v := range []any{(*inner)(nil), (*both)(nil), inner{}, &both{}, &outer{}, &flat{Next: new(inner)}, new(time.Time), (*time.Time)(nil)} {
		if err := rules.Check(v); err != nil {
			t.Errorf("%T: %v", v, err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	rules := newRules()
	tree := &node{}
	for range 10 {
		tree.All = append(tree.All, &node{Of: make([]node, 10)})
	}
	rows := slices.Repeat([]*struct {
		ID       int
		Name, By string
	}{{1, "a", "b"}}, 100)
	values := map[string]any{"flat": &closed{}, "rows": rows, "tree of 111": tree, "any": map[string]any{"a": 1, "b": []any{"c", 1, 2, 3}, "d": "e"}}
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
