// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
)

// Types that contain themselves.
type (
	boxes          []boxes
	table          map[string]table
	list           struct{ Next *list }
	branches       [][]branches
	deepTable      map[string][]*deepTable
	leaf           struct{ Root *trunk }
	trunk          map[string]limbs
	limbs          []leaf
	generic[T any] struct {
		Value T
		More  []generic[T]
	}
	embedder struct {
		*embedder //nolint:unused // the types of fields are walked
		ID        int
	}
)

// inMessage is a message with a field of type T.
type inMessage[T any] struct{ Field T }

// A server whose messages contain themselves describes itself and continues to serve.
func TestInfoDescribesTypesThatContainThemselves(t *testing.T) {
	s := newServer(t, carriesAll)
	describe[boxes](t, s, `{"type": "yodel_test.boxes", "kind": "array", "elem": {"type": "yodel_test.boxes", "kind": "array"}}`)
	describe[table](t, s, `{"type": "yodel_test.table", "kind": "map", "elem": {"type": "yodel_test.table", "kind": "map"}}`)
	describe[list](t, s, `{"type": "yodel_test.list", "kind": "object", "fields": [{"name": "Next", "type": "yodel_test.list", "kind": "object"}]}`)
	describe[branches](t, s, `{"type": "yodel_test.branches", "kind": "array", "elem":
		{"type": "[]yodel_test.branches", "kind": "array", "elem": {"type": "yodel_test.branches", "kind": "array"}}}`)
	describe[deepTable](t, s, `{"type": "yodel_test.deepTable", "kind": "map", "elem":
		{"type": "[]*yodel_test.deepTable", "kind": "array", "elem": {"type": "yodel_test.deepTable", "kind": "map"}}}`)
	describe[leaf](t, s, `{"type": "yodel_test.leaf", "kind": "object", "fields": [{"name": "Root", "type": "yodel_test.trunk", "kind": "map", "elem":
		{"type": "yodel_test.limbs", "kind": "array", "elem": {"type": "yodel_test.leaf", "kind": "object"}}}]}`)
	describe[generic[string]](t, s, `{"type": "yodel_test.generic[string]", "kind": "object", "fields": [{"name": "Value", "type": "string", "kind": "string"},
		{"name": "More", "type": "[]yodel_test.generic[string]", "kind": "array", "elem": {"type": "yodel_test.generic[string]", "kind": "object"}}]}`)
	registerType(t, s, "Embedder", reflect.TypeFor[embedder]()) // no call, because JSON does not carry it
	if args := infoOf(t, connect(t, s, nil), "Embedder").Args; args == nil {
		t.Error("a type that embeds itself has no schema")
	}
}

// carriesAll has a codec that refuses no type.
var carriesAll = &yodel.ServerOptions{Codecs: []yodel.Codec{unchecked{yodel.JSON}}}

type unchecked struct{ yodel.Codec }

func (unchecked) Name() string { return "unchecked" }

// describe registers methods with T as a message and in a message, and compares the schema.
func describe[T any](t *testing.T, s *yodel.Server, want string) {
	t.Helper()
	bare, inside := fmt.Sprintf("Bare.%T", *new(T)), fmt.Sprintf("In.%T", *new(T))
	handle(t, s, bare, func(context.Context, *T) (*T, error) { return new(T), nil })
	handle(t, s, inside, func(context.Context, *inMessage[T]) (*Empty, error) { return nil, nil })
	c := connect(t, s, nil)
	wantJSON(t, bare, infoOf(t, c, bare).Args, "["+want+"]")
	wantJSON(t, bare, infoOf(t, c, bare).Results, "["+want+"]")
	field := strings.Replace(want, "{", `{"name": "Field", `, 1)
	got := infoOf(t, c, inside).Args[0].Fields
	wantJSON(t, inside, got, "["+field+"]")
	if err := c.Call(t.Context(), bare, new(T), new(T)); err != nil {
		t.Errorf("%s: %v", bare, err)
	}
}

