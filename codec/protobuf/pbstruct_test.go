// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/emptypb" // Describe refers to its file
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/codec/protobuf"
)

// These tests compare codec/pbstruct with google.golang.org/protobuf. They are here because the
// module of codec/pbstruct has no dependencies.

type Color int32

type Node struct {
	X int32   `pb:"1"`
	Y *Node   `pb:"2"`
	Z []int64 `pb:"3"`
}

// All has a field of every type.
type All struct {
	Flag     bool                     `pb:"1"`
	Tiny     int8                     `pb:"2"`
	Short    int16                    `pb:"3"`
	Int32    int32                    `pb:"4"`
	Int64    int64                    `pb:"5"`
	Int      int                      `pb:"6"`
	Zig32    int32                    `pb:"7,zigzag"`
	Zig64    int64                    `pb:"8,zigzag"`
	Sfixed32 int32                    `pb:"9,fixed"`
	Sfixed64 int64                    `pb:"10,fixed"`
	Byte     uint8                    `pb:"11"`
	Uint16   uint16                   `pb:"12"`
	Uint32   uint32                   `pb:"13"`
	Uint64   uint64                   `pb:"14"`
	Uint     uint                     `pb:"15"`
	Fixed32  uint32                   `pb:"16,fixed"`
	Fixed64  uint64                   `pb:"17,fixed"`
	Float    float32                  `pb:"18"`
	Double   float64                  `pb:"19"`
	Text     string                   `pb:"20" json:"words,omitempty"`
	Data     []byte                   `pb:"21"`
	Color    Color                    `pb:"22"`
	Node     Node                     `pb:"23"`
	MaybeID  *Node                    `pb:"24"`
	At       time.Time                `pb:"25"`
	For      time.Duration            `pb:"26"`
	MaybeAt  *time.Time               `pb:"27"`
	MaybeInt *int64                   `pb:"28,zigzag"`
	MaybeStr *string                  `pb:"29"`
	Ints     []int32                  `pb:"40"`
	Zigs     []int                    `pb:"41,zigzag"`
	Fixeds   []uint32                 `pb:"42,fixed"`
	Doubles  []float64                `pb:"43"`
	Flags    []bool                   `pb:"44"`
	Texts    []string                 `pb:"45"`
	Datas    [][]byte                 `pb:"46"`
	Nodes    []Node                   `pb:"47"`
	Pointers []*Node                  `pb:"48"`
	Times    []time.Time              `pb:"49"`
	Map      map[string]int64         `pb:"300"`
	Messages map[Color]*Node          `pb:"301"`
	Switches map[bool][]byte          `pb:"302"`
	Ages     map[uint64]time.Duration `pb:"536870911"`
}

