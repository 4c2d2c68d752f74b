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
	"github.com/yodel-rpc/yodel/middleware/internal/patience"
)

// A member is one of a client's endpoints. Its calls update the counters, and the next sweep takes
// them.
type member struct {
	ep    *yodel.Endpoint
	born  time.Time
	fleet atomic.Pointer[fleet] // nil before the first call
	mask  atomic.Uint32         // one of mask+1 calls is measured
	phase atomic.Int32
	row   atomic.Int32 // failures in a row
	usual patience.Times

	_        [64]byte // the following fields change with each call
	begun    atomic.Int64
	ended    atomic.Int64  // calls that ended in the epoch in which they began
	times    atomic.Uint64 // of good answers: their number, and below it the sum of the logarithms of their durations
	slow     atomic.Int64  // good answers that were slow
	answered atomic.Int64  // errors that are not the server's fault
	failed   atomic.Int64
	late     atomic.Int64
	_        [64]byte

	epoch atomic.Int32 // grows after each ejection: calls of earlier epochs are never overdue
	asked atomic.Int32 // state of the ping
	tried atomic.Bool  // whether the current call of the trial has ended

	mu     sync.Mutex // guards phase
	free   bool       // in a trial: whether the next call may be the one that tries the endpoint
	judged judged
}

// These are the phases of a member.
const (
	in    int32 = iota // in use
	out                // ejected
	trial              // after an ejection: it gets one call at a time
)

type memberKey struct{}

func memberOf(ep *yodel.Endpoint) *member {
	return ep.State(memberKey{}, func() any { return &member{ep: ep, born: time.Now()} }).(*member) //nolint:forcetypeassert // nobody else has the key
}

// clock returns the time since the member was created. It costs half as much as time.Now.
func (m *member) clock() time.Duration { return time.Since(m.born) }

var errGone = errors.New("something below panicked")

// measure makes a call and counts its outcome.
func (m *member) measure(ctx context.Context, p *Options, call *yodel.Call, next yodel.Handler) (err error) {
	f := m.fleet.Load()
	if f == nil || !f.running.Load() || f.options.Load() != p {
		f = m.join(p, call)
	}
	trying := m.phase.Load() == trial && m.try(call)
	m.begun.Add(1)
	epoch := m.epoch.Load() // after begun.Add: a call between two epochs is then not waited for
	began := m.clock()
	err = errGone
	defer func() { // deferred, because a codec may panic
		m.end(ctx, p, f, call, began, err)
		if epoch == m.epoch.Load() {
			m.ended.Add(1)
		}
		if trying {
			m.tried.Store(true)
		}
	}()
	return next(ctx, call)
}

// end counts the outcome of a call that began at the given time.
func (m *member) end(ctx context.Context, p *Options, f *fleet, call *yodel.Call, began time.Duration, err error) {
	now := m.clock()
	took := now - began
	if err == nil {
		if m.row.Load() != 0 {
			m.row.Store(0)
		}
		m.times.Add(timesOne | logOf(took))
		if m.usual.Measure() {
			m.usual.Succeeded(call.Method, now, took)
		}
		if int64(took) > f.slow.Load() {
			m.slow.Add(1)
		}
		return
	}
	code := yodel.CodeOf(err)
	switch {
	case errors.Is(err, errGone):
	// A call that was not processed before its deadline has waited for a connection.
	case code == yodel.Canceled, code == yodel.DeadlineExceeded && yodel.NotProcessed(err):
		if int64(took) > f.usual.Load() && !m.usual.Impatient(call.Method, now, took) {
			m.late.Add(1)
		}
	case own(err):
	case patience.AtDeadline(ctx, call, err) && m.usual.Impatient(call.Method, now, took):
	case p.Failure(err):
		m.failed.Add(1)
		m.count(p, f, err)
	default:
		m.answered.Add(1)
		m.row.Store(0)
	}
}

// impatient reports whether a call ended before good answers of its method usually come.
func (m *member) impatient(call *yodel.Call, began time.Duration) bool {
	now, took := m.clock(), unmeasured
	if began != unmeasured {
		took = now - began
	}
	return m.usual.Impatient(call.Method, now, took)
}

// unmeasured handles the end of a call that is not measured. Only failures in a row count.
func (m *member) unmeasured(ctx context.Context, p *Options, call *yodel.Call, began time.Duration, err error) {
	if call.OneWay || strings.HasPrefix(call.Method, "yodel.") {
		return
	}
	switch {
	case err == nil:
		m.row.Store(0)
	case yodel.CodeOf(err) == yodel.Canceled || own(err):
	case patience.AtDeadline(ctx, call, err) && m.impatient(call, began):
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

// count counts a failure in a row. It starts a sweep when there are enough.
func (m *member) count(p *Options, f *fleet, err error) {
	if !certain(err) || p.Errors < 0 {
		return
	}
	if n := m.row.Add(1); int(n)%p.Errors == 0 {
		select {
		case f.hurry <- struct{}{}:
		default: // a sweep has been requested already
		}
	}
}

// try reports whether a call is the one that tries the endpoint. If it is, the endpoint is not
// ready until the call has ended, so that the balancer picks other endpoints.
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

// Durations are stored as binary logarithms of their nanoseconds, in steps of 1/256.
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

// timeOf returns the duration whose logarithm is about log.
func timeOf(log float64) time.Duration {
	octave, rest := math.Modf(log / logSteps)
	return time.Duration(math.Ldexp(1+rest, int(octave)))
}
