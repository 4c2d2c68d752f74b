// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// WireOptions adapts the protocol of a client.
type WireOptions struct {
	// Unframed sends messages without frames, for servers with TBufferedTransport. Default: with
	// frames, as TFramedTransport does. Only with frames does a reply that is too large leave the
	// connection usable if it has more than four times Limits.MaxMessage.
	Unframed bool
	// Service is the service whose methods the server has, for example "Arith". A call of a method
	// of another service then fails before it is sent (YDL2001). It is needed without Multiplexed,
	// because a request then does not name its service: a call of "Billing.mul" would execute
	// "Arith.mul". Default "": with Multiplexed, methods of all services are sent; without it, only
	// methods without a service.
	Service string
	// Multiplexed names the service with the method, for servers with TMultiplexedProcessor: for
	// the method "Arith.mul", it sends "Arith:mul". Default: only the part behind the last dot or
	// slash is sent.
	Multiplexed bool
	// Concurrent sends calls while others of the same connection wait for replies, for servers that
	// execute the requests of one connection at the same time. Default: a connection carries one
	// call at a time. Further calls use other connections, up to ClientOptions.ConnsPerEndpoint,
	// which should be higher than its default of 1. Beyond that they wait in their order.
	Concurrent bool
	// Throws has the declared exceptions of methods.
	Throws Throws
}

// Wire returns a Wire that calls Thrift servers, for ClientOptions.Wires. Its name is "thrift":
//
//	client := yodel.NewClient(discovery.Static("thrift://10.0.0.7:9090"), &yodel.ClientOptions{
//		Codec: thriftcodec.Codec, // of package codec/thrift
//		Wires: []yodel.Wire{thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "Arith"})},
//	})
//
// The name of codec decides the protocol: "thrift" is the binary protocol, and "thrift-compact" the
// compact one. Wire panics if the codec has another name, or does not carry an exception of Throws.
// Nil means the default WireOptions.
//
// The method of a call is named as in Thrift's language, for example "Arith.mul". Values become the
// arguments 1, 2 and so on, in the order of the values. A single message becomes argument 1. If its
// type has the tag args of package codec/thrift, its fields are the arguments. A message without
// fields is sent as no arguments. The result of a method is decoded into the reply, or into the
// only one of its Values. A void method has a nil reply, Values without elements, or a struct
// without fields.
//
// The protocol carries only the method, the arguments and the reply. It does not carry deadlines or
// cancellation. A call with metadata, with an attachment, with several results or with a stream
// fails before it is sent. If a caller stops waiting, its connection remains occupied until the
// reply comes, unless Concurrent is set.
//
// An exception that WireOptions.Throws has is the cause of the call's error, which has the code of
// the exception: that of yodel.CodeOf, Unknown by default.
// Any other declared exception is in Error.Details, encoded, with the type "thrift.exception.1" for
// field 1. A TApplicationException becomes an error with its text. If the text begins with the name
// of a code, as the texts of yodel servers do, the error has that code. Otherwise its code is
// Unimplemented for UNKNOWN_METHOD, InvalidArgument for PROTOCOL_ERROR, and Unknown for any other.
// If a connection ends, its pending calls may have been executed.
func Wire(codec yodel.Codec, o *WireOptions) yodel.Wire {
	w := &wire{codec: codec}
	if o != nil {
		w.WireOptions = *o
	}
	switch {
	case codec != nil && codec.Name() == codecNames[thriftwire.Binary]:
		w.format = thriftwire.Binary
	case codec != nil && codec.Name() == codecNames[thriftwire.Compact]:
		w.format = thriftwire.Compact
	default:
		panic(fmt.Sprintf("thrift: Wire needs the codec %q or %q", codecNames[thriftwire.Binary], codecNames[thriftwire.Compact]))
	}
	for method, exceptions := range w.Throws {
		for id, exception := range exceptions {
			if err := carries.Check(codec, reflect.TypeOf(exception)); err != nil {
				panic(fmt.Sprintf("thrift: the exception %d of %s: %v", id, method, err))
			}
		}
	}
	return w
}

type wire struct {
	WireOptions
	codec  yodel.Codec
	format thriftwire.Format
}

// Name implements yodel.Wire.
func (*wire) Name() string { return "thrift" }

