// SPDX-License-Identifier: Apache-2.0

// Package httplink is the client's side of the protocols over HTTP: one connection of net/http, on
// which a Wire carries calls.
package httplink

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
)

// A Link is a connection of net/http. It implements yodel.Link except for Do, and a Wire embeds it
// in its own Link.
type Link struct {
	// Authority is the host that requests name.
	Authority string
	// Limits are those of the client.
	Limits yodel.Limits

	ep      *yodel.Endpoint // counts the memory of replies
	agent   string          // the User-Agent
	conn    *http.ClientConn
	turn    chan struct{} // has an element while a call is in flight; nil for HTTP/2
	closing chan struct{} // closed when no more calls are accepted
	done    chan struct{} // closed when the connection has ended

	mu       sync.Mutex
	closed   bool // whether closing is closed
	ended    bool // whether done is closed
	whenIdle bool // whether the connection ends when no call is in flight
	open     int  // calls in flight
	err      error
}

var (
	errClosed   = errors.New("the connection was closed")
	errCanceled = errors.New("the connection ended with a call that was canceled")
)

// Connect returns a Link that owns nc, a connection to ep. It speaks HTTP/1.1 if http1 is set, and
// HTTP/2 otherwise. With HTTP/2 it waits for the server's settings. Without this wait, the outcome
// of calls to a server that speaks another protocol would be unknown.
func Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint, http1 bool) (*Link, error) {
	limits := ep.Client().Limits()
	greeted := &greetedConn{Conn: nc, greeting: make(chan error, 1)}
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return greeted, nil },
		Protocols:              new(http.Protocols),
		DisableCompression:     true, // the Wire compresses messages
		MaxResponseHeaderBytes: int64(limits.MaxMetadata) + 8<<10,
		ReadBufferSize:         32 << 10,
		WriteBufferSize:        32 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: limits.KeepAlive,
			PingTimeout:     limits.KeepAlive,
		},
	}
	transport.Protocols.SetHTTP1(http1)
	transport.Protocols.SetUnencryptedHTTP2(!http1) // with TLS too: the client's Transport has made the handshake
	l := &Link{ep: ep, Authority: authority(ep), Limits: limits, agent: httpwire.UserAgent(ep.Client().Name()), closing: make(chan struct{}), done: make(chan struct{})}
	if http1 {
		l.turn = make(chan struct{}, 1)
	}
	var err error
	if l.conn, err = transport.NewClientConn(ctx, "http", "endpoint:80"); err != nil { // DialContext ignores the address, which must have a port
		return nil, err
	}
	l.conn.SetStateHook(l.state)
	if !http1 {
		if err = greeted.awaitSettings(ctx, ep); err != nil {
			_ = l.conn.Close() // err has the reason
			return nil, err
		}
	}
	return l, nil
}

// authority returns the metadata "authority" of an instance, or its address.
func authority(ep *yodel.Endpoint) string {
	if name := ep.Instance().Metadata["authority"]; name != "" {
		return name
	}
	return ep.Addr()
}

// state is called by net/http when the state of the connection has changed.
func (l *Link) state(conn *http.ClientConn) {
	if err := conn.Err(); err != nil {
		l.refuse(err)
	}
}

// refuse makes the link accept no more calls because of err.
func (l *Link) refuse(err error) {
	l.mu.Lock()
	l.whenIdle = true
	l.closeLocked(err)
	l.mu.Unlock()
	l.endIfIdle()
}

func (l *Link) closeLocked(err error) {
	if !l.closed {
		l.closed, l.err = true, err
		close(l.closing)
	}
}

// endIfIdle ends the connection if no call is in flight and no more are accepted.
func (l *Link) endIfIdle() {
	l.mu.Lock()
	ends := l.whenIdle && l.open == 0
	l.mu.Unlock()
	if ends {
		l.end()
	}
}

// end ends the connection.
func (l *Link) end() {
	_ = l.conn.Close() // there is nothing more to say
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.done)
	}
}

// Closing implements yodel.Link.
func (l *Link) Closing() <-chan struct{} { return l.closing }

