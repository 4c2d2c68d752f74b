// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/loglimit"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file serves other protocols on the port of a server. It recognizes the protocol by the first
// bytes of each connection, and passes connections in other protocols to a Protocol.

// A Session is a server's connection to a client that speaks another protocol than yodel's. The
// Protocol that serves it owns it. A Protocol with one call at a time reads and answers in a loop:
//
//	for session.Next() == nil {
//		request := … // from session.Reader
//		v := session.Begin(method, codec, nil)
//		… // as the comment of Served shows
//		session.Write(reply)
//	}
//
// Reader, Next and a waiting Served.Admit are for one goroutine at a time. All other methods may be
// called concurrently until Serve and the functions that were passed to Go have returned. So may a
// waiting Admit after AsConn was called, because it does not read ahead then.
type Session struct {
	// Conn is the connection. A Protocol writes with Write and reads from Reader.
	Conn net.Conn
	// Reader reads the connection from its first byte, through a buffer of 32 KiB. When the server
	// drains, Reader returns io.EOF as soon as no call has been open for 50 ms, or no call is open
	// while Next pauses. In many protocols a server cannot tell a client that it drains. Without
	// this rule, such a client would wait for a reply to a request that the server never reads.
	Reader *bufio.Reader
	// Peer is the client. A Protocol may set Name, Agent and Metadata before it begins the first
	// call.
	Peer *Peer
	// HideErrors makes the session send only messages that were written for callers: those of Error
	// values that the program makes itself, for example by Errorf, of statuses of grpc-go, and of
	// the server. In place of any other error, such as that of a call which the handler has made,
	// the client gets the number of a line in the server's log. Default: ServerOptions.HideErrors.
	// A Protocol sets HideErrors before it begins a call.
	HideErrors bool

	server *Server
	ctx    context.Context //nolint:containedctx // parent of all calls' contexts; ends with the session
	cancel context.CancelCauseFunc
	life   context.Context //nolint:containedctx // parent of ctx and of running one-way calls; ends orphanTime later, or when Shutdown stops waiting
	end    context.CancelCauseFunc
	first  []byte // bytes read before the protocol was known
	calls  sync.WaitGroup
	room   admission.Room // the limits of this connection

	began     time.Duration // on the clock
	draining  chan struct{}
	drainOnce sync.Once
	quiet     atomic.Bool // no call was open for quietTime during the drain
	idled     bool        // Limits.IdleTimeout has passed; the reading goroutine's
	known     atomic.Bool // the peer may be seen
	refused   atomic.Bool // Connect has refused the peer
	greet     func() error
	pace      admission.Pace // of the message that is being read; the reading goroutine's
	writing   chan struct{}  // holds the token of the running Write; no mutex, so that the time of a synctest bubble passes meanwhile

	mu        sync.Mutex
	native    bool // the connection speaks yodel's own protocol
	protocol  string
	bound     map[string]*boundMethod
	open      map[*Served]struct{}
	lastEnd   time.Time     // when the last call ended
	receiving bool          // a message has begun to arrive, and Next was not called since
	paused    chan struct{} // closed when Next may read again; nil if it may
	waiting   bool          // Next waits for that
	peeking   bool          // Admit waits, and another goroutine reads ahead
	stopPeek  bool          // the goroutine that reads ahead must end
	deadline  time.Time     // of reads
	readErr   error         // of Conn
	writeErr  error         // of Write
	writeBy   time.Time     // the deadline of writes that the user of AsConn has set
	passed    bool          // AsConn was called
	busy      int           // calls of Busy that were not ended
	reserved  int           // bytes, by Reserve; part of held
	held      int           // bytes that the peer makes the server hold
	over      bool          // Reserve fails, because the session has ended
	changed   chan struct{} // closed when drain has to check again; nil without a waiter
}

const (
	// sniffed is the largest number of bytes from which the server decides which protocol a
	// connection speaks.
	sniffed = 512
	// silentTime is how long a client may wait before its first byte, if the server has Protocols.
	// Clients of some protocols connect long before their first call.
	silentTime = 5 * time.Minute
	// quietTime is how long a session without open calls lasts while the server drains.
	quietTime = 50 * time.Millisecond
	// lingerTime is how long the client of a paused session may take to notice its end.
	lingerTime = time.Second
	// orphanTime is how long one-way calls may go on when their client has disconnected, as in
	// package mux. A client whose one-way call waits that long may count as disconnected.
	orphanTime = 30 * time.Second
	// sessionBuffer is the size of Session.Reader.
	sessionBuffer = 32 << 10
	// writePiece is how many bytes must go out within twice Limits.KeepAlive.
	writePiece = 64 << 10
)

