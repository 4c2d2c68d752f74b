// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/foreign"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/reuse"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Served is one call that a Session has received. A Protocol begins it with Session.Begin, admits
// it, sets its fields, runs it, and sends the result of AppendReply or Reply:
//
//	v := session.Begin("Arith.Mul", codec, nil)
//	defer v.End()
//	if err := v.Admit(len(request), true); err != nil { … }
//	v.Body = request
//	err := v.Run()
//	if err == nil { reply, _, err = v.AppendReply(nil) }
//	… // send reply or err
//
// A Served may be used by one goroutine at a time. Cancel may be called concurrently until End is
// called.
type Served struct {
	// Body is the encoded request. It is valid until End.
	Body []byte
	// Compressed says that Body is compressed with the compressor that was given to Begin.
	Compressed bool
	// Reserved is how many bytes of Body Session.Reserve counts. Admit or End releases them.
	Reserved int
	// Several says that Body is the encoding of several values, as Encoded.SetValues makes it. It
	// must be set for methods for which Positional returns true.
	Several bool
	// Owned says that Body has memory of its own, which the handler may keep.
	Owned bool
	// Plain says that the reply must not be compressed, because the caller cannot decompress it.
	Plain bool
	// Caller is the name of the caller, if it is not Session.Peer.Name because the session has the
	// calls of several callers. It is for statistics.
	Caller string
	// Stream carries the messages of a feed, an upload or a duplex method: see Kind. Without
	// Stream, calls of such methods fail. Other methods ignore Stream.
	Stream Messages
	// Refusal is an error with which the call fails when the middleware has passed it. A Protocol
	// sets it for a request that the method cannot take, instead of answering at once. A caller
	// that the middleware refuses then does not learn which methods exist and what they take.
	Refusal *Error
	// Transform makes the encoded request of Body, for a protocol whose messages are not those of
	// the codec. The server calls it once, when the middleware has passed the call and Body is
	// decompressed. If it fails, the call fails with its error and is not executed. The result may
	// share the memory of body.
	Transform func(body []byte) (request []byte, err error)
	// Instead is called in place of the method when the middleware has passed the call, with the
	// context of a handler, for a request that is not a call of a method. May be nil.
	Instead func(ctx context.Context) error
	// Declared reports whether the caller gets an error of the handler as it is, as an exception
	// that the method declares. Session.HideErrors then does not concern the error. May be nil.
	Declared func(err error) bool

	in foreignCall
}

// A foreignCall is a serverCall of another protocol than yodel's.
type foreignCall struct {
	serverCall
	served   *Served // that it is a part of
	session  *Session
	handling *foreignContext
	waiting  *foreignContext             // ends with its caller; handling is another one for a one-way call that runs
	first    foreignContext              // of the first call in this memory
	contexts reuse.Group[foreignContext] // for later calls: see Free
	replied  chan struct{}               // closed when the late reply has come; nil if no late reply is expected
	open     session.Call                // Running says that Run has begun
	inline   interface{ More() bool }    // set while Go runs the call where it was read
	sent     int                         // bytes of the reply
	room     []byte                      // where AppendReply encodes the reply
	hidden   string                      // where the text of the error is that the caller does not see; empty if it sees it
}

// A foreignContext is the context of a handler.
type foreignContext struct {
	expiry.Context
	callRef
}

// Value implements context.Context.
func (x *foreignContext) Value(key any) any {
	if value, known := x.value(key); known {
		return value
	}
	return x.Context.Value(key)
}

// Cancel is Served.Cancel of one call, also when the Served has another one.
func (x *foreignContext) Cancel() { x.Context.Cancel(mux.ErrCallerGone) }

