// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/yodel-rpc/yodel"
	core "github.com/yodel-rpc/yodel/protocol/internal/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Wire returns a Wire that calls servers of JSON-RPC 2.0 on a stream, for ClientOptions.Wires. Its
// name is "jsonrpc":
//
//	client := yodel.NewClient(discovery.Static("jsonrpc://10.0.0.7:1234", "10.0.0.8:8972"), &yodel.ClientOptions{
//		Wires: []yodel.Wire{jsonrpc.Wire(yodel.JSON)},
//	})
//
// Codec encodes the arguments and decodes the results, whatever the codec of the call is. Wire
// panics if its name is not "json".
//
// Arguments whose JSON is an object are sent as it is, other arguments in an array with one
// element, several values as an array, and no arguments without parameters. Several results are
// expected as an array, and a single one as it is. A one-way call is sent as a notification.
//
// The protocol carries only the method, the arguments and the reply. A call with metadata, an
// attachment or a stream fails before it is sent. It does not carry deadlines, cancellation, keys,
// tenants and trace contexts, and does not compress. An error has the code, the ID and the details
// that a yodel server has sent. Otherwise its code follows from the error code, or is
// yodel.Unknown. After -32700, -32600 and -32601 the call was certainly not executed. If a
// connection ends, its pending calls may have been executed. The Link ignores requests and
// notifications of the server.
func Wire(codec yodel.Codec) yodel.Wire { return newWire(codec, false) }

// Wire1 is Wire for servers of JSON-RPC 1.0, for example those of the standard library's
// net/rpc/jsonrpc. Its name is "jsonrpc1". Each argument is an element of an array. A server's
// error is a text. If the text begins with the name of a code, as the texts of yodel servers do,
// the error has that code. Otherwise its code is yodel.Unknown. If the text says that the method
// does not exist, the call was certainly not executed.
func Wire1(codec yodel.Codec) yodel.Wire { return newWire(codec, true) }

func newWire(codec yodel.Codec, version1 bool) yodel.Wire {
	if codec == nil || codec.Name() != "json" {
		panic(`jsonrpc: a Wire needs a codec with the name "json"`)
	}
	return wire{codec, version1}
}

type wire struct {
	codec    yodel.Codec
	version1 bool
}

// Name implements yodel.Wire.
func (w wire) Name() string {
	if w.version1 {
		return "jsonrpc1"
	}
	return "jsonrpc"
}

// Connect implements yodel.Wire.
func (w wire) Connect(_ context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	limits := ep.Client().Limits()
	l := &link{Link: pipelined.NewLink[reply](nc, ep.Addr(), limits, ep), wire: w}
	l.reader = core.Reader{Source: l.Reader, Limit: limits.MaxMessage + limits.MaxMetadata, Reserve: ep.Reserve, Release: ep.Release}
	l.Start(l.next, nil)
	return l, nil
}

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[reply]
	wire

	reader  core.Reader // for next
	buffers sync.Pool   // of *[]byte, for requests
	sent    []byte      // the last request; for Send, which encodes one at a time
}

// A reply is the answer to a call: an error, or the encoded result.
type reply struct {
	err    error
	result []byte
}

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if err := l.unsendable(call); err != nil {
		return err
	}
	buffer, ok := l.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	var err error
	if *buffer, err = l.appendRequest((*buffer)[:0], call); err != nil {
		return err
	}
	p, err := l.Send(ctx, !call.OneWay, func(number uint64) ([]byte, error) { return l.request(*buffer, number, call.OneWay), nil })
	if cap(*buffer) <= keepBuffer {
		l.buffers.Put(buffer)
	}
	if err != nil || call.OneWay {
		return err
	}
	return l.Await(ctx, p, func(r reply) error { return l.take(call, r) })
}

// Codec returns the codec that decodes the reply of a call: see yodel.Link.
func (l *link) Codec(*yodel.Call) yodel.Codec { return l.codec }

// take makes a reply the outcome of a call.
func (l *link) take(call *yodel.Call, r reply) error {
	if r.err != nil || call.Reply == nil {
		return r.err
	}
	if err := l.decode(r.result, call.Reply); err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	return nil
}

// unsendable returns why a call cannot be sent by this protocol, or nil.
func (l *link) unsendable(call *yodel.Call) error {
	var what string
	e, encoded := call.Args.(*yodel.Encoded)
	_, several := call.Args.(yodel.Values)
	_, keeps := call.Reply.(*yodel.Encoded)
	codec := call.Encoding()
	switch {
	case call.Streams():
		what = "streams"
	case call.Attachment != nil:
		what = "attachments"
	case len(call.Metadata) > 0:
		what = "metadata"
	case encoded && (codec == nil || codec.Name() != "json"):
		what = "arguments that are encoded already, except in JSON"
	case keeps && (several || encoded && e.Several):
		what = "encoded replies of several values"
	default:
		return nil
	}
	return linkerror.Lacks(call, l.Addr, "JSON-RPC", what)
}

