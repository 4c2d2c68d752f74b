// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Being woken up takes longer than all else that a short call needs. Whoever reads a connection
// therefore looks again and again for a while before it sleeps, when what it waits for has been
// coming that soon. It seldom does so for nothing: batches of one frame each must have come fast
// many times in a row, looking in vain costs credit, and who has none left needs twice as many. An
// idle connection looks once and then sleeps, because after a longer wait all begins again: 10
// connections that had just been busy took 0.15 ms of processor time in a second without calls,
// with polling and without.

const (
	// briskTime is how soon the next batch must come, when there is no nap: looking for it pays
	// then, or would if the peer did so too. A wake-up is in that.
	briskTime  = int64(100 * time.Microsecond)
	leastBrisk = 16 // batches in a row
	mostBrisk  = 1024
	fullCredit = 32
	vainCost   = 4
	// napTime is how long a thread that may not look again and again sleeps until something comes,
	// before it sleeps as all do. Going to sleep by way of the Go scheduler and coming back takes
	// other threads with it: a lone caller took 44 to 66 µs of processor time of both sides for
	// each call, depending on the machine's load, and 38 to 45 with naps.
	napTime = 300 * time.Microsecond
	// awakeTime is after how long without sleep it is time to. Only a processor that finds nothing
	// to run sees what has come on other connections: when all the others are at work, nothing
	// would be seen for 10 ms.
	awakeTime = int64(time.Millisecond)
)

// polling decides whether to look or to sleep. It belongs to whoever reads.
type polling struct {
	brisk  int32 // batches of one frame that came soon, in a row
	need   int32 // how many of them it takes
	credit int32
	slept  int64
}

func (p *polling) init() {
	p.need, p.credit = leastBrisk, fullCredit
	processors.Store(int32(runtime.GOMAXPROCS(0))) //nolint:gosec // few
}

// look reads what comes within limit, with a nap when that is 0. It returns 0 and no error when it
// is time to sleep.
func (p *polling) look(socket syscall.RawConn, now int64, limit time.Duration, buf []byte) (n int, err error) {
	if p.brisk < p.need || limit == 0 && !napping {
		return 0, nil
	}
	if now-p.slept > awakeTime {
		p.slept = now
		return 0, nil
	}
	if pollers.Add(1) >= processors.Load() {
		pollers.Add(-1)
		return 0, nil
	}
	n, err = readSocket(socket, buf, limit, limit == 0)
	pollers.Add(-1)
	if n > 0 || err != nil {
		if p.credit = min(p.credit+1, fullCredit); p.credit == fullCredit {
			p.need = leastBrisk
		}
		return n, err
	}
	if p.credit -= vainCost; p.credit <= 0 {
		p.need, p.brisk, p.credit = min(2*p.need, mostBrisk), 0, fullCredit/2
	}
	return 0, nil
}

// waited takes note of how long a batch took to come, and reports whether that was soon.
func (p *polling) waited(t int64, limit time.Duration) bool {
	soon := briskTime
	if limit == 0 {
		soon = int64(napTime)
	}
	if t > soon {
		p.brisk = 0
	}
	return t <= soon
}

// Pollers take processors from others, so there is at least one processor more than pollers: none
// with a single one.
var (
	pollers    atomic.Int32 // at work
	processors atomic.Int32 // when the newest connection was made
)
