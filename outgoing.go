// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// An outgoing is a call as the client works on it. It is reused: what users can see of it, the
// Call of Client.Call and Method.Call, is documented not to be kept, and under the race detector is not
// reused, so that the race is seen.
type outgoing struct {
	call    Call     // of Client.Call
	binding *binding // set when the request has been encoded
	req     mux.Out  // the request, encoded once for all attempts
	body    []byte   // memory
	packed  []byte
	md      []byte
	unpack  []byte

	// Of asynchronous calls.
	client *Client
	ctx    context.Context //nolint:containedctx // it belongs to the call, which waits in the connection
	async  *Call
	done   func(error)
	began  time.Duration // of the first attempt, since the client was made
}

// keepScratch is the largest scratch memory that is kept for another call.
const keepScratch = 64 << 10

// reset readies o for another call, and reports whether it may be used for one.
func (o *outgoing) reset() bool {
	if poison {
		o.call = Call{Method: "a Call was used after its call had ended"}
		return false
	}
	if o.async == nil {
		o.call = Call{}
	}
	if o.req.Fields.Timeout != 0 || !o.req.Fields.OnlyTimeout() {
		o.req.Fields = wire.Fields{}
	}
	o.req.Body, o.req.Attachment, o.req.Compressed, o.req.OneWay = nil, nil, false, false
	o.binding, o.client, o.ctx, o.async, o.done = nil, nil, nil, nil, nil
	return cap(o.body) <= keepScratch && cap(o.packed) <= keepScratch && cap(o.unpack) <= keepScratch
}

// encode makes the request of call, once.
func (c *Client) encode(o *outgoing, call *Call) error {
	if o.binding != nil {
		return nil
	}
	b := c.binding(call)
	if _, several := call.Reply.(Values); call.Reply != nil && several != b.Positional {
		return refusal("YDL2005", "%s: arguments and reply are both yodel.Values, or neither is", call.Method)
	}
	body, err := appendBody(o.body[:0], b.codec, call.Args)
	if err != nil {
		e := refusal("YDL2103", "%s: %v (codec %s)", call.Method, err, b.codec.Name())
		e.Cause = err
		return e
	}
	o.body = body
	req := &o.req
	req.Method, req.Body, req.Attachment, req.NoWait, req.Checksum = &b.Method, body, call.Attachment, c.opts.NoWait, c.opts.Checksum
	var ok bool
	if o.packed, ok, err = b.pack.pack(o.packed, body); err != nil {
		return refusal("YDL2103", "%s: %v", call.Method, err)
	} else if ok {
		req.Body, req.Compressed = o.packed, true
	}
	if n := len(req.Body) + len(req.Attachment); n > c.limits.MaxMessage {
		return refusal("YDL2201", "%s: the request has %d bytes, this client's limit is %d", call.Method, n, c.limits.MaxMessage)
	}
	o.binding = b
	return nil
}

// encodeFields makes what travels beside the body. Endpoint middleware may change it for each attempt.
func (c *Client) encodeFields(o *outgoing, call *Call) error {
	f := &o.req.Fields
	f.Attempt = uint64(call.Attempt)
	f.Metadata, f.IdempotencyKey, f.Key = nil, nil, nil
	if call.Metadata != nil {
		o.md = appendMetadata(o.md[:0], call.Metadata)
		f.Metadata = o.md
	}
	if call.IdempotencyKey != "" {
		f.IdempotencyKey = []byte(call.IdempotencyKey)
	}
	if call.Key != "" {
		f.Key = []byte(call.Key)
	}
	if n := len(f.Metadata) + len(f.IdempotencyKey) + len(f.Key); n > c.limits.MaxMetadata {
		return refusal("YDL2203", "%s: the metadata has %d bytes, the limit is %d", call.Method, n, c.limits.MaxMetadata)
	}
	return nil
}

// prepare readies the request for the next attempt.
func (c *Client) prepare(ctx context.Context, o *outgoing, call *Call) error {
	if ctx.Err() != nil {
		return &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	if err := c.encode(o, call); err != nil {
		return err
	}
	if err := c.encodeFields(o, call); err != nil {
		return err
	}
	o.req.Deadline = earliest(ctx, call.Deadline)
	call.Attempt++
	call.Trailer, call.ReplyAttachment = nil, nil
	return nil
}

// attempt makes one attempt of call on conn.
func (c *Client) attempt(ctx context.Context, call *Call, conn *mux.Conn) error {
	o := call.out
	if err := c.prepare(ctx, o, call); err != nil {
		return err
	}
	if call.OneWay {
		return conn.Notify(ctx, &o.req)
	}
	a, err := conn.Call(ctx, &o.req)
	if err != nil {
		return err
	}
	err = c.decode(o, call, a)
	a.Release()
	return err
}

// earliest returns the earlier one of two deadlines; zero is never.
func earliest(ctx context.Context, deadline time.Time) time.Time {
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		return d
	}
	return deadline
}

