// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"sync"
	"time"
)

// An idle connection is parked: its reader goroutine ends, and all memory that only calls need is
// released. The parker of the Runtime watches the sockets of parked connections (park_linux.go). It
// starts a new reader goroutine when data arrives or the connection ends. Callers can read from a
// parked connection too, because they may take the token, see selfread.go.
//
// Without parking, an idle connection takes 7.7 KiB. Parking saves 2.6 KiB for the goroutine and
// 1.3 KiB for the reader. If both sides have parked the connection, the next call takes about 40 µs
// longer.

const (
	// shortPeriod is the time from the moment a connection wakes up to the next check for idle
	// connections. While no connection wakes up, the time between two checks doubles, up to
	// longPeriod.
	shortPeriod, longPeriod = 50 * time.Millisecond, time.Second
	// mostChecked bounds the connections that one run of parkIdle checks, so that the run takes at
	// most 0.2 ms.
	mostChecked = 2048
	// parkAfter is how long a connection must be idle before it is parked. ParkAfterCalls applies
	// in place of parkAfter if there were calls since the connection was last parked, because more
	// calls may follow.
	parkAfter      = 50 * time.Millisecond
	parkAfterCalls = time.Second
	// mostSwept bounds the sockets that one run of parkIdle checks. With more sockets, housekeeping
	// of parked connections can be later than longPeriod.
	mostSwept = 8192
	// timerless is the least time until the next housekeeping of a parked connection for which the
	// parker does that housekeeping. For earlier housekeeping the connection uses a timer.
	timerless = 10 * time.Second
)

// A parker parks idle connections, and watches the sockets of parked ones. Its mu is taken after
// Conn.mu. The timer goroutine that has set busy owns batch. Mu guards all other fields.
type parker struct {
	rt     *Runtime // does not change
	mu     sync.Mutex
	awake  []*Conn // connections that can be parked
	next   int     // index of the next connection to check
	timer  *time.Timer
	period time.Duration // the time for which timer is set; 0 when it is not set
	busy   bool          // parkIdle runs, and sets the timer when it is done
	batch  []*Conn       // the connections that parkIdle checks

	sockets socketSet // the sockets of connections that are parked, or were before
}

// parkState is the parking state of a connection.
type parkState struct {
	// 1 + index in parker.awake, or 0 if the connection is not in it. parker.mu guards awake,
	// index and due.
	awake int32
	index int32 // 1 + index in parker.sockets, or 0
	due   int64 // when the connection needs housekeeping, or 0

	// Owned by parker.parkIdle.
	idleSince int64  // when seenWork last changed
	seenWork  uint32 // frames received plus writes, at the last check

	// requestCountLocked when the connection was parked; guarded by Conn.mu
	requests uint32
}

// add makes the parker check a connection until it is parked.
func (l *parker) add(c *Conn) {
	if !canPark || c.socket == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.reading.parking.awake != 0 {
		return
	}
	l.awake = append(l.awake, c)
	c.reading.parking.awake = int32(len(l.awake)) //nolint:gosec // as many as there are sockets
	l.scheduleLocked()
}

// scheduleLocked makes the timer fire within shortPeriod.
func (l *parker) scheduleLocked() {
	switch {
	case l.busy:
	case l.timer == nil:
		l.timer = time.AfterFunc(shortPeriod, l.parkIdle)
	case l.period == 0 || l.period > shortPeriod:
		l.timer.Reset(shortPeriod)
	}
	l.period = shortPeriod
}

// removeAwakeLocked removes a connection from awake.
func (l *parker) removeAwakeLocked(c *Conn) {
	if c.reading.parking.awake == 0 {
		return
	}
	i, last := c.reading.parking.awake-1, len(l.awake)-1
	l.awake[i] = l.awake[last]
	l.awake[i].reading.parking.awake = i + 1
	l.awake[last] = nil
	l.awake = l.awake[:last]
	c.reading.parking.awake = 0
}

// remove removes a connection that has ended.
func (l *parker) remove(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeAwakeLocked(c)
	if c.reading.parking.index != 0 {
		l.sockets.removeLocked(c)
	}
}

// parkIdle parks idle connections. It also wakes parked connections whose sockets this process has
// closed, because no event reports that. The timer can be reset after it has fired, so the timer
// can call parkIdle while another call of parkIdle runs.
func (l *parker) parkIdle() {
	l.mu.Lock()
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.period = min(2*l.period, longPeriod)
	l.batch = l.batch[:0]
	for range min(len(l.awake), mostChecked) {
		l.next = (l.next + 1) % len(l.awake)
		l.batch = append(l.batch, l.awake[l.next])
	}
	l.mu.Unlock()
	for _, c := range l.batch {
		c.reading.interruptIdle()
	}
	clear(l.batch)
	l.mu.Lock()
	closed, due := l.sockets.sweepLocked(l.rt.now())
	if l.busy = false; len(l.awake) == 0 && l.sockets.n == 0 {
		l.period = 0
	} else {
		l.timer.Reset(l.period)
	}
	l.mu.Unlock()
	for _, c := range closed {
		c.reading.startReader()
	}
	for _, c := range due {
		c.lifetime.housekeep()
	}
}

