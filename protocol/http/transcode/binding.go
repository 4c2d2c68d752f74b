// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/yodel-rpc/yodel"
)

// A binding is one rule of an annotation. It implements http.Binding.
type binding struct {
	method    protoreflect.MethodDescriptor
	verb      string // of HTTP; "*" for any
	template  template
	wholeBody bool                         // the body has all fields that the path does not have
	body      protoreflect.FieldDescriptor // the field that the body is, or nil
	reply     protoreflect.FieldDescriptor // the field of the reply that is sent, or nil
	unserved  *yodel.Error                 // why the method has no route, or nil
}

// Match implements http.Binding.
func (b *binding) Match(verb, path string) (values []string, ok bool) {
	if verb != b.verb && b.verb != "*" && (verb != "HEAD" || b.verb != "GET") {
		return nil, false
	}
	return b.template.match(path)
}

var (
	errBody  = errors.New("the method takes no body")
	errQuery = errors.New("all fields are in the body, so there are no parameters")
	errMap   = errors.New("maps and repeated messages cannot be parameters")
	errDots  = errors.New("a message cannot be a parameter, but its fields can, behind a dot")
	errOne   = errors.New("the field takes one value")
	errTwice = errors.New("the path or the body has the field already")
	errField = errors.New("the request has no such field")
	errAlt   = errors.New("responses are JSON")
)

// An object is an object in JSON.
type object map[string]json.RawMessage

// Request implements http.Binding.
func (b *binding) Request(values []string, query url.Values, body []byte) ([]byte, error) {
	if b.unserved != nil {
		return nil, b.unserved
	}
	fields := make(object)
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0:
	case b.wholeBody:
		if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
			return nil, fmt.Errorf("the body is not a JSON object: %w", err)
		}
	case b.body != nil:
		fields[b.body.JSONName()] = body
	case string(body) != "{}":
		return nil, errBody
	}
	for name, all := range query {
		if err := b.setParameter(fields, name, all); err != nil {
			return nil, fmt.Errorf("the parameter %.100q: %w", name, err)
		}
	}
	for i, v := range b.template.variables {
		value, err := literal(v.fields[len(v.fields)-1], values[i])
		if err == nil {
			err = fields.set(v.fields, value)
		}
		if err != nil {
			return nil, fmt.Errorf("the field %s in the path: %w", v.name, err)
		}
	}
	return json.Marshal(fields)
}

// systemParameters are parameters that all methods of Google's APIs have. All of them may begin
// with "$", which no field does.
var systemParameters = map[string]bool{"alt": true, "fields": true, "key": true, "prettyPrint": true, "quotaUser": true}

// setParameter sets the field of a parameter.
func (b *binding) setParameter(fields object, name string, values []string) error {
	if plain, marked := strings.CutPrefix(name, "$"); marked || systemParameters[name] && fieldOf(b.method.Input(), name) == nil {
		if plain == "alt" && !strings.HasPrefix(values[0], "json") {
			return errAlt
		}
		return nil
	}
	if b.wholeBody {
		return errQuery
	}
	path, err := fieldsAt(b.method.Input(), name)
	if err != nil {
		return err
	}
	same := func(v variable) bool { return slices.Equal(v.fields, path) }
	if path[0] == b.body || slices.ContainsFunc(b.template.variables, same) {
		return errTwice
	}
	last := path[len(path)-1]
	switch {
	case last.IsMap() || last.IsList() && !isScalar(last):
		return errMap
	case !isScalar(last):
		return errDots
	case !last.IsList() && len(values) != 1:
		return errOne
	}
	all := make([]json.RawMessage, len(values))
	for i, value := range values {
		if all[i], err = literal(last, value); err != nil {
			return err
		}
	}
	if !last.IsList() {
		return fields.set(path, all[0])
	}
	list, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return fields.set(path, list)
}

// set sets the field at a path. It replaces a field of the same name.
func (o object) set(path []protoreflect.FieldDescriptor, value json.RawMessage) error {
	name, other := path[0].JSONName(), string(path[0].Name())
	if len(path) > 1 {
		inner := make(object)
		old := o[name]
		if old == nil {
			old = o[other]
		}
		if old != nil {
			if err := json.Unmarshal(old, &inner); err != nil {
				return fmt.Errorf("%s in the body is not an object: %w", name, err)
			}
		}
		if inner == nil { // it was null
			inner = make(object)
		}
		err := inner.set(path[1:], value)
		if err != nil {
			return err
		}
		if value, err = json.Marshal(inner); err != nil {
			return err
		}
	}
	delete(o, other)
	o[name] = value
	return nil
}

