// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A serverCall is a call that a server executes, whatever protocol it arrived in. The adapter of
// the protocol embeds it, fills it in, and calls run, encode, outcome and done in this order.
type serverCall struct {
	call     Call // what the chain sees
	server   *Server
	peer     *Peer
	as       *boundMethod
	method   *method // nil if the server has none of that name
	protocol protocolCall
	stream   messageStream // nil for a unary call

	body       []byte // the request as it came, valid until done
	compressed bool   // with as.pack

	current atomic.Pointer[callRef] // the handler's context while it belongs to this call
	asked   atomic.Bool             // user code has the call, and may keep it
	ctx     context.Context         //nolint:containedctx // the handler's, with what the observers added
	err     error

	executed     bool                     // the method itself has begun
	notProcessed bool                     // what outcome said
	packed       *[]byte                  // memory of the compressed reply
	counted      int                      // bytes counted for what was made of the request, until done
	view         View                     // the request, for a method that only looks at it
	heirs        atomic.Pointer[heritage] // what calls inherit that the handler makes; nil before the first

	// Readings of the clock; 0 where the adapter has not looked. Began is when the method began.
	arrived, taken, began time.Duration
	keySent               time.Duration // when the caller first sent the idempotency key, on this side's clock
}

// A protocolCall is what only the adapter of a protocol knows of a call. An ordinary unary call
// needs none of it.
type protocolCall interface {
	account
	// Keep reports whether the handler may keep the body, because it has memory of its own.
	Keep() bool
	// Draining returns a channel that is closed when the server begins to shut down.
	Draining() <-chan struct{}
	// Expired reports whether the deadline has passed.
	Expired() bool
	// Cause tells why the caller's side ended the call; nil before.
	Cause() error
	// Fresh reports whether the request has just been read, so that the clock has not moved on.
	Fresh() bool
	// learned is called when the method has other traits than as.told says.
	learned(traits uint32)
	// sizes returns how many bytes the request and the reply have.
	sizes() (in, out int)
}

// A messageStream carries the messages of a stream, encoded. *mux.Stream is one.
type messageStream interface {
	account
	// Accept lets the caller send.
	Accept()
	// Send sends a message, of which it keeps nothing.
	Send(ctx context.Context, flags wire.Flags, body []byte) error
	// Receive returns the next message, which is valid until the one after it, or io.EOF.
	Receive(ctx context.Context) (body []byte, flags wire.Flags, err error)
	// End says that no more messages will be sent.
	End()
	// Buffered returns how many bytes have come that were not received; 0 if it does not know.
	Buffered() int
	// Traffic returns what was sent and received.
	Traffic() mux.Traffic
}

// A boundMethod is a method under the name, the codec and the compressor with which one connection
// calls it.
type boundMethod struct {
	server     *Server
	name       string
	method     atomic.Pointer[method] // nil while there is none of this name
	codec      Codec
	pack       packer
	positional bool          // bodies are Values
	kind       uint64        // what kind of method the caller takes it for
	told       atomic.Uint32 // which traits of the method the caller knows
	wrong      wrong         // why no call of it can succeed
	absent     string        // the codec or compressor that the server lacks

	similar atomic.Pointer[string] // the method's name that is most like name, once it was looked for
}

// A callRef is the part of a handler's context that leads to the call. It is never used again,
// because handlers keep contexts; the call may serve another request by then.
type callRef struct {
	as *boundMethod
	in *serverCall
}

// A wrong is why no call of a bound method can succeed.
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
	return c.in.peer
}

// value answers what a handler's context knows of its call. The bool reports whether it knows key.
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
			if !c.method.nests.Load() {
				c.method.nests.Store(true)
			}
			return c.heritage(), true
		}
		return nil, true
	}
	return nil, false
}

// hold returns the call that the reference belongs to, which then serves no other request. It
// returns nil if the call already does.
func (r *callRef) hold() *serverCall {
	if c := r.in; c.current.Load() == r {
		c.asked.Store(true)
		if c.current.Load() == r { // it has not been freed meanwhile
			return c
		}
	}
	return nil
}

