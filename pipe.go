// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// An outgoingStream is the state of a call that opens a stream. It runs body when a server has
// accepted the call.
type outgoingStream struct {
	kind  uint64
	in    reflect.Type // of the messages to send, or nil
	out   reflect.Type // of the messages to receive, or nil
	body  func(p *pipe) error
	begun bool  // body has received a message or may have sent one, so the call cannot be repeated
	met   error // the error of body in the last attempt
	left  bool  // the caller has left its loop over the messages

	traffic mux.Traffic // of the last attempt, once it has ended, for the record
}

// A pipe sends and receives the messages of a stream, on both sides. It knows their encoding but
// not their types.
type pipe struct {
	stream        messageStream
	ctx           context.Context //nolint:containedctx // for all waits; ends with the stream
	method, where string          // where is the address of the peer
	torn, unfit   string          // the IDs of the errors of messages that cannot be decompressed, and decoded
	codec         Codec
	raw           bool // codec is Raw
	pack          *unpack.Packer
	limits        *Limits
	explain       func(err error) error // turns an error of the connection into an Error
	stats         *stats.Method         // nil on the calling side
	watch         *messageWatch         // nil if no observer watches messages
	begun         *bool                 // set by the first received message; may be nil
	opened        *time.Duration        // set to the reading of the clock when begun is set; nil if begun is nil

	sending sync.Mutex // held while a message is encoded and sent, so that messages stay in order
	body    []byte
	packed  []byte

	// For the receiver.
	unpacked []byte
	taken    int // bytes counted for the last decompressed message
	slab     slab
	reuse    bool // decode into the previous message
}

// A slab is memory for small raw messages that arrived together. A separate allocation for each
// message, and for the slice header that the receiver gets a pointer to, would cost as much as all
// other work for it.
type slab struct {
	messages [][]byte
	memory   []byte
}

const (
	// maxSlab is the approximate size of a slab, in bytes. A receiver that keeps one message keeps
	// the whole slab. A larger slab is not measurably faster.
	maxSlab = 2 << 10
	// sliceSize is the size of a slice header.
	sliceSize = 24
)

// cut returns a raw message in memory of the slab. The first message of a group sets the size of
// the slab. A message that arrives alone gets its own allocation.
func (p *pipe) cut(body []byte) *[]byte {
	if p.stats != nil {
		p.stats.Received.Add(1)
	}
	s := &p.slab
	if len(s.messages) == 0 || len(s.memory) < len(body) {
		n := min(1+p.stream.Buffered()/(wire.HeaderSize+len(body)), maxSlab/(sliceSize+len(body)))
		if n < 2 {
			msg := append([]byte(nil), body...)
			return &msg
		}
		s.messages, s.memory = make([][]byte, n), make([]byte, n*len(body))
	}
	msg := &s.messages[0]
	s.messages = s.messages[1:]
	if n := copy(s.memory, body); n > 0 {
		*msg, s.memory = s.memory[:n:n], s.memory[n:]
	}
	return msg
}

// send encodes and sends a message.
func (p *pipe) send(msg any) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	body, err := p.encode(msg)
	if err != nil {
		return err
	}
	size := len(body)
	var flags wire.Flags
	if p.pack.Compressor != nil {
		var ok bool
		if p.packed, ok, err = p.pack.Pack(p.packed, body); err != nil {
			return failure("YDL2103", "%s: %v", p.method, err)
		}
		if ok {
			body, flags = p.packed, wire.Compressed
			p.packed = keep(p.packed)
		}
	}
	if n := len(body); n > p.limits.MaxMessage {
		return failure("YDL2201", "%s: a message of the stream has %d bytes, this side's limit is %d", p.method, n, p.limits.MaxMessage)
	}
	if err := p.stream.Send(p.ctx, flags, body); err != nil {
		return p.failed(err)
	}
	if p.stats != nil {
		p.stats.Sent.Add(1)
	}
	if p.watch != nil {
		p.watch.message(p.ctx, true, size)
	}
	return nil
}

// encode returns the body of a message. It is valid until the next call.
func (p *pipe) encode(msg any) ([]byte, error) {
	if bytes, ok := msg.(*[]byte); ok && p.raw { // the message is the body
		return *bytes, nil
	}
	if e, ok := msg.(*Encoded); ok {
		return e.Body, nil
	}
	body, err := p.codec.Append(p.body[:0], msg)
	if err != nil {
		e := failure("YDL2103", "%s: %v (codec %s)", p.method, err, p.codec.Name())
		e.Cause = err
		return nil, e
	}
	p.body = keep(body)
	return body, nil
}

