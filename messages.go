// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/late"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/values"
)

// Kind returns the kind of the method that the caller expects: "unary", "feed", "upload" or
// "duplex". On the server it is the kind of the method, or "" if there is none of this name.
func (c *Call) Kind() string {
	switch {
	case c.in == nil:
		return kinds.Name(c.kind())
	case c.in.method == nil:
		return ""
	}
	return kinds.Name(c.in.method.Kind)
}

// AppendArgs appends the encoded arguments to dst, for the Do of a Link. It compresses them with
// the compressor of Compressing if they have ClientOptions.CompressAbove bytes or more, also if
// that makes them larger, as clients of other protocols do. It does not compress arguments that a
// server with the client's Limits.MaxDecompressed would refuse after decompression. If
// CompressAbove is 1, it compresses empty arguments too. Compressed reports whether it compressed
// them.
func (c *Call) AppendArgs(dst []byte) (args []byte, compressed bool, err error) {
	args, compressed, f := c.requester().binding(c).Format.AppendForeign(dst, c.Method, c.Args)
	if f != nil {
		return dst, false, faultError(f)
	}
	return args, compressed, nil
}

// TakeReply decodes the reply of the call, for the Do of a Link. Body must be in the codec of
// Encoding, and compressed with the compressor of Compressing if compressed is set.
func (c *Call) TakeReply(body []byte, compressed bool) error {
	if compressed {
		q := c.requester()
		unpacked, err := q.unpack(linkContext(c), c, &q.binding(c).Format, nil, body)
		if err != nil {
			return err
		}
		body = unpacked
		defer q.memory.Give(len(body))
	}
	return (&Encoded{Body: body}).into(c)
}

// Converse runs the caller's function of a call with a stream. The Do of a Link calls it, once for
// each attempt. Before that it sends the request of a feed. M carries the messages: its Receive
// returns io.EOF when the server has ended the stream, and its Send when the server accepts no more
// messages. Converse calls End when the caller sends no more messages. It returns nil when the
// server has ended the stream, or in an upload when all messages were sent. Do then returns the
// outcome, which in an upload begins with the reply for TakeReply. If Converse returns an error, Do
// ends the stream and returns that error.
//
// If Send or Receive returns an Error with NotProcessed, or Do does, the call can be begun again
// unless the server has sent a message, or more than 64 KiB were sent. The function then goes on,
// and Converse of the next attempt first sends what the function has sent before.
func (c *Call) Converse(ctx context.Context, m Messages) error {
	s, q := c.stream, c.requester()
	if err := s.Again(c.Method); err != nil {
		return errorOf(err)
	}
	b := q.binding(c)
	s.to.set(c)
	return s.Foreign(ctx, m, q.memory, q.limits.MaxMessage, func(ctx context.Context, st pipe.Stream) *pipe.Pipe {
		return q.pipe(ctx, c, b, st)
	}, NotProcessed)
}

// Encode encodes the message that this side of the call sends, and replaces the message with the
// result. On the client this message is the arguments, which the caller may change afterwards. On
// the server it is the reply, once the method has returned it. Encode waits for a late reply. A
// second Encode does nothing.
func (c *Call) Encode() (*Encoded, error) {
	codec, message := c.Encoding(), &c.Args
	if c.in != nil {
		message = &c.Reply
	}
	if c.stream != nil {
		return nil, Errorf(Internal, "%s: the messages of a stream are not one", c.Method)
	}
	if codec == nil {
		return nil, nobody(c)
	}
	if c.in != nil && c.in.late != nil && c.Reply == nil {
		if err := c.in.awaitLate(c.in.ctx); err != nil {
			return nil, err
		}
	}
	if e, ok := (*message).(*Encoded); ok {
		return e, nil
	}
	e := &Encoded{Several: several(*message)}
	if *message == nil && c.in != nil { // a method without a result
		*message = e
		return e, nil
	}
	if _, f := formatFor(c, codec).Encode(&e.Body, c.Method, *message, true); f != nil {
		return nil, faultError(f)
	}
	*message = e
	return e, nil
}

func nobody(c *Call) error {
	return Errorf(Internal, "%s: nobody carries the call out, and it names no codec", c.Method)
}

// formatFor returns the format of the messages of c in a codec, for code that encodes them itself.
func formatFor(c *Call, codec Codec) *format {
	if c.in != nil {
		return &format{Codec: codec, Side: &c.in.server.bodies}
	}
	return &format{Codec: codec}
}

