// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"sync"
	"time"
)

// A connection on which nothing happens is laid down: the goroutine that reads it ends, and all
// that only calls need goes with it. One lookout for the whole process watches the sockets of those
// that lie (lookout_linux.go), and has a new goroutine read when something comes, be it the end.
// For callers the reading of such a connection is lent, as it is for a lone caller: see lone.go.
//
// Of the 7.7 KiB that an idle connection took, 2.6 were the goroutine's and 1.3 the reader's. The
// first call after that takes about 40 µs longer when both sides lie.

const (
	// firstLook is how soon is looked for connections to lay down after one has been woken up, and
	// seldomLook how often it is when none was for a while.
	firstLook, seldomLook = 50 * time.Millisecond, time.Second
	// looks bounds how many connections are looked at each time: no more than 0.2 ms.
	looks = 2048
	// quietTime is how long nothing has come or gone on one that is laid down, and longQuietTime
	// the same when there have been calls since it was laid down last: more may follow.
	quietTime     = 50 * time.Millisecond
	longQuietTime = time.Second
	// sweeps is how many sockets are looked at each time: when they are more, what is due with them
	// is later than seldomLook.
	sweeps = 8192
	// patience is how far away must be what a connection that lies has to do by itself, to be left
	// to the lookout.
	patience = 10 * time.Second
)

// A lookout lays connections down, and sees what comes on those that lie.
type lookout struct {
	mu     sync.Mutex
	awake  []*Conn // that can be laid down
	turn   int     // whose turn it is to be looked at
	timer  *time.Timer
	period time.Duration // until timer fires; 0 when it is not set
	busy   bool          // it looks, and sets the timer when it has
	batch  []*Conn       // of look

	sockets sockets // of connections that lie, or have lain
}

// theLookout is the only one: a client has few connections, and a process may have many clients.
var theLookout lookout

// lying is what the lookout knows of a connection.
type lying struct {
	awake  int32 // 1 + index in lookout.awake, 0 when it is not there; guarded by lookout.mu, as are the next two
	socket int32 // the same in its sockets
	due    int64 // when the connection has something to do, or 0

	// Of lookout.look.
	since  int64  // when that had changed
	frames uint32 // that had come, and writes, when that was looked at last

	requests uint32 // that there had been when it was laid down; guarded by Conn.mu, as is tired
	tired    bool   // its read has been interrupted so that it can be laid down
}

// rise has a connection looked at from now on, until it is laid down.
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

// soonLocked has the timer fire within firstLook.
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

// dropLocked takes a connection off the list of those that are awake.
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

// forget is for a connection that has ended.
func (l *lookout) forget(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(c)
	if c.lying.socket != 0 {
		l.sockets.removeLocked(c)
	}
}

// look lays down what is quiet, and wakes up connections whose sockets this process has closed: of
// that nothing tells it. The timer may be set again when it has fired already, and then fires while
// this goes on.
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

// care has takeCare called at t, or a bit later, so that the connection needs no timer, which has
// 140 bytes.
func (l *lookout) care(c *Conn, t int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.lying.socket == 0 || t == never {
		return false
	}
	c.lying.due = t
	return true
}

// tire interrupts the read of a connection that has been quiet for long enough, so that it is laid
// down.
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

// restsLocked reports whether only a call can bring something to read, or what the connection does
// by itself.
func (c *Conn) restsLocked() bool {
	written := !c.flushing && (len(c.out) == 0 || !c.preface) // a server's settings wait for the client's preface
	return c.open == 0 && c.inOpen == 0 && len(c.admission) == 0 && written &&
		c.err == nil && c.drained == nil && !c.draining.Load()
}

// requestsLocked is how many there have been, of both sides.
func (c *Conn) requestsLocked() uint32 { return uint32(c.opened + c.received.Load()) } //nolint:gosec // it is only to change

// lieDown is for a reader whose read has failed: it reports whether that was tire's doing, and
// whether the connection is laid down now. The caller is the reading goroutine, which ends then.
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

// dozeOff is for a reader that was woken up: when no call has come but only what the connections do
// by themselves, it is laid down again. It reports whether it is.
func (rd *reader) dozeOff() bool {
	if rd.drowsy--; rd.drowsy > 0 {
		return false // this was the batch before the first read
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lying.requests == c.requestsLocked() && rd.layDownLocked()
}

// layDownLocked lays the connection down, if it rests, and reports whether it lies.
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

// wakeUpAgain takes the deadline away that has interrupted a read.
func (c *Conn) wakeUpAgain() {
	c.lone.mu.Lock()
	defer c.lone.mu.Unlock()
	var next time.Time
	if c.over.Load() {
		next = time.Now().Add(partingTime / 2) // what part wanted
	}
	_ = c.nc.SetReadDeadline(next) // it fails when the socket is closed, as the next read does
}

// nobody is the reader of connections that lie. It does nothing, and is not changed.
var nobody = new(reader)

// freeReaders is for connections that wake up. State goes on counting in them, so that whoever has
// seen one at work for a connection before does not take it for that one's.
var freeReaders = sync.Pool{New: func() any { return new(reader) }}

func takeReader(c *Conn) *reader {
	rd := freeReaders.Get().(*reader) //nolint:forcetypeassert // the pool holds nothing else
	rd.c, rd.drowsy = c, 2
	return rd
}

// giveReader gives up a reader that has handled all that it has read. Memory that calls needed is
// not for connections without.
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

// trimLocked gives away what only calls need.
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
