// SPDX-License-Identifier: Apache-2.0

package hessian2_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/internal/room"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// Color is an enum.
type Color string

func (Color) JavaClassName() string { return "com.acme.Color" }

type Base struct{ Created time.Time }

type User struct {
	Base
	ID     int64
	Name   string
	Tags   []string `hessian:"labels"`
	Best   *User
	Colors []Color
	Scores map[string]float64
	Photo  []byte
	Small  int16
	Hidden string `hessian:"-"`
	secret string //nolint:unused // the codec must leave it alone
}

func (*User) JavaClassName() string { return "com.acme.User" }

// Plain stands for no Java class.
type Plain struct {
	A, B int32
	Next *Plain
	Deep [2][]uint32
}

var sample = &User{
	Base: Base{time.UnixMilli(1_700_000_000_123).UTC()}, ID: 1 << 40, Name: "Ada 🦉 é", Tags: []string{"x", ""},
	Best: &User{Name: "ö"}, Colors: []Color{"RED", "BLUE", "RED"},
	Scores: map[string]float64{"a": 1.5, "b": -1, "c": math.Pi}, Photo: []byte{7}, Small: -3,
}

func TestCodec(t *testing.T) {
	yodeltest.TestCodec(t, hessian2.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["hessian2"]}, sample, &Plain{A: -1, B: math.MinInt32, Next: &Plain{}, Deep: [2][]uint32{{1, 1 << 31}, {}}},
		new("text"), new(int32(-262145)), new(int64(math.MinInt64)), new(true), new([]byte{}), &map[int32]string{-5: "x", 70_000: ""},
		&[]float64{0, 1, -128, 32767, 0.1, math.Inf(1), math.MaxFloat64, math.Copysign(0, -1)})
}

// Long strings and binaries have several parts.
func TestParts(t *testing.T) {
	for _, n := range []int{31, 32, 1023, 1024, 32 << 10, 32<<10 + 1, 70_000} {
		for _, text := range []string{strings.Repeat("a", n), strings.Repeat("ö", n), "a" + strings.Repeat("🦉", n/2), strings.Repeat("a", n-1) + "🦉"} {
			for _, v := range []any{text, []byte(text)} {
				var got any
				b, err := hessian2.Codec.Append(nil, v)
				if err == nil {
					err = hessian2.Codec.Decode(b, &got)
				}
				if err != nil || !reflect.DeepEqual(got, v) {
					t.Errorf("%T with %d bytes: got %v", v, len(text), err)
				}
			}
		}
	}
}

// The encodings are those of the specification of Hessian 2, except where hessian-lite differs.
func TestEncoding(t *testing.T) {
	for _, test := range []struct {
		value any
		hex   string
	}{
		{nil, "4e"}, {true, "54"}, {false, "46"}, {int32(0), "90"}, {int32(-16), "80"}, {int32(47), "bf"}, {int32(48), "c830"}, {int32(-2048), "c000"},
		{int32(2047), "cfff"}, {int32(262143), "d7ffff"}, {int32(262144), "4900040000"}, {int64(-8), "d8"}, {int64(15), "ef"}, {int64(-2048), "f000"},
		{int64(262143), "3fffff"}, {int64(-262144), "380000"}, {int64(math.MaxInt32), "597fffffff"}, {int64(1 << 31), "4c0000000080000000"},
		{0.0, "5b"}, {1.0, "5c"}, {-128.0, "5d80"}, {32767.0, "5e7fff"}, {12.25, "444028800000000000"}, {"", "00"}, {"hello", "0568656c6c6f"},
		{"🦉", "02eda0beedb689"}, {[]byte{1, 2}, "220102"}, {[]int32{0, 1}, "7a9091"}, {map[string]int32{"b": 1, "a": 0}, "48016190016291" + "5a"},
		{time.UnixMilli(894_621_091_000), "4a000000d04b9284" + "b8"}, {Color("RED"), "430e636f6d2e61636d652e436f6c6f7291046e616d656003524544"},
		{[]any{Color("A"), Color("B")}, "7a430e636f6d2e61636d652e436f6c6f7291046e616d65600141600142"}, {[]*Plain(nil), "4e"}, {Color(""), "4e"},
		{struct{ UserName, ID string }{"a", "b"}, "4808757365724e616d6501610269640162" + "5a"},
	} {
		got, err := hessian2.Codec.Append([]byte("x"), test.value)
		if want := "78" + test.hex; err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%#v: got %x, %v, want %s", test.value, got, err, want)
		}
	}
}

