// SPDX-License-Identifier: Apache-2.0

// Package pipe sends and receives the messages of a stream, on both sides. It encodes and
// compresses them, bounds their sizes, and counts their memory. It knows no calls.
package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/rawcodec"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Stream carries the messages of a stream, encoded. *mux.Stream is one.
type Stream interface {
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

// A Codec is a yodel.Codec.
type Codec interface {
	Name() string
	Append(dst []byte, v any) ([]byte, error)
	Decode(src []byte, v any) error
}

// A Pipe sends and receives messages. It knows their encoding but not their types. Its exported
// fields do not change after its first use, except Reuse.
type Pipe struct {
	Stream      Stream
	Context     context.Context //nolint:containedctx // for all waits; ends with the stream
	Method      string
	Where       fmt.Stringer // the address of the peer
	Torn, Unfit string       // the IDs of the errors of messages that cannot be decompressed, and decoded
	Codec       Codec
	Raw         bool // Codec is raw.Codec
	Pack        *unpack.Packer
	MaxMessage  int // bytes
	// Fail turns a *fault.Fault, or an error of the connection, into the error for the user.
	Fail  func(err error) error
	Stats *stats.Method // nil on the calling side
	// Watch runs after each message; nil if no observer watches messages.
	Watch interface {
		Message(ctx context.Context, sent bool, bytes int)
	}
	Each   Checks         // run for each message, before it goes further
	Begun  *bool          // set by the first received message; may be nil
	Opened *time.Duration // set to the reading of the clock when Begun is set; nil if Begun is nil
	Reuse  bool           // decode into the previous message

	sending sync.Mutex // held while a message is encoded and sent, so that messages stay in order
	body    []byte
	packed  []byte

	// For the receiver.
	unpacked []byte
	taken    int // bytes counted for the last decompressed message
	slab     rawcodec.Slab
}

// Checks are functions that decide whether a message may go further. Sent says that this side sends
// the message.
type Checks []func(message any, sent bool) error

// Run runs the functions for a message, until one of them fails.
func (c Checks) Run(message any, sent bool) (err error) {
	for i := 0; i < len(c) && err == nil; i++ {
		err = c[i](message, sent)
	}
	return err
}

// keepMemory is the largest buffer that is kept for another message, in bytes.
const keepMemory = 64 << 10

// keep returns b for reuse, or nil if b is too large to keep.
func keep(b []byte) []byte {
	if cap(b) > keepMemory {
		return nil
	}
	return b[:0]
}

// Send encodes and sends a message. If encoded is not nil, it is the encoding of the message.
func (p *Pipe) Send(msg any, encoded *[]byte) error {
	if err := p.Each.Run(msg, true); err != nil {
		return err
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	body, err := p.encode(msg, encoded)
	if err != nil {
		return err
	}
	size := len(body)
	var flags wire.Flags
	if p.Pack.Compressor != nil {
		var ok bool
		if p.packed, ok, err = p.Pack.Pack(p.packed, body); err != nil {
			return p.Fail(fault.Of(catalogue.Unencodable, p.Method, "%v", err).ByCodec(err))
		}
		if ok {
			body, flags = p.packed, wire.Compressed
			p.packed = keep(p.packed)
		}
	}
	if n := len(body); n > p.MaxMessage {
		return p.Fail(fault.Of(catalogue.RequestTooLarge, p.Method, "a message of the stream has %d bytes, this side's limit is %d", n, p.MaxMessage))
	}
	if err := p.Stream.Send(p.Context, flags, body); err != nil {
		return p.failed(err)
	}
	if p.Stats != nil {
		p.Stats.Sent.Add(1)
	}
	if p.Watch != nil {
		p.Watch.Message(p.Context, true, size)
	}
	return nil
}

// encode returns the body of a message. It is valid until the next call.
func (p *Pipe) encode(msg any, encoded *[]byte) ([]byte, error) {
	if encoded != nil {
		return *encoded, nil
	}
	if bytes, ok := msg.(*[]byte); ok && p.Raw { // the message is the body
		return *bytes, nil
	}
	body, err := p.Codec.Append(p.body[:0], msg)
	if err != nil {
		return nil, p.Fail(fault.Of(catalogue.Unencodable, p.Method, "%v (codec %s)", err, p.Codec.Name()).ByCodec(err))
	}
	p.body = keep(body)
	return body, nil
}

// A NilMessageError is the cause of the error of a message that is a nil pointer.
type NilMessageError struct{ Of *Pipe }

func (NilMessageError) Error() string { return "a nil message" }

// NilMessage returns the error of a message that is a nil pointer. Its cause tells the pipe.
func (p *Pipe) NilMessage() error {
	return p.Fail(fault.Of(catalogue.Unencodable, p.Method, "a message of the stream is a nil pointer; Send.End ends the stream").Because(NilMessageError{p}))
}

// End tells the peer that this side sends no more messages.
func (p *Pipe) End() {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.Stream.End()
}

// Rest waits for the end of a call whose caller sends no more messages, and discards messages that
// still arrive. It returns an error if it cannot wait for the end.
func (p *Pipe) Rest() error {
	for {
		if _, _, err := p.Stream.Receive(p.Context); err == io.EOF { //nolint:errorlint // it returns it bare
			return nil // the outcome of the call has the reason
		} else if err != nil {
			return p.failed(err)
		}
	}
}

// receive waits for the body of the next message. The body is valid until the next call. After the
// last message, receive returns io.EOF.
func (p *Pipe) receive() ([]byte, error) {
	body, flags, err := p.Stream.Receive(p.Context)
	if err != nil {
		return nil, p.failed(err)
	}
	if p.Begun != nil && !*p.Begun {
		*p.Begun, *p.Opened = true, monotime.Now()
	}
	if flags&wire.Compressed != 0 {
		if body, err = p.unpack(body); err != nil {
			return nil, err
		}
	}
	if p.Watch != nil {
		p.Watch.Message(p.Context, false, len(body))
	}
	return body, nil
}

// Receive waits for the next message and decodes it into msg. After the last message, it returns
// io.EOF.
func (p *Pipe) Receive(msg any) error {
	body, err := p.receive()
	if err != nil {
		return err
	}
	return p.decode(body, msg)
}

func (p *Pipe) decode(body []byte, msg any) error {
	if err := p.Codec.Decode(body, msg); err != nil {
		return p.Fail(fault.Of(p.Unfit, p.Method, "a message from %s does not fit %T: %v (codec %s)", p.Where, msg, err, p.Codec.Name()).ByCodec(err))
	}
	if p.Stats != nil {
		p.Stats.Received.Add(1)
	}
	return p.Each.Run(msg, false)
}

// cut returns a raw message in memory of the slab.
func (p *Pipe) cut(body []byte) *[]byte {
	if p.Stats != nil {
		p.Stats.Received.Add(1)
	}
	return p.slab.Cut(body, p.Stream.Buffered()/(wire.HeaderSize+len(body)))
}

// giveUnpacked releases the memory counted for the last decompressed message.
func (p *Pipe) giveUnpacked() {
	if p.taken != 0 {
		p.Stream.Give(p.taken)
		p.taken = 0
	}
}

func (p *Pipe) unpack(body []byte) ([]byte, error) {
	if p.Pack.Compressor == nil {
		return nil, p.Fail(fault.Of(p.Torn, p.Method, "a message from %s is compressed, and the compressor was not named", p.Where))
	}
	p.giveUnpacked()
	unpacked, err := p.Pack.Unpack(p.Context, p.Stream, p.unpacked[:0], body)
	switch {
	case err != nil && err == p.Context.Err(): //nolint:errorlint // it is returned bare
		return nil, p.failed(err)
	case err != nil:
		if f := p.Pack.Fault(err, p.Method, fmt.Sprintf("a message from %s", p.Where), "this side", body); f != nil {
			return nil, p.Fail(f)
		}
		return nil, p.Fail(fault.Of(p.Torn, p.Method, "a message from %s cannot be decompressed: %v (%s)", p.Where, err, p.Pack.Name()))
	}
	p.unpacked, p.taken = keep(unpacked), len(unpacked)
	return unpacked, nil
}

// failed returns the error of a message that could not be sent or received.
func (p *Pipe) failed(err error) error {
	if err == io.EOF { //nolint:errorlint // bare, it is the regular end
		return err
	}
	return p.Fail(p.fault(err))
}

// fault returns the fault of a message that could not be sent or received because of err, or err.
func (p *Pipe) fault(err error) error {
	if large, ok := errors.AsType[*mux.TooLargeError](err); ok {
		return fault.Of(catalogue.ReplyTooLarge, p.Method, "a message from %s has %d bytes, this side's limit is %d", p.Where, large.Size, large.Limit)
	}
	if errors.Is(err, memory.ErrFull) {
		return fault.Of(catalogue.NoMemory, p.Method, "this side has no memory left for a message from %s", p.Where)
	}
	if broken, ok := errors.AsType[*mux.BrokenError](err); ok {
		return fault.Of(catalogue.ReplyBroken, p.Method, "a message from %s is broken: %v", p.Where, broken.Cause)
	}
	if errors.Is(err, mux.ErrSendEnded) {
		return fault.Of(catalogue.StreamMisused, p.Method, "a message was sent after the end of the stream")
	}
	return err
}
