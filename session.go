// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file serves other protocols on the port of a server. It looks at the first bytes of each
// connection, and gives connections in other protocols to a Protocol.

// A Session is a server's connection to a client that speaks another protocol than yodel's. The
// Protocol that serves it owns it.
type Session struct {
	// Conn is the connection. A Protocol writes to it, but reads from Reader.
	Conn net.Conn
	// Reader reads the connection from its first byte on, through a buffer of 32 KiB. When the
	// server drains, Reader returns io.EOF as soon as no call has been open for 50 ms. Many
	// protocols cannot tell a client of a drain, so without this the client would wait for the
	// reply to a request that the server no longer reads.
	Reader *bufio.Reader
	// Peer is the client. A Protocol may set Agent and Metadata before the first call is admitted.
	Peer *Peer

	server *Server
	ctx    context.Context //nolint:containedctx // parent of all calls' contexts; ends with the session
	cancel context.CancelCauseFunc
	first  []byte // bytes read before the protocol was known
	calls  sync.WaitGroup
	room   room // the limits of this connection

	draining  chan struct{}
	drainOnce sync.Once
	quiet     atomic.Bool // no call was open for quietTime during the drain
	native    bool        // the connection speaks yodel's own protocol; guarded by mu
	known     atomic.Bool // the peer may be seen
	greet     func() error

	mu      sync.Mutex
	bound   map[string]*boundMethod
	open    map[*Served]struct{}
	changed chan struct{} // closed when a call has begun or ended; nil without a waiter
}

const (
	// sniffed is how many bytes at most decide which protocol a connection speaks.
	sniffed = 512
	// silentTime is how long a client may wait before its first byte, with Protocols: clients of
	// some protocols connect long before their first call.
	silentTime = 5 * time.Minute
	// quietTime is how long a session without open calls lasts while the server drains.
	quietTime = 50 * time.Millisecond
)

// newSession returns the state of a connection until its protocol is known.
func newSession(s *Server, nc net.Conn, peer *Peer) *Session {
	ses := &Session{Conn: nc, Peer: peer, server: s, draining: make(chan struct{}), open: make(map[*Served]struct{})}
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	ses.greet = sync.OnceValue(ses.connect)
	if nc != nil { // else it is that of calls in this process
		ses.Reader = bufio.NewReaderSize(sessionReader{ses}, 32<<10)
	}
	peer.ended = ses.ctx.Done()
	return ses
}

