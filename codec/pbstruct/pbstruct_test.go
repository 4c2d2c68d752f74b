// SPDX-License-Identifier: Apache-2.0

package pbstruct_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// The conformance with google.golang.org/protobuf is tested in package codec/protobuf, because this
// module has no dependencies.

type color int32

type inner struct {
	X int32   `pb:"1"`
	Y *inner  `pb:"2"`
	Z []int64 `pb:"3"`
}

// A sample has a field of every type.
type sample struct {
	Flag     bool             `pb:"1"`
	Tiny     int8             `pb:"2"`
	Short    int16            `pb:"3"`
	Int32    int32            `pb:"4"`
	Int64    int64            `pb:"5"`
	Int      int              `pb:"6"`
	Zig32    int32            `pb:"7,zigzag"`
	Zig64    int64            `pb:"8,zigzag"`
	Sfixed32 int32            `pb:"9,fixed"`
	Sfixed64 int64            `pb:"10,fixed"`
	Byte     uint8            `pb:"11"`
	Uint16   uint16           `pb:"12"`
	Uint32   uint32           `pb:"13"`
	Uint64   uint64           `pb:"14"`
	Uint     uint             `pb:"15"`
	Fixed32  uint32           `pb:"16,fixed"`
	Fixed64  uint64           `pb:"17,fixed"`
	Float    float32          `pb:"18"`
	Double   float64          `pb:"19"`
	Text     string           `pb:"20"`
	Data     []byte           `pb:"21"`
	Color    color            `pb:"22"`
	Inner    inner            `pb:"23"`
	Maybe    *inner           `pb:"24"`
	At       time.Time        `pb:"25"`
	For      time.Duration    `pb:"26"`
	MaybeAt  *time.Time       `pb:"27"`
	MaybeInt *int64           `pb:"28"`
	MaybeStr *string          `pb:"29"`
	Ints     []int32          `pb:"40"`
	Zigs     []int            `pb:"41,zigzag"`
	Fixeds   []uint32         `pb:"42,fixed"`
	Doubles  []float64        `pb:"43"`
	Flags    []bool           `pb:"44"`
	Texts    []string         `pb:"45"`
	Datas    [][]byte         `pb:"46"`
	Inners   []inner          `pb:"47"`
	Pointers []*inner         `pb:"48"`
	Times    []time.Time      `pb:"49"`
	Map      map[string]int64 `pb:"300"`
	Messages map[color]*inner `pb:"301"`
	Switches map[bool][]byte  `pb:"536870911"`
	Skipped  any              `pb:"-"`
	hidden   int
}

func everything() *sample {
	at := time.Date(2026, 8, 1, 12, 30, 0, 999999999, time.UTC)
	return &sample{
		Flag: true, Tiny: -7, Short: math.MinInt16, Int32: math.MinInt32, Int64: math.MaxInt64, Int: -1, Zig32: -3, Zig64: math.MinInt64,
		Sfixed32: -5, Sfixed64: -6, Byte: 255, Uint16: 7, Uint32: math.MaxUint32, Uint64: math.MaxUint64, Uint: 9, Fixed32: 10, Fixed64: 11,
		Float: -0.5, Double: math.Inf(1), Text: "ünï\x00", Data: []byte{0, 255}, Color: 3, Inner: inner{X: 1}, Maybe: &inner{Y: &inner{Z: []int64{1, -1}}},
		At: at, For: -time.Nanosecond, MaybeAt: new(time.Unix(-1, 1).UTC()), MaybeInt: new(int64(0)), MaybeStr: new(""),
		Ints: []int32{1, -2, 300}, Zigs: []int{-1, 1}, Fixeds: []uint32{1, 2}, Doubles: make([]float64, 20), Flags: []bool{true, false}, Texts: []string{"", "a"},
		Datas: [][]byte{{1}, nil}, Inners: []inner{{}, {X: 5}}, Pointers: []*inner{{}, {Z: make([]int64, 200)}}, Times: []time.Time{{}, at},
		Map: map[string]int64{"": 0, "a": 1}, Messages: map[color]*inner{0: {}, -1: {X: 2}}, Switches: map[bool][]byte{true: {1}},
	}
}

