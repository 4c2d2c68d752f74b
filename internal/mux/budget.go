// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Budget bounds how many requests are open on all connections of a server together, and how many
// bytes these have. Each connection has a share of it, which its peer is told: first by the
// settings, later by Credit frames. The shares follow who needs them. No connection gets more by
// asking for more: those that want more than there is get equal shares.
//
// A share is lowered in two steps. The peer is told, and then pinged: when the pong comes, all that
// the peer sent under the old limit has come too. Only then does the room belong to others, so that
// the sum of all shares never exceeds the total, but for the one request that every connection is
// allowed. Those come on top when there are more connections than the reserve has requests, and
// when Reserve has not been called, or in vain.
//
// Its methods may be called concurrently. Where both are held, Conn.mu comes before Budget.mu.
type Budget struct {
	total, totalBytes int

	dividing sync.Mutex // held by look

	mu      sync.Mutex
	members []*share
	active  []*share      // those to be measured
	granted int           // the sum of all shares, and places
	places  int           // reserved for connections that are being made
	freed   chan struct{} // closed when some has been given back; nil when nobody waits
	turn    int           // whose turn it is to have one more
	timer   *time.Timer
	due     time.Time // when timer fires; zero when it is not set
	measure time.Time // not before this
	changed func()    // for tests: called with mu held when a share has changed
}

// A share is what a connection has of a budget. Guarded by Budget.mu.
type share struct {
	conn        *Conn
	index       int       // in Budget.members
	told        int       // the limit that the peer was told last
	granted     int       // how much of the total is not for others: at least told, and more until the peer has obeyed
	bytes       int       // the same of bytes
	greeted     bool      // the peer has sent its settings, so that it can be told something
	lowering    bool      // the peer has been told a lower limit, and its pong has not come
	lowered     time.Time // when it was told that
	active      bool      // is in Budget.active
	gone        bool      // the connection has ended
	recent      int       // how many requests were open at most, of late
	recentBytes int

	target int  // what it should have
	hungry bool // it used most of what it has
	fixed  bool // while targets are made: what it gets is settled
}

const (
	// measurePeriod is how often it is measured what connections need, while requests are open.
	measurePeriod = 100 * time.Millisecond
	// gather is how long changes in membership gather until the budget is divided again.
	gather = 2 * time.Millisecond
	// reserveTime is how long a new connection waits for others to give something up, until it has
	// one request more than there are.
	reserveTime = time.Second

	// idleShare is that of a connection that needs nothing, at most, while there is enough. What
	// calls of short methods need is hardly seen, because they are not open for long: with 1024,
	// the callers beyond that waited for nothing, and 5000 of them made 106 thousand calls a second
	// instead of 150.
	idleShare   = 8 << 10
	scarceShare = 16       // the same while others need more than there is
	minBytes    = 64 << 10 // of each
	// obeyTime is how long a peer may take to answer the ping behind a lower limit. After that what
	// exceeds the limit is refused, and what the peer does not use is given to others. A peer that
	// is alive answers sooner: see Limits.KeepAlive.
	obeyTime      = 30 * time.Second
	fewestToShare = 4 // below this, one more or less is a difference
)

// NewBudget returns a budget of this many requests and bytes. It needs not be closed: it holds a
// timer only while requests are open.
func NewBudget(open, openBytes int) *Budget {
	return &Budget{total: min(max(open, 1), math.MaxInt/64), totalBytes: min(openBytes, math.MaxInt/64)}
}

// Reserve makes sure that there is something left for a new connection: New, or Unreserve, is to be
// called next. It waits while others give up what they do not need, for a second at most.
func (b *Budget) Reserve() {
	late := time.NewTimer(reserveTime)
	defer late.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.granted >= b.total && len(b.members)+b.places < b.total {
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.soonLocked(gather)
		b.mu.Unlock()
		timeout := false
		select {
		case <-freed:
		case <-late.C:
			timeout = true
		}
		b.mu.Lock()
		if timeout {
			break
		}
	}
	b.places++
	b.grantLocked(1)
}

// Unreserve says that there will be no new connection after all.
func (b *Budget) Unreserve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places--
	b.grantLocked(-1)
}

