// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// An incoming is a call on the server, in one allocation with its request. It is used again when
// the handler ran on the reading goroutine and did not ask for the call: see callContext.
type incoming struct {
	mux.Request
	call     Call
	target   *target
	method   *method
	executed bool                        // the method itself has run
	own      atomic.Pointer[callContext] // the handler's, without what observers made of it
	asked    atomic.Bool                 // somebody has the call, and may keep it
	ctx      context.Context             //nolint:containedctx // what the observers made of it
	err      error
	packed   *[]byte
	taken    int                      // counted for what was made of the request, until Done
	view     View                     // the request, for a method that only looks at it
	heirs    atomic.Pointer[heritage] // what calls have that the handler makes; nil before there was any
	metadata Metadata                 // a copy of repeated's, the call's or to be that of a later one
	repeated *repeatedMetadata        // nil for none
}

// A callContext is the context of a handler. It is never used again: handlers keep contexts.
type callContext struct {
	mux.Context
	target *target
	in     *incoming // which may serve another call by now: see Value
}

// A target is a method as one connection calls it: with a codec and a compressor.
type target struct {
	conn    *serverConn
	name    string
	method  atomic.Pointer[method] // nil while there is none of this name
	codec   Codec
	pack    packer
	several bool          // the body is Values
	kind    uint64        // what kind of method the peer takes it for
	told    atomic.Uint32 // which traits of the method the peer knows
	wrong   wrong         // why no call of this target can succeed
	absent  string        // the codec or compressor that the server lacks

	similar atomic.Pointer[string] // the method's name that is most like name, once it was looked for
}

// A wrong is why no call of a target can succeed.
type wrong uint8

const (
	nothingWrong    wrong = iota
	wrongTime             // the server has been shut down
	wrongCodec            // the server lacks the codec
	wrongCompressor       // the server lacks the compressor
)

type callKey struct{}

