// SPDX-License-Identifier: Apache-2.0

//go:build !indirect

package parker

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Possible says whether connections can be parked.
const Possible = true

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
	conns []Member
	free  []int32
}

// Watch makes the parker wake m once, when data arrives or the peer closes. It returns false if
// the set cannot watch m.
func (l *Parker) Watch(m Member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.sockets
	op := syscall.EPOLL_CTL_MOD
	if m.ParkState().index == 0 {
		if s.n == 0 && !l.openLocked() {
			return false
		}
		op = syscall.EPOLL_CTL_ADD
		s.addLocked(m)
	}
	const what = syscall.EPOLLIN | syscall.EPOLLRDHUP | syscall.EPOLLONESHOT
	event := syscall.EpollEvent{Events: what, Fd: m.ParkState().index - 1}
	var err error
	closed := m.Socket().Control(func(fd uintptr) { err = syscall.EpollCtl(s.fd, op, int(fd), &event) })
	if closed != nil || err != nil {
		if op == syscall.EPOLL_CTL_ADD {
			s.removeLocked(m)
		}
		return false
	}
	l.removeAwakeLocked(m)
	if l.period == 0 {
		l.scheduleLocked()
	}
	return true
}

// openLocked creates the set and starts its goroutine.
func (l *Parker) openLocked() bool {
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

func (s *socketSet) addLocked(m Member) {
	s.n++
	if last := len(s.free) - 1; last >= 0 {
		m.ParkState().index = s.free[last] + 1
		s.free = s.free[:last]
		s.conns[m.ParkState().index-1] = m
		return
	}
	s.conns = append(s.conns, m)
	m.ParkState().index = int32(len(s.conns)) //nolint:gosec // as many as there are sockets
}

// removeLocked removes a connection whose socket is closed, or could not be added.
func (s *socketSet) removeLocked(m Member) {
	s.conns[m.ParkState().index-1] = nil
	s.free = append(s.free, m.ParkState().index-1)
	m.ParkState().index = 0
	if s.n--; s.n == 0 {
		_ = s.file.Close() // run ends; the set is empty
		*s = socketSet{}
	}
}

// sweepLocked returns the parked connections whose sockets are closed, and the connections that
// need housekeeping.
func (s *socketSet) sweepLocked(now int64) (closed, due []Member) {
	for range min(len(s.conns), mostSwept) {
		s.next = (s.next + 1) % len(s.conns)
		m := s.conns[s.next]
		if m == nil {
			continue
		}
		if m.ParkState().due != 0 && now >= m.ParkState().due {
			m.ParkState().due = 0
			due = append(due, m)
		}
		if m.IsParked() && m.Socket().Control(func(uintptr) {}) != nil {
			closed = append(closed, m)
		}
	}
	return closed, due
}

// run wakes the connections that have events. It ends when the set is closed.
func (l *Parker) run(set syscall.RawConn) {
	var events [64]syscall.EpollEvent
	var woken [len(events)]Member
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
		for i, m := range woken[:max(n, 0)] {
			if m != nil {
				m.Wake()
			}
			woken[i] = nil
		}
	}
}
