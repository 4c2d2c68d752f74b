// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[*reply]
	wire   *wire
	frames frameReader // for next
	pushes *pushes     // nil if nobody wants them
}

// A reply is the answer to a call.
type reply struct {
	*head
	body []byte
	err  error // why the body was skipped, or nil
}

// A request is a call that is being sent.
type request struct {
	codec      yodel.Codec
	compressor compress.Compressor // nil for a request that is not compressed
	head       head
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	q, e := l.prepare(ctx, call)
	if e != nil {
		return e
	}
	frame, e := l.encode(q, call)
	if e != nil {
		return e
	}
	p, err := l.Send(ctx, !call.OneWay, func(number uint64) ([]byte, error) {
		binary.BigEndian.PutUint64(frame[4:], number-1)
		return frame, nil
	})
	if err != nil || call.OneWay {
		return err
	}
	return l.Await(ctx, p, func(r *reply) error { return l.take(ctx, r, q, call) })
}

// Codec returns the codec of a call: see yodel.Link.
func (l *link) Codec(call *yodel.Call) yodel.Codec {
	_, encodedArgs := call.Args.(*yodel.Encoded)
	_, encodedReply := call.Reply.(*yodel.Encoded)
	if call.Codec != nil || l.wire.codec == nil || encodedArgs || encodedReply { // they are in the codec of the call
		return call.Encoding()
	}
	return l.wire.codec
}

// prepare returns the request for a call, without its payload.
func (l *link) prepare(ctx context.Context, call *yodel.Call) (*request, *yodel.Error) {
	if err := unsendableCall(call, l.Addr); err != nil {
		return nil, err
	}
	q := &request{codec: l.Codec(call), compressor: call.Compressing()}
	serialize, known := byte(0), false
	if q.codec != nil {
		serialize, known = l.wire.types[q.codec.Name()]
	}
	if !known {
		name := "none"
		if q.codec != nil {
			name = q.codec.Name()
		}
		return nil, linkerror.Refused(yodel.InvalidArgument, "YDL2103", "%s: %s speaks rpcx, which has no serialize type for the codec %q", call.Method, l.Addr, name)
	}
	switch c := q.compressor; {
	case c == nil || c.Name() == "gzip":
	case call.Compressor == nil: // it is the client's, for servers of yodel
		q.compressor = nil
	default:
		return nil, linkerror.Refused(yodel.InvalidArgument, "YDL2103", "%s: %s speaks rpcx, which has gzip, but not the compressor %q", call.Method, l.Addr, c.Name())
	}
	metadata, e := requestMetadata(ctx, call, l.Limits)
	if e != nil {
		return nil, e
	}
	q.head = head{serialize: serialize, metadata: metadata}
	if call.OneWay {
		q.head.flags = oneWay
	}
	q.head.path, q.head.method = split(call.Method)
	return q, nil
}

