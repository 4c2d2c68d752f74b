// SPDX-License-Identifier: Apache-2.0

// Package mux runs one connection of the native protocol. Many calls share the connection, in both
// directions.
//
// The package knows frames. It does not know methods or messages: a Target says what a call means.
//
// A connection is composed of roles. Each one is a type with its fields and methods:
//
//   - reading (reading.go): which goroutine reads. reader.go handles what arrives.
//   - writing (writing.go): the output buffer, and who flushes it.
//   - callsOut (callsout.go): the calls that this side opens, with the peer's window.
//   - callsIn (callsin.go): the calls that the peer opens, with their order and their memory.
//   - quota (quota.go): how many requests the peer may have open, as part of the budget of all
//     connections.
//   - streams (streams.go): what the streams of the connection share.
//   - lifetime (lifetime.go): settings, housekeeping, keepalive, drain and end.
//
// Three techniques make it fast, each in one file:
//
//   - writing.go: a caller that finds the connection idle writes immediately. Frames that are
//     appended during that write go out together in the next one. There is no timer and no flush
//     policy.
//   - reader.go: the reader goroutine handles all complete frames of one read as a batch, in place.
//   - inline.go: handlers that are known to be short run on the reader goroutine. If such a handler
//     blocks, a new goroutine takes over the reading.
//
// docs/locks.md lists the locks and the goroutines of this package.
package mux

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

const (
	// maxFrame is the payload limit of a frame, in both directions. A larger message takes several
	// frames, so that frames of small calls can go between them.
	maxFrame = 64 << 10

	// minReadBuffer is the read buffer of an idle connection.
	minReadBuffer = 512
	maxReadBuffer = 128 << 10

	// defaultMaxMethods bounds method numbers until the peer's settings have arrived.
	defaultMaxMethods = 1024
)

// Conn is one connection. Its methods may be called concurrently.
//
// A Conn is composed of roles. Each role has its own fields and methods. The comment of a role says
// which state of other roles it may change. A method belongs to the role whose fields it changes.
// All roles share one mutex: Conn.mu guards every field whose comment does not name another rule.
//
// A process may have many idle connections, so a Conn is small. State that most connections never
// need is in the lazy part of a role, which is allocated on first use.
//
// The fields cfg, rt, nc, owner and socket do not change after NewOf.
type Conn struct {
	cfg    *Config
	rt     *Runtime
	nc     net.Conn
	owner  any         // see Owner
	socket socket.Conn // none when nc is not a plain socket
	mu     sync.Mutex
	count  counters
	memory memory.Account // the bytes that the peer makes this side hold, see memory_account.go

	reading  reading
	writing  writing
	callsOut callsOut
	callsIn  callsIn
	quota    quota
	streams  streams
	lifetime lifetime
}

// Counters counts the work of a connection. Conn.Counters returns them.
type Counters struct {
	Reads, Writes, BytesIn, BytesOut, FramesIn, FramesOut uint64
}

// counters are the counters that change without Conn.mu.
type counters struct {
	reads, writes, bytesIn, framesIn atomic.Uint64
}

// Call sends a request and waits for the answer, which the caller must Release. If ctx ends or the
// deadline passes, Call returns immediately and cancels the request at the peer. Call increments
// the counters in begun that are not nil, unless ctx panics before the call has begun.
func (c *Conn) Call(ctx context.Context, out *Out, begun ...*atomic.Int64) (*Answer, error) {
	return c.callsOut.call(ctx, out, begun)
}

// Start sends a request and returns. Unless Start returns an error, to receives the outcome of the
// call. Start waits only while the peer's window or the connection's output is full, at most until
// ctx ends. Begun is as in Call.
func (c *Conn) Start(ctx context.Context, out *Out, to Completer, begun ...*atomic.Int64) error {
	return c.callsOut.start(ctx, out, to, begun)
}

// Notify sends a one-way request. It waits while the connection's output is full.
func (c *Conn) Notify(ctx context.Context, out *Out) error {
	return c.callsOut.notify(ctx, out)
}

// Follow sends a one-way request like Notify, but always with an id. To receives the outcome when
// the peer is done with the request. The caller does not wait for the outcome, so neither ctx nor
// the deadline ends the request once it is sent.
func (c *Conn) Follow(ctx context.Context, out *Out, to Completer) error {
	return c.callsOut.follow(ctx, out, to)
}

// Ping sends a ping, waits for the answer and returns the round-trip time.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	return c.lifetime.ping(ctx)
}

// Close ends the connection: open calls fail at once. Close first writes the queued output, for at
// most a second.
func (c *Conn) Close() {
	c.lifetime.closeFlushed()
}

// Abort ends the connection at once.
func (c *Conn) Abort() {
	c.lifetime.abort()
}

// Refuse makes this side accept no more requests. The connection goes on for the calls of this
// side. The returned channel is closed when the accepted requests have ended.
func (c *Conn) Refuse() (quiet <-chan struct{}) {
	return c.callsIn.refuseNew()
}

// CancelRequests cancels the contexts of all open requests.
func (c *Conn) CancelRequests() {
	c.callsIn.cancelAll()
}

// Executing returns the target of each request that the peer has open. A request that runs on the
// reader goroutine is missing for a few milliseconds, until another goroutine has taken over the
// reading.
func (c *Conn) Executing() []Target {
	return c.callsIn.executing()
}

