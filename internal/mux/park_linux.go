// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// canPark says whether connections can be parked.
const canPark = true

// socketSet is an epoll set of sockets. While the set is not empty, one goroutine watches it. That
// goroutine waits with the poller of the Go runtime, which is possible because the set is itself a
// file. Parker.mu guards the set.
type socketSet struct {
	file *os.File
	fd   int
	n    int
	next int
	// conns has the connection of each socket. Events name connections by index. A socket leaves
	// the set when it is closed. A late event may wake another connection, which does no harm.
	conns []*Conn
	free  []int32
}

// watch makes the parker wake c once, when data arrives or the peer closes. It returns false if
// the set cannot watch c.
func (l *parker) watch(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.sockets
	op := syscall.EPOLL_CTL_MOD
	if c.reading.parking.index == 0 {
		if s.n == 0 && !l.openLocked() {
			return false
		}
		op = syscall.EPOLL_CTL_ADD
		s.addLocked(c)
	}
	const what = syscall.EPOLLIN | syscall.EPOLLRDHUP | syscall.EPOLLONESHOT
	event := syscall.EpollEvent{Events: what, Fd: c.reading.parking.index - 1}
	var err error
	closed := c.socket.Control(func(fd uintptr) { err = syscall.EpollCtl(s.fd, op, int(fd), &event) })
	if closed != nil || err != nil {
		if op == syscall.EPOLL_CTL_ADD {
			s.removeLocked(c)
		}
		return false
	}
	l.removeAwakeLocked(c)
	if l.period == 0 {
		l.scheduleLocked()
	}
	return true
}

// openLocked creates the set and starts its goroutine.
func (l *parker) openLocked() bool {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err = syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd) // the set was never used
		return false
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	// the poller of the Go runtime cannot wait for the set
	if err != nil || file.SetDeadline(time.Time{}) != nil {
		_ = file.Close() // the set was never used
		return false
	}
	l.sockets.file, l.sockets.fd = file, fd
	go l.run(raw)
	return true
}

func (s *socketSet) addLocked(c *Conn) {
	s.n++
	if last := len(s.free) - 1; last >= 0 {
		c.reading.parking.index = s.free[last] + 1
		s.free = s.free[:last]
		s.conns[c.reading.parking.index-1] = c
		return
	}
	s.conns = append(s.conns, c)
	c.reading.parking.index = int32(len(s.conns)) //nolint:gosec // as many as there are sockets
}

// removeLocked removes a connection whose socket is closed, or could not be added.
func (s *socketSet) removeLocked(c *Conn) {
	s.conns[c.reading.parking.index-1] = nil
	s.free = append(s.free, c.reading.parking.index-1)
	c.reading.parking.index = 0
	if s.n--; s.n == 0 {
		_ = s.file.Close() // run ends; the set is empty
		*s = socketSet{}
	}
}

// sweepLocked returns the parked connections whose sockets are closed, and the connections that
// need housekeeping.
func (s *socketSet) sweepLocked(now int64) (closed, due []*Conn) {
	for range min(len(s.conns), mostSwept) {
		s.next = (s.next + 1) % len(s.conns)
		c := s.conns[s.next]
		if c == nil {
			continue
		}
		if c.reading.parking.due != 0 && now >= c.reading.parking.due {
			c.reading.parking.due = 0
			due = append(due, c)
		}
		if c.reading.is(readParked) && c.socket.Control(func(uintptr) {}) != nil {
			closed = append(closed, c)
		}
	}
	return closed, due
}

// run wakes the connections that have events. It ends when the set is closed.
func (l *parker) run(set syscall.RawConn) {
	var events [64]syscall.EpollEvent
	var woken [len(events)]*Conn
	for {
		n := 0
		closed := set.Read(func(fd uintptr) bool {
			var err error
			n, err = syscall.EpollWait(int(fd), events[:], 0)
			return n != 0 || errors.Is(err, syscall.EINTR)
		})
		if closed != nil {
			return
		}
		l.mu.Lock()
		for i := range max(n, 0) {
			woken[i] = nil
			if at := int(events[i].Fd); at < len(l.sockets.conns) {
				woken[i] = l.sockets.conns[at]
			}
		}
		l.mu.Unlock()
		for i, c := range woken[:max(n, 0)] {
			if c != nil {
				c.reading.startReader()
			}
			woken[i] = nil
		}
	}
}
