// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// An exchange is one attempt of a call: an HTTP request and its response.
type exchange struct {
	link     *Link
	ctx      context.Context //nolint:containedctx // of the request; ends with the attempt
	call     *yodel.Call
	subtype  string // of the codec, in content types
	encoding string // of the compressor; "" for none
	header   http.Header
	waited   bool // for another call on the connection
}

// unsendable returns the error of a call that the protocols over HTTP cannot carry.
func unsendable(call *yodel.Call, format string, args ...any) error {
	return linkerror.Refused(yodel.Unimplemented, "", "%s: %s", call.Method, fmt.Sprintf(format, args...))
}

// newExchange returns an exchange with the headers of a call.
func (l *Link) newExchange(ctx context.Context, call *yodel.Call, family *httpwire.Family) (*exchange, error) {
	x := &exchange{link: l, ctx: ctx, call: call, header: make(http.Header)}
	codec := call.Encoding()
	_, several := call.Args.(yodel.Values)
	_, results := call.Reply.(yodel.Values)
	switch {
	case codec == nil:
		return nil, unsendable(call, "the call has no codec")
	case call.Attachment != nil:
		return nil, unsendable(call, "HTTP has no attachments")
	case several || results:
		return nil, unsendable(call, "gRPC and Connect have no calls with several values: send one message, for example a struct")
	case call.OneWay:
		return nil, unsendable(call, "HTTP has no one-way calls")
	}
	x.subtype = httpwire.Subtype(codec.Name())
	if c := call.Compressing(); c != nil {
		if x.encoding = httpwire.Encoding(c.Name()); x.encoding == "" {
			return nil, unsendable(call, "HTTP has no name for the compressor %q", c.Name())
		}
	}
	var refused error
	family.Set(x.header, "", call.Metadata, func(key, why string) {
		if refused == nil {
			refused = metakeys.Refused(call.Method, key, why)
		}
	})
	if refused != nil {
		return nil, refused
	}
	httpwire.SetOptions(x.header, call, call.Attempt-1) // Attempt counts this one
	x.header["User-Agent"] = []string{l.agent}
	return x, nil
}

// left returns how long the call may still take, or 0 for any time.
func (x *exchange) left() time.Duration {
	at, ok := x.ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(at), 1)
}

// url returns the URL of the method. A name with a dot has a slash before its last part.
func (x *exchange) url() *url.URL {
	path := x.call.Method
	if i := strings.LastIndexByte(path, '.'); i >= 0 && !strings.Contains(path, "/") {
		path = path[:i] + "/" + path[i+1:]
	}
	return &url.URL{Scheme: "http", Host: x.link.Authority, Path: "/" + path}
}

// send sends the request and waits for the header of the response. In HTTP/1, a trace tells whether
// the request had begun to be written when the connection failed. Errors of HTTP/2 say that.
func (x *exchange) send(method string, at *url.URL, body io.Reader) (*http.Response, error) {
	ctx, http1 := x.ctx, x.link.turn != nil
	var wrote atomic.Bool
	if http1 {
		if err := x.link.conn.Err(); err != nil { // net/http may still write a header to it
			return nil, x.unsent(err)
		}
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { wrote.Store(true) }})
	}
	request, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, linkerror.Unsent(err)
	}
	request.Header = x.header
	response, err := x.link.conn.RoundTrip(request)
	switch {
	case err == nil:
		return response, nil
	case http1 && !wrote.Load():
		return nil, x.unsent(x.failed(err))
	}
	return nil, x.failed(err)
}

// Envelopes are what differs between the protocols that carry messages in envelopes.
type Envelopes struct {
	// Media is the content type without the codec, for example "application/grpc".
	Media string
	// Family says which headers are metadata.
	Family *httpwire.Family
	// Encoding and Accept are the headers of the compression of the request, and of the
	// compressions that the client understands.
	Encoding, Accept string
	// Status is the header of the outcome of a response without messages. It wins over the status
	// of HTTP. It is "" if the protocol has no such header.
	Status string
	// Last is the flag of the last envelope. It is 0 if the stream ends without one.
	Last byte
	// Header are further headers of all requests.
	Header http.Header
	// SetTimeout adds how long the call may take.
	SetTimeout func(h http.Header, d time.Duration)
	// Outcome returns the trailer of a response whose messages were read, and its error. Last is
	// the content of the last envelope, or nil without one. Messages says whether there were
	// messages.
	Outcome func(response *http.Response, last []byte, messages bool) (yodel.Metadata, *yodel.Error)
}