// Granted returns the sum of the limits of all connections.
func (b *Budget) Granted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.granted
}

// Open returns how many requests are open on all connections, those excepted that run on a reading
// goroutine.
func (b *Budget) Open() (open int) {
	b.mu.Lock()
	conns := make([]*Conn, 0, len(b.members))
	for _, s := range b.members {
		conns = append(conns, s.conn)
	}
	b.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		open += c.inOpen
		c.mu.Unlock()
	}
	return open
}

// reserve is what is kept free for connections that come.
func (b *Budget) reserve() int { return min(max(b.total/16, 1), b.total-1) }

// idle is the share of a connection that needs nothing, when there are n: half of what there is, so
// that the other half is for those that need something.
func (b *Budget) idle(n int) int { return min(max((b.total-b.reserve())/(2*n), 1), idleShare) }

// bytesOf is the limit of bytes that goes with a limit of requests.
func (b *Budget) bytesOf(s *share, told int) int {
	part := int(float64(b.totalBytes) * float64(told) / float64(b.total))
	return min(max(part, minBytes), s.conn.cfg.MaxOpenBytes)
}

// join gives a new connection its first share: generous when there is much.
func (b *Budget) join(c *Conn) *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places > 0 {
		b.places--
		b.grantLocked(-1)
	}
	s := &share{conn: c, index: len(b.members)}
	free := b.total - b.granted - b.reserve()
	s.told = max(min(b.idle(len(b.members)+1), free/2, c.hardLimit()), 1)
	s.granted, s.bytes = s.told, b.bytesOf(s, s.told)
	b.members = append(b.members, s)
	b.grantLocked(s.granted)
	b.soonLocked(gather)
	return s
}

func (b *Budget) grantLocked(n int) {
	b.granted += n
	if n < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	if b.changed != nil {
		b.changed()
	}
}

// greet says that the peer can be told new limits.
func (b *Budget) greet(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.greeted = true
	b.soonLocked(gather)
}

// touch has a connection measured that has requests open again.
func (b *Budget) touch(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.active {
		s.active = true
		b.active = append(b.active, s)
	}
	b.soonLocked(measurePeriod)
}

// settle takes back what a connection neither has been granted any more nor uses, and returns what
// it has now.
func (b *Budget) settle(s *share, open, bytes int) (int, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.lowering {
		return s.granted, s.bytes
	}
	told, toldBytes := s.told, 0
	if !s.gone {
		toldBytes = b.bytesOf(s, told)
	}
	s.bytes = min(s.bytes, max(toldBytes, bytes))
	if now := max(told, open); now < s.granted {
		back := s.granted - now
		s.granted = now
		b.grantLocked(-back)
		b.soonLocked(gather)
	}
	if s.gone && s.granted == 0 {
		b.removeLocked(s)
	}
	return s.granted, s.bytes
}

// obeyed says that the peer has obeyed a lower limit.
func (b *Budget) obeyed(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.lowering = false
}

// leave says that the connection has ended. What it still executes remains its share.
func (b *Budget) leave(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.told, s.lowering, s.gone = 0, false, true
}

func (b *Budget) removeLocked(s *share) {
	last := len(b.members) - 1
	if s.index > last || b.members[s.index] != s {
		return
	}
	b.members[last].index = s.index
	b.members[s.index] = b.members[last]
	b.members[last] = nil
	b.members = b.members[:last]
}

// borrow lets a connection have open requests of so many bytes open, which is more than its share,
// if that leaves the reserve alone. A peer that had not heard of its limit needs that.
func (b *Budget) borrow(s *share, open, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := max(open-s.granted, 0)
	if more > 0 && b.granted+more > b.total-b.reserve() {
		return false
	}
	if bytes > s.bytes {
		used := bytes - s.bytes
		for _, m := range b.members {
			used += m.bytes
		}
		if used > b.totalBytes {
			return false
		}
	}
	s.granted, s.bytes = s.granted+more, max(s.bytes, bytes)
	b.grantLocked(more)
	return true
}

// soonLocked has the budget divided within d.
func (b *Budget) soonLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !b.due.IsZero() && !at.Before(b.due) {
		return
	}
	b.due = at
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.look)
		return
	}
	b.timer.Reset(d)
}

