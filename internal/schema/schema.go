// SPDX-License-Identifier: Apache-2.0

// Package schema describes the types of messages, for yodel.Info. Any caller may ask a server for
// these descriptions, so their size and the time to make them are bounded for every type of Go.
package schema

import (
	"reflect"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel/introspect"
)

const (
	// maxOfMessage is how many types the schema of one message describes. A type that is used in
	// several places counts once for each.
	maxOfMessage = 1000
	// maxOfServer is how many types all schemas of a server describe together, about 3 MB in JSON.
	maxOfServer = 40_000
	maxName     = 200 // bytes of the name of a type
	maxPointers = 8   // how many pointers are followed to the type that they point to
)

// A Book keeps the description of a server's methods until they change. The zero Book is empty. It
// may be used concurrently.
type Book struct {
	mu      sync.Mutex
	version uint64
	methods []introspect.Method
	left    int // how many types may still be described
}

// Methods returns what list returned for this version of the methods. Of many callers at once, one
// calls list and the others wait for it. List gets a function that returns the schemas of
// messages. The caller must not change the result.
func (b *Book) Methods(version uint64, list func(schemas func([]reflect.Type) []introspect.Schema) []introspect.Method) []introspect.Method {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.methods == nil || b.version != version {
		b.left = maxOfServer
		b.methods, b.version = list(b.schemas), version
	}
	return b.methods
}

// schemas returns the schemas of messages. Once maxOfServer types are described, they have no
// fields.
func (b *Book) schemas(types []reflect.Type) []introspect.Schema {
	out := make([]introspect.Schema, len(types))
	for i, t := range types {
		left := min(b.left, maxOfMessage)
		b.left -= describe(&out[i], t, left)
	}
	return out
}

// A part is a type in a message that is not described yet.
type part struct {
	of     reflect.Type
	at     *introspect.Schema
	inside *part // the part that contains it, or nil
	proto  bool  // it is in a generated message of Protocol Buffers, which has a JSON of its own
}

// describe describes a message at s, and returns how many types that took. It is at most left, or
// 1. The outer types come first: if there are too many types, the inner ones have no fields.
func describe(s *introspect.Schema, t reflect.Type, left int) (took int) {
	took = 1
	for parts := []*part{{of: t, at: s}}; len(parts) > 0; parts = parts[1:] {
		p := parts[0]
		inner := p.describe(left - took)
		took += len(inner)
		parts = append(parts, inner...)
	}
	return took
}

// describe describes the type of p without the types inside it. It returns those, which are at most
// left. A type that contains itself is described in the outermost place only.
func (p *part) describe(left int) (inner []*part) {
	for n := 0; p.of.Kind() == reflect.Pointer && n < maxPointers; n++ {
		p.of = p.of.Elem()
	}
	s, t := p.at, p.of
	s.Type, s.Kind = nameOf(t), kindOf(t)
	if enum := t.Kind() == reflect.Int32 && t.PkgPath() != ""; p.proto && (enum || t.Kind() == reflect.Int64 || t.Kind() == reflect.Uint64) {
		s.Kind = "string"
	}
	if p.repeats() || left == 0 {
		return nil
	}
	switch s.Kind {
	case "array", "map":
		s.Elem = new(introspect.Schema)
		return []*part{{of: t.Elem(), at: s.Elem, inside: p, proto: p.proto}}
	case "object":
		fields := fieldsOf(t)
		proto := isProto(t)
		if proto {
			fields = ofProto(fields)
		}
		if len(fields) > left {
			return nil
		}
		s.Fields = make([]introspect.Schema, len(fields))
		inner = make([]*part, len(fields))
		for i, f := range fields {
			s.Fields[i].Name = f.name
			inner[i] = &part{of: f.of, at: &s.Fields[i], inside: p, proto: proto}
		}
	}
	return inner
}

// repeats reports whether the type of p contains itself there. Every such type has a name
// somewhere in between.
func (p *part) repeats() bool {
	if p.of.Name() == "" {
		return false
	}
	for around := p.inside; around != nil; around = around.inside {
		if around.of == p.of {
			return true
		}
	}
	return false
}

// Names lists the types of the arguments or the results of a method, which takes or returns several
// values if it is positional, or else one message. No types are those of a method of which the
// types are not known.
func Names(types []reflect.Type, positional bool) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = nameOf(t)
	}
	switch list := strings.Join(names, ", "); {
	case positional:
		return "(" + list + ")"
	case list == "":
		return "any message"
	default:
		return list
	}
}

func nameOf(t reflect.Type) string {
	name := t.String()
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}

// kindOf returns the kind of a type in JSON.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.String:
		return "string"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "array"
	case reflect.Map:
		return "map"
	case reflect.Struct:
		return "object"
	}
	return "any"
}
