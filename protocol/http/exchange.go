// SPDX-License-Identifier: Apache-2.0

package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	std "net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// An exchange is one HTTP request that calls a method, and its response.
type exchange struct {
	router  *router
	w       std.ResponseWriter
	r       *std.Request
	control *std.ResponseController
	session *yodel.Session
	family  *httpwire.Family // of the headers
	limits  yodel.Limits
	most    int // the size of the largest message of the request, in bytes

	v          *yodel.Served
	source     func() *yodel.Error          // reads the request of a unary method or a feed into v.Body, after it has admitted the call
	rewrite    func([]byte) ([]byte, error) // makes the response of the reply; nil if they are the same
	compressor compress.Compressor          // of both directions; nil for none
	compressed bool                         // the request is compressed
	uncancel   func() bool
	reply      []byte
	buffer     *[]byte // of reply
	packed     bool    // reply is compressed
	request    []byte
	raw        bool // the messages of the codec are bytes, so the handler may keep the request
	large      bool // the request is larger than most
	admitted   bool
	finished   bool // finish leaves the rest of the request alone
	annotated  bool // the route has a Binding
	body       requestBody
	reserved   int // bytes that Session.Reserve counts until end
}

func newExchange(c *router, w std.ResponseWriter, r *std.Request) *exchange {
	x := &exchange{router: c, w: w, r: r, control: std.NewResponseController(w), session: c.session, family: httpwire.Connect}
	x.limits = x.session.Limits()
	x.body.ReadCloser, r.Body = r.Body, &x.body
	x.most, x.source = x.limits.MaxMessage, x.readBody
	if n := c.protocol.opts.MaxRequest; n > 0 {
		x.most = min(x.most, n)
	}
	return x
}

// begin begins the call of the method that the path of the request names. The caller must call end.
// If begin returns an error, the call must not be executed.
func (x *exchange) begin(codec yodel.Codec) *yodel.Error {
	return x.beginMethod(namedBy(x.r.URL), codec)
}

// beginMethod is begin for a method that the path does not name.
func (x *exchange) beginMethod(method string, codec yodel.Codec) *yodel.Error {
	call := x.start(method, codec)
	call.Metadata = x.family.Metadata(x.r.Header)
	if x.family != httpwire.Connect && x.r.Host != "" {
		call.Metadata[":authority"] = x.r.Host // as in grpc-go
	}
	if e := httpwire.Options(x.r.Header, call); e != nil {
		return e
	}
	return x.bound(call)
}

// start begins a call without metadata. The caller must call end.
func (x *exchange) start(method string, codec yodel.Codec) *yodel.Call {
	x.v = x.session.Begin(method, codec, x.compressor)
	x.raw = codec == raw.Codec
	x.v.Caller = httpwire.Caller(x.r.UserAgent()) // a proxy may send the requests of several clients
	x.uncancel = context.AfterFunc(x.r.Context(), x.v.Cancel)
	return x.v.Call()
}

// bound shows the call to Options.OnRequest. If the metadata of the call exceeds the limits, it
// returns an error instead, and removes the metadata.
func (x *exchange) bound(call *yodel.Call) *yodel.Error {
	if err := fits(call.Metadata, &x.limits); err != nil {
		call.Metadata = nil
		return &yodel.Error{
			Code: yodel.ResourceExhausted, ID: "YDL2203", NotProcessed: true, Cause: errMetadata,
			Message: call.Method + ": the metadata of the request " + err.Error(),
		}
	}
	x.show(x.v)
	return nil
}

// show calls Options.OnRequest. If that fails, the call fails when the middleware has passed it.
func (x *exchange) show(v *yodel.Served) {
	hook := x.router.protocol.opts.OnRequest
	if hook == nil {
		return
	}
	var err error
	e := x.guarded("Options.OnRequest", func() { err = hook(x.r, v.Call()) })
	if e == nil && err == nil {
		return
	}
	if own, ok := errors.AsType[*yodel.Error](err); ok {
		e = own
	} else if e == nil {
		e = &yodel.Error{Code: yodel.PermissionDenied, Message: v.Call().Method + ": the HTTP request is not accepted", Cause: err}
	}
	refusal := *e
	refusal.NotProcessed = true
	v.Refusal = &refusal
}

// errMetadata is the cause of the error of a request whose metadata exceeds the limits.
var errMetadata = errors.New("the metadata exceeds the limits")

