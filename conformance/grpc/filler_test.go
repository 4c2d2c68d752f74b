// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A filler fills messages with values that differ from each other and from the defaults.
type filler struct {
	n       int // of the last value
	variant int // of the members of a oneof, which one is set
	members int // of the largest oneof that was filled
}

// maxFilled is how deep messages are filled.
const maxFilled = 5

// messages returns one filled message, or count if they are streamed.
func (f *filler) messages(t *testing.T, d protoreflect.MessageDescriptor, streamed bool, count int) (all []proto.Message) {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	if !streamed {
		count = 1
	}
	for range count {
		m := typ.New()
		f.fill(m, 0)
		all = append(all, m.Interface())
	}
	return all
}

// fill sets all fields of m. Of each oneof it sets one.
func (f *filler) fill(m protoreflect.Message, depth int) {
	f.n++
	switch known := m.Interface().(type) {
	case *anypb.Any:
		if err := known.MarshalFrom(wrapperspb.String(fmt.Sprint("any ", f.n))); err != nil {
			panic(err) // a string in UTF-8 can be encoded
		}
		return
	case *fieldmaskpb.FieldMask:
		known.Paths = []string{"name", fmt.Sprint("labels.text", f.n)}
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if one := field.ContainingOneof(); one != nil && !one.IsSynthetic() {
			f.members = max(f.members, one.Fields().Len())
			if one.Fields().Get(f.variant%one.Fields().Len()) != field {
				continue
			}
		}
		if field.Message() != nil && !field.IsMap() && depth == maxFilled {
			continue // a type that contains itself, or one that is very deep
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			for range 2 {
				key := f.scalar(field.MapKey()).MapKey()
				if field.MapValue().Message() == nil {
					entries.Set(key, f.scalar(field.MapValue()))
				} else if depth < maxFilled {
					f.fill(entries.Mutable(key).Message(), depth+1)
				}
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range 2 {
				if field.Message() == nil {
					list.Append(f.scalar(field))
				} else {
					f.fill(list.AppendMutable().Message(), depth+1)
				}
			}
		case field.Message() != nil:
			f.fill(m.Mutable(field).Message(), depth+1)
		default:
			m.Set(field, f.scalar(field))
		}
	}
}

// scalar returns a value of a field that is not a message.
func (f *filler) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	f.n++
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(min(1+f.n%max(values.Len()-1, 1), values.Len()-1)).Number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(f.n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(f.n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(f.n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(f.n))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(f.n) + 0.5)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(f.n) + 0.25)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("tëxt ", f.n))
	default: // bytes
		return protoreflect.ValueOfBytes(fmt.Append(nil, "bytes \xff", f.n))
	}
}