func TestContract(t *testing.T) {
	yodeltest.TestCodec(t, pbstruct.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["pbstruct"]}, everything(), &sample{}, &inner{X: 1, Z: []int64{1, 2, 3}}, &struct{}{}, &Item{SKU: strings.Repeat("x", 5000)})
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// These are the examples of the documentation of Protocol Buffers, and rules of proto3.
func TestBytes(t *testing.T) {
	for _, test := range []struct {
		message any
		bytes   string
	}{
		{&struct {
			A int32 `pb:"1"`
		}{150}, "08 9601"},
		{&struct {
			B string `pb:"2"`
		}{"testing"}, "12 07 74657374696e67"},
		{&struct {
			C struct {
				A int32 `pb:"1"`
			} `pb:"3"`
		}{struct {
			A int32 `pb:"1"`
		}{150}}, "1a 03 089601"},
		{&struct {
			D string  `pb:"4"`
			E []int32 `pb:"5"`
		}{"hello", []int32{1, 2, 3}}, "22 05 68656c6c6f 2a 03 010203"},
		{&struct {
			F []int32 `pb:"6"`
		}{[]int32{3, 270, 86942}}, "32 06 03 8e02 9ea705"},
		{&struct {
			G map[string]int32 `pb:"7"`
		}{map[string]int32{"a": 0}}, "3a 05 0a0161 1000"},
		{&struct {
			A int    `pb:"1"`
			B int32  `pb:"2,zigzag"`
			C uint32 `pb:"3,fixed"`
		}{-1, -1, 1}, "08 ffffffffffffffffff01 10 01 1d 01000000"},
		{&struct {
			Zero float64 `pb:"1"`
			Neg  float64 `pb:"2"`
		}{0, math.Copysign(0, -1)}, "11 0000000000000080"},
		{&struct {
			A *int32  `pb:"1"`
			B *inner  `pb:"2"`
			C inner   `pb:"3"`
			D []inner `pb:"4"`
		}{new(int32(0)), &inner{}, inner{}, []inner{{}}}, "0800 1200 2200"},
		{&struct {
			At  time.Time     `pb:"1"`
			For time.Duration `pb:"2"`
			No  time.Time     `pb:"3"`
		}{At: time.Unix(1, 5), For: -1500 * time.Millisecond}, "0a04 0801 1005 1216 08 ffffffffffffffffff01 10 80b6ca91feffffffff01"},
	} {
		got, err := pbstruct.Codec.Append([]byte("x"), test.message)
		if err != nil || !bytes.Equal(got, append([]byte("x"), unhex(t, test.bytes)...)) {
			t.Errorf("%+v:\n got %x, %v\nwant %s", test.message, got[1:], err, test.bytes)
		}
	}
}

func TestDecodeOtherForms(t *testing.T) {
	for _, test := range []struct {
		bytes string
		want  any
	}{
		{"18 01 18 02 1a 02 0304", &inner{Z: []int64{1, 2, 3, 4}}},                                                                 // packed and unpacked
		{"08 01 08 02", &inner{X: 2}},                                                                                              // the last value counts
		{"12 02 0801 12 02 1801", &inner{Y: &inner{X: 1, Z: []int64{1}}}},                                                          // messages are merged
		{"0a 01 61 0d 01000000 09 0100000000000000 08 03", &inner{X: 3}},                                                           // other wire types are skipped
		{"0b 08 05 0b 0c 12 01 ff 0c 08 03", &inner{X: 3}},                                                                         // a group is skipped
		{"a2 06 01 61 f8ffffff0f 01 fdffffff0f 01020304 f9ffffff0f 0102030405060708", &inner{}},                                    // unknown fields
		{"08 ffffffff1f", &inner{X: -1}},                                                                                           // the lower 32 bits
		{"08 80808080808080808001", &inner{}},                                                                                      // as above
		{"8a03 00 8a03 04 1001 1002 8a03 02 0805", &sample{Times: []time.Time{time.Unix(0, 0), time.Unix(0, 2), time.Unix(5, 0)}}}, // times
		{"e212 00 ea12 04 0801 1200", &sample{Map: map[string]int64{"": 0}, Messages: map[color]*inner{1: {}}}},                    // entries without a key or a value
	} {
		got := reflect.New(reflect.TypeOf(test.want).Elem()).Interface()
		err := pbstruct.Codec.Decode(unhex(t, test.bytes), got)
		if want, ok := test.want.(*sample); ok {
			for i := range want.Times {
				want.Times[i] = want.Times[i].UTC()
			}
		}
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", test.bytes, got, err, test.want)
		}
	}
	var twice sample
	if err := pbstruct.Codec.Decode(unhex(t, "ca01 02 0805 ca01 02 1003"), &twice); err != nil || !twice.At.Equal(time.Unix(5, 3)) {
		t.Errorf("a time in two parts: got %v, %v", twice.At, err)
	}
	old := sample{Text: "old", Map: map[string]int64{"old": 1}, hidden: 1, Skipped: 1}
	if err := pbstruct.Codec.Decode(nil, &old); err != nil || !reflect.DeepEqual(old, sample{}) {
		t.Errorf("Decode keeps %+v, %v", old, err)
	}
}

