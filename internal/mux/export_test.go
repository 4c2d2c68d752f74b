// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"net"
	"reflect"
	"time"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/keyqueue"
	"github.com/yodel-rpc/yodel/internal/parker"
	"github.com/yodel-rpc/yodel/internal/readstate"
	"github.com/yodel-rpc/yodel/internal/window"
)

// New is NewOf for a connection without an owner.
func New(nc net.Conn, prefix []byte, client bool, cfg *Config) *Conn {
	return NewOf(nil, nc, prefix, client, cfg)
}

// NetConn returns the underlying connection.
func (c *Conn) NetConn() net.Conn { return c.nc }

// OneWayBy returns when the next search looks at the peer's one-way requests, or 0.
func (c *Conn) OneWayBy() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.callsIn.oneWayBy
}

// Ended reports whether a call that this side opened has ended.
func (st *Stream) Ended() bool {
	select {
	case <-st.done:
		return true
	default:
		return false
	}
}

// Tables is what a connection keeps of its calls, for the tests that want none to be forgotten in
// it.
type Tables struct {
	Open, OpenBytes, Taken, Waiting int // of this side's calls; Taken slots, Waiting for the window
	InOpen, InBytes, In             int // of the peer's; In its table
	Slots                           int // ever made
	Lines                           int // of ordered requests
	Unsent                          int // bytes appended and not yet being written
	Reserved, Reserving             int // by streams beyond their first windows, and how many wait for that
}

// Tables returns the state of the connection's tables.
func (c *Conn) Tables() Tables {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Tables{
		Open: c.callsOut.window.Open(), OpenBytes: c.callsOut.window.Bytes(), Waiting: c.callsOut.window.Waiting(), InOpen: c.callsIn.inOpen, InBytes: c.callsIn.inBytes,
		In: len(c.callsIn.oneWay), Slots: len(c.callsOut.slots), Unsent: len(c.writing.out),
		Reserved: c.streams.reserved, Reserving: len(c.streams.reserving),
	}
	s.Lines, _, _ = c.callsIn.order.Sizes()
	for i := range c.callsOut.slots {
		if c.callsOut.slots[i].taken {
			s.Taken++
		}
	}
	for _, in := range c.callsIn.in.All(0) {
		if in.r != nil {
			s.In++
		}
	}
	return s
}

// Broken returns how many keys are remembered as broken, and up to which epoch all of them are.
func (c *Conn) Broken() (keys int, floor uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, keys, floor = c.callsIn.order.Sizes()
	return keys, floor
}

// What the tests need to know of sizes.
const (
	MaxBroken     = keyqueue.MaxBroken
	HighWater     = highWater
	MaxFrame      = maxFrame
	InitialWindow = window.Initial
	FirstGrant    = collect.FirstGrant
	SweepCalls    = sweepCalls
	SweepPause    = time.Duration(sweepPause)
)

// Window returns what the peer allows this side to have open.
func (c *Conn) Window() (open, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.callsOut.window.Limits()
}

// Self tells how the connection is read when a single caller uses it.
func (c *Conn) Self() (offered, asleep bool) {
	c.reading.self.mu.Lock()
	defer c.reading.self.mu.Unlock()
	return c.reading.state.Is(readstate.Offered) || c.reading.state.Is(readstate.Parked), c.reading.self.sleeper != nil
}

// HasSocket reports whether the connection has direct access to its socket. Only such a connection
// is read by its callers.
func (c *Conn) HasSocket() bool { return c.socket.Exists() }

// SelfReadTime is how long the reading is offered at least while no call comes.
const SelfReadTime = selfReadTime

// Polling returns how many readers look for something instead of sleeping, in the whole process.
func Polling() int { return processRuntime.pollers.Count() }

// CanPark says that connections can be parked.
const CanPark = parker.Possible

// Parked reports whether the connection is parked.
func (c *Conn) Parked() bool { return c.reading.state.Is(readstate.Parked) }

// HasRequestState reports whether the connection has memory that only some requests of the peer
// need.
func (c *Conn) HasRequestState() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.callsIn.lazyCallsIn != noCallsIn
}

// SharedIsChanged says what of the things that connections share has been written to.
func SharedIsChanged() string {
	switch {
	case !reflect.ValueOf(noWriting).Elem().IsZero():
		return "noWriting"
	case !reflect.ValueOf(noCallsOut).Elem().IsZero():
		return "noCallsOut"
	case !reflect.ValueOf(noCallsIn).Elem().IsZero():
		return "noCallsIn"
	case !reflect.ValueOf(noStreams).Elem().IsZero():
		return "noStreams"
	case !reflect.ValueOf(noLifetime).Elem().IsZero():
		return "noLifetime"
	case !reflect.ValueOf(parkedReader).Elem().IsZero():
		return "nobody"
	}
	return ""
}

// ParkIdle looks at once for connections to lay down, as a timer does that is set again when it has
// just fired.
func ParkIdle() { processRuntime.parker.ParkIdle() }

// Parking reports whether a look is going on.
func Parking() bool {
	_, busy := processRuntime.parker.Watched()
	return busy
}

// Hold keeps everybody else from the connection's state.
func (c *Conn) Hold() (release func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// Received returns how many requests have come.
func (c *Conn) Received() uint64 { return c.callsIn.received.Load() }

// PanicOnImpossibleReadStates makes a change that is not in the table of read states panic.
func PanicOnImpossibleReadStates() {
	impossible = func(from, to readstate.State) { panic(fmt.Sprintf("mux: the reading changes from %v to %v", from, to)) }
}

// ReadTransitions returns all pairs of states, and whether the second may follow the first.
func ReadTransitions() map[[2]string]bool {
	all := make(map[[2]string]bool)
	for from := range readstate.Ended + 1 {
		for to := range readstate.Ended + 1 {
			all[[2]string{from.String(), to.String()}] = from.MayBecome(to)
		}
	}
	return all
}

// ChangeReading changes who reads the connection, as far as its state is concerned.
func (c *Conn) ChangeReading(from, to string) bool {
	state := func(name string) readstate.State {
		for s := range readstate.Ended + 1 {
			if s.String() == name {
				return s
			}
		}
		panic(name)
	}
	return c.reading.change(state(from), state(to))
}

// Watched returns how many sockets the parker of the Runtime watches.
func (rt *Runtime) Watched() int {
	n, _ := rt.parker.Watched()
	return n
}

// ConnSize is how many bytes a Conn takes.
const ConnSize = unsafe.Sizeof(Conn{})