// decode takes the answer over into call. Nothing in call aliases it afterwards.
func (c *Client) decode(o *outgoing, call *Call, a *mux.Answer) error {
	var f wire.Fields
	if len(a.Fields) > 0 {
		if err := wire.ParseFields(a.Fields, &f); err != nil {
			return &mux.BrokenError{Cause: err}
		}
		md, err := parseMetadata(f.Metadata)
		if err != nil {
			return &mux.BrokenError{Cause: err}
		}
		call.Trailer = md
	}
	if a.Attachment != nil {
		call.ReplyAttachment = append([]byte{}, a.Attachment...)
	}
	if a.Code != 0 {
		return remoteError(call, a, &f)
	}
	if call.Reply == nil {
		return nil
	}
	body := a.Body
	if a.Flags&wire.Compressed != 0 {
		var err error
		if body, err = c.decompress(o, call, body); err != nil {
			return err
		}
	}
	if err := decodeBody(body, o.binding.codec, call.Reply); err != nil {
		e := failure("YDL2102", "%s: the reply from %s does not fit %T: %v (codec %s)", call.Method, addrOf(call), call.Reply, err, o.binding.codec.Name())
		e.Cause = err
		return e
	}
	return nil
}

func addrOf(call *Call) string {
	if call.Endpoint == nil {
		return "the server"
	}
	return call.Endpoint.Addr()
}

// remoteError is the error that the server answered with. Yodel's own say where they come from; those of handlers
// are left as they are.
func remoteError(call *Call, a *mux.Answer, f *wire.Fields) *Error {
	e := &Error{
		Code: Code(min(a.Code, 255)), Message: string(f.Message), ID: string(f.ErrorID),
		Details: append([]byte(nil), f.Details...), NotProcessed: a.Flags&wire.NotProcessed != 0,
	}
	if e.ID != "" && call.Endpoint != nil {
		e.Message = fmt.Sprintf("%s: %s: %s", call.Method, call.Endpoint.Addr(), strings.TrimPrefix(e.Message, call.Method+": "))
	}
	return e
}

func (c *Client) decompress(o *outgoing, call *Call, body []byte) ([]byte, error) {
	pack := o.binding.pack
	if pack.Compressor == nil {
		return nil, &mux.BrokenError{Cause: errors.New("it is compressed, which was not agreed")}
	}
	body, err := pack.Decompress(o.unpack[:0], body, c.limits.MaxDecompressed)
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, failure("YDL2204", "%s: the reply from %s has more than %d bytes after decompression (%s)", call.Method, addrOf(call), c.limits.MaxDecompressed, pack.Name())
	case err != nil:
		return nil, &mux.BrokenError{Cause: fmt.Errorf("decompress with %s: %w", pack.Name(), err)}
	}
	o.unpack = body
	return body, nil
}

// start makes the first attempt of an asynchronous call without a goroutine, if it can.
func (c *Client) start(o *outgoing) {
	call := o.async
	ep, err := c.cluster.pick(o.ctx, call, false)
	if err == nil {
		if conn := ep.ready(); conn != nil {
			call.Endpoint, call.picked = ep, ep
			c.startOn(o, ep, conn)
			return
		}
	}
	select {
	case c.async <- struct{}{}:
	case <-o.ctx.Done():
		o.finish(c.explain(o.ctx, call, nil, &mux.CallError{Cause: context.Cause(o.ctx), NotProcessed: true}))
		return
	}
	go func() {
		c.resume(o, nil)
		<-c.async
	}()
}

func (c *Client) startOn(o *outgoing, ep *Endpoint, conn *mux.Conn) {
	call := o.async
	o.began = time.Since(c.started)
	if err := c.prepare(o.ctx, o, call); err != nil {
		o.finish(c.explain(o.ctx, call, ep, err))
		return
	}
	if call.OneWay {
		o.ended(conn.Notify(o.ctx, &o.req))
		return
	}
	ep.inflight.Add(1)
	if err := conn.Start(o.ctx, &o.req, o); err != nil {
		ep.failed(conn)
		o.Complete(nil, err)
	}
}

// Complete implements mux.Completer.
func (o *outgoing) Complete(a *mux.Answer, err error) {
	o.async.Endpoint.inflight.Add(-1)
	if err == nil {
		err = o.client.decode(o, o.async, a)
	}
	o.ended(err)
}

// ended ends an asynchronous attempt. One that failed without having been executed goes on as a
// synchronous call would.
func (o *outgoing) ended(err error) {
	if err == nil {
		o.finish(nil)
		return
	}
	go o.client.resume(o, err)
}

// resume goes on with an asynchronous call as a synchronous one, after its first attempt failed or
// could not be made at once.
func (c *Client) resume(o *outgoing, failed error) {
	o.finish(c.balanceAfter(o.ctx, o.async, failed))
}

// finish tells the caller, and gives o back.
func (o *outgoing) finish(err error) {
	c, ctx, call, done := o.client, o.ctx, o.async, o.done
	call.end()
	c.give(o)
	endAll(ctx, c.opts.Observers, call, err)
	if done != nil {
		done(err)
	}
}

// observe puts observers around a handler.
func observe(observers []Observer, next Handler) Handler {
	if len(observers) == 0 {
		return next
	}
	return func(ctx context.Context, call *Call) error {
		ctx = startAll(ctx, observers, call)
		err := next(ctx, call)
		endAll(ctx, observers, call, err)
		return err
	}
}
