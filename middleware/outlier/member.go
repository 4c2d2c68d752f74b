// SPDX-License-Identifier: Apache-2.0

package outlier

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A member is an endpoint among the others. Calls count here what the next sweep takes.
type member struct {
	ep    *yodel.Endpoint
	born  time.Time
	fleet atomic.Pointer[fleet] // nil before the first call
	mask  atomic.Uint32         // which calls are measured: of 1, 2, 4, … one
	phase atomic.Int32
	row   atomic.Int32 // failures in a row

	_        [64]byte // what follows changes with each call
	begun    atomic.Int64
	ended    atomic.Int64  // of those that began in this epoch
	times    atomic.Uint64 // of good answers: how many, above the sum of their logarithms
	slow     atomic.Int64  // those of them that were slow
	answered atomic.Int64  // errors that are not the server's fault
	failed   atomic.Int64
	late     atomic.Int64
	_        [64]byte

	epoch atomic.Int32 // another one after each ejection: what was lost then is not waited for any more
	asked atomic.Int32 // whether it is there
	tried atomic.Bool  // the call that tries has ended

	mu     sync.Mutex // of phase
	free   bool       // in trial: the next call may be the one that tries
	judged judged
}

// The phases of a member.
const (
	in    int32 = iota // with the others
	out                // ejected
	trial              // ejected, and gets one call at a time
)

type memberKey struct{}

func memberOf(ep *yodel.Endpoint) *member {
	return ep.State(memberKey{}, func() any { return &member{ep: ep, born: time.Now()} }).(*member) //nolint:forcetypeassert // nobody else has the key
}

// clock is the time since the member was made: reading it costs half of what the time of day does.
func (m *member) clock() time.Duration { return time.Since(m.born) }

var errGone = errors.New("something below panicked")

// measure carries out a call that counts.
func (m *member) measure(ctx context.Context, p *Options, call *yodel.Call, next yodel.Handler) (err error) {
	f := m.fleet.Load()
	if f == nil || !f.running.Load() || f.options.Load() != p {
		f = m.join(p, call)
	}
	trying := m.phase.Load() == trial && m.try(call)
	m.begun.Add(1)
	epoch := m.epoch.Load() // after that, so that a call that begins between two epochs is rather not waited for
	began := m.clock()
	err = errGone
	defer func() { // also when a codec panics
		m.end(p, f, m.clock()-began, err)
		if epoch == m.epoch.Load() {
			m.ended.Add(1)
		}
		if trying {
			m.tried.Store(true)
		}
	}()
	return next(ctx, call)
}

// end takes note of how a call ended that took so long.
func (m *member) end(p *Options, f *fleet, took time.Duration, err error) {
	if err == nil {
		if m.row.Load() != 0 {
			m.row.Store(0)
		}
		m.times.Add(timesOne | logOf(took))
		if int64(took) > f.slow.Load() {
			m.slow.Add(1)
		}
		return
	}
	code := yodel.CodeOf(err)
	switch {
	case errors.Is(err, errGone):
	// which waited for a connection
	case code == yodel.Canceled, code == yodel.DeadlineExceeded && yodel.NotProcessed(err):
		if int64(took) > f.usual.Load() {
			m.late.Add(1)
		}
	case own(err):
	case p.Failure(err):
		m.failed.Add(1)
		m.count(p, f, err)
	default:
		m.answered.Add(1)
		m.row.Store(0)
	}
}

// unmeasured takes note of the end of a call that is not measured: only failures in a row count.
func (m *member) unmeasured(p *Options, call *yodel.Call, err error) {
	if call.OneWay || strings.HasPrefix(call.Method, "yodel.") {
		return
	}
	switch {
	case err == nil:
		m.row.Store(0)
	case yodel.CodeOf(err) == yodel.Canceled || own(err):
	case p.Failure(err):
		f := m.fleet.Load()
		if f == nil || !f.running.Load() {
			f = m.join(p, call)
		}
		m.count(p, f, err)
	default:
		m.row.Store(0)
	}
}

// count counts failures in a row.
func (m *member) count(p *Options, f *fleet, err error) {
	if !certain(err) || p.Errors < 0 {
		return
	}
	if n := m.row.Add(1); int(n)%p.Errors == 0 {
		select {
		case f.hurry <- struct{}{}:
		default: // somebody else is in a hurry already
		}
	}
}

// try makes a call the one that tries, if there is none yet, and the balancer go elsewhere until it
// has ended.
func (m *member) try(call *yodel.Call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase.Load() != trial || !m.free {
		return false
	}
	m.free = false
	m.ep.SetReady(who, false)
	call.Note(who, "this attempt tries whether "+m.ep.Addr()+", which was ejected, is well again")
	return true
}

// Times are kept as logarithms to the base of 2, in steps of 1/256, of their nanoseconds.
const (
	timesOne  = 1 << 40
	logSteps  = 256
	logsOfSum = timesOne - 1
)

func logOf(d time.Duration) uint64 {
	n := uint64(max(d, 1))
	octave := bits.Len64(n) - 1
	return uint64(octave)*logSteps + (n<<(63-octave)>>55)&(logSteps-1)
}

// timeOf returns the time whose logarithm is near to log.
func timeOf(log float64) time.Duration {
	octave, rest := math.Modf(log / logSteps)
	return time.Duration(math.Ldexp(1+rest, int(octave)))
}
