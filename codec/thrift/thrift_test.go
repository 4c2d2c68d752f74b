// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// codecs are the codecs that the tests check.
var codecs = []yodel.Codec{thrift.Codec, thrift.Compact}

type Color int32

// Wide is an enum as Apache's compiler declares it.
type Wide int64

type Inner struct {
	X int32   `thrift:"x,1"`
	Y *Inner  `thrift:"y,2"`
	Z []int64 `thrift:"z,3"`
}

type Union struct {
	_      struct{} `thrift:",union"`
	Number *int32   `thrift:"number,1"`
	Text   *string  `thrift:"text,2"`
}

type Args struct {
	_ struct{} `thrift:",args"`
	A int32    `thrift:"a,1"`
	B int32    `thrift:"b,2"`
}

// everything returns a sample with every field.
func everything() *Sample {
	return &Sample{
		Flag: true, Tiny: -7, Byte: 200, Short: -30000, Int: math.MinInt32, Long: math.MaxInt64, Host: -1, Double: -2.5, Text: "ünï\x00",
		Data: []byte{0, 255}, ID: [16]byte{1, 15: 16}, Color: 3, Wide: -4, Inner: Inner{X: 1}, Maybe: &Inner{Y: &Inner{Z: []int64{}}},
		Flags: []bool{true, false}, List: make([]int32, 20), Lists: [][]string{{"a"}, {}}, Structs: []*Inner{{X: 5}},
		Set: []int16{3, 4}, Empty: map[string]struct{}{"x": {}, "": {}}, Bools: map[int8]bool{-3: true}, Switches: map[string]bool{"on": true, "off": false},
		Map: map[Color]Inner{2: {X: 9}}, MaybeInt: new(int64(0)), MaybeOff: new(false), MaybeStr: new(""),
	}
}

// A Sample has a field of every type.
type Sample struct {
	Flag     bool                `thrift:"flag,1"`
	Tiny     int8                `thrift:"tiny,2"`
	Byte     byte                `thrift:"3"`
	Short    int16               `thrift:"short,4"`
	Int      int32               `thrift:"int,5" json:"int"`
	Long     int64               `thrift:"long,6,default"`
	Host     int                 `thrift:"host,7"`
	Double   float64             `thrift:"double,8"`
	Text     string              `thrift:"text,9,required"`
	Data     []byte              `thrift:"data,10"`
	ID       [16]byte            `thrift:"id,11"`
	Color    Color               `thrift:"color,12"`
	Wide     Wide                `thrift:"wide,13,enum"`
	Inner    Inner               `thrift:"inner,14"`
	Maybe    *Inner              `thrift:"maybe,15"`
	Flags    []bool              `thrift:"flags,16"`
	List     []int32             `thrift:"list,40"`
	Lists    [][]string          `thrift:"lists,41"`
	Structs  []*Inner            `thrift:"structs,42"`
	Set      []int16             `thrift:"set,300,set"`
	Empty    map[string]struct{} `thrift:"empty,301"`
	Bools    map[int8]bool       `thrift:"bools,302,set"`
	Switches map[string]bool     `thrift:"switches,303"`
	Map      map[Color]Inner     `thrift:"map,304"`
	MaybeInt *int64              `thrift:"maybe_int,-1"`
	MaybeOff *bool               `thrift:"maybe_off,306"`
	MaybeStr *string             `thrift:"maybe_str,307"`
	Quiet    int32               `thrift:"quiet,308,optional"`
	Left     any                 `thrift:"-"`
}

func TestContract(t *testing.T) {
	for _, c := range codecs {
		t.Run(c.Name(), func(t *testing.T) {
			yodeltest.TestCodec(t, c, &yodeltest.CodecOptions{Changes: valuetable.Changes["thrift"]},
				everything(), &Sample{}, &Inner{X: 1, Z: []int64{1, 2, 3}}, &struct{}{}, &Union{Text: new("x")}, &Args{A: 1, B: 2},
				new("hello"), new(int64(-5)), new(true), new(2.5), &[]string{"a", "b"}, &map[string]int32{"a": 1}, &[]byte{1, 2}, &[16]byte{3},
				&[]map[int8]struct{}{{1: {}}})
		})
	}
}

