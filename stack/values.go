// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"reflect"

	"github.com/yodel-rpc/yodel"
)

// A Stack is values that are pushed and popped one after the other, for methods whose types are
// known only when the program runs:
//
//	s := stack.New(nil)
//	err := s.Push(17, 5)
//	err = s.Call(ctx, client, "Arith.DivMod")
//	var quotient, remainder int
//	err = s.Pop(&quotient)
//	err = s.Pop(&remainder)
//
// Pop returns the values in the order in which they were pushed. A Stack must not be used
// concurrently.
type Stack struct {
	codec  yodel.Codec
	left   []value // that are not popped
	popped int
}

// A value is one that was pushed, or a result of a call.
type value struct {
	encoded []byte // nil for a nil pointer, if the codec has no encoding of it
	is      any
	pushed  bool
}

// New returns an empty Stack whose values are encoded in a codec. Nil is yodel.JSON.
func New(codec yodel.Codec) *Stack {
	if codec == nil {
		codec = yodel.JSON
	}
	return &Stack{codec: codec}
}

// Push pushes values. The caller must not change them as long as they are in s. The error names the
// position and the type of the first value that the codec does not carry. Neither this value nor
// later ones are then pushed.
func (s *Stack) Push(values ...any) error {
	for _, v := range values {
		b, err := s.codec.Append(nil, v)
		if err != nil {
			return yodel.Errorf(yodel.InvalidArgument, "stack: value %d of type %T cannot be pushed: %v", s.popped+len(s.left)+1, v, err)
		}
		s.left = append(s.left, value{b, v, true})
	}
	return nil
}

// Len returns how many values can be popped.
func (s *Stack) Len() int { return len(s.left) }

// Pop pops the next value into the variable to which to points. If the variable has a type that
// does not fit, the error names the position of the value and the type, and the value can be popped
// again.
func (s *Stack) Pop(to any) error {
	if len(s.left) == 0 {
		return yodel.Errorf(yodel.OutOfRange, "stack: value %d of type %T cannot be popped: there are %d values", s.popped+1, to, s.popped)
	}
	v := reflect.ValueOf(to)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return yodel.Errorf(yodel.InvalidArgument, "stack: value %d cannot be popped into %T: give a pointer to a variable", s.popped+1, to)
	}
	b := s.left[0].encoded
	switch target := v.Elem(); {
	case b != nil:
		if err := s.codec.Decode(b, to); err != nil {
			return yodel.Errorf(yodel.InvalidArgument, "stack: value %d does not fit %v: %v", s.popped+1, target.Type(), err)
		}
	case target.Kind() == reflect.Pointer: // a nil pointer, for which the codec has no encoding
		target.SetZero()
	default:
		return yodel.Errorf(yodel.InvalidArgument, "stack: value %d does not fit %v: it is a nil pointer", s.popped+1, target.Type())
	}
	s.left, s.popped = s.left[1:], s.popped+1
	return nil
}

// Call calls a method with the values that are not popped, and replaces them with the results. If
// the call fails, s is unchanged.
func (s *Stack) Call(ctx context.Context, c yodel.Caller, method string) error {
	return s.Do(ctx, c, &yodel.Call{Method: method})
}

// Do is Call with all options of a Call. It sets the arguments, the reply and the codec of the
// call.
func (s *Stack) Do(ctx context.Context, c yodel.Caller, call *yodel.Call) error {
	out := new(yodel.Encoded)
	call.Args, call.Reply, call.Codec = s.arguments(), out, s.codec
	if err := orNil(c).Do(ctx, call); err != nil {
		return err
	}
	results, err := out.Values()
	if err != nil {
		return yodel.Errorf(yodel.Internal, "stack: the results of %s are broken: %v", call.Method, err)
	}
	s.left, s.popped = make([]value, len(results)), 0
	for i, b := range results {
		s.left[i].encoded = b
	}
	return nil
}

// arguments returns the values that are not popped. Dubbo needs the types of those that were
// pushed. Results of an earlier call have no type.
func (s *Stack) arguments() any {
	pushed, encoded := make(yodel.Values, len(s.left)), make([][]byte, len(s.left))
	typed := true
	for i, v := range s.left {
		pushed[i], encoded[i] = v.is, v.encoded
		typed = typed && v.pushed
	}
	if typed {
		return pushed
	}
	in := new(yodel.Encoded)
	in.SetValues(encoded...)
	return in
}
