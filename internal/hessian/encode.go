// SPDX-License-Identifier: Apache-2.0

package hessian

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// Append appends the encoding of v to b, as a stream of its own.
//
// It refuses values that would not arrive as they are.
func (ts *Types) Append(b []byte, v any) ([]byte, error) {
	if err := rules.CheckTarget(v); err != nil {
		return b, fmt.Errorf("hessian: %w", err)
	}
	e, ok := encoders.Get().(*encoder)
	if !ok {
		e = &encoder{known: make(map[pointer]int)}
	}
	e.types, e.b, e.start = ts, b, len(b)
	err := e.value(reflect.ValueOf(v), 0)
	b = e.b
	if len(e.known) <= maxKept && err == nil {
		e.reset()
		encoders.Put(e)
	}
	return b, err
}

var encoders sync.Pool // of *encoder

// maxKept is how many objects a stream may have whose encoder is kept.
const maxKept = 64

func (e *encoder) reset() {
	clear(e.known)
	clear(e.classes)
	*e = encoder{known: e.known, classes: e.classes[:0]}
}

// An encoder encodes one stream.
type encoder struct {
	types   *Types
	b       []byte
	start   int // of the stream in b
	classes []*shape
	objects int
	held    int             // how many interfaces are around the value
	known   map[pointer]int // the numbers of objects and maps that were encoded
}

// A pointer identifies an object or a map.
type pointer struct {
	at uintptr
	of reflect.Type
}

// value appends a value.
func (e *encoder) value(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	if err := nesting.CheckBytes(len(e.b) - e.start); err != nil {
		return err // lists are encoded as often as they are shared, other objects once
	}
	switch v.Kind() {
	case reflect.Invalid:
		e.b = AppendNull(e.b)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			e.b = AppendNull(e.b)
			return nil
		}
		if v.Kind() == reflect.Interface {
			if err := checkHeld(v.Elem()); err != nil {
				return err
			}
		}
		in := v.Elem()
		if in.Kind() == reflect.Pointer || in.Kind() == reflect.Interface {
			depth++ // a pointer may point to itself
		}
		if v.Kind() == reflect.Pointer {
			return e.value(in, depth)
		}
		e.held++
		err := e.value(in, depth)
		e.held--
		return err
	case reflect.Bool:
		e.b = AppendBool(e.b, v.Bool())
	case reflect.Int8, reflect.Int16, reflect.Int32:
		e.b = AppendInt(e.b, int32(v.Int())) //nolint:gosec // it fits
	case reflect.Int, reflect.Int64:
		e.b = appendLong(e.b, v.Int())
	case reflect.Uint8, reflect.Uint16:
		e.b = AppendInt(e.b, int32(v.Uint())) //nolint:gosec // it fits
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		if v.Uint() > math.MaxInt64 {
			return fmt.Errorf("hessian: %d is more than a long of Java can be", v.Uint())
		}
		e.b = appendLong(e.b, int64(v.Uint())) //nolint:gosec // checked above
	case reflect.Float32, reflect.Float64:
		e.b = appendDouble(e.b, v.Float())
	case reflect.String:
		return e.text(v)
	case reflect.Slice, reflect.Array:
		return e.list(v, depth)
	case reflect.Map:
		return e.mapping(v, depth)
	case reflect.Struct:
		return e.object(v, depth)
	default:
		return fmt.Errorf("hessian: a %v cannot be encoded", v.Type())
	}
	return nil
}

// text appends a string. If its type stands for a Java class, that is an enum, and the empty string
// is null.
func (e *encoder) text(v reflect.Value) error {
	if t := v.Type(); t != stringType {
		switch s := e.types.of(t); {
		case s.class != "" && v.Len() == 0:
			e.b = AppendNull(e.b)
			return nil
		case s.class != "":
			e.begin(s, []string{"name"})
		}
	}
	if !utf8.ValidString(v.String()) {
		return errNotText
	}
	e.b = AppendText(e.b, v.String())
	return nil
}