// Done implements yodel.Link.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err implements yodel.Link.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close implements yodel.Link.
func (l *Link) Close(whenIdle bool) {
	l.refuse(errClosed)
	if !whenIdle {
		l.end()
	}
}

// Full reports whether another call would have to wait: see yodel.Link.
func (l *Link) Full() bool {
	if l.turn != nil {
		return len(l.turn) > 0
	}
	return l.conn.Available() == 0
}

// begin counts a call. In HTTP/1, it first waits until the connection carries no other call. If it
// returns an error, the call must not be sent. Otherwise the link's finish must follow.
func (x *exchange) begin() error {
	l := x.link
	if l.turn != nil {
		select {
		case l.turn <- struct{}{}:
		default:
			x.waited = true
			select {
			case l.turn <- struct{}{}:
			case <-x.ctx.Done():
				return linkerror.Unsent(context.Cause(x.ctx))
			case <-l.closing:
				return x.unsent(l.Err())
			}
		}
	}
	l.mu.Lock()
	l.open++
	closed := l.closed
	l.mu.Unlock()
	if closed {
		l.finish()
		return x.unsent(l.Err())
	}
	return nil
}

// unsent returns the error of a request that was not sent because of why, which ended the
// connection or came from it.
func (x *exchange) unsent(why error) error {
	if x.waited && x.ctx.Err() == nil {
		return linkerror.Waited(x.call, x.link.ep.Addr(), why)
	}
	return linkerror.Unsent(why)
}

// finish ends begin.
func (l *Link) finish() {
	if l.turn != nil {
		<-l.turn
	}
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
	l.endIfIdle()
}

// A streamError has the form of the error of net/http for a stream of HTTP/2 that was reset.
// Errors.As converts it.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (streamError) Error() string { return "a stream was reset" }

// Codes of streams that were reset, from RFC 9113, section 7.
const (
	refusedStream  = 7 // the server did not process it
	canceledStream = 8
)

// The texts of errors of net/http for requests that the server did not process. Net/http does not
// export these errors.
const (
	// goAway: the request came after those that the server's GOAWAY names.
	goAway = "http2: Transport received Server's graceful shutdown GOAWAY"
	// unusable: the connection had ended, or got GOAWAY, before the request was sent.
	unusable = "http2: client conn not usable"
	// unestablished: the connection ended before its first request was sent.
	unestablished = "http2: client conn could not be established"
)

// unprocessed reports whether err has one of these texts.
func unprocessed(err error) bool {
	text := err.Error()
	return strings.HasSuffix(text, goAway) || strings.HasSuffix(text, unusable) || strings.HasSuffix(text, unestablished)
}

// failed is outcome for a request on the link. Net/http closes a connection of HTTP/1 then,
// possibly later. So no other call may begin on it.
func (x *exchange) failed(err error) error {
	l := x.link
	switch {
	case l.turn == nil:
	case x.ctx.Err() != nil:
		l.refuse(errCanceled)
	default:
		l.refuse(err)
	}
	return outcome(x.ctx, err)
}

// outcome returns the error of a request that got no response, or no end of it.
func outcome(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	reset, ok := errors.AsType[streamError](err)
	if at, limited := ctx.Deadline(); ok && reset.Code == canceledStream && limited && time.Until(at) < httpwire.Skew {
		<-ctx.Done() // the server's clock has reached the deadline first
		return context.Cause(ctx)
	}
	switch {
	case ok && reset.Code == refusedStream, unprocessed(err):
		return linkerror.Unsent(err)
	case ok:
		return &yodel.Error{Code: codeOfReset(reset.Code), Message: err.Error(), Cause: err}
	}
	return err
}

// codeOfReset returns the code for a stream that was reset, from gRPC's document PROTOCOL-HTTP2.
func codeOfReset(code uint32) yodel.Code {
	switch code {
	case canceledStream:
		return yodel.Canceled
	case 11: // ENHANCE_YOUR_CALM
		return yodel.ResourceExhausted
	case 12: // INADEQUATE_SECURITY
		return yodel.PermissionDenied
	}
	return yodel.Internal
}