// generated has the method of messages that protoc-gen-go generates.
type generated struct{ A int }

func (*generated) ProtoReflect() {}

// deep returns a chain of n structs.
func deep(n int) *inner {
	var chain *inner
	for range n {
		chain = &inner{Y: chain}
	}
	return chain
}

func TestWrongTypes(t *testing.T) {
	type plain struct{ A int }
	for says, message := range map[string]any{
		"B has no number: give it one, as in `pb:\"8\"`": &struct {
			A int `pb:"7"`
			B int
		}{},
		"same number 1": &struct {
			A, B int `pb:"1"`
		}{},
		"`pb:\"0\"` has no number from 1": &struct {
			A int `pb:"0"`
		}{},
		"`pb:\"536870912\"` has no number": &struct {
			A int `pb:"536870912"`
		}{},
		"19000 is among 19000 to 19999": &struct {
			A int `pb:"19000"`
		}{},
		"`pb:\"1,packed\"` has an unknown option": &struct {
			A []int `pb:"1,packed"`
		}{},
		"the option zigzag is for integers with a sign": &struct {
			A uint `pb:"1,zigzag"`
		}{},
		"the option fixed is for integers": &struct {
			A string `pb:"1,fixed"`
		}{},
		"a map has no options": &struct {
			A map[int]int `pb:"1,fixed"`
		}{},
		"not exported": &struct {
			a int `pb:"1"`
		}{},
		"interface {} is no type": &struct {
			A any `pb:"1"`
		}{},
		"[4]uint8 is no type": &struct {
			A [4]byte `pb:"1"`
		}{},
		"put it into a struct": &struct {
			A [][]int `pb:"1"`
		}{},
		"[]map[int]int": &struct {
			A []map[int]int `pb:"1"`
		}{},
		"[]*int": &struct {
			A []*int `pb:"1"`
		}{},
		"only a pointer to": &struct {
			A *[]int `pb:"1"`
		}{},
		"keys of a map": &struct {
			A map[float64]int `pb:"1"`
		}{},
		"the keys": &struct {
			A map[time.Duration]int `pb:"1"`
		}{},
		"plain is a plain struct: number its fields": &struct {
			A plain `pb:"1"`
		}{},
		"plain is a plain struct: number its fields, as in `pb:\"1\"`, or use another codec":          &plain{},
		"generated is a message of the protobuf library: use the codec pbstruct.With(protobuf.Codec)": &generated{},
		"int is not a struct":        new(int),
		"nil":                        nil,
		"a nil *pbstruct_test.inner": (*inner)(nil),
		"a nil pointer among":        &sample{Pointers: []*inner{nil}},
		"the value of a key: a nil":  &sample{Messages: map[color]*inner{1: nil}},
		"not UTF-8":                  &sample{Text: "\xff"},
		"a key: a string":            &sample{Map: map[string]int64{"\xff": 1}},
		"element 1: a string":        &sample{Texts: []string{"", "\xff"}},
		"the year 10000":             &sample{At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"deeper than 100":            deep(101),
	} {
		if _, err := pbstruct.Codec.Append(nil, message); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	cycle := &inner{}
	cycle.Y = cycle
	if _, err := pbstruct.Codec.Append(nil, cycle); err == nil || !strings.Contains(err.Error(), "deeper") {
		t.Errorf("a cycle: got %v", err)
	}
	if b, err := pbstruct.Codec.Append(nil, deep(100)); err != nil {
		t.Errorf("100 messages: %v", err)
	} else if err = pbstruct.Codec.Decode(b, new(inner)); err != nil {
		t.Errorf("100 messages: %v", err)
	}
	if err := pbstruct.Codec.Decode(nil, inner{}); err == nil {
		t.Error("Decode takes a value")
	}
}

func TestBrokenMessages(t *testing.T) {
	for says, text := range map[string]string{
		"unexpected EOF":               "08",
		"more than 64 bits":            "08 ffffffffffffffffff02",
		"invalid number":               "00 01",
		"unknown wire type":            "0e 01",
		"ends that has not begun":      "0c",
		"ends that has":                "0b 14",
		"deeper than 100":              strings.Repeat("0b", 101) + strings.Repeat("0c", 101),
		"packed numbers have a":        "d202 03 010203",
		"-129 is too large for int8":   "10 fffeffffffffffffff01",
		"256 is too large for uint8":   "58 8002",
		"32768 is too large for int16": "18 808002",
		"Text (field 20): a string":    "a201 01 ff",
		"within the years 1 to":        "ca01 06 10 80 94 eb dc 03",
		"within 292 years":             "d201 06 08 ffffffff7f",
		"a duration is not valid":      "d201 0d 0801 10 ffffffffffffffffff01",
	} {
		err := pbstruct.Codec.Decode(unhex(t, text), new(sample))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", text, err, says)
		}
	}
	b := []byte{}
	for range 101 {
		b = append([]byte{0x12, byte(len(b)&0x7f | 0x80), byte(len(b) >> 7)}, b...)
	}
	if err := pbstruct.Codec.Decode(b, new(inner)); err == nil || !strings.Contains(err.Error(), "deeper than 100") {
		t.Errorf("got %v", err)
	}
}

// A message of many empty structs must not take many times its size.
func TestMemoryIsBounded(t *testing.T) {
	var huge struct {
		All []sample `pb:"1"`
	}
	if err := pbstruct.Codec.Decode(bytes.Repeat([]byte{0x0a, 0}, 1<<19), &huge); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("got %v", err)
	}
	var small struct {
		All  []inner         `pb:"1"`
		Map  map[int32]inner `pb:"2"`
		Ints []int64         `pb:"3"`
	}
	if err := pbstruct.Codec.Decode(bytes.Repeat([]byte{0x0a, 0}, 1<<19), &small); err != nil || len(small.All) != 1<<19 {
		t.Errorf("got %d structs, %v", len(small.All), err)
	}
	if err := pbstruct.Codec.Decode(bytes.Repeat([]byte{0x0a, 0}, 4<<20), &small); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("a large message: got %d structs, %v", len(small.All), err)
	}
	if err := pbstruct.Codec.Decode(bytes.Repeat([]byte{0x12, 0}, 1<<19), &small); err != nil || len(small.Map) != 1 {
		t.Errorf("got %d entries, %v", len(small.Map), err)
	}
	type wide struct {
		A string `pb:"1"`
		B string `pb:"2"`
		C string `pb:"3"`
		D string `pb:"4"`
		E string `pb:"5"`
		F string `pb:"6"`
	}
	var maps struct {
		All []struct {
			Map map[int32]wide `pb:"1"`
		} `pb:"1"`
	}
	if err := pbstruct.Codec.Decode(bytes.Repeat([]byte{0x0a, 2, 0x0a, 0}, 1<<17), &maps); err == nil || !strings.Contains(err.Error(), "too much memory") { // of one entry each
		t.Errorf("got %d maps, %v", len(maps.All), err)
	}
	packed := append([]byte{0x1a, 0x80, 0x80, 0x40}, make([]byte, 1<<20)...)
	if err := pbstruct.Codec.Decode(packed, &small); err != nil || len(small.Ints) != 1<<20 {
		t.Errorf("got %d numbers, %v", len(small.Ints), err)
	}
}