// sniff reads until the protocol of the connection is known. It returns nil for yodel's own
// protocol. It also returns nil if no Protocol matches; package mux then reports the fault.
func (ses *Session) sniff() Protocol {
	buf := make([]byte, 0, sniffed)
	_ = ses.Conn.SetReadDeadline(time.Now().Add(silentTime)) // without support for deadlines, this waits for the peer
	for len(buf) < cap(buf) {
		n, err := ses.Conn.Read(buf[len(buf):cap(buf)])
		if len(buf) == 0 {
			_ = ses.Conn.SetReadDeadline(time.Now().Add(ses.server.limits.Handshake))
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
	if !ses.quiet.Load() || native {
		_ = ses.Conn.SetReadDeadline(time.Time{})
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

// A sessionReader reads first, then the connection.
type sessionReader struct{ *Session }

func (r sessionReader) Read(b []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(b, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	n, err := r.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && r.quiet.Load() {
		err = io.EOF
	}
	return n, err
}

// serve runs the protocol to the end of the connection.
func (ses *Session) serve(p Protocol) {
	s, addr := ses.server, ses.Peer.Addr.String()
	err := s.guard.apart("protocol "+p.Name(), nil, func() error { return p.Serve(ses.ctx, ses) })
	ses.cancel(mux.ErrCallerGone)
	_ = ses.Conn.Close() // there is nothing more to say
	ses.calls.Wait()
	e := ConnEvent{Kind: introspect.Disconnected, Addr: addr}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		e.Kind, e.Err = introspect.ReadFailed, err
		s.peerLines.warn(lineBreach, func() []any { return []any{"peer", addr, "protocol", p.Name(), "what", err.Error(), "id", "YDL1106"} })
	case ses.quiet.Load():
		e.Kind = introspect.Closed
	}
	s.event(e)
}

// Codec returns the server's codec with this name, or nil.
func (ses *Session) Codec(name string) Codec { return ses.server.codecs[name] }

// Compressor returns the server's compressor with this name, or nil.
func (ses *Session) Compressor(name string) Compressor { return ses.server.compressors[name] }

// Limits returns the limits of the server with their defaults. A field is zero only if zero means
// never.
func (ses *Session) Limits() Limits { return ses.server.limits }

// Draining returns a channel that is closed when the server begins to shut down.
func (ses *Session) Draining() <-chan struct{} { return ses.draining }

// Go calls f on a new goroutine. The server waits for f before it forgets the session. A panic of f
// is logged.
func (ses *Session) Go(f func()) {
	ses.calls.Go(func() {
		defer ses.server.guard.rescue("protocol code")
		f()
	})
}

// connect calls ServerOptions.Connect for the peer, once.
func (ses *Session) connect() error {
	if err := ses.server.connect(ses.Peer); err != nil {
		ses.server.event(ConnEvent{Kind: introspect.Refused, Addr: ses.Peer.Addr.String(), Err: err})
		return err
	}
	ses.known.Store(true)
	return nil
}

// bind returns the binding of a method name with a codec and a compressor. It remembers the
// bindings of existing methods.
func (ses *Session) bind(name string, codec Codec, compressor Compressor, positional bool) *boundMethod {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if b := ses.bound[name]; b != nil && b.codec == codec && b.pack.Compressor == compressor && b.positional == positional {
		return b
	}
	s := ses.server
	b := &boundMethod{server: s, name: name, codec: codec, positional: positional, kind: wire.Unary}
	if compressor != nil {
		b.pack = packer{compressor, s.opts.CompressAbove}
	}
	if codec == nil {
		b.wrong = wrongCodec
	}
	if b.find() != nil && len(ses.bound) < s.limits.MaxMethods {
		if ses.bound == nil {
			ses.bound = make(map[string]*boundMethod)
		}
		ses.bound[name] = b
	}
	return b
}

// drain implements connection. It ends the session once no call has been open for quietTime.
func (ses *Session) drain() {
	ses.drainOnce.Do(func() {
		close(ses.draining)
		if ses.Conn == nil { // there is nobody to tell
			return
		}
		for {
			ses.mu.Lock()
			idle := len(ses.open) == 0
			if ses.changed == nil {
				ses.changed = make(chan struct{})
			}
			changed := ses.changed
			ses.mu.Unlock()
			var quiet <-chan time.Time
			if idle {
				quiet = time.After(quietTime)
			}
			select {
			case <-changed:
			case <-ses.ctx.Done():
				return
			case <-quiet:
				ses.stopReading()
				return
			}
		}
	})
}

// stopReading makes Reader return io.EOF.
func (ses *Session) stopReading() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !ses.native && ses.Conn != nil {
		ses.quiet.Store(true)
		_ = ses.Conn.SetReadDeadline(time.Unix(1, 0)) // without support for deadlines, Shutdown closes it
	}
}

// abort implements connection.
func (ses *Session) abort() {
	ses.cancel(mux.ErrClosed)
	if ses.Conn != nil {
		_ = ses.Conn.Close() // it is given up
	}
}

// executing implements connection.
func (ses *Session) executing() (open []openCall) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for v := range ses.open {
		if v.in.began != 0 || v.in.taken != 0 {
			open = append(open, openCall{v.in.as.name, ses.Peer.Addr.String()})
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
	}
	if ses.changed != nil {
		close(ses.changed)
		ses.changed = nil
	}
}

// A room limits how many calls are open and how many bytes their requests have.
type room struct {
	mu    sync.Mutex
	calls int
	bytes int
	freed chan struct{} // closed when a call has ended; nil without a waiter
}

// enter takes room for a call of n bytes, and reports whether it did. If there is no room, it waits
// until ctx ends, or returns false at once without wait. A single call may have any number of
// bytes.
func (r *room) enter(ctx context.Context, n, calls, bytes int, wait bool) bool {
	for {
		r.mu.Lock()
		if r.calls < calls && (r.calls == 0 || r.bytes+n <= bytes) {
			r.calls++
			r.bytes += n
			r.mu.Unlock()
			return true
		}
		if r.freed == nil {
			r.freed = make(chan struct{})
		}
		freed := r.freed
		r.mu.Unlock()
		if !wait {
			return false
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (r *room) leave(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
	r.bytes -= n
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}
