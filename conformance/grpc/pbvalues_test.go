// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
)

// dynamic returns an empty message for a numbered struct, of the type that pbstruct describes.
func dynamic(t reflect.Type) (protoreflect.Message, error) {
	encoded, names, err := pbstruct.Describe("values.proto", "values", t)
	if err != nil {
		return nil, err
	}
	described := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(encoded, described); err != nil {
		return nil, err
	}
	file, err := protodesc.NewFile(described, protoregistry.GlobalFiles)
	if err != nil {
		return nil, err
	}
	d := file.Messages().ByName(protoreflect.FullName(names[0]).Name())
	if d == nil {
		return nil, fmt.Errorf("%v is %s, which is not in its file", t, names[0])
	}
	return dynamicpb.NewMessage(d), nil
}

// numberedFields calls each with the fields of a numbered struct.
func numberedFields(v reflect.Value, m protoreflect.Message, each func(protoreflect.FieldDescriptor, reflect.Value)) {
	for i := range v.NumField() {
		number, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("pb"), ",")
		if n, err := strconv.Atoi(number); err == nil {
			each(m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(n)), v.Field(i))
		}
	}
}

// toStruct sets a struct to the content of a message.
func toStruct(m protoreflect.Message, v reflect.Value) {
	if len(m.GetUnknown()) > 0 {
		panic(fmt.Sprintf("%s has unknown fields", m.Descriptor().FullName()))
	}
	numberedFields(v, m, func(field protoreflect.FieldDescriptor, into reflect.Value) {
		value := m.Get(field)
		switch {
		case field.HasPresence() && !m.Has(field):
		case field.IsMap() && value.Map().Len() > 0:
			into = allocated(into)
			into.Set(reflect.MakeMap(into.Type()))
			for key, element := range value.Map().Range {
				k, e := reflect.New(into.Type().Key()).Elem(), reflect.New(into.Type().Elem()).Elem()
				toValue(key.Value(), k)
				toValue(element, e)
				into.SetMapIndex(k, e)
			}
		case field.IsList() && value.List().Len() > 0:
			into = allocated(into)
			into.Set(reflect.MakeSlice(into.Type(), value.List().Len(), value.List().Len()))
			for i := range into.Len() {
				toValue(value.List().Get(i), into.Index(i))
			}
		case !field.IsMap() && !field.IsList():
			toValue(value, into)
		}
	})
}

// allocated returns what v points to.
func allocated(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

// toValue sets v to a value that is not a list or a map.
func toValue(value protoreflect.Value, v reflect.Value) {
	v = allocated(v)
	message, _ := value.Interface().(protoreflect.Message)
	switch into := v.Addr().Interface().(type) {
	case *time.Time:
		known := new(timestamppb.Timestamp)
		convert(message.Interface(), known)
		*into = known.AsTime()
		return
	case *time.Duration:
		known := new(durationpb.Duration)
		convert(message.Interface(), known)
		*into = known.AsDuration()
		return
	}
	if message != nil {
		toStruct(message, v)
		return
	}
	content := value.Interface()
	if b, ok := content.([]byte); ok && len(b) == 0 {
		return // without presence, it is the default
	}
	v.Set(reflect.ValueOf(content).Convert(v.Type()))
}

// convert copies a message to one of the generated type.
func convert(from, to proto.Message) {
	b, err := proto.Marshal(from)
	if err == nil {
		err = proto.Unmarshal(b, to)
	}
	if err != nil {
		panic(err)
	}
}

// fromStruct sets a message to the content of a struct.
func fromStruct(v reflect.Value, m protoreflect.Message) {
	numberedFields(v, m, func(field protoreflect.FieldDescriptor, from reflect.Value) {
		optional := from.Kind() == reflect.Pointer
		for from.Kind() == reflect.Pointer && !from.IsNil() {
			from = from.Elem()
		}
		switch {
		case from.Kind() == reflect.Pointer: // nil
		case field.IsMap():
			for i := from.MapRange(); i.Next(); {
				value := fromValue(i.Value(), field.MapValue(), func() protoreflect.Value { return m.Mutable(field).Map().NewValue() })
				m.Mutable(field).Map().Set(fromValue(i.Key(), field.MapKey(), nil).MapKey(), value)
			}
		case field.IsList():
			for i := range from.Len() {
				list := m.Mutable(field).List()
				list.Append(fromValue(from.Index(i), field, list.NewElement))
			}
		case from.Type() == reflect.TypeFor[time.Time]() && from.IsZero() && !optional: // it is left out
		default:
			m.Set(field, fromValue(from, field, func() protoreflect.Value { return m.NewField(field) }))
		}
	})
}

// fromValue returns a value that is not a list or a map. Made returns a message to fill.
func fromValue(v reflect.Value, field protoreflect.FieldDescriptor, made func() protoreflect.Value) protoreflect.Value {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch field.Kind() {
	case protoreflect.MessageKind:
		message := made()
		switch known := v.Interface().(type) {
		case time.Time:
			convert(timestamppb.New(known), message.Message().Interface())
		case time.Duration:
			convert(durationpb.New(known), message.Message().Interface())
		default:
			fromStruct(v, message.Message())
		}
		return message
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(v.Float()))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int())
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(v.Uint())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(v.Float())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(v.Bytes())
	}
	return protoreflect.ValueOf(v.Interface())
}

// google.golang.org/protobuf reads the values that pbstruct carries as pbstruct does, and the other
// way round.
func TestValuesBesideProtobuf(t *testing.T) {
	unnamed := map[string]string{"two fields of one name": "its type has no name, so there is no descriptor"}
	tried := valuetable.Compare(t, pbstruct.Codec, valuetable.Reference{
		Decode: func(b []byte, v any) error {
			m, err := dynamic(reflect.TypeOf(v).Elem())
			if err != nil {
				return err
			}
			if err := proto.Unmarshal(b, m.Interface()); err != nil {
				return err
			}
			toStruct(m, reflect.ValueOf(v).Elem())
			return nil
		},
		Encode: func(v any) ([]byte, error) {
			m, err := dynamic(reflect.TypeOf(v).Elem())
			if err != nil {
				return nil, err
			}
			fromStruct(reflect.ValueOf(v).Elem(), m)
			return proto.Marshal(m.Interface())
		},
		Reads: unnamed, Writes: unnamed,
	})
	if tried != 83 {
		t.Errorf("%d values were compared", tried)
	}
}