// Begin begins a call of a method. The body and the reply are in codec, and may be compressed with
// compressor, which may be nil. If the server has no method "shop.Cart.Add", Begin takes
// "shop.Cart/Add", and the other way round. Begin never returns nil: a call that cannot succeed
// fails in Run.
//
//nolint:contextcheck,nolintlint // the context is that of the session
func (ses *Session) Begin(method string, codec Codec, compressor compress.Compressor) *Served {
	v, again := ses.server.freed.Get().(*Served)
	if !again {
		v = new(Served)
	}
	in := &v.in
	if in.waiting = &in.first; again {
		in.waiting = in.contexts.Next()
	}
	in.session, in.server, in.peer, in.protocol, in.served = ses, ses.server, ses.Peer, in, v
	in.as = ses.bind(method, codec, compressor, nil)
	in.method = in.as.Find()
	in.call.Method, in.call.in, in.call.Codec, in.call.Compressor = in.as.Name, &in.serverCall, codec, compressor
	in.times.Arrived = clock()
	in.handle(ses.conn.Context(), in.waiting)
	ses.conn.Begin(&in.open, in.as.Name)
	return v
}

// handle makes x the context of the handler. It ends with parent.
func (in *foreignCall) handle(parent context.Context, x *foreignContext) {
	x.Init(parent)
	x.callRef = callRef{in.as, &in.serverCall}
	in.owner.Begin(&x.callRef)
	in.handling = x
}

// Call returns the Call that middleware and the handler see. Before Run, the Protocol sets its
// metadata, deadline and so on. After Run, it has the trailer and the attachment of the reply.
func (v *Served) Call() *Call { return &v.in.call }

// Kind returns the kind of the method: "unary", "feed", "upload", "duplex", or "" if the server has
// no such method. Body has the request of a unary method or a feed. AppendReply has the reply of a
// unary method or an upload.
func (v *Served) Kind() string {
	if v.in.method == nil {
		return ""
	}
	return kinds.Name(v.in.method.Kind)
}

// Positional reports whether the method takes or returns several values: see Values. The request is
// then that of several values, even if there is only one of them, and so is the reply.
func (v *Served) Positional() bool { return v.in.method != nil && v.in.method.Positional }

// ReadOnly reports whether Server.MarkReadOnly was called for the method.
func (v *Served) ReadOnly() bool { return v.in.method != nil && v.in.method.ReadOnly.Load() }

// Short reports whether calls of the method are so short that a Protocol may run the next one on
// the goroutine that reads the connection. The server learns it from all calls of the method.
func (v *Served) Short() bool { return v.in.method != nil && v.in.method.Inline() }

// Types returns the types of the messages that the method takes and returns. The type of a single
// message is without its pointer. If Positional returns true, they are the types of the values as
// the method declares them, of which there may be none. Both are nil for a method that HandleCall
// has registered, and if the server has no such method. The caller must not change them.
func (v *Served) Types() (in, out []reflect.Type) {
	if v.in.method == nil {
		return nil, nil
	}
	return v.in.method.Args, v.in.method.Results
}

// Admit takes room for the call and its request of n bytes, and for a reply of the size that the
// recent replies of the method had. A Protocol calls it when a request has arrived, or before it
// allocates memory for a small one: see Reserved. If the session or the server has no room, Admit
// waits for room if wait is true, and fails otherwise. A Protocol should call Admit with wait on
// the goroutine that reads Session.Reader, so that the client has to wait too. While Admit waits,
// it reads ahead, and ends the calls of the session if the client disconnects. If the client has
// sent more than Reader holds, and a one-way call has waited for 30 s, the client counts as
// disconnected. Admit waits until Call.Deadline at most. The first Admit of a session also calls
// ServerOptions.Connect. If Admit fails, it returns the error for the caller, and the call was not
// executed and must not run.
//
//nolint:contextcheck,nolintlint // the context is that of the call
func (v *Served) Admit(n int, wait bool) *Error {
	in := &v.in
	if how := in.open.Admittable(n); how != "" {
		return v.misused(how)
	}
	if err := in.session.conn.Greet(); err != nil {
		return v.fail(asError(err))
	}
	var replies *admission.Replies
	if m := in.method; m != nil && m.Kind == wire.Unary && !in.call.OneWay {
		replies = &m.Replies
	}
	if f := in.open.Admit(in.handling, v.terms(), n, wait, replies, &v.Reserved); f != nil {
		return v.fail(faultError(f))
	}
	return nil
}