// What a connection does for its budget.

// hardLimit is how many requests of the peer may be open in any case.
func (c *Conn) hardLimit() int { return min(c.cfg.MaxOpen, wire.MaxSlots) }

// joinBudget gives a new connection its share and returns the limits to begin with.
func (c *Conn) joinBudget() (open, bytes int) {
	open, bytes = c.cfg.MaxOpen, c.cfg.MaxOpenBytes
	if c.cfg.Budget != nil {
		c.share = c.cfg.Budget.join(c)
		open, bytes = c.share.granted, c.share.bytes
	}
	c.limit, c.limitBytes = open, bytes
	return open, bytes
}

// usedLocked notes how much is open.
func (c *Conn) usedLocked(open, bytes int) {
	if c.share == nil {
		return
	}
	if open > c.peak {
		if c.peak == 0 {
			c.cfg.Budget.touch(c.share)
		}
		c.peak = open
	}
	c.peakBytes = max(c.peakBytes, bytes)
}

// bearsLocked reports whether the budget bears one more request.
func (c *Conn) bearsLocked(r *Request, open, bytes int) bool {
	if open == 0 || open < c.limit && (bytes == 0 || bytes+r.bytes <= c.limitBytes) {
		return true
	}
	if c.share == nil || open >= initialWindow || c.informed || !c.cfg.Budget.borrow(c.share, open+1, bytes+r.bytes) {
		return false
	}
	if !c.inquired { // the pong says that the peer has its limits, which were sent before
		c.inquired = true
		c.sendPingLocked(wire.Ping, make([]byte, pingSize))
	}
	c.limit, c.limitBytes = max(c.limit, open+1), max(c.limitBytes, bytes+r.bytes)
	return true
}

// settleLocked gives back what is not granted any more and not in use.
func (c *Conn) settleLocked() {
	if c.share == nil {
		return
	}
	// one-way requests have as large a window of their own
	open := max(c.inOpen-c.inNested-len(c.oneWay), len(c.oneWay))
	if c.orphans > 0 {
		open = max(c.inOpen-c.inNested-c.orphans, 0) // orphans have a bound of their own
	}
	c.limit, c.limitBytes = c.cfg.Budget.settle(c.share, open, c.inBytes-c.inNestBytes)
}

// leaveBudgetLocked ends the connection's membership. What it still executes goes on counting.
func (c *Conn) leaveBudgetLocked() {
	if c.share != nil {
		c.cfg.Budget.leave(c.share)
		c.settleLocked()
	}
}

// measure tells the budget what was used.
func (c *Conn) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	open, bytes := c.inOpen-c.inNested, c.inBytes-c.inNestBytes // what is in the window
	c.cfg.Budget.measuredAs(c.share, c.peak, c.peakBytes, open)
	c.peak, c.peakBytes = open, bytes
	c.settleLocked()
}

// tell tells the peer a new limit.
func (c *Conn) tell(ch change) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	w := wire.Window{MaxOpen: uint64(ch.told), MaxOpenBytes: uint64(ch.bytes)}
	c.appendLocked(func(dst []byte) []byte { return wire.AppendCredit(dst, 0, 0, &w) })
	if ch.isLowering {
		seldom := c.seldomLocked()
		seldom.nextPing++
		seldom.lowering = c.nextPing
		c.sendPingLocked(wire.Ping, binary.LittleEndian.AppendUint64(nil, c.nextPing))
	} else {
		c.limit, c.limitBytes = max(c.limit, ch.told), max(c.limitBytes, ch.bytes)
		c.roomChangedLocked()
	}
	c.flushLocked(false)
}

// obeyedLocked handles the pong to ping n: is it the one that lowered the limit?
func (c *Conn) obeyedLocked(n uint64) {
	if c.lowering == n && n != 0 {
		c.lowering = 0
		c.cfg.Budget.obeyed(c.share)
		c.settleLocked()
	}
}

// enforce lowers the limit of a peer that has not answered the ping behind a lower limit for
// obeyTime.
func (c *Conn) enforce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.obeyedLocked(c.lowering)
}
