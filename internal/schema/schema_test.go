// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/schema"
	"github.com/yodel-rpc/yodel/introspect"
)

// schemaOf returns the schema of a message.
func schemaOf(t reflect.Type) introspect.Schema {
	return new(schema.Book).Methods(1, func(schemas func([]reflect.Type) []introspect.Schema) []introspect.Method {
		return []introspect.Method{{Args: schemas([]reflect.Type{t})}}
	})[0].Args[0]
}

type (
	plain struct {
		A int
		B string `json:"b,omitempty"`
		C bool   `json:"-"`
		D []byte `json:"-,"` //nolint:staticcheck // its name is "-"
		e int    //nolint:unused // JSON leaves it out
	}
	inner  struct{ A, X, Y int }
	Deep   struct{ X, Z int }
	Tagged struct{ N int }
	number int //nolint:unused // JSON leaves it out
	Number int
	outer  struct {
		inner
		*Deep
		Tagged `json:"tagged"`
		number //nolint:unused // as above
		Number
		A string
	}
	oneWay   struct{ Deep }
	otherWay struct{ Deep }
	bothWays struct {
		oneWay
		otherWay
		W int
	}
	chosen struct {
		V int `json:"X"`
	}
	choosing struct {
		Deep
		chosen
	}
	hidden struct {
		below
		Z int
	}
	below struct {
		Deep
		Z string
	}
	recursive struct {
		*recursive
		Q int
	}
)

// The fields of an object are those that encoding/json encodes.
func TestFieldsAreThoseOfJSON(t *testing.T) {
	for _, v := range []any{
		plain{}, outer{Deep: &Deep{}}, oneWay{}, bothWays{}, choosing{}, hidden{}, recursive{recursive: &recursive{}}, struct{}{}, struct{ Deep }{},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var encoded map[string]any
		if err := json.Unmarshal(b, &encoded); err != nil {
			t.Fatal(err)
		}
		if _, ok := v.(plain); ok {
			encoded["b"] = "" // omitted if it is empty
		}
		var names []string
		for _, f := range schemaOf(reflect.TypeOf(v)).Fields {
			names = append(names, f.Name)
		}
		if want := slices.Sorted(maps.Keys(encoded)); !slices.Equal(slices.Sorted(slices.Values(names)), want) {
			t.Errorf("%T: got the fields %q, want %q", v, names, want)
		}
	}
	if got := schemaOf(reflect.TypeFor[outer]()).Fields; got[0].Name != "Y" || got[len(got)-1].Name != "A" {
		t.Errorf("got %+v, want the order of the source", got)
	}
}

// A field that two ways lead to is ambiguous, as in encoding/json, at each depth.
func TestFieldsOfAStructThatIsEmbeddedTwiceAreAmbiguous(t *testing.T) {
	type (
		d0 struct{ ID int }
		l1 struct{ *d0 }
		r1 struct{ *d0 }
		d1 struct {
			l1
			r1
		}
		l2 struct{ *d1 }
		r2 struct{ *d1 }
		d2 struct {
			l2
			r2
			Name string
		}
	)
	if s := schemaOf(reflect.TypeFor[d2]()); len(s.Fields) != 1 || s.Fields[0].Name != "Name" {
		t.Errorf("got %+v, want one field: the ID is ambiguous", s)
	}
}

// A struct with more fields than a schema may have has none in its schema, and not some of them.
func TestAStructHasAllFieldsOrNone(t *testing.T) {
	for n, want := range map[int]int{500: 500, 999: 999, 1000: 0, 5000: 0} {
		fields := make([]reflect.StructField, n)
		for i := range fields {
			fields[i] = reflect.StructField{Name: "F" + strings.Repeat("x", i%7) + string(rune('A'+i%26)) + time.Duration(i).String(), Type: reflect.TypeFor[int]()}
			fields[i].Name = strings.NewReplacer(".", "_", "µ", "u").Replace(fields[i].Name)
		}
		if got := len(schemaOf(reflect.StructOf(fields)).Fields); got != want {
			t.Errorf("%d fields: the schema has %d, want %d", n, got, want)
		}
	}
}

