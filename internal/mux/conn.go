// SPDX-License-Identifier: Apache-2.0

// Package mux runs one connection of the native protocol. Many calls share the connection, in both
// directions.
//
// The package knows frames. It does not know methods or messages: a Target says what a call means.
// Three techniques make it fast, each in one file:
//
//   - write.go: a caller that finds the connection idle writes immediately. Frames that are
//     appended during that write go out together in the next one. There is no timer and no flush
//     policy.
//   - read.go: the reader goroutine handles all complete frames of one read as a batch, in place.
//   - handover.go: handlers that are known to be short run on the reader goroutine. If such a
//     handler blocks, a new goroutine takes over the reading.
//
// docs/locks.md lists the locks and the goroutines of this package.
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

// Limits says what one side of a connection accepts, and how it behaves. MaxOpen and MaxOpenBytes
// also bound this side's own requests, in addition to the peer's limits.
type Limits struct {
	MaxMessage   int // bytes of one message as sent
	MaxOpen      int // requests open at once
	MaxOpenBytes int // bytes of their messages
	MaxMemory    int // bytes that the peer can make this side hold in all; 0 means no bound
	MaxMethods   int // method numbers
	MaxUnsent    int // bytes waiting to be written, beyond which this side stops reading
	// Bytes that the peer may send on a stream before this side consumes them. 0 means the default
	// of the specification.
	StreamWindow int

	// A peer that was silent for this long is pinged. After the same time again it is dead. 0
	// disables keepalive.
	KeepAlive time.Duration
	Handshake time.Duration // limit for the arrival of the peer's preface and settings
	// the connection is closed after this time without an open request; 0 means never
	IdleTimeout time.Duration
	// the connection is drained at this age, plus or minus a tenth; 0 means never
	MaxAge time.Duration
	// how long a reader polls before it sleeps, see poll.go; 0 means never
	Polling time.Duration
}

// Config is what the owner of connections provides. Several connections share one Config, and
// nothing changes it.
type Config struct {
	Limits

	// OwnOpen and OwnOpenBytes bound this side's own requests, in place of MaxOpen and
	// MaxOpenBytes. 0 leaves MaxOpen or MaxOpenBytes in force.
	OwnOpen      int
	OwnOpenBytes int

	Metadata []byte // sent with the settings
	Agent    string // sent with the settings

	// A side that serves describes itself with these in its settings, see wire.Limits. Services
	// returns the list of services. Keys returns the scope of the key memory, and how long the
	// memory keeps a key. Both may be nil. NewOf calls them when a connection begins, so several
	// goroutines may call them at the same time. They must not run user code.
	Incarnation []byte
	Services    func() []byte
	Keys        func(c *Conn) (scope string, keep time.Duration)

	// Bind returns the Target for a method number of the peer. It is nil when this side serves
	// nothing. The reader goroutine calls it. The binding aliases the read buffer.
	Bind func(c *Conn, b *wire.Binding) (Target, wire.Info)
	// Hello receives the peer's settings before any of the peer's requests is served. The settings
	// alias the read buffer. A refusal ends the connection.
	Hello func(c *Conn, peer *wire.Limits) *Refusal
	// Learned receives what the peer says about a method that this side calls.
	Learned func(c *Conn, handle int, info wire.Info)
	// Unusable is called when no more requests can be sent, because the peer drains the connection
	// or the connection has ended. It is called before the calls on the connection fail, so that
	// they can be sent elsewhere.
	Unusable func(c *Conn)
	// Ended is called once, after the connection has ended. Err is the reason and never nil.
	Ended func(c *Conn, err error)

	// bounds what all connections hold together; nil applies only each connection's Limits
	Memory *Memory
	Pool   *Pool  // runs the handlers that are not short
	Watch  *Watch // watches the handlers that run on reader goroutines
	// bounds the peers' open requests together; nil applies only each connection's Limits
	Budget *Budget
}

// A bound is the Target that a method number of the peer stands for.
type bound struct {
	target Target
	id     uint32 // of the Method frame
	kind   uint64
	cost   int // in bytes of memory
}