// Do makes one attempt of a call by a protocol with envelopes, as yodel.Link describes it.
func (l *Link) Do(ctx context.Context, call *yodel.Call, p *Envelopes) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x, err := l.newExchange(ctx, call, p.Family)
	if err != nil {
		return err
	}
	h := x.header
	maps.Copy(h, p.Header)
	h["Content-Type"] = []string{p.Media + "+" + x.subtype}
	if x.encoding != "" {
		h[p.Encoding], h[p.Accept] = []string{x.encoding}, []string{x.encoding}
	}
	v := &conversation{exchange: x, protocol: p, cancel: cancel}
	kind := call.Kind()
	var body io.Reader
	if kind == "unary" || kind == "feed" {
		b, err := v.request()
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	} else {
		body, v.out = io.Pipe()
	}
	if err := x.begin(); err != nil {
		return err
	}
	defer l.finish()
	if d := x.left(); d > 0 {
		p.SetTimeout(h, d)
	}
	defer v.close()
	v.start(body) //nolint:contextcheck // the exchange has the context
	switch kind {
	case "unary":
		return v.reply() //nolint:contextcheck // the call has the context
	case "upload":
		if err = call.Converse(ctx, v); err != nil {
			return v.prefer(err)
		}
		return v.reply() //nolint:contextcheck // the call has the context
	}
	if err = call.Converse(ctx, v); err != nil {
		return v.prefer(err)
	}
	return v.outcome()
}

// A conversation is a call in envelopes. It implements yodel.Messages.
type conversation struct {
	*exchange
	protocol *Envelopes
	cancel   func()         // ends ctx
	out      *io.PipeWriter // nil if the request is whole
	started  chan struct{}  // closed when response, failure and unsent are set
	response *http.Response
	failure  error
	unsent   error // the failure if there is no response

	opened   bool // the header of the response was checked
	messages bool // a message was received
	held     int  // bytes that are counted for replies that in does not hold any more
	in       httpwire.Reader
	body     body // that in reads
	last     []byte
	end      error // of the messages; io.EOF if the server has ended them
}

// request returns the envelope of the only message of the request.
func (v *conversation) request() ([]byte, error) {
	b, compressed, err := v.call.AppendArgs(make([]byte, httpwire.PrefixSize, 256))
	if err != nil {
		return nil, err
	}
	var flags byte
	if compressed {
		flags = httpwire.FlagCompressed
	}
	prefix := httpwire.Prefix(flags, len(b)-httpwire.PrefixSize)
	copy(b, prefix[:])
	return b, nil
}

// start sends the request. If it is not whole, the response may come only after messages, so start
// does not wait for it.
func (v *conversation) start(body io.Reader) {
	v.started = make(chan struct{})
	send := func() {
		defer close(v.started)
		v.response, v.failure = v.send(http.MethodPost, v.url(), body) //nolint:bodyclose // close does it
		v.unsent = v.failure
		if v.failure != nil && v.out != nil {
			_ = v.out.CloseWithError(v.failure) // net/http may not have read the request
		}
	}
	if v.out == nil {
		send()
		return
	}
	// While net/http waits for more of the request, it does not notice that ctx ends.
	context.AfterFunc(v.ctx, func() { _ = v.out.CloseWithError(context.Cause(v.ctx)) }) // it never fails
	go send()                                                                           // it ends with ctx
}

// close ends the exchange.
func (v *conversation) close() {
	v.cancel()
	<-v.started
	if v.response != nil {
		_ = v.response.Body.Close() // the response is not needed any more
	}
	v.link.ep.Release(v.held + v.in.Held())
}

