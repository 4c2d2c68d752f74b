// SPDX-License-Identifier: Apache-2.0

package pbstruct

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A fieldType is a type of Protocol Buffers. The numbers are those of FieldDescriptorProto.Type.
type fieldType uint8

const (
	typeDouble   fieldType = 1
	typeFloat    fieldType = 2
	typeInt64    fieldType = 3
	typeUint64   fieldType = 4
	typeInt32    fieldType = 5
	typeFixed64  fieldType = 6
	typeFixed32  fieldType = 7
	typeBool     fieldType = 8
	typeString   fieldType = 9
	typeMessage  fieldType = 11
	typeBytes    fieldType = 12
	typeUint32   fieldType = 13
	typeSfixed32 fieldType = 15
	typeSfixed64 fieldType = 16
	typeSint32   fieldType = 17
	typeSint64   fieldType = 18
)

// A wireType says how a value is delimited on the wire.
type wireType uint8

const (
	wireVarint     wireType = 0
	wireFixed64    wireType = 1
	wireBytes      wireType = 2
	wireStartGroup wireType = 3
	wireEndGroup   wireType = 4
	wireFixed32    wireType = 5
)

// wire returns how values of a type are delimited.
func (t fieldType) wire() wireType {
	switch t { //nolint:exhaustive // the others are varints
	case typeDouble, typeFixed64, typeSfixed64:
		return wireFixed64
	case typeFloat, typeFixed32, typeSfixed32:
		return wireFixed32
	case typeString, typeMessage, typeBytes:
		return wireBytes
	}
	return wireVarint
}

// A form is how Go represents a value.
type form uint8

const (
	formScalar form = iota
	formStruct
	formTime
	formDuration
	formPointer // to elem
	formSlice   // of elem
	formMap     // from key to elem
)

// A shape says how the values of a Go type are encoded.
type shape struct {
	goType reflect.Type
	form   form
	typ    fieldType // of a pointer or slice, that of elem; of a map, that of its entries
	key    *shape
	elem   *shape

	// of a struct
	fields []field  // in the order of their numbers
	byID   []uint16 // index in fields plus 1, for small numbers
}

// A field is a field of a struct.
type field struct {
	number int32
	index  int
	name   string
	shape  *shape
	tag    uint64 // with the wire type in which it is encoded
}

// packed reports whether a slice is encoded as one value.
func (s *shape) packed() bool { return s.form == formSlice && s.typ.wire() != wireBytes }

// maxDense is the largest number of a field that shape.byID has.
const maxDense = 255

// field returns the field with a number, or nil.
func (s *shape) field(number int32) *field {
	if int(number) < len(s.byID) {
		if i := s.byID[number]; i > 0 {
			return &s.fields[i-1]
		}
		return nil
	} else if s.byID != nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(s.fields, number, func(f field, n int32) int { return cmp.Compare(f.number, n) })
	if !found {
		return nil
	}
	return &s.fields[i]
}

// A builder builds the shapes of structs that refer to each other. It has also those that are not
// complete.
type builder map[reflect.Type]*shape

// message returns the shape of a struct.
func (b builder) message(t reflect.Type) (*shape, error) {
	if s := b[t]; s != nil {
		return s, nil
	}
	s := &shape{goType: t, form: formStruct, typ: typeMessage}
	b[t] = s
	next := nextNumber(t)
	for i := range t.NumField() {
		g := t.Field(i)
		tag, ok := g.Tag.Lookup("pb")
		switch {
		case tag == "-", !ok && !g.IsExported() && !g.Anonymous, g.Name == "_":
			continue
		case !ok:
			return nil, fmt.Errorf("%v.%s has no number: give it one, as in `pb:\"%d\"`, or leave it out with `pb:\"-\"`", t, g.Name, next)
		case !g.IsExported():
			return nil, fmt.Errorf("%v.%s has a number, and is not exported", t, g.Name)
		}
		number, option, err := parseTag(tag)
		if err == nil {
			err = s.add(b, field{number: number, index: i, name: g.Name}, g.Type, option)
		}
		if err != nil {
			return nil, fmt.Errorf("%v.%s: %w", t, g.Name, err)
		}
	}
	return s, s.index()
}

// add adds a field of a struct.
func (s *shape) add(b builder, f field, t reflect.Type, option string) (err error) {
	if f.shape, err = b.shape(t, option); err != nil {
		return err
	}
	wire := f.shape.typ.wire()
	if f.shape.packed() {
		wire = wireBytes
	}
	f.tag = uint64(f.number)<<3 | uint64(wire) //nolint:gosec // a number is positive
	s.fields = append(s.fields, f)
	return nil
}

// nextNumber returns a number that no field of a struct has.
func nextNumber(t reflect.Type) int32 {
	most := int32(0)
	for f := range t.Fields() {
		n, _, _ := parseTag(f.Tag.Get("pb"))
		most = max(most, n)
	}
	return most + 1
}

// index sorts the fields, checks that their numbers differ, and fills byID if all are small.
func (s *shape) index() error {
	slices.SortFunc(s.fields, func(a, b field) int { return cmp.Compare(a.number, b.number) })
	for i, f := range s.fields {
		if i > 0 && s.fields[i-1].number == f.number {
			return fmt.Errorf("%v.%s and %s have the same number %d", s.goType, s.fields[i-1].name, f.name, f.number)
		}
	}
	if n := len(s.fields); n > 0 && s.fields[n-1].number <= maxDense {
		s.byID = make([]uint16, s.fields[n-1].number+1)
		for i, f := range s.fields {
			s.byID[f.number] = uint16(i + 1)
		}
	}
	return nil
}

