// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/grpcstatus"
	"github.com/yodel-rpc/yodel/internal/late"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/reuse"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A serverCall is a call that a server executes, in any protocol. The adapter of the protocol
// embeds it, sets its fields, and calls run, encode, outcome and done in this order.
type serverCall struct {
	call     Call // the Call that middleware sees
	server   *Server
	peer     *Peer
	as       *boundMethod
	method   *method // nil if the server has no such method
	protocol protocolCall
	stream   pipe.Stream // nil for a unary call

	body         []byte      // the received request, valid until done
	compressed   bool        // body is compressed
	plain        bool        // the reply must not be compressed
	executed     bool        // the method itself has begun
	notProcessed bool        // the NotProcessed of outcome
	held         atomic.Bool // user code has the call and may keep it
	owner        reuse.Owner[callRef]

	ctx context.Context //nolint:containedctx // the handler's, with values of observers
	err error

	late    *late.Reply                  // nil unless the handler has called Later
	packed  *[]byte                      // holds the compressed reply
	counted int                          // bytes counted for the decoded request, until done
	view    raw.View                     // the request, for a method that takes a View
	heirs   atomic.Pointer[handlerState] // inherited by the handler's calls; nil before the first

	times   record.Served
	keySent time.Duration // when the caller first sent the key, on this side's clock
}

// A protocolCall is the part of a call that depends on the protocol. An ordinary unary call does
// not use it.
type protocolCall interface {
	unpack.Account
	// Keep reports whether the handler may keep the body because the body has its own memory.
	Keep() bool
	// Draining returns a channel that is closed when the server begins to shut down.
	Draining() <-chan struct{}
	// Expired reports whether the deadline has passed.
	Expired() bool
	// Cause returns why the caller's side ended the call, or nil if it did not.
	Cause() error
	// Fresh reports whether the request was read just now, so that the last reading of the clock is
	// still valid.
	Fresh() bool
	// later lets the method return before there is a reply, and finish replies with late.
	later()
	finish()
	// learned is called when the method has other traits than as.Told.
	learned(traits uint32)
	// sizes returns the sizes of the request and the reply in bytes.
	sizes() (in, out int)
}

// A boundMethod is a method name with the codec and the compressor that one connection uses for it.
type boundMethod struct {
	registered.Bound
	server  *Server
	format  format
	asked   string        // the name as the caller says it
	caller  string        // the name of the caller, or ""
	counter *live.Counter // see count
	chosen  sync.Once
}

// check returns why a call of m cannot succeed, whatever its body is.
func (b *boundMethod) check(m *method) *Error {
	if b.Fits(m) {
		return nil
	}
	return faultError(b.Check(m, func() string { return b.format.Codec.Name() }))
}

// run executes the call with the handler's context. If early is not nil, the call fails with it
// before it begins. A panic becomes an error.
func (c *serverCall) run(ctx context.Context, early *Error) {
	c.ctx = ctx
	defer func() {
		if value := recover(); value != nil {
			c.err = c.server.panicked(c.ctx, c.call.Method, value)
		}
	}()
	c.ctx = startAll(ctx, c.server.watchers.calls, &c.call)
	if early != nil {
		c.err = early
		return
	}
	if err := c.server.handler(c.ctx, &c.call); err != nil {
		c.err = asError(err) // converted here, because a method of the error may panic
	}
}

// awaitLate waits for the late reply, for code of the server that needs it, and returns its error.
func (c *serverCall) awaitLate(ctx context.Context) error {
	reply, err := c.late.Wait(ctx)
	if reply != nil {
		c.call.Reply = reply
	}
	return err
}

// Decode decodes the request's body into Args, on the server. The method calls it just before it
// runs. Middleware that needs the arguments may call it earlier.
func (c *Call) Decode() error {
	if c.in == nil || c.Args != nil {
		return nil
	}
	return c.in.decode()
}

