// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"math"
	"net"
	"sync/atomic"
	"time"
)

// A stage is how far a connection has come on its way to the end. A connection that drains goes
// from one to the next. A connection with a Fault goes to leaving at once.
type stage uint8

const (
	serving   stage = iota
	announced       // GOAWAY says that this side is going to leave: the client opens no more requests
	leaving         // GOAWAY says which request is the last
	shut            // this side sends no more, and reads until the client has closed
)

// lifetime is how a connection ends. Conn.mu guards all of it, except unread.
type lifetime struct {
	stage  stage
	failed bool  // a Fault ends the connection: nothing that arrives counts
	over   bool  // the connection is closed
	err    error // what Serve returns

	lastID uint32      // of the last GOAWAY, which a later one must not exceed (RFC 9113, section 6.8)
	begun  int64       // the first Tick
	now    int64       // of the last Tick
	stale  bool        // the last Tick has parked the connection
	since  int64       // when the stage has begun
	unread atomic.Bool // the reader drops what arrives

	reads    uint64 // Conn.reads when something was last heard
	heardAt  int64
	pinged   bool
	pingedAt int64
	idleFrom int64  // since when no request has begun or was open; 0 before the first look
	last     int64  // the newest request at that time
	written  uint64 // sending.written when a write last got something through
	wroteAt  int64
	data     uint64 // sending.data when no reply was held, or DATA last went out
	dataAt   int64
}

const (
	// goAwayTime is how long the client may take to acknowledge the first GOAWAY of a drain.
	goAwayTime = time.Second
	// lingerTime is how long the client may take to close a connection that this side has shut.
	// Then the last frames have arrived, which closing at once could destroy.
	lingerTime = time.Second
	// lastStream begins a drain, because few numbers of streams are left.
	lastStream = 1 << 30
)

// drainPing and alivePing are the data of this side's PINGs.
var (
	drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}
	alivePing = [8]byte{'a', 'l', 'i', 'v', 'e'}
)

// Drain ends the connection when its requests have ended. The client may begin requests until it
// knows. Those that come later are refused, and the client may send them elsewhere.
func (c *Conn) Drain() {
	c.unpark()
	c.mu.Lock()
	c.drainLocked()
	c.flushAndUnlock()
}

func (c *Conn) drainLocked() {
	if c.life.stage != serving || c.life.over {
		return
	}
	c.life.enter(announced)
	c.goAwayLocked(c.life.lastID, noError, "")
	c.send.out = appendPing(c.send.out, 0, drainPing)
}

// leaveLocked refuses the requests that begin from now on. The reader stores the number of a
// request before it looks at refusing. So it refuses the request, or the GOAWAY includes it.
func (c *Conn) leaveLocked() {
	if c.life.stage >= leaving || c.life.over {
		return
	}
	c.life.enter(leaving)
	c.refusing.Store(true)
	c.goAwayLocked(c.lastID.Load(), noError, "")
}

// goAwayLocked appends GOAWAY.
func (c *Conn) goAwayLocked(last uint32, code errorCode, why string) {
	c.life.lastID = min(last, c.life.lastID)
	c.send.out = appendGoAway(c.send.out, c.life.lastID, code, why)
}

// fail ends the connection because of a Fault of the client.
func (c *Conn) fail(f *Fault) {
	c.mu.Lock()
	if c.life.failed || c.life.over {
		c.mu.Unlock()
		return
	}
	c.life.enter(leaving)
	c.life.failed, c.life.err = true, f
	c.life.unread.Store(true)
	c.refusing.Store(true)
	c.goAwayLocked(c.lastID.Load(), f.code, f.what)
	for s := range c.streams.all {
		s.abortLocked(f)
	}
	c.flushAndUnlock()
}

func (l *lifetime) enter(s stage) {
	if s > l.stage {
		l.stage, l.since = s, l.now
	}
}

// checkLocked shuts a connection that is leaving, when nothing is left to send. A connection that
// cannot close one half is closed by its client, which has GOAWAY, or by Tick.
func (l *lifetime) checkLocked(c *Conn) {
	if l.stage != leaving || l.over || c.send.flushing || len(c.send.out) > 0 || !l.failed && c.open.Load() > 0 {
		return
	}
	l.enter(shut)
	l.unread.Store(true)
	c.send.flushing = true // for ever
	nc, ok := c.nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	c.ended.Go(func() { // TLS may have to wait for the client
		if nc.CloseWrite() != nil {
			c.nc.Close()
		}
	})
}

// Drained reports whether this side has begun to end the connection, because of Drain or because it
// was idle.
func (c *Conn) Drained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.life.stage > serving && !c.life.failed
}

// Tick makes the connection do what is due: it pings a silent client, closes a connection whose
// client is gone or does not read, and drains an idle one. A client does not read if replies wait
// for its windows for twice KeepAlive while no DATA goes out. Now is a reading of any monotonic
// clock in nanoseconds, above 0. Tick returns when it is due again, which is about a second later
// if the connection is in use. Config.Active is called if it is due earlier.
func (c *Conn) Tick(now int64) (next int64) {
	c.ticks.Add(1)
	c.mu.Lock()
	l := &c.life
	// Calls that overlap may come in any order.
	now = max(now, l.now)
	if l.now == 0 { // the first one
		l.begun, l.since, l.heardAt, l.wroteAt, l.dataAt = now, now, now, now, now
	}
	c.earnResetsLocked(resetsPerTick)
	if l.stale { // nothing could be late meanwhile
		l.since, l.wroteAt, l.dataAt = now, now, now
		c.earnResetsLocked(resetsPerTick * int(min((now-l.now)/int64(time.Second), mostResets/resetsPerTick)))
	}
	l.now, l.stale = now, false
	if l.over {
		c.mu.Unlock()
		return math.MaxInt64
	}
	c.workers.trimLocked(false)
	c.send.trimLocked()
	end := c.lateLocked(now)
	c.bodiesLocked(now)
	c.lateRepliesLocked()
	c.idleLocked(now)
	if l.stage == announced && now-l.since >= int64(goAwayTime) {
		c.leaveLocked()
	}
	next = c.parkLocked(now)
	c.flushAndUnlock()
	if end != nil {
		c.end(end)
	}
	return next
}

