// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/introspect"
)

// known returns next with a check: a message has no field that the type of the method lacks. Codecs
// ignore such a field, so that a misspelled one would change nothing without a word.
func known(m *introspect.Method, next func() (*json.RawMessage, error)) func() (*json.RawMessage, error) {
	return func() (*json.RawMessage, error) {
		message, err := next()
		if err != nil {
			return nil, err
		}
		list := []json.RawMessage{*message}
		if m.Values {
			if list, err = argumentsOf(m, *message); err != nil {
				return nil, err
			}
		}
		for i := range min(len(list), len(m.Args)) {
			var value any
			if json.Unmarshal(list[i], &value) != nil {
				continue // the server says what is wrong with it
			}
			if err := unknownField(m, &m.Args[i], value); err != nil {
				return nil, err
			}
		}
		return message, nil
	}
}

// unknownField returns the fault for a field of a value in JSON that its type does not have, or
// nil.
func unknownField(m *introspect.Method, of *introspect.Schema, value any) error {
	switch value := value.(type) {
	case []any:
		if of.Kind == "array" && of.Elem != nil {
			for _, one := range value {
				if err := unknownField(m, of.Elem, one); err != nil {
					return err
				}
			}
		}
	case map[string]any:
		if of.Kind == "map" && of.Elem != nil {
			for _, one := range value {
				if err := unknownField(m, of.Elem, one); err != nil {
					return err
				}
			}
		}
		if of.Kind == "object" && checkable(of) {
			return unknownFieldOf(m, of, value)
		}
	}
	return nil
}

// checkable reports whether the fields of a type are those of its JSON. Those of a type that
// contains itself are unknown, and so are those of protobuf messages with a oneof or any field.
func checkable(of *introspect.Schema) bool {
	return len(of.Fields) > 0 && !strings.Contains(of.Type, "pb.") &&
		!slices.ContainsFunc(of.Fields, func(f introspect.Schema) bool { return f.Kind == "any" })
}

func unknownFieldOf(m *introspect.Method, of *introspect.Schema, value map[string]any) error {
	var names []string
	for i := range of.Fields {
		names = append(names, of.Fields[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		i := slices.IndexFunc(names, func(n string) bool { return sameField(n, name) })
		if i >= 0 {
			if err := unknownField(m, &of.Fields[i], value[name]); err != nil {
				return err
			}
			continue
		}
		f := faultf(exitUsage, "%s has no field %q in %s; nothing was sent", shown(m.Name), name, of.Type)
		if near := similar(name, names); near != "" {
			f.addf("did you mean", "%s", near)
		}
		return f.with("fields", "%s     (yodel describe %s)", shorten(names), shown(m.Name))
	}
	return nil
}

// sameField reports whether a codec takes one name for the other: JSON of Go ignores case, and JSON
// of protobuf takes both some_name and someName.
func sameField(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "_", ""), strings.ReplaceAll(b, "_", ""))
}

// messagesOf returns the messages for a method in the input one by one, checked.
func messagesOf(m *introspect.Method, r io.Reader) func() (*json.RawMessage, error) {
	return known(m, messages(r))
}