// errSlow is the error of a message whose rest arrives too slowly.
var errSlow = errors.New("the rest of a message arrives with less than 4 KiB per second")

// past is a deadline that ends a Read at once.
var past = time.Unix(1, 0)

// newSession returns the state of a connection until its protocol is known.
func newSession(s *Server, nc net.Conn, peer *Peer) *Session {
	ses := &Session{
		Conn: nc, Peer: peer, server: s, HideErrors: s.opts.HideErrors, draining: make(chan struct{}), open: make(map[*Served]struct{}),
		writing: make(chan struct{}, 1), lastEnd: time.Now(), began: clock(),
	}
	ses.room.Calls, ses.room.Bytes = s.limits.MaxOpen, s.limits.MaxMemory/2
	ses.life, ses.end = context.WithCancelCause(context.Background())
	ses.ctx, ses.cancel = context.WithCancelCause(ses.life)
	ses.greet = sync.OnceValue(ses.connect)
	peer.ended = ses.ctx.Done()
	return ses
}

// sniff reads until the protocol of the connection is known. It returns nil for yodel's own
// protocol. It also returns nil if no Protocol matches; package mux then reports the fault.
func (ses *Session) sniff() Protocol {
	buf := make([]byte, 0, sniffed)
	ses.readUntil(time.Now().Add(silentTime))
	for len(buf) < cap(buf) {
		n, err := ses.Conn.Read(buf[len(buf):cap(buf)])
		if len(buf) == 0 {
			ses.readUntil(time.Now().Add(ses.server.limits.Handshake))
			ses.receive(n > 0)
		}
		buf = buf[:len(buf)+n]
		p, more := ses.server.protocolOf(buf)
		if p != nil || !more || err != nil {
			ses.decided(p == nil, buf)
			return p
		}
	}
	ses.decided(true, buf)
	return nil
}

// decided stores the result of sniff.
func (ses *Session) decided(native bool, first []byte) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.native, ses.first = native, first
	ses.changedLocked()
	if !ses.quiet.Load() || native {
		ses.deadline = time.Time{}
		_ = ses.Conn.SetReadDeadline(time.Time{}) // as readUntil
	}
}

// protocolOf returns the Protocol of a connection that begins with first, or nil. More says that
// further bytes may decide it.
func (s *Server) protocolOf(first []byte) (p Protocol, more bool) {
	if n := min(len(first), len(wire.Magic)); string(first[:n]) == wire.Magic[:n] {
		return nil, n < len(wire.Magic)
	}
	for _, p := range s.opts.Protocols {
		ok, maybe := p.Match(first)
		if ok {
			return p, false
		}
		more = more || maybe
	}
	return nil, more
}

// readUntil sets the deadline of reads, unless wakeLocked has ended them.
func (ses *Session) readUntil(at time.Time) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !ses.quiet.Load() && !ses.stopPeek && !at.Equal(ses.deadline) {
		ses.deadline = at
		_ = ses.Conn.SetReadDeadline(at) // without support for deadlines, the read waits for the peer
	}
}

// wakeLocked ends the pending Read and later ones at a time.
func (ses *Session) wakeLocked(at time.Time) {
	ses.deadline = at
	_ = ses.Conn.SetReadDeadline(at) // without support for deadlines, Shutdown closes the connection
}

// Next waits for the first byte of the client's next message. A Protocol calls it before it reads
// each request. Next returns io.EOF if there will be no further message, because the client has
// closed the connection, the server drains, or no call was open for Limits.IdleTimeout. Requests of
// a busy client wait in Next during a drain from time to time, so that the open calls end.
//
// The message lasts until Next is called again. Until then a drain waits for the message. The rest
// of the message must arrive at 4 KiB per second or more, measured over twice Limits.KeepAlive of
// waiting. Otherwise Reader returns an error, so that a client cannot hold memory with half a
// request. These bounds do not apply to a Protocol that does not call Next.
func (ses *Session) Next() error {
	ses.receive(false)
	for {
		if _, err := ses.Reader.Peek(1); err != nil {
			return err
		}
		ses.pace = admission.Pace{}
		switch pause := ses.receive(true); {
		case pause != nil:
			<-pause
		case !ses.quiet.Load():
			return nil
		default:
			_, _ = ses.Reader.Discard(ses.Reader.Buffered()) // the reply could not be sent any more
		}
	}
}

