// SPDX-License-Identifier: Apache-2.0

// Package validate refuses calls whose messages break a rule. A message type has its rules in a
// method Validate:
//
//	func (o *Order) Validate() error {
//		var v validate.Violations
//		if o.Quantity <= 0 {
//			v.Add("quantity", "positive", "must be positive")
//		}
//		return v.Err()
//	}
//
// On a server, Messages validates each request before the method runs: the arguments of a call, and
// each message of an upload or a duplex before the method receives it. On a client, it validates
// them before they are sent. Put it innermost on a server, because it decodes the request, and
// callers that other middleware refuses should not cost that. The position on a client does not
// matter.
//
// A call that breaks a rule fails with the code InvalidArgument (YDL3701), and its method does not
// run. The error carries the violations over each wire that carries details of errors, as a
// google.rpc.BadRequest. JSON has them as a list too. Of returns them. The error of a message of a
// stream is the result of Recv or Send. If the method returns it, the call fails with it. A method
// may also go on: Recv returns the next message afterwards.
//
// Options.Rules adds rules from elsewhere. Those of module middleware/protovalidate are in the
// .proto file.
package validate

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel"
)

// Options says what is validated.
type Options struct {
	// Rules are called with each message, in addition to its method Validate. They get a pointer to
	// the message. They are called concurrently.
	Rules []func(message any) error
	// Replies also validates replies: on a server those that methods return and send, on a client
	// those that it receives. A reply that breaks a rule fails the call with the code Internal
	// (YDL3702). A server does not validate late replies, nor replies that are already encoded.
	Replies bool
}

// Messages validates requests with their method Validate.
func Messages() yodel.Middleware { return With(nil) }

// With validates messages as o says. Nil means Options{}.
func With(o *Options) yodel.Middleware {
	var v validator
	if o != nil {
		v.Options = *o
	}
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			return v.do(ctx, call, next)
		}
	}
}

type validator struct{ Options }

// do validates a call.
func (v *validator) do(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	onServer := call.Peer() != nil
	if onServer {
		if err := call.Decode(); err != nil {
			return err
		}
	}
	if call.Args != nil {
		if err := v.request(call, call.Args); err != nil {
			return err
		}
	}
	if call.Streams() || onServer && call.Args == nil {
		call.EachMessage(func(message any, sent bool) error {
			if sent != onServer {
				return v.request(call, message)
			}
			return v.reply(call, message)
		})
	}
	if err := next(ctx, call); err != nil || call.OneWay {
		return err
	}
	return v.reply(call, call.Reply)
}

// request returns the error of a request.
func (v *validator) request(call *yodel.Call, message any) error {
	if e := v.refusal(call, message, &yodel.Error{Code: yodel.InvalidArgument, ID: "YDL3701", Message: "request"}); e != nil {
		e.NotProcessed = true
		return e
	}
	return nil
}

// reply returns the error of a reply.
func (v *validator) reply(call *yodel.Call, message any) error {
	if !v.Replies {
		return nil
	}
	if e := v.refusal(call, message, &yodel.Error{Code: yodel.Internal, ID: "YDL3702", Message: "reply"}); e != nil {
		return e
	}
	return nil
}

// refusal completes e, whose message says what is validated, if the message breaks a rule. If a
// rule has chosen an error itself, refusal returns a copy of that one. Otherwise it returns nil.
func (v *validator) refusal(call *yodel.Call, message any, e *yodel.Error) *yodel.Error {
	values, several := message.(yodel.Values)
	if !several {
		values = yodel.Values{message}
	}
	var broken Violations
	for i, value := range values {
		err := v.check(value)
		if own := chosen(err); own != nil {
			return own
		}
		field := ""
		if several {
			field = fmt.Sprintf("[%d]", i)
		}
		broken.Within(field, err)
		e.Cause = errors.Join(e.Cause, err)
	}
	if len(broken) == 0 {
		return nil
	}
	detail, text := broken.detail()
	e.Message = fmt.Sprintf("%s: the %s breaks a rule: %s", call.Method, e.Message, text)
	e.Details = []yodel.Detail{detail}
	return e
}

// chosen returns a copy of err if it is an error of yodel without violations, or nil.
func chosen(err error) *yodel.Error {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || Of(e) != nil {
		return nil //nolint:nilerr // the error is no choice of a code
	}
	own := *e
	return &own
}

// check calls the method Validate of a message, and the rules.
func (v *validator) check(message any) error {
	if _, encoded := message.(*yodel.Encoded); encoded {
		return nil
	}
	message = pointerTo(message)
	if message == nil {
		return nil
	}
	var err error
	if m, ok := message.(interface{ Validate() error }); ok {
		err = m.Validate()
	}
	for _, rule := range v.Rules {
		if chosen(err) != nil {
			return err
		}
		err = joined(err, rule(message))
	}
	return err
}

// joined returns one of two errors, or the violations of both.
func joined(a, b error) error {
	switch {
	case a == nil || chosen(b) != nil:
		return b
	case b == nil:
		return a
	}
	var both Violations
	both.Within("", a)
	both.Within("", b)
	return both
}

// pointerTo returns a pointer to the message that v is or points to. It returns nil if there is
// none.
func pointerTo(v any) any {
	if v == nil {
		return nil
	}
	value := reflect.ValueOf(v)
	if value.Kind() != reflect.Pointer {
		to := reflect.New(value.Type())
		to.Elem().Set(value)
		return to.Interface()
	}
	for !value.IsNil() && value.Elem().Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if value.IsNil() {
		return nil
	}
	return value.Interface()
}