// written is the file that describes All, as a person writes it. It is independent of Describe.
func written(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	var names = map[string]string{"Node": ".test.Node", "time.Time": ".google.protobuf.Timestamp", "time.Duration": ".google.protobuf.Duration"}
	file := &descriptorpb.FileDescriptorProto{
		Name: new("all.proto"), Package: new("test"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/duration.proto", "google/protobuf/timestamp.proto"},
	}
	add := func(name, lines string) {
		m := &descriptorpb.DescriptorProto{Name: &name}
		field := func(m *descriptorpb.DescriptorProto, name, typ string, number int) *descriptorpb.FieldDescriptorProto {
			f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: new(int32(number)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
			if message := names[typ]; message != "" {
				f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), &message
			} else {
				f.Type = descriptorpb.FieldDescriptorProto_Type(descriptorpb.FieldDescriptorProto_Type_value["TYPE_"+strings.ToUpper(typ)]).Enum()
			}
			m.Field = append(m.Field, f)
			return f
		}
		for line := range strings.Lines(lines) {
			words := strings.Fields(line)
			if len(words) < 3 {
				continue
			}
			number, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				t.Fatal(err)
			}
			name := words[len(words)-2]
			switch words[0] {
			case "repeated":
				field(m, name, words[1], number).Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			case "optional":
				f := field(m, name, words[1], number)
				f.Proto3Optional, f.OneofIndex = new(true), new(int32(len(m.GetOneofDecl())))
				m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new("_" + name)})
			case "map":
				entry := &descriptorpb.DescriptorProto{Name: new(strings.ToUpper(name[:1]) + name[1:] + "Entry"), Options: &descriptorpb.MessageOptions{MapEntry: new(true)}}
				field(entry, "key", words[1], 1)
				field(entry, "value", words[2], 2)
				names[name] = ".test." + m.GetName() + "." + entry.GetName()
				m.NestedType = append(m.NestedType, entry)
				field(m, name, name, number).Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			default:
				f := field(m, name, words[0], number)
				if name == "text" {
					f.JsonName = new("words")
				}
			}
		}
		file.MessageType = append(file.MessageType, m)
	}
	//nolint:dupword // names and types may be the same
	add("All", `
		bool flag 1
		int32 tiny 2
		int32 short 3
		int32 int32 4
		int64 int64 5
		int64 int 6
		sint32 zig32 7
		sint64 zig64 8
		sfixed32 sfixed32 9
		sfixed64 sfixed64 10
		uint32 byte 11
		uint32 uint16 12
		uint32 uint32 13
		uint64 uint64 14
		uint64 uint 15
		fixed32 fixed32 16
		fixed64 fixed64 17
		float float 18
		double double 19
		string text 20
		bytes data 21
		int32 color 22
		Node node 23
		Node maybe_id 24
		time.Time at 25
		time.Duration for 26
		time.Time maybe_at 27
		optional sint64 maybe_int 28
		optional string maybe_str 29
		repeated int32 ints 40
		repeated sint64 zigs 41
		repeated fixed32 fixeds 42
		repeated double doubles 43
		repeated bool flags 44
		repeated string texts 45
		repeated bytes datas 46
		repeated Node nodes 47
		repeated Node pointers 48
		repeated time.Time times 49
		map string int64 map 300
		map int32 Node messages 301
		map bool bytes switches 302
		map uint64 time.Duration ages 536870911`)
	add("Node", `
		int32 x 1
		Node y 2
		repeated int64 z 3`)
	got, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return got.Messages().ByName("All")
}

// messageOf returns a struct as a message of google.golang.org/protobuf. It uses the numbers of the
// tags, and the types of d.
func messageOf(d protoreflect.MessageDescriptor, v reflect.Value) protoreflect.Message {
	switch x := v.Interface().(type) {
	case time.Time:
		return timestamppb.New(x).ProtoReflect()
	case time.Duration:
		return durationpb.New(x).ProtoReflect()
	}
	m := dynamicpb.NewMessage(d)
	for i := range v.NumField() {
		text, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("pb"), ",")
		number, _ := strconv.Atoi(text)
		fd, value := d.Fields().ByNumber(protoreflect.FieldNumber(number)), v.Field(i)
		switch {
		case fd.IsMap():
			for _, key := range value.MapKeys() {
				m.Mutable(fd).Map().Set(valueOf(fd.MapKey(), key).MapKey(), valueOf(fd.MapValue(), value.MapIndex(key)))
			}
		case fd.IsList():
			for j := range value.Len() {
				m.Mutable(fd).List().Append(valueOf(fd, value.Index(j)))
			}
		case value.Kind() == reflect.Pointer && value.IsNil():
		case value.Kind() != reflect.Pointer && fd.Message() != nil && empty(value):
		default:
			m.Set(fd, valueOf(fd, value))
		}
	}
	return m
}

// empty reports whether the struct cannot say that it is there.
func empty(v reflect.Value) bool {
	n, ok := reflect.TypeAssert[Node](v)
	return ok && n.X == 0 && n.Y == nil && len(n.Z) == 0 || !ok && v.IsZero()
}

func valueOf(fd protoreflect.FieldDescriptor, v reflect.Value) protoreflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(v.Bool())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(v.Int())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(v.Uint())
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(v.Float()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(v.Float())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(v.Bytes())
	default:
		m := messageOf(fd.Message(), v)
		if _, ok := m.(*dynamicpb.Message); !ok { // a well-known type
			d := dynamicpb.NewMessage(fd.Message())
			b, err := proto.Marshal(m.Interface())
			if err == nil {
				err = proto.Unmarshal(b, d)
			}
			if err != nil {
				panic(err)
			}
			m = d
		}
		return protoreflect.ValueOfMessage(m)
	}
}