func (c *serverCall) decode() error {
	if e := c.check(); e != nil {
		return e
	}
	if v := c.served(); v != nil && v.Transform != nil && c.method.TakesOne() {
		if _, err := c.call.Body(); err != nil {
			return err
		}
	}
	if c.method == nil || c.method.NewArgs == nil { // there is no method with Served.Instead
		return nil
	}
	body, as := c.body, &c.as.format
	if c.method.Views && as.Raw() && !c.compressed {
		c.view = slices.Clip(body)
		c.call.Args = &c.view
		return nil
	}
	if c.compressed {
		unpacked := c.server.scratch.Get()
		defer c.server.scratch.Put(unpacked)
		if err := c.decompress(unpacked); err != nil {
			return err
		}
		body = *unpacked
	}
	args := c.method.NewArgs()
	if to := as.Recipient(body, args); to != nil && !c.compressed && c.protocol.Keep() {
		*to = slices.Clip(body)
	} else if err := as.Decode(body, args); err != nil {
		return faultError(as.Unfit(c.call.Method, "the request", c.method.ArgTypes(), err))
	}
	c.call.Args = args
	return nil
}

// check returns why the call cannot succeed, whatever its body is, or nil.
func (c *serverCall) check() *Error {
	if v := c.served(); v != nil && (v.Refusal != nil || v.Instead != nil) {
		return v.Refusal
	}
	return c.as.check(c.method)
}

// served returns the Served of a call in another protocol than yodel's, or nil.
func (c *serverCall) served() *Served {
	if in, ok := c.protocol.(*foreignCall); ok {
		return in.served
	}
	return nil
}

// transform replaces the decompressed body by the result of Served.Transform, once.
func (c *serverCall) transform() error {
	v := c.served()
	if v == nil || v.Transform == nil {
		return nil
	}
	n := len(c.body)
	if !c.protocol.Take(n) { // the result takes about as much
		return refusal("YDL3007", "%s: the server has no memory left to read the request", c.call.Method)
	}
	c.counted += n
	body, err := v.Transform(c.body)
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	} else if err != nil {
		return refusal("YDL2101", "%s: the request does not fit the method: %v (codec %s)", c.call.Method, err, c.as.format.Codec.Name())
	}
	c.body, v.Transform = body, nil
	return nil
}

// Executed reports, on the server, whether the method itself has begun. If the method has not
// begun, the call was not executed, whichever error middleware returned.
func (c *Call) Executed() bool { return c.in != nil && c.in.executed }

// Body returns, on the server, the encoded and decompressed arguments, for middleware that compares
// requests without decoding them. The result is valid until the method returns, and must not be
// changed. Decode does not decompress the body again. For an upload and a duplex, Body returns an
// error.
func (c *Call) Body() ([]byte, error) {
	in := c.in
	if in == nil {
		return nil, nil
	}
	if e := in.check(); e != nil {
		return nil, e
	}
	if !in.method.TakesOne() {
		return nil, refusal("YDL2006", "%s: the method is %s, whose request is no single message", c.Method, in.method.Signature())
	}
	if in.compressed {
		var unpacked []byte
		if err := in.decompress(&unpacked); err != nil {
			return nil, err
		}
		in.body, in.compressed = unpacked, false
	}
	if err := in.transform(); err != nil {
		return nil, err
	}
	return in.body, nil
}

// decompress decompresses the body into memory. The result stays counted until the call is done,
// because the decoded arguments take about as much.
func (c *serverCall) decompress(into *[]byte) error {
	if err := c.as.format.OpenRequest(c.ctx, c.protocol, c.call.Method, into, c.body); err != nil {
		return errorOf(err)
	}
	c.counted += len(*into)
	return nil
}

// invoke is the last handler of a server's chain. It calls the method.
func invoke(ctx context.Context, call *Call) error {
	c := call.in
	if c == nil {
		return errors.New("the server's chain was called with a Call that did not come from it")
	}
	if err := call.Decode(); err != nil {
		return err
	}
	if v := c.served(); v != nil && v.Instead != nil && v.Refusal == nil {
		c.executed = true
		return v.Instead(ctx)
	}
	if traits := c.method.Traits(); traits != c.as.Told.Load() && c.as.Told.Swap(traits) != traits {
		c.protocol.learned(traits) // before the method may panic or end the goroutine
	}
	if c.method.Kind != wire.Unary && c.stream == nil {
		if !call.OneWay {
			return faultError(c.as.Mismatch(c.method, wire.Unary))
		}
		return refusal("YDL2006", "%s: a one-way call cannot have a stream", call.Method)
	}
	c.executed = true
	if call.Explain || !c.server.plain && !c.protocol.Fresh() {
		c.times.Began = clock()
	}
	reply, err := c.execute(ctx)
	if reply != nil {
		call.Reply = reply
	}
	if c.late != nil && err == nil && call.IdempotencyKey != "" && c.server.opts.Keys != nil {
		return c.awaitLate(ctx) // the KeyMemory records it
	}
	return err
}