// receive stores whether a message has begun to arrive. If reading pauses, the message has not
// begun, and receive returns a channel that is closed at the end of the pause.
func (ses *Session) receive(begins bool) (pause <-chan struct{}) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.waiting = begins && ses.paused != nil
	ses.receiving = begins && !ses.waiting && !ses.quiet.Load()
	ses.changedLocked()
	return ses.paused
}

// A sessionReader first reads the bytes of Session.first, and then the connection.
type sessionReader struct{ *Session }

func (r sessionReader) Read(b []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(b, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	for {
		r.mu.Lock()
		receiving, peeking := r.receiving, r.peeking
		r.mu.Unlock()
		began, at := time.Now(), time.Time{}
		switch {
		case peeking: // the client has to wait
			receiving = false
		case receiving:
			at = began.Add(max(2*r.server.limits.KeepAlive-r.pace.Waited, 0))
		default:
			at = r.idleAt(began)
		}
		r.readUntil(at)
		n, err := r.Conn.Read(b)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case err == nil && r.quiet.Load():
			continue // as in Next
		case late && r.quiet.Load():
			return n, io.EOF
		case late && peeking:
			return n, err
		case receiving:
			r.pace.Waited += time.Since(began)
			r.pace.Bytes += n
			if r.pace.TooSlow(2 * r.server.limits.KeepAlive) {
				return n, errSlow
			}
		case late && r.idle():
			r.idled = true
			return n, io.EOF
		}
		if n > 0 || err != nil && !late {
			r.readFailed(err)
			return n, err
		}
	}
}

// readFailed stores the error of a read, which may be nil.
func (ses *Session) readFailed(err error) {
	if err != nil {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		ses.readErr = err
	}
}

// idleAt returns when to check whether the session is idle, or zero for never.
func (ses *Session) idleAt(now time.Time) time.Time {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch timeout := ses.server.limits.IdleTimeout; {
	case timeout <= 0:
		return time.Time{}
	case len(ses.open)+ses.busy > 0:
		return now.Add(timeout / 4)
	default:
		return ses.lastEnd.Add(timeout)
	}
}

// idle reports whether no call was open for Limits.IdleTimeout.
func (ses *Session) idle() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return len(ses.open)+ses.busy == 0 && time.Since(ses.lastEnd) >= ses.server.limits.IdleTimeout
}

// readAhead reads into the buffer while the reading goroutine does not read. So it can end the
// calls of a client that disconnects. When the buffer is full, it asks the system. If the client
// has sent more than the system takes, the system does not know either: then a client counts as
// gone after orphanTime, unless patient is set. The function stop ends readAhead.
func (ses *Session) readAhead(patient bool) (stop func()) {
	if !ses.beginReadAhead() {
		return func() {}
	}
	began, stopped, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer ses.server.guard.Rescue("a connection's own code")
		for ses.Reader.Buffered() < ses.Reader.Size() {
			_, err := ses.Reader.Peek(ses.Reader.Buffered() + 1)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			} else if err != nil {
				ses.cancel(mux.ErrCallerGone)
				return
			}
		}
		for !mux.HungUp(ses.Conn) && (patient || time.Since(began) < orphanTime) {
			select {
			case <-time.After(time.Second):
			case <-stopped:
				return
			}
		}
		ses.cancel(mux.ErrCallerGone)
		ses.mu.Lock()
		defer ses.mu.Unlock()
		ses.quiet.Store(true) // what is unread may have no end
		ses.wakeLocked(past)
	}()
	return func() {
		close(stopped)
		func() {
			ses.mu.Lock()
			defer ses.mu.Unlock() // also if the connection ends the goroutine
			ses.stopPeek = true
			ses.wakeLocked(past)
		}()
		<-ended
		ses.mu.Lock()
		ses.peeking, ses.stopPeek = false, false
		ses.mu.Unlock()
	}
}

