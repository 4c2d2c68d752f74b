// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/yodel-rpc/yodel"
)

// A ValueOutcome says what a codec does with one value of the catalogue of TestCodec.
type ValueOutcome struct {
	// Value names the value, for example "time.Time, in a map".
	Value string
	// Result is "carried", "changed" if another value arrives, "type refused" or "value refused".
	// It is "lost" if the message cannot be decoded.
	Result string
	// Text is the error, or how the value that arrives differs.
	Text string
}

// ValueOutcomes sends each value of the catalogue through a codec. A codec refuses a type if its
// method CheckType does, and a value if its method Append does.
func ValueOutcomes(c yodel.Codec) []ValueOutcome {
	var all []ValueOutcome
	for _, v := range catalogue() {
		o := ValueOutcome{Value: v.name}
		o.Result, o.Text = tryValue(c, v.message)
		all = append(all, o)
	}
	return all
}

func tryValue(c yodel.Codec, message any) (result, text string) {
	var err error
	defer func() {
		if err != nil {
			result, text = "lost", err.Error()
		}
	}()
	defer recoverTo(&err)
	if checker, ok := c.(interface{ CheckType(t reflect.Type) error }); ok {
		if err := checker.CheckType(reflect.TypeOf(message)); err != nil {
			_, encodes := c.Append(nil, message)
			if encodes == nil {
				return "lost", "CheckType refuses what Append encodes: " + err.Error()
			}
			return "type refused", err.Error()
		}
	}
	b, err := c.Append(nil, message)
	if err != nil {
		text, err = err.Error(), nil
		return "value refused", text
	}
	got := fresh(message)
	if err = c.Decode(bytes.Clone(b), got); err != nil {
		return "lost", ""
	}
	if !same(reflect.ValueOf(got), reflect.ValueOf(message), 0) {
		return "changed", difference(got, message)
	}
	return "carried", ""
}

func (x codecTrial) checkCatalogue() error {
	for _, o := range ValueOutcomes(x.Codec) {
		declared, is := x.changes[o.Value]
		switch {
		case o.Result == "lost":
			return fmt.Errorf("%s is neither carried nor refused: %s", o.Value, o.Text)
		case o.Result == "changed" && !is:
			return fmt.Errorf("%s arrives as another value, and CodecOptions.Changes does not say so\n%s", o.Value, o.Text)
		case o.Result != "changed" && is:
			return fmt.Errorf("CodecOptions.Changes says of %s: %q, but it is %s", o.Value, declared, o.Result)
		}
	}
	return nil
}

// same reports whether two values have the same content. Unlike reflect.DeepEqual, it takes NaN for
// NaN, tells 0 from -0, and compares times by their instant and their offset. UTC may arrive as
// local time.
func same(a, b reflect.Value, depth int) bool {
	if !a.IsValid() || !b.IsValid() || depth > 100 {
		return a.IsValid() == b.IsValid()
	}
	if a.Type() != b.Type() {
		return false
	}
	if a.CanInterface() {
		if equal, known := sameOpaque(a.Interface(), b.Interface()); known {
			return equal
		}
	}
	switch a.Kind() {
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float()) || math.IsNaN(a.Float()) && math.IsNaN(b.Float())
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return same(a.Elem(), b.Elem(), depth+1)
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i), depth+1) {
				return false
			}
		}
		return true
	case reflect.Slice, reflect.Array:
		return sameList(a, b, depth)
	case reflect.Map:
		return sameMap(a, b, depth)
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return a.IsNil() && b.IsNil()
	}
	return a.Equal(b)
}

func sameList(a, b reflect.Value, depth int) bool {
	if a.Len() != b.Len() || a.Kind() == reflect.Slice && a.IsNil() != b.IsNil() {
		return false
	}
	for i := range a.Len() {
		if !same(a.Index(i), b.Index(i), depth+1) {
			return false
		}
	}
	return true
}

func sameMap(a, b reflect.Value, depth int) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	for i := a.MapRange(); i.Next(); {
		found := false
		for j := b.MapRange(); j.Next(); { // a key may be NaN
			found = found || same(i.Key(), j.Key(), depth+1) && same(i.Value(), j.Value(), depth+1)
		}
		if !found {
			return false
		}
	}
	return true
}

// sameOpaque compares values of types whose content is in unexported fields.
func sameOpaque(a, b any) (equal, known bool) {
	switch a := a.(type) {
	case time.Time:
		b, _ := b.(time.Time)
		_, from := a.Zone()
		_, to := b.Zone()
		return a.Equal(b) && (from == to || to == 0 && a.Location() == time.Local), true
	case big.Int:
		b, _ := b.(big.Int)
		return a.Cmp(&b) == 0, true
	case big.Float:
		b, _ := b.(big.Float)
		return a.Cmp(&b) == 0 && a.Prec() == b.Prec(), true
	case big.Rat:
		b, _ := b.(big.Rat)
		return a.Cmp(&b) == 0, true
	}
	return false, false
}

