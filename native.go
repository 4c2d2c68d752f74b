// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/details"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the adapter of yodel's own protocol. It turns a request of package mux into a
// serverCall, and the outcome of the call into a reply.

// An incoming is a call on the server together with its request, in one allocation. It is reused if
// the handler ran on the reader goroutine and user code did not get the call: see callRef.
type incoming struct {
	mux.Request
	serverCall
	target   *target
	handling *callContext       // the handler's context, without the observers' values
	metadata Metadata           // the map for repeated metadata, kept for later calls
	repeated *metadata.Repeated // nil for none
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

// newContext returns a context that was never used. Contexts are allocated in groups, because
// allocating each one takes a tenth of a short call. A group remains in memory while a handler
// keeps one of its contexts.
func (sc *serverConn) newContext() *callContext {
	const group = 8 // half a KiB
	if len(sc.contexts) == 0 {
		sc.contexts = make([]callContext, group)
	}
	x := &sc.contexts[0]
	sc.contexts = sc.contexts[1:]
	return x
}

// bind returns the target of a method number of the peer.
func (sc *serverConn) bind(_ *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
	s := sc.server
	t := &target{conn: sc}
	t.server, t.name, t.codec = s, text.Line(string(b.Name)), s.codecs[string(b.Codec)]
	t.positional, t.kind, t.caller = b.Positional != 0, b.Kind, sc.peer.Name
	compressor := s.compressors[string(b.Compressor)]
	switch {
	case sc.late:
		t.wrong = wrongTime
	case t.codec == nil:
		t.wrong, t.absent = wrongCodec, string(b.Codec)
	case compressor == nil && len(b.Compressor) > 0:
		t.wrong, t.absent = wrongCompressor, string(b.Compressor)
	case t.name != string(b.Name):
		t.wrong = wrongName
	case compressor != nil:
		t.pack = s.calls.packer(compressor)
	}
	t.find()
	return t, wire.Info{} // only callers that may call the method get its traits: see invoke
}

// Inline implements mux.Target.
func (t *target) Inline() (inline, timed bool) {
	m := t.method.Load()
	if m == nil || !m.inline() || m.replySize.Load() >= leastLargeReply {
		return false, true
	}
	return true, m.stats.TimeNext() || t.server.tapped()
}

const (
	// leastReply is the size of replies, in bytes, from which calls of a method wait until there is
	// memory for their replies.
	leastReply = 8 << 10
	// leastLargeReply is the size of replies, in bytes, from which a method does not run on the
	// reader goroutine, because sending takes several frames.
	leastLargeReply = 64 << 10
)

// Expects implements mux.Target.
func (t *target) Expects() int {
	if m := t.method.Load(); m != nil {
		return int(m.replySize.Load())
	}
	return 0
}

// New implements mux.Target.
func (t *target) New(used *mux.Request) *mux.Request {
	x := t.conn.newContext()
	x.as = &t.boundMethod
	var in *incoming
	if used != nil && used.Owner.(*incoming).free(&x.callRef) { //nolint:forcetypeassert // New made it
		in = used.Owner.(*incoming) //nolint:forcetypeassert // New made it
		if !in.again(t) {
			in.clear()
		}
	} else {
		in = new(incoming)
		in.current.Store(&x.callRef)
	}
	x.in, in.handling = &in.serverCall, x
	in.Context = &x.Context
	if in.target != t {
		in.target, in.Owner, in.protocol = t, in, in
		in.server, in.peer, in.as = t.server, t.conn.peer, &t.boundMethod
		in.call.Method, in.call.in = t.name, &in.serverCall
		in.call.Codec, in.call.Compressor = t.codec, t.pack.Compressor
	}
	in.method = t.find()
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
		in.method.stats.Begin()
	}
	in.body, in.compressed, in.began = r.Body, r.Compressed, 0
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
	in.call.Reply, in.err = in.late.reply, in.late.err
	in.reply()
}

