// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A stream carries the messages of a call in envelopes, as gRPC and Connect do. It implements
// yodel.Messages.
type stream struct {
	*exchange
	kind       kind
	from       httpwire.Reader
	out        io.Writer
	begun      bool // the header of the response is set, with the metadata of the call
	timed      bool // the deadline for the rest of the response is set
	receiveErr error
	duplex     sync.Once
	reading    sync.Mutex
	whole      bool   // the request was read to its end; guarded by reading
	release    func() // ends what interrupts reads; nil before the first Receive
}

// open begins a call whose messages come as envelopes from in and go to out. The caller must close
// the stream. If open returns an error, the call must not be executed.
func (x *exchange) open(k kind, in io.Reader, out io.Writer) (*stream, *yodel.Error) {
	switch {
	case k.serve == nil || k.title == "Connect":
	case k.title == "gRPC-Web":
		x.family = httpwire.Web
	default:
		x.family = httpwire.GRPC
	}
	plain, e := x.negotiate(x.r.Header.Get(k.encoding), x.r.Header.Get(k.accept))
	codec, method := x.session.Codec(k.codec), namedBy(x.r.URL)
	gRPC := x.family == httpwire.GRPC || x.family == httpwire.Web
	if gRPC {
		method = methodOf(x.r.URL)
	}
	if refused := x.beginMethod(method, codec); e == nil {
		e = refused
	}
	base, _, _ := strings.Cut(k.media, "+")
	x.v.Refusal = x.unfit(codec, k.codec, k.title, base+"+json")
	if gRPC && !strings.Contains(method, "/") && x.v.Kind() != "" {
		x.v.Refusal = unsupported("%s: a path of gRPC and gRPC-Web is /Service/Method, with a slash before the method", method)
		x.v.Refusal.ID = "YDL2002"
	}
	if codec == nil { // the client chose the name
		k.media = base
	}
	x.v.Plain = plain
	st := &stream{exchange: x, kind: k, out: out}
	st.from = httpwire.Reader{From: in, Max: x.most, Reserve: x.session.Reserve}
	return st, e
}

// close ends the call, and releases the memory of the stream.
func (st *stream) close() {
	defer st.end()
	if st.release != nil {
		st.release()
	}
	st.session.Release(st.from.Held())
}

// grace is how long a read or a write may still take after its context has ended. A write that does
// not wait for the client then succeeds.
const grace = 100 * time.Millisecond

// until interrupts a read or a write when ctx ends before the call does. Set sets its deadline. The
// caller calls release afterwards.
func (x *exchange) until(ctx context.Context, set func(time.Time) error) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		if context.Cause(ctx) != context.Canceled { //nolint:errorlint // it is bare when the handler has returned
			_ = set(time.Now().Add(grace)) // without support for deadlines, the client ends the wait
		}
	})
	return func() {
		if !stop() {
			<-done
			_ = set(time.Time{}) // as above
		}
	}
}

// readUntil sets the deadline of reads, unless the request was read to its end. Then net/http waits
// for the next request, and a deadline would end its connection.
func (st *stream) readUntil(at time.Time) error {
	st.reading.Lock()
	defer st.reading.Unlock()
	if st.whole {
		return nil
	}
	return st.control.SetReadDeadline(at)
}

// fullDuplex makes net/http read the request while it writes the response, for a method that does
// both. A call that the middleware refuses does not get there, so that its response does not tell
// the kind of the method.
func (st *stream) fullDuplex() {
	if st.r.ProtoMajor != 1 || st.v.Kind() != "duplex" || !st.v.Call().Executed() {
		return
	}
	st.duplex.Do(func() {
		_ = st.control.EnableFullDuplex()               // net/http has it for HTTP/1
		st.w.Header()["Connection"] = []string{"close"} // with full duplex, net/http cannot reuse a connection whose request was not read
	})
}

// start sets the header of the response, once.
func (st *stream) start() {
	if st.begun {
		return
	}
	st.fullDuplex()
	st.describe()
	if st.compressor != nil {
		st.w.Header()[st.kind.encoding] = []string{st.encoding()}
	}
	st.setHeader("", st.v.Call().Header())
	st.begun = true
}

// describe sets the content type of the response, and the compressions of the server. Libraries of
// gRPC show their callers the headers that they do not know. So a bare response lists the
// compressions only if the server refuses that of the request, and lacks the headers that net/http
// adds. Proxies such as nginx also drop the trailers behind a content length of 0.
func (st *stream) describe() {
	h, k := st.w.Header(), st.kind
	h["Content-Type"] = []string{k.media}
	sent := st.r.Header.Get(k.encoding)
	if all := st.compressions(); all != "" && (!k.bare || st.compressor == nil && sent != "" && sent != "identity") {
		h[k.accept] = []string{all}
	}
	if k.bare {
		h["Content-Length"], h["Date"] = nil, nil // net/http does not set a header that is present
		delete(h, "Vary")
	}
}

// SendHeader sends the header of the response at once.
func (st *stream) SendHeader() error {
	st.start()
	return st.control.Flush()
}

// Send implements yodel.Messages.
func (st *stream) Send(ctx context.Context, body []byte, compressed bool) error {
	st.start()
	var flags byte
	if compressed {
		flags = httpwire.FlagCompressed
	}
	prefix := httpwire.Prefix(flags, len(body))
	if w, ok := st.out.(interface{ TryWrite(head, body []byte) bool }); ok && w.TryWrite(prefix[:], body) {
		return nil
	}
	defer st.until(ctx, st.control.SetWriteDeadline)()
	err := st.write(flags, body)
	if err == nil {
		err = st.control.Flush()
	}
	if err != nil {
		return ended(ctx, err)
	}
	return nil
}

