// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/reuse"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the adapter of yodel's own protocol. It turns a request of package mux into a
// serverCall, and the outcome of the call into a reply.

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
	t.In, t.server, t.Name = &s.methods, s, text.Line(string(b.Name))
	codec, known := s.codecs[string(b.Codec)]
	t.Positional, t.Kind, t.caller = b.Positional != 0, b.Kind, sc.peer.Name
	compressor := s.compressors[string(b.Compressor)]
	switch {
	case sc.late:
		t.Wrong = registered.WrongTime
	case !known:
		t.Wrong, t.Absent = registered.WrongCodec, string(b.Codec)
	case compressor == nil && len(b.Compressor) > 0:
		t.Wrong, t.Absent = registered.WrongCompressor, string(b.Compressor)
	case t.Name != string(b.Name):
		t.Wrong = registered.WrongName
	}
	t.format = s.format(codec, compressor)
	t.Find()
	return t, wire.Info{} // only callers that may call the method get its traits: see invoke
}

// Inline implements mux.Target.
func (t *target) Inline() (inline, timed bool) {
	m := t.Last()
	if m == nil || !m.Inline() {
		return false, true
	}
	return true, m.Stats.TimeNext() || t.server.tapped()
}

// Expects implements mux.Target.
func (t *target) Expects() int {
	if m := t.Last(); m != nil {
		return m.Replies.Expected()
	}
	return 0
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
	r := fields.ReadRequest(f)
	call.Criticality, call.Tenant, call.Explain = r.Criticality, r.Tenant, r.Explain
	call.IdempotencyKey, call.Key, call.Trace = r.IdempotencyKey, r.Key, r.Trace
	call.Ordered, call.Attempt = r.Ordered, r.Attempt
	if r.KnowsKey {
		in.keySent = in.target.conn.began + r.KeyBegan
	}
	return nil
}

// openMetadata reads the metadata, unless the metadata and the fields that count as metadata exceed
// the limits.
func (in *incoming) openMetadata(f *wire.Fields) *Error {
	limits := in.server.limits.metadata()
	err := limits.Check(0, fields.Size(in.Metadata, f))
	if err == nil {
		var n int
		in.call.Metadata, n, err = in.kept.Read(in.Metadata, &in.target.conn.repeated, limits, in)
		in.counted += n
	}
	switch what := metadata.Excess(err); {
	case err == nil:
		return nil
	case what != "":
		return refusal("YDL2203", "%s: the metadata %s on the server", in.call.Method, what)
	case errors.Is(err, memory.ErrFull):
		return refusal("YDL3007", "%s: the server has no memory left for the metadata", in.call.Method)
	}
	return refusal("YDL2205", "%s: the metadata is broken: %v", in.call.Method, err)
}

// learned reports the method's traits to the caller.
func (in *incoming) learned(traits uint32) {
	info := wire.Info{Known: 1}
	if traits&registered.TraitIdempotent != 0 {
		info.Idempotent = 1
	}
	if traits&registered.TraitNests != 0 {
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
		calls := int64(0)
		// a reply does not wait for the registration of methods
		if s.methods.TryEach(func(m *method) { calls += m.Stats.Inflight() }) {
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