// A Refusal ends a connection with a code. The code, ID and message are sent to the peer.
type Refusal struct {
	Code    uint16
	ID      string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Reasons why connections end and calls fail.
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

// A ProtocolError says that the peer violated the protocol. It ends the connection.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "protocol error: " + e.What }

// A PrefaceError says that the peer speaks another protocol, or another version of this one.
type PrefaceError struct{ Got []byte }

func (e *PrefaceError) Error() string { return fmt.Sprintf("the peer began with %q", e.Got) }

// A TooLargeError says that a reply exceeds this side's limit. It fails only that call.
type TooLargeError struct {
	Size  uint64
	Limit int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the reply has %d bytes, the limit is %d", e.Size, e.Limit)
}

// A BrokenError says that a message cannot be read. It fails only that call.
type BrokenError struct{ Cause error }

func (e *BrokenError) Error() string { return "a broken message: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Cause }

// An Op names the operation that failed on the underlying connection.
type Op string

// The operations that can fail.
const (
	Read        Op = "read"
	Write       Op = "write"
	EndOfStream Op = "end of stream" // the peer closed the connection
)

// An IOError says that the underlying connection failed, or that the peer closed it.
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

// Unwrap returns the cause. For an EndOfStream it returns nil, because io.EOF is the regular end of
// a stream of messages.
func (e *IOError) Unwrap() error {
	if e.Op == EndOfStream {
		return nil
	}
	return e.Err
}

// A CallError says that the connection could not complete a call.
type CallError struct {
	Cause        error
	NotProcessed bool    // the peer certainly did not execute the call
	Awaited      Awaited // what the call was waiting for when its caller canceled it
}

// Awaited says what a call was waiting for.
type Awaited uint8

// A call that has not been sent waits for the peer's window, or for space in the output.
const (
	_ Awaited = iota
	AwaitedWindow
	AwaitedOutput
)

func (e *CallError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Cause }

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

// Conn is one connection. Its methods may be called concurrently. A process may have many idle
// connections, so a Conn is small: rarely used state is behind pointers and is allocated on first
// use.
//
// Conn.mu guards every field without another rule in its comment, and the fields of calls and
// seldom. The fields cfg, nc, owner, socket, client and share do not change after NewOf.
type Conn struct {
	cfg    *Config
	nc     net.Conn
	owner  any             // see Owner
	socket syscall.RawConn // nil when nc is not a plain socket, see socketOf
	count  counters

	reader  atomic.Pointer[reader]
	self    selfReading // see lone.go for what guards its fields
	parking parkState   // see parker.go for what guards its fields

	*calls  // points to noCalls until this side sends its first call
	*seldom // points to noneYet until a field is needed

	mu      sync.Mutex
	client  bool
	preface bool // the peer's preface has arrived; written by the reader with mu held
	// calls fail because this side cannot read their replies, see failFloodedRelocking
	flooded     bool
	pinged      bool        // a keepalive ping waits for a sign of life from the peer
	holding     bool        // the reader waits for room for a one-way request, see awaitRequestRoomRelocking
	abrupt      bool        // the connection ends at once, without waiting for output
	readerDone  bool        // the reader goroutine has ended
	limitsRead  bool        // the peer has answered a ping, so it has read this side's settings
	limitsAsked bool        // a ping was sent to find that out
	greeting    atomic.Bool // the peer's settings have not arrived
	heard       atomic.Bool // the peer has sent something since the last keepalive check
	watched     atomic.Bool // the connection is in cfg.Watch
	draining    atomic.Bool // this side accepts no more requests, and then ends the connection
	refusing    atomic.Bool // this side accepts no more requests, and the connection goes on
	hasEnded    atomic.Bool // err is set

	// Writing, see write.go.
	flushing   bool          // a goroutine is flushing out
	yielding   bool          // the flusher first lets other goroutines append
	vectoring  bool          // the flusher writes a piece of a large message, see large.go
	batchBegan time.Duration // see beganLocked
	framesOut  uint64
	out        []byte // frames that no write has taken yet
	spare      []byte // the buffer that replaces out during a write
	queued     uint64 // bytes ever appended to out
	taken      uint64 // bytes ever passed to a write
	written    uint64 // bytes ever written

	// The window of the peer, see call.go and nested.go.
	open       int
	openBytes  int
	maxOpen    int
	maxBytes   int
	mostOpen   int // upper bound of every window that the peer will ever grant
	mostBytes  int
	maxNum     int32
	peerStream int32  // the peer's window for a stream
	opened     uint64 // requests ever sent

	// Requests that the peer opened, see request.go.
	in       sparseTable[*Request] // by slot
	inOpen   int
	inBytes  int
	targets  sparseTable[bound] // by method number; only the reader uses it
	received atomic.Uint64      // requests ever received
	// requests that are processed although this side drains: the count of the drain notice
	promised uint64

	// Memory that the peer makes this side hold, see memory_account.go.
	memory holding
	stash  int          // bytes of memory that are kept for the next requests
	stuck  atomic.Int64 // bytes of replies that wait for space in out; changed with mu held

	// The peer's share of the owner's budget, see budget.go.
	share *share // nil without a budget
	// the requests granted, including those that the peer may send before it learns of a lower
	// limit
	limit      int
	limitBytes int
	peak       int // the most requests that were open at once since the last measurement
	peakBytes  int

	// Ending, see care.go.
	err         error
	housekeeper *time.Timer // the housekeeping timer
	housekeepAt int64       // when it fires; never when it is not set
	helloBy     int64       // when the peer's settings must have arrived; 0 once they have
	pingAt      int64
	progress    uint64 // the value of written at the last keepalive check
}

// calls is the state of the calls that this side opens, see call.go. Conn.mu guards it.
type calls struct {
	slots     []slot
	free      []uint32 // slots not in use
	admission []*ticket
	tickets   uint64      // ever made
	numbers   []numbering // by handle
	nextNum   uint16
	announced uint32 // Method frames ever sent

	idleWaiters []*waiter // for asynchronous calls

	// Requests beyond the window that serve calls of the peer, see nested.go.
	nested      int
	nestedBytes int
}

// noCalls is shared by all connections that have sent no call. Nothing changes it.
var noCalls = new(calls)

// callsLocked returns the calls of c for writing.
func (c *Conn) callsLocked() *calls {
	if c.calls == noCalls {
		c.calls = new(calls)
	}
	return c.calls
}

// seldom is state that most connections never need, or need only when they end. Conn.mu guards it.
type seldom struct {
	accepted uint64 // how many requests the peer processes, once drained is set
	// set once this side sends no more requests: the peer drains, or this side retires the
	// connection
	drained  error
	reserved int // bytes that streams may hold beyond their smallest windows
	// the part of reserved for messages that have not arrived completely
	partial     int
	reserving   []*Stream             // streams that wait for a reservation
	oneWay      map[*Request]struct{} // requests of the peer that have no slot
	oneWayBytes int                   // the part of inBytes for oneWay
	orphans     int                   // how many requests of inOpen the pool has adopted
	// How many requests of inOpen serve calls of this side. They are not part of the window.
	inNested    int
	inNestBytes int
	// The value c.flush, created once. Starting a goroutine with it allocates nothing.
	flushAll func()
	// closed when a flusher has taken out; nil when no goroutine waits
	space chan struct{}
	// closed when everything is written; nil when no goroutine waits
	flushed chan struct{}
	// closed when a request leaves the table; nil when no goroutine waits
	room     chan struct{}
	writeErr *IOError // a write has failed, or the peer has closed the connection
	// closed when no request is open; nil when Refuse was not called
	noRequests chan struct{}
	// closed when this side accepts no more requests; nil before Draining is called
	drainBegun chan struct{}
	order      keyedOrder    // see order.go
	replies    replies       // see replies.go
	aging      aging         // see age.go
	ended      chan struct{} // closed when err is set; nil when no goroutine waits
	// closed when the reader has ended; nil when no goroutine waits
	readerEnded chan struct{}
	pings       map[uint64]chan struct{} // by number
	nextPing    uint64                   // the number of the last ping
	// The ping whose pong says that the peer obeys a lower limit. 0 means none.
	lowering      uint64
	endReason     error  // why this side has begun to end the connection, after a drain notice
	endAt         int64  // when the connection ends because of writeErr; 0 means never
	endBy         int64  // the latest time for parting
	endFrames     uint64 // framesIn at the last check
	hangUpChecked int64  // when this side, while it did not read, last checked for a hang-up
	stallFrom     int64  // since when an unfinished message is watched; 0 when there is none
	stallBytes    uint64 // bytesIn at stallFrom
	// The part of written that the peer had acknowledged at the last keepalive check. 0 means all.
	acknowledged int64
	linger       int64 // when a drained connection is closed; 0 when it does not drain
}

// noneYet is shared by all connections that have no rarely used state. Nothing changes it.
var noneYet = new(seldom)

// seldomLocked returns the rarely used state of c for writing.
func (c *Conn) seldomLocked() *seldom {
	if c.seldom == noneYet {
		c.seldom = new(seldom)
	}
	return c.seldom
}

// Counters counts the work of a connection. Conn.Counters returns them.
type Counters struct {
	Reads, Writes, BytesIn, BytesOut, FramesIn, FramesOut uint64
}

// counters are the counters that change without Conn.mu.
type counters struct {
	reads, writes, bytesIn, bytesOut, framesIn atomic.Uint64
}
