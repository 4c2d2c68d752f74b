// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"sync"
	"time"
)

// An idle connection is parked: its reader goroutine ends, and so does all state that only calls
// need. The lookout, one for the whole process, watches the sockets of parked connections
// (lookout_linux.go). It starts a new reader goroutine when data arrives or the connection ends.
// Callers can read from a parked connection too, because its reading is lent, see lone.go.
//
// An idle connection took 7.7 KiB. Parking saves 2.6 KiB for the goroutine and 1.3 KiB for the
// reader. The first call after that takes about 40 µs longer if both sides are parked.

const (
	// firstLook is the time from a connection's wake-up to the next look for idle connections. The
	// interval doubles up to seldomLook while no connection wakes up.
	firstLook, seldomLook = 50 * time.Millisecond, time.Second
	// looks bounds the connections that one look checks: it takes no more than 0.2 ms.
	looks = 2048
	// quietTime is how long a connection must be idle before it is parked. LongQuietTime is the
	// same if there were calls since it was last parked, because more may follow.
	quietTime     = 50 * time.Millisecond
	longQuietTime = time.Second
	// sweeps bounds the sockets that one look checks. With more sockets, housekeeping of parked
	// connections can be later than seldomLook.
	sweeps = 8192
	// patience is how far away the next housekeeping of a parked connection must be, for the
	// lookout to do it in place of a timer.
	patience = 10 * time.Second
)

// A lookout parks idle connections, and watches the sockets of parked ones. Its mu is taken after
// Conn.mu. The timer goroutine that has set busy owns batch. Mu guards all other fields.
type lookout struct {
	mu     sync.Mutex
	awake  []*Conn // connections that can be parked
	turn   int     // index of the next connection to check
	timer  *time.Timer
	period time.Duration // the time for which timer is set; 0 when it is not set
	busy   bool          // look runs, and sets the timer when it is done
	batch  []*Conn       // the connections that look checks

	sockets sockets // the sockets of connections that are parked, or were before
}

// theLookout is the lookout of the process. There is only one, because a client has few
// connections, and a process may have many clients.
var theLookout lookout

// lying is the parking state of a connection.
type lying struct {
	// 1 + index in lookout.awake, or 0 if the connection is not in it. lookout.mu guards awake,
	// socket and due.
	awake  int32
	socket int32 // 1 + index in lookout.sockets, or 0
	due    int64 // when the connection needs housekeeping, or 0

	// Owned by lookout.look.
	since  int64  // when frames last changed
	frames uint32 // frames received plus writes, at the last look

	// requestsLocked when the connection was parked; guarded by Conn.mu, as is tired
	requests uint32
	tired    bool // its read has been interrupted in order to park it
}

// rise makes the lookout check a connection until it is parked.
func (l *lookout) rise(c *Conn) {
	if !sleeping || c.socket == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.lying.awake != 0 {
		return
	}
	l.awake = append(l.awake, c)
	c.lying.awake = int32(len(l.awake)) //nolint:gosec // as many as there are sockets
	l.soonLocked()
}

// soonLocked makes the timer fire within firstLook.
func (l *lookout) soonLocked() {
	switch {
	case l.busy:
	case l.timer == nil:
		l.timer = time.AfterFunc(firstLook, l.look)
	case l.period == 0 || l.period > firstLook:
		l.timer.Reset(firstLook)
	}
	l.period = firstLook
}

// dropLocked removes a connection from awake.
func (l *lookout) dropLocked(c *Conn) {
	if c.lying.awake == 0 {
		return
	}
	i, last := c.lying.awake-1, len(l.awake)-1
	l.awake[i] = l.awake[last]
	l.awake[i].lying.awake = i + 1
	l.awake[last] = nil
	l.awake = l.awake[:last]
	c.lying.awake = 0
}

// forget removes a connection that has ended.
func (l *lookout) forget(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(c)
	if c.lying.socket != 0 {
		l.sockets.removeLocked(c)
	}
}

// look parks idle connections. It also wakes parked connections whose sockets this process has
// closed, because no event reports that. The timer can be reset after it has fired, so look can be
// called while it runs.
func (l *lookout) look() {
	l.mu.Lock()
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.period = min(2*l.period, seldomLook)
	l.batch = l.batch[:0]
	for range min(len(l.awake), looks) {
		l.turn = (l.turn + 1) % len(l.awake)
		l.batch = append(l.batch, l.awake[l.turn])
	}
	l.mu.Unlock()
	for _, c := range l.batch {
		c.tire()
	}
	clear(l.batch)
	l.mu.Lock()
	closed, due := l.sockets.sweepLocked(int64(Clock()))
	if l.busy = false; len(l.awake) == 0 && l.sockets.n == 0 {
		l.period = 0
	} else {
		l.timer.Reset(l.period)
	}
	l.mu.Unlock()
	for _, c := range closed {
		c.reclaim()
	}
	for _, c := range due {
		c.takeCare()
	}
}

