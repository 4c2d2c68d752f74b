// SPDX-License-Identifier: Apache-2.0

package gob_test

import (
	"bytes"
	std "encoding/gob"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type everything struct {
	Bool    bool
	Int     int64
	Uint    uint8
	Float   float64
	Complex complex64
	Text    string
	Bytes   []byte
	Array   [3]int16
	List    []string
	Lists   [][]float32
	Counts  map[string]int
	Points  map[point]*point
	Point   point
	When    time.Time // encodes itself
	Next    *everything
}

type point struct{ X, Y int }

func samples() []any {
	when := time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC)
	full := &everything{
		Bool: true, Int: math.MinInt64, Uint: 255, Float: math.Pi, Complex: 2 - 3i, Text: "schöne Grüße",
		Bytes: []byte{0, 1, 2, 0xff}, Array: [3]int16{1, 0, -1}, List: []string{"a", "", strings.Repeat("b", 300)},
		Lists: [][]float32{{1.5}, {2, 3}}, Counts: map[string]int{"one": 1, "minus": -1},
		Points: map[point]*point{{1, 2}: {3, 4}}, Point: point{5, 0}, When: when,
		Next: &everything{Text: "next", When: when},
	}
	number, text, raw, list, table := -1, "text", []byte("bytes"), []point{{1, 2}, {}}, map[string][]int{"a": {1}}
	pointer := &point{7, 8}
	return []any{full, &everything{When: when}, &point{3, -4}, &number, &text, &raw, &list, &table, &when, &pointer}
}

func TestKeepsTheContract(t *testing.T) {
	yodeltest.TestCodec(t, gob.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["gob"]}, samples()...)
}

// A shape is what holder keeps in interfaces.
type shape interface{ Area() float64 }

type square struct{ Side float64 }

func (s square) Area() float64 { return s.Side * s.Side }

type frame struct{ Inside any }

type holder struct {
	Shape  shape
	Things []any
}

