// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A lone caller spends most of a call on being woken up. The reading goroutine, when it sees one
// call after another and nothing else, therefore lends the reading to the callers, and ends. A
// caller then writes its request and reads the socket itself. It handles its own reply and nothing
// else, because anything else may run code of others: for that a new goroutine takes the reading
// over, with what has been read. So it does when others have calls open, when the caller's context
// could end while it sleeps, and when no call came for a moment, so that an idle connection is
// watched.
//
// One caller, two processes on two busy processors, medians of alternating runs: by a goroutine
// 38.6 µs for each call and 44 µs of processor time of both sides; by the caller 33 and 38; with
// polling (see poll.go) 20.7 and 20.7; a loop over a socket 22 and 28.

const (
	// lendAfter is how many replies to lone callers have to come in a row.
	lendAfter = 16
	// lentTime is how long nobody reads, more or less, when no call comes. A timer for each call
	// would cost more than it is worth; this one is set once for all calls of that time.
	lentTime = 5 * time.Millisecond
	// glanceTime is after how long without a reader the next caller looks whether the connection
	// has ended, before it sends.
	glanceTime = int64(200 * time.Microsecond)
)

// lone is how a connection is read for a lone caller.
type lone struct {
	lent   atomic.Pointer[reader] // nobody reads, and who takes this out may; changed to a reader with Conn.mu held
	left   atomic.Int64           // when it was put there
	watch  *time.Timer            // ends the lending; guarded by Conn.mu, as are opened and armed
	opened uint64                 // requests that had been sent when that was looked at last

	// Of whoever reads.
	polling
	row    int32  // how many batches in a row were the reply to a caller
	frames uint64 // that had come when the last batch ended
	single bool   // the last batch was the reply to a caller

	armed  bool
	roused bool // asleep is woken up by a deadline of the socket, which is to be taken away again
	mu     sync.Mutex
	asleep *waiter // who sleeps in a read
}

// lend leaves the reading to callers, if it is time to. The caller is the reading goroutine, which
// ends then.
func (rd *reader) lend() bool {
	c := rd.c
	l := &c.lone
	if c.socket == nil {
		return false
	}
	frames := c.count.framesIn.Load()
	if frames != l.frames+1 {
		l.brisk, l.row = 0, 0
	} else if l.brisk++; l.single {
		l.row++
	} else {
		l.row = 0
	}
	l.frames, l.single = frames, false
	if l.row < lendAfter || rd.r < rd.w || rd.piece.left > 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lendLocked(rd)
}

// sawCaller takes note of a reply to a caller that waits for it, and could have read it.
func (l *lone) sawCaller(w *waiter) {
	l.single = !w.bound || l.brisk >= l.need
}

// lendLocked leaves the reading to the next caller, if only a call can bring something to read, or
// else the end of the connection.
func (c *Conn) lendLocked(rd *reader) bool {
	if c.open > 0 || c.inOpen > 0 || c.err != nil || c.drained != nil || c.draining.Load() || c.lying.tired {
		return false
	}
	l := &c.lone
	l.left.Store(rd.now())
	l.lent.Store(rd)
	if !l.armed {
		l.armed, l.opened = true, c.opened
		if l.watch == nil {
			l.watch = time.AfterFunc(lentTime, c.watchLent)
		} else {
			l.watch.Reset(lentTime)
		}
	}
	return true
}

// watchLent has a goroutine read again when no call has come for a while.
func (c *Conn) watchLent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.lone
	if l.armed = l.opened != c.opened; l.armed {
		l.opened = c.opened
		l.watch.Reset(lentTime)
		return
	}
	c.reclaim()
}

// reclaim has a goroutine read again, if nobody does.
func (c *Conn) reclaim() {
	if rd := c.borrow(); rd != nil {
		rd.resume()
	}
}

// borrow returns the reader that is lent, for the caller to read with, or nil.
func (c *Conn) borrow() *reader {
	rd := c.lone.lent.Load()
	if rd == nil || !c.lone.lent.CompareAndSwap(rd, nil) {
		return nil
	}
	if rd == nobody {
		rd = takeReader(c)
		c.reader.Store(rd)
	}
	return rd
}

// giveBackLocked ends a caller's reading.
func (rd *reader) giveBackLocked() {
	if !rd.c.lendLocked(rd) {
		rd.resume()
	}
}

// resume gives the reading to a goroutine.
func (rd *reader) resume() {
	l := &rd.c.lone
	l.brisk, l.row, rd.clock, rd.arrived = 0, 0, 0, 0
	theLookout.rise(rd.c)
	go rd.loop()
}

