// SPDX-License-Identifier: Apache-2.0

// Package shares divides a number of open requests, and of their bytes, among the connections of a
// server. It knows no connections and no frames: a Member stands for a connection, and tells its
// peer what the limit is. Only the first of several requests that are open at once, and changes of
// limits, need the Budget. The requests of a busy connection do not.
package shares

import (
	"math"
	"sync"
	"time"
)

// A Budget bounds how many requests are open on all connections of a server, and how many bytes
// they have. Each connection has a share of it. The peer learns its share first from the settings,
// and later from Credit frames. A connection that needs more gets a larger share. A peer gains
// nothing by asking for too much: if the connections together need more than the total, the
// connections that need most get equal shares.
//
// The budget lowers a share in two steps. First it sends the peer the new limit, and then a ping.
// When the pong arrives, everything that the peer sent under the old limit has arrived too. Only
// then does the budget give the freed part to other connections. So the sum of all shares never
// exceeds the total, with one exception: every connection is allowed one request. These single
// requests exceed the total if there are more connections than requests in the reserve, or if
// Reserve was not called or timed out.
//
// The methods of a Budget may be called concurrently.
type Budget struct {
	total, totalBytes int

	dividing sync.Mutex // held by divide; taken before the locks of members

	// guards all fields below, and the fields of every Share; taken after the locks of members
	mu      sync.Mutex
	members []*Share
	active  []*Share // the shares to measure
	granted int      // the sum of all shares and places
	places  int      // reserved for connections that are being set up
	// closed when a connection has given back a part of its share; nil when no goroutine waits
	freed    chan struct{}
	rotation int // decides which connections get one request more when a division leaves a remainder
	timer    *time.Timer
	due      time.Time         // when timer fires; zero when it is not set
	measure  time.Time         // the earliest time of the next measurement
	changed  func(granted int) // see Watch
}

// A Member is a connection with a share. The Budget calls its methods without a lock of its own,
// from one goroutine at a time, except for Open. A Member may call the methods of its Share.
type Member interface {
	// Open returns how many requests of the peer are open.
	Open() int
	// Measure calls Share.Measured.
	Measure()
	// SetLimit sends the peer a new limit. If the limit is lower than the one before, the Member
	// calls Share.Obeyed when the peer can send nothing more under the old one.
	SetLimit(l Limit)
	// Enforce is called if that takes obeyTime. The Member then refuses requests beyond the limit,
	// and calls Share.Obeyed.
	Enforce()
}

// A Limit is how many requests, and how many bytes of them, a peer may have open.
type Limit struct {
	Open, Bytes int
	Lower       bool // than the limit before
}

// A Share is the part of a Budget that a Member has. Budget.mu guards it. Its methods may be called
// concurrently, also with a lock held that the methods of the Member take.
type Share struct {
	budget    *Budget
	member    Member
	most      int // the highest limit that the member may have
	mostBytes int
	index     int // in Budget.members
	sent      int // the limit that the peer was sent last
	// How many requests of the total are set aside for the connection. It is at least sent. After
	// sent was lowered, it is higher until the peer has obeyed.
	granted     int
	bytes       int           // like granted, for bytes
	lowered     time.Duration // when a lower limit was sent, on the clock
	recent      int           // the highest recent number of requests that were open at once
	recentBytes int
	target      int  // the limit that the connection should have
	greeted     bool // the peer has sent its settings, so it can receive limits
	lowering    bool // the peer was sent a lower limit, and its pong has not arrived
	active      bool // the share is in Budget.active
	gone        bool // the connection has ended
	hungry      bool // the connection used most of its limit
	fixed       bool // target is final, in targetsLocked
}

const (
	// measurePeriod is how often the need of connections is measured, while requests are open.
	measurePeriod = 100 * time.Millisecond
	// gather is how long the budget waits after a connection has come or gone before it is divided
	// again. One division then covers several such changes.
	gather = 2 * time.Millisecond
	// reserveTime is how long a new connection waits for other connections to give back a part of
	// their shares. After that the new connection gets one request beyond the total.
	reserveTime = time.Second

	// idleShare bounds the share of an idle connection while the total is enough for all
	// connections. A measurement rarely finds calls of short methods open, so it finds too low a
	// need for them. With an idleShare of 1024, callers beyond the first 1024 waited needlessly:
	// 5000 callers made 106 thousand calls a second instead of 150 thousand.
	idleShare   = 8 << 10
	scarceShare = 16       // like idleShare, while the connections need more than the total
	minBytes    = 64 << 10 // the smallest byte limit of a share
	// obeyTime is how long a peer may take to answer the ping that follows a lower limit. After
	// that, the server refuses requests beyond the limit, and other connections get the part that
	// the peer does not use. A live peer answers sooner: see Limits.KeepAlive.
	obeyTime      = 30 * time.Second
	fewestToShare = 4 // in a share smaller than this, one request more or less matters
)