// terms returns what the Protocol has said about the call.
func (v *Served) terms() session.Terms {
	return session.Terms{Deadline: v.in.call.Deadline, OneWay: v.in.call.OneWay, Refused: v.Refusal != nil}
}

// misused returns the error of a Protocol that has used v in a wrong way. If the call has not run,
// that error becomes its outcome.
func (v *Served) misused(how string) *Error {
	e := Errorf(Internal, "%s: the code of the protocol %s", v.in.call.Method, how)
	if v.in.open.Admitted() {
		return e
	}
	return v.fail(e)
}

// fail makes e the outcome of a call that was not executed.
func (v *Served) fail(e *Error) *Error {
	v.in.err = e
	told := v.Outcome()
	told.NotProcessed = true
	return told
}

// Run executes the call on the calling goroutine: observers, middleware and the method. The
// handler's context ends at the deadline of Call and with the session, or 30 s after the session if
// the call is one-way. Run returns the error for the caller, or nil. It recovers panics. If the
// handler ends the goroutine, Run does not return. The Protocol's deferred functions then get the
// error from Outcome.
//
//nolint:contextcheck,nolintlint // the context is that of the call
func (v *Served) Run() *Error {
	in := &v.in
	of := boundFor{cmp.Or(v.Caller, in.session.Peer.Name), v.Several}
	if b := in.as; (of.positional != b.Positional || of.caller != b.caller) && b.Wrong != registered.WrongName && !in.open.Running.Load() {
		in.as = in.session.bind(b.asked, b.format.Codec, b.format.Pack.Compressor, &of)
	}
	if in.err != nil && !in.open.Running.Load() { // Admit or Fail has set the error
		return v.Outcome()
	}
	if how := in.open.Start(); how != "" {
		return v.misused(how)
	}
	in.body, in.compressed, in.plain = v.Body, v.Compressed, v.Plain
	in.times.Taken = clock()
	in.call.began = in.times.Taken
	if in.method != nil && in.method.Kind != wire.Unary && v.Stream != nil {
		in.stream = &foreign.Stream{Messages: v.Stream, Memory: &in.open, Most: in.server.limits.MaxMessage}
	}
	if in.method != nil {
		in.method.Stats.Begin()
	}
	if in.call.OneWay {
		in.handle(in.session.conn.OneWay(), new(foreignContext))
	}
	if at := in.call.Deadline; !at.IsZero() {
		in.handling.Limit(at)
	}
	returned := false
	defer func() {
		if !returned {
			in.err = failure("YDL5002", "%s: the handler ended its goroutine (runtime.Goexit) instead of returning", in.call.Method)
		}
		in.handling.Return()
	}()
	in.run(in.handling, faultError(in.open.Late(in.handling, v.terms())))
	returned = true
	if in.late != nil && in.err == nil {
		<-in.replied // this goroutine belongs to the Protocol
		in.call.Reply, in.err = in.late.Get()
	}
	return v.Outcome()
}

// later and finish implement protocolCall.
func (c *foreignCall) later()  { c.replied = make(chan struct{}) }
func (c *foreignCall) finish() { close(c.replied) }

// Go calls f, which runs the call and sends its reply, on the calling goroutine if Short returns
// true and More may be used or no other message has arrived, and like Session.Go otherwise. If f
// takes longer than about a millisecond, another goroutine reads on. Only the function that was
// passed to Session.Loop calls Go, at its end.
func (v *Served) Go(f func()) {
	if !v.Short() || !v.in.session.conn.Here(f, &v.in.inline) {
		v.in.session.Go(f)
	}
}

// More reports whether the Protocol may leave the reply, which it has queued, to the flush of
// Session.Loop, because more messages have arrived. Only the function of Go calls More.
func (v *Served) More() bool { return v.in.inline != nil && v.in.inline.More() }

// Outcome returns the error for the caller, or nil if the call has not failed.
func (v *Served) Outcome() *Error {
	if v.in.err == nil {
		return nil
	}
	told := v.in.outcome()
	if v.in.session.HideErrors && (v.Declared == nil || !v.Declared(v.in.err)) {
		v.in.hide(&told)
	}
	return &told
}

