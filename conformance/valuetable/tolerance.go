// SPDX-License-Identifier: Apache-2.0

package valuetable

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A tolerance has the rules of a format that make one value of another. They are those of Changes.
type tolerance struct {
	emptyIsNil    bool // slices
	emptyMapIsNil bool
	nilMapIsEmpty bool // unless it is a field
	nilIsEmpty    bool // slices and maps, unless they are fields
	nilBehind     bool // a pointer to nil arrives as nil
	nullIsNil     bool // the same, if MarshalJSON returns null
	zeroTimeIsNil bool // behind a pointer
	zeroSign      bool // -0 arrives as 0
	millis        bool // times have milliseconds
}

var tolerances = map[string]tolerance{
	"JSON":     {nilBehind: true, nullIsNil: true},
	"gob":      {nilBehind: true, emptyIsNil: true, nilMapIsEmpty: true, zeroSign: true},
	"msgpack":  {nilBehind: true},
	"hessian2": {nilBehind: true, zeroTimeIsNil: true, millis: true},
	"thrift":   {nilIsEmpty: true},
	"pbstruct": {emptyIsNil: true, emptyMapIsNil: true},
}

// equal reports whether b is what arrives if a was sent. Inner says that a is not a field.
func (o tolerance) equal(a, b reflect.Value, inner bool) bool {
	if !a.CanInterface() {
		return fmt.Sprint(a) == fmt.Sprint(b)
	}
	switch a.Type() {
	case reflect.TypeFor[time.Time]():
		x, _ := reflect.TypeAssert[time.Time](a)
		y, _ := reflect.TypeAssert[time.Time](b)
		return x.Equal(y) || o.millis && x.UnixMilli() == y.UnixMilli()
	case reflect.TypeFor[json.RawMessage]():
		return sameJSON(a.Bytes(), b.Bytes())
	}
	switch a.Kind() {
	case reflect.Interface, reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil() || o.nilBehind && o.leadsToNil(a)
		}
		return a.Kind() == reflect.Interface || o.equal(a.Elem(), b.Elem(), true) // the format chooses what an interface holds
	case reflect.Float32, reflect.Float64:
		x, y := a.Float(), b.Float()
		return math.Float64bits(x) == math.Float64bits(y) || math.IsNaN(x) && math.IsNaN(y) || o.zeroSign && x == y
	}
	if encodesItself(a.Type()) {
		return sameText(a, b)
	}
	switch a.Kind() {
	case reflect.Struct:
		return o.equalFields(a, b)
	case reflect.Slice:
		same := a.IsNil() == b.IsNil() || o.emptyIsNil || o.nilIsEmpty && inner
		return same && o.equalElements(a, b)
	case reflect.Array:
		return o.equalElements(a, b)
	case reflect.Map:
		same := a.IsNil() == b.IsNil() || o.emptyMapIsNil || (o.nilIsEmpty || o.nilMapIsEmpty) && inner
		return same && o.equalEntries(a, b)
	}
	return a.Comparable() && a.Equal(b)
}

// equalFields leaves out what no codec encodes.
func (o tolerance) equalFields(a, b reflect.Value) bool {
	for i := range a.NumField() {
		f := a.Type().Field(i)
		hidden := !f.IsExported() && (!f.Anonymous || !hasExported(f.Type))
		if !hidden && f.Tag.Get("json") != "-" && !o.equal(a.Field(i), b.Field(i), false) {
			return false
		}
	}
	return true
}

// hasExported reports whether an embedded type is, or points to, a struct with exported fields, or
// is not a struct.
func hasExported(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() != reflect.Struct || slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.IsExported() })
}

func (o tolerance) equalElements(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if !o.equal(a.Index(i), b.Index(i), true) {
			return false
		}
	}
	return true
}

func (o tolerance) equalEntries(a, b reflect.Value) bool {
	for i := a.MapRange(); i.Next(); {
		found := false
		for j := b.MapRange(); j.Next(); { // a pointer that arrives is another key
			found = found || o.equal(i.Key(), j.Key(), true) && o.equal(i.Value(), j.Value(), true)
		}
		if !found {
			return false
		}
	}
	return a.Len() == b.Len()
}

// leadsToNil reports whether a pointer or an interface leads to what the format writes as nil.
func (o tolerance) leadsToNil(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v = v.Elem(); !v.IsValid() {
			return true
		}
	}
	if m, ok := reflect.TypeAssert[json.Marshaler](v); ok && o.nullIsNil {
		if b, err := m.MarshalJSON(); err == nil && string(b) == "null" {
			return true
		}
	}
	at, ok := reflect.TypeAssert[time.Time](v)
	return ok && o.zeroTimeIsNil && at.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.IsNil()
}

// sameJSON compares raw messages. JSON writes nil as null, and leaves out spaces.
func sameJSON(sent, got json.RawMessage) bool {
	var a, b bytes.Buffer
	if sent == nil && string(got) == "null" {
		return true
	}
	if json.Compact(&a, sent) != nil || json.Compact(&b, got) != nil {
		return bytes.Equal(sent, got)
	}
	return bytes.Equal(a.Bytes(), b.Bytes())
}

// encodesItself reports whether a type has methods for one of the formats.
func encodesItself(t reflect.Type) bool {
	encoders := []reflect.Type{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[json.Marshaler](), reflect.TypeFor[gob.GobEncoder]()}
	return slices.ContainsFunc(encoders, reflect.PointerTo(t).Implements)
}

// sameText compares values of such types by their texts. Some types fold the case of letters.
func sameText(a, b reflect.Value) bool {
	text := func(v reflect.Value) string {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		return fmt.Sprintf("%+v", p.Interface())
	}
	return strings.EqualFold(text(a), text(b))
}
