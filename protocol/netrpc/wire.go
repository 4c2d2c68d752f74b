// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"net"
	"net/rpc"
	"strconv"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/httpconnect"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Wire returns a Wire that calls servers of the standard library's net/rpc, for
// ClientOptions.Wires. Its name is "netrpc":
//
//	client := yodel.NewClient(discovery.Static("netrpc://10.0.0.7:1234", "10.0.0.8:8972"), &yodel.ClientOptions{
//		Codec: gob.Codec,
//		Wires: []yodel.Wire{netrpc.Wire(gob.Codec)},
//	})
//
// Codec decodes the replies. It must be the codec of package codec/gob: otherwise Wire panics. The
// servers accept connections with rpc.Accept or rpc.ServeConn. For servers that use rpc.HandleHTTP,
// use WireHTTP.
//
// The protocol carries only the method, the arguments and the reply. It does not carry deadlines,
// cancellation, keys, tenants and trace contexts. A call with metadata, with an attachment, with
// several values or with a stream fails before it is sent. A server's error is the text of its
// handler's error. If the text begins with the name of a code, as the texts of yodel servers do,
// the error has that code. Otherwise its code is Unknown. If a connection ends, its pending calls
// may have been executed.
func Wire(codec yodel.Codec) yodel.Wire { return newWire(codec, "") }

// WireHTTP is Wire for servers that serve net/rpc at a path of an HTTP server, which is usually
// rpc.DefaultRPCPath. Its name is "netrpc+http".
func WireHTTP(codec yodel.Codec, path string) yodel.Wire { return newWire(codec, path) }

func newWire(codec yodel.Codec, path string) yodel.Wire {
	if codec == nil || codec.Name() != "gob" {
		panic(`netrpc: a Wire needs the codec "gob"`)
	}
	return wire{codec, path}
}

type wire struct {
	codec yodel.Codec
	path  string // "" without HTTP
}

// Name implements yodel.Wire.
func (w wire) Name() string {
	if w.path != "" {
		return "netrpc+http"
	}
	return "netrpc"
}

// Connect implements yodel.Wire.
func (w wire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l := &link{Link: pipelined.NewLink[reply](nc, ep.Addr(), ep.Client().Limits(), ep), codec: w.codec}
	if w.path != "" {
		if err := httpconnect.Ask(ctx, nc, l.Reader, w.path); err != nil {
			return nil, err
		}
	}
	l.frames = newFrames(l.Reader, l.Limits.MaxMessage)
	l.encoder = gob.NewEncoder(&l.encoded)
	l.frames.memory = ep
	kept := 0 // bytes that the definitions of types take until the connection ends
	l.frames.types.reserve = func(n int) bool {
		if !ep.Reserve(n) {
			return false
		}
		kept += n
		return true
	}
	l.frames.release = func(n int) {
		kept -= n
		ep.Release(n)
	}
	l.Start(func() error {
		err := l.next()
		if err != nil { // the last call
			ep.Release(kept)
		}
		return err
	}, nil)
	return l, nil
}

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[reply]
	codec  yodel.Codec
	frames *frames // for next

	// For encode, which Send calls one at a time.
	encoder *gob.Encoder
	encoded bytes.Buffer
	sent    []byte // the last request, with its header first
}

// A reply is the answer to a call: an error, or the definitions and the value.
type reply struct {
	err  error
	body []byte
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if err := l.unsendable(call); err != nil {
		return err
	}
	p, err := l.Send(ctx, !call.OneWay, func(number uint64) ([]byte, error) { return l.request(call, number) })
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
	if e, ok := call.Reply.(*yodel.Encoded); ok {
		e.Body, e.Several = r.body, false
		return nil
	}
	if err := l.codec.Decode(r.body, call.Reply); err != nil {
		return linkerror.Misfit(call, l.Addr, err)
	}
	return nil
}

// unsendable returns why a call cannot be sent by this protocol, or nil.
func (l *link) unsendable(call *yodel.Call) error {
	var what string
	switch _, encoded := call.Args.(*yodel.Encoded); {
	case call.Streams():
		what = "streams"
	case encoded:
		what = "arguments that are encoded already"
	case call.Attachment != nil:
		what = "attachments"
	case len(call.Metadata) > 0:
		what = "metadata"
	default:
		_, several := call.Args.(yodel.Values)
		if _, results := call.Reply.(yodel.Values); !several && !results {
			return nil
		}
		what = "several values"
	}
	return linkerror.Lacks(call, l.Addr, "net/rpc", what)
}

// request encodes a request. The arguments are encoded first, because this may fail. The
// definitions of types that the encoder has written are sent in either case, because the encoder
// does not write them again.
func (l *link) request(call *yodel.Call, number uint64) ([]byte, error) {
	l.encoded.Reset()
	failed := l.encode(call.Args)
	args := l.encoded.Len()
	if n := args; failed == nil && n > l.Limits.MaxMessage {
		return l.encoded.Bytes()[:valueAt(l.encoded.Bytes())], linkerror.LargeRequest(call, n, l.Limits.MaxMessage)
	}
	if failed != nil {
		return l.encoded.Bytes(), linkerror.Unencoded(call, fmt.Errorf("%w (net/rpc)", failed))
	}
	if err := l.encoder.Encode(&rpc.Request{ServiceMethod: call.Method, Seq: number}); err != nil {
		l.GiveUp(err)
		return nil, linkerror.Unsent(err)
	}
	b := l.encoded.Bytes()
	l.sent = append(append(l.sent[:0], b[args:]...), b[:args]...)
	return l.sent, nil
}

// encode encodes a value. User code in it may panic.
func (l *link) encode(value any) (err error) {
	known := false
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%T panicked while it was encoded", value)
		} else if !known { // encoding ended the goroutine
			l.GiveUp(fmt.Errorf("%T ended its goroutine while it was encoded", value))
		}
	}()
	if err = gobwire.Rules.Check(value); err == nil {
		err = l.encoder.Encode(value)
	}
	known = true
	return err
}

// next reads one reply and passes it to the waiting call.
func (l *link) next() error {
	var header rpc.Response
	if err := l.frames.header(&header, l.Limits.MaxMetadata+l.Limits.MaxMessage); err != nil {
		return err
	}
	v, err := l.frames.next()
	if err != nil {
		return framebody.Unexpected(err)
	}
	switch {
	case !l.Expects(header.Seq): // its caller has stopped waiting
		return l.frames.skip(v)
	case header.Error != "":
		l.Deliver(header.Seq, reply{err: errortext.Parse(header.Error)}, 0)
		return l.frames.skip(v)
	case !v.open:
		return l.Receive(header.Seq, header.ServiceMethod, v.definitions, v.size, func(body []byte, err error) reply { return reply{err, body} })
	case v.size > l.Limits.MaxMessage:
		l.Deliver(header.Seq, reply{err: linkerror.LargeReply(header.ServiceMethod, l.Addr, strconv.Itoa(v.size), l.Limits.MaxMessage)}, 0)
		return l.frames.skip(v)
	}
	body, err := l.frames.body(v)
	if err != nil {
		return err
	}
	l.Deliver(header.Seq, reply{body: body}, cap(body))
	return nil
}