// later and finish implement protocolCall.
func (in *incoming) later()  { in.Later() }
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
		if err := in.openMetadata(f); err != nil {
			return err
		}
	}
	if in.Budget != 0 {
		call.Budget = int(min(in.Budget, budget.Max))
	}
	if f == nil {
		return nil
	}
	call.Criticality, call.Tenant, call.Explain = criticalityOf(f.Criticality), string(f.Tenant), f.Explain != 0
	call.IdempotencyKey, call.Key, call.Trace = string(f.IdempotencyKey), string(f.Key), string(f.Trace)
	call.Ordered = f.Epoch > 0
	call.Attempt = int(min(f.Attempt, 1<<30))
	if n := f.KeyBegan; n != 0 {
		after := time.Duration(int64(n>>1)^-int64(n&1)) * time.Microsecond
		in.keySent = in.target.conn.began + after
	}
	return nil
}

// openMetadata reads the metadata, unless the metadata and the fields that count as metadata exceed
// the limits.
func (in *incoming) openMetadata(f *wire.Fields) *Error {
	n := len(in.Metadata)
	if f != nil {
		n += len(f.IdempotencyKey) + len(f.Key) + len(f.Tenant) + len(f.Trace)
	}
	err := in.server.limits.metadata().Check(0, n)
	if err == nil {
		err = in.readMetadata(in.Metadata)
	}
	switch what := metadata.Excess(err); {
	case err == nil:
		return nil
	case what != "":
		return refusal("YDL2203", "%s: the metadata %s on the server", in.call.Method, what)
	case errors.Is(err, mux.ErrMemory):
		return refusal("YDL3007", "%s: the server has no memory left for the metadata", in.call.Method)
	}
	return refusal("YDL2205", "%s: the metadata is broken: %v", in.call.Method, err)
}

// readMetadata sets call.Metadata from b. Metadata that equals the metadata of an earlier call is
// not parsed but copied from it. A reused call keeps its map if its user has not changed the map.
func (in *incoming) readMetadata(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	sc := in.target.conn
	limits := sc.server.limits.metadata()
	if r := sc.repeated.Find(b); r != nil {
		if in.repeated != r || !r.Is(in.metadata) {
			in.metadata, in.repeated = r.Decode(), r
		}
		in.call.Metadata = in.metadata
		return nil
	}
	if len(b) > uncountedMetadata {
		cost := limits.Cost(b)
		if !in.Take(cost) {
			return mux.ErrMemory
		}
		in.counted += cost
	}
	md, err := limits.Parse(b)
	if err == nil {
		sc.repeated.Missed(b, md)
	}
	in.call.Metadata = md
	return err
}

// uncountedMetadata is the size up to which metadata is part of the fixed cost of a request.
const uncountedMetadata = 256

// learned reports the method's traits to the caller.
func (in *incoming) learned(traits uint32) {
	info := wire.Info{Known: 1}
	if traits&traitIdempotent != 0 {
		info.Idempotent = 1
	}
	if traits&traitNests != 0 {
		info.Nests = 1
	}
	in.Inform(info)
}

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
	in.Began = in.began
	if in.OneWay {
		return
	}
	call, out := &in.call, &in.Reply
	if in.err == nil {
		out.Body, out.Compressed = in.encode(&in.Scratch)
	}
	out.Attachment = call.ReplyAttachment // also with an error
	if in.method != nil {
		in.method.replied(len(out.Body) + len(out.Attachment))
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
	f.Message, f.ErrorID, f.Details = []byte(e.Message), []byte(e.ID), details.Encode(e.eachDetail)
	if e.RetryAfter > 0 {
		f.RetryAfter = uint64((e.RetryAfter + time.Microsecond - 1) / time.Microsecond)
	}
}

// Done implements mux.Target.
func (t *target) Done(r *mux.Request, took time.Duration, handedOver bool) {
	in := r.Owner.(*incoming) //nolint:forcetypeassert // New made it
	in.arrived, in.taken = r.Arrived, r.Taken
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
// have the call. Otherwise its context would keep them in memory: contexts are allocated in groups,
// and an idle connection keeps its last group.
func (in *incoming) forget() {
	last := in.current.Swap(nil)
	if in.asked.Load() {
		in.current.Store(last)
		return
	}
	in.call.Args, in.call.Reply, in.view = nil, nil, nil
	in.Body, in.Reply.Body, in.body = nil, nil, nil
}
