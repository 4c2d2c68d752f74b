// SPDX-License-Identifier: Apache-2.0

package http

import (
	"regexp"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/introspect"
)

// This file describes with OpenAPI the forms that methods take: see Options.Forms.

// takesForm reports whether a method takes a form: it is unary, and its request is one message with
// fields, as far as its types are known.
func takesForm(m *introspect.Method) bool {
	if m.Kind != "" || m.Values {
		return false
	}
	if len(m.Args) == 0 {
		return true
	}
	_, own := ownSchema(m.Args[0].Type)
	return !own && (m.Args[0].Kind == "object" || m.Args[0].Kind == "map" || m.Args[0].Kind == "any")
}

// formSchema returns the schema of the form of a method. With files, a field of bytes is a file,
// and otherwise its value is base64.
func formSchema(m *introspect.Method, files bool) object {
	f := formDescription{files: files, fields: make(object), patterns: make(object)}
	if len(m.Args) == 0 || m.Args[0].Kind == "any" {
		return object{"type": "object"}
	}
	f.add(&m.Args[0], nil)
	schema := object{"type": "object", "properties": f.fields, "additionalProperties": false}
	if len(f.patterns) > 0 {
		schema["patternProperties"] = f.patterns
	}
	return schema
}

// A formDescription collects the schemas of the fields of a form.
type formDescription struct {
	files    bool
	fields   object // by name, with dots between the names of nested fields
	patterns object // those of maps, by a pattern of their names
}

// add adds the field at a path, or the fields in it. It leaves out what a form cannot have, such as
// a list of objects.
func (f *formDescription) add(s *introspect.Schema, path []string) {
	if len(path) > maxDepth {
		return
	}
	name := strings.Join(path, ".")
	_, own := ownSchema(s.Type)
	switch {
	case s.Kind == "object" && !own:
		for i := range s.Fields {
			if field := &s.Fields[i]; !strings.Contains(field.Name, ".") {
				f.add(field, append(slices.Clip(path), field.Name))
			}
		}
	case s.Kind == "map":
		prefix := ""
		if name != "" {
			prefix = regexp.QuoteMeta(name + ".")
		}
		if value := f.value(s.Elem); value != nil {
			f.patterns["^"+prefix+"[^.]+$"] = value
		}
	default:
		if value := f.value(s); value != nil {
			f.fields[name] = value
		}
	}
}

// value returns the schema of a field, or nil if a form cannot have it.
func (f *formDescription) value(s *introspect.Schema) object {
	if s == nil || s.Kind != "array" {
		return f.single(s)
	}
	one := f.single(s.Elem)
	if one == nil {
		return nil
	}
	return object{"type": "array", "items": one}
}

// single returns the schema of one value, or nil.
func (f *formDescription) single(s *introspect.Schema) object {
	switch {
	case s == nil:
		return object{"type": "string"}
	case s.Type == "time.Time":
		return object{"type": "string", "format": "date-time"}
	case s.Type == "int64", s.Type == "uint64": // the JSON of Protocol Buffers has text for them
		return object{"type": "integer"}
	case s.Type == "json.RawMessage", s.Kind == "any":
		return object{"type": "string"}
	}
	if _, own := ownSchema(s.Type); own {
		return nil
	}
	switch s.Kind {
	case "object", "map", "array":
		return nil
	case "bytes":
		if f.files {
			return object{"type": "string", "contentMediaType": "application/octet-stream"}
		}
		return object{"type": "string", "contentEncoding": "base64"}
	}
	return object{"type": s.Kind}
}
