// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Wire returns a Wire that calls servers of the standard library's net/rpc, for
// ClientOptions.Wires. Its name is "netrpc":
//
//	client := yodel.NewClient(yodel.Static("netrpc://10.0.0.7:1234", "10.0.0.8:8972"), &yodel.ClientOptions{
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
	reader := bufio.NewReaderSize(nc, 32<<10)
	if w.path != "" {
		if err := w.connectHTTP(ctx, nc, reader); err != nil {
			return nil, err
		}
	}
	l := &link{
		Link:  pipelined.NewLink[reply](nc, ep.Client().Limits(), ep),
		codec: w.codec, limits: ep.Client().Limits(), addr: ep.Addr(), frames: newFrames(reader, ep.Client().Limits().MaxMessage),
	}
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
	})
	return l, nil
}

// connectHTTP asks an HTTP server for its net/rpc service.
func (w wire) connectHTTP(ctx context.Context, nc net.Conn, reader *bufio.Reader) error {
	deadline, _ := ctx.Deadline()
	_ = nc.SetDeadline(deadline) // if nc does not support deadlines, the end of ctx closes it
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	if _, err := io.WriteString(nc, "CONNECT "+w.path+" HTTP/1.0\n\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // there is none
	if err != nil {
		return fmt.Errorf("read the answer to CONNECT %s: %w", w.path, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answered CONNECT %s with %.60q", w.path, response.Status)
	}
	return nc.SetDeadline(time.Time{})
}

// A link is the client's side of a connection. The waiting calls decode their replies.
type link struct {
	*pipelined.Link[reply]
	codec  yodel.Codec
	limits yodel.Limits
	addr   string
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
		return &yodel.Error{Code: yodel.Internal, ID: "YDL2102", Message: fmt.Sprintf("%s: the reply from %s does not fit %T: %v", call.Method, l.addr, call.Reply, err), Cause: err}
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
	return &yodel.Error{Code: yodel.Unimplemented, NotProcessed: true, Message: fmt.Sprintf("%s: %s speaks net/rpc, which has no %s", call.Method, l.addr, what)}
}

// request encodes a request. The arguments are encoded first, because this may fail. The
// definitions of types that the encoder has written are sent in either case, because the encoder
// does not write them again.
func (l *link) request(call *yodel.Call, number uint64) ([]byte, error) {
	l.encoded.Reset()
	failed := l.encode(call.Args)
	args := l.encoded.Len()
	if n := args; failed == nil && n > l.limits.MaxMessage {
		return l.encoded.Bytes()[:valueAt(l.encoded.Bytes())], &yodel.Error{
			Code: yodel.ResourceExhausted, ID: "YDL2201", NotProcessed: true,
			Message: fmt.Sprintf("%s: the request has %d bytes, this client's limit is %d", call.Method, n, l.limits.MaxMessage),
		}
	}
	if failed != nil {
		return l.encoded.Bytes(), &yodel.Error{
			Code: yodel.InvalidArgument, ID: "YDL2103", NotProcessed: true, Cause: failed,
			Message: fmt.Sprintf("%s: %v (net/rpc)", call.Method, failed),
		}
	}
	if err := l.encoder.Encode(&rpc.Request{ServiceMethod: call.Method, Seq: number}); err != nil {
		l.GiveUp(err)
		return nil, pipelined.Unsent(err)
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
	if err := l.frames.header(&header, l.limits.MaxMetadata+l.limits.MaxMessage); err != nil {
		return err
	}
	v, err := l.frames.next()
	if err != nil {
		return unexpected(err)
	}
	var r reply
	switch {
	case !l.Expects(header.Seq): // its caller has stopped waiting
		return l.frames.skip(v)
	case header.Error != "":
		r.err = errortext.Parse(header.Error)
		err = l.frames.skip(v)
	case v.size > l.limits.MaxMessage:
		r.err = &yodel.Error{
			Code: yodel.ResourceExhausted, ID: "YDL2202",
			Message: fmt.Sprintf("%s: the reply from %s has %d bytes, this client's limit is %d", header.ServiceMethod, l.addr, v.size, l.limits.MaxMessage),
		}
		err = l.frames.skip(v)
	default:
		r.body, err = l.frames.body(v)
		if refused, ok := errors.AsType[*pipelined.RefusedError](err); ok {
			l.Deliver(header.Seq, reply{err: pipelined.NoMemoryForReply(l.addr)}, 0)
			return l.frames.skip(value{size: refused.Left})
		}
	}
	if err != nil {
		return err
	}
	l.Deliver(header.Seq, r, cap(r.body))
	return nil
}