// A type that points only to itself has no values, so that no method can take it.
func TestTypesThatPointOnlyToThemselvesAreNotRegistered(t *testing.T) {
	type self *self
	s := newServer(t, nil)
	for name, function := range map[string]any{
		"a request":   func(context.Context, *self) (*Empty, error) { return nil, nil },
		"a reply":     func(context.Context, *Empty) (*self, error) { return nil, nil },
		"a field":     func(context.Context, *inMessage[self]) (*Empty, error) { return nil, nil },
		"an element":  func(context.Context, *map[string][]self) (*Empty, error) { return nil, nil },
		"a key":       func(context.Context, *map[self]int) (*Empty, error) { return nil, nil },
		"a value":     func(self, int) (int, error) { return 0, nil },
		"in a cycle":  func(context.Context, *inMessage[ping]) (*Empty, error) { return nil, nil },
		"in a stream": func(context.Context, yodel.Recv[self], yodel.Send[self]) error { return nil },
	} {
		err := s.Handle(name, function)
		if err == nil || !strings.Contains(err.Error(), "points only to itself, so that it has no values to send") {
			t.Errorf("%s: got %v, want the reason", name, err)
		}
	}
	defer func() {
		if p := recover(); !strings.Contains(fmt.Sprint(p), "points only to itself") {
			t.Errorf("got the panic %v, want the reason", p)
		}
	}()
	yodel.Method[self, Empty]("Typed").Handle(s, func(context.Context, *self) (*Empty, error) { return nil, nil })
}

type (
	ping     *pingPong
	pingPong *ping
)

// A twin uses its type twice: 17 of them in each other have 2^17 places for the innermost type.
type (
	twin[T any]  struct{ Left, Right *T }
	twin4[T any] struct {
		Pair *twin[twin[twin[twin[T]]]]
	}
	twins17 = twin[twin4[twin4[twin4[twin4[orderLine]]]]]
	twins64 = twin4[twin4[twin4[twin4[twin4[twin4[twin4[twin4[twins17]]]]]]]]
)

// registerType registers a method whose request is of a type made at run time.
func registerType(t testing.TB, s *yodel.Server, name string, message reflect.Type) {
	t.Helper()
	f := reflect.FuncOf([]reflect.Type{reflect.TypeFor[context.Context](), reflect.PointerTo(message)},
		[]reflect.Type{reflect.TypeFor[*Empty](), reflect.TypeFor[error]()}, false)
	must(t, s.Handle(name, reflect.MakeFunc(f, func([]reflect.Value) []reflect.Value {
		return []reflect.Value{reflect.ValueOf(new(Empty)), reflect.Zero(reflect.TypeFor[error]())}
	}).Interface()))
}

// A type that each of many types uses twice has more places than can be described. The schema of
// such a message describes the outer types.
func TestInfoIsBoundedForTypesThatMultiply(t *testing.T) {
	s := newServer(t, carriesAll)
	registerType(t, s, "Pairs", reflect.TypeFor[twins17]())
	registerType(t, s, "More", reflect.TypeFor[twins64]())
	must(t, s.Handle("Ladder", func(context.Context, *ladder9) (*Empty, error) { return nil, nil }))
	c := connect(t, s, nil)
	for _, name := range []string{"Pairs", "More", "Ladder"} {
		args := infoOf(t, c, name).Args
		if b, err := json.Marshal(args); err != nil || len(b) > 1<<20 {
			t.Errorf("%s: the schema has %d bytes of JSON (%v)", name, len(b), err)
		}
		if name == "Ladder" {
			continue
		}
		depth := 0
		for inner := args[0]; len(inner.Fields) > 0; inner = inner.Fields[0] {
			depth++
		}
		if depth < 8 {
			t.Errorf("%s: the schema describes %d types in each other, want the outer ones", name, depth)
		}
	}
}