// free ends the use of c for a request, and reports whether c may be used for another one, whose
// reference is next.
func (c *serverCall) free(next *callRef) bool {
	if poison || c.asked.Load() {
		return false
	}
	last := c.current.Load()
	c.current.Store(next)
	if c.asked.Load() { // it has happened just before that
		c.current.Store(last)
		return false
	}
	return true
}

// find returns the method, which may have been registered or unregistered after the caller first
// asked for it.
func (b *boundMethod) find() *method {
	m := b.method.Load()
	if m == nil || m.unnamed.Load() { // perhaps of this name
		now := (*b.server.methods.Load())[b.name]
		if now != m {
			b.method.Store(now)
		}
		return now
	}
	return m
}

// check reports why a call of m cannot succeed, whatever its body is. It makes the error's text for
// each call: a connection that kept a text for each method number would hold several times the
// bytes that its peer sent.
func (b *boundMethod) check(m *method) *Error {
	switch {
	case b.wrong != nothingWrong:
		return b.refusal()
	case m == nil:
		return b.server.unknown(b.name, b.suggestion())
	case m.kind != b.kind:
		return refusal("YDL2006", "%s: the method is %s of %s; the call is for %s", b.name, oneOf(m.kind), m.types(), oneOf(b.kind))
	case m.positional != b.positional && m.dynamic == nil:
		return refusal("YDL2005", "%s: the method is %s", b.name, m.signature())
	}
	return nil
}

// refusal explains b.wrong.
func (b *boundMethod) refusal() *Error {
	s := b.server
	switch b.wrong { //nolint:exhaustive // there is something wrong
	case wrongCodec:
		return refusal("YDL2003", "%s: this server does not have the codec %q; it has %s", b.name, b.absent, names(s.codecs))
	case wrongCompressor:
		return refusal("YDL2004", "%s: this server does not have the compressor %q; it has %s", b.name, b.absent, names(s.compressors))
	}
	return refusal("YDL3004", "%s: the server has been shut down", b.name)
}

// run carries out the call with the handler's context, unless early says why it fails before that.
// It makes a panic an error.
func (c *serverCall) run(ctx context.Context, early *Error) {
	c.ctx = ctx
	defer func() {
		if value := recover(); value != nil {
			c.err = c.server.panicked(c.ctx, c.call.Method, value)
		}
	}()
	c.ctx = startAll(ctx, c.server.opts.Observers, &c.call)
	if early != nil {
		c.err = early
		return
	}
	if err := c.server.handler(c.ctx, &c.call); err != nil {
		c.err = asError(err) // here, because an error's own method may panic
	}
}

// Decode makes Args of the request's body, on the server. The method does so itself just before it
// runs; middleware that wants to see the arguments may do so earlier.
func (c *Call) Decode() error {
	if c.in == nil || c.Args != nil {
		return nil
	}
	return c.in.decode()
}