// beginReadAhead reports whether readAhead could interrupt a Read that it begins.
func (ses *Session) beginReadAhead() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.Conn == nil || ses.passed || ses.quiet.Load() || ses.Conn.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	ses.peeking, ses.deadline = true, time.Time{}
	return true
}

// Write writes all of b to the connection. It may be called concurrently, and the bytes of
// concurrent calls do not mix. If the client does not accept 64 KiB within twice Limits.KeepAlive,
// Write closes the connection and fails, so that a client that does not read cannot keep its calls
// open.
func (ses *Session) Write(b []byte) (n int, err error) {
	ses.writing <- struct{}{}
	err = errGone // remains if the connection ends the goroutine
	defer func() {
		if err != nil {
			ses.writeFailed(err)
		}
		<-ses.writing
	}()
	var failed error
	for n < len(b) && failed == nil {
		ses.limitWrite()
		var wrote int
		wrote, failed = ses.Conn.Write(b[n:min(n+writePiece, len(b))])
		n += wrote
	}
	err = failed
	return n, err
}

// limitWrite sets the deadline of the next write.
func (ses *Session) limitWrite() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	at := time.Now().Add(2 * ses.server.limits.KeepAlive)
	if !ses.writeBy.IsZero() && ses.writeBy.Before(at) {
		at = ses.writeBy
	}
	_ = ses.Conn.SetWriteDeadline(at) // without support for deadlines, the write waits for the peer
}

// writeFailed ends a connection to which only a part of the bytes was written.
func (ses *Session) writeFailed(err error) {
	ses.mu.Lock()
	if ses.writeErr == nil {
		ses.writeErr = err
	}
	ses.mu.Unlock()
	_ = ses.Conn.Close() // Reader fails too
}

// Reserve counts n bytes that the Protocol holds for the client in addition to the requests of
// admitted calls, for example replies that wait to be sent. It returns false, and counts nothing,
// if Limits.MaxMemory or ServerOptions.MaxMemory has no room for them. Release ends the
// reservation. The end of the session releases the rest.
func (ses *Session) Reserve(n int) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if n < 0 || ses.over || !ses.takeLocked(n) {
		return false
	}
	ses.reserved += n
	return true
}

// Release ends the reservation of n bytes, or of all reserved bytes if they are fewer than n.
func (ses *Session) Release(n int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	n = max(min(n, ses.reserved), 0)
	ses.reserved -= n
	ses.giveLocked(n)
}

// take counts n bytes that the server is about to hold for the peer. If it returns false, there is
// no memory for them.
func (ses *Session) take(n int) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.takeLocked(n)
}

// give uncounts n bytes that take counted.
func (ses *Session) give(n int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.giveLocked(n)
}

func (ses *Session) takeLocked(n int) bool {
	if n > ses.server.limits.MaxMemory-ses.held || !ses.server.memory.TakeFor(n, ses.held+n) {
		return false
	}
	ses.held += n
	return true
}

func (ses *Session) giveLocked(n int) {
	ses.held -= n
	ses.server.memory.Give(n)
}

// serve runs the protocol until the connection ends.
func (ses *Session) serve(p Protocol, name string) {
	s := ses.server
	ses.mu.Lock()
	ses.protocol, ses.receiving = name, false // the bounds for messages do not apply to a Protocol that does not call Next
	ses.changedLocked()
	ses.mu.Unlock()
	ses.Reader = bufio.NewReaderSize(sessionReader{ses}, sessionBuffer)
	err := s.guard.Apart("protocol "+name, nil, func() error { return p.Serve(ses.ctx, ses) })
	aborted := context.Cause(ses.ctx) == mux.ErrClosed //nolint:errorlint // it is set bare
	ses.cancel(mux.ErrCallerGone)
	_ = ses.Conn.Close() // there is nothing more to say
	ses.awaitCalls()
	if !ses.refused.Load() { // otherwise the event of its end was already sent
		s.event(ses.ending(name, err, aborted))
	}
}

// awaitCalls ends the calls of a client that has gone, and waits for them. One-way calls may take
// orphanTime.
func (ses *Session) awaitCalls() {
	ses.cancel(mux.ErrCallerGone)
	orphans := time.AfterFunc(orphanTime, func() { ses.end(mux.ErrCallerGone) })
	ses.calls.Wait()
	orphans.Stop()
	ses.releaseAll()
}

