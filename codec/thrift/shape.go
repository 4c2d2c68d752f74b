// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// A form is how Go represents a type of Thrift.
type form uint8

const (
	formBool form = iota
	formInt
	formUint8
	formDouble
	formString
	formBytes
	formUUID
	formStruct
	formPointer  // of elem
	formSlice    // of elem; a list or a set
	formMap      // from key to elem
	formSetEmpty // a map from key to struct{}
	formSetBool  // a map from key to bool
)

// A shape says how the values of a Go type are encoded.
type shape struct {
	goType reflect.Type
	typ    thriftwire.Type
	form   form
	key    *shape
	elem   *shape

	// of a struct
	fields   []field // in the order of their numbers
	byID     []int16 // index in fields plus 1, for small numbers
	required int     // how many fields are required
	isUnion  bool
	isArgs   bool
	partial  bool // a field with content is left out
}

// A field is a field of a struct.
type field struct {
	id       int16
	index    int
	name     string
	shape    *shape
	optional bool // it is left out if it is zero
	required int  // its number among the required fields from 1, or 0
}

// maxRequired is how many required fields a struct may have.
const maxRequired = 512

// maxDense is the largest number of a field that shape.byID has.
const maxDense = 255

// matches returns an error unless a value of type t can be decoded as s.
func (s *shape) matches(t thriftwire.Type) error {
	isList := func(t thriftwire.Type) bool { return t == thriftwire.List || t == thriftwire.Set }
	if t == s.typ || isList(t) && isList(s.typ) {
		return nil
	}
	return fmt.Errorf("the value is %v, want %v for %v", t, s.typ, s.goType)
}

// field returns the field with a number, or nil. Guess is its index if the fields of a struct
// arrive in the order of their numbers.
func (s *shape) field(id int16, guess int) *field {
	if guess < len(s.fields) && s.fields[guess].id == id {
		return &s.fields[guess]
	}
	if uint(id) < uint(len(s.byID)) { //nolint:gosec // a negative number is large
		if i := s.byID[id]; i > 0 {
			return &s.fields[i-1]
		}
		return nil
	}
	i, found := slices.BinarySearchFunc(s.fields, id, func(f field, id int16) int { return cmp.Compare(f.id, id) })
	if !found {
		return nil
	}
	return &s.fields[i]
}

// A shapeKey identifies a shape: a type with the options of its field.
type shapeKey struct {
	of          reflect.Type
	isSet, enum bool
}

// of returns the shape of a type without options.
func (p *plans) of(t reflect.Type) (*shape, error) {
	if s, ok := p.Load(shapeKey{of: t}); ok {
		return s.(*shape), nil //nolint:forcetypeassert // it stores nothing else
	}
	b := builder{plans: p, built: make(map[shapeKey]*shape)}
	s, err := b.shape(shapeKey{of: t})
	if err != nil {
		return nil, fmt.Errorf("thrift: %w", err)
	}
	for key, built := range b.built {
		p.LoadOrStore(key, built)
	}
	return s, nil
}

// A builder builds the shapes of types that refer to each other.
type builder struct {
	plans *plans
	built map[shapeKey]*shape // also those that are not complete
}

func (b *builder) shape(k shapeKey) (*shape, error) {
	if s, ok := b.plans.Load(k); ok {
		return s.(*shape), nil //nolint:forcetypeassert // it stores nothing else
	}
	if s := b.built[k]; s != nil {
		return s, nil
	}
	s := &shape{goType: k.of}
	b.built[k] = s
	if err := b.fill(s, k); err != nil {
		return nil, err
	}
	if k.isSet && s.typ != thriftwire.Set {
		return nil, fmt.Errorf("%v is no set", k.of)
	}
	if k.enum && s.typ != thriftwire.I32 {
		return nil, fmt.Errorf("%v is no enum", k.of)
	}
	return s, nil
}

// basic has the shapes of the kinds that have only one.
var basic = map[reflect.Kind]shape{
	reflect.Bool:    {typ: thriftwire.Bool, form: formBool},
	reflect.Int8:    {typ: thriftwire.I8, form: formInt},
	reflect.Uint8:   {typ: thriftwire.I8, form: formUint8},
	reflect.Int16:   {typ: thriftwire.I16, form: formInt},
	reflect.Int32:   {typ: thriftwire.I32, form: formInt},
	reflect.Int64:   {typ: thriftwire.I64, form: formInt},
	reflect.Int:     {typ: thriftwire.I64, form: formInt},
	reflect.Float64: {typ: thriftwire.Double, form: formDouble},
	reflect.String:  {typ: thriftwire.String, form: formString},
}