// Request replaces the contents of e by the encoded arguments. It does not change the call. On the
// server it copies the received bytes, even before they are decoded, and fails if the request
// cannot be valid. Two requests with the same method, codec and bytes are equal.
func (c *Call) Request(e *Encoded) error {
	if c.in != nil {
		return c.in.request(e)
	}
	codec := c.Encoding()
	if codec == nil {
		return nobody(c)
	}
	if _, f := formatFor(c, codec).Encode(&e.Body, c.Method, c.Args, true); f != nil {
		return faultError(f)
	}
	e.Several = several(c.Args)
	return nil
}

func (c *serverCall) request(e *Encoded) error {
	body, err := c.call.Body()
	if err != nil {
		return err
	}
	e.Body, e.Several = append(e.Body[:0], body...), c.as.Positional
	return nil
}

// Answer makes e the call's reply. E must be encoded in the codec of the call. On the client,
// Answer decodes e into Reply, which shares no memory with e. On the server, e is sent and must not
// be changed afterwards. A stream cannot be answered.
func (c *Call) Answer(e *Encoded) error {
	if c.Streams() || c.in != nil && c.in.stream != nil {
		return Errorf(Internal, "%s: a stream has no reply that something else could stand for", c.Method)
	}
	if c.in != nil {
		if want := c.in.as.Positional; want != e.Several {
			return failure("YDL2104", "%s: the reply is of several values: %v; that of the method: %v", c.Method, e.Several, want)
		}
		c.Reply = e
		return nil
	}
	return e.into(c)
}

// into decodes e into the reply of a call. If Reply is an *Encoded, it becomes a copy of
// e. A nil Reply discards e.
func (e *Encoded) into(c *Call) error {
	if c.Reply == nil {
		return nil
	}
	codec := c.Encoding()
	if _, whatever := c.Reply.(*Encoded); codec == nil && !whatever {
		return nobody(c)
	}
	return take(c, &format{Codec: codec}, e.Body, e.Several)
}

// DecodeInto decodes the request's body into v, a pointer or Values of pointers, on the server, for
// methods that HandleCall registered.
func (c *Call) DecodeInto(v any) error {
	if c.in == nil {
		return Errorf(Internal, "%s: there is no request to decode on this side", c.Method)
	}
	body, err := c.Body()
	if err != nil {
		return err
	}
	as := &c.in.as.format
	if err := as.Decode(body, v); err != nil {
		return faultError(as.Unfit(c.Method, "the request", fmt.Sprintf("%T", v), err))
	}
	c.Args = v
	return c.rare.checks().Run(v, false)
}

// Later lets a handler return without a reply, so that no goroutine waits for it. The handler
// passes the returned function to other code, and returns nil. That code calls the function with
// the reply and the error that the method would have returned. It may do so from any goroutine,
// even before the handler has returned. The function encodes the reply, and waits while the caller
// does not read its replies. Further calls of the function do nothing. If the handler returns an
// error or panics, that error or panic is the outcome of the call.
//
// The call remains open until the function is called: it counts in the limits, its context does not
// end, and Shutdown waits for it. So the function must be called in the end. Until then, arguments
// of the type raw.View, and bodies that were not copied, remain valid. To middleware, the call ends
// when the handler returns, without a reply. To observers and statistics, it ends when it is
// answered. The goroutine waits for the reply if a middleware calls Encode, or if the call has an
// idempotency key that the server remembers. Calls with a stream cannot be answered later. For such
// a call, and on the client, Later returns nil.
func (c *Call) Later() func(reply any, err error) {
	in := c.in
	if in == nil || in.stream != nil {
		return nil
	}
	r := late.New()
	in.held.Store(true) // so the call is not reused; the function may be called at any time
	in.late = r
	in.protocol.later()
	return func(reply any, err error) {
		set := r.Set(func() (any, error) {
			switch {
			case err != nil:
				return reply, asError(err)
			case reply == nil && !in.call.OneWay && (in.method == nil || len(in.method.Results) > 0):
				return nil, failure("YDL5003", "%s: the handler's late reply is nil", in.as.Name)
			}
			return reply, nil
		})
		if set {
			in.protocol.finish()
		}
	}
}

// An Encoded is a message, or Values, that is already encoded in the codec of its call. As
// arguments or as a reply it is sent unchanged. A client that sets Call.Reply to an *Encoded gets
// the reply without decoding. Its Body is always decompressed. See Call.Encode.
type Encoded struct {
	Body    []byte
	Several bool // of Values
}

// SetValues makes e the encoding of Values, each of which is already encoded.
func (e *Encoded) SetValues(encoded ...[]byte) {
	e.Several, e.Body = true, values.Join(e.Body[:0], encoded)
}

// Values returns the encoding of each value, without copying it. If e is one message, Values
// returns its body.
func (e *Encoded) Values() ([][]byte, error) {
	if !e.Several {
		return [][]byte{e.Body}, nil
	}
	return values.Split(e.Body)
}
