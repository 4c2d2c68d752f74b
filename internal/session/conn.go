// SPDX-License-Identifier: Apache-2.0

// Package session is the server's side of a connection in a protocol of requests and replies that
// is not yodel's own. It recognizes the protocol, reads messages at a pace, reads ahead while the
// server makes a client wait, writes within bounds, counts the memory that the client makes the
// server hold, and ends a connection that drains without losing a request.
//
// The package does not know the protocol. It knows how much the server has to hold for a call, and
// until when.
package session

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options are what the connections of a server share.
type Options struct {
	// Handshake is how long a client may take to show its protocol, once it has sent a byte.
	Handshake time.Duration
	// KeepAlive is half of the time over which the pace of a message is measured, and within which
	// a client must accept a part of a reply.
	KeepAlive time.Duration
	// IdleTimeout ends a connection without open calls. Zero means never.
	IdleTimeout time.Duration
	// MaxMemory is how many bytes a client may make the server hold. Half of it is for requests.
	MaxMemory int
	// MaxMessage is how many bytes a request may have.
	MaxMessage int
	// MaxOpen is how many admitted calls of a client may be open.
	MaxOpen int
	// Room limits the admitted calls of all clients.
	Room *admission.Room
	// Memory counts these bytes for all clients.
	Memory interface {
		TakeFor(n, held int) bool
		Give(n int)
	}
	// Watch takes the reading from goroutines whose calls are long.
	Watch *inline.Watch
	// Look reports whether there is something to read, and whether the client has hung up.
	Look func(net.Conn) (unread, gone bool)
	// Shared is what protocols keep for all connections of the server.
	Shared sync.Map
	// Guard recovers panics of a connection's own code and of protocols. Rescue is deferred.
	Guard interface{ Rescue(what string) }
}

// A Conn is a connection. One goroutine at a time may call Next, read from Reader, or wait for the
// end of a read-ahead. All other methods may be called concurrently.
type Conn struct {
	// Connect decides whether the client may call: see Greet. It is set before the first call. If
	// it is nil, the client may call.
	Connect func() error

	life
	nc        net.Conn // nil for calls that do not come from a connection
	socket    direct   // that of nc, if nc is a plain socket
	o         *Options
	room      admission.Room // the limits of this connection
	reader    *bufio.Reader
	loop      *loop         // nil without Loop
	began     time.Duration // on the clock
	first     []byte        // read before the protocol was known
	draining  chan struct{}
	drainOnce sync.Once
	quiet     atomic.Bool   // no call was open for quietTime during the drain
	pace      pace          // of the message that is being read; the reading goroutine's
	writing   chan struct{} // holds the token of the running Write; no mutex, so that the time of a synctest bubble passes meanwhile

	mu        sync.Mutex
	protocol  string        // its name, once Reader was called
	native    bool          // the connection speaks yodel's own protocol
	open      int           // calls, and requests that count as calls
	calls     opencalls.Set // the open calls
	lastEnd   time.Duration // when the last of them ended
	receiving bool          // a message has begun to arrive, and Next was not called since
	paused    chan struct{} // closed when Next may read again; nil if it may
	waiting   bool          // Next waits for that
	peeking   bool          // another goroutine reads ahead
	stopPeek  bool          // the goroutine that reads ahead must end
	deadline  time.Time     // of reads
	idled     bool          // IdleTimeout has passed, or the code that has taken the connection has drained it
	readErr   error         // of nc
	writeErr  error         // of Write
	writeBy   time.Time     // the deadline of writes that the user of AsConn has set
	passed    bool          // AsConn was called
	told      bool          // the Protocol has said why a connection that was taken has ended
	warn      func()        // see netConn.OnDrain
	onDrain   func()        // ends a connection that was taken: see netConn.Take; nil for others
	reserved  int           // bytes, by Reserve; part of held
	held      int           // bytes that the client makes the server hold
	over      bool          // Reserve fails, because the session has ended
	changed   chan struct{} // closed when Drain has to check again; nil without a waiter
}