// CallFrom returns the call that a handler is carrying out, from its context: metadata, the
// attachment, the trailer to be sent, the peer. It returns nil elsewhere. A goroutine that outlives
// its handler asks before the handler returns: afterwards there may be nothing left but the
// method's name.
func CallFrom(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// Peer returns the caller of a call that a handler carries out: calls of its methods go back over
// the connection that this one came on. It returns nil for a call that this side makes.
func (c *Call) Peer() *Peer {
	if c.in == nil {
		return nil
	}
	return c.in.target.conn.peer
}

// Value implements context.Context.
func (x *callContext) Value(key any) any {
	switch key.(type) {
	case callKey:
		if in := x.hold(); in != nil {
			return &in.call
		}
		return &Call{Method: x.target.name}
	case samplerKey:
		return x.target.conn.server.samples
	case heritageKey:
		if in := x.hold(); in != nil {
			if !in.method.nests.Load() {
				in.method.nests.Store(true)
			}
			return in.heritage()
		}
		return nil
	}
	return x.Context.Value(key)
}

// hold returns what the context belongs to, which then serves no other call; nil if it does
// already.
func (x *callContext) hold() *incoming {
	if in := x.in; in.own.Load() == x {
		in.asked.Store(true)
		if in.own.Load() == x { // it has not been freed meanwhile
			return in
		}
	}
	return nil
}

// newContext returns a context that was never used. They are allocated in groups, because one by
// one they are a tenth of what a short call costs; the group lives as long as a handler keeps one
// of them.
func (sc *serverConn) newContext() *callContext {
	const group = 8 // half a KiB
	if len(sc.contexts) == 0 {
		sc.contexts = make([]callContext, group)
	}
	x := &sc.contexts[0]
	sc.contexts = sc.contexts[1:]
	return x
}

// free ends the use of in for a call, and reports whether it may be used for another one, whose
// context is next.
func (in *incoming) free(next *callContext) bool {
	if poison || in.asked.Load() {
		return false
	}
	last := in.own.Load()
	in.own.Store(next)
	if in.asked.Load() { // it has happened just before that
		in.own.Store(last)
		return false
	}
	return true
}

// bind finds what a method number of the peer stands for.
func (sc *serverConn) bind(_ *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
	s := sc.server
	t := &target{conn: sc, name: text.Line(string(b.Name)), codec: s.codecs[string(b.Codec)], several: b.Positional != 0, kind: b.Kind}
	compressor := s.compressors[string(b.Compressor)]
	switch {
	case sc.late:
		t.wrong = wrongTime
	case t.codec == nil:
		t.wrong, t.absent = wrongCodec, string(b.Codec)
	case compressor == nil && len(b.Compressor) > 0:
		t.wrong, t.absent = wrongCompressor, string(b.Compressor)
	case compressor != nil:
		t.pack = packer{compressor, s.opts.CompressAbove}
	}
	t.find()
	return t, wire.Info{} // which methods there are is for callers who may call them: see invoke
}

// find returns the method, which may have been registered after the peer first asked for it.
func (t *target) find() *method {
	m := t.method.Load()
	if m == nil {
		if m = (*t.conn.server.methods.Load())[t.name]; m != nil {
			t.method.Store(m)
		}
	}
	return m
}

// check reports why a call of m cannot succeed, whatever its body is. It makes the error's text for
// each call: a connection that kept a text for each method number would hold several times the
// bytes that its peer sent.
func (t *target) check(m *method) *Error {
	switch {
	case t.wrong != nothingWrong:
		return t.refusal()
	case m == nil:
		return t.conn.server.unknown(t.name, t.suggestion())
	case m.kind != t.kind:
		return refusal("YDL2006", "%s: the method is %s of %s; the call is for %s", t.name, oneOf(m.kind), m.types(), oneOf(t.kind))
	case m.positional != t.several:
		return refusal("YDL2005", "%s: the method is %s", t.name, m.signature())
	}
	return nil
}

// refusal explains t.wrong.
func (t *target) refusal() *Error {
	s := t.conn.server
	switch t.wrong { //nolint:exhaustive // there is something wrong
	case wrongCodec:
		return refusal("YDL2003", "%s: this server does not have the codec %q; it has %s", t.name, t.absent, names(s.codecs))
	case wrongCompressor:
		return refusal("YDL2004", "%s: this server does not have the compressor %q; it has %s", t.name, t.absent, names(s.compressors))
	}
	return refusal("YDL3004", "%s: the server has been shut down", t.name)
}

// Inline implements mux.Target.
func (t *target) Inline() (inline, timed bool) {
	m := t.method.Load()
	if m == nil || !m.inline() || m.replySize.Load() >= leastLargeReply {
		return false, true
	}
	return true, m.stats.due()
}

const (
	// leastReply is what a method's replies must have for it to wait for memory.
	leastReply = 8 << 10
	// leastLargeReply is what they must have so that the reader does not run it itself: sending
	// takes several frames.
	leastLargeReply = 64 << 10
)

// Expects implements mux.Target.
func (t *target) Expects() int {
	if m := t.method.Load(); m != nil {
		return int(m.replySize.Load())
	}
	return 0
}

// replied learns from a reply of n bytes how large those are that come next: as large as this one,
// and less only slowly.
func (m *method) replied(n int) {
	old := m.replySize.Load()
	if n < leastReply && old == 0 {
		return
	}
	if next := max(int64(n), old-old/8); next != old {
		if next < leastReply {
			next = 0
		}
		m.replySize.Store(next)
	}
}

// New implements mux.Target.
func (t *target) New(used *mux.Request) *mux.Request {
	x := t.conn.newContext()
	x.target = t
	var in *incoming
	if used != nil && used.Owner.(*incoming).free(x) { //nolint:forcetypeassert // New made it
		in = used.Owner.(*incoming) //nolint:forcetypeassert // New made it
		if !in.again(t) {
			in.clear()
		}
	} else {
		in = new(incoming)
		in.own.Store(x)
	}
	x.in = in
	in.Context = &x.Context
	if in.target != t {
		in.target, in.Owner = t, in
		in.call.Method, in.call.in = t.name, in
		in.call.Codec, in.call.Compressor = t.codec, t.pack.Compressor
	}
	in.method = t.find()
	return &in.Request
}

// again readies in for another call of the same method, when the last one was as most are: nobody
// can have changed anything but what is set for each call. To clear all of in takes as long as a
// tenth of a short call.
func (in *incoming) again(t *target) bool {
	if in.target != t || !t.conn.server.plain || in.Fields != nil || in.Reply.Fields != nil || in.err != nil || in.Broken != nil || in.OneWay {
		return false
	}
	in.Reply.Body, in.Reply.Compressed = nil, false
	in.call.Args, in.call.Reply = nil, nil
	in.executed = false
	if in.Metadata != nil || in.Budget != 0 { // the reader sets them when there are any
		in.Metadata, in.call.Metadata, in.Budget, in.call.Budget = nil, nil, 0, 0
	}
	return true
}

// clear makes in what it was when it was new, but for memory that is used again.
func (in *incoming) clear() {
	in.Request = mux.Request{}
	in.call, in.target, in.method, in.executed = Call{}, nil, nil, false
	in.ctx, in.err, in.packed, in.view = nil, nil, nil, nil
}

// Serve implements mux.Target.
func (t *target) Serve(r *mux.Request) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	if in.method != nil {
		in.method.stats.begun()
	}
	in.err = in.handle()
	in.reply()
}