// hide leaves in told, the error for the caller, only what was written for the caller: see
// Session.HideErrors.
func (in *foreignCall) hide(told *Error) {
	err := in.err
	e, _ := within(err)
	for e != nil && e.foreign {
		err = e.Cause
		e, _ = within(err)
	}
	code, isCode := errors.AsType[Code](err)
	switch {
	case e != nil && !e.relayed && (!in.executed || !e.is(catalogue.OfClient|catalogue.AboutConnection)):
		told.Message = shorten(e.Message, fields.MaxText) // without the text of what wraps it
		if e.public != "" {
			told.Message = shorten(e.public, fields.MaxText/2)
		}
		if e.public != "" && (e.ID == "" || e.is(catalogue.Unencoded)) { // not a mistake of the caller
			told.Message += "; " + in.noteHidden(err)
		}
		return
	case e == nil && told.ID != "": // the server has replaced an error of the context
		return
	case e == nil && isCode:
		told.Message = code.String()
	default:
		told.Message = "the call failed"
		switch told.Code {
		case Canceled, DeadlineExceeded, ResourceExhausted, Aborted, Unavailable: // the caller's call, too, may succeed later
		default: // the code is about a call that the caller did not make
			told.Code = Internal
		}
	}
	told.ID, told.Details = "", nil
	told.Message = fmt.Sprintf("%s: %s; %s", in.call.Method, told.Message, in.noteHidden(err))
}

// noteHidden logs, once, the error that the caller does not see, and returns where its text is.
func (in *foreignCall) noteHidden(err error) (where string) {
	if in.hidden == "" && !in.deserted() {
		in.hidden = in.server.peerLines.LogHidden(in.call.Method, err)
	}
	return cmp.Or(in.hidden, "its caller has left")
}

// unanswered returns the error of a call that has no reply, or nil.
func (v *Served) unanswered() *Error {
	if v.in.times.Taken == 0 {
		return v.misused("asked for the reply of a call that it has not run")
	}
	return v.Outcome()
}

// AppendReply appends the encoded reply of a successful call to dst, in the call's codec.
// Compressed reports whether the reply is compressed.
func (v *Served) AppendReply(dst []byte) (reply []byte, compressed bool, err *Error) {
	in := &v.in
	if e := v.unanswered(); e != nil {
		return dst, false, e
	}
	returned := false
	defer func() {
		if !returned {
			in.err = failure("YDL5002", "%s: the reply ended the goroutine (runtime.Goexit) that encoded it", in.call.Method)
		}
	}()
	in.room = dst[len(dst):]
	scratch := &in.room
	if cap(in.room) == 0 {
		scratch = in.server.scratch.Get()
		defer in.server.scratch.Put(scratch)
	}
	body, compressed := in.encode(scratch)
	returned, in.room = true, nil
	if in.err != nil {
		return dst, false, v.Outcome()
	}
	in.sent = len(body)
	if in.method != nil {
		in.method.Replies.Learn(len(body))
	}
	if n := len(dst); n < cap(dst) && len(body) > 0 && &body[0] == &dst[:n+1][n] { // it was encoded there
		return dst[:n+len(body)], compressed, nil
	}
	return append(dst, body...), compressed, nil
}

// Reply returns the reply of a successful call as a Go value, for protocols whose codec is not a
// Codec. A reply that is already encoded, for example by a cache, is decoded first.
func (v *Served) Reply() (any, *Error) {
	in := &v.in
	if e := v.unanswered(); e != nil {
		return nil, e
	}
	e, ok := in.call.Reply.(*Encoded)
	if !ok {
		return in.call.Reply, nil
	}
	if in.method != nil && len(in.method.Results) == 0 && len(e.Body) == 0 {
		return nil, nil
	}
	if in.method == nil || len(in.method.Results) != 1 || e.Several {
		in.err = failure("YDL2104", "%s: the reply is encoded, and is not of one type that the server knows", in.call.Method)
		return nil, v.Outcome()
	}
	reply := reflect.New(in.method.Results[0]).Interface()
	if err := in.as.format.Decode(e.Body, reply); err != nil {
		in.err = faultError(in.as.format.Unencodable(in.call.Method, err))
		return nil, v.Outcome()
	}
	return reply, nil
}

