// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// An outgoingStream is what a call does that opens a stream: it runs body when a server has taken
// the call.
type outgoingStream struct {
	kind  uint64
	body  func(p *pipe) error
	begun bool // body has seen a message, or may have sent one: the call cannot be made again
	left  bool // the caller has left the loop

	traffic mux.Traffic // of the last attempt, when it has ended; for its record
}

// A pipe carries messages over a stream, the same on both sides: it knows how they are encoded, not
// their types.
type pipe struct {
	stream  messageStream
	ctx     context.Context //nolint:containedctx // of all waits: it ends with the stream
	method  string
	where   string // the peer
	codec   Codec
	raw     bool // that is codec
	pack    packer
	limits  *Limits
	explain func(err error) error // makes an Error of what the connection says
	stats   *stats.Method         // nil on the side that calls
	begun   *bool                 // set with the first message that comes; nil where that changes nothing
	opened  *time.Duration        // set then to the clock; nil where begun is

	sending sync.Mutex // held while a message is encoded and sent, so that messages go out in the order of their calls
	body    []byte
	packed  []byte

	// The receiver's.
	unpacked []byte
	taken    int // counted for the last message that was decompressed
	slab     slab
	reuse    bool // the memory of the message before
}

// A slab is what small raw messages are cut from that have come together: an allocation for each,
// and for the slice that the receiver gets a pointer to, would cost as much as all else that is
// done for them.
type slab struct {
	messages [][]byte
	memory   []byte
}

const (
	// maxSlab is about how many bytes a slab has, and so what somebody keeps who keeps one of its
	// messages. More than this makes no difference any more: 1 and 2 KiB, 4 and 8 cost the same
	// within what can be measured.
	maxSlab = 2 << 10
	// sliceSize is what the slice takes.
	sliceSize = 24
)

