// SPDX-License-Identifier: Apache-2.0

// Package parker lets idle connections do without a goroutine. A connection that has no data to
// read ends its reader, and asks the Parker to wake it when data arrives or the peer closes. One
// goroutine watches the sockets of all parked connections, and one timer finds connections that
// have become idle. The package knows sockets only: a Member stands for a connection, and decides
// whether it is idle.
package parker

import (
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/socket"
)

const (
	// shortPeriod is the time from the moment a connection wakes up to the next check for idle
	// connections. While no connection wakes up and one run checks all, the time between two checks
	// doubles, up to longPeriod.
	shortPeriod, longPeriod = 50 * time.Millisecond, time.Second
	// mostChecked bounds the connections that one run of ParkIdle checks, so that the run takes at
	// most 0.2 ms.
	mostChecked = 2048
	// mostSwept bounds the sockets that one run of ParkIdle checks. With more sockets, housekeeping
	// of parked connections can be later than longPeriod.
	mostSwept = 8192
)

// A Member is a connection that can be parked. The Parker calls ParkState, Socket and IsParked with
// a lock, so they must not take one. It calls the other methods without a lock.
type Member interface {
	ParkState() *State   // what the Parker knows of the Member; always the same
	Socket() socket.Conn // does not change
	IsParked() bool
	CheckIdle() // makes the reader park the connection, if it is idle
	Wake()      // starts a reader, unless there is one
	Housekeep() // see HousekeepAt
}

// State is what a Parker keeps of a Member, which embeds it. The zero value is ready.
type State struct {
	awake int32 // 1 + index in Parker.awake, or 0
	index int32 // 1 + index in Parker.sockets, or 0
	due   int64 // when the connection needs housekeeping, or 0
}

// A Parker finds idle members, and watches the sockets of parked ones. Its methods may be called
// concurrently, also with a lock of the member held.
type Parker struct {
	Now func() int64 // the clock of HousekeepAt, in nanoseconds; does not change

	// Mu guards all fields below, except that the timer goroutine that has set busy owns batch. No
	// method of a Member is called with it, except those that return something of the Member.
	mu     sync.Mutex
	awake  []Member // connections that can be parked
	next   int      // index of the next connection to check
	timer  *time.Timer
	period time.Duration // the time for which timer is set; 0 when it is not set
	busy   bool          // ParkIdle runs, and sets the timer when it is done
	batch  []Member      // the connections that ParkIdle checks

	sockets socketSet // the sockets of connections that are parked, or were before
}

// Add makes the parker check a connection until it is parked.
func (l *Parker) Add(m Member) {
	if !Possible || !m.Socket().Exists() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.ParkState().awake != 0 {
		return
	}
	l.awake = append(l.awake, m)
	m.ParkState().awake = int32(len(l.awake)) //nolint:gosec // as many as there are sockets
	l.scheduleLocked()
}

// scheduleLocked makes the timer fire within shortPeriod.
func (l *Parker) scheduleLocked() {
	switch {
	case l.busy:
	case l.timer == nil:
		l.timer = time.AfterFunc(shortPeriod, l.ParkIdle)
	case l.period == 0 || l.period > shortPeriod:
		l.timer.Reset(shortPeriod)
	}
	l.period = shortPeriod
}

// removeAwakeLocked removes a connection from awake.
func (l *Parker) removeAwakeLocked(m Member) {
	if m.ParkState().awake == 0 {
		return
	}
	i, last := m.ParkState().awake-1, len(l.awake)-1
	l.awake[i] = l.awake[last]
	l.awake[i].ParkState().awake = i + 1
	l.awake[last] = nil
	l.awake = l.awake[:last]
	m.ParkState().awake = 0
}

// Remove removes a connection that has ended.
func (l *Parker) Remove(m Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeAwakeLocked(m)
	if m.ParkState().index != 0 {
		l.sockets.removeLocked(m)
	}
}

// ParkIdle makes idle connections be parked. The timer calls it. It also wakes parked connections
// whose sockets this process has closed, because no event reports that. The timer can be reset
// after it has fired, so ParkIdle can be called while another call of it runs, and then does
// nothing.
func (l *Parker) ParkIdle() {
	l.mu.Lock()
	if l.busy {
		l.mu.Unlock()
		return
	}
	l.busy = true
	if len(l.awake) <= mostChecked { // else many wait for their turn
		l.period = min(2*l.period, longPeriod)
	}
	l.batch = l.batch[:0]
	for range min(len(l.awake), mostChecked) {
		l.next = (l.next + 1) % len(l.awake)
		l.batch = append(l.batch, l.awake[l.next])
	}
	l.mu.Unlock()
	for _, m := range l.batch {
		m.CheckIdle()
	}
	clear(l.batch)
	l.mu.Lock()
	closed, due := l.sockets.sweepLocked(l.Now())
	if l.busy = false; len(l.awake) == 0 && l.sockets.n == 0 {
		l.period = 0
	} else {
		l.timer.Reset(l.period)
	}
	l.mu.Unlock()
	for _, m := range closed {
		m.Wake()
	}
	for _, m := range due {
		m.Housekeep()
	}
}

// HousekeepAt makes ParkIdle call housekeep at t or a little later, so that a parked connection
// needs no timer. A timer takes 140 bytes.
func (l *Parker) HousekeepAt(m Member, t int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.ParkState().index == 0 || t == monotime.Never {
		return false
	}
	m.ParkState().due = t
	return true
}

// Watched returns how many sockets are watched. Busy says that ParkIdle runs.
func (l *Parker) Watched() (n int, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sockets.n, l.busy
}
