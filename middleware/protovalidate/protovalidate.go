// SPDX-License-Identifier: Apache-2.0

// Package protovalidate has the rules of protovalidate, which are in .proto files, for package
// middleware/validate:
//
//	rules := &validate.Options{Rules: []func(any) error{protovalidate.Rules(nil)}}
//	server := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{validate.With(rules)}})
//
// The path of the field, the ID of the rule and its message are those of protovalidate, for example
// "guests[1].age" and "int32.gte_lte".
package protovalidate

import (
	"errors"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/badrequest"
)

// Rules returns a function for validate.Options.Rules that validates messages of Protocol Buffers
// with v. Nil means protovalidate.GlobalValidator. It has no rules for other messages. A call with
// a message whose rules do not compile, or fail while they run, fails with the code Internal.
func Rules(v protovalidate.Validator) func(message any) error {
	if v == nil {
		v = protovalidate.GlobalValidator
	}
	return func(message any) error {
		m, ok := message.(proto.Message)
		if !ok {
			return nil
		}
		err := v.Validate(m)
		if err == nil {
			return nil
		}
		broken, ok := errors.AsType[*protovalidate.ValidationError](err)
		if !ok {
			return yodel.Errorf(yodel.Internal, "the rules of %s cannot be applied: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
		return violations(broken)
	}
}

// violations returns an error in the form that validate.Of reads.
func violations(broken *protovalidate.ValidationError) error {
	all := make([]badrequest.Violation, len(broken.Violations))
	for i, v := range broken.Violations {
		all[i] = badrequest.Violation{
			Field: protovalidate.FieldPathString(v.Proto.GetField()), Rule: v.Proto.GetRuleId(), Message: v.Proto.GetMessage(),
		}
	}
	return &yodel.Error{
		Code: yodel.InvalidArgument, Message: broken.Error(), Cause: broken,
		Details: []yodel.Detail{{Type: badrequest.Type, Value: badrequest.Append(nil, all)}},
	}
}