// handle carries out the call, and makes a panic an error.
func (in *incoming) handle() (err error) {
	s := in.target.conn.server
	own := in.own.Load()
	in.ctx = own
	defer func() {
		if value := recover(); value != nil {
			err = s.panicked(in.ctx, in.call.Method, value)
		}
	}()
	opened := error(nil)
	if in.Broken == nil {
		opened = in.open()
	}
	in.call.began = in.Taken
	in.ctx = startAll(own, s.opts.Observers, &in.call)
	switch canceled := in.Err() != nil; {
	case in.Broken != nil:
		return refusal("YDL2205", "%s: the request is broken: %v", in.call.Method, in.Broken)
	case canceled && !in.Expired():
		return refusal("YDL1006", "%s: the caller canceled it before the server could begin", in.call.Method)
	case canceled || !in.Fresh() && in.Expired():
		return refusal("YDL1005", "%s: the deadline passed before the server could begin", in.call.Method)
	}
	if opened != nil {
		return opened
	}
	if err := s.handler(in.ctx, &in.call); err != nil {
		return asError(err) // here, because an error's own method may panic
	}
	return nil
}

// open reads what comes before the body.
func (in *incoming) open() error {
	call := &in.call
	call.Attachment, call.OneWay = in.Attachment, in.OneWay
	call.Deadline, _ = in.Deadline()
	f := in.Fields
	if f != nil || len(in.Metadata) > 0 {
		if err := in.openMetadata(f); err != nil {
			return err
		}
	}
	if in.Budget != 0 {
		call.Budget = int(min(in.Budget, maxBudget))
	}
	if f == nil {
		return nil
	}
	call.Criticality, call.Tenant, call.Explain = criticalityOf(f.Criticality), string(f.Tenant), f.Explain != 0
	call.IdempotencyKey, call.Key = string(f.IdempotencyKey), string(f.Key)
	call.Ordered = f.Epoch > 0
	call.Attempt = int(min(f.Attempt, 1<<30))
	return nil
}

