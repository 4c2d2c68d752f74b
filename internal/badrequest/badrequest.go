// SPDX-License-Identifier: Apache-2.0

// Package badrequest reads and writes google.rpc.BadRequest, the detail of an error in which
// clients of gRPC expect the fields of a request that break a rule:
//
//	message BadRequest { repeated FieldViolation field_violations = 1; }
//	message FieldViolation { string field = 1; string description = 2; string reason = 3; }
package badrequest

import (
	"strings"

	"github.com/yodel-rpc/yodel/internal/protowire"
)

// Type is the type of the detail.
const Type = "google.rpc.BadRequest"

// A Violation is a FieldViolation. The reason is the rule, and the description the message.
type Violation struct {
	Field   string `json:"field"`
	Rule    string `json:"rule"`
	Message string `json:"message"`
}

const (
	violations  = 1
	field       = 1
	description = 2
	reason      = 3
)

// Append appends the encoding of violations.
func Append(dst []byte, all []Violation) []byte {
	for _, v := range all {
		one := appendText(appendText(appendText(nil, field, v.Field), description, v.Message), reason, v.Rule)
		if dst = protowire.AppendField(dst, violations, one); len(one) == 0 {
			dst = append(dst, violations<<3|2, 0)
		}
	}
	return dst
}

// appendText appends a field. Protocol Buffers has no text that is not UTF-8.
func appendText(dst []byte, number byte, text string) []byte {
	return protowire.AppendField(dst, number, []byte(strings.ToValidUTF8(text, "\uFFFD")))
}

// Parse returns the violations of an encoding.
func Parse(b []byte) (all []Violation, err error) {
	err = protowire.EachField(b, func(number uint64, value []byte) error {
		if number != violations || value == nil {
			return nil
		}
		var v Violation
		err := protowire.EachField(value, func(number uint64, value []byte) error {
			switch number {
			case field:
				v.Field = string(value)
			case description:
				v.Message = string(value)
			case reason:
				v.Rule = string(value)
			}
			return nil
		})
		all = append(all, v)
		return err
	})
	return all, err
}
