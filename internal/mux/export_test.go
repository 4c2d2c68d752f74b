// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"net"
	"reflect"
	"syscall"
	"time"
	"unsafe"
)

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
		Open: c.callsOut.open, OpenBytes: c.callsOut.openBytes, Waiting: len(c.callsOut.admission), InOpen: c.callsIn.inOpen, InBytes: c.callsIn.inBytes,
		In: len(c.callsIn.oneWay), Slots: len(c.callsOut.slots), Lines: len(c.callsIn.order.lines), Unsent: len(c.writing.out),
		Reserved: c.streams.reserved, Reserving: len(c.streams.reserving),
	}
	for i := range c.callsOut.slots {
		if c.callsOut.slots[i].taken {
			s.Taken++
		}
	}
	for r := range c.callsIn.in.all() {
		if *r != nil {
			s.In++
		}
	}
	return s
}

// Broken returns how many keys are remembered as broken, and up to which epoch all of them are.
func (c *Conn) Broken() (keys int, floor uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.callsIn.order.broken), c.callsIn.order.floor
}

// What the tests need to know of sizes.
const (
	MaxBroken     = maxBroken
	HighWater     = highWater
	MaxFrame      = maxFrame
	InitialWindow = initialWindow
	FirstGrant    = firstGrant
)

// Watch has f called with the sum of all shares, whenever one has changed.
func (b *Budget) Watch(f func(granted int)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = func() { f(b.granted) }
}

// Members returns how many connections have a share, and whether the budget will look after them.
func (b *Budget) Members() (n int, awake bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.members), !b.due.IsZero()
}

// Window returns what the peer allows this side to have open.
func (c *Conn) Window() (open, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.callsOut.maxOpen, c.callsOut.maxBytes
}

// Self tells how the connection is read when a single caller uses it.
func (c *Conn) Self() (offered, asleep bool) {
	c.reading.self.mu.Lock()
	defer c.reading.self.mu.Unlock()
	return c.reading.is(readOffered) || c.reading.is(readParked), c.reading.self.sleeper != nil
}

// Polling returns how many readers look for something instead of sleeping, in the whole process.
func Polling() int { return int(processRuntime.pollers.n.Load()) }

// A Poll is what decides whether to look or to sleep.
type Poll struct {
	polling
	socket syscall.RawConn
	limit  time.Duration
}

// NewPoll returns one for a socket.
func NewPoll(nc net.Conn, time time.Duration) *Poll {
	p := &Poll{socket: socketOf(nc), limit: time}
	p.init()
	processRuntime.pollers.setProcessors()
	return p
}

// Batches says that so many batches came soon.
func (p *Poll) Batches(n int) { p.quick += int32(n) }

// Waited says how long the last batch took to come.
func (p *Poll) Waited(d time.Duration) { p.waited(int64(d), p.limit) }

// Poll looks when it pays, and reports whether something came.
func (p *Poll) Poll(now time.Duration) bool {
	n, _ := p.poll(&processRuntime.pollers, p.socket, int64(now), p.limit, make([]byte, 1))
	return n > 0
}

// Drain reads what is there, by whatever means.
func (p *Poll) Drain() {
	_, _ = readSocket(p.socket, make([]byte, 1), 0, false)
}

// AddPollers is as if so many more readers polled.
func AddPollers(n int) { processRuntime.pollers.n.Add(int32(n)) }

// What the tests need to know of polling.
const (
	LeastQuick = leastQuick
	MostQuick  = mostQuick
	VainPolls  = fullCredit / vainCost
	Napping    = napping
)

// These are in memory.go.
const ReserveSize = reserveSize

const (
	OftenApart  = oftenApart
	SeldomApart = seldomApart
)

func WantsReserve(has bool, apart time.Duration) bool { return wantsReserve(has, apart) }

func TakeMemory(n int) []byte { return processRuntime.memory.take(n) }
func GiveMemory(b []byte)     { processRuntime.memory.give(b) }

// Spare returns how much memory waits to be used again.
func Spare() (sum int) {
	for i := range processRuntime.memory.spares {
		s := &processRuntime.memory.spares[i]
		s.Lock()
		for _, b := range s.free {
			sum += cap(b)
		}
		s.Unlock()
	}
	return sum
}

// Reserve returns how much memory is in reserve.
func Reserve() int {
	m := &processRuntime.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return cap(m.reserve)
}

// CanPark says that connections can be parked.
const CanPark = canPark

// Parked reports whether the connection is parked.
func (c *Conn) Parked() bool { return c.reading.is(readParked) }

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
func ParkIdle() { processRuntime.parker.parkIdle() }

// Parking reports whether a look is going on.
func Parking() bool {
	processRuntime.parker.mu.Lock()
	defer processRuntime.parker.mu.Unlock()
	return processRuntime.parker.busy
}

// Hold keeps everybody else from the connection's state.
func (c *Conn) Hold() (release func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// A Holding is that of a connection.
type Holding struct{ holding }

// NewHolding returns the holding of a connection that has just begun.
func NewHolding(m *Memory, limit int) *Holding {
	h := new(Holding)
	h.init(m, limit)
	return h
}

// Take, Give and Force do what those of the holding do.
func (h *Holding) Take(n int) bool { return h.take(n) }
func (h *Holding) Give(n int)      { h.give(n) }
func (h *Holding) Force(n int)     { h.force(n) }

// GiveAll ends the connection, and gives back all that is in use.
func (h *Holding) GiveAll() {
	h.close()
	h.give(int(h.used.Load()))
}

// Received returns how many requests have come.
func (c *Conn) Received() uint64 { return c.callsIn.received.Load() }

// PanicOnImpossibleReadStates makes a change that is not in the table of read states panic.
func PanicOnImpossibleReadStates() {
	impossible = func(from, to readState) { panic(fmt.Sprintf("mux: the reading changes from %v to %v", from, to)) }
}

// String returns the name of the state in docs/locks.md.
func (s readState) String() string {
	return [...]string{"ByGoroutine", "Interrupted", "Offered", "ByCaller", "Parked", "Ended"}[s]
}

// ReadTransitions returns all pairs of states, and whether the second may follow the first.
func ReadTransitions() map[[2]string]bool {
	all := make(map[[2]string]bool)
	for from := range readStates {
		for to := range readStates {
			all[[2]string{from.String(), to.String()}] = from.mayBecome(to)
		}
	}
	return all
}

// ChangeReading changes who reads the connection, as far as its state is concerned.
func (c *Conn) ChangeReading(from, to string) bool {
	state := func(name string) readState {
		for s := range readStates {
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
	rt.parker.mu.Lock()
	defer rt.parker.mu.Unlock()
	return rt.parker.sockets.n
}

// ConnSize is how many bytes a Conn takes.
const ConnSize = unsafe.Sizeof(Conn{})