// fill sets v to a random value.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(r.Int64N(1<<35)-1<<34, r.Int64N(1e9)).UTC()
		return
	case *time.Duration:
		*x = time.Duration(r.Uint64())
		return
	}
	few := r.IntN(3) * r.IntN(3)
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(r.Uint64()) >> r.IntN(64))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> r.IntN(64))
	case reflect.Float32, reflect.Float64:
		v.SetFloat([]float64{0, math.Copysign(0, -1), math.Inf(1), 0.5, r.NormFloat64()}[r.IntN(5)])
		if v.Kind() == reflect.Float32 {
			v.SetFloat(float64(float32(v.Float())))
		}
	case reflect.String:
		v.SetString(strings.Repeat("aß", few*few*few))
	case reflect.Pointer:
		if r.IntN(2) == 0 && depth < 5 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth+1)
		}
	case reflect.Slice:
		for range few * few {
			e := reflect.New(v.Type().Elem()).Elem()
			for fill(r, e, depth+1); e.Kind() == reflect.Pointer && e.IsNil(); {
				e.Set(reflect.New(e.Type().Elem()))
			}
			v.Set(reflect.Append(v, e))
		}
	case reflect.Map:
		if few > 0 {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for range few {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, k, depth+1)
			for fill(r, e, depth+1); e.Kind() == reflect.Pointer && e.IsNil(); {
				e.Set(reflect.New(e.Type().Elem()))
			}
			v.SetMapIndex(k, e)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if r.IntN(3) > 0 {
				fill(r, field, depth+1)
			}
		}
	}
}

// What one of the two encodes, the other one decodes as the same message.
func TestNumberedStructsAreMessages(t *testing.T) {
	d := written(t)
	for seed := range uint64(2000) {
		var in All
		fill(rand.New(rand.NewPCG(seed, 1)), reflect.ValueOf(&in).Elem(), 0)
		want := messageOf(d, reflect.ValueOf(in)).Interface()
		b, err := pbstruct.Codec.Append(nil, &in)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := dynamicpb.NewMessage(d)
		if err = proto.Unmarshal(b, got); err != nil || !proto.Equal(got, want) {
			t.Fatalf("seed %d: %v\n got %v\nwant %v", seed, err, prototext.Format(got), prototext.Format(want))
		}
		if b, err = proto.Marshal(want); err != nil {
			t.Fatal(err)
		}
		var back All
		if err = pbstruct.Codec.Decode(b, &back); err != nil || !reflect.DeepEqual(back, in) {
			t.Fatalf("seed %d: %v\n got %+v\nwant %+v", seed, err, back, in)
		}
	}
}

// normal removes from m what a struct cannot say: that a message is there and has no content.
func normal(m *dynamicpb.Message) {
	fields := m.Descriptor().Fields()
	for _, number := range []protoreflect.FieldNumber{23, 26} {
		fd := fields.ByNumber(number)
		if inner := m.Get(fd).Message(); m.Has(fd) && proto.Size(inner.Interface()) == 0 {
			m.Clear(fd)
		}
	}
	at := fields.ByNumber(25)
	if inner := m.Get(at).Message(); m.Has(at) {
		var stamp timestamppb.Timestamp
		b, err := proto.Marshal(inner.Interface())
		if err == nil && proto.Unmarshal(b, &stamp) == nil && stamp.AsTime().IsZero() {
			m.Clear(at)
		}
	}
}

// unmarshal decodes src into m. It reports false if package proto panics, as version 1.36.12 does
// with a dynamicpb.Message if the key of a map has another wire type than expected.
func unmarshal(src []byte, m *dynamicpb.Message) (err error, ok bool) { //nolint:revive // ok says whether there is a result
	defer func() { ok = recover() == nil }()
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(src, m), true
}

// Both accept the same bytes, with the same result. Codec/pbstruct also refuses what its
// documentation names.
func FuzzNumberedStructs(f *testing.F) {
	d := written(f)
	for seed := range uint64(20) {
		var in All
		fill(rand.New(rand.NewPCG(seed, 1)), reflect.ValueOf(&in).Elem(), 0)
		b, err := pbstruct.Codec.Append(nil, &in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		want, got := dynamicpb.NewMessage(d), new(All)
		theirs, ok := unmarshal(src, want)
		if !ok {
			return
		}
		ours := pbstruct.Codec.Decode(src, got)
		if theirs != nil {
			if ours == nil {
				t.Fatalf("%x: only google.golang.org/protobuf refuses it: %v", src, theirs)
			}
			return
		}
		if ours != nil {
			for _, documented := range []string{"too large for", "1 to 9999", "292 years", "deeper than", "too much memory"} {
				if strings.Contains(ours.Error(), documented) {
					return
				}
			}
			t.Fatalf("%x: only codec/pbstruct refuses it: %v", src, ours)
		}
		normal(want)
		if m := messageOf(d, reflect.ValueOf(*got)).Interface(); !proto.Equal(m, want) {
			t.Fatalf("%x:\n got %v\nwant %v", src, prototext.Format(m), prototext.Format(want))
		}
	})
}