// Connect implements yodel.Wire.
func (w *wire) Connect(_ context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l := &link{Link: pipelined.NewLink[reply](nc, ep.Addr(), ep.Client().Limits(), ep), wire: w, turn: make(chan struct{}, 1)}
	l.Start(l.next, nil)
	return l, nil
}

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[reply]
	*wire

	turn   chan struct{} // has an element while a call is in flight; unused with Concurrent
	sent   atomic.Uint64 // the number of the last request
	awaits atomic.Uint64 // the number of the call that has the turn, once it is sent
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if err := l.unsendable(call); err != nil {
		return err
	}
	args, err := l.args(call)
	if err != nil {
		return err
	}
	if err := l.await(ctx, call); err != nil {
		return err
	}
	p, err := l.Send(ctx, !call.OneWay, func(number uint64) ([]byte, error) { return l.request(call, args, number), nil })
	if err != nil || call.OneWay {
		l.release()
		return err
	}
	return l.Await(ctx, p, func(r reply) error {
		if r.err != nil {
			return r.err
		}
		return l.decode(call, &r)
	})
}

// await waits until the connection carries no other call.
func (l *link) await(ctx context.Context, call *yodel.Call) error {
	if l.Concurrent {
		return nil
	}
	select {
	case l.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return linkerror.Unsent(context.Cause(ctx))
	case <-l.Closing():
		return linkerror.Waited(call, l.Addr, l.Err())
	}
}

// Full reports whether another call would have to wait: see yodel.Link.
func (l *link) Full() bool { return len(l.turn) > 0 }

// release lets the next call be sent.
func (l *link) release() {
	l.awaits.Store(0)
	select {
	case <-l.turn:
	default: // Concurrent
	}
}

// Codec returns the codec that decodes the reply of a call: see yodel.Link.
func (l *link) Codec(*yodel.Call) yodel.Codec { return l.codec }

// unsendable returns why a call cannot be sent by this protocol, or nil.
func (l *link) unsendable(call *yodel.Call) error {
	if err := l.elsewhere(call.Method); err != nil {
		return err
	}
	results, _ := call.Reply.(yodel.Values)
	var what string
	switch {
	case call.Streams():
		what = "streams"
	case call.Attachment != nil:
		what = "attachments"
	case len(call.Metadata) > 0:
		what = "metadata"
	case len(results) > 1:
		what = "methods with several results"
	default:
		return nil
	}
	return linkerror.Lacks(call, l.Addr, "Thrift", what)
}

// elsewhere returns an error if the server may execute a method of another service instead.
func (l *link) elsewhere(method string) error {
	i := strings.LastIndexAny(method, "./")
	if i < 0 || method[:i] == l.Service || l.Multiplexed && l.Service == "" {
		return nil
	}
	if l.Service == "" {
		return linkerror.Refused(yodel.Unimplemented, "", "%s: a request to %s does not name the service: set thrift.WireOptions.Service to %q, or Multiplexed", method, l.Addr, method[:i])
	}
	return linkerror.Refused(yodel.Unimplemented, "YDL2001", "%s: %s has the service %s, as thrift.WireOptions.Service says", method, l.Addr, l.Service)
}

// args encodes the struct of the arguments, with its end.
func (l *link) args(call *yodel.Call) (b []byte, err error) {
	var encoded [][]byte
	switch args := call.Args.(type) {
	case nil:
	case yodel.Values:
		for i, arg := range args {
			value, err := l.codec.Append(nil, arg)
			if err != nil {
				return nil, linkerror.Unencoded(call, fmt.Errorf("value %d: %w", i+1, err))
			}
			encoded = append(encoded, value)
		}
	case *yodel.Encoded:
		if c := call.Encoding(); c == nil || c.Name() != l.codec.Name() {
			return nil, linkerror.Unencoded(call, fmt.Errorf("the arguments are encoded already, and not in the codec %s", l.codec.Name()))
		}
		if encoded, err = args.Values(); err != nil {
			return nil, linkerror.Unencoded(call, err)
		}
	default:
		if hasNoFields(args) {
			break
		}
		value, err := l.codec.Append(nil, args)
		if err != nil {
			return nil, linkerror.Unencoded(call, err)
		}
		encoded = [][]byte{value}
	}
	if len(encoded) == 1 && len(encoded[0]) > 0 && encoded[0][0] == l.format.ArgsMark() {
		b = encoded[0][1:]
	} else {
		for i, value := range encoded {
			if b, err = thriftwire.AppendFieldOf(b, l.format, value, int16(i+1), int16(i)); err != nil {
				return nil, linkerror.Unencoded(call, err)
			}
		}
		b = append(b, byte(thriftwire.Stop))
	}
	if n := len(b); n > l.Limits.MaxMessage {
		return nil, linkerror.LargeRequest(call, n, l.Limits.MaxMessage)
	}
	return b, nil
}

// hasNoFields reports whether v is a struct without fields, or a pointer to one.
func hasNoFields(v any) bool {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t.NumField() == 0
}