// openMetadata reads the metadata, unless it and what counts as metadata exceed the limits.
func (in *incoming) openMetadata(f *wire.Fields) error {
	n := len(in.Metadata)
	if f != nil {
		n += len(f.IdempotencyKey) + len(f.Key) + len(f.Tenant)
	}
	err := metadataFits(&in.target.conn.server.limits, 0, n)
	if err == nil {
		err = in.readMetadata(in.Metadata)
	}
	switch what := tooMuch(err); {
	case err == nil:
		return nil
	case what != "":
		return refusal("YDL2203", "%s: the metadata %s on the server", in.call.Method, what)
	case errors.Is(err, mux.ErrMemory):
		return refusal("YDL3007", "%s: the server has no memory left for the metadata", in.call.Method)
	}
	return refusal("YDL2205", "%s: the metadata is broken: %v", in.call.Method, err)
}

// Decode makes Args of the request's body, on the server. The method does so itself just before it
// runs; middleware that wants to see the arguments may do so earlier.
func (c *Call) Decode() error {
	in := c.in
	if in == nil || c.Args != nil {
		return nil
	}
	t := in.target
	if e := t.check(in.method); e != nil {
		return e
	}
	if in.method.newArgs == nil {
		return nil
	}
	body := in.Body
	if in.method.views && t.codec == Raw && !in.Compressed {
		in.view = slices.Clip(body)
		c.Args = &in.view
		return nil
	}
	if in.Compressed {
		unpacked := t.conn.server.scratchMemory()
		defer t.conn.server.putScratch(unpacked)
		var err error
		if body, err = in.decompress((*unpacked)[:0]); err != nil {
			return err
		}
		in.taken += len(body) // until the method has returned, as what is decoded from it takes about as much
		*unpacked = body
	}
	args := in.method.newArgs()
	if to := recipient(body, t.codec, args); to != nil && !in.Compressed && in.Keep() {
		*to = slices.Clip(body)
	} else if err := decodeBody(body, t.codec, args); err != nil {
		return refusal("YDL2101", "%s: the request does not fit %s: %v (codec %s)", c.Method, in.method.argsName(), err, t.codec.Name())
	}
	c.Args = args
	return nil
}

// Executed reports whether the method itself has begun, on the server: whatever middleware says
// that fails a call before that, it was not executed.
func (c *Call) Executed() bool { return c.in != nil && c.in.executed }

// Body returns what the arguments are encoded in, decompressed, on the server, for middleware that
// compares requests without decoding them. It is valid until the method returns, and must not be
// changed. Decode then need not decompress it again. A stream has none, which is an error.
func (c *Call) Body() ([]byte, error) {
	in := c.in
	if in == nil {
		return nil, nil
	}
	if e := in.target.check(in.method); e != nil {
		return nil, e
	}
	if in.method.kind != wire.Unary {
		return nil, refusal("YDL2006", "%s: the method is %s, whose request is no single message", c.Method, in.method.signature())
	}
	if in.Compressed {
		body, err := in.decompress(nil)
		if err != nil {
			return nil, err
		}
		in.Body, in.Compressed = body, false
		in.taken += len(body)
	}
	return in.Body, nil
}

// decompress decompresses the body into memory.
func (in *incoming) decompress(memory []byte) ([]byte, error) {
	t := in.target
	if t.pack.Compressor == nil {
		return nil, refusal("YDL2205", "%s: the request is compressed, and the compressor was not named", in.call.Method)
	}
	body, err := t.pack.unpack(in, memory, in.Body, t.conn.server.limits.MaxDecompressed)
	switch {
	case errors.Is(err, mux.ErrMemory):
		return nil, refusal("YDL3007", "%s: the server has no memory left to decompress the request", in.call.Method)
	case errors.Is(err, ErrTooLarge):
		return nil, refusal("YDL2204", "%s: the request has more than %d bytes after decompression (%s)", in.call.Method, t.conn.server.limits.MaxDecompressed, t.pack.Name())
	case err != nil:
		return nil, refusal("YDL2205", "%s: the request cannot be decompressed: %v (%s)", in.call.Method, err, t.pack.Name())
	}
	return body, nil
}

// The traits of a method that peers are told of.
const (
	traitIdempotent = 1 << iota
	traitNests
)

func (m *method) traits() (traits uint32) {
	if m.idempotent.Load() {
		traits = traitIdempotent
	}
	if m.nests.Load() {
		traits |= traitNests
	}
	return traits
}

