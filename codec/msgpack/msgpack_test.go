// SPDX-License-Identifier: Apache-2.0

package msgpack_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	std "github.com/vmihailenco/msgpack/v5"

	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type everything struct {
	Bool   bool
	Int    int64
	Small  int8
	Uint   uint32
	Float  float32
	Double float64
	Text   string `msgpack:"t"`
	Bytes  []byte
	Array  [3]int16
	List   []string
	Lists  [][]float64
	Counts map[string]int
	Points map[int]*point
	Point  point
	When   time.Time
	Any    any
	Next   *everything
}

type point struct{ X, Y int }

func samples() []any {
	when := time.Unix(1709209800, 931135488) // its first bytes look like a map
	full := &everything{
		Bool: true, Int: math.MinInt64, Small: -128, Uint: math.MaxUint32, Float: 1.5, Double: math.Pi, Text: "schöne Grüße",
		Bytes: []byte{0, 1, 2, 0xff}, Array: [3]int16{1, 0, -1}, List: []string{"a", "", strings.Repeat("b", 300)},
		Lists: [][]float64{{1.5}, {2, 3}}, Counts: map[string]int{"one": 1, "minus": -1},
		Points: map[int]*point{1: {3, 4}}, Point: point{5, 0}, When: when,
		Any:  map[string]any{"list": []any{int64(1), "two", nil, true}, "when": when},
		Next: &everything{Text: strings.Repeat("next", 20_000), When: when},
	}
	number, text, raw, list, table := -1, "text", []byte("bytes"), []point{{1, 2}, {}}, map[string][]int{"a": {1}}
	return []any{full, &everything{When: when}, &point{3, -4}, &number, &text, &raw, &list, &table, &when}
}

func TestKeepsTheContract(t *testing.T) {
	yodeltest.TestCodec(t, msgpack.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["msgpack"]}, samples()...)
}

func TestBytesAreThoseOfTheLibrary(t *testing.T) {
	for _, want := range samples() {
		theirs, err := std.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := msgpack.Codec.Decode(theirs, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decoded the library's %T to %+v, error %v", want, got, err)
		}
		ours, err := msgpack.Codec.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got = reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := std.Unmarshal(ours, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the library decoded our %T to %+v, error %v", want, got, err)
		}
	}
}

// A generated message has methods like those of msgp.
type generated struct {
	text string
	err  error
}

func (g *generated) MarshalMsg(dst []byte) ([]byte, error) { return append(dst, g.text...), g.err }

func (g *generated) UnmarshalMsg(src []byte) ([]byte, error) {
	if len(src) == 0 {
		panic("no bytes")
	}
	if src[0] == unwilling {
		return src, errUnwilling
	}
	g.text = string(src[:1])
	return src[1:], nil
}

const unwilling = 0x2a // a message that UnmarshalMsg refuses

var errUnwilling = errors.New("unwilling")

func TestUsesGeneratedMethods(t *testing.T) {
	for _, v := range []any{&generated{text: "\x07"}, generated{text: "\x07"}} {
		if b, err := msgpack.Codec.Append([]byte("was:"), v); err != nil || string(b) != "was:\x07" {
			t.Errorf("Append of a %T: got %q and error %v", v, b, err)
		}
	}
	var got generated
	if err := msgpack.Codec.Decode([]byte("\x07"), &got); err != nil || got.text != "\x07" {
		t.Errorf("Decode: got %q and error %v", got.text, err)
	}
	if msgpack.Codec.Decode([]byte("\xa1a"), &got) == nil {
		t.Error("Decode: a byte that UnmarshalMsg had left was no error")
	}
	want := errUnwilling
	if _, err := msgpack.Codec.Append(nil, &generated{err: want}); !errors.Is(err, want) {
		t.Errorf("Append: got error %v, want %v", err, want)
	}
	if err := msgpack.Codec.Decode([]byte{unwilling}, new(generated)); !errors.Is(err, want) {
		t.Errorf("Decode: got error %v, want %v", err, want)
	}
}

type tree struct {
	Kids  []tree
	Named map[string]map[string]string
	Any   any
}

