// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/async"
	"github.com/yodel-rpc/yodel/internal/body"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/reply"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file makes attempts, for clients and for peers. In an attempt, the request of a call is sent
// once on one connection: begin prepares the request, send sends it, and land ends the attempt. The
// kinds of calls differ only in where they wait for the answer. A synchronous call and a stream
// wait in send. An asynchronous or ordered call gives send a Completer, which passes the answer on
// to land. A one-way call has no answer. The file also encodes requests and decodes replies.

// attempt makes one attempt of call on a connection of ep, and waits for its end.
func (q *requester) attempt(ctx context.Context, call *Call, conn *dialled.Conn, ep *Endpoint) error {
	if conn.Foreign != nil {
		return q.client.attemptLink(ctx, call, conn, ep)
	}
	conn, err := q.begin(ctx, call, conn, ep)
	if err != nil {
		return err
	}
	return q.send(ctx, call, conn.Mux, ep, nil)
}

// begin prepares the request for the next attempt, normally on conn. It returns the connection to
// use: conn, or another connection of ep if only the other one leads to a server that remembers the
// call's idempotency key. If begin succeeds, the caller must call send. Conn and ep are nil for a
// call to a peer.
func (q *requester) begin(ctx context.Context, call *Call, conn *dialled.Conn, ep *Endpoint) (*dialled.Conn, error) {
	o := call.out
	if ctx.Err() != nil {
		return nil, &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	if err := q.encode(o, call); err != nil {
		return nil, err
	}
	if err := q.encodeFields(o, call); err != nil {
		return nil, err
	}
	if call.IdempotencyKey != "" {
		var err error
		if conn, err = o.claimKey(call, ep, conn); err != nil {
			return nil, err
		}
	}
	o.req.Deadline, o.req.NoWait = expiry.Earliest(ctx, call.Deadline), q.noWait || call.NoWait
	call.Attempt++
	if call.Budget > 0 || call.budget != nil || call.group != nil || call.Trailer != nil || call.ReplyAttachment != nil || call.rare != nil {
		o.renew(call)
	}
	return conn, nil
}

// renew lends tokens to a new attempt, and resets the fields of the call that the previous attempt
// has set.
func (o *outgoing) renew(c *Call) {
	if (c.Budget > 0 || c.budget != nil) && o.binding != nil { // otherwise a Wire sends the call
		o.lend(c)
	}
	if g := c.group; g != nil && g.like != nil && c.Reply == nil {
		c.Reply = reply.New(g.like)
	}
	if c.Trailer != nil || c.ReplyAttachment != nil {
		c.Trailer, c.ReplyAttachment = nil, nil
	}
	if c.rare != nil {
		c.rare.header = nil
	}
}

// send sends a request that begin has prepared. If later is nil, send waits for the end of the
// attempt. Otherwise send returns when the request is in the output, and later gets the answer. If
// send returns an error, later gets no answer. The attempt counts as in flight only while no user
// code runs that may panic, such as a codec.
func (q *requester) send(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) error {
	switch {
	case call.OneWay || call.stream != nil:
		return q.sendOther(ctx, call, conn, ep, later)
	case later != nil:
		return q.sendLater(ctx, call, conn, ep, later)
	}
	at := ep.started()
	a, err := conn.Call(ctx, &call.out.req, ep.starts())
	err = q.land(ctx, call, ep, at, a, err)
	if a != nil {
		a.Release()
	}
	return err
}

// sendLater is send for a call whose answer goes to later. When sendLater has succeeded, the call
// may already have ended and be in use again.
func (q *requester) sendLater(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) error {
	err := conn.Start(ctx, &call.out.req, later, ep.starts())
	if err != nil {
		q.unstarted(ctx, call, ep, err)
	}
	return err
}

// unstarted ends an attempt that could not be sent.
func (q *requester) unstarted(ctx context.Context, call *Call, ep *Endpoint, err error) {
	if ep.ended(); ep != nil && ep.learned() {
		ep.learn(ctx, call, 0, nil, err)
	}
	q.endAttempt(ctx, call, ep, call.out.binding, err)
}

// endAttempt records how an attempt on ep has ended. Ep is nil for a peer. A canceled attempt did
// not fail.
func (q *requester) endAttempt(ctx context.Context, call *Call, ep *Endpoint, b *binding, err error) {
	if err != nil && ep != nil {
		if CodeOf(err) != Canceled {
			ep.failed.Add(1)
		}
		unclaimKey(call, err)
	}
	if ep != nil && ep.client.server.Load() != nil { // handlers of a server with live data use the client
		call.out.count(ctx, call, ep.counter(b), err)
	}
	if q.watches {
		q.watchAttempt(ctx, call, err)
	}
}

// sendOther is send for a one-way call or a stream.
func (q *requester) sendOther(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) (err error) {
	at, streams := ep.begun(), call.stream != nil
	err = errGone
	defer func() { // also if the caller's stream function panics
		ep.ended()
		if at != 0 && streams {
			ep.learn(ctx, call, 0, nil, err)
		}
		q.endAttempt(ctx, call, ep, call.out.binding, err)
	}()
	switch {
	case streams:
		err = q.converse(ctx, call, conn)
	case later != nil:
		err = conn.Follow(ctx, &call.out.req, later)
	default:
		err = conn.Notify(ctx, &call.out.req)
	}
	return err
}

// land ends an attempt with the answer to it, or with the error of the connection. It returns the
// error of the attempt. At is the reading of the clock when the attempt began, or 0 if there is no
// Learner.
func (q *requester) land(ctx context.Context, call *Call, ep *Endpoint, at time.Duration, a *mux.Answer, err error) error {
	ep.ended()
	if at != 0 {
		ep.learn(ctx, call, at, a, err)
	}
	if err == nil {
		err = q.decode(ctx, call.out, call, a)
	}
	q.endAttempt(ctx, call, ep, call.out.binding, err)
	return err
}

// converse makes one attempt of a call with a stream, on conn.
func (q *requester) converse(ctx context.Context, call *Call, conn *mux.Conn) error {
	o, s := call.out, call.stream
	if err := s.Again(call.Method); err != nil {
		return errorOf(err)
	}
	st := mux.NewStream()
	o.req.Stream = st
	err := conn.Start(ctx, &o.req, o.lender(ctx, call, st))
	o.req.Stream = nil
	if err != nil {
		return err
	}
	a, err := s.Native(ctx, st, q.pipe(ctx, call, o.binding, st), &o.arrived, errGone)
	if err == nil {
		opened := o.arrived
		if err = q.decode(ctx, o, call, a); opened != 0 {
			o.arrived = opened
		} else if o.arrived == 0 {
			o.arrived = clock()
		}
	}
	return errorOf(s.Outcome(call.Method, err))
}

// pipe returns the pipe of a call with a stream. It reads nothing of the call later, because the
// caller may send and receive after the call has ended.
func (q *requester) pipe(ctx context.Context, call *Call, b *binding, st pipe.Stream) *pipe.Pipe {
	to, part := &call.stream.to, partOf(call)
	to.set(call)
	p := &pipe.Pipe{
		Stream: st, Context: ctx, Method: part.Method, Where: to, Each: call.rare.checks(), Torn: "YDL2205", Unfit: "YDL2102", Codec: b.Format.Codec, Raw: b.Format.Raw(), Pack: &b.Format.Pack, MaxMessage: q.limits.MaxMessage,
		Fail: func(err error) error {
			switch err := err.(type) { //nolint:errorlint // they are passed bare
			case *fault.Fault:
				return errorOf(err)
			case finalError: // carry got it
				return err.error
			}
			return q.explainPart(ctx, part, to.String(), unsentByLink(err))
		},
	}
	if w := call.out.watchers().messages; len(w) > 0 {
		p.Watch = &messageWatch{w, q.guard, call}
	}
	if s := call.stream; s.Kind == wire.Feed {
		p.Begun, p.Opened = &s.Begun, &call.out.arrived
	}
	return p
}

// attemptLink makes one attempt of a call on a link.
func (c *Client) attemptLink(ctx context.Context, call *Call, d *dialled.Conn, ep *Endpoint) error {
	o, l, ctx := call.out, ownerOf(d), isolate.Context(ctx)
	if ctx.Err() != nil {
		return &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	b := c.binding(call)
	if b == nil {
		return tooLongName(call)
	}
	if err := unsendable(call, b, l.codec(call)); err != nil {
		return err
	}
	if call.IdempotencyKey != "" {
		if _, err := o.claimKey(call, ep, d); err != nil {
			return err
		}
	}
	call.Attempt++
	o.renew(call)
	if o.readExtra().lent > 0 { // replies of this protocol do not return tokens
		o.repay(call, 0)
	}
	if own, ok := ctx.Deadline(); !call.Deadline.IsZero() && (!ok || call.Deadline.Before(own)) { // otherwise ctx ends with its cause
		limited, cancel := context.WithDeadline(ctx, call.Deadline)
		defer cancel()
		ctx = limited
	}
	at := ep.begun()
	d.Foreign.Open.Add(1)
	err := error(errGone) // remains if Do does not return
	defer func() {
		d.Foreign.Open.Add(-1)
		if ep.ended(); at != 0 {
			ep.learn(ctx, call, at, nil, err)
		}
		c.endAttempt(ctx, call, ep, b, err)
	}()
	s := call.stream
	if s != nil {
		at = 0
	}
	if call.Compressing() != nil {
		o.useExtra().linked = ctx
	}
	err = l.failure(ctx, d, unsentByLink(l.link.Do(ctx, call)))
	if s != nil && !s.Rewind(err, reason.Unsent(err) || NotProcessed(err)) {
		err = errorOf(s.Outcome(call.Method, err))
	}
	o.arrived = clock()
	if e, ok := errors.AsType[*Error](err); err == nil || ok && !e.NotProcessed {
		d.Foreign.Replied.Store(true)
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapper is the Link's
		relayed := *e
		relayed.relayed = true
		err = &relayed
	}
	return err
}

// linkContext returns the context of the Link.Do that makes an attempt of a call, or the background
// context in another function.
func linkContext(call *Call) context.Context {
	if ctx := call.out.readExtra().linked; ctx != nil {
		return ctx
	}
	return context.Background()
}

// A requester turns calls into requests and decodes their replies, on connections that it is given.
// A client has one for all its endpoints, and a server has one for all its peers. The handle of a
// binding is the same on all these connections.
type requester struct {
	codec         Codec               // for calls without a codec of their own
	compressor    compress.Compressor // for calls without a compressor of their own; nil means none
	compressAbove int
	noWait        bool
	checksum      bool
	limits        Limits // with defaults
	guard         *guard.Guard
	memory        *memory.Limit
	unpacking     unpack.Gate
	side          string // "client" or "server", for messages
	reasons       reason.Side
	slowAfter     time.Duration
	samples       *samples.Sampler // records of its calls

	bodies   body.Side
	called   methods.Called[format]
	outgoing sync.Pool // of *outgoing

	client *Client // nil on a server
	// proceed makes the further attempts of a client's call whose first attempt failed with an
	// error. With a nil error it makes the first attempt.
	proceed  func(ctx context.Context, call *Call, failed error) error
	watchers watchers
	counts   *diagnose.MethodCounts // nil without ClientOptions.CountCalls
	peers    peerPath
	async    async.Tokens
	states   states

	repeated metadata.Cache

	watches bool // an observer of calls to endpoints or to peers has Attempt
}

// The sides.
const (
	clientSide = "client"
	serverSide = "server"
)

// setUp initializes a requester after its settings have been set.
func (q *requester) setUp(idempotent []string) {
	q.called.SetUp(idempotent)
	q.bodies = body.Side{Name: "this " + q.side, MaxMessage: q.limits.MaxMessage}
	q.async = async.New(q.limits.MaxOpen, q.guard, func(ctx context.Context) bool { return CallFrom(ctx) != nil })
	q.reasons = reason.Side{Name: q.side, Serves: q.side == serverSide, MaxUnsent: q.limits.MaxUnsent}
	q.outgoing.New = func() any { return &outgoing{from: q, req: mux.Out{Bare: true}} }
}

// A binding is a method with a codec and a compressor.
type binding = methods.Binding[format]

// A format is how bodies are encoded and compressed.
type format = body.Format[Values, Encoded]

// several reports whether a message belongs to a method with several arguments or results.
func several(message any) bool { return body.Several[Values, Encoded](message) }

// take returns an outgoing for one call.
func (q *requester) take() *outgoing { return q.outgoing.Get().(*outgoing) } //nolint:forcetypeassert // the pool holds nothing else

// give returns o to the pool.
func (q *requester) give(o *outgoing) {
	if o.reset() {
		q.outgoing.Put(o)
	}
}

// binding returns the binding of a call, or nil if a name is too long to be sent.
func (q *requester) binding(call *Call) *binding {
	positional := several(call.Args)
	m := q.called.Last(call.Method)
	if m == nil {
		m = q.called.Find(call.Method)
	}
	if m != nil && call.Codec == nil && call.Compressor == nil {
		if b := m.Usual(positional, call.kind()); b != nil {
			return b
		}
	}
	return q.bindingSlow(call, positional)
}

// bindingSlow finds or makes the binding of a call that differs from the usual calls of its method.
func (q *requester) bindingSlow(call *Call, positional bool) *binding {
	codec, compressor := call.Encoding(), call.Compressing()
	as := mux.Method{Name: call.Method, Codec: codec.Name(), Compressor: nameOf(compressor), Kind: call.kind(), Positional: positional}
	if max(len(as.Name), len(as.Codec), len(as.Compressor)) > wire.MaxName {
		return nil
	}
	return q.called.Bind(as, q.format(codec, compressor), call.Codec == nil && call.Compressor == nil)
}

// kind returns the kind of method that a call is for.
func (c *Call) kind() uint64 {
	if c.stream == nil {
		return wire.Unary
	}
	return c.stream.Kind
}

func nameOf(c compress.Compressor) string {
	if c == nil {
		return ""
	}
	return c.Name()
}

// learned stores what a server says about a method.
func (q *requester) learned(_ *mux.Conn, handle int, generation uint32, info wire.Info) {
	q.called.Learn(handle, generation, info)
}

// encode encodes the request of call, once for all attempts.
func (q *requester) encode(o *outgoing, call *Call) error {
	if o.binding != nil {
		return nil
	}
	b := q.binding(call)
	if b == nil {
		return tooLongName(call)
	}
	if _, whatever := call.Reply.(*Encoded); call.Reply != nil && !whatever && several(call.Reply) != b.Positional {
		return refusal("YDL2005", "%s: arguments and reply are both yodel.Values, or neither is", call.Method)
	}
	if err := unsendable(call, b, nil); err != nil {
		return err
	}
	var encoded []byte
	var f *fault.Fault
	if sendsOne(b.Kind) { // a one-way call may be sent again after Do has returned
		encoded, f = b.Format.Encode(&o.body, call.Method, call.Args, call.OneWay)
	}
	req := &o.req
	if f == nil {
		req.Body, req.Compressed, f = b.Format.Compress(&o.packed, call.Method, encoded, false)
	}
	if f == nil {
		f = q.bodies.Check(call.Method, len(req.Body)+len(call.Attachment))
	}
	if f != nil {
		return faultError(f)
	}
	req.Method, req.Attachment, req.Checksum = &b.Method, call.Attachment, q.checksum
	o.binding = b
	return nil
}

// sendsOne reports whether the request of a call of a kind is one message. A call of another kind
// sends only the messages of its stream.
func sendsOne(kind uint64) bool { return kind == wire.Unary || kind == wire.Feed }

func tooLongName(call *Call) *Error {
	return refusal("YDL2001", "%.40s…: the names of a method, its codec and its compressor have at most %d bytes each", call.Method, wire.MaxName)
}

// unsendable returns an error if the arguments or the reply of a call are unusable. Codec decodes
// the reply. Nil means the codec of b, which is asked only for another type of reply than the last
// one.
func unsendable(call *Call, b *binding, codec Codec) *Error {
	if iface.IsNil(call.Args) && call.Args != nil && sendsOne(b.Kind) {
		if f := b.Format.CheckRequest(call.Method, call.Args); f != nil {
			return faultError(f)
		}
	}
	as, own := iface.TypeOf(call.Reply), codec != nil
	if as == b.Reply.Load() && !own && !iface.IsNil(call.Reply) {
		return nil
	}
	if s := call.stream; s != nil {
		if err := carries.Check(b.Format.Codec, s.sends, s.receives); err != nil {
			return refusal("YDL2103", "%s: %v (codec %s)", call.Method, err, b.Format.Codec.Name())
		}
	}
	with := &b.Format
	if own {
		with = &format{Codec: codec}
	}
	if f := with.CheckReply(call.Method, call.Reply); f != nil {
		return faultError(f)
	}
	if !own && call.stream == nil && !several(call.Reply) {
		b.Reply.Store(as)
	}
	return nil
}

// encodeFields encodes the metadata and the fields. It runs for each attempt, because endpoint
// middleware may change them.
func (q *requester) encodeFields(o *outgoing, call *Call) error {
	req := &o.req
	req.Metadata = nil
	if call.Metadata != nil {
		x := o.useExtra()
		req.Metadata, x.metadata = q.repeated.Encode(x.metadata[:0], call.Metadata)
	}
	if !req.Bare || call.Attempt != 0 || call.IdempotencyKey != "" || call.Key != "" || call.Criticality != 0 || call.Tenant != "" || call.Trace != "" || call.Explain {
		req.Bare = false
		rare := fields.Request{
			Attempt: call.Attempt, Criticality: call.Criticality, Explain: call.Explain,
			IdempotencyKey: call.IdempotencyKey, Key: call.Key, Tenant: call.Tenant, Trace: call.Trace,
		}
		rare.Encode(&req.Fields)
	}
	n := len(req.Metadata) + len(call.IdempotencyKey) + len(call.Key) + len(call.Tenant) + len(call.Trace)
	if err := q.limits.metadata().Check(len(call.Metadata), n); err != nil {
		return refusal("YDL2203", "%s: the metadata %v on this %s", call.Method, err, q.side)
	}
	return nil
}

// decode decodes the answer into call. Afterwards call does not refer to the answer's memory.
func (q *requester) decode(ctx context.Context, o *outgoing, call *Call, a *mux.Answer) error {
	o.arrived, o.received = a.At, uint32(min(len(a.Fields)+len(a.Body)+len(a.Attachment), math.MaxInt32))
	if len(a.Fields) > 0 || a.Code != 0 || a.Attachment != nil || o.readExtra().lent > 0 {
		if err := q.decodeFields(o, call, a); err != nil {
			return err
		}
	}
	if call.Reply == nil {
		return nil
	}
	if _, as := call.Reply.(*Encoded); as || a.Flags&wire.Compressed != 0 || len(a.Body) >= body.Large || o.binding.Positional {
		return q.decodeUnusual(ctx, o, call, a)
	}
	if err := o.binding.Format.Codec.Decode(a.Body, call.Reply); err != nil { // see Format.Decode
		return unfit(call, &o.binding.Format, err)
	}
	return nil
}

// decodeUnusual decodes a body that is not an ordinary small message.
func (q *requester) decodeUnusual(ctx context.Context, o *outgoing, call *Call, a *mux.Answer) error {
	f := &o.binding.Format
	if a.Flags&wire.Compressed == 0 {
		if to := f.Recipient(a.Body, call.Reply); to != nil && a.Keep() {
			*to = slices.Clip(a.Body)
			return nil
		}
		return take(call, f, a.Body, o.binding.Positional)
	}
	x := o.useExtra()
	unpacked, err := q.unpack(ctx, call, f, x.unpacked[:0], a.Body)
	if err != nil {
		return err
	}
	defer q.memory.Give(len(unpacked))
	x.unpacked = unpacked
	return take(call, f, unpacked, o.binding.Positional)
}

// unpack decompresses a reply into memory. The caller must give the bytes of the result back to
// q.memory.
func (q *requester) unpack(ctx context.Context, call *Call, f *format, dst, packed []byte) ([]byte, error) {
	unpacked, err := f.Pack.Unpack(ctx, q.memory, dst, packed)
	switch {
	case err == nil:
		return unpacked, nil
	case err == ctx.Err(): //nolint:errorlint // it is returned bare
		return nil, context.Cause(ctx)
	}
	return nil, errorOf(f.Torn(err, call.Method, "the reply from "+addrOf(call), packed))
}

// take decodes a reply into call. IsSeveral says that it is the encoding of Values.
func take(call *Call, f *format, reply []byte, isSeveral bool) error {
	if err := f.Fill(reply, isSeveral, call.Reply); err != nil {
		return unfit(call, f, err)
	}
	return nil
}

// unfit returns the error of a reply that cannot be decoded.
func unfit(call *Call, f *format, err error) *Error {
	return faultError(f.Unfit(call.Method, "the reply from "+addrOf(call), fmt.Sprintf("%T", call.Reply), err))
}

// decodeFields decodes the attachment and the fields of an answer into call. If the answer is an
// error, decodeFields returns that error.
func (q *requester) decodeFields(o *outgoing, call *Call, a *mux.Answer) error {
	if a.Attachment != nil {
		call.ReplyAttachment = append([]byte{}, a.Attachment...)
	}
	var f fields.Answer
	if err := f.Read(a.Fields, q.limits.metadata()); err != nil {
		return &mux.BrokenError{Cause: err}
	}
	if call.Trailer = f.Trailer; f.Head != nil {
		call.SetHeader(f.Head)
	}
	if o.readExtra().lent > 0 {
		o.repay(call, f.Budget)
	}
	if f.ServerTime > 0 {
		o.useExtra().Parts.Server(f.ServerTime, f.ServerWait)
	}
	if f.Load > 0 && call.Endpoint != nil {
		ep := call.Endpoint
		ep.report.Set(f.Load, ep.inflight.Sent(), &ep.core)
	}
	switch {
	case a.Code != 0:
		return remoteError(call, a, &f)
	case f.Excess != "":
		return failure("YDL2203", "%s: the metadata of the reply from %s %s on this %s; the method was executed", call.Method, addrOf(call), f.Excess, q.side)
	}
	return nil
}

// remoteError returns the error in an answer.
func remoteError(call *Call, a *mux.Answer, f *fields.Answer) *Error {
	e := &Error{Code: Code(a.Code), NotProcessed: a.Flags&wire.NotProcessed != 0, relayed: true}
	said := f.Failure(call.Method, func() string { return addrOf(call) }, e.addDetail)
	e.Message, e.ID, e.RetryAfter = said.Message, said.ID, said.RetryAfter
	return e
}

// format returns the format of bodies in a codec and a compressor, which may be nil.
func (q *requester) format(codec Codec, c compress.Compressor) format {
	f := format{Side: &q.bodies, Pack: unpack.Packer{Compressor: c, Above: q.compressAbove, Limits: q.limits.decompressed(), Gate: &q.unpacking}}
	f.Use(codec)
	return f
}
