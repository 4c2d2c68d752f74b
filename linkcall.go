// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"io"

	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file contains the methods of a Call for the Do of a Link.

// Kind returns the kind of the method that the caller expects: "unary", "feed", "upload" or
// "duplex". On the server it is the kind of the method, or "" if there is none of this name.
func (c *Call) Kind() string {
	switch {
	case c.in == nil:
		return kinds.Name(c.kind())
	case c.in.method == nil:
		return ""
	}
	return kinds.Name(c.in.method.kind)
}

// AppendArgs appends the encoded arguments to dst, for the Do of a Link. It compresses them with
// the compressor of Compressing if they have ClientOptions.CompressAbove bytes or more, also if
// that makes them larger, as clients of other protocols do. It does not compress arguments that a
// server with the client's Limits.MaxDecompressed would refuse after decompression. If
// CompressAbove is 1, it compresses empty arguments too. Compressed reports whether it compressed
// them.
func (c *Call) AppendArgs(dst []byte) (args []byte, compressed bool, err error) {
	b := c.out.from.binding(c)
	if err := unsendable(c, b, b.codec); err != nil {
		return dst, false, err
	}
	body, err := appendBody(nil, b.codec, c.Args)
	if err != nil {
		return dst, false, c.unencoded(b.codec, err)
	}
	packs := b.pack.Compressor != nil && (len(body) >= b.pack.Above || b.pack.Above == 1)
	if packs {
		packed, err := b.pack.Append(nil, body)
		if err != nil {
			return dst, false, refusal("YDL2103", "%s: %v", c.Method, err)
		}
		if packs = b.pack.Fits(body, packed); packs {
			body = packed
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
		q, ctx := c.out.from, c.out.readExtra().linked
		if ctx == nil { // the code outside of Link.Do
			ctx = context.Background()
		}
		var err error
		if body, err = q.unpackReply(ctx, c, &q.binding(c).pack, nil, body); err != nil {
			return err
		}
		defer q.memory.Give(len(body))
	}
	return c.takeEncoded(&Encoded{Body: body})
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
	if err := s.run(p); err != nil && !errors.Is(err, io.EOF) { // after io.EOF the outcome has the reason
		return err
	}
	if s.kind == wire.Upload {
		p.end()
		return nil
	}
	return p.rest(s.kind)
}
