// SPDX-License-Identifier: Apache-2.0

package gobwire

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// This file finds fields that gob would lose: encoding/gob leaves out a pointer to a zero number,
// and the field arrives as nil.

// An optionals says where values of a type have such fields.
type optionals struct {
	fields []optionalField
	elem   *optionals // of a pointer, a slice, an array or a map
	key    *optionals // of a map
	any    bool       // an interface
	found  bool       // there is something to look at
}

type optionalField struct {
	name  string
	index int
	zero  bool // a pointer that arrives as nil if it points to a zero value
	in    *optionals
}

var optionalsOf sync.Map // from reflect.Type to *optionals

// flat has the types without such fields.
var flat nesting.Recent[struct{}]

func checkOptional(v any) error {
	if v == nil || flat.Get(v) != nil {
		return nil
	}
	value := reflect.ValueOf(v)
	known, ok := optionalsOf.Load(value.Type())
	if !ok {
		made := make(map[reflect.Type]*optionals)
		p := optionalsIn(value.Type(), made)
		propagate(made)
		known, _ = optionalsOf.LoadOrStore(value.Type(), p)
	}
	p := known.(*optionals) //nolint:forcetypeassert // it stores nothing else
	if !p.found {
		flat.Put(v, struct{}{})
		return nil
	}
	if at := p.lost(value); at != "" {
		return fmt.Errorf("gob: %v%s points to a zero value or nil, and would arrive as nil: use a struct around it, or another codec", nesting.Base(value.Type()), at)
	}
	return nil
}

func optionalsIn(t reflect.Type, made map[reflect.Type]*optionals) *optionals {
	if p := made[t]; p != nil {
		return p
	}
	p := new(optionals)
	made[t] = p
	if encodesItself(t) {
		return p
	}
	switch t.Kind() {
	case reflect.Interface:
		p.any = true
	case reflect.Map:
		p.key, p.elem = optionalsIn(t.Key(), made), optionalsIn(t.Elem(), made)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		p.elem = optionalsIn(t.Elem(), made)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.IsExported() {
				p.fields = append(p.fields, optionalField{f.Name, i, leavesOut(f.Type), optionalsIn(f.Type, made)})
			}
		}
	}
	return p
}

// propagate sets found for the types with such fields, and for those that contain one of them.
func propagate(made map[reflect.Type]*optionals) {
	for changed := true; changed; { // each round sets it for one type at least
		changed = false
		for _, p := range made {
			found := p.any || p.key != nil && p.key.found || p.elem != nil && p.elem.found
			for _, f := range p.fields {
				found = found || f.zero || f.in.found
			}
			changed = changed || found && !p.found
			p.found = found
		}
	}
}

// leavesOut reports whether a field of type t is a pointer that gob leaves out if it points to a
// zero value.
func leavesOut(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer {
		return false
	}
	base := nesting.Base(t)
	return encodesItself(base) || base.Kind() != reflect.Struct && base.Kind() != reflect.Array
}

func encodesItself(t reflect.Type) bool {
	if t.Kind() == reflect.Interface {
		return false
	}
	for _, methods := range nested.Methods {
		if reflect.PointerTo(t).Implements(methods) || t.Implements(methods) {
			return true
		}
	}
	return false
}

// lost returns the path to a field that would be lost, or "". Rules.Check has bounded the depth.
func (p *optionals) lost(v reflect.Value) string {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		switch {
		case !p.found || v.IsNil():
			return ""
		case v.Kind() == reflect.Interface:
			if lostIn(v.Elem().Interface()) {
				return "…"
			}
			return ""
		}
		p, v = p.elem, v.Elem()
	}
	if !p.found {
		return ""
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if at := p.elem.lost(v.Index(i)); at != "" {
				return fmt.Sprintf("[%d]%s", i, at)
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			if at := p.key.lost(i.Key()) + p.elem.lost(i.Value()); at != "" {
				return "[…]" + at
			}
		}
	case reflect.Struct:
		for i := range p.fields {
			f := &p.fields[i]
			part := v.Field(f.index)
			if f.zero && isZero(part) {
				return "." + f.name
			}
			if at := f.in.lost(part); at != "" {
				return "." + f.name + at
			}
		}
	}
	return ""
}

// lostIn reports whether a field in what an interface holds would be lost.
func lostIn(v any) bool {
	switch v := v.(type) {
	case nil, bool, string, float64, int, int64:
		return false
	case map[string]any:
		for _, in := range v {
			if lostIn(in) {
				return true
			}
		}
		return false
	case []any:
		return slices.ContainsFunc(v, lostIn)
	}
	return leadsToNil(reflect.ValueOf(v)) || checkOptional(v) != nil
}

// leadsToNil reports whether v is a pointer to a nil pointer, through any number of pointers.
func leadsToNil(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	return false
}

// isZero reports whether a pointer points to a value that gob leaves out.
func isZero(p reflect.Value) bool {
	for p.Kind() == reflect.Pointer {
		if p.IsNil() {
			return false
		}
		p = p.Elem()
	}
	if (p.Kind() == reflect.Slice || p.Kind() == reflect.String) && !encodesItself(p.Type()) {
		return p.Len() == 0
	}
	return p.IsZero()
}