func (c *serverCall) execute(ctx context.Context) (reply any, err error) {
	switch {
	case c.method.Kind != wire.Unary:
		reply, err = c.runStream(ctx)
	case c.method.Dynamic != nil:
		err = c.method.Dynamic.(Handler)(ctx, &c.call) //nolint:forcetypeassert // see HandleCall
	default:
		reply, err = c.method.Call(ctx, c.call.Args)
	}
	if err == reflectcall.ErrNoReply && c.late != nil { //nolint:errorlint // as below
		return nil, nil //nolint:nilnil // the reply comes later
	}
	if err == reflectcall.ErrNoReply { //nolint:errorlint // it is returned bare
		err = failure("YDL5003", "%s: the handler returned neither a reply nor an error", c.as.Name)
	}
	if err != nil && grpcstatus.Of(err) != nil {
		err = asError(err) // middleware sees its code and its details
	}
	return reply, err
}

// Draining returns, on the server, a channel that is closed when the server begins to shut down. A
// handler of a stream that would otherwise never end should end the stream then. On the client
// Draining returns nil.
func (c *Call) Draining() <-chan struct{} {
	if c.in == nil {
		return nil
	}
	return c.in.protocol.Draining()
}

// encode encodes and compresses the reply. It uses scratch unless the reply is already encoded. If
// it fails, it returns a nil body, and the call fails with that error.
func (c *serverCall) encode(scratch *[]byte) (body []byte, compressed bool) {
	defer func() {
		if value := recover(); value != nil { // a method of the message panicked
			body, compressed, c.err = nil, false, c.server.panicked(c.ctx, c.call.Method, value)
		}
	}()
	body, compressed, f := c.encodeReply(scratch)
	if f != nil {
		c.err = faultError(f)
		return nil, false
	}
	return body, compressed
}

func (c *serverCall) encodeReply(scratch *[]byte) (body []byte, compressed bool, f *fault.Fault) {
	call, as := &c.call, &c.as.format
	if call.Reply != nil {
		body, f = as.Encode(scratch, call.Method, call.Reply, false)
	}
	if f == nil && !c.plain && as.Packs(body) {
		c.packed = c.server.scratch.Get()
		body, compressed, f = as.Compress(c.packed, call.Method, body, false)
	}
	if f == nil {
		if f = as.Side.Check(call.Method, len(body)+len(call.ReplyAttachment)); f != nil {
			call.ReplyAttachment = nil
		}
	}
	return body, compressed, f
}

// outcome returns the error for the caller: c.err with a code, and with limited texts.
func (c *serverCall) outcome() Error {
	e := asError(c.err)
	if e.Code == DeadlineExceeded && e.ID == "" && c.protocol.Expired() {
		what := "the deadline"
		if c.call.Streams() {
			what += " of the stream" // as the client says, which may be later
		}
		e = failure("YDL1004", "%s: %s passed while the server was executing it", c.call.Method, what)
	}
	told := *e
	told.Code = cmp.Or(e.Code, Unknown)
	c.notProcessed = e.NotProcessed && !c.executed
	told.NotProcessed = c.notProcessed
	told.Message, told.ID = shorten(e.Message, fields.MaxText), text.ID(e.ID)
	return told
}