// NewOf runs the protocol on nc and takes ownership of nc. Prefix holds the bytes that the caller
// has already read from nc. The side that dialled is the client, and sends first. Requests may be
// sent at once, without waiting for the peer. Connections of several owners may share one Config,
// whose functions find the owner with Owner.
func NewOf(owner any, nc net.Conn, prefix []byte, client bool, cfg *Config) *Conn {
	c := &Conn{
		cfg: cfg, rt: cfg.runtime(), owner: owner, nc: nc, socket: socket.Of(nc),
		writing: writing{lazyWriting: noWriting, flushing: !client},
		callsOut: callsOut{
			lazyCallsOut: noCallsOut, maxNum: defaultMaxMethods,
		},
		callsIn:  callsIn{lazyCallsIn: noCallsIn},
		streams:  streams{lazyStreams: noStreams, peerStream: defaultStreamWindow},
		lifetime: lifetime{lazyLifetime: noLifetime, housekeepAt: monotime.Never, client: client},
	}
	c.reading.c, c.writing.c, c.callsOut.c, c.callsIn.c = c, c, c, c
	c.quota.c, c.streams.c, c.lifetime.c = c, c, c
	c.memory.Init(cfg.Memory, cfg.MaxMemory)
	c.callsOut.window.Set(min(window.Initial, cfg.ownOpen()), cfg.ownOpenBytes())
	c.reading.self.Init()
	c.rt.pollers.SetProcessors()
	rd := &reader{c: c, input: input{buf: make([]byte, max(minReadBuffer, pow2(len(prefix))))}}
	rd.w = copy(rd.buf, prefix)
	c.reading.reader.Store(rd)

	c.mu.Lock()
	c.writing.out = append(c.writing.out, wire.Preface...)
	c.writing.queued += uint64(len(c.writing.out))
	open, openBytes := c.quota.joinBudget()
	settings := &wire.Limits{
		MaxFrame: maxFrame, MaxMessage: uint64(cfg.MaxMessage), MaxOpen: uint64(open),
		MaxOpenBytes: uint64(openBytes), MaxMethods: uint64(cfg.MaxMethods), Metadata: cfg.Metadata, Agent: []byte(cfg.Agent),
		Incarnation: cfg.Incarnation, Caller: cfg.Caller,
	}
	if cfg.Services != nil {
		settings.Services = cfg.Services()
	}
	if cfg.Keys != nil {
		scope, keep := cfg.Keys(c)
		// not negative
		settings.KeyScope, settings.KeyKeep = []byte(scope), uint64(max(keep/time.Microsecond, 0))
	}
	if open != cfg.MaxOpen {
		settings.MostOpen = uint64(cfg.MaxOpen)
	}
	if openBytes != cfg.MaxOpenBytes {
		settings.MostOpenBytes = uint64(cfg.MaxOpenBytes)
	}
	if n := c.streams.streamWindow(); n != defaultStreamWindow {
		settings.StreamWindow = uint64(n)
	}
	c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendSettings(dst, settings) })
	now := c.now()
	if cfg.Handshake > 0 {
		c.lifetime.helloBy = monotime.Later(now, cfg.Handshake)
		c.lifetime.housekeepByLocked(c.lifetime.helloBy)
	}
	if cfg.KeepAlive > 0 {
		c.lifetime.pingAt = monotime.Later(now, cfg.KeepAlive)
		c.lifetime.housekeepByLocked(c.lifetime.pingAt)
	}
	c.lifetime.ageLocked(now)
	c.lifetime.greeting.Store(true)
	if client {
		c.writing.flushAndUnlock(false)
	} else {
		c.mu.Unlock() // a server sends its settings after it has received the client's
	}
	c.rt.parker.Add(&c.reading)
	go rd.loop()
	return c
}

// Owner returns the owner that was passed to NewOf.
func (c *Conn) Owner() any { return c.owner }

// Ended returns a channel that is closed when the connection has ended.
func (c *Conn) Ended() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifetime.endedLocked()
}

// Load returns how many calls of this side are open on the connection, including those that wait.
// Saturated says that a further call would have to wait, either for the peer's window or because
// the output is full.
func (c *Conn) Load() (calls int, saturated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.callsOut.window
	most, _ := w.Limits()
	return w.Open() + w.Waiting(), w.Waiting() > 0 || w.Open() >= most || len(c.writing.out) >= c.writing.highWater()
}

// Usable reports whether new requests can be sent.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifetime.err == nil && c.lifetime.drained == nil
}

// Accepted returns how many of this side's requests a draining peer has accepted. It returns 0
// before the peer drains.
func (c *Conn) Accepted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifetime.accepted
}

// Counters returns the work that the connection has done so far.
func (c *Conn) Counters() Counters {
	n := &c.count
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counters{
		Reads: n.reads.Load(), Writes: n.writes.Load(), BytesIn: n.bytesIn.Load(), BytesOut: c.writing.written,
		FramesIn: n.framesIn.Load(), FramesOut: c.writing.framesOut,
	}
}

// Drain tells the peer that this side accepts no more requests. The accepted requests finish, and
// then the connection closes. Drain does not wait for the close, see Ended.
func (c *Conn) Drain() { c.lifetime.drain(0) }

// CloseWhenIdle accepts no more calls of this side. It closes the connection when the open calls
// have ended.
func (c *Conn) CloseWhenIdle() { c.lifetime.closeWhenIdle(ErrRetired) }

// Err returns why the connection has ended, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifetime.err
}

// Aged reports whether this side or the peer ended the connection because it was idle or old. Such
// an end does not indicate a fault of the peer.
func (c *Conn) Aged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifetime.retired
}

// Keep counts n bytes that are held until the connection ends. If Keep returns false, the caller
// must not allocate these bytes.
func (c *Conn) Keep(n int) bool { return c.memory.HoldUntilEnd(n) }

// now returns the reading of the clock in nanoseconds.
func (c *Conn) now() int64 { return c.rt.now() }

// ownPart returns the lazy part of a role for writing to it. Shared is the part of all connections
// that do not need one.
func ownPart[T any](part **T, shared *T) *T {
	if *part == shared {
		*part = new(T)
	}
	return *part
}