// In a chain, vmihailenco's decoder takes the map behind an empty extension for one in its place.
type chain []map[string]chain

func TestHostileMessagesAreErrors(t *testing.T) {
	tests := map[string]struct {
		src    string
		target any
	}{
		"an array of 2^32 strings":         {"\xdd\xff\xff\xff\xff", new([]string)},
		"an array of 2^32 structs":         {"\xdd\xff\xff\xff\xff", new([]tree)},
		"an array of 2^32 of anything":     {"\xdd\xff\xff\xff\xff", new(any)},
		"a map of 2^32":                    {"\xdf\xff\xff\xff\xff", new(map[string]int)},
		"bytes of 2^32":                    {"\xc6\xff\xff\xff\xff", new([]byte)},
		"a million arrays":                 {strings.Repeat("\x91", 1e6) + "\xc0", new(any)},
		"ten million trees":                {strings.Repeat("\x81\xa4Kids\x91", 1e7) + "\xc0", new(tree)},
		"a map in an extension":            {"\xd7\xff\xdf\xff\xff\xff\xff\x00\x00\x00", new(map[string]string)},
		"neighbours that nest":             {"\xdd\x00\x3d\x09\x00" + strings.Repeat("\x81\xa1a\x91\xc7\x00\xff", 4e6), new(chain)},
		"a code that there is not":         {"\xc1", new(any)},
		"a length that is cut":             {"\xdd\xff", new([]string)},
		"a key that cannot be one":         {"\x81\x91\x01\x01", new(map[any]int)},
		"an interned string":               {"\x92\xa3abc\xd4\x80\x00", new([]string)},
		"nothing":                          {"", new(any)},
		"a value and another":              {"\x01\x01", new(int)},
		"maps that announce one another's": {"\xdf\x00\x00\x00\x02\xa1a\xdf\x00\x00\x00\x02\xa1b\x01", new(tree)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			src := []byte(test.src)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if msgpack.Codec.Decode(src, test.target) == nil {
				t.Error("got no error")
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("allocated %d bytes", n)
			}
		})
	}
}

func TestExtensionsInTheirPlaceDecode(t *testing.T) {
	want := []time.Time{time.Unix(1, 0), time.Unix(1709209800, 935329792), time.Unix(-1, 5)} // of 4, 8 and 12 bytes
	b, err := msgpack.Codec.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	var got []time.Time
	if err := msgpack.Codec.Decode(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v and error %v, want %v", got, err, want)
	}
	if err := msgpack.Codec.Decode(b, new(any)); err != nil {
		t.Errorf("into any: %v", err)
	}
	// An unknown field is passed over, with an extension of a type that nobody knows.
	if err := msgpack.Codec.Decode([]byte("\x82\xa1Z\xd6\x2a\xdf\xff\xff\xff\xa1X\x07"), new(point)); err != nil {
		t.Errorf("in an unknown field: %v", err)
	}
}

// A list is encoded as an array of its fields, as the documentation of the library says.
type list struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // the library reads its tag
	ID       int
	Name     string
}

func TestStructsMayBeArrays(t *testing.T) {
	if err := checkType(list{}); err != nil {
		t.Fatal(err)
	}
	b, err := msgpack.Codec.Append(nil, &list{ID: 7, Name: "a"})
	if want := "\x92\x07\xa1a"; err != nil || string(b) != want {
		t.Fatalf("got %q and error %v, want %q", b, err, want)
	}
	got := new(list)
	if err := msgpack.Codec.Decode(b, got); err != nil || got.ID != 7 || got.Name != "a" {
		t.Errorf("got %+v and error %v", got, err)
	}
	if checkType(struct {
		id int `msgpack:"id"`
	}{1}) == nil {
		t.Error("another unexported field with a tag was accepted")
	}
}

func checkType(v any) error {
	return msgpack.Codec.(interface{ CheckType(reflect.Type) error }).CheckType(reflect.TypeOf(v))
}

