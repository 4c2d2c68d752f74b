// SPDX-License-Identifier: Apache-2.0

// Package mux runs one connection of the native protocol: many calls at once, in both directions.
//
// It knows frames, not methods or messages: what a call means is the business of a Target. Three
// things make it fast, each in one place:
//
//   - write.go: whoever finds the connection idle writes at once, and what is appended while that
//     write is in progress goes out in the next one. There is no timer and no flush policy.
//   - read.go: all complete frames of one read are handled as one batch, in place.
//   - handover.go: handlers that are known to be short run on the reading goroutine, and one that
//     blocks all the same loses the reading to a new goroutine.
package mux

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits is what one side of a connection accepts, and how it behaves. MaxOpen and MaxOpenBytes
// bound its own requests too, beside the peer's limits.
type Limits struct {
	MaxMessage   int // bytes of one message as sent
	MaxOpen      int // requests open at once
	MaxOpenBytes int // bytes of their messages
	MaxMemory    int // bytes that the peer makes this side hold in all; 0 is without bound
	MaxMethods   int // method numbers
	MaxUnsent    int // bytes waiting to be written, past which this side stops reading
	// bytes that the peer may send on a stream before they are consumed; 0 is the default of the
	// specification
	StreamWindow int

	KeepAlive   time.Duration // a peer that was silent for so long is pinged, and dead after as long again; 0 never
	Handshake   time.Duration // until the peer's preface and settings must have come
	IdleTimeout time.Duration // without an open request, after which the connection is closed; 0 never
	MaxAge      time.Duration // after which the connection is drained, more or less a tenth; 0 never
	Polling     time.Duration // how long is looked for what comes next before sleeping, see poll.go; 0 never
}

// Config is what a connection needs of its owner. It is shared by connections and not changed.
type Config struct {
	Limits

	// OwnOpen and OwnOpenBytes bound this side's own requests instead of MaxOpen and MaxOpenBytes;
	// 0 does not.
	OwnOpen      int
	OwnOpenBytes int

	Metadata []byte // sent with the settings
	Agent    string // sent with the settings

	// What a side that serves says of itself in its settings, see wire.Limits. Services and Keys,
	// if not nil, return the list of services, and the scope of the key memory and how long it
	// keeps a key, at the time when a connection begins. They are called by several goroutines, by
	// NewOf's caller, and must not run code of users.
	Incarnation []byte
	Services    func() []byte
	Keys        func(c *Conn) (scope string, keep time.Duration)

	// Bind tells what a method number of the peer stands for. Nil when this side serves nothing.
	// It is called by the reading goroutine, and what it is given aliases the read buffer.
	Bind func(c *Conn, b *wire.Binding) (Target, wire.Info)
	// Hello sees the peer's settings, which alias the read buffer, before any of its requests is
	// served. A refusal ends the connection.
	Hello func(c *Conn, peer *wire.Limits) *Refusal
	// Learned sees what the peer says of a method that this side calls.
	Learned func(c *Conn, handle int, info wire.Info)
	// Unusable is called when no more requests can be sent: the peer drains the connection, or it
	// has ended. It is called before the calls on it are told, so that they can go elsewhere.
	Unusable func(c *Conn)
	// Ended is called once when the connection has ended, with the reason, never nil.
	Ended func(c *Conn, err error)

	Memory *Memory // what all connections hold together; nil for only what Limits say of each
	Pool   *Pool   // where handlers run that are not short
	Watch  *Watch  // watches the handlers that are
	Budget *Budget // what the peers may have open together; nil for only what Limits say of each
}

// A bound is what a method number of the peer stands for.
type bound struct {
	target Target
	id     uint32 // of the Method frame
	kind   uint64
	cost   int // in bytes of memory
}

