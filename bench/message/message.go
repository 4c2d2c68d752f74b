// SPDX-License-Identifier: Apache-2.0

package message

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Text is what every string of the message is: the text that everybody uses.
const Text = "许多往事在眼前一幕一幕，变的那麼模糊"

// New returns the message that a client sends: every singular field is set, as the benchmarks of
// RPC frameworks do.
func New() *BenchmarkMessage {
	m := new(BenchmarkMessage)
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() {
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfString(Text))
		case protoreflect.BoolKind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.Int32Kind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfInt32(100_000))
		case protoreflect.Int64Kind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfInt64(100_000))
		default:
			panic("the benchmark's message has no field of kind " + f.Kind().String())
		}
	}
	return m
}

// Answer does the server's work: it makes of a request its reply.
func Answer(m *BenchmarkMessage) {
	m.Field1, m.Field2 = proto.String("OK"), proto.Int32(100)
}

// Check reports what is wrong with a reply.
func Check(m *BenchmarkMessage) error {
	if m.GetField1() != "OK" || m.GetField2() != 100 || m.GetField102() != Text {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", m.GetField1(), m.GetField2(), m.GetField102())
	}
	return nil
}
