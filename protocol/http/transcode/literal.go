// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// scalarMessages are the messages that are one value in a parameter. Those with true have one
// field, whose value it is.
var scalarMessages = map[protoreflect.FullName]bool{
	"google.protobuf.Timestamp": false, "google.protobuf.Duration": false, "google.protobuf.FieldMask": false,
	"google.protobuf.Struct": false, "google.protobuf.Value": false, "google.protobuf.Empty": false,
	"google.protobuf.StringValue": true, "google.protobuf.BytesValue": true, "google.protobuf.BoolValue": true,
	"google.protobuf.DoubleValue": true, "google.protobuf.FloatValue": true, "google.protobuf.Int32Value": true, "google.protobuf.Int64Value": true,
	"google.protobuf.UInt32Value": true, "google.protobuf.UInt64Value": true,
}

// isScalar reports whether a value of a field is one value in a parameter, without its label.
func isScalar(f protoreflect.FieldDescriptor) bool {
	if f.Message() == nil {
		return true
	}
	_, ok := scalarMessages[f.Message().FullName()]
	return ok
}

// literals returns the JSON of the values of a list.
func literals(f protoreflect.FieldDescriptor, values []string) (json.RawMessage, error) {
	all := make([]json.RawMessage, len(values))
	for i, value := range values {
		var err error
		if all[i], err = literal(f, value); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// literal returns the JSON of one value of a field. It fails for values that the field cannot have:
// the codec of the server ignores names of enums that it does not know.
func literal(f protoreflect.FieldDescriptor, value string) (json.RawMessage, error) {
	if !utf8.ValidString(value) {
		return nil, fmt.Errorf("%.100q: %w", value, errText)
	}
	m := f.Message()
	switch {
	case m == nil:
		return scalar(f, value)
	case scalarMessages[m.FullName()]:
		return scalar(m.Fields().ByNumber(1), value)
	}
	out, err := message(m.FullName(), value)
	if err != nil {
		return nil, fmt.Errorf("%.100q is not a %s: %w", value, m.FullName(), err)
	}
	return out, nil
}

// message returns the JSON of a message that is one value in JSON and has no single field.
func message(name protoreflect.FullName, value string) (json.RawMessage, error) {
	switch name {
	case "google.protobuf.Timestamp":
		t, err := time.Parse(time.RFC3339Nano, value)
		if err != nil {
			return nil, err
		}
		return protojson.Marshal(timestamppb.New(t))
	case "google.protobuf.Duration":
		d := new(durationpb.Duration)
		if err := protojson.Unmarshal(strconv.AppendQuote(nil, value), d); err != nil {
			short, err := time.ParseDuration(value)
			if err != nil {
				return nil, err
			}
			d = durationpb.New(short)
		}
		return protojson.Marshal(d)
	case "google.protobuf.FieldMask":
		return queryMask(value).json()
	case "google.protobuf.Struct":
		return json.RawMessage(value), protojson.Unmarshal([]byte(value), new(structpb.Struct))
	case "google.protobuf.Value":
		return json.RawMessage(value), protojson.Unmarshal([]byte(value), new(structpb.Value))
	}
	if value != "" && value != "{}" { // google.protobuf.Empty
		return nil, errors.New("it has no fields")
	}
	return json.RawMessage("{}"), nil
}

// scalar returns the JSON of a value of a field that is not a message.
func scalar(f protoreflect.FieldDescriptor, value string) (json.RawMessage, error) {
	out, err := scalarOf(f, value)
	if err != nil {
		return nil, fmt.Errorf("%.100q is not %s", value, kindOf(f))
	}
	return out, nil
}

// kindOf describes the values of a field.
func kindOf(f protoreflect.FieldDescriptor) string {
	switch f.Kind() { //nolint:exhaustive // the others are called as their values are
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "a name or a number of " + string(f.Enum().FullName())
	case protoreflect.BytesKind:
		return "base64"
	}
	return "a value of the type " + f.Kind().String()
}

var errEnum = errors.New("the enum has no such value")

func scalarOf(f protoreflect.FieldDescriptor, value string) (json.RawMessage, error) {
	integer := func(bits int) (json.RawMessage, error) {
		n, err := strconv.ParseInt(value, 10, bits)
		return strconv.AppendInt(nil, n, 10), err
	}
	natural := func(bits int) (json.RawMessage, error) {
		n, err := strconv.ParseUint(value, 10, bits)
		return strconv.AppendUint(nil, n, 10), err
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(value)
		return strconv.AppendBool(nil, b), err
	case protoreflect.EnumKind:
		if v := f.Enum().Values().ByName(protoreflect.Name(value)); v != nil {
			return strconv.AppendInt(nil, int64(v.Number()), 10), nil
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err == nil && f.Enum().Values().ByNumber(protoreflect.EnumNumber(n)) == nil {
			err = errEnum
		}
		return strconv.AppendInt(nil, n, 10), err
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return integer(32)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return integer(64)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return natural(32)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return natural(64)
	case protoreflect.FloatKind:
		return float(value, 32)
	case protoreflect.DoubleKind:
		return float(value, 64)
	case protoreflect.BytesKind:
		b, err := decodeBase64(value)
		if err != nil {
			return nil, err
		}
		return json.Marshal(b)
	case protoreflect.StringKind, protoreflect.MessageKind, protoreflect.GroupKind:
	}
	return json.Marshal(value)
}

var errFloat = errors.New("it is not a number of JSON")

// float takes what ProtoJSON takes: not the other numbers of Go, such as 0x1p4, 1_000 and inf.
func float(value string, bits int) (json.RawMessage, error) {
	switch value {
	case "NaN", "Infinity", "-Infinity":
		return json.Marshal(value)
	}
	n, err := strconv.ParseFloat(value, bits)
	if strings.ContainsAny(value, "xX_") || math.IsInf(n, 0) || math.IsNaN(n) {
		err = errFloat
	}
	return strconv.AppendFloat(nil, n, 'g', -1, bits), err
}

// decodeBase64 takes both alphabets, with padding and without it.
func decodeBase64(value string) ([]byte, error) {
	encoding := base64.StdEncoding
	if strings.ContainsAny(value, "-_") {
		encoding = base64.URLEncoding
	}
	if len(value)%4 != 0 {
		encoding = encoding.WithPadding(base64.NoPadding)
	}
	return encoding.DecodeString(value)
}

// mapKey returns the name of a member in the JSON of a map.
func mapKey(f protoreflect.FieldDescriptor, key string) (string, error) {
	value, err := literal(f, key)
	if err != nil || f.Kind() == protoreflect.StringKind {
		return key, err
	}
	return string(value), nil
}
