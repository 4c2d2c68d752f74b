// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/parker"
	"github.com/yodel-rpc/yodel/internal/readstate"
	"github.com/yodel-rpc/yodel/internal/socket"
)

// An idle connection is parked: its reader goroutine ends, and all memory that only calls need is
// released. The Parker of the Runtime watches the sockets of parked connections. It starts a new
// reader goroutine when data arrives or the connection ends. Callers can read from a parked
// connection too, because they may take the token, see selfread.go.
//
// Without parking, an idle connection takes 7.7 KiB. Parking saves 2.6 KiB for the goroutine and
// 1.3 KiB for the reader. If both sides have parked the connection, the next call takes about 40 µs
// longer.

const (
	// parkAfter is how long a connection must be idle before it is parked. ParkAfterCalls applies
	// in place of parkAfter if there were calls since the connection was last parked, because more
	// calls may follow.
	parkAfter      = 50 * time.Millisecond
	parkAfterCalls = time.Second
	// timerless is the least time until the next housekeeping of a parked connection for which the
	// parker does that housekeeping. For earlier housekeeping the connection uses a timer.
	timerless = 10 * time.Second
)

// parkState is the parking state of a connection.
type parkState struct {
	parker.State
	// Owned by CheckIdle.
	idleSince int64  // when seenWork last changed
	seenWork  uint32 // frames received plus writes, at the last check

	// requestCountLocked when the connection was parked; guarded by Conn.mu
	requests uint32
}

// ParkState implements parker.Member, as the next methods do.
func (re *reading) ParkState() *parker.State { return &re.parking.State }

// Socket returns the socket of the connection.
func (re *reading) Socket() socket.Conn { return re.c.socket }

// IsParked reports whether no goroutine reads the connection.
func (re *reading) IsParked() bool { return re.state.Is(readstate.Parked) }

// Wake starts a reader goroutine.
func (re *reading) Wake() { re.startReader() }

// Housekeep does the housekeeping that the parker does in place of a timer.
func (re *reading) Housekeep() { re.c.lifetime.housekeep() }

// CheckIdle interrupts the read of a connection that has been idle for long enough, so that its
// reader parks it.
func (re *reading) CheckIdle() {
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
	if !re.isIdleLocked() || l.timerSet || !re.state.Is(readstate.ByGoroutine) || re.parking.requests != re.requestCountLocked() && quiet < int64(parkAfterCalls) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if re.change(readstate.ByGoroutine, readstate.Interrupted) && c.nc.SetReadDeadline(past) != nil {
		re.mustChange(readstate.Interrupted, readstate.ByGoroutine)
	}
}

// parkInterrupted handles a failed read. Interrupted reports whether CheckIdle interrupted the
// read. Parked reports whether the connection is parked now. If it is, the calling reader goroutine
// must end.
func (rd *reader) parkInterrupted(err error) (interrupted, parked bool) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, false
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reading.change(readstate.Interrupted, readstate.ByGoroutine) {
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
	if !c.reading.isIdleLocked() || !c.reading.state.Is(readstate.ByGoroutine) || rd.r < rd.w || rd.piece.left > 0 {
		return false
	}
	c.reading.parking.requests = c.reading.requestCountLocked()
	c.reading.trimLocked()
	c.reading.self.offered.Store(c.now())
	c.reading.reader.Store(parkedReader)
	c.reading.mustChange(readstate.ByGoroutine, readstate.Parked)
	if !c.rt.parker.Watch(&c.reading) && c.reading.change(readstate.Parked, readstate.ByGoroutine) {
		c.reading.reader.Store(rd)
		c.rt.parker.Add(&c.reading)
		return false
	}
	if c.lifetime.housekeepAt-c.now() > int64(timerless) && c.rt.parker.HousekeepAt(&c.reading, c.lifetime.housekeepAt) {
		c.lifetime.dropTimerLocked()
	}
	putReader(rd)
	return true
}

// clearInterrupt removes the read deadline that CheckIdle has set.
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