// releaseAll ends all reservations, and makes Reserve fail.
func (ses *Session) releaseAll() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.giveLocked(ses.reserved)
	ses.reserved, ses.over = 0, true
}

// ending returns the event of a session's end. If the peer broke its protocol, ending logs that.
func (ses *Session) ending(protocol string, err error, aborted bool) ConnEvent {
	e := ConnEvent{Kind: introspect.ReadFailed, Addr: ses.Peer.Addr.String(), Err: err}
	ses.mu.Lock()
	readErr, writeErr, idled := ses.readErr, ses.writeErr, ses.idled // code that AsConn serves may still read and write
	ses.mu.Unlock()
	over := err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case aborted, over && (ses.quiet.Load() || idled):
		e.Kind, e.Err = introspect.Closed, nil
	case writeErr != nil:
		e.Kind, e.Err = introspect.WriteFailed, writeErr
	case over:
		e.Kind, e.Err = introspect.Disconnected, nil
	case readErr != nil && errors.Is(err, readErr): // the network has failed, and not the Protocol
	default:
		ses.server.peerLines.Warn(loglimit.Breach, func() []any {
			return []any{"peer", e.Addr, "protocol", protocol, "what", err.Error(), "id", "YDL1106"}
		})
	}
	return e
}

// Busy makes a drain and Limits.IdleTimeout treat the session as one with an open call, for
// requests that are no calls, until the caller calls done.
func (ses *Session) Busy() (done func()) {
	ses.countBusy(1)
	return sync.OnceFunc(func() { ses.countBusy(-1) })
}

func (ses *Session) countBusy(n int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.busy += n
	ses.lastEnd = time.Now()
	ses.changedLocked()
}

// Codec returns the server's codec with this name, or nil.
func (ses *Session) Codec(name string) Codec { return ses.server.codecs[name] }

// Compressor returns the server's compressor with this name, or nil.
func (ses *Session) Compressor(name string) Compressor { return ses.server.compressors[name] }

// HasService reports whether the server has a method of the service, for protocols that answer a
// call of an unknown method differently if the service is known.
func (ses *Session) HasService(service string) bool {
	return ses.server.unknowns.HasService(ses.server.methods.Load(), service)
}

// Limits returns the limits of the server with their defaults. A field is zero only if zero means
// never.
func (ses *Session) Limits() Limits { return ses.server.limits }

// Draining returns a channel that is closed when the server begins to shut down, or when Connect
// has refused the peer: the session then ends when its calls have ended.
func (ses *Session) Draining() <-chan struct{} { return ses.draining }

// Go calls f on a new goroutine. The server waits for f before it forgets the session. A panic of f
// is logged.
func (ses *Session) Go(f func()) {
	ses.calls.Go(func() {
		defer ses.server.guard.Rescue("protocol code")
		f()
	})
}

// Push makes the server's one-way calls to Session.Peer go through to, for protocols in which a
// server sends messages that the client has not asked for. All other calls to the peer fail. If
// Push is not called, all of them do. A Protocol calls it before it begins the first call.
//
// The Do of to sends a message, and may be called concurrently, also after Serve has returned. An
// Error with Unavailable, NotProcessed and a Cause says that the connection has ended.
func (ses *Session) Push(to Caller) { ses.Peer.push = to }

// connect calls ServerOptions.Connect for the peer, once. If the peer is refused, its connection
// drains, so that the peer makes another one, about which Connect decides anew.
func (ses *Session) connect() error {
	if err := ses.server.connect(ses.Peer); err != nil {
		ses.refused.Store(true)
		go ses.drain(time.Time{})
		ses.server.event(ConnEvent{Kind: introspect.Refused, Addr: ses.Peer.Addr.String(), Err: err})
		return err
	}
	ses.known.Store(true)
	return nil
}

