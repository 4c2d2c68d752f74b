// SPDX-License-Identifier: Apache-2.0

package testpb

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fill sets every singular field of m as the benchmarks of RPC frameworks do. A BenchmarkMessage is
// then 581 bytes long.
func Fill[M proto.Message](m M) M {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() {
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind:
			//nolint:gosmopolitan // it is the text that everybody uses
			m.ProtoReflect().Set(f, protoreflect.ValueOfString("许多往事在眼前一幕一幕，变的那麼模糊"))
		case protoreflect.BoolKind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.Int32Kind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfInt32(100_000))
		case protoreflect.Int64Kind:
			m.ProtoReflect().Set(f, protoreflect.ValueOfInt64(100_000))
		default: // BenchmarkMessage has no other kinds
		}
	}
	return m
}