const (
	// sniffed is the largest number of bytes from which the protocol is recognized.
	sniffed = 512
	// silentTime is how long a client may wait before its first byte. Clients of some protocols
	// connect long before their first call.
	silentTime = 5 * time.Minute
	// BufferSize is the size of the buffer of Reader, in bytes.
	BufferSize = 32 << 10
)

// errSlow is the error of a message whose rest arrives too slowly.
var errSlow = errors.New("the rest of a message arrives with less than 4 KiB per second")

// past is a deadline that ends a Read at once.
var past = time.Unix(1, 0)

// New returns the Conn of nc, which is nil for calls that do not come from a connection.
func New(nc net.Conn, o *Options) *Conn {
	began := monotime.Now()
	c := &Conn{
		nc: nc, socket: direct{Conn: socket.Of(nc)}, o: o, draining: make(chan struct{}), writing: make(chan struct{}, 1), began: began, lastEnd: began,
	}
	c.room.Calls, c.room.Bytes = o.MaxOpen, o.MaxMemory/2
	c.begin()
	return c
}

// Sniff reads until match has recognized the protocol by the first bytes, or says that more bytes
// will not help. It returns these bytes, for a connection that is then native: one that this
// package has no more to do with. Reader begins with the same bytes.
func (c *Conn) Sniff(match func(first []byte) (foreign, more bool)) (first []byte) {
	buf := make([]byte, 0, sniffed)
	c.readUntil(time.Now().Add(silentTime))
	for len(buf) < cap(buf) {
		n, err := c.nc.Read(buf[len(buf):cap(buf)])
		if len(buf) == 0 {
			c.readUntil(time.Now().Add(c.o.Handshake))
			c.receive(n > 0)
		}
		buf = buf[:len(buf)+n]
		foreign, more := match(buf)
		if foreign || !more || err != nil {
			return c.decided(!foreign, buf)
		}
	}
	return c.decided(true, buf)
}

// decided stores the result of Sniff.
func (c *Conn) decided(native bool, first []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.native, c.first = native, first
	c.changedLocked()
	if !c.quiet.Load() || native {
		c.deadline = time.Time{}
		_ = c.nc.SetReadDeadline(time.Time{}) // as readUntil
	}
	return first
}

// Reader returns the reader of the connection, from its first byte, for a protocol of this name.
// The bounds of Next apply to messages that Next has begun only.
func (c *Conn) Reader(protocol string) *bufio.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol, c.receiving = protocol, false
	c.changedLocked()
	c.reader = bufio.NewReaderSize(reader{c}, BufferSize)
	return c.reader
}

// readUntil sets the deadline of reads, unless wakeLocked has ended them.
func (c *Conn) readUntil(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.quiet.Load() && !c.stopPeek && !c.servesLocked(at) {
		c.deadline = at
		_ = c.nc.SetReadDeadline(at) // without support for deadlines, the read waits for the peer
	}
}

// servesLocked reports whether the deadline that is set will do for at. A read that it ends earlier
// begins again, which is rare, and a deadline for each read takes longer.
func (c *Conn) servesLocked(at time.Time) bool {
	set := c.deadline
	return set.Equal(at) || !set.IsZero() && (at.IsZero() || !set.After(at)) && time.Now().Before(set)
}

// wakeLocked ends the pending Read and later ones at a time.
func (c *Conn) wakeLocked(at time.Time) {
	c.deadline = at
	_ = c.nc.SetReadDeadline(at) // without support for deadlines, the server closes the connection in the end
}

// Next waits for the first byte of the client's next message. It returns io.EOF if there will be no
// further message. The message lasts until Next is called again.
func (c *Conn) Next() error {
	c.receive(false)
	for {
		if _, err := c.reader.Peek(1); err != nil {
			return err
		}
		c.pace = pace{}
		switch pause := c.receive(true); {
		case pause != nil:
			c.flushApart()
			<-pause
		case !c.quiet.Load():
			return nil
		default:
			_, _ = c.reader.Discard(c.reader.Buffered()) // the reply could not be sent any more
		}
	}
}