// housekeepAt makes parkIdle call housekeep at t or a little later, so that a parked connection
// needs no timer. A timer takes 140 bytes.
func (l *parker) housekeepAt(c *Conn, t int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.reading.parking.index == 0 || t == never {
		return false
	}
	c.reading.parking.due = t
	return true
}

// interruptIdle interrupts the read of a connection that has been idle for long enough, so that its
// reader parks it.
func (re *reading) interruptIdle() {
	c := re.c
	now, frames := c.now(), uint32(c.count.framesIn.Load()+c.count.writes.Load()) //nolint:gosec // it is only to change
	if re.parking.seenWork != frames || re.parking.idleSince == 0 {
		re.parking.seenWork, re.parking.idleSince = frames, now
	}
	quiet := now - re.parking.idleSince
	if quiet < int64(parkAfter) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &re.self
	if !re.isIdleLocked() || l.timerSet || !re.is(readByGoroutine) || re.parking.requests != re.requestCountLocked() && quiet < int64(parkAfterCalls) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if re.change(readByGoroutine, readInterrupted) && c.nc.SetReadDeadline(past) != nil {
		re.mustChange(readInterrupted, readByGoroutine)
	}
}

// parkInterrupted handles a failed read. Interrupted reports whether interruptIdle interrupted the
// read. Parked reports whether the connection is parked now. If it is, the calling reader goroutine
// must end.
func (rd *reader) parkInterrupted(err error) (interrupted, parked bool) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, false
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reading.change(readInterrupted, readByGoroutine) {
		return false, false
	}
	rd.err = nil
	c.reading.clearInterrupt()
	return true, rd.parkLocked()
}

// parkAgain parks a connection again if housekeeping woke it and no call has come. It reports
// whether it is parked.
func (rd *reader) parkAgain() bool {
	if rd.parkIn--; rd.parkIn > 0 {
		return false // this was the batch before the first read
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading.parking.requests == c.reading.requestCountLocked() && rd.parkLocked()
}

// parkLocked parks the connection, if it is idle, and reports whether it is parked.
func (rd *reader) parkLocked() bool {
	c := rd.c
	if !c.reading.isIdleLocked() || !c.reading.is(readByGoroutine) || rd.r < rd.w || rd.piece.left > 0 {
		return false
	}
	c.reading.parking.requests = c.reading.requestCountLocked()
	c.reading.trimLocked()
	c.reading.self.offered.Store(c.now())
	c.reading.reader.Store(parkedReader)
	c.reading.mustChange(readByGoroutine, readParked)
	if !c.rt.parker.watch(c) && c.reading.change(readParked, readByGoroutine) {
		c.reading.reader.Store(rd)
		c.rt.parker.add(c)
		return false
	}
	if c.lifetime.housekeepAt-c.now() > int64(timerless) && c.rt.parker.housekeepAt(c, c.lifetime.housekeepAt) {
		c.lifetime.dropTimerLocked()
	}
	putReader(rd)
	return true
}

// clearInterrupt removes the read deadline that interruptIdle has set.
func (re *reading) clearInterrupt() {
	c := re.c
	re.self.mu.Lock()
	defer re.self.mu.Unlock()
	var next time.Time
	if c.lifetime.hasEnded.Load() {
		next = time.Now().Add(closingTime / 2) // the deadline that shutSocket set
	}
	_ = c.nc.SetReadDeadline(next) // this fails when the socket is closed; the next read then fails too
}

// parkedReader stands for the reader of parked connections. It does nothing, and nothing changes
// it.
var parkedReader = new(reader)

// freeReaders holds readers for connections that wake up. The state counter of a reused reader is
// not reset. So a goroutine that saw the reader at work for an earlier connection notices that it
// now works for another one.
var freeReaders = sync.Pool{New: func() any { return new(reader) }}

func getReader(c *Conn) *reader {
	rd := freeReaders.Get().(*reader) //nolint:forcetypeassert // the pool holds nothing else
	rd.c, rd.parkIn = c, 2
	return rd
}

// putReader returns a reader without unhandled data to freeReaders. It drops memory that only
// calls need.
func putReader(rd *reader) {
	rd.r, rd.w, rd.ready, rd.largeInput, rd.answer = 0, 0, ready{}, largeInput{}, Answer{}
	rd.c, rd.used, rd.current, rd.scratch, rd.err = nil, nil, nil, nil, nil
	rd.clock, rd.arrived, rd.inline = 0, 0, 0
	rd.answered, rd.quiet, rd.outputFull = false, false, false
	if len(rd.buf) > minReadBuffer {
		rd.buf = nil
	}
	freeReaders.Put(rd)
}