// split returns the service path and the service method for the name of a method.
func split(name string) (path, method string) {
	if i := strings.LastIndexAny(name, "./"); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

// unsendableCall returns why a call to addr cannot be sent by this protocol, or nil.
func unsendableCall(call *yodel.Call, addr string) *yodel.Error {
	var what string
	args, encoded := call.Args.(*yodel.Encoded)
	_, several := call.Args.(yodel.Values)
	_, results := call.Reply.(yodel.Values)
	switch {
	case call.Streams():
		what = "streams"
	case call.Attachment != nil:
		what = "attachments"
	case several, results, encoded && args.Several:
		what = "several values"
	default:
		return nil
	}
	return linkerror.Lacks(call, addr, "rpcx", what)
}

// mostRatio is how many times its size a request may have after decompression. A server of yodel
// refuses more by default: see yodel.Limits.
const mostRatio = 100

// encode returns the frame of a request. Its sequence number is 0.
func (l *link) encode(q *request, call *yodel.Call) ([]byte, *yodel.Error) {
	first := q.head.size()
	frame, e := appendArgs(make([]byte, first, first+512), call, q.codec)
	if e != nil {
		return nil, e
	}
	if q.compressor != nil && len(frame)-first > mostDefault {
		packed, err := q.compressor.Append(make([]byte, first, len(frame)), frame[first:])
		if err != nil {
			e := linkerror.Unencoded(call, fmt.Errorf("compress with gzip: %w", err))
			e.Code = yodel.Internal
			return nil, e
		}
		if len(frame)-first <= min(mostRatio*(len(packed)-first), l.Limits.MaxDecompressed) {
			frame, q.head.flags = packed, q.head.flags|gzipped
		}
	}
	q.head.payload = len(frame) - first
	if q.head.payload > l.Limits.MaxMessage {
		return nil, linkerror.LargeRequest(call, q.head.payload, l.Limits.MaxMessage)
	}
	q.head.append(frame[:0])
	return frame, nil
}

// appendArgs appends the encoded arguments of a call to dst.
func appendArgs(dst []byte, call *yodel.Call, codec yodel.Codec) ([]byte, *yodel.Error) {
	switch args := call.Args.(type) {
	case nil:
		return dst, nil
	case *yodel.Encoded:
		return append(dst, args.Body...), nil
	}
	dst, err := codec.Append(dst, call.Args)
	if err != nil {
		return nil, linkerror.Unencoded(call, fmt.Errorf("%w (codec %s)", err, codec.Name()))
	}
	return dst, nil
}

// take makes a reply the outcome of a call.
func (l *link) take(ctx context.Context, r *reply, q *request, call *yodel.Call) error {
	metadata := l.metadata(r.head, call)
	if r.err != nil {
		return r.err
	}
	answered := error(nil)
	if r.is(failed) {
		answered = errorOf(metadata)
	}
	err := l.decode(ctx, r, q, call)
	if answered != nil {
		return answered // the reply beside it may be missing or unreadable
	}
	return err
}

// metadata returns the metadata of a reply. It sets the trailer of the call to the pairs that a
// handler has set.
func (l *link) metadata(h *head, call *yodel.Call) map[string]string {
	if h.pairs == 0 {
		return nil
	}
	all := make(map[string]string, h.pairs)
	for rest := h.metadata; rest != ""; {
		key, value, next, err := cutPair(rest)
		if err != nil { // frameReader has checked it
			break
		}
		all[key], rest = value, next
	}
	var trailer yodel.Metadata
	for key, value := range all {
		if rpcxwire.Obstacle(key, "") == "" {
			if trailer == nil {
				trailer = make(yodel.Metadata, len(all))
			}
			trailer[key] = value
		}
	}
	call.Trailer = trailer
	return all
}

// decode decodes the payload of a reply. An empty payload is a zero reply.
func (l *link) decode(ctx context.Context, r *reply, q *request, call *yodel.Call) error {
	body := r.body
	encoded, raw := call.Reply.(*yodel.Encoded)
	if raw {
		encoded.Body, encoded.Several = nil, false
	}
	if len(body) == 0 || call.Reply == nil {
		carries.Clear(call.Reply)
		return nil
	}
	if r.serialize != q.head.serialize {
		return linkerror.Misfit(call, l.Addr, fmt.Errorf("it has the serialize type %d, and the request had %d", r.serialize, q.head.serialize))
	}
	if r.compressType() != 0 {
		var err error
		if body, err = l.unpack(ctx, r, q, call); err != nil {
			return err
		}
	}
	if raw {
		encoded.Body = body
		return nil
	}
	if err := q.codec.Decode(body, call.Reply); err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	return nil
}

// unpack decompresses the payload of a reply.
func (l *link) unpack(ctx context.Context, r *reply, q *request, call *yodel.Call) ([]byte, error) {
	if r.compressType() != 1 || q.compressor == nil {
		return nil, linkerror.Misfit(call, l.Addr, fmt.Errorf("it has the compress type %d, for which the call has no compressor", r.compressType()))
	}
	encoded, reply := new(yodel.Encoded), call.Reply
	call.Reply = encoded                // so that TakeReply decompresses within the client's limits, and does not decode
	err := call.TakeReply(r.body, true) //nolint:contextcheck // the call has the context
	call.Reply = reply
	if _, told := errors.AsType[*yodel.Error](err); err != nil && !told && ctx.Err() == nil {
		err = &yodel.Error{
			Code: yodel.DataLoss, ID: "YDL2205", Cause: err,
			Message: fmt.Sprintf("%s: the reply from %s cannot be decompressed: %v", call.Method, l.Addr, err),
		}
	}
	return slices.Clip(encoded.Body), err
}

// next reads one frame and passes it to the waiting call.
func (l *link) next() error {
	h, err := l.frames.next()
	if err != nil {
		return err
	}
	if h.isPush() {
		return l.pushed(h)
	}
	number := h.seq + 1
	if !l.Expects(number) { // its caller has stopped waiting, or it is the answer to a heartbeat
		return l.frames.skip(h.payload)
	}
	if h.excess != "" && h.payload <= l.Limits.MaxMessage {
		e := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL2203", Message: fmt.Sprintf("%s: the reply from %s: %s", h.name(), l.Addr, h.excess)}
		l.Deliver(number, &reply{head: h, err: e}, 0)
		return l.frames.skip(h.payload)
	}
	return l.Receive(number, h.name(), nil, h.payload, func(body []byte, err error) *reply { return &reply{h, body, err} })
}
