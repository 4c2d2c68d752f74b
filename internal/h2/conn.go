// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/hpack"
	"github.com/yodel-rpc/yodel/internal/inline"
)

// A Config says how a Conn serves its client. A zero field has the default that its comment names.
type Config struct {
	Handler Handler
	// Meaning returns what a field of a request means to the Handler, such as the method that a
	// path names. It is called for fields, and of the pseudo-fields for :path alone. It is called
	// once for a field that the client repeats from its table. By default the meaning is nil.
	Meaning func(name, value string) any
	// Watch hands over the reading from an inline handler that blocks. Connections share one. By
	// default the connection has its own.
	Watch *inline.Watch
	// Reserve counts memory before the Conn takes it, and reports whether the Conn may. Release
	// gives it back. A Conn calls them with a lock held, so they must not call the Conn. The
	// default counts nothing.
	Reserve func(n int) bool
	Release func(n int)

	// Active is called when something arrives on a connection, or it is drained, before the time
	// that the last Tick has returned. May be nil.
	Active func()

	// MaxStreams is how many streams may be open at once (RFC 9113, section 5.1.2); 1024. A handler
	// may run longer than its stream is open. The open streams and such handlers together may be a
	// quarter more, and one.
	MaxStreams    int
	MaxHeaderList int           // bytes of the fields of a request, each with 32 more; 64 KiB
	StreamWindow  int           // how much of a body may wait for a handler to read it; 64 KiB
	ConnWindow    int           // the same, for all streams of a connection together; 1 MiB
	MaxUnsent     int           // how much output may wait for the client to read it; 256 KiB
	BodyTimeout   time.Duration // how long Plan.Whole may wait for a body, before the stream is reset; no limit
	Handshake     time.Duration // how long the client may take for its SETTINGS; no limit
	KeepAlive     time.Duration // a silent client gets a PING after it, or after idlePings times it if it holds nothing, and KeepAlive later it is gone; none
	IdleTimeout   time.Duration // a connection without requests is drained after it; none
}

// setDefaults fills in the defaults.
func (cfg *Config) setDefaults() {
	positive := func(n *int, value int) {
		if *n <= 0 {
			*n = value
		}
	}
	positive(&cfg.MaxStreams, 1024)
	positive(&cfg.MaxHeaderList, 64<<10)
	positive(&cfg.StreamWindow, 64<<10)
	positive(&cfg.ConnWindow, 1<<20)
	positive(&cfg.MaxUnsent, 256<<10)
	cfg.StreamWindow = min(max(cfg.StreamWindow, maxFrame), mostWindow)
	cfg.ConnWindow = min(max(cfg.ConnWindow, defaultWindow), mostWindow)
	cfg.MaxUnsent = max(cfg.MaxUnsent, 2*maxFrame)
	if cfg.Meaning == nil {
		cfg.Meaning = func(string, string) any { return nil }
	}
	if cfg.Watch == nil {
		cfg.Watch = inline.NewWatch()
	}
	if cfg.Reserve == nil {
		cfg.Reserve = func(int) bool { return true }
	}
	if cfg.Release == nil {
		cfg.Release = func(int) {}
	}
	if cfg.Active == nil {
		cfg.Active = func() {}
	}
}

// A Conn is the server's side of a connection. Its methods may be called concurrently.
type Conn struct {
	cfg    Config
	nc     net.Conn
	direct direct
	ended  sync.WaitGroup // goroutines of the connection

	// The goroutine that reads owns in. A new reader takes it over.
	in       reading
	takeover takeover
	watched  inline.Watched
	newest   atomic.Pointer[reader]

	lastID   atomic.Uint32 // of the newest request
	refusing atomic.Bool   // the last GOAWAY was sent, so later requests are refused
	settled  atomic.Bool   // the client has sent SETTINGS
	open     atomic.Int32  // requests that have begun, and whose streams are open or whose handlers run
	active   atomic.Int32  // streams that are open or half closed, as SETTINGS_MAX_CONCURRENT_STREAMS counts
	granted  atomic.Int64  // how many bytes of DATA the client may send from the beginning; changed with mu held
	reads    atomic.Uint64 // how many reads have brought something
	ticks    atomic.Uint32 // how often Tick was called
	parked   atomic.Bool   // the next Tick is due when the last one has said

	mu      sync.Mutex // guards what follows, and all of a Stream that has no other rule
	streams table
	partial bool // a part of a frame or of a header block has arrived
	send    sending
	back    int // bytes of DATA that have left the memory and that no WINDOW_UPDATE has given back
	resets  int // how many more streams may be reset: see spendResetLocked
	early   recentIDs
	life    lifetime
	workers workers
}

// New returns a Conn over nc. The caller calls Serve.
func New(nc net.Conn, cfg Config) *Conn {
	cfg.setDefaults()
	c := &Conn{cfg: cfg, nc: nc, resets: freeResets}
	c.takeover.c = c
	c.send.c = c
	c.send.credit, c.send.initial = defaultWindow, defaultWindow
	c.send.space.L = &c.mu
	c.in.decoder = new(hpack.Decoder[meaning])
	c.in.controls = mostControls
	c.granted.Store(int64(cfg.ConnWindow))
	c.life.lastID = mostWindow
	c.direct.begin(c)
	c.appendOwnSettingsLocked() // nobody else has the Conn yet
	return c
}

// preface is what a client sends first (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Serve serves the connection until it has ended and all handlers have returned, and closes it.
// First is what was already read from it, at most 64 KiB. Serve calls done at the end. Handlers may
// run on the goroutine of Serve: if one ends it, Serve calls done and does not return. The error is
// nil if the client has left without an open request, or if this side has drained the connection.
// It is a *Fault if the client has broken the protocol.
func (c *Conn) Serve(first []byte, done func(err error)) {
	rd := newReader(c)
	rd.ensure()
	rd.w = copy(rd.buf[:], first)
	c.newest.Store(rd)
	c.mu.Lock()
	c.flushAndUnlock()
	defer func() {
		c.ended.Wait() // another goroutine may read
		c.mu.Lock()
		err := c.life.err
		c.mu.Unlock()
		done(err)
	}()
	rd.loop()
}

// startReader makes a goroutine read.
func (c *Conn) startReader(rd *reader) {
	c.ended.Go(rd.loop)
}

// Close ends the connection. Streams that are open fail, in this side's handlers and in the client.
func (c *Conn) Close() { c.end(net.ErrClosed) }

// end ends the connection, for the first reason that it is called with.
func (c *Conn) end(err error) {
	c.mu.Lock()
	c.endLocked(err)
	c.mu.Unlock()
	c.nc.Close()
}

func (c *Conn) endLocked(err error) {
	l := &c.life
	if l.over {
		return
	}
	l.over = true
	l.unread.Store(true)
	unfinished := false
	for s := range c.streams.all {
		unfinished = unfinished || s.state != closed
		s.abortLocked(errGone)
	}
	if l.err == nil && (unfinished || !errors.Is(err, io.EOF)) && l.stage < leaving {
		l.err = err
	}
	c.workers.trimLocked(true)
	c.send.dropLocked()
	c.send.space.Broadcast()
}

// errGone is the error of a stream whose connection has ended.
var errGone = errors.New("the connection has ended")