// receive stores whether a message has begun to arrive. If reading pauses, the message has not
// begun, and receive returns a channel that is closed at the end of the pause.
func (c *Conn) receive(begins bool) (pause <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = begins && c.paused != nil
	c.receiving = begins && !c.waiting && !c.quiet.Load()
	c.changedLocked()
	return c.paused
}

// A reader first reads the bytes of Conn.first, and then the connection.
type reader struct{ *Conn }

func (r reader) Read(b []byte) (int, error) {
	if n := r.takeFirst(b); n > 0 {
		return n, nil
	}
	r.flushApart()
	for {
		r.mu.Lock()
		receiving, peeking := r.receiving, r.peeking
		r.mu.Unlock()
		began, at := time.Now(), time.Time{}
		switch {
		case peeking: // the client has to wait
			receiving = false
		case receiving:
			at = began.Add(max(2*r.o.KeepAlive-r.pace.waited, 0))
		default:
			at = r.idleAt(began)
		}
		r.readUntil(at)
		n, err := r.read(b)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case err == nil && r.quiet.Load():
			continue // as in Next
		case late && r.quiet.Load():
			return n, io.EOF
		case late && peeking:
			return n, err
		case receiving:
			r.pace.waited += time.Since(began)
			r.pace.bytes += n
			if r.pace.tooSlow(2 * r.o.KeepAlive) {
				return n, errSlow
			}
		case late && r.idle():
			return n, io.EOF
		}
		if n > 0 || err != nil && !late {
			r.readFailed(err)
			return n, err
		}
	}
}

// takeFirst moves bytes that were read before the protocol was known to b.
func (c *Conn) takeFirst(b []byte) int {
	n := copy(b, c.first)
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil // the memory is no longer needed
	}
	return n
}

// readFailed stores the error of a read, which may be nil.
func (c *Conn) readFailed(err error) {
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.readErr = err
	}
}

// idleAt returns when to check whether the connection is idle, or zero for never.
func (c *Conn) idleAt(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch timeout := c.o.IdleTimeout; {
	case timeout <= 0:
		return time.Time{}
	case c.open > 0:
		return now.Add(timeout / 4)
	default:
		return now.Add(timeout - (monotime.Now() - c.lastEnd))
	}
}

// idle reports whether no call was open for IdleTimeout.
func (c *Conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idled = c.o.IdleTimeout > 0 && c.open == 0 && monotime.Now()-c.lastEnd >= c.o.IdleTimeout
	return c.idled
}

// Busy adds n to the number of requests that count as open calls. A connection with an open call is
// not idle, and a drain waits for it.
func (c *Conn) Busy(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countLocked(n)
}

// Describe returns the protocol of the connection, when it began, and how many calls are open.
func (c *Conn) Describe() introspect.ConnInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := monotime.Time(c.began).Round(0).UTC()
	return introspect.ConnInfo{Protocol: c.protocol, Since: since, Conn: introspect.Conn{Open: c.calls.Len}}
}

// Executing returns the calls that execute, which are those of a peer.
func (c *Conn) Executing(peer string) []opencalls.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls.Running(peer)
}

func (c *Conn) countLocked(calls int) {
	if c.open += calls; c.open == 0 {
		c.lastEnd = monotime.Now()
	}
	c.changedLocked()
}

// ending returns the results of Finish. Aborted says that this side has closed the connection.
func (c *Conn) ending(err error, aborted bool) (kind introspect.ConnEventKind, breach bool, why error) {
	here, readErr, writeErr := c.failures()
	over := err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case aborted, over && here:
		return introspect.Closed, false, nil
	case writeErr != nil:
		return introspect.WriteFailed, false, writeErr
	case over:
		return introspect.Disconnected, false, nil
	}
	network := readErr != nil && errors.Is(err, readErr)
	return introspect.ReadFailed, !network, err
}

// failures returns what has ended the connection, as far as it knows: this side, because the
// connection was idle or has drained, or a failed read or write.
func (c *Conn) failures() (here bool, read, write error) {
	c.mu.Lock()
	defer c.mu.Unlock() // code that AsConn serves may still read and write
	return c.idled || c.quiet.Load(), c.readErr, c.writeErr
}

// changedLocked wakes Drain.
func (c *Conn) changedLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}