func (c *serverCall) decode() error {
	if e := c.as.check(c.method); e != nil {
		return e
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
		c.counted += len(body) // until the method has returned, as what is decoded from it takes about as much
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

// Executed reports whether the method itself has begun, on the server. If it has not, the call was
// not executed, whatever error middleware returned.
func (c *Call) Executed() bool { return c.in != nil && c.in.executed }

// Body returns what the arguments are encoded in, decompressed, on the server, for middleware that
// compares requests without decoding them. It is valid until the method returns, and must not be
// changed. Decode then need not decompress it again. A stream has none, which is an error.
func (c *Call) Body() ([]byte, error) {
	in := c.in
	if in == nil {
		return nil, nil
	}
	if e := in.as.check(in.method); e != nil {
		return nil, e
	}
	if in.method.kind != wire.Unary {
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
	return in.body, nil
}

// decompress decompresses the body into memory.
func (c *serverCall) decompress(memory []byte) ([]byte, error) {
	b := c.as
	if b.pack.Compressor == nil {
		return nil, refusal("YDL2205", "%s: the request is compressed, and the compressor was not named", c.call.Method)
	}
	body, err := b.pack.unpack(c.protocol, memory, c.body, c.server.limits.MaxDecompressed)
	switch {
	case errors.Is(err, mux.ErrMemory):
		return nil, refusal("YDL3007", "%s: the server has no memory left to decompress the request", c.call.Method)
	case errors.Is(err, ErrTooLarge):
		return nil, refusal("YDL2204", "%s: the request has more than %d bytes after decompression (%s)", c.call.Method, c.server.limits.MaxDecompressed, b.pack.Name())
	case err != nil:
		return nil, refusal("YDL2205", "%s: the request cannot be decompressed: %v (%s)", c.call.Method, err, b.pack.Name())
	}
	return body, nil
}

// The traits of a method that callers are told of.
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

// invoke is the end of a server's chain: the method.
func invoke(ctx context.Context, call *Call) error {
	c := call.in
	if c == nil {
		return errors.New("the server's chain was called with a Call that did not come from it")
	}
	if err := call.Decode(); err != nil {
		return err
	}
	if traits := c.method.traits(); traits != c.as.told.Load() && c.as.told.Swap(traits) != traits {
		c.protocol.learned(traits) // before the method can be interrupted
	}
	if c.method.kind != wire.Unary && c.stream == nil {
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
	if err == errNoReply { //nolint:errorlint // it is returned bare
		err = failure("YDL5003", "%s: the handler returned neither a reply nor an error", c.as.name)
	}
	return reply, err
}

// Draining returns a channel that is closed when the server begins to shut down, on the server: a
// handler whose stream has no end of its own should then end it. It is nil on the client.
func (c *Call) Draining() <-chan struct{} {
	if c.in == nil {
		return nil
	}
	return c.in.protocol.Draining()
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

// maxErrorText bounds the text of an error that travels, in bytes.
const maxErrorText = 4 << 10

// encode encodes the reply, into scratch unless it is encoded already, and compresses it. If it
// fails, the call fails with that error, and the body is nil.
func (c *serverCall) encode(scratch *[]byte) (body []byte, compressed bool) {
	defer func() {
		if value := recover(); value != nil { // in a message's own method
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
	if pack.Compressor == nil || len(body) < pack.above {
		return body, false, nil
	}
	c.packed = c.server.scratchMemory()
	if *c.packed, compressed, err = pack.pack(*c.packed, body); err != nil {
		return nil, false, failure("YDL2104", "%s: %v", c.call.Method, err)
	} else if compressed {
		body = *c.packed
	}
	return body, compressed, nil
}

// outcome returns what the caller is told of c.err: bounded, and with a code.
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

// done ends the call, which took so long since it was taken up: it counts and records it, and gives
// memory back. Code is what the caller was told; it is read from the error if nothing was told.
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
	if c.call.OneWay { // no reply was made
		code = CodeOf(c.err)
	}
	if c.method != nil {
		c.method.stats.End(took, int(code), handedOver, c.executed)
	}
	if c.err == nil && code != 0 { // it never came to a reply: the handler ended its goroutine
		c.err = failure("YDL5002", "%s: the handler ended its goroutine", c.as.name)
	}
	endAll(c.ctx, &c.server.guard, c.server.opts.Observers, &c.call, c.err)
	if c.call.Explain || !c.left() && (c.err != nil || took != mux.Untimed && c.slow(took)) {
		c.report(took)
	}
}

// left reports whether the call was a stream that its caller has ended. Many have no other end,
// which would fill the records of what has failed.
func (c *serverCall) left() bool {
	return c.stream != nil && c.executed && CodeOf(c.err) == Canceled && c.protocol.Cause() == mux.ErrCallerGone //nolint:errorlint // it is set bare
}

// scratchMemory returns memory for compression and decompression.
func (s *Server) scratchMemory() *[]byte { return s.scratch.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

func (s *Server) putScratch(b *[]byte) {
	if cap(*b) <= keepScratch {
		*b = (*b)[:0]
		s.scratch.Put(b)
	}
}