// A Refusal ends a connection with a code that the peer is told.
type Refusal struct {
	Code    uint16
	ID      string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Why connections end and calls fail.
var (
	ErrClosed    = errors.New("the connection was closed by this side")
	ErrRetired   = errors.New("this side opens no more calls on the connection")
	ErrAged      = errors.New("the connection was closed because it had been idle or open for long enough")
	ErrDead      = errors.New("the peer has been silent for too long")
	ErrDrained   = errors.New("the peer is shutting down")
	ErrDeadline  = errors.New("the deadline passed")
	ErrWindow    = errors.New("the peer's window is full")
	ErrFlooded   = errors.New("the peer sends one-way requests faster than they are executed, and its replies are not read meanwhile")
	ErrHandshake = errors.New("the peer sent no preface and settings in time")
)

// A ProtocolError is a peer's breach of the protocol. It ends the connection.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "protocol error: " + e.What }

// A PrefaceError says that the peer does not speak this protocol, or another version of it.
type PrefaceError struct{ Got []byte }

func (e *PrefaceError) Error() string { return fmt.Sprintf("the peer began with %q", e.Got) }

// A TooLargeError says that a reply exceeds this side's limit. It fails its own call only.
type TooLargeError struct {
	Size  uint64
	Limit int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the reply has %d bytes, the limit is %d", e.Size, e.Limit)
}

// A BrokenError says that a single message cannot be read. It fails its own call only.
type BrokenError struct{ Cause error }

func (e *BrokenError) Error() string { return "a broken message: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Cause }

// An Op is what failed on the connection below.
type Op string

// The operations that fail.
const (
	Read        Op = "read"
	Write       Op = "write"
	EndOfStream Op = "end of stream" // the peer closed the connection
)

// An IOError says that the connection below failed, or that the peer closed it.
type IOError struct {
	Op  Op
	Err error
}

func (e *IOError) Error() string {
	if e.Op == EndOfStream {
		return "the peer closed the connection"
	}
	return string(e.Op) + ": " + e.Err.Error()
}

// Unwrap returns the cause. That of an EndOfStream is not shown: io.EOF is how streams of messages
// end when all is well.
func (e *IOError) Unwrap() error {
	if e.Op == EndOfStream {
		return nil
	}
	return e.Err
}

// A CallError says that the connection could not carry a call to its end.
type CallError struct {
	Cause        error
	NotProcessed bool    // the peer certainly did not execute it
	Awaited      Awaited // what the call was waiting for when its caller gave it up
}

// Awaited is what a call was waiting for.
type Awaited uint8

// A call that is not sent yet waits for the peer's window, or for the output to have room.
const (
	_ Awaited = iota
	AwaitedWindow
	AwaitedOutput
)

func (e *CallError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Cause }

const (
	// maxFrame is the payload of the largest frame that is sent and accepted. A larger message
	// takes several, so that small calls get in between.
	maxFrame = 64 << 10

	minReadBuffer = 512 // of an idle connection, and of all that it takes (10 KiB) the part that can be small
	maxReadBuffer = 128 << 10

	// defaultMaxMethods bounds method numbers when the peer's settings have not come yet.
	defaultMaxMethods = 1024
)

// Conn is one connection. Its methods may be called concurrently. Many of them may do nothing for
// long, so it is kept small: what few of them need is behind a pointer, and nothing is made before
// it is needed.
type Conn struct {
	cfg    *Config
	nc     net.Conn
	owner  any             // see Owner
	socket syscall.RawConn // nil when nc is none, or may do something of its own in Read and Write
	count  counters

	reader atomic.Pointer[reader]
	lone   lone  // see lone.go
	lying  lying // see lookout.go

	*calls  // noCalls before the first call of this side
	*seldom // noneYet in the beginning

	mu       sync.Mutex
	client   bool
	preface  bool // has come; changed by the reader, with mu held
	flooded  bool // replies are not read: see floodedLocked
	pinged   bool
	holding  bool        // this side does not read, because of what it has to do
	abrupt   bool        // it is to end at once
	silent   bool        // the reader has gone
	informed bool        // the peer has answered a ping, so it has read this side's settings
	inquired bool        // it was sent one for that
	greeting atomic.Bool // the peer's settings have yet to come
	heard    atomic.Bool // the peer sent something since the last keepalive
	watched  atomic.Bool // is on the list of cfg.Watch
	draining atomic.Bool // no more requests are accepted, and the connection ends then
	refusing atomic.Bool // no more requests are accepted, and the connection goes on
	over     atomic.Bool // err is set

	// Writing, see write.go.
	flushing   bool          // somebody will write out
	yielding   bool          // but lets others append first
	straight   bool          // and is at a piece of a large message, see large.go
	batchBegan time.Duration // see beganLocked
	framesOut  uint64
	out        []byte // appended and not yet being written
	spare      []byte // the other buffer
	queued     uint64 // bytes ever appended to out
	taken      uint64 // bytes ever given to a write
	written    uint64 // bytes ever written

	// The window of the peer, see call.go and nested.go.
	open       int
	openBytes  int
	maxOpen    int
	maxBytes   int
	mostOpen   int // the peer's window will never be larger
	mostBytes  int
	maxNum     int32
	peerStream int32  // the peer's window of a stream
	opened     uint64 // requests ever sent

	// Calls that the peer opened, see request.go.
	in       sparseTable[*Request] // by slot
	inOpen   int
	inBytes  int
	targets  sparseTable[bound] // by number; the reader's own
	received atomic.Uint64      // requests ever received
	promised uint64             // how many of them are processed, once draining: the count of the drain notice

	// What the peer makes this side hold, see memory_account.go.
	memory holding
	stash  int          // of memory, for the next requests
	stuck  atomic.Int64 // bytes of replies for which there is no space in out; changed with mu held

	// What the peer may have open of the owner's budget, see budget.go.
	share      *share // nil without a budget
	limit      int    // what is granted, with what the peer may have sent before it heard of a lower limit
	limitBytes int
	peak       int // how many requests were open at most since this was measured
	peakBytes  int

	// Ending, see care.go.
	err      error
	care     *time.Timer
	careAt   int64 // when care fires; maxInt64 when it is not set
	helloBy  int64 // until when the peer's settings must have come; 0 when they have
	pingAt   int64
	progress uint64 // what written was at the last keepalive
}

// calls is what a connection keeps of the calls that this side opens, see call.go. Guarded by
// Conn.mu.
type calls struct {
	slots     []slot
	free      []uint32 // slots not in use
	admission []*ticket
	tickets   uint64      // ever made
	numbers   []numbering // by handle
	nextNum   uint16
	announced uint32 // Method frames ever sent

	idleWaiters []*waiter // for Completers

	// How many went beyond the window because they serve calls of the peer, see nested.go.
	nested      int
	nestedBytes int
}

// noCalls is that of all connections without any. It is not changed.
var noCalls = new(calls)

// callsLocked returns those of c, to be changed.
func (c *Conn) callsLocked() *calls {
	if c.calls == noCalls {
		c.calls = new(calls)
	}
	return c.calls
}

// seldom is what most connections never need, and others only when they end. Guarded by Conn.mu.
type seldom struct {
	accepted    uint64                // how many requests the peer will process, once it drains
	drained     error                 // set when the peer accepts no more requests
	reserved    int                   // bytes that streams may hold beyond their smallest windows
	partial     int                   // how many of them are for messages that have not come whole
	reserving   []*Stream             // that wait for it
	oneWay      map[*Request]struct{} // requests of the peer that have no slot
	oneWayBytes int                   // of inBytes
	orphans     int                   // how many of inOpen the pool has adopted
	inNested    int                   // how many of inOpen serve calls of this side and are not in the window
	inNestBytes int
	flushAll    func()                   // flush, made once: starting a goroutine with it costs no allocation
	space       chan struct{}            // closed when out has been taken to be written; nil when nobody waits
	flushed     chan struct{}            // closed when all has been written; nil when nobody waits
	room        chan struct{}            // closed when a request leaves the table; nil when nobody waits
	writeErr    *IOError                 // a write has failed, or the peer has hung up
	quiet       chan struct{}            // closed when no request is open; nil when nobody asked
	drainBegun  chan struct{}            // closed when no more are accepted; nil when nobody asked
	order       order                    // see order.go
	replies     replies                  // see replies.go
	aging       aging                    // see age.go
	ended       chan struct{}            // closed when err is set; nil when nobody waits
	gone        chan struct{}            // closed when the reader has gone; nil when nobody waits
	pings       map[uint64]chan struct{} // by number
	nextPing    uint64                   // the number of the last one
	lowering    uint64                   // the ping whose pong says that the peer has obeyed a lower limit; 0 for none
	why         error                    // set when this side has begun to end it, with a word to the peer
	parting     int64                    // when the connection ends because of writeErr; 0 when it does not
	partBy      int64                    // and when it does at the latest
	partFrames  uint64                   // how many frames had come when that was looked at last
	looked      int64                    // when this side, which does not read, looked whether the peer has hung up
	stallFrom   int64                    // since when an unfinished message is watched; 0 when there was none
	stallBytes  uint64                   // how many bytes had come then
	// how much of written the peer had acknowledged at the last keepalive; 0 for all of it
	acknowledged int64
	linger       int64 // when a drained connection is closed; 0 when it is not drained
}

// noneYet is that of all connections that have not needed it. It is not changed.
var noneYet = new(seldom)

// seldomLocked returns that of c, to be changed.
func (c *Conn) seldomLocked() *seldom {
	if c.seldom == noneYet {
		c.seldom = new(seldom)
	}
	return c.seldom
}

// Counters counts what a connection did. They are read with Conn.Counters.
type Counters struct {
	Reads, Writes, BytesIn, BytesOut, FramesIn, FramesOut uint64
}

// counters is Counters while they change, without those that Conn.mu guards.
type counters struct {
	reads, writes, bytesIn, bytesOut, framesIn atomic.Uint64
}
