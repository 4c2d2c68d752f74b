// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"fmt"
	"maps"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is for middleware that answers calls itself, from a cache or with a fallback, or makes
// calls beside the one that it has.

// Streams reports whether the call is one of a Feed, an Upload or a Duplex.
func (c *Call) Streams() bool {
	if c.in != nil {
		return c.in.as.kind != wire.Unary
	}
	return c.kind() != wire.Unary
}

// Encoding returns the codec of the call's messages: its own, or else that of whoever carries it
// out. It is nil when nobody does.
func (c *Call) Encoding() Codec {
	if c.Codec == nil && c.out != nil {
		return c.out.from.codec
	}
	return c.Codec
}

// Request encodes the arguments into e, in place of what it has, and leaves the call as it is. On
// the server it copies what came, also before it was decoded, and fails if no such call can
// succeed. Two requests with the same method, codec and bytes are the same.
func (c *Call) Request(e *Encoded) error {
	if c.in != nil {
		return c.in.request(e)
	}
	codec := c.Encoding()
	if codec == nil {
		return c.nobody()
	}
	body, err := appendBody(e.Body[:0], codec, c.Args)
	if err != nil {
		return c.unencoded(codec, err)
	}
	e.Body, e.Several = body, several(c.Args)
	return nil
}

func (c *serverCall) request(e *Encoded) error {
	body, err := c.call.Body()
	if err != nil {
		return err
	}
	e.Body, e.Several = append(e.Body[:0], body...), c.as.positional
	return nil
}

// Answer makes e, which is in the codec of the call, the call's reply: on the client it is decoded
// into Reply, which shares no memory with it, and on the server it is sent, and must not be changed
// any more. A stream cannot be answered.
func (c *Call) Answer(e *Encoded) error {
	if c.Streams() {
		return Errorf(Internal, "%s: a stream has no reply that something else could stand for", c.Method)
	}
	if c.in != nil {
		if want := c.in.as.positional; want != e.Several {
			return failure("YDL2104", "%s: the reply is of several values: %v; that of the method: %v", c.Method, e.Several, want)
		}
		c.Reply = e
		return nil
	}
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
		wrong := failure("YDL2102", "%s: the reply does not fit %T: %v (codec %s)", c.Method, c.Reply, err, codec.Name())
		wrong.Cause = err
		return wrong
	}
	return nil
}

// Apart returns a call for the same as c, for middleware of a client, to go down the same chain on
// another goroutine. Unlike a Fork it may go on when c has ended, so it has no deadline, and shares
// no memory with c but what Args points to: put an *Encoded there. Its Reply is to be set. It takes
// along what c has of a budget. End ends it. It returns nil for a call that is one-way, ordered, or
// has a stream.
func (c *Call) Apart() *Call {
	if c.out == nil || c.out.client == nil || c.OneWay || c.turn != nil || c.Streams() {
		return nil
	}
	o := c.out.client.take()
	a := &o.call
	a.out = o
	a.Method, a.Args, a.Metadata, a.Attachment = c.Method, c.Args, maps.Clone(c.Metadata), slices.Clone(c.Attachment)
	a.Codec, a.Compressor, a.Key, a.IdempotencyKey, a.Idempotent, a.NoWait = c.Codec, c.Compressor, c.Key, c.IdempotencyKey, c.Idempotent, c.NoWait
	a.Criticality, a.Tenant = c.Criticality, c.Tenant
	a.Resume(c)
	a.hold = a.resumed
	if b := c.tokens(); b == &c.out.budget { // which is used again when c has ended
		a.Budget = 1 + int(b.spare.Swap(0))
	} else if b != nil {
		a.budget = b
	}
	if c.pinned() {
		a.Endpoint = c.Endpoint
	}
	return a
}

// End ends a call that Apart made. It must not be used afterwards.
func (c *Call) End() { c.out.client.give(c.out) }