// bind returns the binding of a method name with a codec, a compressor and a caller. It remembers
// the bindings of existing methods.
func (ses *Session) bind(name string, codec Codec, compressor Compressor, positional bool, caller string) *boundMethod {
	caller = text.Clip(caller, wire.MaxCaller)
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if b := ses.bound[name]; b != nil && samePlugin(b.codec, codec) && samePlugin(b.pack.Compressor, compressor) && b.positional == positional && b.caller == caller {
		return b
	}
	s := ses.server
	meant := s.meant(name)
	b := &boundMethod{server: s, name: text.Clip(meant, wire.MaxName), codec: codec, positional: positional, kind: anyKind, caller: caller}
	if compressor != nil {
		b.pack = s.calls.packer(compressor)
	}
	if codec == nil {
		b.wrong = wrongCodec
	}
	if b.name != meant {
		b.wrong = wrongName
	} else if b.find() != nil && len(ses.bound) < s.limits.MaxMethods {
		if ses.bound == nil {
			ses.bound = make(map[string]*boundMethod)
		}
		ses.bound[name] = b
	}
	return b
}

// meant returns the name of the method that a name means: the name itself, or the name with the
// other one of the separators "." and "/" before its last part.
func (s *Server) meant(name string) string {
	methods := *s.methods.Load()
	if i := strings.LastIndexAny(name, "./"); i >= 0 && methods[name] == nil {
		other := name[:i] + string("./"[1-strings.IndexByte("./", name[i])]) + name[i+1:]
		if methods[other] != nil {
			return other
		}
	}
	return name
}

// samePlugin reports whether a and b are the same codec or compressor. Values that cannot be
// compared are never the same.
func samePlugin(a, b any) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

// drain implements connection. It ends the session once no call has been open for quietTime, or no
// call is open while reading pauses. A connection in yodel's own protocol drains by its serverConn.
func (ses *Session) drain(end time.Time) {
	ses.drainOnce.Do(func() {
		close(ses.draining)
		if ses.Conn == nil { // calls of Server.Do have no client to inform
			return
		}
		defer ses.pause(false)
		for pauses := admission.NewPauses(end); ; {
			ses.mu.Lock()
			native, idle, wait := ses.native, len(ses.open)+ses.busy == 0 && !ses.receiving, quietTime
			if ses.waiting {
				wait = 0
			}
			if ses.changed == nil {
				ses.changed = make(chan struct{})
			}
			changed := ses.changed
			ses.mu.Unlock()
			if native {
				return
			}
			var quiet <-chan time.Time
			if idle {
				quiet = time.After(wait)
			}
			select {
			case <-changed:
			case <-ses.ctx.Done():
				return
			case <-pauses.Turn:
				ses.pause(pauses.Next())
			case <-quiet:
				if ses.stopReading() {
					return
				}
			}
		}
	})
}

// pause makes Next wait, or ends its wait.
func (ses *Session) pause(begins bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.paused != nil {
		close(ses.paused)
	}
	ses.paused, ses.waiting = nil, false
	if begins {
		ses.paused = make(chan struct{})
	}
}

// stopReading makes Reader return io.EOF, and returns true, unless a call has begun meanwhile. It
// closes only the sending half of a connection whose reading was paused: closing
// both while there are unread requests could discard replies on their way.
func (ses *Session) stopReading() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.native || len(ses.open)+ses.busy > 0 || ses.receiving {
		return false
	}
	ses.quiet.Store(true)
	at := past
	if half, ok := ses.Conn.(interface{ CloseWrite() error }); ok && ses.waiting {
		ses.mu.Unlock()
		if half.CloseWrite() == nil {
			at = time.Now().Add(lingerTime)
		}
		ses.mu.Lock()
	}
	ses.wakeLocked(at)
	return true
}

// abort implements connection.
func (ses *Session) abort() {
	ses.end(mux.ErrClosed)
	if ses.Conn != nil {
		_ = ses.Conn.Close() // the server abandons the connection
	}
}

// executing implements connection.
func (ses *Session) executing() (open []opencalls.Call) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for v := range ses.open {
		if v.in.running.Load() {
			open = append(open, opencalls.Call{Method: v.in.as.name, Peer: ses.Peer.Addr.String()})
		}
	}
	return open
}

// visible implements connection.
func (ses *Session) visible() *Peer {
	if !ses.known.Load() {
		return nil
	}
	return ses.Peer
}

// note adds or removes an open call.
func (ses *Session) note(v *Served, open bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if open {
		ses.open[v] = struct{}{}
	} else {
		delete(ses.open, v)
		ses.lastEnd = time.Now()
	}
	ses.changedLocked()
}

// changedLocked wakes drain.
func (ses *Session) changedLocked() {
	if ses.changed != nil {
		close(ses.changed)
		ses.changed = nil
	}
}
