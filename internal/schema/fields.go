// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// A field is a field of a struct in JSON.
type field struct {
	name   string
	tagged bool // a tag gives the name
	of     reflect.Type
	index  []int // as in reflect.StructField
	tag    reflect.StructTag
}

// known has the result of fieldsOf for the types that Fields was called with.
var known sync.Map

// Fields returns the fields of a struct by the rules of encoding/json, as their names and types. Of
// a generated message of Protocol Buffers it first returns them with their names in JSON. It
// remembers them for as long as the process lives, so the types must be those of the program.
func Fields(t reflect.Type) iter.Seq2[string, reflect.Type] {
	fields, ok := known.Load(t)
	if !ok {
		all := fieldsOf(t)
		if isProto(t) {
			all = append(ofProto(all), all...)
		}
		fields, _ = known.LoadOrStore(t, all)
	}
	return func(yield func(string, reflect.Type) bool) {
		for _, f := range fields.([]field) { //nolint:forcetypeassert // there is nothing else in it
			if !yield(f.name, f.of) {
				return
			}
		}
	}
}

// fieldsOf returns the fields of a struct by the rules of encoding/json, with those of embedded
// structs, in the order of the source. Each embedded type is visited once. reflect.VisibleFields
// visits a type again for each way that leads to it, and the ways can double with each level.
func fieldsOf(t reflect.Type) []field {
	var all []field
	named, visited := make(map[string]bool), make(map[reflect.Type]bool)
	times := make(map[reflect.Type]int) // how often the current level has a type
	for level := []field{{of: t}}; len(level) > 0; {
		var found, next []field
		below := make(map[reflect.Type]int)
		for _, outer := range level {
			visited[outer.of] = true
			for f := range outer.of.Fields() {
				inner, embedded, ok := outer.inner(f)
				switch {
				case !ok || embedded && visited[inner.of]:
				case embedded:
					if below[inner.of]++; below[inner.of] == 1 {
						next = append(next, inner)
					}
				default:
					found = append(found, inner)
					if times[outer.of] > 1 {
						found = append(found, inner)
					}
				}
			}
		}
		all = append(all, dominant(found, named)...)
		level, times = next, below
	}
	slices.SortFunc(all, func(a, b field) int { return slices.Compare(a.index, b.index) })
	return all
}

// inner returns a field of the struct that f stands for. Embedded reports whether the fields of
// that field belong to the struct. Ok is false if the field has no JSON.
func (f *field) inner(g reflect.StructField) (inner field, embedded, ok bool) {
	tag := g.Tag.Get("json")
	name, _, _ := strings.Cut(tag, ",")
	inner = field{name: name, tagged: name != "", of: g.Type, index: append(slices.Clip(f.index), g.Index...), tag: g.Tag}
	if g.Anonymous && name == "" && g.Type.Kind() == reflect.Pointer && g.Type.Elem().Kind() == reflect.Struct {
		inner.of = g.Type.Elem()
	}
	embedded = g.Anonymous && name == "" && inner.of.Kind() == reflect.Struct
	if name == "" {
		inner.name = g.Name
	}
	return inner, embedded, tag != "-" && (g.IsExported() || embedded)
}

// dominant returns the fields of one level that are the only ones of their name, or the only ones
// with a tag. Named has the names of outer levels, which hide inner ones, and gets those of found.
func dominant(found []field, named map[string]bool) (fields []field) {
	byName := make(map[string][]field)
	for _, f := range found {
		byName[f.name] = append(byName[f.name], f)
	}
	for name, same := range byName {
		if named[name] {
			continue
		}
		named[name] = true
		if tagged := slices.DeleteFunc(slices.Clone(same), func(f field) bool { return !f.tagged }); len(tagged) > 0 {
			same = tagged
		}
		if len(same) == 1 {
			fields = append(fields, same[0])
		}
	}
	return fields
}

// isProto reports whether t is a generated message of Protocol Buffers, without its pointer.
func isProto(t reflect.Type) bool {
	_, is := reflect.PointerTo(t).MethodByName("ProtoReflect")
	return is
}

// ofProto returns the fields of a generated message of Protocol Buffers with their names in JSON.
// It leaves out each oneof, whose fields the message does not have as its own.
func ofProto(fields []field) (all []field) {
	for _, f := range fields {
		if f.tag.Get("protobuf_oneof") != "" {
			continue
		}
		for option := range strings.SplitSeq(f.tag.Get("protobuf"), ",") {
			if name, ok := strings.CutPrefix(option, "json="); ok {
				f.name = name
			}
		}
		all = append(all, f)
	}
	return all
}