// New returns a budget of open requests and openBytes bytes. It need not be closed, because it
// holds a timer only while requests are open.
func New(open, openBytes int) *Budget {
	return &Budget{total: min(max(open, 1), math.MaxInt/64), totalBytes: min(openBytes, math.MaxInt/64)}
}

// Reserve reserves one request for a new connection. The caller must then call Join or Unreserve.
// If the budget has no free request, Reserve waits for at most a second for other connections to
// give back a part of their shares.
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

// Unreserve releases a reservation that no connection will use.
func (b *Budget) Unreserve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places--
	b.grantLocked(-1)
}

// Granted returns the sum of the limits of all connections, and of the reservations.
func (b *Budget) Granted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.granted
}

// Open returns how many requests are open on all connections. It does not count requests that run
// on a reader goroutine.
func (b *Budget) Open() (open int) {
	b.mu.Lock()
	members := make([]Member, 0, len(b.members))
	for _, s := range b.members {
		members = append(members, s.member)
	}
	b.mu.Unlock()
	for _, m := range members {
		open += m.Open()
	}
	return open
}

// Total returns how many requests may be open.
func (b *Budget) Total() int { return b.total }

// Members returns how many connections have a share. Awake says that the budget will measure or
// divide by itself.
func (b *Budget) Members() (n int, awake bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.members), !b.due.IsZero()
}

// Watch makes the budget call f with the sum of all shares whenever one has changed. It is for
// tests. F must not call the budget.
func (b *Budget) Watch(f func(granted int)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = f
}

// reserve returns how many requests are kept free for new connections.
func (b *Budget) reserve() int { return min(max(b.total/16, 1), b.total-1) }

// idle returns the share of an idle connection among n connections. Idle shares take at most half
// of the total, so that the other half is for connections in need.
func (b *Budget) idle(n int) int { return min(max((b.total-b.reserve())/(2*n), 1), idleShare) }

// bytesOf returns the limit of bytes that goes with a limit of requests.
func (b *Budget) bytesOf(s *Share, limit int) int {
	part := int(float64(b.totalBytes) * float64(limit) / float64(b.total))
	return min(max(part, minBytes), s.mostBytes)
}

// Join gives a new connection its first share, which is generous when much is free. Most and
// mostBytes bound every limit of the connection. Join also returns the first limit.
func (b *Budget) Join(m Member, most, mostBytes int) (s *Share, first Limit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places > 0 {
		b.places--
		b.grantLocked(-1)
	}
	s = &Share{budget: b, member: m, most: most, mostBytes: mostBytes, index: len(b.members)}
	free := b.total - b.granted - b.reserve()
	s.sent = max(min(b.idle(len(b.members)+1), free/2, most), 1)
	s.granted, s.bytes = s.sent, b.bytesOf(s, s.sent)
	b.members = append(b.members, s)
	b.grantLocked(s.granted)
	b.soonLocked(gather)
	return s, Limit{Open: s.granted, Bytes: s.bytes}
}

func (b *Budget) grantLocked(n int) {
	b.granted += n
	if n < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	if b.changed != nil {
		b.changed(b.granted)
	}
}

// Greet records that the peer can receive new limits.
func (s *Share) Greet() {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	s.greeted = true
	b.soonLocked(gather)
}

// Touch is called when a connection has open requests again. It makes the budget measure that
// connection.
func (s *Share) Touch() {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.active {
		s.active = true
		b.active = append(b.active, s)
	}
	b.soonLocked(measurePeriod)
}

// TakeBack takes back the part of a connection's share that exceeds both its new limit and its open
// requests. It returns the limits that the connection has now.
func (s *Share) TakeBack(open, bytes int) (limit, limitBytes int) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.lowering {
		return s.granted, s.bytes
	}
	limit, limitBytes = s.sent, 0
	if !s.gone {
		limitBytes = b.bytesOf(s, limit)
	}
	s.bytes = min(s.bytes, max(limitBytes, bytes))
	if now := max(limit, open); now < s.granted {
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

// Obeyed records that the peer has obeyed a lower limit.
func (s *Share) Obeyed() {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.lowering = false
}

// Leave records that the connection has ended. The requests that still run keep their part of the
// share until they end.
func (s *Share) Leave() {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.sent, s.lowering, s.gone = 0, false, true
}

func (b *Budget) removeLocked(s *Share) {
	last := len(b.members) - 1
	if s.index > last || b.members[s.index] != s {
		return
	}
	b.members[last].index = s.index
	b.members[s.index] = b.members[last]
	b.members[last] = nil
	b.members = b.members[:last]
}

// Borrow raises a share to open requests and bytes bytes, if the reserve remains untouched. It
// serves a peer that sent more requests before it learned its limit.
func (s *Share) Borrow(open, bytes int) bool {
	b := s.budget
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

// soonLocked makes the timer divide the budget within d.
func (b *Budget) soonLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !b.due.IsZero() && !at.Before(b.due) {
		return
	}
	b.due = at
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.divide)
		return
	}
	b.timer.Reset(d)
}