// done ends the call: it counts and records it, and releases its memory. Took is the time since
// execution began. Code is the code that the caller got; for a one-way call, it is the code of the
// error.
func (c *serverCall) done(code Code, took time.Duration, handedOver bool) {
	if c.packed != nil {
		c.server.scratch.Put(c.packed)
		c.packed = nil
	}
	if c.counted != 0 {
		c.protocol.Give(c.counted)
		c.counted = 0
	}
	c.call.Attachment = nil
	if c.call.OneWay { // a one-way call has no reply
		code = CodeOf(c.err)
	}
	latency := took
	if c.stream != nil {
		latency = stats.Unmeasured
	}
	if c.method != nil {
		c.method.Stats.End(latency, countsAs(code, c.err), handedOver, c.executed)
		if c.server.opts.CountBytes {
			c.countBytes()
		}
	}
	if c.err == nil && code != 0 { // the handler ended its goroutine, so there is no reply
		c.err = failure("YDL5002", "%s: the handler ended its goroutine", c.as.Name)
	}
	if c.server.live != nil {
		c.measure(took, latency, code)
	}
	endAll(c.ctx, c.server.guard, c.server.watchers.calls, &c.call, c.err)
	if c.server.watchers.wants(&c.call, c.err) {
		c.tellNotable(took)
	}
	if c.call.Explain || c.err != nil && (c.stream == nil || !c.deserted()) || took != mux.Untimed && c.slow(took) {
		c.report(took)
	}
}

// countBytes counts the bytes of the call.
func (c *serverCall) countBytes() {
	in, out := c.protocol.sizes()
	if c.stream != nil {
		t := c.stream.Traffic()
		in += t.ReceivedBytes
		out += t.SentBytes
	}
	c.method.Stats.Bytes.Add(uint64(in), uint64(out))
}

// deserted reports whether the call failed because its caller has left. No caller gets the error.
func (c *serverCall) deserted() bool {
	return CodeOf(c.err) == Canceled && c.protocol.Cause() == mux.ErrCallerGone //nolint:errorlint // it is set bare
}

// format returns the format of bodies in a codec and a compressor. Both may be nil.
func (s *Server) format(codec Codec, c compress.Compressor) format {
	f := s.calls.format(codec, c)
	f.Side = &s.bodies
	return f
}

// The adapter of yodel's own protocol turns a request of package mux into a serverCall, and the
// outcome of the call into a reply.

// An incoming is a call on the server together with its request, in one allocation. It is reused if
// the handler ran on the reader goroutine and user code did not get the call: see callRef. What a
// connection keeps for its next call is here, and the reader drops it when the connection is idle.
type incoming struct {
	mux.Request
	serverCall
	target   *target
	handling *callContext             // the handler's context, without the observers' values
	first    callContext              // the context of the first call
	contexts reuse.Group[callContext] // for the next calls
	kept     metadata.Kept            // for later calls
}

// A callContext is the context of a handler.
type callContext struct {
	mux.Context
	callRef
}

// Value implements context.Context.
func (x *callContext) Value(key any) any {
	if value, known := x.value(key); known {
		return value
	}
	return x.Context.Value(key)
}

// A target is a method as one connection calls it.
type target struct {
	boundMethod
	conn *serverConn
}

// bind returns the target of a method number of the peer.
func (sc *serverConn) bind(_ *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
	s := sc.server
	t := &target{conn: sc}
	codec, known := s.codecs[string(b.Codec)]
	compressor := s.compressors[string(b.Compressor)]
	t.server, t.caller, t.format = s, sc.peer.Name, s.format(codec, compressor)
	t.SetCalled(&s.methods, b, sc.late, known, compressor != nil)
	t.Find()
	return t, wire.Info{} // only callers that may call the method get its traits: see invoke
}

// Inline implements mux.Target. A call that is watched live is timed.
func (t *target) Inline() (inline, timed bool) {
	inline, timed = t.Bound.Inline()
	return inline, timed || t.server.tapped()
}

// New implements mux.Target.
func (t *target) New(used *mux.Request) *mux.Request {
	var in *incoming
	var x *callContext
	if used != nil {
		in = used.Owner.(*incoming) //nolint:forcetypeassert // New made it
		if reuse.Poison || in.held.Load() {
			in = nil
		} else {
			x = in.contexts.Next()
		}
	}
	if in == nil || !in.owner.Next(&x.callRef, &in.held) {
		in = new(incoming)
		x = &in.first
		in.owner.Begin(&x.callRef)
	} else if !in.again(t) {
		in.clear()
	}
	x.as, x.in, in.handling = &t.boundMethod, &in.serverCall, x
	in.Context = &x.Context
	if in.target != t {
		in.target, in.Owner, in.protocol = t, in, in
		in.server, in.peer, in.as = t.server, t.conn.peer, &t.boundMethod
		in.call.Method, in.call.in = t.Name, &in.serverCall
		in.call.Codec, in.call.Compressor = t.format.Codec, t.format.Pack.Compressor
	}
	in.method = t.Find()
	return &in.Request
}