// inform tells the peer of the method's traits, unless somebody else has just done so.
func (t *target) inform(in *incoming, traits uint32) {
	if t.told.Swap(traits) == traits {
		return
	}
	info := wire.Info{Known: 1}
	if traits&traitIdempotent != 0 {
		info.Idempotent = 1
	}
	if traits&traitNests != 0 {
		info.Nests = 1
	}
	in.Inform(info)
}

// invoke is the end of a server's chain: the method.
func invoke(ctx context.Context, call *Call) error {
	in := call.in
	if in == nil {
		return errors.New("the server's chain was called with a Call that did not come from it")
	}
	if err := call.Decode(); err != nil {
		return err
	}
	if news := in.method.traits(); news != 0 && news != in.target.told.Load() {
		in.target.inform(in, news) // before it can be interrupted
	}
	if in.method.kind != wire.Unary && in.Stream() == nil {
		return refusal("YDL2006", "%s: a one-way call cannot have a stream", call.Method)
	}
	in.executed = true
	if call.Explain || !in.target.conn.server.plain && !in.Fresh() {
		in.Began = clock()
	}
	reply, err := in.execute(ctx)
	if reply != nil {
		call.Reply = reply
	}
	return err
}

func (in *incoming) execute(ctx context.Context) (reply any, err error) {
	if in.method.kind != wire.Unary {
		reply, err = in.runStream(ctx)
	} else {
		reply, err = in.method.call(ctx, in.call.Args)
	}
	if err == errNoReply { //nolint:errorlint // it is returned bare
		err = failure("YDL5003", "%s: the handler returned neither a reply nor an error", in.target.name)
	}
	return reply, err
}

// Draining returns a channel that is closed when the server begins to shut down, on the server: a
// handler whose stream has no end of its own should then end it. It is nil on the client.
func (c *Call) Draining() <-chan struct{} {
	if c.in == nil {
		return nil
	}
	return c.in.Draining()
}

// reply encodes the outcome of the call.
func (in *incoming) reply() {
	if in.OneWay {
		return
	}
	out := &in.Reply
	out.Attachment = in.call.ReplyAttachment // also with an error
	if in.err == nil {
		in.err = in.encode(out)
	}
	if in.method != nil {
		in.method.replied(len(out.Body) + len(out.Attachment))
	}
	call, load := &in.call, uint64(0)
	if in.Taken != 0 { // as it is of every call but most of those of short methods
		load = in.target.conn.newLoad(in.Taken)
	}
	used := in.used()
	if in.err == nil && call.Trailer == nil && load == 0 && used == 0 {
		return
	}
	f := &wire.Fields{Load: load, Budget: used}
	out.Fields = f
	if call.Trailer != nil {
		f.Metadata = appendMetadata(nil, call.Trailer)
		if err := metadataFits(&in.target.conn.server.limits, len(call.Trailer), len(f.Metadata)); err != nil {
			f.Metadata = nil
			in.err = failure("YDL2203", "%s: the reply's metadata %v on the server", call.Method, err)
		}
	}
	if in.err == nil {
		return
	}
	e := asError(in.err)
	if e.Code == DeadlineExceeded && e.ID == "" && in.Expired() {
		e = failure("YDL1004", "%s: the deadline passed while the server was executing it", call.Method)
	}
	out.Code = uint16(e.Code)
	if e.Code == 0 {
		out.Code = uint16(Unknown)
	}
	out.NotProcessed = e.NotProcessed && !in.executed
	f.Message = []byte(shorten(e.Message, maxErrorText))
	f.ErrorID = []byte(text.ID(e.ID))
	if e.RetryAfter > 0 {
		f.RetryAfter = uint64((e.RetryAfter + time.Microsecond - 1) / time.Microsecond)
	}
	f.Details = encodeDetails(e.Details)
}