// cut returns a raw message. The first one of several that have come decides how large the slab is,
// so one that comes alone has memory of its own.
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
	var flags wire.Flags
	if p.pack.Compressor != nil {
		var ok bool
		if p.packed, ok, err = p.pack.pack(p.packed, body); err != nil {
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
	return nil
}

// encode returns the body of a message, which is valid until the next one.
func (p *pipe) encode(msg any) ([]byte, error) {
	if bytes, ok := msg.(*[]byte); ok && p.raw { // it is the body
		return *bytes, nil
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

// end says that this side sends no more messages.
func (p *pipe) end() {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.stream.End()
}

// receive waits for the body of a message, which is valid until the next one. It returns io.EOF
// after the last one.
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
	return body, nil
}

func (p *pipe) decode(body []byte, msg any) error {
	if err := p.codec.Decode(body, msg); err != nil {
		e := failure("YDL2102", "%s: a message from %s does not fit %T: %v (codec %s)", p.method, p.where, msg, err, p.codec.Name())
		e.Cause = err
		return e
	}
	if p.stats != nil {
		p.stats.Received.Add(1)
	}
	return nil
}

// giveUnpacked gives back what is counted for the last message that was decompressed.
func (p *pipe) giveUnpacked() {
	if p.taken != 0 {
		p.stream.Give(p.taken)
		p.taken = 0
	}
}

func (p *pipe) unpack(body []byte) ([]byte, error) {
	if p.pack.Compressor == nil {
		return nil, failure("YDL2205", "%s: a message from %s is compressed, and the compressor was not named", p.method, p.where)
	}
	p.giveUnpacked()
	body, err := p.pack.unpack(p.stream, p.unpacked[:0], body, p.limits.MaxDecompressed)
	switch {
	case errors.Is(err, mux.ErrMemory):
		return nil, failure("YDL3007", "%s: this side has no memory left to decompress a message from %s", p.method, p.where)
	case errors.Is(err, ErrTooLarge):
		return nil, failure("YDL2204", "%s: a message from %s has more than %d bytes after decompression (%s)", p.method, p.where, p.limits.MaxDecompressed, p.pack.Name())
	case err != nil:
		return nil, failure("YDL2205", "%s: a message from %s cannot be decompressed: %v (%s)", p.method, p.where, err, p.pack.Name())
	}
	p.unpacked, p.taken = keep(body), len(body)
	return body, nil
}

// failed says why a message could not be sent or received.
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

// keep returns memory for the next message, unless it has become so large that keeping it would be
// a waste.
func keep(b []byte) []byte {
	if cap(b) > keepScratch {
		return nil
	}
	return b[:0]
}

// converse makes one attempt of a call that has a stream, on conn.
func (q *requester) converse(ctx context.Context, call *Call, conn *mux.Conn) error {
	o, s, where := call.out, call.stream, addrOf(call)
	if s.begun {
		return failure("YDL2007", "%s: a call with a stream cannot be made again once its messages have begun", call.Method)
	}
	st := mux.NewStream()
	o.req.Stream = st
	err := conn.Start(ctx, &o.req, call.lender(ctx, st))
	o.req.Stream = nil
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended { // body panicked, or ended its goroutine
			st.Cancel(errGone)
		}
	}()
	p := &pipe{
		stream: st, ctx: ctx, method: call.Method, where: where, codec: o.binding.codec, raw: o.binding.codec == Raw, pack: o.binding.pack, limits: &q.limits,
		explain: func(err error) error { return q.explainAt(ctx, call, where, err) },
	}
	if s.kind == wire.Feed {
		p.begun, p.opened = &s.begun, &o.arrived
	} else if err = st.Accepted(ctx); err == nil {
		s.begun, o.arrived = true, clock()
	}
	var met error // what body met with
	if err == nil {
		err = s.body(p)
		if err != nil && s.kind != wire.Feed {
			err = &bodyError{err}
		}
		met = err
	}
	if err == nil {
		err = p.rest(s.kind)
	}
	if err != nil && ctx.Err() == nil { // else it ends with ctx
		st.Cancel(err)
	}
	a, endErr := st.Wait()
	ended, s.traffic = true, st.Traffic()
	if endErr == nil {
		opened := o.arrived
		if endErr = q.decode(o, call, a); opened != 0 {
			o.arrived = opened
		} else if o.arrived == 0 {
			o.arrived = clock()
		}
		if endErr == nil && met != nil && !errors.Is(met, io.EOF) { // the server knew nothing of it
			endErr = met
		}
	}
	if s.left = met == errLeft; s.left { //nolint:errorlint // nobody has wrapped it
		return nil
	}
	if own, ok := endErr.(*bodyError); ok { //nolint:errorlint // nobody has wrapped it
		e := failure("YDL1006", "%s: the caller's own function ended it: %v", call.Method, own.error)
		e.Cause = own
		return e
	}
	return endErr
}

// A bodyError is an error that the caller's own function returned. The chain sees a call that was
// canceled because of it, and the caller gets it back as it was.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

// rest waits for the end of a call whose caller has nothing more to say, and drops what still
// comes. An error means that it cannot be waited for.
func (p *pipe) rest(kind uint64) error {
	if kind != wire.Feed {
		p.end()
	}
	for {
		if _, _, err := p.stream.Receive(p.ctx); err == io.EOF { //nolint:errorlint // it returns it bare
			return nil // the outcome says why
		} else if err != nil {
			return p.failed(err)
		}
	}
}

// runStream runs a method that has a stream.
func (c *serverCall) runStream(ctx context.Context) (any, error) {
	b, where := c.as, c.peer.Addr.String()
	c.stream.Accept()
	return c.method.stream(ctx, &pipe{
		stream: c.stream, ctx: ctx, method: b.name, where: where, codec: b.codec, raw: b.codec == Raw, pack: b.pack, limits: &c.server.limits, stats: &c.method.stats,
		explain: func(err error) error {
			if cause := c.protocol.Cause(); cause != nil { // it says more than a context that has ended
				err = cause
			}
			return explainStream(ctx, b.name, where, err)
		},
	}, c.call.Args)
}

// explainStream makes an Error of why a server's stream has ended before its method.
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