// again prepares in for another call of the same method, and reports whether it could. It resets
// only the fields that an ordinary call sets. Clearing all of in takes a tenth of a short call.
func (in *incoming) again(t *target) bool {
	if in.target != t || !t.server.plain || in.Fields != nil || in.Reply.Fields != nil || in.err != nil || in.Broken != nil || in.OneWay {
		return false
	}
	in.Reply.Body, in.Reply.Compressed = nil, false
	in.call.Args, in.call.Reply = nil, nil
	in.executed = false
	if in.Metadata != nil || in.Budget != 0 { // the reader goroutine sets them only if the request has them
		in.Metadata, in.call.Metadata, in.Budget, in.call.Budget = nil, nil, 0, 0
	}
	return true
}

// clear resets in for reuse but keeps its buffers.
func (in *incoming) clear() {
	in.Request, in.target = mux.Request{}, nil
	in.call, in.method, in.executed, in.notProcessed, in.stream = Call{}, nil, false, false, nil
	in.ctx, in.err, in.packed, in.view, in.keySent, in.late = nil, nil, nil, nil, 0, nil
}

// Serve implements mux.Target.
func (t *target) Serve(r *mux.Request) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	if in.method != nil {
		in.method.Stats.Begin()
	}
	in.body, in.compressed, in.times.Began = r.Body, r.Compressed, 0
	if st := r.Stream(); st != nil {
		in.stream = st
	}
	early := in.early()
	in.call.began = r.Taken
	if r.Taken == 0 && t.server.watchers.wants(&in.call, nil) {
		in.call.began = clock()
	}
	in.run(in.handling, early)
	if in.late == nil || in.err != nil && r.NotLater() {
		in.reply()
	}
}

// Reply implements mux.Target.
func (t *target) Reply(r *mux.Request) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	in.call.Reply, in.err = in.late.Get()
	in.reply()
}

// later and finish implement protocolCall.
func (in *incoming) later() { in.Later() }

func (in *incoming) finish() { in.Finish() }

// early reads everything before the body. It returns the error of a call that cannot begin, or nil.
func (in *incoming) early() *Error {
	var opened *Error
	if in.Broken == nil {
		opened = in.open()
	}
	switch canceled := in.Err() != nil; {
	case in.Broken != nil:
		return refusal("YDL2205", "%s: the request is broken: %v", in.call.Method, in.Broken)
	case canceled && !in.Expired():
		return refusal("YDL1006", "%s: the caller canceled it before the server could begin", in.call.Method)
	case canceled || !in.Fresh() && in.Expired():
		return refusal("YDL1005", "%s: the deadline passed before the server could begin", in.call.Method)
	}
	return opened
}

// open reads the attachment, the deadline, the fields and the metadata.
func (in *incoming) open() *Error {
	call := &in.call
	call.Attachment, call.OneWay = in.Attachment, in.OneWay
	call.Deadline, _ = in.Deadline()
	f := in.Fields
	if f != nil || len(in.Metadata) > 0 {
		var n int
		var refused *fault.Fault
		call.Metadata, n, refused = in.kept.Read(call.Method, in.Metadata, fields.Size(in.Metadata, f), &in.target.conn.repeated, in.server.limits.metadata(), in)
		if in.counted += n; refused != nil {
			return faultError(refused)
		}
	}
	if in.Budget != 0 {
		call.Budget = int(min(in.Budget, budget.Max))
	}
	if f == nil {
		return nil
	}
	r := fields.ReadRequest(f)
	call.Criticality, call.Tenant, call.Explain = r.Criticality, r.Tenant, r.Explain
	call.IdempotencyKey, call.Key, call.Trace = r.IdempotencyKey, r.Key, r.Trace
	call.Ordered, call.Attempt = r.Ordered, r.Attempt
	if r.KnowsKey {
		in.keySent = in.target.conn.began + r.KeyBegan
	}
	return nil
}

