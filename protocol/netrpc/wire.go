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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Wire returns a Wire that calls servers of the standard library's net/rpc, for
// ClientOptions.Wires. Its name is "netrpc":
//
//	client := yodel.NewClient(yodel.Static("netrpc://10.0.0.7:1234", "10.0.0.8:8972"), &yodel.ClientOptions{
//		Codec: gob.Codec,
//		Wires: []yodel.Wire{netrpc.Wire(gob.Codec)},
//	})
//
// Codec decodes the replies. It must be the codec of package codec/gob. The servers accept
// connections with rpc.Accept or rpc.ServeConn. For servers that use rpc.HandleHTTP, use WireHTTP.
//
// The protocol carries only the method, the arguments and the reply. It does not carry metadata,
// deadlines or cancellation. A call with an attachment, with several values or with a stream fails
// before it is sent. A server's error is the text of its handler's error. If the text begins with
// the name of a code, as the texts of yodel servers do, the error has that code. Otherwise its code
// is Unknown. If a connection ends, its pending calls may have been executed.
func Wire(codec yodel.Codec) yodel.Wire { return wire{codec: codec} }

// WireHTTP is Wire for servers that serve net/rpc at a path of an HTTP server, which is usually
// rpc.DefaultRPCPath. Its name is "netrpc+http".
func WireHTTP(codec yodel.Codec, path string) yodel.Wire { return wire{codec, path} }

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
	if w.codec == nil || w.codec.Name() != "gob" {
		return nil, errors.New(`netrpc.Wire needs the codec "gob"`)
	}
	reader := bufio.NewReaderSize(nc, 32<<10)
	if w.path != "" {
		if err := w.connectHTTP(ctx, nc, reader); err != nil {
			return nil, err
		}
	}
	l := &link{
		conn: nc, codec: w.codec, limits: ep.Client().Limits(), addr: ep.Addr(),
		frames: newFrames(reader, ep.Client().Limits().MaxMessage), pending: make(map[uint64]*pendingCall),
		closing: make(chan struct{}), lost: make(chan struct{}), done: make(chan struct{}),
		queued: make(chan struct{}, 1), written: make(chan struct{}),
	}
	l.encoder = gob.NewEncoder(&l.encoded)
	var both sync.WaitGroup
	both.Go(l.read)
	both.Go(l.write)
	go func() {
		both.Wait()
		close(l.done)
	}()
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

// A link is the client's side of a connection. The goroutine of read passes replies to the waiting
// calls, which decode them. The goroutine of write writes requests.
type link struct {
	conn   net.Conn
	codec  yodel.Codec
	limits yodel.Limits
	addr   string
	frames *frames // for read

	encoding sync.Mutex // held while a request is encoded and queued; before mu
	encoder  *gob.Encoder
	encoded  bytes.Buffer

	closing chan struct{} // closed when no more calls are accepted
	lost    chan struct{} // closed when read has ended
	done    chan struct{} // closed when read and write have ended
	queued  chan struct{} // capacity 1: has an element when queue is not empty

	mu       sync.Mutex
	seq      uint64
	pending  map[uint64]*pendingCall // calls that wait for a reply
	queue    []byte                  // requests to be written
	writing  bool                    // whether write is writing a part of the queue
	written  chan struct{}           // closed and replaced after each write
	closed   bool                    // whether closing is closed
	whenIdle bool                    // whether the connection ends when no call is pending
	err      error
}

// A pendingCall is a call that waits for its reply.
type pendingCall struct {
	reply chan reply // capacity 1
}

// A reply is the answer to a call: an error, or the definitions and the value.
type reply struct {
	err  error
	body []byte
}

var errClosed = errors.New("the connection was closed")

// Closing, Done and Err implement yodel.Link.
func (l *link) Closing() <-chan struct{} { return l.closing }
func (l *link) Done() <-chan struct{}    { return l.done }