func TestWhatCannotBeEncoded(t *testing.T) {
	type twice struct {
		A int `hessian:"x"`
		B int `hessian:"x"`
	}
	loop := []any{nil}
	loop[0] = loop
	for says, v := range map[string]any{"a chan cannot be encoded": make(chan int), "more than a long": uint64(math.MaxUint64), `two fields called "x"`: twice{}, "inside one another": loop} {
		if _, err := hessian2.Codec.Append(nil, v); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%T: got %v, want an error with %q", v, err, says)
		}
	}
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Values that only other programs encode in this way.
func TestDecode(t *testing.T) {
	for _, test := range []struct {
		hex  string
		want any
	}{
		{"4b 00e383f3", time.UnixMilli(14_910_451 * 60_000).UTC()}, {"5f 00002fda", 12.25}, {"52 0001 61 53 0001 62", "ab"}, {"41 0001 61 21 62", []byte("ab")},
		{"04 f09fa689 6162", "🦉ab"}, {"01 eda0be", "\ufffd"}, {"57 90 e1 5a", []any{int32(0), int64(1)}}, {"55 04 5b696e74 91 5a", []any{int32(1)}},
		{"56 04 5b696e74 91 91", []any{int32(1)}}, {"72 04 5b696e74 91 79 91", []any{int32(1), []any{int32(1)}}},
		{"4d 13 6a6176612e7574696c2e547265654d617001 6190 5a", nil}, {"48 91 0161 0162 54 5a", map[any]any{int32(1): "a", "b": true}},
		{"48 0161 90 92 4e 5a", map[any]any{"a": int32(0), int32(2): nil}}, {"43 01 41 91 01 66 60 91", map[string]any{"class": "A", "f": int32(1)}},
		{"43 01 41 90 43 01 42 91 01 66 61 60", map[string]any{"class": "B", "f": map[string]any{"class": "A"}}},
		{"7a 79 91 51 91", []any{[]any{int32(1)}, []any{int32(1)}}}, {"7a 72 01 74 91 91 72 90 92 92", []any{[]any{int32(1), int32(1)}, []any{int32(2), int32(2)}}},
	} {
		var got any
		err := hessian2.Codec.Decode(unhex(t, test.hex), &got)
		if test.want != nil && (err != nil || !reflect.DeepEqual(got, test.want)) {
			t.Errorf("%s: got %#v, %v, want %#v", test.hex, got, err, test.want)
		}
	}
}

// A value that refers to itself, and values that are shared.
func TestReferences(t *testing.T) {
	u := &User{Name: "a"}
	u.Best = u
	b, err := hessian2.Codec.Append(nil, u)
	if err != nil {
		t.Fatal(err)
	}
	var got *User
	if err := hessian2.Codec.Decode(b, &got); err != nil || got.Best != got || got.Name != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	m := map[string]int32{"x": 1}
	if b, err = hessian2.Codec.Append(nil, []any{m, m, u, u}); err != nil {
		t.Fatal(err)
	}
	var all []any
	if err := hessian2.Codec.Decode(b, &all); err != nil {
		t.Fatal(err)
	}
	first, _ := all[0].(map[string]any)
	first["y"] = 2
	if second, _ := all[1].(map[string]any); len(second) != 2 {
		t.Errorf("got %v and %v, want the same map", first, second)
	}
	var plain []Plain // of which one is a copy of the other
	if err := hessian2.Codec.Decode(unhex(t, "7a 48 01 61 95 5a 51 91"), &plain); err != nil || !reflect.DeepEqual(plain, []Plain{{A: 5}, {A: 5}}) {
		t.Errorf("got %v, %v", plain, err)
	}
	if err := hessian2.Codec.Decode(unhex(t, "79 51 90"), &all); err == nil || !strings.Contains(err.Error(), "inside one another") {
		t.Errorf("a list in itself: got %v", err)
	}
}

