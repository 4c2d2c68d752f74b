// SPDX-License-Identifier: Apache-2.0

package hessian

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// Types keeps what is known of Go types. It may be used concurrently.
type Types struct{ shapes sync.Map } // from reflect.Type to *shape

// A Classed is a type that stands for a Java class.
type Classed interface {
	// JavaClassName returns the full name of the class, for example "com.acme.User".
	JavaClassName() string
}

// rules say which types are carried. Values are not walked: references carry cycles.
var rules = nesting.Rules{
	Skip: func(f *reflect.StructField) bool {
		_, tagged := f.Tag.Lookup("hessian")
		return f.Tag.Get("hessian") == "-" || !f.IsExported() && (tagged || !f.Anonymous || f.Type.Kind() != reflect.Struct)
	},
	Struct:    checkFields,
	Strict:    true,
	Whole:     []reflect.Type{timeType},
	Kinds:     []reflect.Kind{reflect.Complex64, reflect.Complex128, reflect.Uintptr},
	Tag:       "hessian",
	PlainKeys: true,
	Key: func(t reflect.Type) error {
		if k := t.Kind(); k == reflect.Pointer || k == reflect.Array {
			return fmt.Errorf("a %v is no key in Hessian", t)
		}
		return nil
	},
}

// CheckType returns why messages of a type, or of pointers to it, do not arrive as they were sent.
func (*Types) CheckType(t reflect.Type) error { return checkType(t) }

func checkType(t reflect.Type) error {
	if err := rules.CheckType(t); err != nil {
		return fmt.Errorf("hessian: %w", err)
	}
	return nil
}

// checkHeld is checkType for what an interface holds.
func checkHeld(v reflect.Value) error {
	switch t := v.Type(); {
	case t == stringType, t.Kind() <= reflect.Float64 && t.Kind() != reflect.Uintptr && t.PkgPath() == "":
		return nil // of a predeclared type
	}
	if err := rules.CheckTarget(v.Interface()); err != nil {
		return fmt.Errorf("hessian: %w", err)
	}
	return nil
}

// checkFields returns why a struct has no shape.
func checkFields(t reflect.Type) error {
	s := new(shape)
	s.addFields(t, nil)
	return s.err
}

// A shape is what is known of a type.
type shape struct {
	class  string // "" if the type stands for none
	fields []field
	names  []string // of fields
	err    error
}

// A field is a field of a struct.
type field struct {
	name  string
	alias string // another name, by which the field is decoded too, or ""
	index []int
}

var (
	classedType = reflect.TypeFor[Classed]()
	timeType    = reflect.TypeFor[time.Time]()
	stringType  = reflect.TypeFor[string]()
)

// of returns the shape of a type that is not a pointer.
func (ts *Types) of(t reflect.Type) *shape {
	if s, ok := ts.shapes.Load(t); ok {
		return s.(*shape) //nolint:forcetypeassert // nothing else is in it
	}
	s := &shape{class: ClassOf(t)}
	if t.Kind() == reflect.Struct && t != timeType {
		s.addFields(t, nil)
	}
	for _, f := range s.fields {
		s.names = append(s.names, f.name)
	}
	known, _ := ts.shapes.LoadOrStore(t, s)
	return known.(*shape) //nolint:forcetypeassert // as above
}

// ClassOf returns the name of the Java class for which a type stands, or "".
func ClassOf(t reflect.Type) string {
	t = nesting.Base(t)
	if t.Kind() == reflect.Interface || !reflect.PointerTo(t).Implements(classedType) {
		return ""
	}
	named, _ := reflect.TypeAssert[Classed](reflect.New(t)) // it implements it
	return named.JavaClassName()
}

// addFields adds the fields of a struct. Those of an embedded struct without a tag belong to it.
func (s *shape) addFields(t reflect.Type, index []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("hessian")
		at := append(slices.Clip(index), i)
		switch {
		case tag == "-":
		case f.Anonymous && f.Type.Kind() == reflect.Struct && f.Type != timeType && !tagged:
			s.addFields(f.Type, at)
		case !f.IsExported():
		default:
			alias := ""
			if tag == "" {
				tag = lowered(f.Name)
				if first := firstLowered(f.Name); first != tag {
					alias = first
				}
			}
			if s.field(tag) >= 0 {
				s.err = fmt.Errorf("it has two fields called %q in Java: give one of them another name with the tag hessian", tag)
			}
			s.fields = append(s.fields, field{tag, alias, at})
		}
	}
}

// lowered returns the name of a Go field in Java: ID is "id", and UserName is "userName".
func lowered(name string) string {
	if strings.ToUpper(name) == name {
		return strings.ToLower(name)
	}
	return firstLowered(name)
}

// firstLowered returns the name that dubbo-go gives to a field without a tag: ID is "iD".
func firstLowered(name string) string {
	first, size := utf8.DecodeRuneInString(name)
	return string(unicode.ToLower(first)) + name[size:]
}

// decoded returns the number of the field that a message calls name, or -1.
func (s *shape) decoded(name string) int {
	if i := s.field(name); i >= 0 {
		return i
	}
	return slices.IndexFunc(s.fields, func(f field) bool { return f.alias != "" && f.alias == name })
}

// field returns the number of the field with a name, or -1.
func (s *shape) field(name string) int {
	for i := range s.fields {
		if s.fields[i].name == name {
			return i
		}
	}
	return -1
}
