// SPDX-License-Identifier: Apache-2.0

package pbstruct

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// Describe returns a google.protobuf.FileDescriptorProto, encoded, that describes numbered structs
// and all structs in them, for example for gRPC reflection. The file has the name file, and its
// messages are in the package pkg. Names has the full name of each of types: struct{} is
// google.protobuf.Empty. A message is named like its type, and a field "ItemID" is named "item_id".
// The JSON name of a field is that of its tag json, if it has one. Describe fails if two types have
// the same name, or if a type has none.
func Describe(file, pkg string, types ...reflect.Type) (encoded []byte, names []string, err error) {
	d := describer{prefix: "." + pkg + ".", named: make(map[string]reflect.Type), built: make(builder)}
	if pkg == "" {
		d.prefix = "."
	}
	d.file = fileDescriptor{Name: file, Package: pkg, Syntax: "proto3"}
	for _, t := range types {
		t = nesting.Base(t)
		if !isMessage(t) {
			return nil, nil, fmt.Errorf("pbstruct: %v is not a numbered struct", t)
		}
		s, err := d.built.message(t)
		if err != nil {
			return nil, nil, fmt.Errorf("pbstruct: %w", err)
		}
		name, err := d.nameOf(s)
		if err != nil {
			return nil, nil, fmt.Errorf("pbstruct: %w", err)
		}
		names = append(names, name[1:])
	}
	slices.Sort(d.file.Dependency)
	encoded, err = Codec.Append(nil, &d.file)
	return encoded, names, err
}

// The messages of descriptor.proto, as far as they are needed.
type (
	fileDescriptor struct {
		Name       string               `pb:"1"`
		Package    string               `pb:"2"`
		Dependency []string             `pb:"3"`
		Messages   []*messageDescriptor `pb:"4"`
		Syntax     string               `pb:"12"`
	}
	messageDescriptor struct {
		Name    string               `pb:"1"`
		Fields  []*fieldDescriptor   `pb:"2"`
		Nested  []*messageDescriptor `pb:"3"`
		Options *messageOptions      `pb:"7"`
		Oneofs  []oneofDescriptor    `pb:"8"`
	}
	fieldDescriptor struct {
		Name     string `pb:"1"`
		Number   int32  `pb:"3"`
		Label    int32  `pb:"4"`
		Type     int32  `pb:"5"`
		TypeName string `pb:"6"`
		Oneof    *int32 `pb:"9"`
		JSONName string `pb:"10"`
		Optional bool   `pb:"17"`
	}
	messageOptions struct {
		MapEntry bool `pb:"7"`
	}
	oneofDescriptor struct {
		Name string `pb:"1"`
	}
)

// The labels of a fieldDescriptor.
const (
	labelOptional = 1
	labelRepeated = 3
)

// A describer describes messages.
type describer struct {
	file   fileDescriptor
	prefix string
	named  map[string]reflect.Type
	built  builder
}

// nameOf returns the full name of a message, with a dot before it. It describes the message if that
// has not been done.
func (d *describer) nameOf(s *shape) (string, error) {
	known := ""
	switch {
	case s.form == formTime:
		known = "timestamp"
	case s.form == formDuration:
		known = "duration"
	case s.goType.NumField() == 0 && s.goType.Name() == "":
		known = "empty"
	}
	if known != "" {
		if file := "google/protobuf/" + known + ".proto"; !slices.Contains(d.file.Dependency, file) {
			d.file.Dependency = append(d.file.Dependency, file)
		}
		return ".google.protobuf." + strings.ToUpper(known[:1]) + known[1:], nil
	}
	name := strings.Map(func(r rune) rune { // a type argument has a path, for example
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '_'
	}, s.goType.Name())
	switch {
	case name == "":
		return "", fmt.Errorf("%v has no name, so the message has none", s.goType)
	case d.named[name] == nil:
		d.named[name] = s.goType
		return d.prefix + name, d.describe(name, s)
	case d.named[name] != s.goType:
		return "", fmt.Errorf("%v and %v would be messages of the same name %s", d.named[name], s.goType, name)
	}
	return d.prefix + name, nil
}

// describe adds a message to the file.
func (d *describer) describe(name string, s *shape) error {
	m := &messageDescriptor{Name: name}
	d.file.Messages = append(d.file.Messages, m)
	for i := range s.fields {
		f := &s.fields[i]
		described := &fieldDescriptor{Name: snake(f.name), Number: f.number}
		if json, _, _ := strings.Cut(s.goType.Field(f.index).Tag.Get("json"), ","); json != "-" {
			described.JSONName = json
		}
		if slices.ContainsFunc(m.Fields, func(other *fieldDescriptor) bool { return other.Name == described.Name }) {
			return fmt.Errorf("%v has two fields of the name %s", s.goType, described.Name)
		}
		m.Fields = append(m.Fields, described)
		if err := d.complete(described, m, f.shape); err != nil {
			return fmt.Errorf("%v.%s: %w", s.goType, f.name, err)
		}
	}
	return nil
}

// complete adds the type of a field of the message m, and its label.
func (d *describer) complete(f *fieldDescriptor, m *messageDescriptor, s *shape) (err error) {
	f.Label, f.Type = labelOptional, int32(s.typ)
	switch s.form { //nolint:exhaustive // the others are complete
	case formSlice:
		err = d.complete(f, m, s.elem)
		f.Label, f.Oneof, f.Optional = labelRepeated, nil, false
	case formMap:
		f.Label = labelRepeated
		f.TypeName, err = d.entry(f, m, s)
	case formPointer:
		if s.elem.form != formScalar {
			return d.complete(f, m, s.elem)
		}
		f.Oneof, f.Optional = new(int32(len(m.Oneofs))), true //nolint:gosec // a struct has few fields
		m.Oneofs = append(m.Oneofs, oneofDescriptor{"_" + f.Name})
	case formStruct, formTime, formDuration:
		f.TypeName, err = d.nameOf(s)
	}
	return err
}

// entry adds the message of the entries of a map, and returns its full name.
func (d *describer) entry(f *fieldDescriptor, m *messageDescriptor, s *shape) (string, error) {
	entry := &messageDescriptor{Name: camel(f.Name) + "Entry", Options: &messageOptions{MapEntry: true}}
	entry.Fields = []*fieldDescriptor{{Name: "key", Number: 1}, {Name: "value", Number: 2}}
	m.Nested = append(m.Nested, entry)
	return d.prefix + m.Name + "." + entry.Name, errors.Join(d.complete(entry.Fields[0], entry, s.key), d.complete(entry.Fields[1], entry, s.elem))
}

// snake returns a name of Go as Protocol Buffers write it: "ItemID" becomes "item_id".
func snake(name string) string {
	var out strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		lower := func(i int) bool { return i < len(letters) && !unicode.IsUpper(letters[i]) && letters[i] != '_' }
		if i > 0 && unicode.IsUpper(r) && letters[i-1] != '_' && (lower(i-1) || lower(i+1)) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// camel returns the name of a message for a field: "item_id" becomes "ItemId".
func camel(name string) string {
	var out strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		if word != "" {
			out.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return out.String()
}