// The bytes are those of the specification, and of Apache's implementation.
func TestBytes(t *testing.T) {
	type Small struct {
		A bool              `thrift:"a,1"`
		B bool              `thrift:"b,2"`
		C int16             `thrift:"c,3"`
		D string            `thrift:"d,20"`
		E []bool            `thrift:"e,21"`
		F map[string]int32  `thrift:"f,22"`
		G map[int8]struct{} `thrift:"g,23"`
	}
	small := &Small{A: true, C: -2, D: "hi", E: []bool{true, false}, F: map[string]int32{"k": 300}, G: map[int8]struct{}{5: {}}}
	long := make([]int8, 15)
	for _, test := range []struct {
		message         any
		binary, compact string
	}{
		{small, "020001 01 020002 00 060003 fffe 0b0014 00000002 6869 0f0015 02 00000002 01 00 0d0016 0b08 00000001 00000001 6b 0000012c 0e0017 03 00000001 05 00",
			"11 12 14 03 0828 02 6869 19 21 01 02 1b 01 85 01 6b d804 1a 13 05 00"},
		{&struct{}{}, "00", "00"},
		{&Inner{X: 1, Y: &Inner{}}, "080001 00000001 0c0002 080001 00000000 00 00", "15 02 1c 15 00 00 00"},
		{&struct {
			M map[int8]int8 `thrift:"1"`
			L []int8        `thrift:"2"`
		}{map[int8]int8{}, long}, "0d0001 0303 00000000 0f0002 03 0000000f" + strings.Repeat("00", 15) + "00", "1b 00 19 f3 0f" + strings.Repeat("00", 15) + "00"},
		{&struct {
			D float64  `thrift:"1"`
			U [16]byte `thrift:"2"`
			N int32    `thrift:"-2"`
		}{1, [16]byte{15: 9}, -1}, "08fffe ffffffff 040001 3ff0000000000000 100002" + strings.Repeat("00", 15) + "09 00",
			"0503 01 37 000000000000f03f 1d" + strings.Repeat("00", 15) + "09 00"},
		{new("hi"), "8b 00000002 6869", "80 02 6869"},
		{new(true), "82 01", "10"},
		{new(false), "82 00", "20"},
		{new(int32(-1)), "88 ffffffff", "50 01"},
		{&[]int32{1}, "8f 08 00000001 00000001", "90 15 02"},
		{&Args{A: 1}, "ff 080001 00000001 080002 00000000 00", "f0 15 02 15 00 00"},
	} {
		for i, want := range []string{test.binary, test.compact} {
			got, err := codecs[i].Append(nil, test.message)
			if err != nil || hex.EncodeToString(got) != strings.ReplaceAll(want, " ", "") {
				t.Errorf("%s of %T:\n got %x, %v\nwant %s", codecs[i].Name(), test.message, got, err, strings.ReplaceAll(want, " ", ""))
			}
			back := reflect.New(reflect.TypeOf(test.message).Elem()).Interface()
			if err := codecs[i].Decode(got, back); err != nil || !reflect.DeepEqual(back, test.message) {
				t.Errorf("%s: got %v, %v, want %v", codecs[i].Name(), back, err, test.message)
			}
		}
	}
}