func (l *link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close implements yodel.Link.
func (l *link) Close(whenIdle bool) {
	l.mu.Lock()
	l.whenIdle = true
	now := !whenIdle || l.idleLocked()
	l.closeLocked(errClosed)
	l.mu.Unlock()
	if now {
		_ = l.conn.Close() // then read returns an error
	}
}

// idleLocked reports whether the connection can be closed, because no call needs it any more.
func (l *link) idleLocked() bool {
	return l.whenIdle && len(l.pending) == 0 && len(l.queue) == 0 && !l.writing
}

// closeLocked makes the link refuse further calls.
func (l *link) closeLocked(err error) {
	if !l.closed {
		l.closed, l.err = true, err
		close(l.closing)
	}
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if err := l.unsendable(call); err != nil {
		return err
	}
	p := &pendingCall{reply: make(chan reply, 1)}
	seq, err := l.send(ctx, call, p)
	if err != nil || call.OneWay {
		return err
	}
	var r reply
	select {
	case r = <-p.reply:
	case <-ctx.Done():
		l.forget(seq)
		return context.Cause(ctx)
	}
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
	default:
		_, several := call.Args.(yodel.Values)
		if _, results := call.Reply.(yodel.Values); !several && !results {
			return nil
		}
		what = "several values"
	}
	return &yodel.Error{Code: yodel.Unimplemented, NotProcessed: true, Message: fmt.Sprintf("%s: %s speaks net/rpc, which has no %s", call.Method, l.addr, what)}
}

// send encodes and queues a request, and registers p for its reply. It waits while the queue is too
// long.
func (l *link) send(ctx context.Context, call *yodel.Call, p *pendingCall) (seq uint64, err error) {
	for {
		l.mu.Lock()
		full, written, closed, why := len(l.queue) > l.limits.MaxUnsent, l.written, l.closed, l.err
		l.mu.Unlock()
		if closed {
			return 0, unsent(why)
		}
		if !full {
			break
		}
		select {
		case <-written:
		case <-ctx.Done():
			return 0, unsent(context.Cause(ctx))
		}
	}
	l.encoding.Lock()
	defer l.encoding.Unlock()
	l.encoded.Reset()
	// The arguments are encoded first, because this may fail. The definitions of types that the
	// encoder has written are sent in either case, because the encoder does not write them again.
	failed := l.encode(call.Args)
	args := l.encoded.Len()
	if n := args; failed == nil && n > l.limits.MaxMessage {
		_ = l.enqueue(nil, l.encoded.Bytes()[:valueAt(l.encoded.Bytes())]) // the next call gets the error
		return 0, &yodel.Error{
			Code: yodel.ResourceExhausted, ID: "YDL2201", NotProcessed: true,
			Message: fmt.Sprintf("%s: the request has %d bytes, this client's limit is %d", call.Method, n, l.limits.MaxMessage),
		}
	}
	if failed != nil {
		_ = l.enqueue(nil, l.encoded.Bytes()) // as above
		return 0, &yodel.Error{
			Code: yodel.InvalidArgument, ID: "YDL2103", NotProcessed: true, Cause: failed,
			Message: fmt.Sprintf("%s: %v (net/rpc)", call.Method, failed),
		}
	}
	l.mu.Lock()
	l.seq++
	seq = l.seq
	l.mu.Unlock()
	if err := l.encoder.Encode(&rpc.Request{ServiceMethod: call.Method, Seq: seq}); err != nil {
		l.giveUp(err)
		return 0, unsent(err)
	}
	if call.OneWay {
		p = nil
	}
	b := l.encoded.Bytes()
	return seq, l.enqueue(p, b[args:], b[:args])
}

// encode encodes a value. User code in it may panic.
func (l *link) encode(value any) (err error) {
	known := false
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%T panicked while it was encoded", value)
		} else if !known { // encoding ended the goroutine
			l.giveUp(fmt.Errorf("%T ended its goroutine while it was encoded", value))
		}
	}()
	err = l.encoder.Encode(value)
	known = true
	return err
}

