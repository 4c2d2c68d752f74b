// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file carries streams in other protocols than yodel's, on both sides.

// A foreignStream is a stream of another protocol than yodel's.
type foreignStream struct {
	messages Messages
	memory   account
	most     int  // the size of the largest message, in bytes
	ended    bool // by End; guarded by pipe.sending
	taken    int  // bytes counted for decompressed messages; the receiver's

	sent, sentBytes, received, receivedBytes atomic.Int64
}

// Accept implements messageStream. It does nothing, because other protocols have their own flow
// control.
func (st *foreignStream) Accept() {}

// Send implements messageStream.
func (st *foreignStream) Send(ctx context.Context, flags wire.Flags, body []byte) error {
	if st.ended {
		return mux.ErrSendEnded
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := st.messages.Send(ctx, body, flags&wire.Compressed != 0); err != nil {
		return err
	}
	st.sent.Add(1)
	st.sentBytes.Add(int64(len(body)))
	return nil
}

// Receive implements messageStream.
func (st *foreignStream) Receive(ctx context.Context) (body []byte, flags wire.Flags, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	body, compressed, err := st.messages.Receive(ctx)
	if err != nil {
		return nil, 0, err
	}
	if len(body) > st.most {
		return nil, 0, &mux.TooLargeError{Size: uint64(len(body)), Limit: st.most}
	}
	st.received.Add(1)
	st.receivedBytes.Add(int64(len(body)))
	if compressed {
		flags = wire.Compressed
	}
	return body, flags, nil
}

// End implements messageStream.
func (st *foreignStream) End() {
	if !st.ended {
		st.ended = true
		st.messages.End()
	}
}

// Take implements account.
func (st *foreignStream) Take(n int) bool {
	if !st.memory.Take(n) {
		return false
	}
	st.taken += n
	return true
}

// Give implements account.
func (st *foreignStream) Give(n int) {
	st.taken -= n
	st.memory.Give(n)
}

// Buffered implements messageStream.
func (st *foreignStream) Buffered() int { return 0 }

// Traffic implements messageStream.
func (st *foreignStream) Traffic() mux.Traffic {
	return mux.Traffic{
		Sent: int(st.sent.Load()), SentBytes: int(st.sentBytes.Load()),
		Received: int(st.received.Load()), ReceivedBytes: int(st.receivedBytes.Load()),
	}
}

// Kind returns the kind of the method that the caller expects: "unary", "feed", "upload" or
// "duplex". On the server it is the kind of the method, or "" if there is none of this name.
func (c *Call) Kind() string {
	switch {
	case c.in == nil:
		return kindName(c.kind())
	case c.in.method == nil:
		return ""
	}
	return kindName(c.in.method.kind)
}

// Converse runs the caller's function of a call with a stream. The Do of a Link calls it, once for
// each attempt. Before that it sends the request of a feed. M carries the messages: its Receive
// returns io.EOF when the server has ended the stream, and its Send when the server accepts no more
// messages. Converse calls End when the caller sends no more messages. It returns nil when the
// server has ended the stream, or in an upload when all messages were sent. Do then returns the
// outcome, which in an upload begins with the reply for TakeReply. If Converse returns an error, Do
// ends the stream and returns that error.
func (c *Call) Converse(ctx context.Context, m Messages) error {
	s, q := c.stream, c.out.from
	b := q.binding(c)
	if s.begun {
		return failure("YDL2007", "%s: a call with a stream cannot be made again once its messages have begun", c.Method)
	}
	st := &foreignStream{messages: m, memory: q.memory, most: q.limits.MaxMessage}
	defer func() {
		st.Give(st.taken)
		s.traffic = st.Traffic()
	}()
	p := q.pipe(ctx, c, b, st)
	if s.kind == wire.Feed {
		p.begun, p.opened = &s.begun, &c.out.arrived
	} else {
		s.begun = true
	}
	err := s.run(p)
	switch {
	case errors.Is(err, io.EOF): // the outcome has the reason
		return nil
	case err != nil:
		return err
	case s.kind == wire.Upload:
		p.end()
		return nil
	}
	return p.rest(s.kind)
}

// run runs the caller's function.
func (s *outgoingStream) run(p *pipe) error {
	if s.met = s.body(p); s.met != nil && s.kind != wire.Feed {
		s.met = &bodyError{s.met}
	}
	return s.met
}

// outcome returns the error of an attempt, of which err is the outcome for the connection.
func (s *outgoingStream) outcome(call *Call, err error) error {
	if err == nil && s.met != nil && !errors.Is(s.met, io.EOF) { // the error did not come from the server
		err = s.met
	}
	if s.left = s.met == errLeft; s.left { //nolint:errorlint // it is not wrapped
		return nil
	}
	if own, ok := err.(*bodyError); ok { //nolint:errorlint // it is not wrapped
		e := failure("YDL1006", "%s: the caller's own function ended it: %v", call.Method, own.error)
		e.Cause = own
		return e
	}
	return err
}

// pipe returns the pipe of a call with a stream.
func (q *requester) pipe(ctx context.Context, call *Call, b *binding, st messageStream) *pipe {
	where := addrOf(call)
	return &pipe{
		stream: st, ctx: ctx, method: call.Method, where: where, codec: b.codec, raw: b.codec == Raw, pack: b.pack, limits: &q.limits,
		explain: func(err error) error { return q.explainAt(ctx, call, where, err) },
		watch:   call.watchMessages(q.guard, call.out.messageWatchers()),
	}
}

// AppendArgs appends the encoded arguments to dst, for the Do of a Link. It compresses them with
// the compressor of Compressing if they are large enough. Compressed reports whether it did.
func (c *Call) AppendArgs(dst []byte) (args []byte, compressed bool, err error) {
	b := c.out.from.binding(c)
	body, err := appendBody(nil, b.codec, c.Args)
	if err != nil {
		return dst, false, c.unencoded(b.codec, err)
	}
	packs := b.pack.Compressor != nil && (len(body) >= b.pack.above || b.pack.above == 1) // also if the result is not smaller, as other protocols do
	if packs {
		if body, err = b.pack.Append(nil, body); err != nil {
			return dst, false, refusal("YDL2103", "%s: %v", c.Method, err)
		}
	}
	if n, limit := len(body), c.out.from.limits.MaxMessage; n > limit {
		return dst, false, refusal("YDL2201", "%s: the request has %d bytes, this %s's limit is %d", c.Method, n, c.out.from.side, limit)
	}
	return append(dst, body...), packs, nil
}

// TakeReply decodes the reply of the call, for the Do of a Link. Body must be in the codec of
// Encoding, and compressed with the compressor of Compressing if compressed is set.
func (c *Call) TakeReply(body []byte, compressed bool) error {
	if compressed {
		q := c.out.from
		var err error
		if body, err = q.unpackReply(c, q.binding(c).pack, nil, body); err != nil {
			return err
		}
		defer q.memory.Give(len(body))
	}
	return c.takeEncoded(&Encoded{Body: body})
}

// takeEncoded decodes e into the reply of the call. If Reply is an *Encoded, it becomes a copy of
// e. A nil Reply discards e.
func (c *Call) takeEncoded(e *Encoded) error {
	if c.Reply == nil {
		return nil
	}
	if to, ok := c.Reply.(*Encoded); ok {
		to.Body, to.Several = append(to.Body[:0], e.Body...), e.Several
		return nil
	}
	codec := c.Encoding()
	if codec == nil {
		return c.nobody()
	}
	var err error
	if several(c.Reply) == e.Several {
		err = decodeBody(e.Body, codec, c.Reply)
	} else {
		err = fmt.Errorf("it is of several values: %v", e.Several)
	}
	if err != nil {
		wrong := failure("YDL2102", "%s: the reply from %s does not fit %T: %v (codec %s)", c.Method, addrOf(c), c.Reply, err, codec.Name())
		wrong.Cause = err
		return wrong
	}
	return nil
}