// noMessage returns the error of a message that is a nil pointer.
func (p *pipe) noMessage(msg any) error {
	e := failure("YDL2103", "%s: a message of the stream is a nil %T; Send.End ends the stream", p.method, msg)
	e.Cause = unsentNil{p}
	return e
}

// unsentNil is the cause of noMessage. It tells Send.End the pipe.
type unsentNil struct{ *pipe }

func (unsentNil) Error() string { return "a nil message" }

// end tells the peer that this side sends no more messages.
func (p *pipe) end() {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.stream.End()
}

// receive waits for the body of the next message. The body is valid until the next call. After the
// last message, receive returns io.EOF.
func (p *pipe) receive() ([]byte, error) {
	body, flags, err := p.stream.Receive(p.ctx)
	if err != nil {
		return nil, p.failed(err)
	}
	if p.begun != nil && !*p.begun {
		*p.begun, *p.opened = true, clock()
	}
	if flags&wire.Compressed != 0 {
		if body, err = p.unpack(body); err != nil {
			return nil, err
		}
	}
	if p.watch != nil {
		p.watch.message(p.ctx, false, len(body))
	}
	return body, nil
}

func (p *pipe) decode(body []byte, msg any) error {
	if err := p.codec.Decode(body, msg); err != nil {
		e := failure(p.unfit, "%s: a message from %s does not fit %T: %v (codec %s)", p.method, p.where, msg, err, p.codec.Name())
		e.Cause = err
		return e
	}
	if p.stats != nil {
		p.stats.Received.Add(1)
	}
	return nil
}

// giveUnpacked releases the memory counted for the last decompressed message.
func (p *pipe) giveUnpacked() {
	if p.taken != 0 {
		p.stream.Give(p.taken)
		p.taken = 0
	}
}

func (p *pipe) unpack(body []byte) ([]byte, error) {
	if p.pack.Compressor == nil {
		return nil, failure(p.torn, "%s: a message from %s is compressed, and the compressor was not named", p.method, p.where)
	}
	p.giveUnpacked()
	unpacked, err := p.pack.Unpack(p.ctx, p.stream, p.unpacked[:0], body)
	switch {
	case err != nil && err == p.ctx.Err(): //nolint:errorlint // it is returned bare
		return nil, p.failed(err)
	case errors.Is(err, mux.ErrMemory):
		return nil, failure("YDL3007", "%s: this side has no memory left to decompress a message from %s", p.method, p.where)
	case errors.Is(err, ErrTooLarge):
		return nil, failure("YDL2204", "%s: a message from %s %s", p.method, p.where, p.pack.TooLarge(body))
	case err != nil:
		return nil, failure(p.torn, "%s: a message from %s cannot be decompressed: %v (%s)", p.method, p.where, err, p.pack.Name())
	}
	p.unpacked, p.taken = keep(unpacked), len(unpacked)
	return unpacked, nil
}

// failed returns the error of a message that could not be sent or received.
func (p *pipe) failed(err error) error {
	if err == io.EOF { //nolint:errorlint // bare, it is the regular end
		return err
	}
	if large, ok := errors.AsType[*mux.TooLargeError](err); ok {
		return failure("YDL2202", "%s: a message from %s has %d bytes, this side's limit is %d", p.method, p.where, large.Size, large.Limit)
	}
	if errors.Is(err, mux.ErrMemory) {
		return failure("YDL3007", "%s: this side has no memory left for a message from %s", p.method, p.where)
	}
	if broken, ok := errors.AsType[*mux.BrokenError](err); ok {
		return failure("YDL2205", "%s: a message from %s is broken: %v", p.method, p.where, broken.Cause)
	}
	if errors.Is(err, mux.ErrSendEnded) {
		return failure("YDL2007", "%s: a message was sent after the end of the stream", p.method)
	}
	return p.explain(err)
}

// keep returns b for reuse, or nil if b is too large to keep.
func keep(b []byte) []byte {
	if cap(b) > keepScratch {
		return nil
	}
	return b[:0]
}