// Interfaces carry maps whose keys are not strings, also deep in another value.
func TestMapsInInterfaces(t *testing.T) {
	type counts struct{ ByCode map[int]string }
	for _, test := range []struct{ v, want any }{
		{map[int]string{1: "a"}, map[any]any{int8(1): "a"}},
		{map[bool]int8{true: 2}, map[any]any{true: int8(2)}},
		{map[any]any{"a": int8(1), 2.5: nil}, map[any]any{"a": int8(1), 2.5: nil}},
		{map[string]any{"x": map[int]string{1: "a"}}, map[string]any{"x": map[any]any{int8(1): "a"}}},
		{&counts{map[int]string{1: "a"}}, map[string]any{"ByCode": map[any]any{int8(1): "a"}}},
		{[]map[float64]string{{0.5: "a"}, {}}, []any{map[any]any{0.5: "a"}, map[string]any{}}},
		{map[netip.Addr]string{netip.MustParseAddr("::1"): "a"}, map[string]any{string(netip.IPv6Loopback().AsSlice()): "a"}},
		{large(20), large(20)},
	} {
		b, err := msgpack.Codec.Append(nil, &everything{Any: test.v})
		if err != nil {
			t.Errorf("%v: %v", test.v, err)
			continue
		}
		got := new(everything)
		if err := msgpack.Codec.Decode(b, got); err != nil {
			t.Errorf("%v: %v", test.v, err)
		} else if !reflect.DeepEqual(got.Any, test.want) {
			t.Errorf("%v became %#v, want %#v", test.v, got.Any, test.want)
		}
	}
}

func large(n int) map[any]any {
	m := make(map[any]any)
	for i := range n {
		m[int8(i)] = "x"
	}
	return m
}

func TestEmbeddedUnexportedValuesAreRefused(t *testing.T) {
	type number int
	if err := checkType(struct {
		number
		A int
	}{1, 2}); err == nil || !strings.Contains(err.Error(), "number") {
		t.Errorf("got %v", err) // the library panics while it decodes
	}
}

func FuzzDecode(f *testing.F) {
	for _, sample := range samples() {
		b, err := msgpack.Codec.Append(nil, sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 1000)])
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, target := range append(samples(), new(any), new(map[any]any), new(map[string]map[string]any), new(tree)) {
			got := reflect.New(reflect.TypeOf(target).Elem()).Interface()
			if msgpack.Codec.Decode(src, got) != nil {
				continue
			}
			if _, err := msgpack.Codec.Append(nil, got); err != nil {
				t.Fatalf("cannot encode the %T that was decoded: %v", got, err)
			}
		}
	})
}

func benchmarkMessage() *everything {
	m := *samples()[0].(*everything)
	m.Next = nil
	return &m
}

func BenchmarkAppend(b *testing.B) {
	m := benchmarkMessage()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = msgpack.Codec.Append(dst[:0], m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src, err := msgpack.Codec.Append(nil, benchmarkMessage())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := msgpack.Codec.Decode(src, new(everything)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodePlain is what the library costs, which trusts the bytes.
func BenchmarkDecodePlain(b *testing.B) {
	src, err := msgpack.Codec.Append(nil, benchmarkMessage())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := std.Unmarshal(src, new(everything)); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	type Args struct {
		A int `msgpack:"a"`
		B int `msgpack:"b"`
	}
	b, err := msgpack.Codec.Append(nil, &Args{A: 7, B: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	var args Args
	err = msgpack.Codec.Decode(b, &args)
	fmt.Println(bytes.HasPrefix(b, []byte("\x82\xa1a")), args, err)
	// Output: true {7 8} <nil>
}

// The page of values says what the codec does.
func TestValues(t *testing.T) { valuetable.Check(t, msgpack.Codec, "msgpack", "../../docs/values.md") }

// The library reads all values that the codec carries as the codec does, and the other way round.
func TestValuesBesideTheLibrary(t *testing.T) {
	tried := valuetable.Compare(t, msgpack.Codec, valuetable.Reference{Encode: std.Marshal, Decode: std.Unmarshal})
	if tried != 177 {
		t.Errorf("%d values were compared", tried)
	}
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, msgpack.Codec, "msgpack") }