var (
	errNotText = errors.New("hessian: a string is not UTF-8, which Hessian cannot carry: use []byte")
	errNaNKey  = errors.New("hessian: NaN is no key of a map")
)

// begin appends the beginning of an object.
func (e *encoder) begin(s *shape, fields []string) {
	n := slices.Index(e.classes, s)
	if n < 0 {
		n = len(e.classes)
		e.classes = append(e.classes, s)
		e.b = appendClass(e.b, s.class, fields)
	}
	e.b = appendObject(e.b, n)
	e.objects++
}

// list appends a slice or an array.
func (e *encoder) list(v reflect.Value, depth int) error {
	switch {
	case v.Kind() == reflect.Slice && v.IsNil():
		e.b = AppendNull(e.b)
		return nil
	case v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice:
		e.b = appendBinary(e.b, v.Bytes())
		return nil
	case v.Len() > math.MaxInt32:
		return fmt.Errorf("hessian: a list has %d elements", v.Len())
	}
	e.objects++
	e.b = appendLength(e.b, int64(v.Len()))
	for i := range v.Len() {
		if err := e.value(v.Index(i), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// seen appends a reference if the map or the struct was encoded before.
func (e *encoder) seen(p pointer) bool {
	if n, ok := e.known[p]; ok {
		e.b = AppendInt(append(e.b, reference), int32(n)) //nolint:gosec // the limits of messages are smaller
		return true
	}
	if e.known == nil {
		e.known = make(map[pointer]int)
	}
	e.known[p] = e.objects
	return false
}

// mapping appends a map. Keys that are strings or numbers are sorted.
func (e *encoder) mapping(v reflect.Value, depth int) error {
	if v.IsNil() {
		e.b = AppendNull(e.b)
		return nil
	}
	if e.seen(pointer{v.Pointer(), v.Type()}) {
		return nil
	}
	e.objects++
	e.b = append(e.b, untypedMap)
	if v.Type() == reflect.TypeFor[map[string]any]() {
		m, _ := reflect.TypeAssert[map[string]any](v)
		if err := e.named(m, depth); err != nil {
			return err
		}
	} else if err := e.entries(v, depth); err != nil {
		return err
	}
	e.b = append(e.b, end)
	return nil
}

// named appends the entries of a map of the most frequent type.
func (e *encoder) named(m map[string]any, depth int) error {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	e.held++
	defer func() { e.held-- }()
	for _, name := range names {
		if !utf8.ValidString(name) {
			return errNotText
		}
		e.b = AppendText(e.b, name)
		in := reflect.ValueOf(m[name])
		if in.IsValid() {
			if err := checkHeld(in); err != nil {
				return err
			}
		}
		nested := depth + 1
		if in.Kind() == reflect.Pointer {
			nested++ // it may point to an interface with this map
		}
		if err := e.value(in, nested); err != nil {
			return err
		}
	}
	return nil
}

// entries appends the entries of a map.
func (e *encoder) entries(v reflect.Value, depth int) error {
	keys := v.MapKeys()
	slices.SortFunc(keys, compare)
	encoded, err := e.distinct(keys)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if err := e.checkKey(key); err != nil {
			return err
		}
		if encoded != nil && encoded[i] != "" {
			e.b = append(e.b, encoded[i]...)
		} else if err := e.value(key, depth+1); err != nil {
			return err
		}
		if err := e.value(v.MapIndex(key), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkKey returns why a key of a map would be lost. Within an interface, a struct is decoded as a
// map and an array as a list, neither of which is a key.
func (e *encoder) checkKey(key reflect.Value) error {
	if key.Type() == stringType {
		return nil
	}
	if !key.Equal(key) { //nolint:gocritic // dupArg: NaN does not equal itself
		return errNaNKey
	}
	held := e.held > 0 || key.Kind() == reflect.Interface
	for key.Kind() == reflect.Interface || key.Kind() == reflect.Pointer {
		if key.IsNil() {
			return nil
		}
		key = key.Elem()
	}
	t := key.Type()
	if held && t != timeType && (t.Kind() > reflect.Complex128 && t.Kind() != reflect.String || e.types.of(t).class != "") {
		return fmt.Errorf("hessian: a %v is no key in Hessian, if the map or the key is in an interface", t)
	}
	return nil
}

// distinct returns an error if two keys of a map would arrive as one: two times in one
// millisecond, structs that differ in what is left out, or numbers of several types in interfaces.
// It returns the encodings of such keys. The encoding of a key with objects depends on what is
// before it in the stream, so "" is returned for it.
func (e *encoder) distinct(keys []reflect.Value) ([]string, error) {
	if len(keys) < 2 || keys[0].Kind() != reflect.Struct && keys[0].Kind() != reflect.Interface {
		return nil, nil
	}
	encoded, known := make([]string, len(keys)), make(map[string]bool, len(keys))
	for i, key := range keys {
		alone := encoder{types: e.types}
		if err := alone.value(key, 0); err != nil {
			return nil, err
		}
		text := string(alone.b)
		if known[text] {
			return nil, fmt.Errorf("hessian: two keys of type %v have the same encoding, so one of their values would be lost", key.Type())
		}
		if known[text] = true; alone.objects == 0 {
			encoded[i] = text
		}
	}
	return encoded, nil
}

// compare orders the keys of a map.
func compare(a, b reflect.Value) int {
	switch {
	case a.Kind() != b.Kind():
	case a.Kind() == reflect.String:
		return cmp.Compare(a.String(), b.String())
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	case a.Kind() == reflect.Bool && a.Bool() != b.Bool():
		if b.Bool() {
			return -1
		}
		return 1
	case a.Kind() == reflect.Interface:
		return cmp.Or(cmp.Compare(a.Elem().Kind(), b.Elem().Kind()), compare(a.Elem(), b.Elem()))
	}
	return 0
}

// within adds to an error of a value that is not deep in which field it is.
func within(t reflect.Type, name string, err error) error {
	if errors.Is(err, errDepth) || errors.As(err, new(*fieldError)) {
		return err
	}
	return &fieldError{t, name, err}
}

// A fieldError says in which field of which struct the wrong value is.
type fieldError struct {
	in   reflect.Type
	name string
	error
}

func (e *fieldError) Error() string {
	return fmt.Sprintf("hessian: %v, field %s: %s", e.in, e.name, strings.TrimPrefix(e.error.Error(), "hessian: "))
}

func (e *fieldError) Unwrap() error { return e.error }

// object appends a struct: as an object if its type stands for a Java class, and otherwise as a map
// of its fields, which Java converts to the class that it expects.
func (e *encoder) object(v reflect.Value, depth int) error {
	if v.Type() == timeType {
		if t, _ := reflect.TypeAssert[time.Time](v); t.IsZero() {
			e.b = AppendNull(e.b)
		} else {
			e.b = appendTime(e.b, t)
		}
		return nil
	}
	s := e.types.of(v.Type())
	if s.err != nil {
		return s.err
	}
	if v.CanAddr() && v.Type().Size() > 0 && e.seen(pointer{v.Addr().Pointer(), v.Type()}) {
		return nil
	}
	if s.class != "" {
		e.begin(s, s.names)
	} else {
		e.objects++
		e.b = append(e.b, untypedMap)
	}
	for i := range s.fields {
		f := &s.fields[i]
		if s.class == "" {
			e.b = AppendText(e.b, f.name)
		}
		if err := e.value(v.FieldByIndex(f.index), depth+1); err != nil {
			return within(v.Type(), f.name, err)
		}
	}
	if s.class == "" {
		e.b = append(e.b, end)
	}
	return nil
}
