// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	wholeBody bool                           // the body has all fields that the path does not have
	body      []protoreflect.FieldDescriptor // leads to the field that the body is; nil for none
	mask      protoreflect.FieldDescriptor   // names the fields of the body if the client does not; nil for none
	reply     protoreflect.FieldDescriptor   // the field of the reply that is sent, or nil
	unserved  *yodel.Error                   // why the method has no route, or nil
}

// field returns the field that the body is, or nil.
func (b *binding) field() protoreflect.FieldDescriptor {
	if b.body == nil {
		return nil
	}
	return b.body[len(b.body)-1]
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
	errMap   = errors.New("a map takes parameters such as name[key]=value")
	errNoMap = errors.New("the field is not a map, so it has no keys")
	errDots  = errors.New("a message cannot be a parameter, but its fields can, behind a dot")
	errOne   = errors.New("the field takes one value")
	errTwice = errors.New("the path or the body has the field already")
	errAgain = errors.New("another parameter sets the same field")
	errField = errors.New("the request has no such field")
	errAlt   = errors.New("responses are JSON")
)

// Request implements http.Binding.
func (b *binding) Request(values []string, query url.Values, body []byte) ([]byte, error) {
	if b.unserved != nil {
		return nil, b.unserved
	}
	body = bytes.TrimSpace(body)
	if whole, ok := b.wholeValue(body); ok && len(values) == 0 {
		return whole, b.setParameters(nil, query)
	}
	fields, err := b.readBody(body)
	if err != nil {
		return nil, err
	}
	named, err := b.maskOf(body)
	if err != nil {
		return nil, err
	}
	if err := b.setParameters(fields, query); err != nil {
		return nil, err
	}
	if b.mask != nil && fields[b.mask.JSONName()] == nil {
		mask, err := named.json()
		if err != nil {
			return nil, fmt.Errorf("the request needs the parameter %s: %w", b.mask.Name(), err)
		}
		fields[b.mask.JSONName()] = mask
	}
	for i, v := range b.template.variables {
		value, err := pathValue(v.fields[len(v.fields)-1], values[i])
		if err == nil {
			err = fields.set(stepsOf(v.fields), value)
		}
		if err != nil {
			return nil, fmt.Errorf("the field %s in the path: %w", v.name, err)
		}
	}
	return json.Marshal(fields)
}

// pathValue returns the JSON of a value in the path. Commas separate the elements of a list.
func pathValue(f protoreflect.FieldDescriptor, value string) (json.RawMessage, error) {
	if !f.IsList() {
		return literal(f, value)
	}
	return literals(f, strings.Split(value, ","))
}

// systemParameters are parameters that all methods of Google's APIs have. All of them may begin
// with "$", which no field does.
var systemParameters = map[string]bool{"alt": true, "fields": true, "key": true, "prettyPrint": true, "quotaUser": true}

// setParameters sets the fields of all parameters. With a whole body, there are none.
func (b *binding) setParameters(fields object, query url.Values) error {
	set := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if err := b.setParameter(fields, set, name, query[name]); err != nil {
			return fmt.Errorf("the parameter %.100q: %w", name, err)
		}
	}
	return nil
}

// setParameter sets the field of a parameter, and adds it to set.
func (b *binding) setParameter(fields object, set map[string]bool, name string, values []string) error {
	if plain, marked := strings.CutPrefix(name, "$"); marked || systemParameters[name] && fieldOf(b.method.Input(), name) == nil {
		if plain == "alt" && !strings.HasPrefix(values[0], "json") {
			return errAlt
		}
		return nil
	}
	if b.wholeBody {
		return errQuery
	}
	field, key, keyed := name, "", false
	if i := strings.LastIndexByte(name, '['); i >= 0 && strings.HasSuffix(name, "]") {
		field, key, keyed = name[:i], name[i+1:len(name)-1], true
	}
	path, err := fieldsAt(b.method.Input(), field)
	if err != nil {
		return err
	}
	same := func(v variable) bool { return slices.Equal(v.fields, path) }
	if b.body != nil && len(path) >= len(b.body) && slices.Equal(path[:len(b.body)], b.body) || slices.ContainsFunc(b.template.variables, same) {
		return errTwice
	}
	value, steps, err := parameter(path, key, keyed, values)
	if err != nil {
		return err
	}
	id := steps.String()
	if set[id] {
		return errAgain
	}
	set[id] = true
	return fields.set(steps, value)
}

// parameter returns the JSON of a parameter, and where it belongs.
func parameter(path []protoreflect.FieldDescriptor, key string, keyed bool, values []string) (json.RawMessage, steps, error) {
	last := path[len(path)-1]
	at := stepsOf(path)
	switch {
	case keyed && !last.IsMap():
		return nil, nil, errNoMap
	case last.IsMap() && !keyed:
		return nil, nil, errMap
	case last.IsMap():
		key, err := mapKey(last.MapKey(), key)
		if err != nil {
			return nil, nil, err
		}
		at, last = append(at, step{key, key}), last.MapValue()
	}
	switch {
	case !isScalar(last):
		return nil, nil, errDots
	case last.IsList():
		list, err := literals(last, values)
		return list, at, err
	case len(values) != 1:
		return nil, nil, errOne
	}
	value, err := literal(last, values[0])
	return value, at, err
}

// Reply implements http.Binding.
func (b *binding) Reply() func(message []byte) ([]byte, error) {
	if b.reply == nil {
		return nil
	}
	return func(message []byte) ([]byte, error) {
		var fields map[string]json.RawMessage
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
	return emptyScalar(f)
}

// emptyScalar returns the JSON of the default of a field that is not a message.
func emptyScalar(f protoreflect.FieldDescriptor) []byte {
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

// closedMessages are messages whose JSON does not have their fields. The codec would ignore such
// fields.
var closedMessages = map[protoreflect.FullName]bool{"google.protobuf.Any": true, "google.protobuf.ListValue": true}

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
		if m = nil; f.Message() != nil && !f.IsList() && !f.IsMap() && !isScalar(f) && !closedMessages[f.Message().FullName()] {
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
