// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/carries"
)

// This file says which types are refused because their values would not arrive as they were sent.

// errGenerated is the error of a message that protoc-gen-go has generated: its oneofs and the
// fields that it does not know are hidden from codecs of other formats.
var errGenerated = errors.New("it is a generated message of Protocol Buffers, which protobuf.Codec and protobuf.JSON carry")

var errHidden = errors.New("it has content and no exported fields, so that nothing of it would arrive")

// lossy returns why a codec does not carry values of a type that does not encode itself. It does
// not look at the types in it.
func (r *Rules) lossy(t reflect.Type) error {
	switch k := t.Kind(); {
	case k == reflect.Chan, k == reflect.Func, k == reflect.UnsafePointer, slices.Contains(r.Kinds, k):
		return fmt.Errorf("a %v cannot be encoded", k)
	case k == reflect.Interface && t.NumMethod() > 0 && !r.Interfaces:
		return errors.New("an interface with methods cannot be decoded into: use a concrete type")
	case k == reflect.Map && r.PlainKeys && r.refers(t.Key(), false):
		return fmt.Errorf("a %v cannot be a key, because it contains a pointer or an interface", t.Key())
	case k == reflect.Map && r.Key != nil:
		return r.Key(t.Key())
	case k == reflect.Struct && carries.IsGenerated(t):
		return errGenerated
	case k == reflect.Struct && carries.Hides(t):
		return errHidden
	}
	return nil
}

// embedded returns why a field would be lost, or could not be decoded. Skipped says that the codec
// does not encode the field.
func (r *Rules) embedded(f *reflect.StructField, skipped bool) error {
	tag, tagged := f.Tag.Lookup(r.Tag)
	in := Base(f.Type)
	switch {
	case f.IsExported(), f.Name == "_", f.Name == r.Note, r.Tag != "" && tag == "-":
		return nil
	case skipped && tagged && !f.Anonymous:
		return fmt.Errorf("the field %s has a tag %q and is not exported", f.Name, r.Tag)
	case !f.Anonymous:
		return nil
	case in.Kind() != reflect.Struct:
		return fmt.Errorf("it embeds the unexported %v, which would be left out: give the field a name, or export the type", f.Type)
	case carries.Hides(in):
		return nil
	case skipped && slices.ContainsFunc(reflect.VisibleFields(in), func(f reflect.StructField) bool { return f.IsExported() }):
		return fmt.Errorf("it embeds the unexported %v, whose fields would be left out", in)
	case !skipped && f.Type.Kind() == reflect.Pointer:
		return fmt.Errorf("it embeds a pointer to the unexported %v, which cannot be decoded", in)
	}
	return nil
}

var timeType = reflect.TypeFor[time.Time]()

// first returns the number of the first interface of which t, or a pointer to t, has the methods.
// Direct says that t has them. Without such an interface, n is -1.
func first(interfaces []reflect.Type, t reflect.Type) (n int, direct bool) {
	for i, of := range interfaces {
		if direct = t.Implements(of); direct || t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(of) {
			return i, direct
		}
	}
	return -1, false
}

// encoded returns why a type that encodes itself by the nth of r.Methods is not carried. N is -1 if
// it has no such method.
func (r *Rules) encoded(t reflect.Type, n int) error {
	by, _ := first(r.Decoders, t)
	switch {
	case n < 0 && by < 0:
		return nil
	case n < 0:
		return fmt.Errorf("it has the method of %v and not that of %v, so that it is encoded in another way than it is decoded", r.Decoders[by], r.Methods[by])
	case by < 0:
		return fmt.Errorf("it has the method of %v and not that of %v, so that it cannot be decoded", r.Methods[n], r.Decoders[n])
	case by != n:
		return fmt.Errorf("it is encoded by its method of %v, and decoded by that of %v", r.Methods[n], r.Decoders[by])
	}
	if from := r.promotes(t, r.Methods[n]); from != nil {
		return fmt.Errorf("its method of %v is that of the embedded %v, which encodes no other field", r.Methods[n], from)
	}
	if t.Implements(r.Decoders[n]) {
		return fmt.Errorf("its method of %v does not have a pointer to it as receiver, or is that of an embedded pointer or interface, so that nothing would arrive", r.Decoders[n])
	}
	return nil
}