// maxCopied is the size of the largest message that Send copies behind its prefix, in bytes.
const maxCopied = 16 << 10

// Send implements yodel.Messages.
func (v *conversation) Send(ctx context.Context, body []byte, compressed bool) error {
	var flags byte
	if compressed {
		flags = httpwire.FlagCompressed
	}
	prefix := httpwire.Prefix(flags, len(body))
	var err error
	if len(body) <= maxCopied { // one write becomes one frame of HTTP/2
		_, err = v.out.Write(append(prefix[:], body...))
	} else if _, err = v.out.Write(prefix[:]); err == nil {
		_, err = v.out.Write(body)
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if <-v.started; yodel.NotProcessed(v.unsent) {
			return v.unsent
		}
		return io.EOF // the server has ended the call
	}
	return nil
}

// End implements yodel.Messages.
func (v *conversation) End() {
	if v.out != nil {
		_ = v.out.Close() // it never fails
	}
}

// A body is the body of a response. It remembers why it cannot be read further.
type body struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	if n, err = b.Reader.Read(p); err != nil {
		b.err = err
	}
	return n, err
}

// Receive implements yodel.Messages.
func (v *conversation) Receive(ctx context.Context) ([]byte, bool, error) {
	if v.end != nil {
		return nil, false, v.end
	}
	flags, body, err := v.next()
	if err == io.EOF && v.out != nil && !v.messages { //nolint:errorlint // it is bare
		if outcome := v.outcome(); yodel.NotProcessed(outcome) {
			err = outcome
			_ = v.out.CloseWithError(err) // net/http may not read the request any more
		}
	}
	if err != nil {
		if v.end = err; ctx.Err() != nil {
			v.end = context.Cause(ctx)
		}
		return nil, false, v.end
	}
	return body, flags&httpwire.FlagCompressed != 0 && len(body) > 0, nil
}

// next reads the next message. It returns io.EOF after the last one.
func (v *conversation) next() (flags byte, body []byte, err error) {
	if err := v.open(); err != nil {
		return 0, nil, err
	}
	flags, body, err = v.in.Next()
	switch {
	case err == httpwire.ErrMemory: //nolint:errorlint // errors.Is compares codes
		return 0, nil, linkerror.NoMemory(v.link.ep.Addr())
	case err == httpwire.ErrCut && v.body.err != io.EOF: //nolint:errorlint // as above; the connection was lost
		return 0, nil, v.failed(v.body.err)
	case err == httpwire.ErrCut: //nolint:errorlint // as above
		return 0, nil, yodel.Errorf(yodel.Internal, "%s: the reply ends within a message", v.call.Method)
	case err != nil:
		if _, ok := errors.AsType[*yodel.Error](err); !ok && err != io.EOF { //nolint:errorlint // as above
			err = v.failed(err)
		}
		return 0, nil, err
	case v.protocol.Last != 0 && flags&v.protocol.Last != 0:
		if v.last = body; body == nil { // v.in reads no more, so that body remains valid
			v.last = []byte{}
		}
		if flags&httpwire.FlagCompressed != 0 && len(body) > 0 {
			if v.last, err = v.decompress(body); err != nil {
				return 0, nil, err
			}
		}
		if n, _ := io.CopyN(io.Discard, v.response.Body, 1); n > 0 {
			return 0, nil, yodel.Errorf(yodel.Internal, "%s: data follow the end of the reply", v.call.Method)
		}
		return 0, nil, io.EOF
	case flags&^httpwire.FlagCompressed != 0:
		return 0, nil, yodel.Errorf(yodel.Internal, "%s: a message has the flags %#x, which the protocol does not have", v.call.Method, flags)
	case flags != 0 && !v.compressed():
		return 0, nil, yodel.Errorf(yodel.Internal, "%s: a message is compressed, and the reply names no compression", v.call.Method)
	}
	v.messages = true
	return flags, body, nil
}

