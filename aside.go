// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"fmt"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file contains the methods for middleware that answers calls itself, from a cache or with a
// fallback, or that makes further calls.

// Streams reports whether the call is a call of a Feed, an Upload or a Duplex. On the server it is
// false if the server has no such method, or if only the method or only the call is for a stream:
// such a call fails without one.
func (c *Call) Streams() bool {
	if c.in != nil {
		return c.in.stream != nil && c.in.method != nil && c.in.method.kind != wire.Unary
	}
	return c.kind() != wire.Unary
}

// Encoding returns the codec of the call's messages: the call's own codec, or otherwise the codec
// of the client or server of the call. It returns nil if there is none of these.
func (c *Call) Encoding() Codec {
	if c.Codec == nil && c.out != nil {
		return c.out.from.codec
	}
	return c.Codec
}

// Compressing returns the compressor of the call's messages: the call's own compressor, or
// otherwise the compressor of the client of the call. It returns nil if there is none of these.
func (c *Call) Compressing() Compressor {
	if c.Compressor == nil && c.out != nil {
		return c.out.from.compressor
	}
	return c.Compressor
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

// Answer makes e the call's reply. E must be encoded in the codec of the call. On the client,
// Answer decodes e into Reply, which shares no memory with e. On the server, e is sent and must not
// be changed afterwards. A stream cannot be answered.
func (c *Call) Answer(e *Encoded) error {
	if c.Streams() || c.in != nil && c.in.stream != nil {
		return Errorf(Internal, "%s: a stream has no reply that something else could stand for", c.Method)
	}
	if c.in != nil {
		if want := c.in.as.positional; want != e.Several {
			return failure("YDL2104", "%s: the reply is of several values: %v; that of the method: %v", c.Method, e.Several, want)
		}
		c.Reply = e
		return nil
	}
	return c.takeEncoded(e)
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

// Detach returns a copy of the call for middleware of a client. The copy goes down the same chain
// on another goroutine. Unlike a Fork, it may continue after the call has ended. It therefore has
// no deadline. It shares no memory with the call except the arguments to which Args points. If the
// caller reuses its arguments, Args must be an *Encoded. The middleware sets the Reply of the copy.
// The copy takes over the rest of the call's own attempt budget. If the call has the budget of a
// handler's call, the copy shares that budget. When the copy has ended, the middleware must call
// Release of the copy's Attempts. Detach returns nil for a call that is one-way, ordered, or has a
// stream.
func (a *Attempts) Detach() *Call {
	c := (*Call)(a)
	if c.out == nil || c.out.from.client == nil || c.OneWay || c.turn != nil || c.Streams() {
		return nil
	}
	o := c.out.from.client.take()
	detached := &o.call
	c.copyFor(forDetached, detached)
	detached.out = o
	return detached
}

// Release ends a call that Detach has returned. The call must not be used afterwards.
func (a *Attempts) Release() { a.out.from.client.give(a.out) }