// Describe describes structs as a person would.
func TestDescribe(t *testing.T) {
	b, names, err := pbstruct.Describe("all.proto", "test", reflect.TypeFor[All](), reflect.TypeFor[*Node](), reflect.TypeFor[struct{}]())
	if err != nil || fmt.Sprint(names) != "[test.All test.Node google.protobuf.Empty]" {
		t.Fatalf("got %q, %v", names, err)
	}
	file := new(descriptorpb.FileDescriptorProto)
	if err = proto.Unmarshal(b, file); err != nil {
		t.Fatal(err)
	}
	got, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	want := protodesc.ToFileDescriptorProto(written(t).ParentFile())
	want.Dependency = []string{"google/protobuf/duration.proto", "google/protobuf/empty.proto", "google/protobuf/timestamp.proto"}
	if again := protodesc.ToFileDescriptorProto(got); !proto.Equal(again, want) {
		t.Errorf("got %v\nwant %v", prototext.Format(again), prototext.Format(want))
	}
	type Other struct {
		HTTPServerID int              `pb:"1"`
		X_Y          map[int]struct{} `pb:"2"` //nolint:revive // a name with an underscore
	}
	if b, _, err = pbstruct.Describe("a", "", reflect.TypeFor[Other]()); err != nil || !strings.Contains(string(b), "http_server_id") || !strings.Contains(string(b), "x_y") || !strings.Contains(string(b), "XYEntry") {
		t.Errorf("got %q, %v", b, err)
	}
	for says, types := range map[string][]reflect.Type{
		"not a numbered struct": {reflect.TypeFor[struct{ A int }]()},
		"has no name": {reflect.TypeFor[struct {
			A int `pb:"1"`
		}]()},
		"same name All":               {reflect.TypeFor[All](), otherAll()},
		"two fields of the name ab_c": {reflect.TypeFor[twice]()},
	} {
		if _, _, err = pbstruct.Describe("a.proto", "a", types...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

type twice struct {
	AbC  int `pb:"1"`
	Ab_C int `pb:"2"` //nolint:revive // a name with an underscore
	ABC  int `pb:"3"`
}

func otherAll() reflect.Type {
	type All struct {
		A int `pb:"1"`
	}
	return reflect.TypeFor[All]()
}

// One codec has both kinds of messages.
func TestWithGeneratedMessages(t *testing.T) {
	c := pbstruct.With(protobuf.Codec)
	b, err := c.Append(nil, wrapperspb.String("a"))
	type text struct {
		Value string `pb:"1"`
	}
	var own text
	if err != nil || c.Decode(b, &own) != nil || own.Value != "a" {
		t.Errorf("got %+v, %v", own, err)
	}
	var generated wrapperspb.StringValue
	if b, err = c.Append(nil, text{"b"}); err != nil || c.Decode(b, &generated) != nil || generated.GetValue() != "b" {
		t.Errorf("got %v, %v", &generated, err)
	}
	for says, plain := range map[string]any{"number its fields": &struct{ A int }{}, "int is not a generated message": new(int), "nil": nil} {
		if _, err := c.Append(nil, plain); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%T: got %v, want %q", plain, err, says)
		}
	}
	checker := c.(interface{ CheckType(t reflect.Type) error })
	for _, good := range []any{wrapperspb.StringValue{}, &wrapperspb.StringValue{}, text{}, &text{}, struct{}{}} {
		if err := checker.CheckType(reflect.TypeOf(good)); err != nil {
			t.Errorf("%T: %v", good, err)
		}
	}
	for _, bad := range []any{struct{ A int }{}, 1, struct {
		A any `pb:"1"`
	}{}} {
		if checker.CheckType(reflect.TypeOf(bad)) == nil {
			t.Errorf("%T is allowed", bad)
		}
	}
}

func BenchmarkNumberedStructs(b *testing.B) {
	var in All
	fill(rand.New(rand.NewPCG(1, 1)), reflect.ValueOf(&in).Elem(), 0)
	encoded, err := pbstruct.Codec.Append(nil, &in)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(encoded)))
	b.ReportAllocs()
	for b.Loop() {
		if err := pbstruct.Codec.Decode(encoded, new(All)); err != nil {
			b.Fatal(err)
		}
	}
}
