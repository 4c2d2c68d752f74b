// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Served is one call that a Session has received. A Protocol begins it with Session.Begin, admits
// it, fills it in, runs it, and sends what AppendReply or Reply returns:
//
//	v := session.Begin("Arith.Mul", codec, nil)
//	defer v.End()
//	if err := v.Admit(len(request), true); err != nil { … }
//	v.Body = request
//	if err := v.Run(); err == nil { reply, _, err = v.AppendReply(nil) }
//
// One goroutine at a time may use it. Cancel may be called concurrently until End is called.
type Served struct {
	// Body is the encoded request. It is valid until End.
	Body []byte
	// Compressed says that Body is compressed, with the compressor that Begin was given.
	Compressed bool
	// Owned says that Body has memory of this call's own, which the handler may keep.
	Owned bool

	in foreignCall
}

// A foreignCall is a serverCall of another protocol than yodel's.
type foreignCall struct {
	serverCall
	session  *Session
	handling foreignContext
	cancel   context.CancelCauseFunc
	owned    bool
	admitted bool
	bytes    int // that were admitted
	sent     int // bytes of the reply
}

// A foreignContext is the context of a handler.
type foreignContext struct {
	context.Context //nolint:containedctx // it is one
	callRef
}

// Value implements context.Context.
func (x *foreignContext) Value(key any) any {
	if value, known := x.value(key); known {
		return value
	}
	return x.Context.Value(key)
}

// Begin begins a call of a method. Body and reply are in codec, and may be compressed with
// compressor, which may be nil. It never returns nil: a call that cannot succeed fails in Run.
func (ses *Session) Begin(method string, codec Codec, compressor Compressor) *Served {
	return ses.begin(method, codec, compressor, false)
}

// begin is Begin for a call whose request is of several values, if positional is set.
func (ses *Session) begin(method string, codec Codec, compressor Compressor, positional bool) *Served {
	v := new(Served)
	in := &v.in
	in.session, in.server, in.peer, in.protocol = ses, ses.server, ses.Peer, in
	in.as = ses.bind(method, codec, compressor, positional)
	in.method = in.as.find()
	in.call.Method, in.call.in, in.call.Codec, in.call.Compressor = method, &in.serverCall, codec, compressor
	in.arrived = clock()
	in.handling.callRef = callRef{in.as, &in.serverCall}
	in.current.Store(&in.handling.callRef)
	in.handling.Context, in.cancel = context.WithCancelCause(ses.ctx)
	ses.note(v, true)
	return v
}

// Call returns the call as the middleware and the handler see it, to fill in metadata, a deadline
// and so on before Run. Afterwards it has the trailer and the attachment of the reply.
func (v *Served) Call() *Call { return &v.in.call }

// Admit takes a place for the call and its request of n bytes, before memory for these is
// allocated. If the session or the server has no room, it waits with wait until there is some, and
// fails without. The first call of a session also asks ServerOptions.Connect. A call that was not
// admitted was not executed.
func (v *Served) Admit(n int, wait bool) *Error {
	in := &v.in
	ses, s := in.session, in.server
	if err := ses.greet(); err != nil {
		return v.fail(asError(err))
	}
	l := &s.limits
	if n > l.MaxMessage {
		return v.fail(refusal("YDL2201", "%s: the request has %d bytes, the server's limit is %d", in.call.Method, n, l.MaxMessage))
	}
	if !ses.room.enter(ses.ctx, n, l.MaxOpen, l.MaxMemory/2, wait) {
		return v.fail(refusal("YDL3002", "%s: too many requests are open on this connection", in.call.Method))
	}
	if !s.foreign.enter(ses.ctx, n, s.opts.MaxOpen, s.opts.MaxMemory/2, wait) {
		ses.room.leave(n)
		return v.fail(refusal("YDL3002", "%s: too many requests are open on this server", in.call.Method))
	}
	if !s.memory.Take(n) {
		ses.room.leave(n)
		s.foreign.leave(n)
		return v.fail(refusal("YDL3007", "%s: the server has no memory left for what its peers make it hold", in.call.Method))
	}
	in.admitted, in.bytes = true, n
	return nil
}

// fail makes e the outcome of a call that was not executed.
func (v *Served) fail(e *Error) *Error {
	v.in.err = e
	told := v.in.outcome()
	told.NotProcessed = true
	return &told
}