// decompress decompresses the last envelope.
func (v *conversation) decompress(body []byte) ([]byte, error) {
	c := v.call.Compressing()
	if c == nil || !v.compressed() {
		return nil, yodel.Errorf(yodel.Internal, "%s: the end of the reply is compressed, and the reply names no compression", v.call.Method)
	}
	b, err := c.Decompress(nil, body, v.link.Limits.MaxMetadata)
	if err != nil {
		return nil, yodel.Errorf(yodel.Internal, "%s: the end of the reply: %w", v.call.Method, err)
	}
	return b, nil
}

// compressed reports whether the response names the compression of the call.
func (v *conversation) compressed() bool {
	return v.encoding != "" && v.response.Header.Get(v.protocol.Encoding) == v.encoding
}

// open waits for the header of the response and checks it, once.
func (v *conversation) open() error {
	<-v.started
	if v.failure != nil || v.opened {
		return v.failure
	}
	v.opened = true
	h := v.response.Header
	media := httpwire.ContentType(h.Get("Content-Type"))
	subtype, ok := strings.CutPrefix(media, v.protocol.Media)
	switch {
	case v.response.StatusCode != http.StatusOK && (!ok || h.Get(v.protocol.Status) == ""):
		body, _ := io.ReadAll(io.LimitReader(v.response.Body, maxStatus)) // without it, the status says what is known
		v.failure = statusError(v.call, v.response, body)
	case !ok || subtype != "" && subtype[0] != '+':
		v.failure = yodel.Errorf(yodel.Unknown, "%s: the reply has the content type %.60q", v.call.Method, media)
	case subtype != "+"+v.subtype && (subtype != "" || v.subtype != "proto"):
		v.failure = yodel.Errorf(yodel.Internal, "%s: the reply has the content type %.60q", v.call.Method, media)
	default:
		if sent := h.Get(v.protocol.Encoding); sent != "" && sent != "identity" && sent != v.encoding {
			v.failure = yodel.Errorf(yodel.Internal, "%s: the reply has the compression %.40q, which the client does not accept", v.call.Method, sent)
		}
	}
	if v.failure != nil {
		return v.failure
	}
	if h.Get(v.protocol.Status) == "" { // otherwise the metadata is the trailer: see Outcome
		if md := v.protocol.Family.Metadata(h); len(md) > 0 {
			v.call.SetHeader(md)
		}
	}
	v.body.Reader = v.response.Body
	v.in = httpwire.Reader{From: &v.body, Max: v.link.Limits.MaxMessage, Reserve: v.link.ep.Reserve}
	return nil
}

// reply receives the only message of the response and the outcome.
func (v *conversation) reply() error {
	body, compressed, err := v.Receive(v.ctx)
	if err == io.EOF { //nolint:errorlint // it is bare
		if err = v.outcome(); err == nil {
			err = yodel.Errorf(yodel.Unimplemented, "%s: the server sent no reply", v.call.Method)
		}
		return err
	} else if err != nil {
		return err
	}
	v.held = v.in.Held()
	v.in = httpwire.Reader{From: v.in.From, Max: v.in.Max, Reserve: v.in.Reserve} // body remains valid
	switch _, _, err = v.Receive(v.ctx); {
	case err == nil:
		return yodel.Errorf(yodel.Unimplemented, "%s: the server sent several replies", v.call.Method)
	case err != io.EOF: //nolint:errorlint // it is bare
		return err
	}
	if err = v.outcome(); err != nil {
		return err
	}
	return v.call.TakeReply(body, compressed)
}

// outcome returns the outcome of a response whose messages were read.
func (v *conversation) outcome() error {
	trailer, e := v.protocol.Outcome(v.response, v.last, v.messages)
	if len(trailer) > 0 {
		v.call.Trailer = trailer
	}
	if e != nil {
		e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
		return e
	}
	return nil
}

// prefer returns the server's error if the server has ended the call with one, and err otherwise.
func (v *conversation) prefer(err error) error {
	select {
	case <-v.started:
	default:
		return err
	}
	if v.end == io.EOF { //nolint:errorlint // it is bare
		if e := v.outcome(); e != nil {
			return e
		}
	}
	return err
}