// glance is for a caller that is about to send, on a connection that nobody may have been reading:
// when it has ended, the call must fail as one that was not sent.
func (c *Conn) glance() {
	l := &c.lone
	if l.lent.Load() == nil || c.now()-l.left.Load() < glanceTime {
		return
	}
	rd := c.borrow()
	if rd == nil {
		return
	}
	rd.makeRoom()
	n, err := readSocket(c.socket, rd.buf[rd.w:], 0, false)
	rd.clock, rd.arrived = 0, 0
	rd.got(n)
	if rd.err = err; n > 0 || err != nil {
		rd.resume()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // that is tire's
			<-c.Ended() // the goroutine sees to that, and may run code of others
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rd.giveBackLocked()
}

// readLone reads the reply to call id, if the reading is lent. When it returns false, w is told how
// the call ended, as by any reader.
func (c *Conn) readLone(w *waiter, id uint32) bool {
	rd := c.borrow()
	if rd == nil {
		return false
	}
	for !rd.isReply(id) {
		if !rd.readMore(w, id) {
			rd.resume()
			return false
		}
	}
	if !w.id.CompareAndSwap(id, 0) { // somebody has ended the call in another way
		rd.resume()
		return false
	}
	w.buf = append(w.buf[:0], rd.buf[rd.r:rd.w]...)
	w.answer.At = time.Duration(rd.arrival())
	rd.r, rd.w = 0, 0
	c.count.framesIn.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slotLocked(id); s != nil { // else the connection has ended
		c.freeSlotLocked(s)
	}
	c.restLocked()
	rd.giveBackLocked()
	return true
}

// readMore reads more of the reply to call id, and reports whether it should go on.
func (rd *reader) readMore(w *waiter, id uint32) bool {
	c := rd.c
	l := &c.lone
	if w.id.Load() != id || !rd.awaits(id) {
		return false
	}
	rd.makeRoom()
	start := c.now()
	n, err := l.look(c.socket, start, c.cfg.Polling, rd.buf[rd.w:])
	if n == 0 && err == nil {
		if w.bound {
			return false
		}
		n, err = c.sleepIn(w, id, rd.buf[rd.w:])
	}
	rd.clock = c.now()
	rd.arrived = rd.clock
	if l.waited(rd.clock-start, c.cfg.Polling) {
		l.brisk++
	}
	rd.err = err
	rd.got(n)
	return err == nil
}

// sleepIn reads for w, whom fail wakes up. It returns 0 and no error when that has happened.
func (c *Conn) sleepIn(w *waiter, id uint32, buf []byte) (n int, err error) {
	l := &c.lone
	l.mu.Lock()
	if w.id.Load() != id {
		l.mu.Unlock()
		return 0, nil
	}
	l.asleep = w
	l.mu.Unlock()
	n, err = c.nc.Read(buf)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asleep = nil
	if !l.roused {
		return n, err
	}
	l.roused = false
	var next time.Time
	if c.over.Load() {
		next = time.Now().Add(partingTime / 2) // what part wanted
	}
	if late := c.nc.SetReadDeadline(next); late == nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, err
}

// rouse wakes w up if it sleeps in a read.
func (c *Conn) rouse(w *waiter) {
	l := &c.lone
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asleep == w {
		l.roused = true
		_ = c.nc.SetReadDeadline(past) // it fails when the socket is closed, which wakes it up too
	}
}

var past = time.Unix(1, 0)

// readUntil bounds what is read of a connection that has ended.
func (c *Conn) readUntil(t time.Time) error {
	l := &c.lone
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asleep != nil { // a deadline that is over must not be lifted before it has noticed; it sets this one then
		l.roused, t = true, past
	}
	return c.readableUntil(t)
}

// awaits reports whether nothing has come but the beginning of the reply to call id, if that.
func (rd *reader) awaits(id uint32) bool {
	n := rd.w - rd.r
	if n < wire.HeaderSize {
		return true
	}
	h := wire.ParseHeader(rd.buf[rd.r:])
	return h.Type == wire.Reply && h.ID == id && h.Flags&wire.More == 0 && h.Len <= maxFrame && n <= wire.HeaderSize+int(h.Len)
}

// isReply reports whether the reply to call id has come, and nothing else.
func (rd *reader) isReply(id uint32) bool {
	n := rd.w - rd.r
	return n >= wire.HeaderSize && rd.awaits(id) && n == wire.HeaderSize+int(wire.ParseHeader(rd.buf[rd.r:]).Len)
}