// maxErrorText bounds the text of an error that travels, in bytes.
const maxErrorText = 4 << 10

// encode makes the body of the reply.
func (in *incoming) encode(out *mux.Outcome) (err error) {
	call, t := &in.call, in.target
	defer func() {
		if value := recover(); value != nil { // in a message's own method
			err = t.conn.server.panicked(in.ctx, call.Method, value)
		}
	}()
	body, as := encoded(t.codec, call.Reply)
	if !as {
		body = in.Scratch
	}
	if call.Reply != nil && !as {
		body, err = appendBody(in.Scratch, t.codec, call.Reply)
		if err != nil {
			return failure("YDL2104", "%s: %v (codec %s)", call.Method, err, t.codec.Name())
		}
		in.Scratch = body
	}
	out.Body = body
	if t.pack.Compressor != nil && len(body) >= t.pack.above {
		in.packed = t.conn.server.scratchMemory()
		var ok bool
		if *in.packed, ok, err = t.pack.pack(*in.packed, body); err != nil {
			return failure("YDL2104", "%s: %v", call.Method, err)
		} else if ok {
			out.Body, out.Compressed = *in.packed, true
		}
	}
	if n := len(out.Body) + len(out.Attachment); n > t.conn.server.limits.MaxMessage {
		out.Body, out.Attachment, out.Compressed = nil, nil, false
		return failure("YDL2202", "%s: the reply has %d bytes, the server's limit is %d", call.Method, n, t.conn.server.limits.MaxMessage)
	}
	return nil
}

// Done implements mux.Target.
func (t *target) Done(r *mux.Request, took time.Duration, handedOver bool) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	if in.packed != nil {
		t.conn.server.putScratch(in.packed)
		in.packed = nil
	}
	if in.taken != 0 {
		in.Give(in.taken)
		in.taken = 0
	}
	in.call.Attachment = nil
	code := Code(r.Reply.Code) //nolint:gosec // set from a Code
	if in.OneWay {             // no reply was made
		code = CodeOf(in.err)
	}
	if in.method != nil {
		in.method.stats.record(took, code, handedOver, in.executed)
	}
	if in.err == nil && code != 0 { // it never came to a reply: the handler ended its goroutine
		in.err = failure("YDL5002", "%s: the handler ended its goroutine", t.name)
	}
	endAll(in.ctx, &t.conn.server.guard, t.conn.server.opts.Observers, &in.call, in.err)
	if in.call.Explain || !in.left() && (in.err != nil || took != mux.Untimed && in.slow(took)) {
		in.report(took)
	}
	if in.call.watch == watched {
		r.Left = in.call.began + in.call.took
	}
	if r.Size() > smallMessage || len(r.Body) > smallMessage || len(r.Reply.Body) > smallMessage || r.Compressed {
		in.forget()
	}
}

// smallMessage is the size of a message, in bytes, up to which an ended call may keep it.
const smallMessage = 256

// forget lets go of the messages of a call that has ended, unless a handler or its goroutines may
// have the call. Its context would keep them otherwise: contexts are allocated in groups, and an
// idle connection keeps its last group.
func (in *incoming) forget() {
	last := in.own.Swap(nil)
	if in.asked.Load() {
		in.own.Store(last)
		return
	}
	in.call.Args, in.call.Reply, in.view = nil, nil, nil
	in.Body, in.Reply.Body = nil, nil
}

// left reports whether the call was a stream that its caller has ended. Many have no other end,
// which would fill the records of what has failed.
func (in *incoming) left() bool {
	return in.Stream() != nil && in.executed && CodeOf(in.err) == Canceled && in.Cause() == mux.ErrCallerGone //nolint:errorlint // it is set bare
}

// scratchMemory returns memory for compression and decompression.
func (s *Server) scratchMemory() *[]byte { return s.scratch.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

func (s *Server) putScratch(b *[]byte) {
	if cap(*b) <= keepScratch {
		*b = (*b)[:0]
		s.scratch.Put(b)
	}
}