// refers reports whether a struct or an array contains pointers or interfaces. Inside says that t
// is in one.
func (r *Rules) refers(t reflect.Type, inside bool) bool {
	switch n, _ := first(r.Methods, t); {
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Interface:
		return inside
	case n >= 0, slices.Contains(r.Whole, t):
		return false
	case t.Kind() == reflect.Array:
		return r.refers(t.Elem(), true)
	case t.Kind() == reflect.Struct:
		for f := range t.Fields() {
			if !r.skips(&f) && r.refers(f.Type, true) {
				return true
			}
		}
	}
	return false
}

// merges reports whether keys of type t that differ can have one encoding.
func (r *Rules) merges(t reflect.Type) bool {
	if n, _ := first(r.Methods, t); n >= 0 && t.Kind() != reflect.Interface || slices.Contains(r.Whole, t) {
		return true
	}
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Array:
		return r.merges(t.Elem())
	case reflect.Pointer: // nil, and a pointer to nil
		k := t.Elem().Kind()
		return k == reflect.Pointer || k == reflect.Slice || k == reflect.Map || k == reflect.Interface
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Name != "_" && f.Type.Size() > 0 && (r.skips(&f) || r.merges(f.Type)) {
				return true
			}
		}
	}
	return false
}

// promotes returns the embedded type whose method of an interface a struct has, if the struct has
// other fields too that the codec would encode.
func (r *Rules) promotes(t, of reflect.Type) reflect.Type {
	t = Base(t)
	if t.Kind() != reflect.Struct || declares(t, of) {
		return nil
	}
	var from reflect.Type
	others := false
	for f := range t.Fields() {
		if f.Anonymous && (f.Type.Implements(of) || reflect.PointerTo(f.Type).Implements(of)) {
			from = f.Type
		} else if f.Name != "_" && f.Type.Size() > 0 && !r.skips(&f) {
			others = true
		}
	}
	if !others {
		return nil
	}
	return from
}

// declares reports whether t itself has the method of an interface. The compiler makes wrappers for
// promoted methods, which have no source file.
func declares(t, of reflect.Type) bool {
	for _, t := range [...]reflect.Type{t, reflect.PointerTo(t)} {
		if m, has := method(t, of); has {
			f := runtime.FuncForPC(m.Func.Pointer())
			if file, _ := f.FileLine(f.Entry()); file != "<autogenerated>" {
				return true
			}
		}
	}
	return false
}

// method returns the method of t by which a type implements one of the interfaces in Rules.Methods.
// The names are constants: if a program computes the name of a method, the linker keeps all
// exported methods of the program.
func method(t, of reflect.Type) (m reflect.Method, has bool) {
	switch of.String() {
	case "json.Marshaler":
		m, has = t.MethodByName("MarshalJSON")
	case "encoding.TextMarshaler":
		m, has = t.MethodByName("MarshalText")
	case "encoding.BinaryMarshaler":
		m, has = t.MethodByName("MarshalBinary")
	case "gob.GobEncoder":
		m, has = t.MethodByName("GobEncode")
	case "msgpack.CustomEncoder":
		m, has = t.MethodByName("EncodeMsgpack")
	case "msgpack.Marshaler":
		m, has = t.MethodByName("MarshalMsgpack")
	}
	return m, has
}

// errUnaddressable is the error of a value whose methods need its address.
func errUnaddressable(t reflect.Type) error {
	return fmt.Errorf("%v encodes itself by methods of *%v, which values in maps and interfaces do not have: use a pointer", t, t)
}

