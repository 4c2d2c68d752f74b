// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/grpcstatus"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
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
	stream   messageStream // nil for a unary call

	body         []byte      // the received request, valid until done
	compressed   bool        // body is compressed with as.pack
	plain        bool        // the reply must not be compressed
	executed     bool        // the method itself has begun
	notProcessed bool        // the NotProcessed of outcome
	asked        atomic.Bool // user code has the call and may keep it

	current atomic.Pointer[callRef] // the handler's context while it belongs to this call
	ctx     context.Context         //nolint:containedctx // the handler's, with values of observers
	err     error

	late    *lateReply               // nil unless the handler has called Later
	packed  *[]byte                  // holds the compressed reply
	counted int                      // bytes counted for the decoded request, until done
	view    View                     // the request, for a method that takes a View
	heirs   atomic.Pointer[heritage] // inherited by the handler's calls; nil before the first

	// Readings of the clock; 0 if the adapter did not read it. Began is when the method began.
	arrived, taken, began time.Duration
	keySent               time.Duration // when the caller first sent the key, on this side's clock
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
	// learned is called when the method has other traits than as.told.
	learned(traits uint32)
	// sizes returns the sizes of the request and the reply in bytes.
	sizes() (in, out int)
}

// A messageStream carries the messages of a stream, encoded. *mux.Stream is one.
type messageStream interface {
	unpack.Account
	// Accept tells the caller that it may send messages.
	Accept()
	// Send sends a message. It does not keep body.
	Send(ctx context.Context, flags wire.Flags, body []byte) error
	// Receive returns the next message, or io.EOF after the last one. Body is valid until the next
	// Receive.
	Receive(ctx context.Context) (body []byte, flags wire.Flags, err error)
	// End tells the peer that this side sends no more messages.
	End()
	// Buffered returns how many bytes have arrived and were not received yet, or 0 if that is
	// unknown.
	Buffered() int
	// Traffic returns how much was sent and received.
	Traffic() mux.Traffic
}

// A boundMethod is a method name with the codec and the compressor that one connection uses for it.
type boundMethod struct {
	server     *Server
	name       string
	method     atomic.Pointer[method] // nil if there is no method of this name
	carried    atomic.Pointer[method] // the method, once it is known that the codec carries its types
	codec      Codec
	pack       unpack.Packer
	positional bool          // bodies are Values
	kind       uint64        // the kind of method that the caller expects
	told       atomic.Uint32 // the traits that the caller knows
	wrong      wrong         // why no call of it can succeed
	absent     string        // the codec or compressor that the server lacks

	similar atomic.Pointer[string] // the most similar method name, once it was looked up

	caller  string                       // the name of the caller, or ""
	counter atomic.Pointer[live.Counter] // nil without live data; see choose
	chosen  sync.Once
}

// A callRef is the part of a handler's context that refers to the call. It is not reused, because
// handlers keep contexts, and the call may already serve another request.
type callRef struct {
	as *boundMethod
	in *serverCall
}

// A wrong is the reason why no call of a bound method can succeed.
type wrong uint8

const (
	nothingWrong    wrong = iota
	wrongTime             // the server has been shut down
	wrongCodec            // the server lacks the codec
	wrongCompressor       // the server lacks the compressor
	wrongName             // no method can have the name: see Server.reserve
)

type callKey struct{}

