// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// flat has the types of messages that cannot nest without bound.
var flat nesting.Recent[struct{}]

// checkNesting returns an error if m contains itself, or is nested so deep that it would exhaust
// the stack when it is encoded. Package codec/protobuf does the same.
func checkNesting(m proto.Message) error {
	if flat.Get(m) != nil {
		return nil
	}
	r := m.ProtoReflect()
	if _, dynamic := m.(*dynamicpb.Message); !dynamic && !cyclic(r.Descriptor(), map[protoreflect.FullName]bool{}) {
		flat.Put(m, struct{}{})
		return nil
	}
	messages := 0
	if err := walk(r, 1, &messages); err != nil {
		return fmt.Errorf("protobuf: %s: %w", r.Descriptor().FullName(), err)
	}
	return nil
}

// walk returns an error if m, which is the depth-th of those around it and itself, contains
// messages that are nested too deep, or too many.
func walk(m protoreflect.Message, depth int, messages *int) (err error) {
	if depth > nesting.Max {
		return nesting.TooDeep(nesting.Max)
	}
	*messages++ // each has a byte at least
	if err := nesting.CheckBytes(*messages); err != nil {
		return err
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil, f.IsMap() && f.MapValue().Message() == nil:
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				err = walk(v.Message(), depth+1, messages)
				return err == nil
			})
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = walk(v.List().Get(i).Message(), depth+1, messages)
			}
		default:
			err = walk(v.Message(), depth+1, messages)
		}
		return err == nil
	})
	return err
}

// cyclic reports whether messages of type d can contain messages of their own type. Extensions can
// be of any type. Walked has the types around d as true, and those that cannot contain them as
// false.
func cyclic(d protoreflect.MessageDescriptor, walked map[protoreflect.FullName]bool) bool {
	if around, ok := walked[d.FullName()]; ok || d.ExtensionRanges().Len() > 0 {
		return around || !ok
	}
	walked[d.FullName()] = true
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i).Message(); f != nil && cyclic(f, walked) {
			return true
		}
	}
	walked[d.FullName()] = false
	return false
}
