// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Waking a goroutine takes longer than everything else that a short call needs. So a goroutine that
// reads a connection polls for a while before it sleeps, if recent data arrived within that time.
// Several rules keep it from polling in vain. It polls only after many batches of one frame each
// have arrived quickly in a row. A poll in vain costs credit, and without credit a connection needs
// twice as many quick batches. After a longer wait the count of quick batches starts again at 0, so
// an idle connection polls once and then sleeps. Measured with 10 connections that had just been
// busy, one second without calls took 0.15 ms of processor time, with and without polling.

const (
	// quickTime is the time within which the next batch must arrive to count as quick, if polling
	// is on. Polling saves time for such a batch, or would save time if the peer polled too.
	// QuickTime includes the time that it takes to wake a goroutine.
	quickTime  = int64(100 * time.Microsecond)
	leastQuick = 16 // batches in a row
	mostQuick  = 1024
	fullCredit = 32
	vainCost   = 4
	// napTime is how long a thread naps when polling is off. A napping thread waits in the system
	// call ppoll for data. If no data arrives, the goroutine then sleeps in the Go scheduler.
	// Sleeping in the scheduler involves other threads: a single caller took 44 to 66 µs of
	// processor time of both sides for each call, depending on the machine's load. With naps it
	// took 38 to 45 µs.
	napTime = 300 * time.Microsecond
	// mostPolling is how long a reader may poll before it must sleep. The Go scheduler checks for
	// data on other connections only on a processor without runnable goroutines. If all processors
	// were polling, data on other connections would wait for 10 ms.
	mostPolling = int64(time.Millisecond)
)

// polling decides whether to poll or to sleep. The goroutine that reads the connection owns it.
type polling struct {
	quick  int32 // batches of one frame that arrived quickly, in a row
	need   int32 // how many of them polling needs
	credit int32
	slept  int64
}

func (p *polling) init() {
	p.need, p.credit = leastQuick, fullCredit
}

// poll polls for at most limit, or naps if limit is 0. It returns 0 and no error when the caller
// should sleep.
func (p *polling) poll(of *pollers, socket syscall.RawConn, now int64, limit time.Duration, buf []byte) (n int, err error) {
	if p.quick < p.need || limit == 0 && !napping {
		return 0, nil
	}
	if now-p.slept > mostPolling {
		p.slept = now
		return 0, nil
	}
	if of.n.Add(1) >= of.processors.Load() {
		of.n.Add(-1)
		return 0, nil
	}
	n, err = readSocket(socket, buf, limit, limit == 0)
	of.n.Add(-1)
	if n > 0 || err != nil {
		if p.credit = min(p.credit+1, fullCredit); p.credit == fullCredit {
			p.need = leastQuick
		}
		return n, err
	}
	if p.credit -= vainCost; p.credit <= 0 {
		p.need, p.quick, p.credit = min(2*p.need, mostQuick), 0, fullCredit/2
	}
	return 0, nil
}

// waited records how long a batch took to arrive, and reports whether it was quick.
func (p *polling) waited(t int64, limit time.Duration) bool {
	soon := quickTime
	if limit == 0 {
		soon = int64(napTime)
	}
	if t > soon {
		p.quick = 0
	}
	return t <= soon
}

// pollers counts the goroutines that poll. They occupy processors that other goroutines need. So
// fewer goroutines may poll than there are processors, and with a single processor no goroutine may
// poll.
type pollers struct {
	n          atomic.Int32 // connections that are being polled
	processors atomic.Int32 // GOMAXPROCS when the newest connection was made
}

// setProcessors notes how many processors there are.
func (p *pollers) setProcessors() {
	p.processors.Store(int32(runtime.GOMAXPROCS(0))) //nolint:gosec // few
}