// Fail makes a call fail because its reply could not be sent, for example because the protocol
// cannot represent its type. It returns the error for the caller.
func (v *Served) Fail(err error) *Error {
	v.in.err = failure("YDL2104", "%s: %v", v.in.call.Method, err).misfit(v.in.call.Method, err)
	return v.Outcome()
}

// LeftOut counts and logs, at a limited rate, that the reply is sent without the metadata of a key.
// Why says why the protocol cannot carry it. A Protocol calls it in place of Fail, because the
// method was executed: what the protocol cannot encode beside the reply does not fail the call.
func (v *Served) LeftOut(key, why string) { v.in.leftOut(key, why) }

// Panicked is Fail for a reply whose own code has panicked with value. It counts and logs the
// panic, and the error for the caller names only the number of the log line. The deferred function
// that has recovered the panic calls it.
func (v *Served) Panicked(value any) *Error {
	v.in.err = v.in.server.panicked(v.in.ctx, v.in.call.Method, value)
	return v.Outcome()
}

// Cancel ends the context of the handler, unless the call is one-way and running. A Protocol calls
// Cancel when the caller has disconnected or no longer wants the reply.
func (v *Served) Cancel() { v.in.waiting.Cancel() }

// Canceler returns a value whose Cancel is that of v, and may be called at any time. After the end
// of the call it does nothing, also if the server uses v for another call: see Free.
func (v *Served) Canceler() interface{ Cancel() } { return v.in.waiting }

// End ends the call: it counts and records the call and frees its room. V must not be used
// afterwards, except for another End, which does nothing.
func (v *Served) End() {
	in := &v.in
	if !in.open.Stop(in.times.Taken != 0) {
		return
	}
	in.waiting.Return()
	defer in.open.End(&v.Reserved) // also if an observer ends the goroutine
	if in.times.Taken != 0 {
		in.done(CodeOf(in.err), clock()-in.times.Taken, false)
	}
}

// Free is End for a Protocol that has no other reference to v and to what Call has returned. The
// server then uses v for another call, unless the handler may have kept the call.
func (v *Served) Free() {
	v.End()
	in, m := &v.in, v.in.method
	if m == nil || m.Dynamic != nil || m.Kind != wire.Unary || in.err != nil || in.call.OneWay || v.Instead != nil { // not all of it is reset below
		return
	}
	if reuse.Poison || !in.server.plain || in.server.watchers.wants(&in.call, nil) || !in.owner.Drop(&in.held) { // user code may have it
		return
	}
	v.Body, v.Compressed, v.Several, v.Owned, v.Plain, v.Caller = nil, false, false, false, false, ""
	v.Stream, v.Refusal, v.Transform, v.Declared = nil, nil, nil, nil
	in.call, in.method, in.session, in.peer, in.as, in.ctx = Call{}, nil, nil, nil, nil, nil
	in.body, in.view, in.compressed, in.plain = nil, nil, false, false
	in.executed, in.notProcessed = false, false
	in.times, in.keySent, in.sent, in.room, in.inline = record.Served{}, 0, 0, nil, nil
	in.open.Free()
	in.server.freed.Put(v)
}

// The methods of protocolCall.

func (in *foreignCall) Keep() bool                  { return in.served.Owned }
func (in *foreignCall) Take(n int) bool             { return in.open.Take(n) }
func (in *foreignCall) Give(n int)                  { in.open.Give(n) }
func (in *foreignCall) Draining() <-chan struct{}   { return in.session.Draining() }
func (in *foreignCall) Cause() error                { return context.Cause(in.handling) }
func (in *foreignCall) Fresh() bool                 { return false }
func (in *foreignCall) learned(uint32)              {}
func (in *foreignCall) sizes() (request, reply int) { return len(in.body), in.sent }
func (in *foreignCall) Expired() bool               { return errors.Is(in.handling.Err(), context.DeadlineExceeded) }