// fits returns nil if metadata is within the limits.
func fits(md yodel.Metadata, limits *yodel.Limits) error {
	size, pairs := 0, len(md)
	for key, value := range md {
		size += len(key) + len(value)
		if key == "user-agent" || key == ":authority" { // each request has them
			pairs--
		}
	}
	if n := limits.MaxPairs; pairs > n {
		return fmt.Errorf("has %d pairs, the limit is %d", pairs, n)
	}
	if n := limits.MaxMetadata; size > n {
		return fmt.Errorf("has %d bytes, the limit is %d", size, n)
	}
	return nil
}

// errUnserved is the cause of the Refusal of a request that is answered without a call.
var errUnserved = errors.New("the request is not a call of the method")

// refuse rejects the request when the middleware has passed the call. Until then, the response
// depends neither on the method nor on its kind.
func (x *exchange) refuse(status int, value, text string) {
	x.v.Refusal = rejection(status, x.name()+": "+text)
	x.v.Refusal.Cause = errUnserved
	e := x.v.Admit(0, true)
	if e == nil {
		e = x.run(false)
	}
	if e == nil || errors.Is(e, errUnserved) {
		x.reject(status, value, text)
		return
	}
	x.sendUnary("json", e)
}

// refuseLater makes the call fail with e when the middleware has passed it. It admits a call that
// is not admitted.
func (x *exchange) refuseLater(e *yodel.Error) *yodel.Error {
	if x.v.Refusal = e; x.admitted {
		return nil
	}
	return x.admit(0)
}

// end ends the call.
func (x *exchange) end() {
	x.uncancel()
	x.v.End()
	if x.buffer != nil {
		keepReply(x.buffer)
	}
	if !x.raw {
		framebody.Free(x.request)
	}
	x.session.Release(x.reserved)
}

// limit sets the deadline of a call that may take d, or any time if d is 0.
func (x *exchange) limit(d time.Duration) {
	x.v.Call().Deadline = deadlineIn(d)
}

// deadline returns that of the call, if there is one.
func (x *exchange) deadline() time.Time {
	if x.v == nil {
		return time.Time{}
	}
	return x.v.Call().Deadline
}

