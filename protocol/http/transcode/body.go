// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	errText    = errors.New("it is not UTF-8")
	errNull    = errors.New("the body is null")
	errObject  = errors.New("it is not a JSON object")
	errRepeats = errors.New("an object has a member twice")
)

// An object is an object in JSON. Its members are of the type json.RawMessage, or object if set has
// set a member in them.
type object map[string]any

// A step is the name of a member, in JSON and in the .proto file. Both may be in a body.
type step struct{ json, proto string }

// steps lead to a member.
type steps []step

func stepsOf(path []protoreflect.FieldDescriptor) steps {
	all := make(steps, len(path), len(path)+1)
	for i, f := range path {
		all[i] = step{f.JSONName(), string(f.Name())}
	}
	return all
}

func (s steps) String() string {
	names := make([]string, len(s))
	for i := range s {
		names[i] = s[i].proto
	}
	return strings.Join(names, "\x00")
}

// wholeValue returns the message if its body is not an object with the fields, such as that of a
// google.protobuf.StringValue. An empty body is a message without its fields.
func (b *binding) wholeValue(body []byte) ([]byte, bool) {
	empty := emptyMessage(b.method.Input())
	switch {
	case !b.wholeBody || empty == "{}":
		return nil, false
	case len(body) == 0:
		return []byte(empty), true
	}
	return body, true
}

// readBody returns the fields that the body has.
func (b *binding) readBody(body []byte) (object, error) {
	fields := make(object)
	switch {
	case !utf8.Valid(body):
		return nil, fmt.Errorf("the body: %w", errText)
	case b.body != nil:
		if value, err := bodyOf(b.field(), body); err != nil || value == nil {
			return fields, err
		} else if err := fields.set(stepsOf(b.body), value); err != nil {
			return nil, err
		}
	case len(body) == 0:
	case b.wholeBody:
		all, err := members(body)
		if err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
		return all, nil
	case string(body) != "{}":
		return nil, errBody
	}
	return fields, nil
}

// bodyOf returns the JSON of a field that a body has, or nil if the field is not set. An empty body
// sets a field that can be absent to its default.
func bodyOf(f protoreflect.FieldDescriptor, body []byte) (json.RawMessage, error) {
	isMessage := f.Message() != nil && !f.IsList() && !f.IsMap()
	null := string(body) == "null"
	switch {
	case isMessage && f.Message().FullName() == "google.protobuf.Value":
		if len(body) == 0 {
			return nil, nil
		}
		return body, nil
	case null && (isMessage || f.Kind() == protoreflect.EnumKind && !f.IsList()):
		return nil, errNull
	case len(body) > 0 && !null:
		return body, nil
	case isMessage:
		return json.RawMessage(emptyMessage(f.Message())), nil
	case f.HasPresence() && (!null || f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic()):
		return emptyScalar(f), nil
	}
	return nil, nil
}

// emptyMessages are the messages whose JSON is not an object when no field is set.
var emptyMessages = map[protoreflect.FullName]string{
	"google.protobuf.Timestamp": `"1970-01-01T00:00:00Z"`, "google.protobuf.Duration": `"0s"`, "google.protobuf.FieldMask": `""`,
	"google.protobuf.StringValue": `""`, "google.protobuf.BytesValue": `""`, "google.protobuf.BoolValue": "false",
	"google.protobuf.DoubleValue": "0", "google.protobuf.FloatValue": "0", "google.protobuf.Int32Value": "0", "google.protobuf.Int64Value": "0",
	"google.protobuf.UInt32Value": "0", "google.protobuf.UInt64Value": "0", "google.protobuf.ListValue": "[]", "google.protobuf.Value": "null",
}

func emptyMessage(m protoreflect.MessageDescriptor) string {
	if text, ok := emptyMessages[m.FullName()]; ok {
		return text
	}
	return "{}"
}

// members returns the members of an object. Encoding/json would keep the last one of a name.
func members(text []byte) (object, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errObject
	}
	fields := make(object)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		name, _ := t.(string)
		if fields[name] != nil {
			return nil, fmt.Errorf("%w: %.100q", errRepeats, name)
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than the object")
	}
	return fields, nil
}

// set sets the member that steps lead to. It replaces a member of the same name.
func (o object) set(to steps, value json.RawMessage) error {
	name, other := to[0].json, to[0].proto
	old := o[name]
	if old == nil {
		old = o[other]
	}
	delete(o, other)
	if len(to) == 1 {
		o[name] = value
		return nil
	}
	inner, isObject := old.(object)
	if text, _ := old.(json.RawMessage); !isObject && text != nil && string(text) != "null" {
		var err error
		if inner, err = members(text); err != nil {
			return fmt.Errorf("%s in the body: %w", name, err)
		}
	}
	if inner == nil {
		inner = make(object)
	}
	o[name] = inner
	return inner.set(to[1:], value)
}
