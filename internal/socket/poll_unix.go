// SPDX-License-Identifier: Apache-2.0

//go:build unix && !indirect

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A poller reads a socket without sleeping in the Go scheduler.
type poller struct {
	try func(fd uintptr) bool // created once: a closure for each read would be an allocation
	buf []byte
	max time.Duration
	nap bool // sleep in ppoll until data arrives, before the first read
	n   int
	err error
}

// freePollers holds pollers for all connections. If each connection had its own poller, it would
// take 100 bytes more, and most connections have nothing to read.
var freePollers = sync.Pool{New: func() any {
	p := new(poller)
	p.try = p.readOn
	return p
}}

// Of returns the socket of nc. It returns none for connections without a socket, and for types that
// may wrap a socket and change Read and Write.
func Of(nc net.Conn) Conn {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return Conn{}
	}
	raw, err := nc.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // both are
	if err != nil {
		return Conn{}
	}
	return Conn{raw}
}

// read polls for at most limit. It returns 0 and no error if nothing arrived. If limit is 0, it
// reads once, after a nap if mayNap is set.
func (c Conn) read(buf []byte, limit time.Duration, mayNap bool) (n int, err error) {
	p := freePollers.Get().(*poller) //nolint:forcetypeassert // the pool holds nothing else
	p.buf, p.max, p.nap, p.n, p.err = buf, limit, mayNap, 0, nil
	if err := c.raw.Read(p.try); err != nil && p.n == 0 && p.err == nil {
		p.err = err
	}
	n, err = p.n, p.err
	p.buf = nil
	freePollers.Put(p)
	return n, err
}

// Receive reads what has arrived at a socket with the descriptor fd. It returns 0 and no error if
// nothing has.
func Receive(fd uintptr, buf []byte) (int, error) {
	for {
		n, err := read(fd, buf)
		switch {
		case n > 0:
			return n, nil
		case n == 0 && err == nil:
			return 0, io.EOF
		case errors.Is(err, syscall.EAGAIN):
			return 0, nil
		case !errors.Is(err, syscall.EINTR):
			return 0, os.NewSyscallError("read", err)
		}
	}
}

const (
	// readsPerYield is how many reads a poller makes before it yields to the process's other
	// goroutines. If there are no runnable goroutines, runtime.Gosched wakes a thread that searches
	// for some. With one yield for each read, the median time of a call was 49 µs in place of 23
	// µs.
	readsPerYield = 16
	// longYield is the least duration of a yield that shows that other goroutines have run
	// meanwhile.
	longYield = 10 * time.Microsecond
)

func (p *poller) readOn(fd uintptr) bool {
	if p.nap && !nap(fd, napTime) {
		return true
	}
	var start time.Time
	for i := 1; ; i++ {
		if p.n, p.err = Receive(fd, p.buf); p.n > 0 || p.err != nil || p.max == 0 {
			return true
		}
		if i == 1 {
			start = time.Now()
		}
		// The peer's process may be waiting for this processor. Without the yield, no data arrived
		// in time on a busy machine.
		yieldProcessor()
		now := time.Since(start)
		if now > p.max {
			return true
		}
		if i%readsPerYield == 0 {
			runtime.Gosched()
			if time.Since(start)-now > longYield {
				return true
			}
		}
	}
}