// appendRequest appends the members of a request that are the same for all IDs, and the end.
func (l *link) appendRequest(dst []byte, call *yodel.Call) ([]byte, error) {
	dst = core.AppendMethod(dst, call.Method)
	at := len(dst)
	dst, err := l.appendParams(dst, call)
	if err != nil {
		return dst, linkerror.Unencoded(call, fmt.Errorf("%w (codec json)", err))
	}
	if n := len(dst) - at; n > l.Limits.MaxMessage {
		return dst, linkerror.LargeRequest(call, n, l.Limits.MaxMessage)
	}
	return append(dst, "}\n"...), nil
}

// appendParams appends the member "params", unless there are no arguments.
func (l *link) appendParams(dst []byte, call *yodel.Call) (_ []byte, err error) {
	const name = `,"params":`
	var list [][]byte
	switch args := call.Args.(type) {
	case nil:
		if !l.version1 {
			return dst, nil
		}
		return append(dst, name+"[null]"...), nil
	case yodel.Values:
		for i, value := range args {
			encoded, err := l.encode(nil, value)
			if err != nil {
				return dst, fmt.Errorf("value %d: %w", i+1, err)
			}
			list = append(list, encoded)
		}
	case *yodel.Encoded:
		if list, err = args.Values(); err != nil {
			return dst, err
		}
		if object := bytes.HasPrefix(args.Body, []byte("{")); object && !args.Several && !l.version1 {
			return append(append(dst, name...), args.Body...), nil
		}
	default:
		dst = append(dst, name+"["...)
		at := len(dst)
		if dst, err = l.encode(dst, args); err != nil {
			return dst, err
		}
		if len(dst) > at && dst[at] == '{' && !l.version1 {
			copy(dst[at-1:], dst[at:])
			return dst[:len(dst)-1], nil
		}
		return append(dst, ']'), nil
	}
	dst = append(append(dst, name...), '[')
	return append(append(dst, bytes.Join(list, []byte(","))...), ']'), nil
}

// encode appends the encoding of a value. User code in it may panic.
func (l *link) encode(dst []byte, value any) (_ []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%T panicked while it was encoded", value)
		}
	}()
	return l.codec.Append(dst, value)
}

// request returns a whole request. Rest is what appendRequest returned.
func (l *link) request(rest []byte, number uint64, oneWay bool) []byte {
	b := append(l.sent[:0], '{')
	if !l.version1 {
		b = append(b, `"jsonrpc":"2.0",`...)
	}
	switch {
	case !oneWay:
		b = append(strconv.AppendUint(append(b, `"id":`...), number, 10), ',')
	case l.version1:
		b = append(b, `"id":null,`...)
	}
	b = append(b, rest...)
	if l.sent = b; cap(b) > keepBuffer {
		l.sent = nil
	}
	return b
}

// next reads one reply and passes it to the waiting call.
func (l *link) next() error {
	message, err := l.reader.Next()
	if large, ok := errors.AsType[*core.TooLargeError](err); ok {
		number := core.NumberOf(large.ID)
		if number == 0 {
			return err
		}
		e := linkerror.NoMemory(l.Addr)
		if !large.Memory {
			e = linkerror.LargeReply("", l.Addr, strconv.Itoa(large.Size), l.Limits.MaxMessage)
		}
		l.Deliver(number, reply{err: e}, 0)
		return nil
	} else if err != nil {
		return err
	}
	held := len(message) // Reader has reserved it
	defer func() { l.reader.Release(held) }()
	r, err := core.ParseReply(message, l.version1)
	switch {
	case err != nil:
		return err
	case r.Foreign: // the Link has no methods
		return nil
	case r.Number == 0 && r.Err != nil && !l.version1: // the server does not know which of the requests failed
		return fmt.Errorf("the server answered without an ID: %v", r.Err) //nolint:errorlint // it is not the answer to each pending call
	case r.Err != nil:
		l.Deliver(r.Number, reply{err: r.Err}, 0)
	default:
		whole := held
		held = 0
		l.Deliver(r.Number, reply{result: r.Result}, whole) // a server of version 1.0 answers notifications, without an ID
	}
	return nil
}

// decode decodes a result.
func (l *link) decode(result []byte, to any) error {
	switch to := to.(type) {
	case *yodel.Encoded:
		to.Body, to.Several = result, false
		return nil
	case yodel.Values:
		return l.decodeValues(result, to)
	}
	return l.codec.Decode(result, to)
}

// decodeValues decodes several results. A single one is not in an array.
func (l *link) decodeValues(result []byte, to yodel.Values) error {
	switch len(to) {
	case 0:
		return nil
	case 1:
		return l.codec.Decode(result, to[0])
	}
	list := core.Elements(result, len(to)+1)
	if len(list) != len(to) {
		return fmt.Errorf("%d values are expected, and the result is not an array of that length", len(to))
	}
	for i, value := range list {
		if err := l.codec.Decode(value, to[i]); err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
	}
	return nil
}
