// SPDX-License-Identifier: Apache-2.0

package jsoncodec

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// checkFields returns why encoding/json would leave out a field of a struct. Of several fields with
// the same name in a message, it encodes the least deeply embedded one, or none of them.
func checkFields(t reflect.Type) error {
	_, err := fieldsOf(t, nil)
	return err
}

// fieldsOf returns where in Go the fields of a struct are, by their names in a message. Within has
// the structs that embed t.
func fieldsOf(t reflect.Type, within []reflect.Type) (fields map[string]string, err error) {
	if slices.Contains(within, t) {
		return nil, fmt.Errorf("it embeds %v, which embeds itself", t)
	}
	within = append(slices.Clip(within), t)
	fields = make(map[string]string)
	for f := range t.Fields() {
		if leftOut(&f) {
			continue
		}
		name := nameOf(&f)
		added := map[string]string{name: f.Name}
		switch in := embedded(&f); {
		case name != "":
		case in == nil:
			added = map[string]string{f.Name: f.Name}
		case encodesItself(in):
			return nil, fmt.Errorf("it embeds %v, whose methods encoding/json does not call here: give the field a name with the tag json", in)
		case f.Type.Kind() == reflect.Pointer && !alwaysWritten(in):
			return nil, fmt.Errorf("it embeds the pointer %v, which would arrive as nil if all fields are empty: give the field a name with the tag json", f.Type)
		default:
			if added, err = fieldsOf(in, within); err != nil {
				return nil, err
			}
		}
		for name, at := range added {
			if other, taken := fields[name]; taken {
				return nil, fmt.Errorf(
					"the fields %s and %s have the same name %q in JSON, which leaves out one of them: give one another name with the tag json",
					other, at, name)
			}
			if fields[name] = f.Name; at != f.Name {
				fields[name] += "." + at
			}
		}
	}
	return fields, nil
}

// nameOf returns the name of a field in its tag. Encoding/json takes a name with other characters
// for none.
func nameOf(f *reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return ""
		}
	}
	return name
}

// alwaysWritten reports whether each value of a struct has a field in its encoding.
func alwaysWritten(t reflect.Type) bool {
	for f := range t.Fields() {
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		in := embedded(&f)
		switch {
		case leftOut(&f), strings.Contains(options, "omitempty"), strings.Contains(options, "omitzero"):
		case in == nil || nameOf(&f) != "":
			return true
		case f.Type.Kind() == reflect.Struct && alwaysWritten(in):
			return true
		}
	}
	return false
}

// embedded returns the struct that a field embeds, or nil.
func embedded(f *reflect.StructField) reflect.Type {
	t := f.Type
	if t.Name() == "" && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

var (
	marshaler       = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(marshaler) || p.Implements(textMarshaler)
}

// checkKey returns why values of a type are not carried as the keys of a map. Encoding/json uses
// their text methods in some cases only.
func checkKey(t reflect.Type) error {
	p := reflect.PointerTo(t)
	encodes, decodes := t.Implements(textMarshaler), p.Implements(textUnmarshaler)
	switch k := t.Kind(); {
	case k == reflect.Interface || k == reflect.Pointer:
		return fmt.Errorf("a %v is no key in JSON", t)
	case k == reflect.String && decodes && p.Implements(textMarshaler):
		return fmt.Errorf("a key of type %v is encoded without its method MarshalText, and decoded with UnmarshalText", t)
	case k == reflect.String:
		return nil
	case encodes != decodes, !encodes && p.Implements(textMarshaler):
		return fmt.Errorf("a key of type %v needs the methods MarshalText, of the type itself, and UnmarshalText", t)
	case encodes, reflect.Int <= k && k <= reflect.Uintptr:
		return nil
	}
	return fmt.Errorf("a %v is no key in JSON", t)
}