// parkLocked returns when the next Tick is due. That is later for a connection that is silent and
// holds nothing, so that many of them take no processor time.
func (c *Conn) parkLocked(now int64) (next int64) {
	const soon = int64(time.Second)
	l, w := &c.life, &c.send
	c.parked.Store(true)
	switch {
	case l.stage != serving, !c.settled.Load(), l.pinged, c.open.Load() > 0, c.partial, l.heardAt == now, c.reads.Load() != l.reads:
	case w.flushing, w.soon, len(w.out) > 0, w.spare != nil, len(c.workers.idle) > 0:
	default:
		next = math.MaxInt64
		if quiet := c.quietLocked(); quiet > 0 {
			next = l.heardAt + quiet
		}
		if idle := int64(c.cfg.IdleTimeout); idle > 0 {
			next = min(next, l.idleFrom+idle)
		}
		l.stale = true
		return next
	}
	c.parked.Store(false)
	return now + soon
}

// unpark makes the next Tick due at once.
func (c *Conn) unpark() {
	if c.parked.Load() && c.parked.CompareAndSwap(true, false) {
		c.cfg.Active()
	}
}

// idlePings is how many times KeepAlive a client that holds nothing may be silent before it gets a
// PING. The system looks after connections of TCP, too.
const idlePings = 16

// quietLocked returns how long the client may be silent before it gets a PING, or 0.
func (c *Conn) quietLocked() int64 {
	if c.open.Load() == 0 && !c.partial {
		return idlePings * int64(c.cfg.KeepAlive)
	}
	return int64(c.cfg.KeepAlive)
}

// lateLocked looks for what has taken too long. It returns why the connection ends, if it does.
func (c *Conn) lateLocked(now int64) error {
	l, limit := &c.life, int64(c.cfg.KeepAlive)
	if l.stage == shut && now-l.since >= int64(lingerTime) {
		return net.ErrClosed
	}
	if limit := int64(c.cfg.Handshake); limit > 0 && now-l.begun >= limit && !c.settled.Load() {
		return errNoSettings
	}
	if !c.send.flushing || l.written != c.send.written {
		l.written, l.wroteAt = c.send.written, now
	}
	if c.send.replies == 0 || l.data != c.send.data {
		l.data, l.dataAt = c.send.data, now
	}
	if reads := c.reads.Load(); reads != l.reads || c.send.waiting {
		l.reads, l.heardAt, l.pinged = reads, now, false
	}
	stuck := limit
	if l.failed || limit == 0 && l.stage == leaving {
		stuck = int64(lingerTime)
	}
	switch {
	case stuck > 0 && l.stage != shut && now-l.wroteAt >= 2*stuck:
		return errSilent
	case limit == 0 || l.stage == shut:
	case l.pinged && now-l.pingedAt >= limit, now-l.dataAt >= 2*limit:
		return errSilent
	case now-l.heardAt >= c.quietLocked() && !l.pinged:
		l.pinged, l.pingedAt = true, now
		c.send.out = appendPing(c.send.out, 0, alivePing)
	}
	return nil
}

// bodiesLocked resets the streams whose handlers have waited too long for a whole body.
func (c *Conn) bodiesLocked(now int64) {
	if c.cfg.BodyTimeout <= 0 {
		return
	}
	for s := range c.streams.all {
		switch {
		case s.started || s.state != open:
		case s.begun == 0: // before the first Tick
			s.begun = now
		case now-s.begun >= int64(c.cfg.BodyTimeout):
			s.resetLocked(cancel, errLateBody)
		}
	}
}

// errLateBody is the error of a stream whose body has not arrived in Config.BodyTimeout.
var errLateBody = errors.New("the body has not arrived in time")

// errSilent is the error of a connection whose client is gone, and errNoSettings of one whose
// client has sent no SETTINGS in time.
var (
	errSilent     error = timeout("the client does not acknowledge a PING, or does not read")
	errNoSettings error = timeout("the client has sent no SETTINGS in time")
)

// A timeout is a net.Error.
type timeout string

func (t timeout) Error() string { return string(t) }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return false }

// idleLocked drains a connection that has had no request for too long.
func (c *Conn) idleLocked(now int64) {
	l := &c.life
	switch last := int64(c.lastID.Load()); {
	case last >= lastStream:
		c.drainLocked()
	case c.cfg.IdleTimeout == 0:
	case c.open.Load() > 0 || last != l.last:
		l.idleFrom, l.last = now, last
	case l.idleFrom == 0:
		l.idleFrom = now
	case now-l.idleFrom >= int64(c.cfg.IdleTimeout):
		c.drainLocked()
	}
}

// pong takes the acknowledgment of a PING of this side.
func (c *Conn) pong(data []byte) {
	if string(data) != string(drainPing[:]) {
		return
	}
	c.mu.Lock()
	if c.life.stage == announced {
		c.leaveLocked()
	}
	c.mu.Unlock()
}