// converse makes one attempt of a call with a stream, on conn.
func (q *requester) converse(ctx context.Context, call *Call, conn *mux.Conn) error {
	o, s := call.out, call.stream
	if s.begun {
		return failure("YDL2007", "%s: a call with a stream cannot be made again once its messages have begun", call.Method)
	}
	s.met = nil
	st := mux.NewStream()
	o.req.Stream = st
	err := conn.Start(ctx, &o.req, call.lender(ctx, st))
	o.req.Stream = nil
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended { // body panicked or ended its goroutine
			st.Cancel(errGone)
		}
	}()
	p := q.pipe(ctx, call, o.binding, st)
	if s.kind == wire.Feed {
		p.begun, p.opened = &s.begun, &o.arrived
	} else if err = st.Accepted(ctx); err == nil {
		s.begun, o.arrived = true, clock()
	}
	if err == nil {
		err = s.run(p)
	}
	if err == nil {
		err = p.rest(s.kind)
	}
	if err != nil && ctx.Err() == nil { // otherwise the stream ends with ctx
		st.Cancel(err)
	}
	a, endErr := st.Wait()
	ended, s.traffic = true, st.Traffic()
	if endErr == nil {
		opened := o.arrived
		if endErr = q.decode(ctx, o, call, a); opened != 0 {
			o.arrived = opened
		} else if o.arrived == 0 {
			o.arrived = clock()
		}
	}
	return s.outcome(call, endErr)
}

// run runs the caller's function.
func (s *outgoingStream) run(p *pipe) error {
	if s.met = s.body(p); s.met != nil && s.kind != wire.Feed {
		s.met = &bodyError{s.met}
	}
	return s.met
}

// outcome returns the error of an attempt, of which err is the outcome for the connection.
func (s *outgoingStream) outcome(call *Call, err error) error {
	if err == nil && s.met != nil && !errors.Is(s.met, io.EOF) { // the error did not come from the server
		err = s.met
	}
	if s.left = s.met == errLeft; s.left { //nolint:errorlint // it is not wrapped
		return nil
	}
	if own, ok := err.(*bodyError); ok { //nolint:errorlint // it is not wrapped
		e := failure("YDL1006", "%s: the caller's own function ended it: %v", call.Method, own.error)
		e.Cause = own
		return e
	}
	return err
}

// pipe returns the pipe of a call with a stream.
func (q *requester) pipe(ctx context.Context, call *Call, b *binding, st messageStream) *pipe {
	where := addrOf(call)
	return &pipe{
		stream: st, ctx: ctx, method: call.Method, where: where, torn: "YDL2205", unfit: "YDL2102", codec: b.codec, raw: b.codec == Raw, pack: &b.pack, limits: &q.limits,
		explain: func(err error) error { return q.explainAt(ctx, call, where, err) },
		watch:   call.watchMessages(q.guard, call.out.watchers().messages),
	}
}

// A bodyError wraps an error that the caller's own function returned. Middleware sees a call that
// was canceled because of it, and the caller gets the unwrapped error.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

// rest waits for the end of a call whose caller sends no more messages, and discards messages that
// still arrive. It returns an error if it cannot wait for the end.
func (p *pipe) rest(kind uint64) error {
	if kind != wire.Feed {
		p.end()
	}
	for {
		if _, _, err := p.stream.Receive(p.ctx); err == io.EOF { //nolint:errorlint // it returns it bare
			return nil // the outcome of the call has the reason
		} else if err != nil {
			return p.failed(err)
		}
	}
}

// runStream runs a method with a stream.
func (c *serverCall) runStream(ctx context.Context) (any, error) {
	b, where := c.as, c.peer.Addr.String()
	pack := &b.pack
	if c.plain {
		plain := b.pack
		plain.Above = math.MaxInt
		pack = &plain
	}
	c.stream.Accept()
	return c.method.stream(ctx, &pipe{
		stream: c.stream, ctx: ctx, method: b.name, where: where, torn: "YDL2101", unfit: "YDL2101", codec: b.codec, raw: b.codec == Raw, pack: pack, limits: &c.server.limits, stats: &c.method.stats,
		explain: func(err error) error {
			if cause := c.protocol.Cause(); cause != nil { // the cause is more precise than the error of the context
				err = cause
			} else if e, ok := errors.AsType[*Error](err); ok { // an error of the Messages of another protocol
				return e
			}
			return explainStream(ctx, b.name, where, err)
		},
		watch: c.call.watchMessages(c.server.guard, c.server.watchers.messages),
	}, c.call.Args)
}

// explainStream returns the Error of a server's stream that ended before its method.
func explainStream(ctx context.Context, method, where string, err error) *Error {
	var e *Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e = failure("YDL1004", "%s: the deadline passed while the stream from %s was open", method, where)
	case errors.Is(err, mux.ErrCallerGone), errors.Is(err, context.Canceled):
		e = failure("YDL1006", "%s: the caller at %s canceled it", method, where)
	default:
		e = failure("YDL1104", "%s: the connection to %s was lost: %s", method, where, plain(err))
	}
	e.Cause = err
	return e
}
