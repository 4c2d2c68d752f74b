// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/badrequest"
)

// A Violation says which rule a field of a message breaks.
type Violation struct {
	// Field is the path of the field, for example "items[2].price". It is empty for the whole
	// message. For a method with several arguments it begins with the number of the argument, for
	// example "[0].name".
	Field string `json:"field"`
	// Rule names the rule for programs, for example "positive". It may be empty.
	Rule string `json:"rule"`
	// Message says what is wrong, for people.
	Message string `json:"message"`
}

// String returns the violation in one line.
func (v Violation) String() string {
	s := v.Message
	if v.Field != "" {
		s = v.Field + ": " + s
	}
	if v.Rule != "" {
		s += " (" + v.Rule + ")"
	}
	return s
}

// Violations is an error of several violations. A method Validate returns the result of Err. If it
// returns another error, that error becomes one violation of the whole message, except for a
// *yodel.Error. If Of returns violations for it, it counts as these. Otherwise the call fails with
// it, so that a rule can choose the code.
type Violations []Violation //nolint:recvcheck // Add appends, and an error is a value

// Add adds a violation.
func (v *Violations) Add(field, rule, message string) {
	*v = append(*v, Violation{field, rule, message})
}

// Within adds the violations of err, the result of a method Validate, for a message that is in a
// field of this one. If err is nil, Within adds nothing.
func (v *Violations) Within(field string, err error) {
	for _, inner := range violationsOf(err) {
		switch {
		case inner.Field == "":
			inner.Field = field
		case field != "" && inner.Field[0] != '[':
			inner.Field = field + "." + inner.Field
		default:
			inner.Field = field + inner.Field
		}
		*v = append(*v, inner)
	}
}

// Err returns v, or nil if there are no violations.
func (v Violations) Err() error {
	if len(v) == 0 {
		return nil
	}
	return v
}

// Error implements error.
func (v Violations) Error() string {
	all := make([]string, len(v))
	for i := range v {
		all[i] = v[i].String()
	}
	return strings.Join(all, "; ")
}

// violationsOf returns the violations of the result of a method Validate or a rule.
func violationsOf(err error) Violations {
	if err == nil {
		return nil
	}
	if v, ok := errors.AsType[Violations](err); ok {
		return v
	}
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		if v := Of(e); v != nil {
			return v
		}
		return Violations{{Message: e.Message}}
	}
	return Violations{{Message: err.Error()}}
}

// Of returns the violations that the error of a call carries, or nil. They may come from a server
// of gRPC in any language.
func Of(err error) Violations {
	var v Violations
	e, ok := errors.AsType[*yodel.Error](err)
	for i := 0; ok && i < len(e.Details); i++ {
		if e.Details[i].Type != badrequest.Type {
			continue
		}
		all, err := badrequest.Parse(e.Details[i].Value)
		if err != nil {
			continue // the code and the text of the error remain
		}
		for _, one := range all {
			v = append(v, Violation(one))
		}
	}
	return v
}

// The limits of a detail. An error with more than 16 KiB of details loses all of them.
const (
	maxViolations = 100
	maxText       = 1 << 10
	maxDetail     = 12 << 10
)

// detail returns v as a detail of an error, and as a text. It leaves out violations for which there
// is no room, and the text says how many.
func (v Violations) detail() (yodel.Detail, string) {
	d := yodel.Detail{Type: badrequest.Type}
	n := 0
	for ; n < min(len(v), maxViolations); n++ {
		one := badrequest.Violation{Field: cut(v[n].Field), Rule: cut(v[n].Rule), Message: cut(v[n].Message)}
		value := badrequest.Append(d.Value, []badrequest.Violation{one})
		if len(value) > maxDetail {
			break
		}
		d.Value = value
	}
	text := v[:n].Error()
	if left := len(v) - n; left > 0 {
		text += fmt.Sprintf("; and %d more", left)
	}
	return d, text
}

// cut returns the beginning of a text.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
