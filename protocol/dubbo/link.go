// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[*reply]
	wire     *wire
	instance func() discovery.Instance
	frames   frameReader // for next
}

// A reply is the answer to a call.
type reply struct {
	status byte
	body   []byte
	err    error // why the body was skipped, or nil
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if e := l.unsendable(call); e != nil {
		return e
	}
	frame, e := l.request(ctx, call)
	if e != nil {
		return e
	}
	p, err := l.Send(ctx, !call.OneWay, func(number uint64) ([]byte, error) {
		binary.BigEndian.PutUint64(frame[4:], number)
		return frame, nil
	})
	if err != nil || call.OneWay {
		return err
	}
	return l.Await(ctx, p, func(r *reply) error {
		if r.err != nil {
			return r.err
		}
		return l.take(call, r)
	})
}

// Codec returns the codec that decodes the reply of a call: see yodel.Link.
func (l *link) Codec(*yodel.Call) yodel.Codec { return l.wire.codec }

// unsendable returns why a call cannot be sent by this protocol, or nil.
func (l *link) unsendable(call *yodel.Call) *yodel.Error {
	results, _ := call.Reply.(yodel.Values)
	var what string
	switch {
	case call.Streams():
		what = "streams"
	case call.Attachment != nil:
		what = "attachments of this kind"
	case len(results) > 1:
		what = "methods with several results"
	default:
		return nil
	}
	return linkerror.Lacks(call, l.Addr, "Dubbo", what)
}

// request returns the frame of a request. Its number is 0.
func (l *link) request(ctx context.Context, call *yodel.Call) ([]byte, *yodel.Error) {
	types, known := l.wire.Parameters[call.Method]
	args, err := l.args(call)
	if err == nil && !known {
		types, err = typesOf(call)
	}
	if n, _ := countTypes(types); err == nil && n != len(args) {
		err = fmt.Errorf("it has %d arguments, and the method has %d parameters", len(args), n)
	}
	if err != nil {
		return nil, linkerror.Unencoded(call, err)
	}
	pairs, e := requestPairs(ctx, call, l.instance(), l.Limits)
	if e != nil {
		return nil, e
	}
	service, method := split(call.Method)
	frame := make([]byte, headSize, headSize+512)
	serviceVersion := cmp.Or(call.Metadata[keyVersion], l.instance().Version, "0.0.0")
	for _, text := range []string{version, service, serviceVersion, method, types} {
		frame = hessian.AppendText(frame, text)
	}
	if frame, err = hessian.Join(frame, math.MaxInt32, args...); err != nil {
		return nil, linkerror.Unencoded(call, err)
	}
	frame = hessian.AppendPairs(frame, pairs...)
	n := len(frame) - headSize
	if n > l.Limits.MaxMessage {
		return nil, linkerror.LargeRequest(call, n, l.Limits.MaxMessage)
	}
	h := head{flags: request | twoWay | hessian2}
	if call.OneWay {
		h.flags &^= twoWay
	}
	h.append(frame[:0], n)
	return frame, nil
}

// args returns the encoded arguments.
func (l *link) args(call *yodel.Call) ([][]byte, error) {
	switch args := call.Args.(type) {
	case nil:
		return nil, nil
	case *yodel.Encoded:
		if c := call.Encoding(); c == nil || c.Name() != codecName {
			return nil, fmt.Errorf("the arguments are encoded already, and not in the codec %s", codecName)
		}
		return args.Values()
	case yodel.Values:
		values := make([][]byte, len(args))
		for i, arg := range args {
			var err error
			if values[i], err = l.wire.codec.Append(nil, arg); err != nil {
				return nil, fmt.Errorf("value %d: %w", i+1, err)
			}
		}
		return values, nil
	default:
		if types, err := typesOf(call); err == nil && types == "" {
			return nil, nil // a message without fields
		}
		value, err := l.wire.codec.Append(nil, args)
		return [][]byte{value}, err
	}
}

// next reads one frame, and passes a reply to the call that waits for it.
func (l *link) next() error {
	h, err := l.frames.head()
	switch {
	case err != nil:
		return err
	case h.is(event):
		return l.event(h)
	case h.is(request):
		return errors.New("the server sent a request")
	case !l.Expects(h.number): // its caller has stopped waiting
		return l.frames.skip(h.body)
	}
	if h.flags&serialization != hessian2 {
		err = fmt.Errorf("the reply from %s has the serialization %d, and the request had %d", l.Addr, h.flags&serialization, hessian2)
		l.Deliver(h.number, &reply{err: err}, 0)
		return l.frames.skip(h.body)
	}
	return l.Receive(h.number, "", nil, h.body, func(body []byte, err error) *reply { return &reply{h.status, body, err} })
}

// event answers a heartbeat, and stops calls after the event by which a server says that it takes
// no further requests.
func (l *link) event(h head) error {
	if h.body > maxEvent {
		return errEventLarge
	}
	body, err := l.frames.body(h.body)
	switch {
	case err != nil:
		return err
	case h.is(request) && h.is(twoWay):
		l.sendEvent(h.flags&^(request|twoWay), h.number, body)
	case h.is(request) && string(body) == readOnly:
		l.Refuse(errReadOnly)
	}
	return nil
}