// Structs that embed each other in more ways with each level.
type (
	ladder0 struct{ ID int }
	ladder1 struct {
		left1
		right1
	}
	ladder2 struct {
		left2
		right2
	}
	ladder3 struct {
		left3
		right3
	}
	ladder9 struct {
		*ladder3
		Name string
	}
	left1  struct{ *ladder0 }
	right1 struct{ *ladder0 }
	left2  struct{ *ladder1 }
	right2 struct{ *ladder1 }
	left3  struct{ *ladder2 }
	right3 struct{ *ladder2 }
)

// All schemas of a server together are bounded. Methods beyond the bound have the name and the kind
// of their messages.
func TestInfoIsBoundedForManyMethods(t *testing.T) {
	s := newServer(t, nil)
	wide := make([]reflect.StructField, 900)
	for i := range wide {
		wide[i] = reflect.StructField{Name: fmt.Sprintf("Field%d", i), Type: reflect.TypeFor[int]()}
	}
	message := reflect.StructOf(wide)
	const methods = 100
	for i := range methods {
		registerType(t, s, fmt.Sprintf("Wide.Do%02d", i), message)
	}
	info := s.Info()
	if b, err := json.Marshal(info); err != nil || len(b) > 8<<20 {
		t.Errorf("yodel.Info has %d bytes of JSON (%v)", len(b), err)
	}
	full := 0
	for _, m := range info.Methods {
		if strings.HasPrefix(m.Name, "Wide.") {
			if m.Args[0].Kind != "object" || m.Args[0].Type == "" {
				t.Fatalf("got %+v, want an object with the name of its type", m)
			}
			if n := len(m.Args[0].Fields); n == len(wide) {
				full++
			} else if n != 0 {
				t.Fatalf("%s has %d of %d fields, want all or none", m.Name, n, len(wide))
			}
		}
	}
	if full < 10 || full == methods {
		t.Errorf("%d of %d messages are described, want a bound after the first ones", full, methods)
	}
}

// A caller that asks for yodel.Info again costs the server no work on the types.
func TestInfoDescribesTypesOnce(t *testing.T) {
	s := newServer(t, nil)
	registerType(t, s, "Pairs", reflect.TypeFor[twins17]())
	s.Info()
	if got := testing.AllocsPerRun(100, func() { s.Info() }); got > 20 {
		t.Errorf("Info makes %v allocations, want those of a few slices", got)
	}
	c := connect(t, s, nil)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 2 {
				if _, err := inspect.Info.Call(t.Context(), c, &Empty{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Info tells of each change of the methods, although it keeps their descriptions.
func TestInfoFollowsTheMethods(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	find := func(name string) *introspect.Method {
		info, err := inspect.Info.Call(t.Context(), c, &Empty{})
		must(t, err)
		for i := range info.Methods {
			if info.Methods[i].Name == name {
				return &info.Methods[i]
			}
		}
		return nil
	}
	if m := find("Late.Do"); m != nil {
		t.Errorf("got %+v before it is registered", m)
	}
	handle(t, s, "Late.Do", func(context.Context, *Empty) (*Empty, error) { return nil, nil })
	if m := find("Late.Do"); m == nil || m.Idempotent || m.ReadOnly || len(m.Aliases) > 0 {
		t.Errorf("got %+v after it is registered", m)
	}
	s.MarkIdempotent("Late.Do")
	if m := find("Late.Do"); m == nil || !m.Idempotent || m.ReadOnly {
		t.Errorf("got %+v after it is marked idempotent", m)
	}
	s.MarkReadOnly("Late/Do") // with the other separator, as in a path
	if m := find("Late.Do"); m == nil || !m.ReadOnly {
		t.Errorf("got %+v after it is marked read-only", m)
	}
	must(t, s.Alias("Late.Do", "Later.Do"))
	if m := find("Late.Do"); m == nil || len(m.Aliases) != 1 || m.Aliases[0] != "Later.Do" {
		t.Errorf("got %+v after it has an alias", m)
	}
	must(t, s.Unregister("Late.Do"))
	if m := find("Later.Do"); m == nil || find("Late.Do") != nil {
		t.Errorf("got %+v after the first name is removed", m)
	}
}