// Run executes the call: observers, middleware and the method, on the calling goroutine. It ends at
// the deadline of Call, and with the session. Run returns what the caller is to be told, or nil. It
// recovers panics. If the handler ends the goroutine, Run does not return, and Outcome says so in
// the Protocol's deferred functions.
func (v *Served) Run() *Error {
	in := &v.in
	in.body, in.compressed, in.owned = v.Body, v.Compressed, v.Owned
	in.taken = clock()
	in.call.began = in.taken
	if in.method != nil {
		in.method.stats.Begin()
	}
	if at := in.call.Deadline; !at.IsZero() {
		ctx, cancel := context.WithDeadline(in.handling.Context, at)
		in.handling.Context = ctx
		defer cancel()
	}
	returned := false
	defer func() {
		if !returned {
			in.err = failure("YDL5002", "%s: the handler ended its goroutine (runtime.Goexit) instead of returning", in.call.Method)
		}
		in.cancel(nil)
	}()
	var early *Error
	if err := in.handling.Err(); err != nil {
		early = refusal("YDL1005", "%s: the deadline passed before the server could begin", in.call.Method)
		if !errors.Is(err, context.DeadlineExceeded) {
			early = refusal("YDL1006", "%s: the caller canceled it before the server could begin", in.call.Method)
		}
	}
	in.run(&in.handling, early)
	returned = true
	return v.Outcome()
}

// Outcome returns what the caller is to be told of a call that failed, or nil.
func (v *Served) Outcome() *Error {
	if v.in.err == nil {
		return nil
	}
	told := v.in.outcome()
	return &told
}

// AppendReply encodes the reply of a call that succeeded behind dst, in the call's codec.
// Compressed says that it is compressed.
func (v *Served) AppendReply(dst []byte) (reply []byte, compressed bool, err *Error) {
	in := &v.in
	var scratch []byte
	body, compressed := in.encode(&scratch)
	if in.err != nil {
		return dst, false, v.Outcome()
	}
	in.sent = len(body)
	return append(dst, body...), compressed, nil
}

// Reply returns the reply of a call that succeeded as a Go value, for protocols whose codec is not
// a Codec. A reply that is encoded already, from a cache for example, is decoded first.
func (v *Served) Reply() (any, *Error) {
	in := &v.in
	e, ok := in.call.Reply.(*Encoded)
	if !ok {
		return in.call.Reply, nil
	}
	if len(in.method.out) != 1 || e.Several {
		in.err = failure("YDL2104", "%s: the reply is of several values", in.call.Method)
		return nil, v.Outcome()
	}
	reply := reflect.New(in.method.out[0]).Interface()
	if err := decodeBody(e.Body, in.as.codec, reply); err != nil {
		in.err = failure("YDL2104", "%s: %v (codec %s)", in.call.Method, err, in.as.codec.Name())
		return nil, v.Outcome()
	}
	return reply, nil
}

// Fail makes a call fail whose reply could not be sent, for example because the protocol cannot
// carry its type. It returns what the caller is to be told.
func (v *Served) Fail(err error) *Error {
	e := failure("YDL2104", "%s: %v", v.in.call.Method, err)
	e.Cause = err
	v.in.err = e
	return v.Outcome()
}

// Cancel ends the context of the handler, because the caller has gone or does not want the reply
// any more.
func (v *Served) Cancel() { v.in.cancel(mux.ErrCallerGone) }

// End ends the call: it is counted and recorded, and its place is free. V must not be used
// afterwards.
func (v *Served) End() {
	in := &v.in
	in.cancel(nil)
	in.session.note(v, false)
	took := clock() - in.arrived
	if in.taken != 0 {
		took = clock() - in.taken
		in.done(CodeOf(in.err), took, false)
	}
	if in.admitted {
		in.server.memory.Give(in.bytes)
		in.server.foreign.leave(in.bytes)
		in.session.room.leave(in.bytes)
	}
}

// The methods of protocolCall.

func (in *foreignCall) Keep() bool                { return in.owned }
func (in *foreignCall) Take(n int) bool           { return in.server.memory.Take(n) }
func (in *foreignCall) Give(n int)                { in.server.memory.Give(n) }
func (in *foreignCall) Draining() <-chan struct{} { return in.session.draining }
func (in *foreignCall) Cause() error              { return context.Cause(in.handling.Context) }
func (in *foreignCall) Fresh() bool               { return false }
func (in *foreignCall) learned(uint32)            {}
func (in *foreignCall) sizes() (request, reply int) {
	return len(in.body), in.sent
}

func (in *foreignCall) Expired() bool {
	return errors.Is(in.handling.Err(), context.DeadlineExceeded)
}