// The name of a type without a name can be as long as its definition, so a schema shortens it.
func TestNamesOfTypesAreShortened(t *testing.T) {
	of := reflect.TypeFor[struct {
		A struct{ Bééééééééééééééééééé, Cééééééééééééééééééééééé, Dééééééééééééééééééééééé, Eéééééééééééééééééééé string } //nolint:asciicheck // no rune may be cut
	}]()
	for range 6 {
		of = reflect.StructOf([]reflect.StructField{{Name: "Left", Type: of}, {Name: "Right", Type: of}})
	}
	if s := schemaOf(of); len(s.Type) > 210 || !strings.HasSuffix(s.Type, "…") {
		t.Errorf("got a name of %d bytes: %s", len(s.Type), s.Type)
	}
}

// A description is made again for another version of the methods, and only then.
func TestBookDescribesEachVersionOnce(t *testing.T) {
	var b schema.Book
	made := 0
	list := func(func([]reflect.Type) []introspect.Schema) []introspect.Method {
		made++
		return []introspect.Method{{Name: "A"}}
	}
	for i, version := range []uint64{0, 0, 1, 1, 1, 2} {
		if got := b.Methods(version, list); len(got) != 1 || made != int(version)+1 {
			t.Errorf("call %d: got %v after %d descriptions", i, got, made)
		}
	}
}

// A struct that many ways lead to is visited once.
func TestFieldsOfManyWays(t *testing.T) {
	own := reflect.TypeFor[string]()
	of := reflect.StructOf([]reflect.StructField{{Name: "Below", Type: reflect.TypeFor[int]()}})
	for range 16 { // 65,536 ways
		left := reflect.StructOf([]reflect.StructField{{Name: "X", Type: of, Anonymous: true}})
		right := reflect.StructOf([]reflect.StructField{{Name: "X", Type: of, Anonymous: true, Tag: `yaml:"x"`}})
		of = reflect.StructOf([]reflect.StructField{{Name: "L", Type: left, Anonymous: true}, {Name: "R", Type: right, Anonymous: true}})
	}
	var types []reflect.Type // each is looked at once, because the fields are remembered
	for _, name := range []string{"First", "Second"} {
		types = append(types, reflect.StructOf([]reflect.StructField{{Name: "All", Type: of, Anonymous: true}, {Name: name, Type: own, Tag: `json:"own"`}}))
	}
	var found map[string]reflect.Type
	if n := testing.AllocsPerRun(1, func() {
		found = maps.Collect(schema.Fields(types[0]))
		types = types[1:]
	}); n > 5000 {
		t.Errorf("the fields took %.0f allocations, want a few for each level", n)
	}
	if len(found) != 1 || found["own"] != own {
		t.Errorf("the fields are %v, want only own", found)
	}
}

type color int32

// A generated is a message of Protocol Buffers.
type generated struct {
	UserName string           `protobuf:"bytes,1,opt,name=user_name,json=userName,proto3" json:"user_name,omitempty"`
	Count    int64            `protobuf:"varint,2,opt,name=count,proto3" json:"count,omitempty"`
	Small    int32            `protobuf:"varint,3,opt,name=small,proto3" json:"small,omitempty"`
	Colors   []color          `protobuf:"varint,4,rep,packed,name=colors,proto3,enum=shop.Color" json:"colors,omitempty"`
	Totals   map[string]int64 `protobuf:"bytes,5,rep,name=totals,proto3" json:"totals,omitempty" protobuf_key:"bytes,1,opt,name=key" protobuf_val:"varint,2,opt,name=value"`
	Plain    *plainCounts     `protobuf:"bytes,6,opt,name=plain,proto3" json:"plain,omitempty"`
	Choice   any              `protobuf_oneof:"choice"`
}

type plainCounts struct{ N int64 }

func (*generated) ProtoReflect() {}

// Messages of Protocol Buffers have names and kinds of their own in JSON.
func TestMessagesOfProtocolBuffers(t *testing.T) {
	s := schemaOf(reflect.TypeFor[generated]())
	var got []string
	for _, f := range s.Fields {
		kind := f.Kind
		if f.Elem != nil {
			kind += " of " + f.Elem.Kind
		}
		got = append(got, f.Name+" "+kind)
	}
	if want := "userName string, count string, small integer, colors array of string, totals map of string, plain object"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
	if n := s.Fields[len(s.Fields)-1].Fields[0]; n.Kind != "integer" {
		t.Errorf("a struct in a message: got %+v", n)
	}
}