// Other forms of the same values are decoded too.
func TestDecodeOtherForms(t *testing.T) {
	type Set struct {
		S map[int8]struct{} `thrift:"1"`
	}
	for _, test := range []struct {
		compact bool
		bytes   string
		want    any
	}{
		{false, "0f0001 03 00000001 07 00", &Set{map[int8]struct{}{7: {}}}}, // a list
		{false, "0e0001 00 00000000 00", &Set{map[int8]struct{}{}}},         // elements without a type
		{true, "0a02 13 07 00", &Set{map[int8]struct{}{7: {}}}},             // a long number
		{true, "90 11 01", &[]bool{true}},                                   // the other number of bool
		{true, "90 12 00", &[]bool{false}},                                  // false as zero
		{false, "00", new(int64(0))},                                        // a value left out
		{false, "ff 080001 00000007 0b0002 00000001 61 00", new(int32(7))},  // the first argument
		{false, "ff 00", new(int32(0))},                                     // no argument
		{true, "f0 15 0e 18 01 61 00", new(int32(7))},                       //
		{false, "ff 0c0001 080001 00000007 00 00", &Inner{X: 7}},            // a struct as argument
		{false, "ff 080001 00000007 00", &Inner{X: 7}},                      // the arguments themselves
		{true, "f0 11 00", new(true)},                                       //
		{true, "f0 11 00", &struct {
			B bool `thrift:"1"`
		}{true}}, //
		{false, "ff 080001 00000007 0c0002 080001 00000001 00 00", &Inner{7, &Inner{X: 1}, nil}}, //
		{false, "080009 00000007 0d000a 0b0f 00000001 00000001 61 0c 00000001 00 00", &Inner{}},  // unknown fields
	} {
		src, err := hex.DecodeString(strings.ReplaceAll(test.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		c := thrift.Codec
		if test.compact {
			c = thrift.Compact
		}
		got := reflect.New(reflect.TypeOf(test.want).Elem()).Interface()
		if err := c.Decode(src, got); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", test.bytes, got, err, test.want)
		}
	}
}

// deep returns a chain of n structs.
func deep(n int) *Inner {
	var chain *Inner
	for range n {
		chain = &Inner{Y: chain}
	}
	return chain
}

func TestFaults(t *testing.T) {
	type noNumber struct {
		A int32 `thrift:"1"`
		B int32
	}
	cycle := &Inner{}
	cycle.Y = cycle
	for name, test := range map[string]struct {
		message any
		says    string
	}{
		"no number": {&noNumber{}, "B has no number"},
		"twice": {&struct {
			A, B int32 `thrift:"1"`
		}{}, "same number 1"},
		"no type": {&struct {
			A uint32 `thrift:"1"`
		}{}, "uint32 is no type of Thrift"},
		"interface": {&struct {
			A any `thrift:"1"`
		}{}, "no type"},
		"array": {&struct {
			A [4]byte `thrift:"1"`
		}{}, "[16]byte"},
		"option": {&struct {
			A int32 `thrift:"a,1,packed"`
		}{}, `unknown option "packed"`},
		"tag": {&struct {
			A int32 `thrift:"a"`
		}{}, "has no number"},
		"large number": {&struct {
			A int32 `thrift:"a,40000"`
		}{}, "has no number"},
		"no set": {&struct {
			A int32 `thrift:"1,set"`
		}{}, "is no set"},
		"no enum": {&struct {
			A string `thrift:"1,enum"`
		}{}, "is no enum"},
		"list of enums": {&struct {
			A []Wide `thrift:"1,enum"`
		}{}, "int32"},
		"hidden": {&struct {
			a int32 `thrift:"1"`
		}{}, "not exported"},
		"required and nil": {&struct {
			A *int32 `thrift:"1,required"`
		}{}, "required, and nil"},
		"large enum": {&struct {
			A Wide `thrift:"1,enum"`
		}{1 << 40}, "too large"},
		"nil element": {&[]*Inner{nil}, "nil pointer"},
		"empty union": {&Union{}, "0 fields"},
		"full union":  {&Union{Number: new(int32), Text: new(string)}, "2 fields"},
		"deep":        {deep(65), "deeper than 64"},
		"cycle":       {cycle, "deeper than 64"},
	} {
		if _, err := thrift.Codec.Append(nil, test.message); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", name, err, test.says)
		}
	}
	for name, test := range map[string]struct {
		into  any
		bytes string
		says  string
	}{
		"missing":              {&Sample{}, "00", "Text (field 9) is required"},
		"another type":         {&Inner{}, "0b0001 00000000 00", "string, want i32"},
		"another element":      {&Inner{}, "0f0003 08 00000001 00000001 00", "i32, want i64"},
		"another message":      {new(string), "88 00000001", "i32, want string"},
		"a struct":             {new(string), "080001 00000001 00", "a struct, want string"},
		"no struct":            {&Inner{}, "88 00000001", "i32, want struct"},
		"nothing":              {&Inner{}, "", "empty"},
		"unknown type":         {&Inner{}, "110001 00", "unknown type 17"},
		"unknown element type": {&Inner{}, "0f0009 11 00000001 00", "unknown type 17"},
		"negative":             {&Inner{}, "0b0009 ffffffff 00", "negative"},
		"long list":            {&Inner{}, "0f0003 0a 7fffffff 00", "unexpected EOF"},
		"two of a union":       {&Union{}, "080001 00000001 0b0002 00000000 00", "2 fields"},
		"argument":             {new(string), "ff 080001 00000001 00", "argument 1"},
		"enum": {&struct {
			A Color `thrift:"1"`
		}{}, "0a0001 0000000100000000 00", "i64, want i32"},
		"deep unknown": {&struct{}{}, strings.Repeat("0c0001", 65) + strings.Repeat("00", 66), "deeper"},
		"deep":         {&Inner{}, strings.Repeat("0c0002", 64) + strings.Repeat("00", 65), "deeper"},
	} {
		src, err := hex.DecodeString(strings.ReplaceAll(test.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := thrift.Codec.Decode(src, test.into); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", name, err, test.says)
		}
	}
	if _, err := thrift.Codec.Append(nil, deep(64)); err != nil {
		t.Errorf("64 structs: %v", err)
	}
}

// A message of many empty structs must not take many times its size.
func TestMemoryIsBounded(t *testing.T) {
	src := append([]byte{0x8f, 0x0c, 0, 0x10, 0, 0}, make([]byte, 1<<20)...)
	var huge []Sample
	if err := thrift.Codec.Decode(src, &huge); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("got %v", err)
	}
	var inner []Inner
	if err := thrift.Codec.Decode(src, &inner); err != nil || len(inner) != 1<<20 {
		t.Errorf("got %d structs, %v", len(inner), err)
	}
	src = append([]byte{0x8f, 0x0c, 0, 0x80, 0, 0}, make([]byte, 8<<20)...)
	if err := thrift.Codec.Decode(src, &inner); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("a large message: got %d structs, %v", len(inner), err)
	}
	src = append([]byte{0x8f, 0x0d, 0, 1, 0x80, 0}, bytes.Repeat([]byte{8, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0}, 0x18000)...) // of one key and an empty struct each
	var maps []map[int32]struct {
		A string `thrift:"1"`
		B string `thrift:"2"`
		C string `thrift:"3"`
		D string `thrift:"4"`
		E string `thrift:"5"`
		F string `thrift:"6"`
		G string `thrift:"7"`
	}
	if err := thrift.Codec.Decode(src, &maps); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("maps: got %d, %v", len(maps), err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range codecs {
		for _, sample := range []any{everything(), &Inner{X: 1, Y: &Inner{}}, &Args{A: 1}, new("x")} {
			b, err := c.Append(nil, sample)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, c := range codecs {
			for _, into := range []func() any{
				func() any { return new(Sample) }, func() any { return new(Inner) }, func() any { return new(Union) },
				func() any { return new(string) }, func() any { return new([]map[string]bool) }, func() any { return new(Args) },
			} {
				v := into()
				if c.Decode(bytes.Clone(src), v) != nil {
					continue
				}
				once, err := c.Append(nil, v)
				if err != nil { // a union without a field that is known
					if _, ok := v.(*Union); ok {
						continue
					}
					t.Fatalf("%s: %T was decoded and cannot be encoded: %v", c.Name(), v, err)
				}
				back := into()
				if err := c.Decode(once, back); err != nil {
					t.Fatalf("%s: %x was encoded and cannot be decoded: %v", c.Name(), once, err)
				}
				if again, err := c.Append(nil, back); err != nil || len(again) != len(once) {
					t.Fatalf("%s: %x became %x, %v", c.Name(), once, again, err)
				}
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	in := &Inner{X: 1, Y: &Inner{X: 2}, Z: []int64{1, 2, 3}}
	for _, c := range codecs {
		var b []byte
		if n := testing.AllocsPerRun(100, func() { b, _ = c.Append(b[:0], in) }); n > 0 {
			t.Errorf("%s: Append allocates %v times, want 0", c.Name(), n)
		}
		if n := testing.AllocsPerRun(100, func() { _ = c.Decode(b, new(Inner)) }); n > 5 {
			t.Errorf("%s: Decode allocates %v times, want 5 at most", c.Name(), n)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, c := range codecs {
		for name, sample := range map[string]any{"small": &Inner{X: 1, Y: &Inner{X: 2}, Z: []int64{1, 2, 3}}, "everything": everything()} {
			encoded, err := c.Append(nil, sample)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(c.Name()+"/"+name+"/encode", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					encoded, _ = c.Append(encoded[:0], sample)
				}
			})
			b.Run(c.Name()+"/"+name+"/decode", func(b *testing.B) {
				b.ReportAllocs()
				into := reflect.New(reflect.TypeOf(sample).Elem())
				for b.Loop() {
					into.Elem().SetZero()
					_ = c.Decode(encoded, into.Interface())
				}
			})
		}
	}
}

// A fork leads twice to the next one.
type fork struct {
	Next []*fork `thrift:"1"`
	Data []byte  `thrift:"2"`
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
		if _, err := thrift.Codec.Append(nil, f); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
			t.Errorf("the error is %v, want that there are too many bytes", err)
		}
	}
}

// The page of values says what the codec does.
func TestValues(t *testing.T) { valuetable.Check(t, thrift.Codec, "thrift", "../../docs/values.md") }

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) {
	valuetable.Combine(t, thrift.Codec, "thrift")
	valuetable.Combine(t, thrift.Compact, "thrift")
}
