// SPDX-License-Identifier: Apache-2.0

package protobuf

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

var (
	flat  nesting.Recent[struct{}] // of messages that are not cyclic
	known sync.Map                 // from protoreflect.FullName to the result of cyclic
)

// checkNesting returns an error if v is a message that contains itself, or is nested so deep that
// it would exhaust the stack when it is encoded.
func checkNesting(v any) error {
	m, ok := v.(proto.Message)
	if _, old := v.(protoadapt.MessageV1); old && !ok {
		return oldRules.Check(v)
	}
	if !ok || flat.Get(v) != nil {
		return nil
	}
	r := m.ProtoReflect()
	if !isCyclic(r.Descriptor()) {
		if _, dynamic := v.(*dynamicpb.Message); !dynamic { // a *dynamicpb.Message can be of any type
			flat.Put(v, struct{}{})
		}
		return nil
	}
	var w walk
	if err := w.message(r, 1); err != nil {
		return fmt.Errorf("protobuf: %s%s: %w", r.Descriptor().FullName(), w.path, err)
	}
	return nil
}

// checkSize returns an error if a message with size bytes is too large.
func checkSize(v any, size int) error {
	if err := nesting.CheckBytes(size); err != nil {
		return fmt.Errorf("protobuf: encode %T: %w", v, err)
	}
	return nil
}

// oldRules are for messages without the method ProtoReflect. Not all fields of these have one of
// the types that package protoreflect expects.
var oldRules = nesting.Rules{
	Max: 2 * nesting.Max, // a message, and the list or the oneof that it is in
	Skip: func(f *reflect.StructField) bool {
		_, field := f.Tag.Lookup("protobuf")
		_, oneof := f.Tag.Lookup("protobuf_oneof")
		return !field && !oneof
	},
}

// A walk looks for messages that are nested too deep, or are too many.
type walk struct {
	messages int
	path     string // of an error: the fields that lead to its message
}

// message walks m, which is the depth-th of those around it and itself.
func (w *walk) message(m protoreflect.Message, depth int) (err error) {
	if depth > nesting.Max {
		return nesting.TooDeep(nesting.Max)
	}
	w.messages++ // each has a byte at least
	if err := nesting.CheckBytes(w.messages); err != nil {
		return err
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil, f.IsMap() && f.MapValue().Message() == nil:
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				err = w.message(v.Message(), depth+1)
				return err == nil
			})
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = w.message(v.List().Get(i).Message(), depth+1)
			}
		default:
			err = w.message(v.Message(), depth+1)
		}
		switch {
		case err != nil && depth <= shown:
			w.path = "." + string(f.Name()) + w.path
		case err != nil && depth == shown+1:
			w.path = "…"
		}
		return err == nil
	})
	return err
}

// shown is how many fields of a path an error names.
const shown = 4

// deep reports whether src could nest messages so deep that UnmarshalVT exhausts the stack, which
// ends the process. Package proto refuses more than 10,000 levels, but UnmarshalVT does not count
// them. A level takes at least two bytes of src, and about 500 bytes of the stack.
func deep(src []byte, m proto.Message) bool {
	return len(src) > 64<<10 && isCyclic(m.ProtoReflect().Descriptor())
}

// checkDepth returns an error if a message without the method ProtoReflect, which decodes itself,
// could exhaust the stack by that. It asks no descriptor, because that of such a message may lack
// the types of other files.
func checkDepth(src []byte, v any) error {
	if _, ok := v.(proto.Message); ok || len(src) <= 64<<10 || shallow(src, protowire.DefaultRecursionLimit) {
		return nil
	}
	return nesting.TooDeep(protowire.DefaultRecursionLimit)
}

// shallow reports whether src nests at most limit messages in each other, if all fields with a
// length are messages that can be. It takes time in proportion to the size of src.
func shallow(src []byte, limit int) bool {
	for len(src) > 0 && limit > 0 {
		number, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return true
		}
		src = src[n:]
		if n = protowire.ConsumeFieldValue(number, kind, src); n < 0 {
			return true
		}
		if kind == protowire.BytesType {
			if inner, _ := protowire.ConsumeBytes(src); !shallow(inner, limit-1) {
				return false
			}
		}
		src = src[n:]
	}
	return limit > 0
}

// isCyclic is cyclic, and remembers its results.
func isCyclic(d protoreflect.MessageDescriptor) bool {
	result, ok := known.Load(d.FullName())
	if !ok {
		result = cyclic(d, map[protoreflect.FullName]bool{})
		known.Store(d.FullName(), result)
	}
	return result == true
}

// cyclic reports whether a message of type d can contain a message of its own type, or of another
// cyclic type. Extensions can be of any type. Walked has the types between the first message and d,
// as true, and the types whose check has ended, as false.
func cyclic(d protoreflect.MessageDescriptor, walked map[protoreflect.FullName]bool) bool {
	if above, ok := walked[d.FullName()]; ok {
		return above
	}
	if d.ExtensionRanges().Len() > 0 {
		return true
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