// deadlineIn returns the time that is d from now, or none if d is 0.
func deadlineIn(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// negotiate chooses the compressor. Sent is the compression of the request, and accepted a list of
// those that the client understands, or "" for that of the request. Plain says that the
// reply must not be compressed.
func (x *exchange) negotiate(sent, accepted string) (plain bool, err *yodel.Error) {
	acceptable := httpwire.Acceptable(accepted)
	if sent = strings.ToLower(sent); sent != "" && sent != "identity" {
		if x.compressor = x.session.Compressor(httpwire.Compressor(sent)); x.compressor == nil {
			return false, yodel.Errorf(yodel.Unimplemented, "the server does not have the compression %.40q; it has %s", sent, cmp.Or(x.compressions(), "none"))
		}
		x.compressed = true
		return accepted != "" && !slices.Contains(acceptable, sent), nil
	}
	for _, other := range acceptable {
		if x.compressor = x.session.Compressor(httpwire.Compressor(other)); x.compressor != nil {
			break
		}
	}
	return false, nil
}

// compressions lists the compressions that the server has.
func (x *exchange) compressions() string {
	var names []string
	for _, name := range [...]string{"gzip", "zstd", "deflate", "snappy", "br"} {
		if x.session.Compressor(httpwire.Compressor(name)) != nil {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// encoding returns the name of the compressor in HTTP.
func (x *exchange) encoding() string {
	if x.compressor == nil {
		return ""
	}
	return httpwire.Encoding(x.compressor.Name())
}

// run executes the call, and encodes the reply if the method has one. It does so on a goroutine of
// the session, because a handler may end its goroutine, and that of net/http owns the response.
func (x *exchange) run(reply bool) *yodel.Error {
	ended := make(chan struct{})
	x.session.Go(func() {
		defer close(ended)
		if x.v.Run() == nil && reply {
			x.buffer = replies.Get().(*[]byte)                //nolint:forcetypeassert // the pool holds nothing else
			x.reply, x.packed, _ = x.v.AppendReply(*x.buffer) // Outcome returns the error
			*x.buffer = x.reply
		}
	})
	<-ended
	if x.v.Outcome() == nil && x.v.Call().ReplyAttachment != nil {
		return x.v.Fail(errAttachment)
	}
	return x.v.Outcome()
}

var errAttachment = errors.New("the reply has an attachment, which HTTP cannot carry")

// guarded runs code of users on a goroutine of the session, which logs a panic. Net/http would
// close the connection. If f does not return, guarded returns the error of the call.
func (x *exchange) guarded(what string, f func()) *yodel.Error {
	if guarded(x.session, f) {
		return nil
	}
	e := yodel.Errorf(yodel.Internal, "%s: %s panicked or ended its goroutine", x.name(), what)
	e.NotProcessed = x.v == nil || !x.v.Call().Executed()
	return e
}

// guarded reports whether f has returned.
func guarded(session *yodel.Session, f func()) (returned bool) {
	ended := make(chan struct{})
	session.Go(func() {
		defer close(ended)
		f()
		returned = true
	})
	<-ended
	return returned
}

// readBody reads the body of a unary request into v.Body, and admits the call.
func (x *exchange) readBody() *yodel.Error {
	if n := x.r.ContentLength; n > int64(x.most) {
		return x.tooLarge(n)
	} else if n >= 0 {
		if e := x.admitSmall(int(n)); e != nil {
			return e
		}
		body := x.paced(x.r.Body)
		if e := x.readSized(int(n), body); e != nil {
			return e
		}
		if e := x.readEnd(body); e != nil {
			return e
		}
		return x.admitRead()
	}
	b, reserved, e := x.readUnsized()
	x.v.Reserved = reserved
	if e != nil {
		return e
	}
	x.v.Body, x.v.Owned = b, true
	return x.admit(len(b))
}

// readUnsized reads a body of unknown size. Memory grows with what has come. The caller releases
// the reserved bytes.
func (x *exchange) readUnsized() (b []byte, reserved int, e *yodel.Error) {
	b = make([]byte, 0, 4<<10)
	body := x.paced(x.r.Body)
	for {
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if len(b) > x.most {
			return nil, reserved, x.tooLarge(int64(len(b)))
		}
		if errors.Is(err, io.EOF) {
			x.unpace()
			return b, reserved, nil
		} else if err != nil {
			return nil, reserved, x.unread(err)
		}
		if len(b) == cap(b) {
			if !x.session.Reserve(cap(b)) {
				return nil, reserved, x.noMemory()
			}
			reserved += cap(b)
			b = append(make([]byte, 0, 2*cap(b)), b...)
		}
	}
}

// readEnd waits for the end of a request whose bytes were read. In HTTP/2 the end may come in a
// frame of its own. If the response were sent before, net/http would reset the stream.
func (x *exchange) readEnd(from *pacedReader) *yodel.Error {
	if !x.body.ended.Load() {
		if _, err := from.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			return x.unread(err)
		}
	}
	x.unpace()
	return nil
}

// name returns the name of the method, or that of the protocol if the request names none.
func (x *exchange) name() string {
	if x.v == nil {
		return "JSON-RPC"
	}
	return x.v.Call().Method
}

// tooLarge returns the error of a request of n bytes or more.
func (x *exchange) tooLarge(n int64) *yodel.Error {
	x.large = true
	e := yodel.Errorf(yodel.ResourceExhausted, "%s: the request has %d bytes, the server's limit is %d", x.name(), n, x.most)
	e.ID, e.NotProcessed = "YDL2201", true
	return e
}

// noMemory returns the error of a request for which the server has no memory.
func (x *exchange) noMemory() *yodel.Error {
	e := yodel.Errorf(yodel.ResourceExhausted, "%s: the server has no memory left for the request", x.name())
	e.ID, e.NotProcessed = "YDL3007", true
	return e
}

// admitSmall admits the call of a small request of n bytes, which has not come yet. A larger one is
// admitted by admitRead, so that a client that only announces it takes no room from others.
func (x *exchange) admitSmall(n int) *yodel.Error {
	if n >= slowFrom && n <= x.limits.MaxMessage {
		return nil
	}
	return x.admit(n)
}

// readSized reads a request of n bytes into v.Body. If the call is not admitted, its memory grows
// as the bytes arrive, and v.Reserved counts it. If readSized succeeds, the caller calls unpace.
func (x *exchange) readSized(n int, from *pacedReader) *yodel.Error {
	var memory framebody.Memory = framebody.Uncounted{}
	if !x.admitted {
		memory = x.session
	}
	b, err := framebody.Read(nil, from, n, memory)
	if err != nil {
		return x.unread(err)
	}
	if !x.admitted {
		x.v.Reserved = cap(b)
	}
	x.v.Body, x.v.Owned = b, x.raw
	x.request = b
	return nil
}

// admitRead admits the call of the request that readSized has read, if it is not admitted.
func (x *exchange) admitRead() *yodel.Error {
	if x.admitted {
		return nil
	}
	return x.admit(len(x.v.Body))
}

// admit admits the call.
func (x *exchange) admit(n int) *yodel.Error {
	e := x.v.Admit(n, true)
	x.admitted = e == nil
	return e
}

// unread returns the error of a request that could not be read. The deadline of pacedReader
// remains, so that net/http does not wait for the rest.
func (x *exchange) unread(err error) *yodel.Error {
	if _, ok := errors.AsType[*framebody.RefusedError](err); ok {
		return x.noMemory()
	}
	e := yodel.Errorf(yodel.Canceled, "%s: the request ends too early: %v", x.name(), err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Code = yodel.DeadlineExceeded
		if at := x.deadline(); !at.IsZero() && !time.Now().Before(at) {
			e.ID, e.Message = "YDL1005", x.name()+": the deadline passed before the request had arrived"
		}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		e.Code, e.Cause = yodel.InvalidArgument, errMalformed
	}
	e.NotProcessed = true
	return e
}

// leastPace is the lowest rate at which the rest of a message must arrive and a reply must be
// taken, in bytes per second.
const leastPace = 4 << 10

// allowed returns how long n bytes may take.
func (x *exchange) allowed(n int) time.Time {
	return time.Now().Add(2*x.limits.KeepAlive + time.Duration(n)*time.Second/leastPace)
}

// within finishes the request, and limits how long the client may take for n bytes of the reply.
func (x *exchange) within(n int) {
	x.finish()
	_ = x.control.SetWriteDeadline(x.allowed(n)) // without support for deadlines, the client ends the wait
}

// A pacedReader reads a message of the request in pieces, each of which must arrive in time. So the
// size that a client announces does not decide how long the server waits for the next byte.
type pacedReader struct {
	*exchange
	from io.Reader
	due  int // bytes until the next deadline is set
}

// paced returns a reader of a message. The caller calls unpace after the message.
func (x *exchange) paced(from io.Reader) *pacedReader { return &pacedReader{exchange: x, from: from} }

// Read implements io.Reader. Without support for deadlines, it waits for the client.
func (r *pacedReader) Read(b []byte) (int, error) {
	if r.due == 0 {
		r.due = min(max(int(2*r.limits.KeepAlive*leastPace/time.Second), leastPace), 256<<10)
		until := r.allowed(r.due)
		if at := r.deadline(); !at.IsZero() && at.Before(until) {
			until = at
		}
		_ = r.control.SetReadDeadline(until)
	}
	n, err := r.from.Read(b[:min(len(b), r.due)])
	r.due -= n
	return n, err
}

// unpace ends the deadline of a pacedReader.
func (x *exchange) unpace() { _ = x.control.SetReadDeadline(time.Time{}) }

// forget ends the deadlines of a request of HTTP/2 that the client has reset. In an http.Server of
// the program, the timer of a deadline would keep the request in memory until it fires. In HTTP/1,
// the deadline that has passed ends the connection of a client that does not send the rest.
func (x *exchange) forget() {
	if x.r.ProtoMajor >= 2 && x.r.Context().Err() != nil {
		_ = x.control.SetReadDeadline(time.Time{})
		_ = x.control.SetWriteDeadline(time.Time{}) // as above
	}
}

// setHeader adds metadata of the reply to the header of the response.
func (x *exchange) setHeader(prefix string, md yodel.Metadata) {
	x.setMetadata(x.v, x.w.Header(), prefix, md)
}

// setMetadata adds metadata of the reply to a call to h. It leaves out what the protocol cannot
// carry.
func (x *exchange) setMetadata(v *yodel.Served, h std.Header, prefix string, md yodel.Metadata) {
	x.family.Set(h, prefix, metakeys.Within(v, md, x.limits), v.LeftOut)
	if name := std.CanonicalHeaderKey(prefix + "set-cookie"); len(h[name]) == 1 {
		h[name] = cookiesOf(h[name][0])
	}
}

// cookie is the beginning of a cookie behind another one, in a list that commas separate. Within a
// cookie, a comma stands in the attribute Expires, behind the name of a day.
var cookie = regexp.MustCompile(`,\s*[^\s=;,]+\s*=`)

// cookiesOf returns the values of Set-Cookie in a list. Each needs a header of its own, because
// browsers do not divide them: RFC 9110, section 5.3.
func cookiesOf(list string) (values []string) {
	for {
		at := cookie.FindStringIndex(list)
		if at == nil {
			return append(values, list)
		}
		values = append(values, list[:at[0]])
		list = strings.TrimLeft(list[at[0]+1:], " \t")
	}
}
