// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
)

// decode decodes a reply into the call, or returns the error of the call.
func (l *link) decode(call *yodel.Call, r *reply) error {
	var result []byte
	var thrown error
	exception := applicationException{}
	fields := thriftwire.Reader{Format: l.format, Bytes: r.body}
	err := fields.Fields(func(id int16, t thriftwire.Type, encoded []byte) error {
		switch {
		case r.kind == thriftwire.Exception && id == 1 && t == thriftwire.String:
			return l.codec.Decode(encoded, &exception.text)
		case r.kind == thriftwire.Exception && id == 2 && t == thriftwire.I32:
			return l.codec.Decode(encoded, &exception.number)
		case r.kind == thriftwire.Exception:
		case id == 0:
			result = encoded
		case t == thriftwire.Struct:
			thrown = l.thrown(call, id, encoded)
		}
		return nil
	})
	switch {
	case err != nil:
		return linkerror.Misfit(call, l.Addr, err)
	case r.kind == thriftwire.Exception:
		return exception.error()
	case thrown != nil:
		return thrown
	}
	return l.accept(call, result)
}

// accept decodes the result into the reply of the call. A nil result is that of a void method.
func (l *link) accept(call *yodel.Call, result []byte) error {
	to := call.Reply
	switch reply := to.(type) {
	case nil:
		return nil
	case *yodel.Encoded:
		if _, several := call.Args.(yodel.Values); !several {
			if e, ok := call.Args.(*yodel.Encoded); !ok || !e.Several {
				reply.Body, reply.Several = result, false
				return nil
			}
		}
		if result == nil {
			reply.SetValues()
		} else {
			reply.SetValues(result)
		}
		return nil
	case yodel.Values:
		if len(reply) == 0 {
			return nil
		}
		to = reply[0]
	}
	if result == nil {
		if hasNoFields(to) {
			return nil
		}
		return linkerror.Misfit(call, l.Addr, errors.New("it has no result, as that of a void method"))
	}
	if err := l.codec.Decode(result, to); err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	return nil
}

// exceptionType is the type of the detail for an exception, before the number of its field.
const exceptionType = "thrift.exception."

// thrown returns the error for a declared exception.
func (l *link) thrown(call *yodel.Call, id int16, encoded []byte) error {
	sample := l.Throws[call.Method][id]
	if sample == nil {
		return &yodel.Error{
			Code: yodel.Unknown, Message: fmt.Sprintf("%s: the server threw the exception of field %d", call.Method, id),
			Details: []yodel.Detail{{Type: fmt.Sprint(exceptionType, id), Value: encoded}},
		}
	}
	exception := reflect.New(reflect.TypeOf(sample))
	if err := l.codec.Decode(encoded, exception.Interface()); err != nil {
		return linkerror.Misfit(call, l.Addr, fmt.Errorf("the exception of field %d: %w", id, err))
	}
	err, _ := reflect.TypeAssert[error](exception.Elem()) // it has the type of sample
	return &yodel.Error{Code: yodel.CodeOf(err), Message: err.Error(), Cause: err}
}

// An applicationException is a TApplicationException.
type applicationException struct {
	text   string
	number int32
}

// error returns the error for the exception.
func (x applicationException) error() error {
	if code, message := errortext.Cut(x.text); code != yodel.Unknown || message != x.text {
		return &yodel.Error{Code: code, Message: message, NotProcessed: x.number == unknownMethod}
	}
	e := &yodel.Error{Code: yodel.Unknown, Message: x.text}
	switch x.number {
	case unknownMethod:
		e.Code, e.NotProcessed = yodel.Unimplemented, true
	case protocolError:
		e.Code = yodel.InvalidArgument
	default:
		if x.number >= firstUnsupported {
			e.Code = yodel.Unimplemented
		}
	}
	return e
}