// What Java has as an object with one value.
func TestObjectsWithOneValue(t *testing.T) {
	var all struct {
		Price string
		At    time.Time
		Color Color
	}
	err := hessian2.Codec.Decode(unhex(t, "48 057072696365 43 14 6a6176612e6d6174682e426967446563696d616c 91 05 76616c7565 60 04 312e3530"+
		"026174 43 01 54 91 05 76616c7565 61 4a 0000000000000001 05 636f6c6f72 43 01 43 91 04 6e616d65 62 03 524544 5a"), &all)
	if err != nil || all.Price != "1.50" || !all.At.Equal(time.UnixMilli(1)) || all.Color != "RED" {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestMismatches(t *testing.T) {
	for says, test := range map[string]struct {
		hex string
		to  any
	}{
		"a string does not fit in a int32":        {"01 61", new(int32)},
		"an int does not fit in a int8":           {"c880", new(int8)},
		"a long does not fit in a uint16":         {"d8", new(uint16)},
		"a double does not fit in a float32":      {"44 7fefffffffffffff", new(float32)},
		"a list does not fit":                     {"78", new(string)},
		"a map does not fit":                      {"48 5a", new(string)},
		"an object of class A does not fit":       {"43 01 41 91 01 66 60 91", new(string)},
		"a list has more elements":                {"7b 90 90 90", new([2]int)},
		"1 bytes follow":                          {"90 90", new(int)},
		"the end of a list":                       {"5a", new(any)},
		"cannot compare":                          {"48 78 90 5a", new(any)},
		"the key of a map is a struct":            {"48 48 0161 78 5a 90 5a", new(map[struct{ A any }]int)},
		"the key of a map is a []interface":       {"48 78 90 5a", new(map[any]int)},
		"ends after a key":                        {"48 0161 5a", new(any)},
		"a map ends after":                        {"48 90 5a", new(any)},
		"map ends after a":                        {"48 90 5a", new(map[int]int)},
		"map ends":                                {"48 0161 5a", new(Plain)},
		"a map ends":                              {"48 0161 5a", new(map[string]int)},
		"ends after 0 of 1 values":                {"43 01 41 91 01 61 60 5a", new(Plain)},
		"after 0 of 1 values":                     {"43 01 41 91 01 66 60 5a", new(Plain)},
		"0 of 1 values":                           {"43 01 41 91 01 66 60 5a", new(any)},
		"it ends after 0 of 1":                    {"43 01 41 91 04 6e616d65 60 5a", new(string)},
		"cut off":                                 {"05 61", new(string)},
		"not UTF-8":                               {"01 ff", new(string)},
		"there is no class number 0":              {"60", new(any)},
		"there is no value number 0":              {"51 90", new(any)},
		"there is no type number 0":               {"70 90", new(any)},
		"do not fit in the rest":                  {"58 49 7fffffff", new(any)},
		"no value begins with the byte 0x40":      {"40", new(any)},
		"cannot decode into int":                  {"90", 5},
		"a map does not fit in a error":           {"48 5a", new(error)},
		"ends after 1 of 2 values":                {"7a 90 5a", new([]any)},
		"a string was expected, not the byte":     {"43 90", new(any)},
		"an int was expected, not the byte":       {"43 01 41 01", new(any)},
		"a part of a binary begins with the byte": {"41 0001 61 90", new([]byte)},
	} {
		if err := hessian2.Codec.Decode(unhex(t, test.hex), test.to); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error with %q", test.hex, err, says)
		}
	}
}

// Messages that would take much more memory, or stack, than they have bytes.
func TestHostileMessages(t *testing.T) {
	var nested, laughs []byte
	for range 1 << 20 {
		nested = append(nested, 0x79)
	}
	laughs = append(laughs, 0x57, 0x7f, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90)
	for i := range 40 {
		laughs = append(laughs, 0x7a, 0x51, byte(0x91+i), 0x51, byte(0x91+i))
	}
	laughs = append(laughs, 0x5a)
	large := append([]byte{0x57}, bytes.Repeat([]byte{0x4e}, 1<<20)...)
	for name, test := range map[string]struct {
		b    []byte
		to   any
		says string
	}{
		"nested":       {nested, new(any), "inside one another"},
		"skipped":      {append([]byte{0x48, 1, 'x'}, nested...), new(Plain), "inside one another"},
		"laughs":       {laughs, new(any), "much more memory"},
		"long lists":   {append(bytes.Repeat(unhex(t, "58 d40400"), 255), bytes.Repeat([]byte{'N'}, 1100)...), new(any), "much more memory"}, // lists of 1024, inside one another
		"many nulls":   {append(unhex(t, "58 49 00400000"), bytes.Repeat([]byte{'N'}, 4<<20)...), new(any), "much more memory"},
		"large values": {append(large, 0x5a), new([][4096]byte), "much more memory"},
	} {
		if err := hessian2.Codec.Decode(test.b, test.to); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.says)
		}
	}
}