// request returns the message of a call.
func (l *link) request(call *yodel.Call, args []byte, number uint64) []byte {
	name := call.Method
	if i := strings.LastIndexAny(name, "./"); i >= 0 && l.Multiplexed {
		name = name[:i] + ":" + name[i+1:]
	} else if i >= 0 {
		name = name[i+1:]
	}
	h := thriftwire.Header{Format: l.format, Type: thriftwire.Call, Seq: sequence(number), Name: name}
	l.sent.Store(number)
	if call.OneWay {
		h.Type = thriftwire.OneWay
	} else {
		l.awaits.Store(number)
	}
	b := append(thriftwire.AppendHeader(make([]byte, 4, 4+16+len(name)+len(args)), &h), args...)
	if l.Unframed {
		return b[4:]
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4)) //nolint:gosec // at most Limits.MaxMessage and a name
	return b
}

// sequence returns the sequence number of a request.
func sequence(number uint64) int32 { return int32(number & 0x7fffffff) }

// A reply is the answer to a call.
type reply struct {
	err  error
	kind byte      // thriftwire.Reply or thriftwire.Exception
	body []byte    // the struct of the result
	held int       // bytes that are counted for body
	rest io.Reader // what must be skipped after the reply is delivered; nil for nothing
}

// next reads one reply and passes it to the waiting call.
func (l *link) next() error {
	h, r, err := l.read()
	held := r.held
	defer func() { l.Memory.Release(held) }()
	if err != nil {
		return err
	}
	last := l.sent.Load()
	number := last - uint64(uint32(sequence(last))-uint32(h.Seq))&0x7fffffff //nolint:gosec // the bits
	switch {
	case h.Seq < 0 || h.Type != thriftwire.Reply && h.Type != thriftwire.Exception:
		return fmt.Errorf("a reply is a message of type %d with the number %d", h.Type, h.Seq)
	case l.Concurrent:
	case !l.awaits.CompareAndSwap(number, 0) || number == 0:
		return fmt.Errorf("a reply to %q has the number %d, which no request waits for", h.Name, h.Seq)
	default:
		defer l.release()
	}
	held = 0
	l.Deliver(number, r, r.held)
	if r.rest != nil {
		_, err = io.Copy(io.Discard, r.rest)
	}
	return err
}

// read reads a reply.
func (l *link) read() (h thriftwire.Header, r reply, err error) {
	var from thriftwire.Reader
	if l.Unframed {
		source := thriftwire.Source{From: l.Reader, Limit: l.Limits.MaxMessage + maxName, Reserve: l.Memory.Reserve}
		source.Attach(&from)
		defer func() { r.held = source.Reserved() }()
		if h, err = from.Header(maxName); err != nil {
			return h, r, err
		}
		at := from.At
		from.Format = h.Format
		if err = from.Skip(thriftwire.Struct, 0); err != nil {
			return h, r, framebody.Unexpected(err)
		}
		if r.kind = h.Type; errors.Is(source.Fault(), thriftwire.ErrMemory) {
			r.err = linkerror.NoMemory(l.Addr)
		} else if source.Fault() != nil {
			r.err = linkerror.LargeReply(h.Name, l.Addr, fmt.Sprintf("more than %d", l.Limits.MaxMessage), l.Limits.MaxMessage)
		} else {
			r.body = from.Bytes[at:]
		}
		return h, r, l.spoken(&h)
	}
	var length [4]byte
	if _, err = io.ReadFull(l.Reader, length[:]); err != nil {
		return h, r, err
	}
	frame := &io.LimitedReader{R: l.Reader, N: int64(binary.BigEndian.Uint32(length[:]))}
	(&thriftwire.Source{From: frame, Limit: 2 * maxName}).Attach(&from)
	if h, err = from.Header(maxName); err != nil {
		return h, r, framebody.Unexpected(err)
	}
	if r.kind = h.Type; frame.N > int64(l.Limits.MaxMessage) {
		r.err = linkerror.LargeReply(h.Name, l.Addr, fmt.Sprint(frame.N), l.Limits.MaxMessage)
		_, err = io.Copy(io.Discard, frame)
	} else if r.body, err = framebody.Read(nil, frame, int(frame.N), l.Memory); err != nil {
		if _, ok := errors.AsType[*framebody.RefusedError](err); ok {
			r.err, r.rest, err = linkerror.NoMemory(l.Addr), frame, nil
		}
	}
	r.held = cap(r.body)
	return h, r, cmp.Or(err, l.spoken(&h))
}

// spoken returns an error if a reply is in another protocol than the requests.
func (l *link) spoken(h *thriftwire.Header) error {
	if h.Format != l.format {
		return fmt.Errorf("the server answers in the %v protocol, and this client uses the %v protocol", h.Format, l.format)
	}
	return nil
}