// learned reports the method's traits to the caller.
func (in *incoming) learned(traits uint32) { in.Inform(registered.Info(traits)) }

// sizes implements protocolCall. Request.Size is 0 for a stream, because a stream uses no budget,
// so its own bytes are counted here.
func (in *incoming) sizes() (request, reply int) {
	request, reply = in.Size(), len(in.Reply.Body)+len(in.Reply.Attachment)
	if in.stream != nil {
		request = len(in.Body) + len(in.Attachment)
	}
	return request, reply
}

// reply makes the reply from the outcome of the call.
func (in *incoming) reply() {
	in.Began = in.times.Began
	if in.OneWay {
		return
	}
	call, out := &in.call, &in.Reply
	if in.err == nil {
		out.Body, out.Compressed = in.encode(&in.Scratch)
	}
	out.Attachment = call.ReplyAttachment // also with an error
	if in.method != nil {
		in.method.Replies.Add(len(out.Body) + len(out.Attachment))
	}
	load := uint64(0)
	if in.Taken != 0 { // true for every call except most calls of short methods
		load = in.target.conn.newLoad(in.Taken)
	}
	used := in.used()
	if in.err == nil && call.Trailer == nil && load == 0 && used == 0 && call.rare == nil {
		return
	}
	f := &wire.Fields{Load: load, Budget: used}
	out.Fields = f
	limits := in.server.limits.metadata()
	f.Metadata, f.Header = limits.Encode(call.Trailer, in.leftOut), limits.Encode(call.Header(), in.leftOut)
	if in.err == nil {
		return
	}
	e := in.outcome()
	out.Code, out.NotProcessed = uint16(e.Code), e.NotProcessed
	said := fields.Failure{Message: e.Message, ID: e.ID, RetryAfter: e.RetryAfter}
	said.Encode(f, e.eachDetail)
}

// Done implements mux.Target.
func (t *target) Done(r *mux.Request, took time.Duration, handedOver bool) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	in.times.Arrived, in.times.Taken = r.Arrived, r.Taken
	in.done(Code(r.Reply.Code), took, handedOver)
	if in.call.watch == watched {
		r.Left = in.call.began + in.call.took
	}
	if r.Size() > smallMessage || len(r.Body) > smallMessage || len(r.Reply.Body) > smallMessage || r.Compressed {
		in.forget()
	}
}

// smallMessage is the size up to which an ended call may keep a message, in bytes.
const smallMessage = 256

// forget drops the references to the messages of a call that has ended, unless user code may still
// have the call. Otherwise the connection would keep them until its next call.
func (in *incoming) forget() {
	if !in.owner.Drop(&in.held) {
		return
	}
	in.call.Args, in.call.Reply, in.view = nil, nil, nil
	in.Body, in.Reply.Body, in.body = nil, nil, nil
}

// newLoad returns the load to report to the peer, or 0 if there is nothing to report. The load is
// the number of calls that the server is executing, including the one being replied to. Now is
// approximately the current time: the time at which the server began to work on the call.
func (sc *serverConn) newLoad(now time.Duration) uint64 {
	if !sc.told.Due(now) {
		return 0
	}
	s := sc.server
	if s.busy.Due(now) {
		if calls, ok := s.methods.Inflight(); ok { // a reply does not wait for the registration of methods
			s.busy.Set(calls)
		}
	}
	return sc.told.Next(&s.busy, now)
}

// executing implements connection.
func (sc *serverConn) executing() []opencalls.Call {
	conn := sc.mux
	if conn == nil { // a client dialled
		conn = sc.peer.link
	}
	return sc.server.openOf(conn.Executing())
}

// openOf returns the calls among targets that belong to this server.
func (s *Server) openOf(targets []mux.Target) (open []opencalls.Call) {
	for _, t := range targets {
		if t, ok := t.(*target); ok && t.server == s {
			open = append(open, opencalls.Call{Method: t.Name, Peer: t.conn.peer.Addr.String()})
		}
	}
	return open
}