// take makes a reply the outcome of a call.
func (l *link) take(call *yodel.Call, r *reply) error {
	values := hessian.NewReader(r.body)
	if r.status != statusOK {
		text, err := values.Text()
		if err != nil {
			return linkerror.Misfit(call, l.Addr, err)
		}
		return l.statusError(r.status, text)
	}
	kind, err := values.Int()
	if err == nil && (kind < 0 || kind >= 2*withAttachments) {
		err = fmt.Errorf("it has the kind %d", kind)
	}
	var value []byte
	if begin := values.At(); err == nil && kind%withAttachments != kindNull {
		err = values.Skip()
		value = r.body[begin:values.At()]
	}
	var attachments any
	if err == nil && kind >= withAttachments {
		if n := len(r.body) - values.At(); n > maxAttachments(l.Limits) {
			return &yodel.Error{
				Code: yodel.ResourceExhausted, ID: "YDL2203",
				Message: fmt.Sprintf("%s: the attachments of the reply from %s have %d bytes when encoded; this client's limit is %d", call.Method, l.Addr, n, maxAttachments(l.Limits)),
			}
		}
		attachments, err = values.Any()
	}
	if err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	pairs := attachmentTexts(attachments)
	for key, text := range pairs {
		if reserved(key) {
			continue
		}
		if call.Trailer == nil {
			call.Trailer = make(yodel.Metadata, len(pairs))
		}
		call.Trailer[key] = text
	}
	if kind%withAttachments == kindException {
		return l.thrown(call, value, pairs)
	}
	return l.accept(call, value)
}

// attachmentTexts returns the attachments of a reply that are texts, numbers or booleans.
func attachmentTexts(attachments any) map[string]string {
	all, _ := attachments.(map[string]any)
	pairs := make(map[string]string, len(all))
	for key, value := range all {
		if text, err := texts(map[string]any{key: value}); err == nil && value != nil {
			pairs[key] = text[key]
		}
	}
	return pairs
}

// accept decodes the result into the reply of the call. A nil result is null.
func (l *link) accept(call *yodel.Call, result []byte) error {
	to := call.Reply
	switch reply := to.(type) {
	case nil:
		return nil
	case *yodel.Encoded:
		if result == nil {
			result = hessian.AppendNull(nil)
		}
		_, several := call.Args.(yodel.Values)
		if e, ok := call.Args.(*yodel.Encoded); several || ok && e.Several {
			reply.SetValues(result)
		} else {
			reply.Body, reply.Several = result, false
		}
		return nil
	case yodel.Values:
		if len(reply) == 0 {
			return nil
		}
		to = reply[0]
	}
	if result == nil {
		result = hessian.AppendNull(nil)
	}
	if err := l.wire.codec.Decode(result, to); err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	return nil
}

// statusError returns the error for a status that is not OK.
func (l *link) statusError(status byte, text string) error {
	e := &yodel.Error{Code: yodel.Unavailable, Message: text}
	switch status {
	case statusClientTimeout, statusServerTimeout:
		e.Code = yodel.DeadlineExceeded
	case statusBadRequest:
		e.Code, e.NotProcessed = yodel.InvalidArgument, true
	case statusServiceNotFound:
		e.Code, e.NotProcessed = yodel.Unimplemented, true
	case statusExhausted:
		e.Code, e.NotProcessed = yodel.ResourceExhausted, true
	}
	if code, message := errortext.Cut(text); code != yodel.Unknown { // as servers of yodel write it
		e.Code, e.Message = code, message
	}
	e.Message = cmp.Or(e.Message, "the server answered with the status "+strconv.Itoa(int(status)))
	return e
}

// thrown returns the error for an exception.
func (l *link) thrown(call *yodel.Call, value []byte, pairs map[string]string) error {
	exception, err := hessian.NewReader(value).Any()
	if err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	class, text := describeException(exception)
	if class == exceptionClass {
		class = ""
	}
	e, own := callfields.ReadError(text, yodel.Unknown, pairs)
	if !own {
		e.Details = []yodel.Detail{{Type: "dubbo.exception", Value: value}}
		if class != "" && text != "" {
			e.Message = class + ": " + e.Message
		}
	}
	e.Message = cmp.Or(e.Message, class, "the server answered with an exception without a text")
	return e
}

// describeException returns the class and the text of an exception.
func describeException(exception any) (class, text string) {
	switch x := exception.(type) {
	case map[string]any:
		class, _ = x[hessian.ClassKey].(string)
		text, _ = x["detailMessage"].(string)
		if class == "org.apache.dubbo.rpc.service.GenericException" {
			name, _ := x["exceptionClass"].(string)
			message, _ := x["exceptionMessage"].(string)
			class, text = cmp.Or(name, class), cmp.Or(message, text)
		}
	case string: // dubbo-go may send one
		text = x
	}
	return class, text
}