// Text returns the path to the first text in v for which wrong reports true, or "". It follows what
// encoding/json encodes. Texts are strings, and what MarshalText and MarshalJSON return.
func (r *Rules) Text(v any, wrong func(string) bool) string {
	return r.Find(v, func(v reflect.Value, itself reflect.Type, _ bool) bool {
		switch itself {
		case reflect.TypeFor[encoding.TextMarshaler]():
			m, _ := reflect.TypeAssert[encoding.TextMarshaler](v)
			b, _ := m.MarshalText()
			return wrong(string(b))
		case reflect.TypeFor[json.Marshaler]():
			m, _ := reflect.TypeAssert[json.Marshaler](v)
			b, _ := m.MarshalJSON()
			return wrong(string(b))
		}
		return v.Kind() == reflect.String && wrong(v.String())
	})
}

// Find returns the path to the first value in v for which wrong reports true, or "". Itself is the
// interface in r.Methods by which the value encodes itself, or nil. Behind says that a pointer or
// an interface holds the value. V was encoded before, so its methods do not panic.
func (r *Rules) Find(v any, wrong func(v reflect.Value, itself reflect.Type, behind bool) bool) string {
	s := search{rules: r, wrong: wrong, left: maxBytes()}
	value := reflect.ValueOf(v)
	if value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem() // it is the message, not a pointer in it
	}
	if !value.IsValid() || !s.value(value, 0) {
		return ""
	}
	slices.Reverse(s.path)
	return fmt.Sprint(Base(value.Type())) + strings.Join(s.path, "")
}

// A search looks for a value in one that Check has accepted.
type search struct {
	rules *Rules
	wrong func(v reflect.Value, itself reflect.Type, behind bool) bool
	path  []string
	left  int // values to visit
}

func (s *search) value(v reflect.Value, depth int) bool {
	behind := false
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return false
		}
		v, behind = v.Elem(), true
	}
	if s.left--; s.left < 0 || depth > Max || v.Type() == reflect.TypeFor[json.Number]() {
		return false
	}
	if of, itself := s.encoding(v); itself != nil {
		return s.wrong(of, itself, behind)
	}
	t := v.Type()
	switch v.Kind() {
	case reflect.String:
		return s.wrong(v, nil, behind)
	case reflect.Slice, reflect.Array:
		if n, _ := first(s.rules.Methods, t.Elem()); n < 0 && t.Elem().Kind() <= reflect.Complex128 {
			return false
		}
		for i := range v.Len() {
			if s.value(v.Index(i), depth+1) {
				return s.at(fmt.Sprintf("[%d]", i))
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			if s.key(i.Key(), depth) {
				return s.at("[a key]")
			}
			if s.value(i.Value(), depth+1) {
				return s.at(fmt.Sprintf("[%.40q]", fmt.Sprint(i.Key())))
			}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !s.rules.skips(&f) && s.value(v.Field(i), depth+1) {
				return s.at("." + f.Name)
			}
		}
	}
	return false
}

// key is value for a key of a map, of which JSON takes the text and not what MarshalJSON returns.
func (s *search) key(v reflect.Value, depth int) bool {
	of, itself := s.encoding(v)
	if itself == reflect.TypeFor[json.Marshaler]() {
		itself = nil
		if text := reflect.TypeFor[encoding.TextMarshaler](); of.Type().Implements(text) {
			itself = text
		}
	}
	if itself == nil && (v.Kind() == reflect.Struct || v.Kind() == reflect.Array) {
		return s.value(v, depth)
	}
	return s.wrong(of, itself, false)
}

// encoding returns a value with the methods by which v encodes itself, and their interface, or nil.
func (s *search) encoding(v reflect.Value) (of reflect.Value, itself reflect.Type) {
	n, direct := first(s.rules.Methods, v.Type())
	if n < 0 || !v.CanInterface() { // it is embedded, and its fields are encoded
		return v, nil
	}
	if of = v; !direct {
		of = reflect.New(v.Type())
		of.Elem().Set(v)
	}
	return of, s.rules.Methods[n]
}

func (s *search) at(step string) bool {
	s.path = append(s.path, step)
	return true
}