// parseTag parses a tag: a number, and perhaps an option.
func parseTag(tag string) (number int32, option string, err error) {
	text, option, _ := strings.Cut(tag, ",")
	n, err := strconv.ParseInt(text, 10, 32)
	switch {
	case err != nil || n < 1 || n > 1<<29-1:
		return 0, "", fmt.Errorf("the tag `pb:%q` has no number from 1 to %d", tag, 1<<29-1)
	case n >= 19000 && n <= 19999:
		return 0, "", fmt.Errorf("the number %d is among 19000 to 19999, which Protocol Buffers reserve", n)
	case option != "" && option != "zigzag" && option != "fixed":
		return 0, "", fmt.Errorf("the tag `pb:%q` has an unknown option: there are zigzag and fixed", tag)
	}
	return int32(n), option, nil
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

// shape returns the shape of a field of type t.
func (b builder) shape(t reflect.Type, option string) (*shape, error) {
	switch {
	case t.Kind() == reflect.Map:
		return b.mapping(t, option)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return b.list(t, option)
	case t.Kind() != reflect.Pointer:
		return b.single(t, option)
	case t.Elem().Kind() == reflect.Pointer || t.Elem().Kind() == reflect.Map || isList(t.Elem()):
		return nil, fmt.Errorf("%v: only a pointer to a message, a number, a bool, a string or bytes is a field", t)
	}
	return b.pointer(t, option)
}

// isList reports whether a type is a repeated field.
func isList(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
}

func (b builder) pointer(t reflect.Type, option string) (*shape, error) {
	elem, err := b.single(t.Elem(), option)
	if err != nil {
		return nil, err
	}
	return &shape{goType: t, form: formPointer, typ: elem.typ, elem: elem}, nil
}

func (b builder) list(t reflect.Type, option string) (*shape, error) {
	elem, err := b.element(t.Elem(), option)
	if err != nil {
		return nil, err
	}
	return &shape{goType: t, form: formSlice, typ: elem.typ, elem: elem}, nil
}

func (b builder) mapping(t reflect.Type, option string) (*shape, error) {
	if option != "" {
		return nil, fmt.Errorf("%v: a map has no options", t)
	}
	key, err := b.single(t.Key(), "")
	if err != nil {
		return nil, err
	}
	switch {
	case key.form != formScalar, key.typ == typeDouble, key.typ == typeFloat:
		return nil, fmt.Errorf("%v: the keys of a map are integers, bools or strings", t)
	}
	elem, err := b.element(t.Elem(), "")
	if err != nil {
		return nil, err
	}
	return &shape{goType: t, form: formMap, typ: typeMessage, key: key, elem: elem}, nil
}

// element returns the shape of the elements of a slice or map.
func (b builder) element(t reflect.Type, option string) (*shape, error) {
	switch {
	case t.Kind() == reflect.Map || isList(t):
		return nil, fmt.Errorf("%v: Protocol Buffers have no lists or maps as elements of others: put it into a struct", t)
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		return b.pointer(t, option)
	}
	return b.single(t, option)
}

// single returns the shape of a type that is no pointer, slice or map.
func (b builder) single(t reflect.Type, option string) (*shape, error) {
	s := &shape{goType: t, typ: typeMessage}
	switch {
	case t == timeType:
		s.form = formTime
	case t == durationType:
		s.form = formDuration
	case t.Kind() == reflect.Struct:
		if !isMessage(t) {
			return nil, fmt.Errorf("%v is a plain struct: number its fields, as in `pb:\"1\"`", t)
		}
		var err error
		if s, err = b.message(t); err != nil {
			return nil, err
		}
	default:
		if s.typ = scalars[t.Kind()]; t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			s.typ = typeBytes
		}
		if s.typ == 0 {
			return nil, fmt.Errorf("%v is no type of Protocol Buffers", t)
		}
	}
	if option != "" {
		if s.typ = optional[option][s.typ]; s.typ == 0 {
			return nil, errors.New("the option " + option + " is for integers" + map[string]string{"zigzag": " with a sign"}[option])
		}
	}
	return s, nil
}

// scalars has the types of kinds.
var scalars = map[reflect.Kind]fieldType{
	reflect.Bool: typeBool, reflect.String: typeString, reflect.Float32: typeFloat, reflect.Float64: typeDouble,
	reflect.Int8: typeInt32, reflect.Int16: typeInt32, reflect.Int32: typeInt32, reflect.Int64: typeInt64, reflect.Int: typeInt64,
	reflect.Uint8: typeUint32, reflect.Uint16: typeUint32, reflect.Uint32: typeUint32, reflect.Uint64: typeUint64, reflect.Uint: typeUint64,
}

// optional has the types that options make of others.
var optional = map[string]map[fieldType]fieldType{
	"zigzag": {typeInt32: typeSint32, typeInt64: typeSint64},
	"fixed":  {typeInt32: typeSfixed32, typeInt64: typeSfixed64, typeUint32: typeFixed32, typeUint64: typeFixed64},
}