// write writes an envelope.
func (st *stream) write(flags byte, body []byte) error {
	prefix := httpwire.Prefix(flags, len(body))
	if _, err := st.out.Write(prefix[:]); err != nil {
		return err
	}
	_, err := st.out.Write(body)
	return err
}

// ended returns the cause of ctx if it has ended, and err otherwise.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Receive implements yodel.Messages.
func (st *stream) Receive(ctx context.Context) (body []byte, compressed bool, err error) {
	if st.receiveErr != nil {
		return nil, false, st.receiveErr
	}
	if st.release == nil {
		st.fullDuplex()
		st.release = st.until(ctx, st.readUntil) // ctx is that of the whole call
	}
	flags, body, err := st.next()
	switch {
	case errors.Is(err, io.EOF):
		err = io.EOF
		st.reading.Lock()
		st.whole = true
		st.reading.Unlock()
	case err != nil:
		if _, ok := errors.AsType[*yodel.Error](err); !ok || ctx.Err() != nil {
			err = ended(ctx, &yodel.Error{Code: yodel.Canceled, Message: "the client ended the request: " + err.Error(), Cause: err})
		}
	case flags&^httpwire.FlagCompressed != 0:
		err = yodel.Errorf(yodel.Internal, "a message has the flags %#x, which the protocol does not have", flags)
	case flags != 0 && !st.compressed:
		err = yodel.Errorf(yodel.Internal, "a message is compressed, and the request names no compression")
	}
	st.receiveErr = err
	return body, flags == httpwire.FlagCompressed && len(body) > 0, err
}

// slowFrom is the size in bytes from which a message must arrive at the least pace, and from which
// the call of a request takes no room before it has arrived.
const slowFrom = 16 << 10

// next reads a message.
func (st *stream) next() (flags byte, body []byte, err error) {
	flags, size, err := st.from.Prefix()
	if err != nil {
		return 0, nil, err
	}
	if size >= slowFrom {
		from := st.from.From
		st.from.From = st.paced(from)
		defer func() {
			st.from.From = from
			st.unpace()
		}()
	}
	body, err = st.from.Body(size)
	return flags, body, err
}

// allow sets the deadline for the rest of the response, which has n bytes and a trailer. Only the
// first call has an effect, because each deadline costs net/http a message to its serving
// goroutine.
func (st *stream) allow(n int) {
	if !st.timed {
		st.timed = true
		st.within(n)
	}
}

// End implements yodel.Messages. The end of the response says that there are no more messages.
func (*stream) End() {}

// only reads the one message of a unary call or a feed into v.Body, and admits the call.
// The prefix of the message and the end of the request must arrive in time too. A call whose
// request is not one message fails behind the middleware, as a call of an unknown method does.
func (st *stream) only() *yodel.Error {
	body := st.from.From
	st.from.From = st.paced(body)
	flags, size, err := st.from.Prefix()
	switch {
	case errors.Is(err, io.EOF):
		return st.refuseLater(yodel.Errorf(yodel.Unimplemented, "%s: the request has no message", st.v.Call().Method))
	case err != nil:
		return st.refuseLater(st.broken(err))
	case flags&^httpwire.FlagCompressed != 0:
		return st.refuseLater(st.broken(yodel.Errorf(yodel.Internal, "the message has the flags %#x", flags)))
	case flags != 0 && !st.compressed:
		return st.refuseLater(st.broken(yodel.Errorf(yodel.Internal, "the message is compressed, and the request names no compression")))
	}
	st.unpace() // Admit may wait
	paced := st.paced(body)
	st.from.From = paced
	if e := st.admitSmall(size); e != nil {
		return e
	}
	if e := st.readSized(size, paced); e != nil {
		if errors.Is(e, errMalformed) {
			e.Code = yodel.Internal // as that of httpwire.ErrCut
		}
		return st.refuseLater(e)
	}
	st.v.Compressed = flags != 0 && size > 0
	switch _, _, err = st.from.Prefix(); {
	case err == nil:
		return st.refuseLater(yodel.Errorf(yodel.Unimplemented, "%s: the request has several messages", st.v.Call().Method))
	case !errors.Is(err, io.EOF):
		return st.refuseLater(st.broken(err))
	}
	st.unpace()
	return st.admitRead()
}

// broken returns the error of a request that could not be read.
func (st *stream) broken(err error) *yodel.Error {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		told := *e
		told.NotProcessed, told.Message = true, st.v.Call().Method+": "+e.Message
		return &told
	}
	return st.unread(err)
}

// execute reads the request as the kind of the method says, executes the call and writes its reply,
// if it has one.
func (st *stream) execute() *yodel.Error {
	v, kind := st.v, st.v.Kind()
	var e *yodel.Error
	switch kind {
	case "unary", "feed":
		e = st.only()
	default:
		e = v.Admit(0, true)
	}
	if e != nil {
		return e
	}
	if kind != "unary" {
		v.Stream = st
	}
	replies := kind != "feed" && kind != "duplex" // middleware may answer a call of no method
	e = st.run(replies)
	if kind != "" && (e == nil || !e.NotProcessed) {
		st.finished = true // the handler has decided how much of a stream it reads, and the client may wait for its end
	}
	if e != nil || !replies {
		return e
	}
	st.start()
	st.allow(len(st.reply))
	var flags byte
	if st.packed {
		flags = httpwire.FlagCompressed
	}
	if err := st.write(flags, st.reply); err != nil {
		return v.Fail(err)
	}
	return nil
}