// A recorder says what With passes to it.
type recorder struct{ yodel.Codec }

func (recorder) Append(dst []byte, _ any) ([]byte, error) { return append(dst, "other"...), nil }

func TestWith(t *testing.T) {
	c := pbstruct.With(recorder{yodel.JSON})
	for message, want := range map[any]string{new(string): "other", &struct{ A int }{}: "other", &inner{X: 1}: "\x08\x01", inner{X: 1}.X: "other", struct{}{}: ""} {
		if b, err := c.Append(nil, message); err != nil || string(b) != want {
			t.Errorf("%T: got %q, %v, want %q", message, b, err, want)
		}
	}
	text := ""
	if err := c.Decode([]byte(`"a"`), &text); err != nil || text != "a" || c.Name() != "protobuf" {
		t.Errorf("got %q, %v", text, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range []any{everything(), &inner{X: 1, Y: &inner{}}, &Item{SKU: "a", Tags: []string{"b"}}} {
		b, err := pbstruct.Codec.Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(unhex(f, "0b 08 05 0b 0c 12 01 ff 0c 08 03"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, into := range []func() any{func() any { return new(sample) }, func() any { return new(inner) }, func() any { return new(Item) }} {
			v := into()
			if pbstruct.Codec.Decode(src, v) != nil {
				continue
			}
			once, err := pbstruct.Codec.Append(nil, v)
			if err != nil {
				t.Fatalf("%T was decoded and cannot be encoded: %v", v, err)
			}
			back := into()
			if err := pbstruct.Codec.Decode(once, back); err != nil {
				t.Fatalf("%x was encoded and cannot be decoded: %v", once, err)
			}
			if again, err := pbstruct.Codec.Append(nil, back); err != nil || len(again) != len(once) {
				t.Fatalf("%x became %x, %v", once, again, err)
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	in := &inner{X: 1, Y: &inner{X: 2}, Z: []int64{1, 2, 3}}
	var b []byte
	if n := testing.AllocsPerRun(100, func() { b, _ = pbstruct.Codec.Append(b[:0], in) }); n > 0 {
		t.Errorf("Append allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = pbstruct.Codec.Decode(b, new(inner)) }); n > 3 { // two structs and a slice
		t.Errorf("Decode allocates %v times, want 3 at most", n)
	}
}

func BenchmarkCodec(b *testing.B) {
	for name, m := range map[string]any{"small": &inner{X: 1, Y: &inner{X: 2}, Z: []int64{1, 2, 3}}, "everything": everything()} {
		encoded, err := pbstruct.Codec.Append(nil, m)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/encode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encoded, _ = pbstruct.Codec.Append(encoded[:0], m)
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			into := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			for b.Loop() {
				_ = pbstruct.Codec.Decode(encoded, into)
			}
		})
	}
}

// A fork leads twice to the next one.
type fork struct {
	Next []*fork `pb:"1"`
	Data []byte  `pb:"2"`
}

// A value whose parts are shared has more bytes than a message can hold.
func TestSharedPartsAreCounted(t *testing.T) {
	many, large := &fork{Data: make([]byte, 1<<10)}, &fork{Data: make([]byte, 1<<20)}
	for range 30 {
		many = &fork{Next: []*fork{many, many}}
	}
	for range 15 {
		large = &fork{Next: []*fork{large, large}}
	}
	for _, f := range []*fork{many, large} {
		if _, err := pbstruct.Codec.Append(nil, f); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
			t.Errorf("the error is %v, want that there are too many bytes", err)
		}
	}
}

// The page of values says what the codec does.
func TestValues(t *testing.T) {
	valuetable.Check(t, pbstruct.Codec, "pbstruct", "../../docs/values.md")
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, pbstruct.Codec, "pbstruct") }
