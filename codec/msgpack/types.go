// SPDX-License-Identifier: Apache-2.0

package msgpack

import (
	"bytes"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// This file checks types and values before the libraries see them. Both encode by recursion, so
// that a value that contains itself would end the process. Vmihailenco's library also recurses
// without end into a struct that embeds itself, panics for wrong options of tags, and logs a line
// with package log if two fields have one name.

// nested is for values that vmihailenco's library encodes. In an interface, a map may have keys of
// any kind, because it is decoded as map[any]any: see mapOf.
var nested = func() *nesting.Rules {
	r, held := new(nesting.Rules), new(nesting.Rules)
	setRules(r, reflect.Pointer, reflect.Interface)
	setRules(held, reflect.Pointer)
	held.Key = checkHeldKey
	r.Held = held
	return r
}()

// setRules sets the rules of values whose maps do not have keys of some kinds.
func setRules(r *nesting.Rules, noKeys ...reflect.Kind) {
	r.Methods = ownEncoders
	r.Skip = func(f *reflect.StructField) bool { return tagOf(f).name == "-" || !f.IsExported() && !f.Anonymous }
	r.Note = "_msgpack" // the library's name of the field whose tag has the options of a struct
	r.Struct = func(t reflect.Type) error {
		_, err := fieldsOf(t, nil)
		return err
	}
	r.Strict, r.Decoders, r.Tag = true, ownDecoders, "msgpack"
	r.KeyBytes = keyBytes
	r.Kinds = []reflect.Kind{reflect.Complex64, reflect.Complex128, reflect.Uintptr}
	r.PlainKeys = true
	r.Key = func(t reflect.Type) error {
		if slices.Contains(noKeys, t.Kind()) {
			return fmt.Errorf("a %v is no key in MessagePack", t)
		}
		return nil
	}
}

// checkHeldKey returns why values of a type cannot be the keys of a map in an interface. A struct
// would be decoded as a map, and an array as a slice, neither of which is a key.
func checkHeldKey(t reflect.Type) error {
	isBytes := t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8
	isList := t.Kind() == reflect.Struct || t.Kind() == reflect.Array && !isBytes
	if t.Kind() == reflect.Pointer || isList && t != timeType && !codesItself(t) {
		return fmt.Errorf("a %v is no key in MessagePack, if the map is in an interface", t)
	}
	return nil
}

var timeType = reflect.TypeFor[time.Time]()

// keyBytes returns a text of what a key arrives as, in an interface.
func keyBytes(key reflect.Value) ([]byte, error) {
	b, err := msgpack.Marshal(key.Addr().Interface())
	if err != nil {
		return nil, err
	}
	var arrives any
	err = msgpack.Unmarshal(b, &arrives)
	return fmt.Appendf(nil, "%T %v", arrives, arrives), err
}

// nestedGenerated is for values whose types have the methods that msgp generates.
var nestedGenerated = nesting.Rules{
	Skip: func(f *reflect.StructField) bool {
		name, _, _ := strings.Cut(f.Tag.Get("msg"), ",")
		return name == "-" || !f.IsExported()
	},
}

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (*codec) CheckType(t reflect.Type) error {
	p := reflect.PointerTo(nesting.Base(t))
	var err error
	switch encodes, decodes := p.Implements(reflect.TypeFor[marshaler]()), p.Implements(reflect.TypeFor[unmarshaler]()); {
	case encodes != decodes:
		err = fmt.Errorf("%v has one of the methods MarshalMsg and UnmarshalMsg, and not both", p.Elem())
	case encodes:
		err = nestedGenerated.CheckType(t)
	default:
		err = nested.CheckType(t)
	}
	if err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	return nil
}

// Values with the methods of one of these encode or decode themselves.
var (
	ownEncoders = []reflect.Type{
		reflect.TypeFor[msgpack.CustomEncoder](), reflect.TypeFor[msgpack.Marshaler](),
		reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.TextMarshaler](),
	}
	ownDecoders = []reflect.Type{
		reflect.TypeFor[msgpack.CustomDecoder](), reflect.TypeFor[msgpack.Unmarshaler](),
		reflect.TypeFor[encoding.BinaryUnmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}
)

// checkNil returns an error if a value in v encodes itself as no bytes, which the library writes as
// nil: the value would arrive as a nil pointer, or as zero. B is the encoding of v.
func checkNil(v any, b []byte) error {
	if bytes.IndexByte(b, msgpcode.Nil) < 0 {
		return nil
	}
	at := nested.Find(v, func(v reflect.Value, itself reflect.Type, behind bool) bool {
		value := v
		if value.Kind() == reflect.Pointer {
			value = value.Elem() // V has the methods, value has the content
		}
		if itself == nil || value.IsZero() && !behind || value.Kind() == reflect.Slice && value.IsNil() {
			return false
		}
		encode := func() ([]byte, error) { return []byte{}, nil }
		switch itself {
		case reflect.TypeFor[encoding.BinaryMarshaler]():
			if m, ok := reflect.TypeAssert[encoding.BinaryMarshaler](v); ok {
				encode = m.MarshalBinary
			}
		case reflect.TypeFor[encoding.TextMarshaler]():
			if m, ok := reflect.TypeAssert[encoding.TextMarshaler](v); ok {
				encode = m.MarshalText
			}
		}
		b, err := encode()
		return b == nil && err == nil
	})
	if at == "" {
		return nil
	}
	return fmt.Errorf("%s encodes itself as no bytes, and would arrive as nil", at)
}

// codesItself reports whether t has methods of its own that encode or decode it.
func codesItself(t reflect.Type) bool {
	return slices.ContainsFunc(slices.Concat(ownEncoders, ownDecoders), reflect.PointerTo(t).Implements)
}

// A tag is the tag "msgpack" of a field.
type tag struct {
	name    string
	options []string
}

func tagOf(f *reflect.StructField) tag {
	name, options, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
	return tag{name, strings.Split(options, ",")}
}

// option returns the value of an option such as "alias:id".
func (t tag) option(name string) (value string, ok bool) {
	for _, option := range t.options {
		if option, value, _ = strings.Cut(option, ":"); option == name {
			return value, true
		}
	}
	return "", false
}

// fieldsOf returns the names of a struct's fields in a message, in the way of vmihailenco's
// library. It returns an error where that library logs a line, panics or does not return. Within
// has the structs that embed t.
func fieldsOf(t reflect.Type, within []reflect.Type) (names []string, err error) {
	if slices.Contains(within, t) {
		return nil, fmt.Errorf("%v embeds itself", t)
	}
	within = append(slices.Clip(within), t)
	known := make(map[string]bool)
	for f := range t.Fields() {
		tag := tagOf(&f)
		if tag.name == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		name := tag.name
		if name == "" {
			name = f.Name
		}
		if _, ok := tag.option("intern"); ok && f.Type.Kind() != reflect.Interface && f.Type.Kind() != reflect.String {
			return nil, fmt.Errorf("%v.%s has the option intern, which is for strings and interfaces", t, f.Name)
		}
		inlined, inlines, err := embedded(&f, tag, known, within)
		if err != nil {
			return nil, err
		}
		added := []string{name}
		if alias, ok := tag.option("alias"); ok && !inlines {
			added = append(added, alias)
		}
		for _, name := range added {
			if known[name] || slices.Contains(inlined, name) {
				return nil, fmt.Errorf("%v has two fields called %q in a message: give one of them another name with the tag msgpack", t, name)
			}
			known[name] = true
		}
		if !inlines {
			names = append(names, name)
		}
		for _, name := range inlined {
			known[name] = true
		}
		names = append(names, inlined...)
	}
	return names, nil
}

// embedded returns the names of the fields of an embedded struct that become fields of the struct
// around it, which has the fields known before it.
func embedded(f *reflect.StructField, tag tag, known map[string]bool, within []reflect.Type) (names []string, inlines bool, err error) {
	if _, no := tag.option("noinline"); !f.Anonymous || no {
		return nil, false, nil
	}
	_, inline := tag.option("inline")
	t := nesting.Base(f.Type)
	switch {
	case inline && f.Type.Kind() != reflect.Struct:
		return nil, false, fmt.Errorf("%s has the option inline, which is for structs", f.Name)
	case t.Kind() != reflect.Struct, !inline && codesItself(t):
		return nil, false, nil
	case f.Type.Kind() == reflect.Pointer:
		return nil, false, fmt.Errorf("it embeds the pointer %v, which would arrive as a pointer to zeros if it is nil: give it the tag `msgpack:\",noinline\"`", f.Type)
	}
	names, err = fieldsOf(t, within)
	isKnown := func(name string) bool { return known[name] }
	switch {
	case err != nil:
		return nil, false, err
	case inline:
		return slices.DeleteFunc(names, isKnown), true, nil
	case slices.ContainsFunc(names, isKnown):
		return nil, false, nil
	}
	return names, true, nil
}
