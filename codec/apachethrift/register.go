// SPDX-License-Identifier: Apache-2.0

package apachethrift

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// Register registers the methods of a service with the processor that Apache's compiler generates
// for it, under their names in Thrift: "Paints.mix".
//
//	err := apachethrift.Register(server, "Paints", testthrift.NewPaintsProcessor(handler))
//
// The processor says which methods there are, what they are called, which arguments they take,
// which exceptions they declare and which of them are oneway. So protocol/thrift needs neither
// Options.Throws nor, for clients that stay connected, Options.OneWay. The server needs the codec
// "thrift" or "thrift-compact", from New or from package codec/thrift. Callers may give the
// arguments as a generated struct, such as PaintsMixArgs, as Values, or, for a method with one
// argument, as that. As with Apache's server, an argument of another type counts as left out, and
// the handler gets its zero value. An empty service registers the methods under their names alone.
//
// A declared exception has the code Unknown. Another file of the generated package may give its
// type a code for statistics, logs and middleware:
//
//	func (*NotStocked) Unwrap() error { return yodel.NotFound }
//
// If a name is taken, Register registers no method and returns an error.
func Register(s *yodel.Server, service string, processor thrift.TProcessor) error {
	if processor == nil {
		return fmt.Errorf("apachethrift: register %s: the processor is nil", service)
	}
	if service != "" {
		service += "."
	}
	functions := processor.ProcessorMap()
	var done []string
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		m := method{name, functions[name]}
		if err := s.HandleCall(service+name, m.handle); err != nil {
			return errors.Join(err, s.Unregister(done...))
		}
		done = append(done, service+name)
	}
	return nil
}

// A method is a method of a processor.
type method struct {
	name     string
	function thrift.TProcessorFunction
}

// handle executes a call.
func (m method) handle(ctx context.Context, call *yodel.Call) error {
	var request yodel.Encoded
	if err := call.Request(&request); err != nil {
		return err
	}
	own, err := byName(call.Encoding().Name())
	if err != nil {
		return &yodel.Error{Code: yodel.InvalidArgument, Message: fmt.Sprintf("%s: %v", call.Method, err)}
	}
	args, err := own.arguments(&request)
	if err != nil {
		return m.misfit(call, err)
	}
	in, out := &thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(args)}, thrift.NewTMemoryBuffer()
	_, err = m.function.Process(ctx, 0, own.protocols.GetProtocol(in), own.protocols.GetProtocol(out))
	if out.Len() == 0 {
		call.OneWay = err == nil || call.OneWay // protocol/thrift then sends no reply
		return err
	}
	r := thriftwire.Reader{Format: own.format, Bytes: out.Bytes()}
	head, wrong := r.Header(len(r.Bytes))
	switch {
	case wrong != nil:
		return fmt.Errorf("the generated code answered with a damaged message: %w", wrong)
	case head.Type == thriftwire.Exception:
		return m.failed(call, own, &r, err)
	}
	return answer(call, &r, request.Several, err)
}

// byName returns the codec of generated types with a name.
func byName(name string) (*codec, error) {
	for _, own := range ownCodecs {
		if own.Name() == name {
			return own, nil
		}
	}
	return nil, fmt.Errorf("a method of Apache Thrift takes the codecs thrift and thrift-compact, not %q", name)
}

// ownCodecs encode generated types only.
var ownCodecs = [...]*codec{newCodec(named("thrift")), newCodec(named("thrift-compact"))}

// named is the name of a codec.
type named string

func (n named) Name() string { return string(n) }
func (named) Append(dst []byte, v any) ([]byte, error) {
	return dst, fmt.Errorf("%T is not generated", v)
}
func (named) Decode(_ []byte, v any) error { return fmt.Errorf("%T is not generated", v) }

// arguments returns the struct of the arguments of a request.
func (c *codec) arguments(request *yodel.Encoded) (args []byte, err error) {
	if b := request.Body; !request.Several && len(b) > 0 && b[0] == c.format.ArgsMark() {
		args = b[1:]
	} else {
		values, err := request.Values()
		if err != nil {
			return nil, err
		}
		if len(values) > math.MaxInt16 {
			return nil, fmt.Errorf("there are %d arguments", len(values))
		}
		last := int16(0)
		for i, value := range values {
			if len(value) == 0 { // it was left out
				continue
			}
			id := int16(i + 1)
			if args, err = thriftwire.AppendFieldOf(args, c.format, value, id, last); err != nil {
				return nil, fmt.Errorf("argument %d: %w", id, err)
			}
			last = id
		}
		args = append(args, byte(thriftwire.Stop))
	}
	return rest(&thriftwire.Reader{Format: c.format, Bytes: args}, thriftwire.Struct)
}

func (m method) misfit(call *yodel.Call, err error) error {
	return &yodel.Error{
		Code: yodel.InvalidArgument, ID: "YDL2101", Cause: err,
		Message: fmt.Sprintf("%s: the arguments do not fit %s: %v", call.Method, m.name, err),
	}
}

// failed returns the error of a call that the processor answered with a TApplicationException.
func (m method) failed(call *yodel.Call, own *codec, r *thriftwire.Reader, err error) error {
	number, text := int64(0), ""
	_ = r.Fields(func(id int16, t thriftwire.Type, encoded []byte) error { // what is damaged is left out
		field := thriftwire.Reader{Format: own.format, Bytes: encoded}
		if _, err := field.Open(); err != nil {
			return err
		}
		switch {
		case id == 1 && t == thriftwire.String:
			data, err := field.Data()
			text = string(data)
			return err
		case id == 2 && t == thriftwire.I32:
			var err error
			number, err = field.Int(t)
			return err
		}
		return nil
	})
	if failure, ok := errors.AsType[*thrift.ProcessorError](err); ok && failure.EndpointError != nil {
		err = failure.EndpointError
	}
	switch {
	case number == thrift.PROTOCOL_ERROR:
		return m.misfit(call, cmp.Or(err, errors.New(text)))
	case err == nil: // the processor wrote the exception without a handler
		return yodel.Errorf(yodel.Unknown, "%s", text)
	}
	return err
}

// answer makes the result that the processor wrote the reply of the call. Err is the declared
// exception, or nil if the generator is too old to return it.
func answer(call *yodel.Call, r *thriftwire.Reader, several bool, err error) error {
	reply, thrown := &yodel.Encoded{}, error(nil)
	if several {
		reply.SetValues()
	}
	wrong := r.Fields(func(id int16, _ thriftwire.Type, encoded []byte) error {
		switch {
		case id != 0:
			text, code := fmt.Sprintf("the exception of field %d", id), yodel.Unknown
			if err != nil {
				text, code = err.Error(), yodel.CodeOf(err)
			}
			thrown = &yodel.Error{
				Code: code, Message: text, Cause: err,
				Details: []yodel.Detail{{Type: fmt.Sprintf("thrift.exception.%d", id), Value: bytes.Clone(encoded)}},
			}
		case several:
			reply.SetValues(bytes.Clone(encoded))
		default:
			reply.Body = bytes.Clone(encoded)
		}
		return nil
	})
	switch {
	case wrong != nil:
		return fmt.Errorf("the generated code answered with a damaged result: %w", wrong)
	case thrown != nil:
		return thrown
	case several || reply.Body != nil:
		call.Reply = reply
	}
	return nil
}