// care makes look call takeCare at t or a little later, so that a parked connection needs no timer,
// which takes 140 bytes.
func (l *lookout) care(c *Conn, t int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.lying.socket == 0 || t == never {
		return false
	}
	c.lying.due = t
	return true
}

// tire interrupts the read of a connection that has been idle for long enough, so that its reader
// parks it.
func (c *Conn) tire() {
	now, frames := c.now(), uint32(c.count.framesIn.Load()+c.count.writes.Load()) //nolint:gosec // it is only to change
	if c.lying.frames != frames || c.lying.since == 0 {
		c.lying.frames, c.lying.since = frames, now
	}
	quiet := now - c.lying.since
	if quiet < int64(quietTime) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.lone
	if !c.restsLocked() || l.armed || l.lent.Load() != nil || c.lying.requests != c.requestsLocked() && quiet < int64(longQuietTime) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.lying.tired = c.nc.SetReadDeadline(past) == nil
}

// restsLocked reports whether nothing can arrive but a call of either side, the end of the
// connection, or its housekeeping.
func (c *Conn) restsLocked() bool {
	// a server's settings wait for the client's preface
	written := !c.flushing && (len(c.out) == 0 || !c.preface)
	return c.open == 0 && c.inOpen == 0 && len(c.admission) == 0 && written &&
		c.err == nil && c.drained == nil && !c.draining.Load()
}

// requestsLocked returns the number of requests of both sides.
func (c *Conn) requestsLocked() uint32 { return uint32(c.opened + c.received.Load()) } //nolint:gosec // it is only to change

// lieDown handles a failed read. Tired reports whether tire interrupted the read. Down reports
// whether the connection is parked now, and then the calling reader goroutine must end.
func (rd *reader) lieDown(err error) (tired, down bool) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, false
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lying.tired {
		return false, false
	}
	c.lying.tired = false
	rd.err = nil
	c.wakeUpAgain()
	return true, rd.layDownLocked()
}

// dozeOff parks a connection again if housekeeping woke it and no call has come. It reports whether
// it is parked.
func (rd *reader) dozeOff() bool {
	if rd.drowsy--; rd.drowsy > 0 {
		return false // this was the batch before the first read
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lying.requests == c.requestsLocked() && rd.layDownLocked()
}

// layDownLocked parks the connection, if it is idle, and reports whether it is parked.
func (rd *reader) layDownLocked() bool {
	c := rd.c
	if !c.restsLocked() || c.lying.tired || rd.r < rd.w || rd.piece.left > 0 {
		return false
	}
	c.lying.requests = c.requestsLocked()
	c.trimLocked()
	c.lone.left.Store(c.now())
	c.reader.Store(nobody)
	c.lone.lent.Store(nobody)
	if !theLookout.watch(c) && c.lone.lent.CompareAndSwap(nobody, nil) {
		c.reader.Store(rd)
		theLookout.rise(c)
		return false
	}
	if c.careAt-c.now() > int64(patience) && theLookout.care(c, c.careAt) {
		c.dropTimerLocked()
	}
	giveReader(rd)
	return true
}

// wakeUpAgain removes the read deadline that tire has set.
func (c *Conn) wakeUpAgain() {
	c.lone.mu.Lock()
	defer c.lone.mu.Unlock()
	var next time.Time
	if c.over.Load() {
		next = time.Now().Add(partingTime / 2) // the deadline that part set
	}
	_ = c.nc.SetReadDeadline(next) // it fails when the socket is closed, and so does the next read
}

// nobody stands for the reader of parked connections. It does nothing, and nothing changes it.
var nobody = new(reader)

// freeReaders holds readers for connections that wake up. Their state counter goes on counting, so
// that a goroutine that saw a reader at work for another connection does not mistake it.
var freeReaders = sync.Pool{New: func() any { return new(reader) }}

func takeReader(c *Conn) *reader {
	rd := freeReaders.Get().(*reader) //nolint:forcetypeassert // the pool holds nothing else
	rd.c, rd.drowsy = c, 2
	return rd
}

// giveReader returns a reader without unhandled data to freeReaders. It drops memory that only
// calls need.
func giveReader(rd *reader) {
	rd.c, rd.used, rd.current, rd.err, rd.ahead = nil, nil, nil, nil, nil
	rd.replies, rd.scratch, rd.settled, rd.answer = nil, nil, nil, Answer{}
	rd.r, rd.w, rd.clock, rd.arrived, rd.inline = 0, 0, 0, 0, 0
	rd.expecting, rd.quiet, rd.answered, rd.crowded = false, false, false, false
	if len(rd.buf) > minReadBuffer {
		rd.buf = nil
	}
	freeReaders.Put(rd)
}

// trimLocked drops memory that only calls need.
func (c *Conn) trimLocked() {
	c.spare, c.in, c.lone.watch = nil, sparseTable[*Request]{}, nil
	c.trimMemoryLocked()
	if len(c.out) == 0 {
		c.out = nil
	}
	if c.calls != noCalls {
		c.idleWaiters = nil
	}
}
