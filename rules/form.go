// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Form describes a kind of rule to programs with which operators write rules.
type Form struct {
	Kind   string  `json:"kind"`
	Fields []Field `json:"fields"`
	// Start is what the field of the kind has at first, as JSON.
	Start json.RawMessage `json:"start,omitempty"`
	// Scope is whether the rule has a scope. Rules without one are not about calls.
	Scope bool `json:"scope"`
	// Ends is whether the rule should have an expiry, as Check says.
	Ends bool `json:"ends,omitempty"`
}

// A Field is a value in a Form.
type Field struct {
	// Path is where the value is within the field of the kind, for example "to.version".
	Path string `json:"path"`
	// Type is "text", "number", "bool", "list" of texts, or "json" for any value. A duration is a
	// text such as "250ms".
	Type string `json:"type"`
}

// form is what a kind says about its Form.
type form struct {
	start  string   // the first value of the kind's field, as JSON
	ends   bool     // the rule should have an expiry
	hidden []string // the paths of fields that the kind does not use
}

// Forms returns the forms of all kinds, in the order of Kinds.
func Forms() []Form {
	var all []Form
	for _, k := range kinds {
		f := Form{Kind: k.name, Fields: []Field{}, Scope: k.sides != inPrograms, Ends: k.form.ends}
		if k.form.start != "" {
			f.Start = json.RawMessage(k.form.start)
		}
		for _, field := range fieldsOf(typeOf(k.name)) {
			if !slices.Contains(k.form.hidden, field.Path) {
				f.Fields = append(f.Fields, field)
			}
		}
		all = append(all, f)
	}
	return all
}

// typeOf returns the struct to which the field of Rule with a name in JSON points.
func typeOf(name string) reflect.Type {
	for field := range reflect.TypeFor[Rule]().Fields() {
		if nameOf(&field) == name {
			return field.Type.Elem()
		}
	}
	panic("rules: Rule has no field " + name)
}

// nameOf returns the name of a field in JSON.
func nameOf(field *reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// fieldsOf returns the values in a struct.
func fieldsOf(t reflect.Type) (all []Field) {
	for field := range t.Fields() {
		name, of := nameOf(&field), field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() {
			all = append(all, Field{name, typeName(of)})
			continue
		}
		for _, inner := range fieldsOf(of) {
			all = append(all, Field{name + "." + inner.Path, inner.Type})
		}
	}
	return all
}

// typeName returns the name of a type in a Field.
func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration](), t.Kind() == reflect.String:
		return "text"
	case t == reflect.TypeFor[json.RawMessage]():
		return "json"
	case t.Kind() == reflect.Bool:
		return "bool"
	case t.Kind() == reflect.Slice:
		return "list"
	}
	return "number"
}

// fieldNames returns the names of all fields of a struct and of the structs in it.
func fieldNames(t reflect.Type) (names []string) {
	for field := range t.Fields() {
		names = append(names, nameOf(&field))
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && of != reflect.TypeFor[time.Time]() {
			names = append(names, fieldNames(of)...)
		}
	}
	return names
}
