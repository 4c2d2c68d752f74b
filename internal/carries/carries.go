// SPDX-License-Identifier: Apache-2.0

// Package carries says whether messages of a type arrive as they were sent, and sorts the entries
// of maps so that equal maps have equal encodings. The root, codecs and protocols share it. The
// rules for types that most codecs have in common are in package nesting.
package carries

import (
	"bytes"
	"reflect"
	"slices"
)

// Check returns why a codec does not carry messages of one of the types, or of pointers to them.
// It returns nil if the codec has no method CheckType. A type may be nil.
func Check(codec any, types ...reflect.Type) error {
	checker, ok := codec.(interface{ CheckType(t reflect.Type) error })
	for _, t := range types {
		if !ok || t == nil {
			continue
		}
		if err := checker.CheckType(t); err != nil {
			return err
		}
	}
	return nil
}

// IsGenerated reports whether protoc-gen-go has generated a type.
func IsGenerated(t reflect.Type) bool {
	_, generated := reflect.PointerTo(t).MethodByName("ProtoReflect")
	return generated
}

// Hides reports whether t is a struct that has content and no exported field, so that a codec would
// take it for an empty struct.
func Hides(t reflect.Type) bool { return hides(t, nil) }

// hides is Hides for a type that the types in within embed.
func hides(t reflect.Type, within []reflect.Type) bool {
	if t.Kind() != reflect.Struct || t.Size() == 0 {
		return false
	}
	if slices.Contains(within, t) {
		return true // the types around it decide
	}
	within = append(slices.Clip(within), t)
	content := false
	for f := range t.Fields() {
		in := f.Type
		if in.Kind() == reflect.Pointer { // Go embeds no pointer to a pointer
			in = in.Elem()
		}
		switch {
		case f.IsExported(), f.Anonymous && in.Kind() == reflect.Struct && in.NumField() > 0 && !hides(in, within):
			return false
		case f.Name != "_" && f.Type.Size() > 0:
			content = true
		}
	}
	return content
}

// Sort sorts parts of a message, such as the entries of a map, by their bytes. They stand behind
// each other in b. Ends are where they end, counted from the position at which b is -start.
func Sort(b []byte, start int, ends []int) {
	parts, from := make([][]byte, len(ends)), 0
	for i, end := range ends {
		parts[i] = b[from : end-start]
		from = end - start
	}
	if slices.IsSortedFunc(parts, bytes.Compare) {
		return
	}
	slices.SortFunc(parts, bytes.Compare)
	copy(b, bytes.Join(parts, nil))
}

// Clear sets the variable to which v points to its zero value, before a codec decodes a message
// into it. If the variable is an interface that holds a pointer, Clear sets what that pointer
// points to. It leaves all other values as they are: the codec refuses them.
func Clear(v any) {
	target := reflect.ValueOf(v)
	for range 100 { // an interface may point to itself
		if target.Kind() != reflect.Pointer || target.IsNil() {
			return
		}
		variable := target.Elem()
		if variable.Kind() == reflect.Interface && variable.Elem().Kind() == reflect.Pointer && !variable.Elem().IsNil() {
			target = variable.Elem()
			continue
		}
		variable.SetZero()
		return
	}
}