// A holder holds a value as its only field. The tags are for codecs with numbered fields.
type holder[T any] struct {
	V T `pb:"1" thrift:"1"`
}

type catalogued struct {
	name    string
	message any // a pointer
}

// A list is a catalogue that is being made.
type list []catalogued

func add[T any](l *list, name string, v T) {
	*l = append(*l, catalogued{name, &holder[T]{v}})
}

// everywhere adds a value in each place in which a message can have it.
func everywhere[T any](l *list, name string, v T) {
	add(l, name, v)
	add(l, name+", in a slice", []T{v, v})
	add(l, name+", in a map", map[string]T{"a": v})
	add(l, name+", behind a pointer", &v)
	add(l, name+", a nil pointer", (*T)(nil))
	add(l, name+", in an interface", any(v))
	*l = append(*l, catalogued{name + ", the whole message", &v})
}

// asKey adds a value as the key of a map.
func asKey[T comparable](l *list, name string, v T) {
	add(l, name+", a key", map[T]string{v: "a"})
}

// catalogue returns the values that TestCodec tries.
func catalogue() []catalogued {
	var l list
	addKinds(&l)
	addNumbers(&l)
	addTexts(&l)
	addEmpty(&l)
	addOpaque(&l)
	addOwn(&l)
	addStructs(&l)
	addInterfaces(&l)
	return l
}

type (
	color   int32
	title   string
	amounts []int64
)

func addKinds(l *list) {
	add(l, "bool", true)
	add(l, "int", math.MinInt)
	add(l, "int8", int8(math.MinInt8))
	add(l, "int16", int16(math.MinInt16))
	add(l, "int32", int32(math.MinInt32))
	add(l, "int64", int64(math.MaxInt64))
	add(l, "uint", uint(1))
	add(l, "uint8", uint8(math.MaxUint8))
	add(l, "uint16", uint16(math.MaxUint16))
	add(l, "uint32", uint32(math.MaxUint32))
	add(l, "uint64", uint64(1<<62))
	add(l, "uint64, the largest", uint64(math.MaxUint64))
	add(l, "uintptr", uintptr(1))
	add(l, "float32", float32(math.MaxFloat32))
	add(l, "float64", math.MaxFloat64)
	add(l, "complex128", complex(1, 2))
	add(l, "string", "text")
	add(l, "[]byte", []byte{0, 255})
	add(l, "array", [3]int32{1, 2, 3})
	add(l, "array of 16 bytes", [16]byte{1, 15: 2})
	add(l, "slice", []string{"a", "b"})
	add(l, "slice of slices", [][]int64{{1}, {2, 3}})
	add(l, "map", map[string]int64{"a": 1})
	add(l, "map of maps", map[string]map[string]int64{"a": {"b": 1}})
	add(l, "struct", holder[string]{"a"})
	add(l, "channel", make(chan int))
	add(l, "channel, nil", (chan int)(nil))
	add(l, "function", func() {})
	add(l, "function, nil", (func())(nil))
	add(l, "unsafe.Pointer", unsafe.Pointer(new(int)))
	add(l, "defined int32", color(7))
	add(l, "defined string", title("t"))
	add(l, "defined slice", amounts{1, 2})
	asKey(l, "int32", int32(1))
	asKey(l, "bool", true)
	asKey(l, "float64", 1.5)
	asKey(l, "defined string", title("t"))
	asKey(l, "array", [2]int32{1, 2})
	asKey(l, "struct", holder[string]{"a"})
	asKey(l, "pointer", new(int32))
	asKey[any](l, "interface", "a")
	asKey(l, "struct with a pointer", holder[*int64]{new(int64(1))})
}

func addNumbers(l *list) {
	add(l, "NaN", math.NaN())
	add(l, "infinity", math.Inf(1))
	add(l, "negative infinity", math.Inf(-1))
	add(l, "negative zero", math.Copysign(0, -1))
	add(l, "smallest float64", math.SmallestNonzeroFloat64)
	add(l, "2^53+1", int64(1<<53+1))
	asKey(l, "NaN", math.NaN())
}

func addTexts(l *list) {
	add(l, "text beyond ASCII", "日本 😀 \u2028")
	add(l, "a string with U+FFFD", "\ufffd")
	add(l, `a string with \ufffd in ASCII`, `\ufffd`)
	add(l, "a string with a zero byte", "a\x00b")
	add(l, "invalid UTF-8", "a\xffb")
	add(l, "invalid UTF-8, in a slice", []string{"a\xffb"})
	asKey(l, "invalid UTF-8", "a\xffb")
	*l = append(*l, catalogued{"invalid UTF-8, in an interface", &holder[any]{map[string]any{"a": []any{"\xc3"}}}})
}

