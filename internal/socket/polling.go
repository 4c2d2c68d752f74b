// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"runtime"
	"sync/atomic"
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

// A Polling decides whether to poll or to sleep. The goroutine that reads the connection owns it.
// Call Init first.
type Polling struct {
	Quick  int32 // batches of one frame that arrived quickly, in a row; the owner counts them
	need   int32 // how many of them polling needs
	credit int32
	slept  int64
}

// Init makes p ready.
func (p *Polling) Init() {
	p.need, p.credit = leastQuick, fullCredit
}

// Pays reports whether enough batches have arrived quickly for a poll.
func (p *Polling) Pays() bool { return p.Quick >= p.need }

// Poll polls for at most limit, or naps if limit is 0. It returns 0 and no error when the caller
// should sleep. Now is the time on a clock of the caller.
func (p *Polling) Poll(of *Pollers, socket Conn, now int64, limit time.Duration, buf []byte) (n int, err error) {
	if !p.Pays() || limit == 0 && !napping {
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
	n, err = socket.read(buf, limit, limit == 0)
	of.n.Add(-1)
	if n > 0 || err != nil {
		if p.credit = min(p.credit+1, fullCredit); p.credit == fullCredit {
			p.need = leastQuick
		}
		return n, err
	}
	if p.credit -= vainCost; p.credit <= 0 {
		p.need, p.Quick, p.credit = min(2*p.need, mostQuick), 0, fullCredit/2
	}
	return 0, nil
}

// Waited records how long a batch took to arrive, and reports whether it was quick.
func (p *Polling) Waited(t int64, limit time.Duration) bool {
	soon := quickTime
	if limit == 0 {
		soon = int64(napTime)
	}
	if t > soon {
		p.Quick = 0
	}
	return t <= soon
}

// Pollers counts the goroutines that poll. They occupy processors that other goroutines need. So
// fewer goroutines may poll than there are processors, and with a single processor no goroutine may
// poll. Call SetProcessors first.
type Pollers struct {
	n          atomic.Int32 // connections that are being polled
	processors atomic.Int32 // GOMAXPROCS when the newest connection was made
}

// SetProcessors notes how many processors there are.
func (p *Pollers) SetProcessors() {
	p.processors.Store(int32(runtime.GOMAXPROCS(0))) //nolint:gosec // few
}

// Count returns how many connections are being polled.
func (p *Pollers) Count() int { return int(p.n.Load()) }