// enqueue queues the parts of a request with the number l.seq, and registers p for its reply.
func (l *link) enqueue(p *pendingCall, parts ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return unsent(l.err)
	}
	for _, b := range parts {
		l.queue = append(l.queue, b...)
	}
	if p != nil {
		l.pending[l.seq] = p
	}
	select {
	case l.queued <- struct{}{}:
	default: // write has a signal already
	}
	return nil
}

// unsent returns the error of a request that was not sent.
func unsent(why error) error {
	return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: why.Error(), Cause: why}
}

// forget removes a call whose caller has stopped waiting. Its reply will be discarded.
func (l *link) forget(seq uint64) {
	l.mu.Lock()
	delete(l.pending, seq)
	idle := l.idleLocked()
	l.mu.Unlock()
	if idle {
		_ = l.conn.Close() // then read returns an error
	}
}

// giveUp ends the connection because of err.
func (l *link) giveUp(err error) {
	l.mu.Lock()
	l.closeLocked(err)
	l.mu.Unlock()
	_ = l.conn.Close() // then read returns an error
}

// pieceSize is how many bytes must be written within twice Limits.KeepAlive. Otherwise the
// connection ends.
const pieceSize = 64 << 10

// write writes the queue, until the connection ends.
func (l *link) write() {
	var spare []byte
	for {
		select {
		case <-l.queued:
		case <-l.lost:
			return
		}
		l.mu.Lock()
		b := l.queue
		l.queue, l.writing = spare[:0], true
		l.mu.Unlock()
		for piece := range slices.Chunk(b, pieceSize) {
			if l.limits.KeepAlive > 0 {
				_ = l.conn.SetWriteDeadline(time.Now().Add(2 * l.limits.KeepAlive)) // the write fails as well
			}
			if _, err := l.conn.Write(piece); err != nil {
				l.giveUp(err)
				return
			}
		}
		if spare = b; cap(b) > keepBuffer {
			spare = nil
		}
		l.mu.Lock()
		close(l.written)
		l.written, l.writing = make(chan struct{}), false
		idle := l.idleLocked()
		l.mu.Unlock()
		if idle {
			_ = l.conn.Close() // then read returns an error
		}
	}
}

// read reads replies until the connection ends.
func (l *link) read() {
	err := error(nil)
	for err == nil {
		err = l.next()
	}
	l.mu.Lock()
	l.closeLocked(err)
	err = l.err
	lost := l.pending
	l.pending = nil
	l.mu.Unlock()
	_ = l.conn.Close() // no more replies can arrive
	for _, p := range lost {
		p.reply <- reply{err: fmt.Errorf("net/rpc: %w", err)}
	}
	close(l.lost)
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
	l.mu.Lock()
	p := l.pending[header.Seq]
	l.mu.Unlock()
	var r reply
	switch {
	case p == nil: // its caller has stopped waiting
		return l.frames.skip(v)
	case header.Error != "":
		r.err = errorOf(header.Error)
		err = l.frames.skip(v)
	case v.size > l.limits.MaxMessage:
		r.err = &yodel.Error{
			Code: yodel.ResourceExhausted, ID: "YDL2202",
			Message: fmt.Sprintf("%s: the reply from %s has %d bytes, this client's limit is %d", header.ServiceMethod, l.addr, v.size, l.limits.MaxMessage),
		}
		err = l.frames.skip(v)
	default:
		r.body, err = l.frames.body(v)
	}
	if err != nil {
		return err // p gets it from read
	}
	p.reply <- r
	l.forget(header.Seq)
	return nil
}

// errorOf returns the error for the text that a server sent.
func errorOf(text string) error {
	if strings.HasPrefix(text, "rpc: can't find ") {
		return &yodel.Error{Code: yodel.Unimplemented, Message: text, NotProcessed: true}
	}
	if name, message, ok := strings.Cut(text, ": "); ok {
		for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
			if code.String() == name {
				return &yodel.Error{Code: code, Message: message}
			}
		}
	}
	return &yodel.Error{Code: yodel.Unknown, Message: text}
}