// What Decode allocates in all, with lists that grow, is within four times its bound.
func TestDecodeCountsWhatItAllocates(t *testing.T) {
	const size = 1 << 17
	for name, test := range map[string]struct{ first, each string }{
		"empty objects":      {"43 01 78 90", "60"},
		"objects":            {"43 01 78 91 01 61", "60 91"},
		"empty maps":         {"", "48 5a"},
		"maps":               {"", "48 01 61 91 5a"},
		"maps of other keys": {"", "48 91 91 5a"},
		"empty lists":        {"", "78"},
		"lists":              {"", "79 91"},
		"texts":              {"", "00"},
		"binaries":           {"", "20"},
		"nulls":              {"", "4e"},
	} {
		each := unhex(t, test.each)
		b := append([]byte{0x57}, unhex(t, test.first)...)
		b = append(append(b, bytes.Repeat(each, size/len(each))...), 'Z')
		for _, to := range []any{new(any), new([]*struct{ A any })} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = hessian2.Codec.Decode(b, to)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 4*uint64(room.For(len(b))) {
				t.Errorf("%s into %T: Decode allocated %d KiB for %d KiB", name, to, got>>10, size>>10)
			}
		}
	}
}

// Whatever Decode accepts, Append encodes so that Decode accepts it again.
func FuzzDecode(f *testing.F) {
	b, err := hessian2.Codec.Append(nil, &User{Name: "a", Best: &User{}, Colors: []Color{"RED"}, Scores: map[string]float64{"x": 0.5}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(unhex(f, "7a 72 01 74 91 91 72 90 92 51 91"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = hessian2.Codec.Decode(b, new(User)) // must not panic
		var v, again any
		if err := hessian2.Codec.Decode(b, &v); err != nil {
			return
		}
		b, err := hessian2.Codec.Append(nil, v)
		if err != nil {
			t.Skip(err) // values that are too deep only as Go has them
		}
		if err := hessian2.Codec.Decode(b, &again); err != nil && !strings.Contains(err.Error(), "much more memory") {
			t.Errorf("%#v becomes %x: %v", v, b, err)
		}
	})
}

// Lists, strings and bytes that are shared have more bytes than a message can hold. Objects and
// maps that are shared are encoded once.
func TestSharedListsAreCounted(t *testing.T) {
	var l any = make([]byte, 1<<10)
	for range 30 {
		l = []any{l, l}
	}
	many := slices.Repeat([]any{make([]byte, 1<<20), strings.Repeat("a", 1<<20)}, 33)
	for _, v := range []any{l, many, slices.Repeat([][]byte{make([]byte, 1<<20)}, 65)} {
		if _, err := hessian2.Codec.Append(nil, v); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
			t.Errorf("%T: the error is %v, want that there are too many bytes", v, err)
		}
	}
}

// The page of values says what the codec does.
func TestValues(t *testing.T) {
	valuetable.Check(t, hessian2.Codec, "hessian2", "../../docs/values.md")
}

// dubbo-go lowers the first letter of each field: an ID is "iD" there, and "id" in Java.
func TestNamesOfDubboGo(t *testing.T) {
	type owner struct {
		ID, URL  int64
		UserName string
	}
	type other struct {
		ID    int64
		Small int64 `hessian:"iD"`
		Tag   int64 `hessian:"URL"`
	}
	for _, test := range []struct {
		message map[string]any
		into    any
		want    any
	}{
		{map[string]any{"iD": int64(1), "uRL": int64(2), "userName": "a"}, new(owner), &owner{1, 2, "a"}},
		{map[string]any{"id": int64(1), "url": int64(2), "userName": "a"}, new(owner), &owner{1, 2, "a"}},
		{map[string]any{"id": int64(1), "iD": int64(2), "uRL": int64(3)}, new(other), &other{1, 2, 0}}, // tags win
	} {
		b, err := hessian2.Codec.Append(nil, &test.message)
		if err != nil {
			t.Fatal(err)
		}
		if err := hessian2.Codec.Decode(b, test.into); err != nil || !reflect.DeepEqual(test.into, test.want) {
			t.Errorf("%v: got %+v and error %v, want %+v", test.message, test.into, err, test.want)
		}
	}
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, hessian2.Codec, "hessian2") }