// CallFrom returns the call that a handler is executing, from the handler's context. The call has
// the metadata, the attachment, the trailer to be sent, and the peer. For any other context
// CallFrom returns nil. If a goroutine outlives its handler, it must call CallFrom before the
// handler returns. Afterwards the result may have only the method's name.
func CallFrom(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// Peer returns, on the server, the caller of the call. Calls to that Peer go back over the
// connection on which this call came. On the client Peer returns nil.
func (c *Call) Peer() *Peer {
	if c.in == nil {
		return nil
	}
	return c.in.peer
}

// value returns the values of a handler's context that come from its call. Known reports whether it
// knows key.
func (r *callRef) value(key any) (value any, known bool) {
	switch key.(type) {
	case callKey:
		if c := r.hold(); c != nil {
			return &c.call, true
		}
		return &Call{Method: r.as.name}, true
	case samplerKey:
		return r.as.server.samples, true
	case heritageKey:
		if c := r.hold(); c != nil {
			if c.method != nil && !c.method.nests.Load() {
				c.method.nests.Store(true)
			}
			return c.heritage(), true
		}
		return nil, true
	}
	return nil, false
}

// hold returns the call that the reference belongs to, and prevents its reuse for another request.
// It returns nil if the call is already reused.
func (r *callRef) hold() *serverCall {
	if c := r.in; c.current.Load() == r {
		c.asked.Store(true)
		if c.current.Load() == r { // the call was not freed in the meantime
			return c
		}
	}
	return nil
}

// free makes c ready for another request, and reports whether that is possible. Next is the
// reference of that request.
func (c *serverCall) free(next *callRef) bool {
	if poison || c.asked.Load() {
		return false
	}
	last := c.current.Load()
	c.current.Store(next)
	if c.asked.Load() { // user code has got the call in the meantime
		c.current.Store(last)
		return false
	}
	return true
}

// find returns the method, or nil if the server has no such method. The method may have been
// registered or unregistered since the connection first used the name.
func (b *boundMethod) find() *method {
	m := b.method.Load()
	if m == nil || m.unnamed.Load() { // this name may have been unregistered
		now := (*b.server.methods.Load())[b.name]
		if now != m {
			if now != nil {
				b.choose()
			}
			b.method.Store(now)
		}
		return now
	}
	return m
}

// check returns why a call of m cannot succeed, whatever its body is. It formats the text for each
// call: if a connection stored a text for each method number, it would hold several times the bytes
// that its peer has sent.
func (b *boundMethod) check(m *method) *Error {
	switch {
	case b.wrong != nothingWrong:
		return b.refusal()
	case m == nil:
		return b.server.unknown(b.name, b.suggestion())
	case m.kind != b.kind && b.kind != anyKind:
		return b.mismatch(m, b.kind)
	case m.positional != b.positional && m.dynamic == nil:
		return refusal("YDL2005", "%s: the method is %s", b.name, m.signature())
	case b.carried.Load() != m:
		if why := m.uncarried[b.codec.Name()]; why != nil {
			return refusal("YDL2003", "%s: the method is %s: %v (codec %s)", b.name, m.signature(), why, b.codec.Name())
		}
		b.carried.Store(m)
	}
	return nil
}

// anyKind is the kind of a boundMethod of a protocol that does not name the kind.
const anyKind = math.MaxUint64

// mismatch returns the error of a call of m for another kind of method.
func (b *boundMethod) mismatch(m *method, kind uint64) *Error {
	return refusal("YDL2006", "%s: the method is %s of %s; the call is for %s", b.name, kinds.OneOf(m.kind), m.types(), kinds.OneOf(kind))
}

// refusal returns the error for b.wrong.
func (b *boundMethod) refusal() *Error {
	s := b.server
	switch b.wrong { //nolint:exhaustive // there is something wrong
	case wrongCodec:
		return refusal("YDL2003", "%s: this server does not have the codec %q; it has %s", b.name, b.absent, names(s.codecs))
	case wrongName:
		return refusal("YDL2001", "%.40s…: a method's name is UTF-8 of at most %d bytes, without control characters", b.name, wire.MaxName)
	case wrongCompressor:
		return refusal("YDL2004", "%s: this server does not have the compressor %q; it has %s", b.name, b.absent, names(s.compressors))
	}
	return refusal("YDL3004", "%s: the server has been shut down", b.name)
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

// A lateReply is the reply of a call whose handler has returned without it.
type lateReply struct {
	told  atomic.Bool
	ready chan struct{} // closed when the reply is there
	reply any
	err   error // an *Error, or nil
}

// Later lets a handler return without a reply, so that no goroutine waits for it. The handler
// passes the returned function to other code, and returns nil. That code calls the function with
// the reply and the error that the method would have returned. It may do so from any goroutine,
// even before the handler has returned. The function encodes the reply, and waits while the caller
// does not read its replies. Further calls of the function do nothing. If the handler returns an
// error or panics, that error or panic is the outcome of the call.
//
// The call remains open until the function is called: it counts in the limits, its context does not
// end, and Shutdown waits for it. So the function must be called in the end. Until then, arguments
// of the type View, and bodies that were not copied, remain valid. To middleware, the call ends
// when the handler returns, without a reply. To observers and statistics, it ends when it is
// answered. The goroutine waits for the reply if a middleware calls Encode, or if the call has an
// idempotency key that the server remembers. Calls with a stream cannot be answered later. For such
// a call, and on the client, Later returns nil.
func (c *Call) Later() func(reply any, err error) {
	in := c.in
	if in == nil || in.stream != nil {
		return nil
	}
	late := &lateReply{ready: make(chan struct{})}
	in.asked.Store(true) // so the call is not reused; the function may be called at any time
	in.late = late
	in.protocol.later()
	return func(reply any, err error) {
		if late.told.Swap(true) {
			return
		}
		late.reply = reply
		switch {
		case err != nil:
			late.err = asError(err)
		case reply == nil && !in.call.OneWay && (in.method == nil || len(in.method.out) > 0):
			late.err = failure("YDL5003", "%s: the handler's late reply is nil", in.as.name)
		}
		close(late.ready)
		in.protocol.finish()
	}
}

// awaitLate waits for the late reply, for code of the server that needs it, and returns its error.
func (c *serverCall) awaitLate(ctx context.Context) error {
	select {
	case <-c.late.ready:
		c.call.Reply = c.late.reply
		return c.late.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
	if v := c.served(); v != nil && v.Transform != nil && c.method.takesOne() {
		if _, err := c.call.Body(); err != nil {
			return err
		}
	}
	if c.method.newArgs == nil {
		return nil
	}
	body, codec := c.body, c.as.codec
	if c.method.views && codec == Raw && !c.compressed {
		c.view = slices.Clip(body)
		c.call.Args = &c.view
		return nil
	}
	if c.compressed {
		unpacked := c.server.scratchMemory()
		defer c.server.putScratch(unpacked)
		var err error
		if body, err = c.decompress((*unpacked)[:0]); err != nil {
			return err
		}
		c.counted += len(body) // until the method has returned, because the decoded arguments take about as much
		*unpacked = body
	}
	args := c.method.newArgs()
	if to := recipient(body, codec, args); to != nil && !c.compressed && c.protocol.Keep() {
		*to = slices.Clip(body)
	} else if err := decodeBody(body, codec, args); err != nil {
		return refusal("YDL2101", "%s: the request does not fit %s: %v (codec %s)", c.call.Method, c.method.argsName(), err, codec.Name())
	}
	c.call.Args = args
	return nil
}

// check returns why the call cannot succeed, whatever its body is, or nil.
func (c *serverCall) check() *Error {
	if v := c.served(); v != nil && v.Refusal != nil {
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

// takesOne reports whether the request of a call of m is one message.
func (m *method) takesOne() bool { return m.kind == wire.Unary || m.kind == wire.Feed }

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
		return refusal("YDL2101", "%s: the request does not fit %s: %v (codec %s)", c.call.Method, c.method.argsName(), err, c.as.codec.Name())
	}
	c.body, v.Transform = body, nil
	return nil
}

// DecodeInto decodes the request's body into v, a pointer or Values of pointers, on the server, for
// methods that HandleCall registered.
func (c *Call) DecodeInto(v any) error {
	if c.in == nil {
		return Errorf(Internal, "%s: there is no request to decode on this side", c.Method)
	}
	body, err := c.Body()
	if err != nil {
		return err
	}
	if err := decodeBody(body, c.in.as.codec, v); err != nil {
		return refusal("YDL2101", "%s: the request does not fit %T: %v (codec %s)", c.Method, v, err, c.in.as.codec.Name())
	}
	c.Args = v
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
	if !in.method.takesOne() {
		return nil, refusal("YDL2006", "%s: the method is %s, whose request is no single message", c.Method, in.method.signature())
	}
	if in.compressed {
		body, err := in.decompress(nil)
		if err != nil {
			return nil, err
		}
		in.body, in.compressed = body, false
		in.counted += len(body)
	}
	if err := in.transform(); err != nil {
		return nil, err
	}
	return in.body, nil
}

// decompress decompresses the body into memory.
func (c *serverCall) decompress(memory []byte) ([]byte, error) {
	b := c.as
	if b.pack.Compressor == nil {
		return nil, refusal("YDL2101", "%s: the request is compressed, and the compressor was not named", c.call.Method)
	}
	body, err := b.pack.Unpack(c.ctx, c.protocol, memory, c.body)
	switch {
	case err != nil && err == c.ctx.Err(): //nolint:errorlint // it is returned bare
		return nil, c.overdue()
	case errors.Is(err, mux.ErrMemory):
		return nil, refusal("YDL3007", "%s: the server has no memory left to decompress the request", c.call.Method)
	case errors.Is(err, ErrTooLarge):
		return nil, refusal("YDL2204", "%s: the request %s", c.call.Method, b.pack.TooLarge(c.body))
	case err != nil:
		return nil, refusal("YDL2101", "%s: the request cannot be decompressed: %v (%s)", c.call.Method, err, b.pack.Name())
	}
	return body, nil
}

// overdue returns the error of a call whose context ended before its request was decompressed.
func (c *serverCall) overdue() *Error {
	if c.protocol.Expired() {
		return refusal("YDL1005", "%s: the deadline passed before the server could decompress the request", c.call.Method)
	}
	return refusal("YDL1006", "%s: the caller canceled it before the server could decompress the request", c.call.Method)
}

// The traits of a method that the server reports to callers.
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

// invoke is the last handler of a server's chain. It calls the method.
func invoke(ctx context.Context, call *Call) error {
	c := call.in
	if c == nil {
		return errors.New("the server's chain was called with a Call that did not come from it")
	}
	if err := call.Decode(); err != nil {
		return err
	}
	if traits := c.method.traits(); traits != c.as.told.Load() && c.as.told.Swap(traits) != traits {
		c.protocol.learned(traits) // before the method may panic or end the goroutine
	}
	if c.method.kind != wire.Unary && c.stream == nil {
		if !call.OneWay {
			return c.as.mismatch(c.method, wire.Unary)
		}
		return refusal("YDL2006", "%s: a one-way call cannot have a stream", call.Method)
	}
	c.executed = true
	if call.Explain || !c.server.plain && !c.protocol.Fresh() {
		c.began = clock()
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
	case c.method.kind != wire.Unary:
		reply, err = c.runStream(ctx)
	case c.method.dynamic != nil:
		err = c.method.dynamic(ctx, &c.call)
	default:
		reply, err = c.method.call(ctx, c.call.Args)
	}
	if err == reflectcall.ErrNoReply && c.late != nil { //nolint:errorlint // as below
		return nil, nil //nolint:nilnil // the reply comes later
	}
	if err == reflectcall.ErrNoReply { //nolint:errorlint // it is returned bare
		err = failure("YDL5003", "%s: the handler returned neither a reply nor an error", c.as.name)
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

// replied updates the expected size of replies from a reply of n bytes. The expected size rises at
// once and falls slowly.
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

// maxErrorText is the largest text of an error that is sent, in bytes.
const maxErrorText = 4 << 10

// encode encodes and compresses the reply. It uses scratch unless the reply is already encoded. If
// it fails, it returns a nil body, and the call fails with that error.
func (c *serverCall) encode(scratch *[]byte) (body []byte, compressed bool) {
	defer func() {
		if value := recover(); value != nil { // a method of the message panicked
			body, compressed, c.err = nil, false, c.server.panicked(c.ctx, c.call.Method, value)
		}
	}()
	body, compressed, err := c.encodeReply(scratch)
	if err == nil {
		if n := len(body) + len(c.call.ReplyAttachment); n > c.server.limits.MaxMessage {
			c.call.ReplyAttachment = nil
			err = failure("YDL2202", "%s: the reply has %d bytes, the server's limit is %d", c.call.Method, n, c.server.limits.MaxMessage)
		}
	}
	if err != nil {
		c.err = err
		return nil, false
	}
	return body, compressed
}

func (c *serverCall) encodeReply(scratch *[]byte) (body []byte, compressed bool, err error) {
	reply, codec, pack := c.call.Reply, c.as.codec, &c.as.pack
	body, encodedAlready := encoded(codec, reply)
	if !encodedAlready {
		body = *scratch
		if reply != nil {
			if body, err = appendBody(body, codec, reply); err != nil {
				return nil, false, failure("YDL2104", "%s: %v (codec %s)", c.call.Method, err, codec.Name())
			}
			*scratch = body
		}
	}
	if pack.Compressor == nil || len(body) < pack.Above || c.plain {
		return body, false, nil
	}
	c.packed = c.server.scratchMemory()
	if *c.packed, compressed, err = pack.Pack(*c.packed, body); err != nil {
		return nil, false, failure("YDL2104", "%s: %v", c.call.Method, err)
	} else if compressed {
		body = *c.packed
	}
	return body, compressed, nil
}

// outcome returns the error for the caller: c.err with a code, and with limited texts.
func (c *serverCall) outcome() Error {
	e := asError(c.err)
	if e.Code == DeadlineExceeded && e.ID == "" && c.protocol.Expired() {
		e = failure("YDL1004", "%s: the deadline passed while the server was executing it", c.call.Method)
	}
	told := *e
	told.Code = cmp.Or(e.Code, Unknown)
	c.notProcessed = e.NotProcessed && !c.executed
	told.NotProcessed = c.notProcessed
	told.Message, told.ID = shorten(e.Message, maxErrorText), text.ID(e.ID)
	return told
}

// done ends the call: it counts and records it, and releases its memory. Took is the time since
// execution began. Code is the code that the caller got; for a one-way call, it is the code of the
// error.
func (c *serverCall) done(code Code, took time.Duration, handedOver bool) {
	if c.packed != nil {
		c.server.putScratch(c.packed)
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
	if c.method != nil {
		c.method.stats.End(took, int(code), handedOver, c.executed)
		if c.server.opts.CountBytes {
			c.countBytes()
		}
	}
	if c.err == nil && code != 0 { // the handler ended its goroutine, so there is no reply
		c.err = failure("YDL5002", "%s: the handler ended its goroutine", c.as.name)
	}
	if c.server.live != nil {
		c.measure(took, code)
	}
	endAll(c.ctx, c.server.guard, c.server.watchers.calls, &c.call, c.err)
	if c.server.watchers.wants(&c.call, c.err) {
		c.tellNotable(took)
	}
	if c.call.Explain || !c.left() && (c.err != nil || took != mux.Untimed && c.slow(took)) {
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
	c.method.stats.Bytes.Add(uint64(in), uint64(out))
}

// left reports whether the call was a stream that its caller has ended. Many streams normally end
// in this way. Recording them would fill the records of failed calls.
func (c *serverCall) left() bool { return c.stream != nil && c.executed && c.deserted() }

// deserted reports whether the call failed because its caller has left. No caller gets the error.
func (c *serverCall) deserted() bool {
	return CodeOf(c.err) == Canceled && c.protocol.Cause() == mux.ErrCallerGone //nolint:errorlint // it is set bare
}

// scratchMemory returns an empty buffer for compression, for decompression and for the replies of
// other protocols.
func (s *Server) scratchMemory() *[]byte { return s.scratch.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

func (s *Server) putScratch(b *[]byte) {
	if cap(*b) <= keepScratch {
		*b = (*b)[:0]
		s.scratch.Put(b)
	}
}