func (b *builder) fill(s *shape, k shapeKey) (err error) {
	t := k.of
	if simple, ok := basic[t.Kind()]; ok {
		s.typ, s.form = simple.typ, simple.form
		if k.enum && s.typ == thriftwire.I64 {
			s.typ = thriftwire.I32
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Array:
		if t.Len() != 16 || t.Elem() != reflect.TypeFor[byte]() {
			return fmt.Errorf("%v is no type of Thrift: of the arrays, only [16]byte is", t)
		}
		s.typ, s.form = thriftwire.UUID, formUUID
	case reflect.Pointer:
		s.form = formPointer
		if t.Elem().Kind() == reflect.Pointer {
			return fmt.Errorf("%v is a pointer to a pointer", t)
		}
		if s.elem, err = b.shape(shapeKey{t.Elem(), k.isSet, k.enum}); err == nil {
			s.typ = s.elem.typ
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			s.typ, s.form = thriftwire.String, formBytes
			return nil
		}
		if s.typ, s.form = thriftwire.List, formSlice; k.isSet {
			s.typ = thriftwire.Set
		}
		s.elem, err = b.shape(shapeKey{of: t.Elem(), enum: k.enum})
		if k.enum && err == nil {
			return fmt.Errorf("%v: the elements need a type based on int32 to be enums", t)
		}
	case reflect.Map:
		return b.fillMap(s, k)
	case reflect.Struct:
		s.typ, s.form = thriftwire.Struct, formStruct
		return b.fillStruct(s)
	default:
		return fmt.Errorf("%v is no type of Thrift", t)
	}
	return err
}

func (b *builder) fillMap(s *shape, k shapeKey) (err error) {
	t := k.of
	if s.key, err = b.shape(shapeKey{of: t.Key()}); err != nil {
		return err
	}
	if s.key.partial {
		return fmt.Errorf("%v: a field of the keys is left out, so that two keys can arrive as one", t)
	}
	switch {
	case t.Elem().Kind() == reflect.Struct && t.Elem().NumField() == 0:
		s.typ, s.form = thriftwire.Set, formSetEmpty
		return nil
	case k.isSet && t.Elem().Kind() == reflect.Bool:
		s.typ, s.form = thriftwire.Set, formSetBool
	default:
		s.typ, s.form = thriftwire.Map, formMap
	}
	s.elem, err = b.shape(shapeKey{of: t.Elem()})
	return err
}

func (b *builder) fillStruct(s *shape) error {
	t := s.goType
	for i := range t.NumField() {
		g := t.Field(i)
		tag, ok := g.Tag.Lookup("thrift")
		switch {
		case g.Name == "_":
			s.isUnion = s.isUnion || tag == ",union"
			s.isArgs = s.isArgs || tag == ",args"
			continue
		case tag == "-", !ok && !g.IsExported() && !g.Anonymous:
			s.partial = s.partial || g.Type.Size() > 0
			continue
		case !ok:
			return fmt.Errorf("%v.%s has no number: give it a tag such as `thrift:\"%s,1\"`, or `thrift:\"-\"`", t, g.Name, strings.ToLower(g.Name))
		case !g.IsExported():
			return fmt.Errorf("%v.%s has a number, and is not exported", t, g.Name)
		}
		f, k, err := parseTag(tag)
		if err != nil {
			return fmt.Errorf("%v.%s: %w", t, g.Name, err)
		}
		f.index, f.name, k.of = i, g.Name, g.Type
		if f.required > 0 {
			s.required++
			f.required = s.required
		}
		if f.shape, err = b.shape(k); err != nil {
			return fmt.Errorf("%v.%s: %w", t, g.Name, err)
		}
		s.partial = s.partial || f.shape.partial
		s.fields = append(s.fields, f)
	}
	if len(s.fields) == 0 && carries.Hides(t) {
		return fmt.Errorf("%v has content and no exported fields, so that nothing of it would arrive", t)
	}
	if s.required > maxRequired {
		return fmt.Errorf("%v has %d required fields, the limit is %d", t, s.required, maxRequired)
	}
	slices.SortFunc(s.fields, func(a, b field) int { return cmp.Compare(a.id, b.id) })
	for i, f := range s.fields {
		if i > 0 && s.fields[i-1].id == f.id {
			return fmt.Errorf("%v.%s and %s have the same number %d", t, s.fields[i-1].name, f.name, f.id)
		}
	}
	s.index()
	return nil
}

// index fills byID, if all numbers are small.
func (s *shape) index() {
	if n := len(s.fields); n == 0 || s.fields[0].id < 0 || s.fields[n-1].id > maxDense {
		return
	}
	s.byID = make([]int16, s.fields[len(s.fields)-1].id+1)
	for i, f := range s.fields {
		s.byID[f.id] = int16(i + 1)
	}
}

// parseTag parses a tag: "number", "number,options", "name,number" or "name,number,options".
func parseTag(tag string) (f field, k shapeKey, err error) {
	parts := strings.Split(tag, ",")
	id, err := strconv.ParseInt(strings.TrimSpace(parts[0]), 10, 16)
	if err != nil && len(parts) > 1 {
		parts = parts[1:]
		id, err = strconv.ParseInt(strings.TrimSpace(parts[0]), 10, 16)
	}
	if err != nil {
		return f, k, fmt.Errorf("the tag %q has no number", tag)
	}
	f.id = int16(id)
	for _, option := range parts[1:] {
		switch strings.TrimSpace(option) {
		case "", "default":
		case "required":
			f.required = 1
		case "optional":
			f.optional = true
		case "set":
			k.isSet = true
		case "enum":
			k.enum = true
		default:
			return f, k, fmt.Errorf("the tag %q has the unknown option %q", tag, option)
		}
	}
	return f, k, nil
}