// Reply implements http.Binding.
func (b *binding) Reply() func(message []byte) ([]byte, error) {
	if b.reply == nil {
		return nil
	}
	return func(message []byte) ([]byte, error) {
		fields := make(object)
		if err := json.Unmarshal(message, &fields); err != nil {
			return nil, err
		}
		for _, name := range []string{b.reply.JSONName(), string(b.reply.Name())} {
			if value, ok := fields[name]; ok {
				return value, nil
			}
		}
		return zero(b.reply), nil
	}
}

// zero returns the JSON of a field that ProtoJSON leaves out.
func zero(f protoreflect.FieldDescriptor) []byte {
	switch {
	case f.IsList():
		return []byte("[]")
	case f.IsMap():
		return []byte("{}")
	case f.HasPresence():
		return []byte("null")
	}
	switch f.Kind() { //nolint:exhaustive // the others are numbers
	case protoreflect.StringKind, protoreflect.BytesKind:
		return []byte(`""`)
	case protoreflect.BoolKind:
		return []byte("false")
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return []byte(`"0"`)
	case protoreflect.EnumKind:
		if f.Enum().FullName() == "google.protobuf.NullValue" {
			return []byte("null")
		}
		// DefaultEnumValue is nil for a field without an explicit default
		value := f.Enum().Values().ByNumber(f.Default().Enum())
		return strconv.AppendQuote(nil, string(value.Name()))
	}
	return []byte("0")
}

// maxDepth is how deep the fields of parameters may be nested.
const maxDepth = 16

// fieldsAt returns the fields that a name such as "sub.subfield" names.
func fieldsAt(m protoreflect.MessageDescriptor, name string) (path []protoreflect.FieldDescriptor, err error) {
	for part := range strings.SplitSeq(name, ".") {
		if m == nil || len(path) == maxDepth {
			return nil, errField
		}
		f := fieldOf(m, part)
		if f == nil {
			return nil, errField
		}
		path = append(path, f)
		if m = nil; f.Message() != nil && !f.IsList() && !f.IsMap() && !isScalar(f) {
			m = f.Message()
		}
	}
	return path, nil
}

// fieldOf returns the field with a name in the .proto file or in JSON, or nil.
func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByTextName(name); f != nil {
		return f
	}
	return m.Fields().ByJSONName(name)
}

// scalarMessages are the messages that are one value in JSON. Those with true are not strings.
var scalarMessages = map[protoreflect.FullName]bool{
	"google.protobuf.Timestamp": false, "google.protobuf.Duration": false, "google.protobuf.FieldMask": false,
	"google.protobuf.StringValue": false, "google.protobuf.BytesValue": false, "google.protobuf.DoubleValue": false, "google.protobuf.FloatValue": false,
	"google.protobuf.Int32Value": false, "google.protobuf.Int64Value": false, "google.protobuf.UInt32Value": false, "google.protobuf.UInt64Value": false,
	"google.protobuf.BoolValue": true,
}

// isScalar reports whether a value of a field is one value in JSON, without its label.
func isScalar(f protoreflect.FieldDescriptor) bool {
	if f.Message() == nil {
		return true
	}
	_, ok := scalarMessages[f.Message().FullName()]
	return ok
}

// literal returns the JSON of one value of a field. ProtoJSON takes numbers as strings.
func literal(f protoreflect.FieldDescriptor, value string) (json.RawMessage, error) {
	if f.Kind() == protoreflect.BoolKind || f.Message() != nil && scalarMessages[f.Message().FullName()] {
		b, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%.100q is not true or false", value)
		}
		return strconv.AppendBool(nil, b), nil
	}
	if f.Kind() == protoreflect.EnumKind {
		if n, err := strconv.ParseInt(value, 10, 32); err == nil {
			return strconv.AppendInt(nil, n, 10), nil
		}
	}
	return json.Marshal(value)
}