func addEmpty(l *list) {
	add(l, "nil slice", []int64(nil))
	add(l, "empty slice", []int64{})
	add(l, "nil map", map[string]int64(nil))
	add(l, "empty map", map[string]int64{})
	*l = append(*l, catalogued{"nil map, the whole message", new(map[string]int64)})
	add(l, "nil among maps", []map[string]int64{nil, {"a": 1}})
	add(l, "nil []byte", []byte(nil))
	add(l, "empty []byte", []byte{})
	add(l, "nil among slices", [][]int64{nil, {1}})
	add(l, "nil among pointers", []*int64{nil, new(int64)})
	add(l, "nil among pointers to structs", []*holder[string]{nil, {"a"}})
	add(l, "nil pointer in a map", map[string]*int64{"a": nil})
	add(l, "pointer to 0", new(int64))
	add(l, `pointer to ""`, new(string))
	add(l, "pointer to false", new(bool))
	add(l, "pointer to an empty struct", new(holder[string]))
	add(l, "pointer to a nil slice", new([]int64))
	add(l, "pointer to a slice", &[]int64{1})
	pointer := new(int64)
	*pointer = 1
	add(l, "pointer to a pointer", &pointer)
	add(l, "pointer to a nil pointer", new(*int64))
	add(l, "struct without fields", struct{}{})
}

type (
	stamp  time.Time
	amount big.Int
)

func addOpaque(l *list) {
	at := time.Date(2026, 11, 27, 12, 30, 15, 123456789, time.UTC)
	everywhere(l, "time.Time", at)
	add(l, "time.Time, of a millisecond", at.Truncate(time.Millisecond))
	add(l, "time.Time, with an offset", at.In(time.FixedZone("", 5*3600+31*60)))
	add(l, "time.Time, with seconds in its offset", at.In(time.FixedZone("", 561)))
	add(l, "time.Time, two keys in one millisecond", map[time.Time]string{at: "a", at.Add(1): "b"})
	add(l, "time.Time, nil among pointers", []*time.Time{nil, new(at.Truncate(time.Millisecond))})
	add(l, "time.Time, zero", time.Time{})
	add(l, "time.Time, a pointer to zero", new(time.Time))
	add(l, "time.Time, of the year 12000", time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC))
	everywhere(l, "time.Duration", time.Hour+1)
	add(l, "a type defined as time.Time", stamp(at))
	everywhere(l, "big.Int", *new(big.Int).Lsh(big.NewInt(3), 100))
	add(l, "a type defined as big.Int", amount(*big.NewInt(3)))
	add(l, "*big.Float", big.NewFloat(0.1))
	add(l, "*big.Rat", big.NewRat(1, 3))
	everywhere(l, "netip.Addr", netip.MustParseAddr("fe80::1%eth0"))
	asKey(l, "netip.Addr", netip.MustParseAddr("10.0.0.1"))
	add(l, "netip.Prefix", netip.MustParsePrefix("10.0.0.0/8"))
	add(l, "net.IP", net.ParseIP("10.0.0.1"))
	add(l, "*url.URL", &url.URL{Scheme: "https", User: url.UserPassword("ann", "secret"), Host: "example.com", Path: "/a b"})
	add(l, "*url.URL, empty", new(url.URL))
	add(l, "json.Number", json.Number("1.50"))
	add(l, "json.Number, empty", json.Number(""))
	add(l, "json.RawMessage", json.RawMessage(`{"a":[1]}`))
	add(l, "json.RawMessage, nil", json.RawMessage(nil))
	add(l, "json.RawMessage, with spaces", json.RawMessage(`{"a": 1}`))
	add(l, "json.RawMessage, not UTF-8", json.RawMessage("\"\xff\""))
	var counter holder[atomic.Int64]
	counter.V.Store(5)
	*l = append(*l, catalogued{"atomic.Int64", &counter})
	*l = append(*l, catalogued{"sync.Mutex", new(holder[sync.Mutex])})
	add(l, "reflect.Value", reflect.ValueOf(1))
	var built holder[strings.Builder]
	built.V.WriteString("a")
	*l = append(*l, catalogued{"strings.Builder", &built})
}

func addInterfaces(l *list) {
	add[any](l, "nil interface", nil)
	add[any](l, "an interface with a string", "text")
	add[any](l, "an interface with a float64", 1.5)
	add[any](l, "an interface with an int", 5)
	add[any](l, "an interface with a struct", holder[string]{"a"})
	add[any](l, "an interface with a map", map[string]any{"a": "b"})
	add[any](l, "an interface with a slice", []any{"a", nil})
	add[any](l, "an interface with a map whose keys are structs", map[holder[string]]string{{"a"}: "b"})
	add[any](l, "an interface with a uintptr", uintptr(1))
	add[any](l, "an interface with an empty json.Number", json.Number(""))
	add[any](l, "an interface with a channel", make(chan int))
	add[any](l, "an interface with a struct that hides its content", stamp(time.Now()))
	add[error](l, "error", errors.New("out of stock"))
	add[error](l, "error, nil", nil)
	add[fmt.Stringer](l, "an interface with methods", netip.MustParseAddr("10.0.0.1"))
}