func TestInterfacesRoundTripAndStayComplete(t *testing.T) {
	std.Register(square{})
	std.Register(frame{})
	want := holder{Shape: square{2}, Things: []any{1, "two", frame{square{3}}, frame{frame{4.5}}}}
	for range 3 { // the definition of a square must come each time
		b, err := gob.Codec.Append(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		var got holder
		if err := gob.Codec.Decode(b, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v and error %v, want %+v", got, err, want)
		}
		var plain holder
		if err := std.NewDecoder(bytes.NewReader(b)).Decode(&plain); err != nil || !reflect.DeepEqual(plain, want) {
			t.Errorf("encoding/gob got %+v and error %v, want %+v", plain, err, want)
		}
		if gob.Codec.Decode(append(b, 0), &got) == nil {
			t.Error("a byte behind the message was no error")
		}
	}
}

func TestEveryMessageIsComplete(t *testing.T) {
	for _, want := range samples() {
		for range 3 {
			b, err := gob.Codec.Append(nil, want)
			if err != nil {
				t.Fatal(err)
			}
			got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
			if err := std.NewDecoder(bytes.NewReader(b)).Decode(got); err != nil {
				t.Fatalf("encoding/gob cannot read a %T: %v", want, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("encoding/gob got %+v, want %+v", got, want)
			}
		}
	}
}

func TestDecodesWhatAPlainEncoderWrote(t *testing.T) {
	for _, want := range samples() {
		var b bytes.Buffer
		if err := std.NewEncoder(&b).Encode(want); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
			if err := gob.Codec.Decode(b.Bytes(), got); err != nil {
				t.Fatalf("%T: %v", want, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
	}
}

// Versions of one type, as programs of different age have it.
type (
	oldUser struct{ Name string }
	newUser struct {
		Name    string
		Age     int
		Friends map[string]*newUser
		Extra   any
	}
)

func TestVersionsOfATypeDecodeEachOther(t *testing.T) {
	type user struct{ Name string }
	for range 3 {
		for _, peer := range []any{&oldUser{"Ada"}, &newUser{Name: "Ada", Age: 36, Friends: map[string]*newUser{"Charles": {}}}} {
			b, err := gob.Codec.Append(nil, peer)
			if err != nil {
				t.Fatal(err)
			}
			var got user
			if err := gob.Codec.Decode(b, &got); err != nil || got.Name != "Ada" {
				t.Errorf("%T decoded to %+v, error %v", peer, got, err)
			}
		}
	}
	b, err := gob.Codec.Append(nil, &newUser{Name: "Ada", Extra: "an interface value that nobody asked for"})
	if err != nil {
		t.Fatal(err)
	}
	if err := gob.Codec.Decode(b, new(user)); err == nil || !strings.Contains(err.Error(), "interface") {
		t.Errorf("got error %v, want one that names the interface", err)
	}
}

// TestManyPeersDecode has more definitions of one type than are remembered.
func TestManyPeersDecode(t *testing.T) {
	type user struct{ Name string }
	for range 2 {
		for i := range 20 {
			peer := reflect.New(reflect.StructOf([]reflect.StructField{
				{Name: "Name", Type: reflect.TypeFor[string]()},
				{Name: fmt.Sprintf("Field%d", i), Type: reflect.TypeFor[int]()},
			}))
			peer.Elem().Field(0).SetString("Ada")
			b, err := gob.Codec.Append(nil, peer.Interface())
			if err != nil {
				t.Fatal(err)
			}
			var got user
			if err := gob.Codec.Decode(b, &got); err != nil || got.Name != "Ada" {
				t.Fatalf("peer %d: got %+v, error %v", i, got, err)
			}
		}
	}
}

type tree struct {
	Kids  []tree
	Names map[string]string
}

// lastMessage splits what a gob encoder wrote into all before its last message, and that message
// without its length. See the package comment of encoding/gob for unsigned integers.
func lastMessage(b []byte) (before, last []byte) {
	for at := 0; at < len(b); {
		n, size := int(b[at]), 1
		if n >= 0x80 { // the negated count of the bytes that follow
			size += 0x100 - n
			n = 0
			for _, digit := range b[at+1 : at+size] {
				n = n<<8 | int(digit)
			}
		}
		before, last = b[:at], b[at+size:at+size+n]
		at += size + n
	}
	return before, last
}

func TestHostileMessagesAreErrors(t *testing.T) {
	valid, err := gob.Codec.Append(nil, &tree{})
	if err != nil {
		t.Fatal(err)
	}
	definitions, value := lastMessage(valid)
	id := value[:len(value)-1] // the empty value follows the number of its type
	message := func(value string) []byte {
		body := append(bytes.Clone(id), value...)
		length := len(body)
		size := []byte{0xfc, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
		return bytes.Join([][]byte{definitions, size, body}, nil)
	}
	if err := gob.Codec.Decode(message("\x00"), new(tree)); err != nil {
		t.Fatalf("the test does not make valid messages: %v", err)
	}
	tests := map[string]string{
		"a map with 2^40 elements":      "\x02\xfa\x01\x00\x00\x00\x00\x00\x00",
		"a map with 2^30 elements":      "\x02\xfc\x40\x00\x00\x00\x00",
		"a slice with 2^30 elements":    "\x01\xfc\x40\x00\x00\x00\x00",
		"a negative count":              "\x01\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00",
		"a field that is not there":     "\x03\x00",
		"a million levels":              strings.Repeat("\x01\x01", 1e6) + strings.Repeat("\x00", 1e6+1),
		"a string that ends elsewhere":  "\x02\x01\x7fab",
		"a number of nine bytes":        "\x01\xf7\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00",
		"elements of which one is cut":  "\x01\x02\x00",
		"a value with another behind":   "\x00\x00",
		"a value without an end marker": "\x01\x01\x00",
	}
	for name, value := range tests {
		t.Run(name, func(t *testing.T) {
			if gob.Codec.Decode(message(value), new(tree)) == nil {
				t.Error("got no error")
			}
		})
	}
}

type stubborn struct{ point }

func (*stubborn) GobEncode() ([]byte, error) { return []byte("x"), nil }
func (*stubborn) GobDecode([]byte) error     { panic("no") }

func TestPanicOfAMessageIsAnError(t *testing.T) {
	b, err := gob.Codec.Append(nil, new(stubborn))
	if err != nil {
		t.Fatal(err)
	}
	if err := gob.Codec.Decode(b, new(stubborn)); err == nil || !strings.HasSuffix(err.Error(), ": it panicked") {
		t.Errorf("got error %v, want one without the value of the panic", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, sample := range samples() {
		b, err := gob.Codec.Append(nil, sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, sample := range samples() {
			got := reflect.New(reflect.TypeOf(sample).Elem()).Interface()
			if gob.Codec.Decode(src, got) != nil {
				continue
			}
			if _, err := gob.Codec.Append(nil, got); err != nil {
				t.Fatalf("cannot encode the %T that was decoded: %v", got, err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	message := samples()[0]
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = gob.Codec.Append(dst[:0], message); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendPlain is what a new encoder for each message costs.
func BenchmarkAppendPlain(b *testing.B) {
	message := samples()[0]
	var dst bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		dst.Reset()
		if err := std.NewEncoder(&dst).Encode(message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src, err := gob.Codec.Append(nil, samples()[0])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := gob.Codec.Decode(src, new(everything)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodePlain is what a new decoder for each message costs.
func BenchmarkDecodePlain(b *testing.B) {
	src, err := gob.Codec.Append(nil, samples()[0])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := std.NewDecoder(bytes.NewReader(src)).Decode(new(everything)); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	type Args struct{ A, B int }

	b, err := gob.Codec.Append(nil, &Args{A: 7, B: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	var args Args
	err = gob.Codec.Decode(b, &args)
	fmt.Println(args, err)
	// Output: {7 8} <nil>
}

// The page of values says what the codec does.
func TestValues(t *testing.T) { valuetable.Check(t, gob.Codec, "gob", "../../docs/values.md") }

// Gob leaves out a pointer to zero, which would arrive as nil.
func TestPointersToZeroAreRefused(t *testing.T) {
	type line struct{ Discount *int }
	type order struct {
		Note  *string
		Lines []line
		ByID  map[string]*line
		Any   any
	}
	zero, one := 0, 1
	for at, bad := range map[string]*order{
		"order.Note ": {Note: new(string)}, "order.Lines[1].Discount ": {Lines: []line{{&one}, {&zero}}},
		"order.ByID[…].Discount ": {ByID: map[string]*line{"a": {&zero}}},
	} {
		if _, err := gob.Codec.Append(nil, bad); err == nil || !strings.Contains(err.Error(), at+"points to a zero value or nil") {
			t.Errorf("got %v, want an error with %q", err, at)
		}
	}
	good := &order{Lines: []line{{&one}, {}}, ByID: map[string]*line{"a": {&one}}}
	b, err := gob.Codec.Append(nil, good)
	if err != nil {
		t.Fatal(err)
	}
	var got order
	if err := gob.Codec.Decode(b, &got); err != nil || !reflect.DeepEqual(&got, good) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// encoding/gob reads all values that the codec carries as the codec does, and the other way round.
func TestValuesBesideGob(t *testing.T) {
	tried := valuetable.Compare(t, gob.Codec, valuetable.Reference{
		Encode: func(v any) ([]byte, error) {
			var b bytes.Buffer
			err := std.NewEncoder(&b).Encode(v)
			return b.Bytes(), err
		},
		Decode: func(b []byte, v any) error { return std.NewDecoder(bytes.NewReader(b)).Decode(v) },
	})
	if tried != 167 {
		t.Errorf("%d values were compared", tried)
	}
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, gob.Codec, "gob") }
