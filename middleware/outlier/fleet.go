// SPDX-License-Identifier: Apache-2.0

package outlier

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
	"github.com/yodel-rpc/yodel/middleware/internal/spell"
)

// who is the name under which endpoints are made not ready.
const who = "outlier"

const (
	every     = 100 * time.Millisecond // between two sweeps; longer for thousands of endpoints
	everyMore = 50 * time.Microsecond  // added to it for each endpoint
	hurryTime = 10 * time.Millisecond  // at least between two sweeps after failures in a row
	againTime = time.Second            // between two attempts to start the goroutine that sweeps
	idleTime  = 10 * time.Second       // sweeps stop after this time without a call, until the next call

	memory = 500 * time.Millisecond // counts fall to 1/e of their weight within this time,
	few    = 8                      // but not within fewer further calls than this
	doubt  = time.Minute            // suspicion falls to 1/e within this time

	// soonest is the least time in which suspicion grows from zero to certainty, however many bad
	// calls there are. If it were shorter, a short pause of a server, for its garbage collector or
	// for a lost packet, would eject it.
	soonest   = 500 * time.Millisecond
	certainty = 13.8 // natural logarithm of a million: how much likelier the outcomes are if the member is bad

	// A trial begins with a suspicion of certainty minus trialRoom, so that about one bad call
	// ejects the member again. Good calls must lower the suspicion by another trialGood.
	trialRoom = 2.0
	trialGood = 0.8

	leastBad   = 0.02 // every member is allowed this share of bad calls
	mostBad    = 0.6  // the usual share of bad calls is assumed to be at most this
	deviations = 2    // above the median, for the limit of a member's share
	failing    = 0.95 // the share of failures that leads to an ejection by itself; half of it being normal
	leastReady = 2    // at least 1/2 of the members must be ready
	enough     = 128  // measured calls between two sweeps
	pingTime   = time.Second
)

// A fleet is the endpoints of a client.
type fleet struct {
	options atomic.Pointer[Options]
	client  *yodel.Client
	born    time.Time
	running atomic.Bool
	again   atomic.Int64 // no goroutine is started before this time, in nanoseconds since born
	usual   atomic.Int64 // the usual duration, in nanoseconds
	slow    atomic.Int64 // a call that takes longer is slow, in nanoseconds
	hurry   chan struct{}

	// The following fields belong to the goroutine that sweeps. There is only one at a time.
	last     time.Time
	members  []*member
	samples  []sample
	shares   []float64
	overdue  []float64
	logs     []float64
	suspects []suspect
}

// A judged is the state of a member that sweeps maintain.
type judged struct {
	calls, bad, failed float64 // recent
	times, logs        float64
	suspicion          float64 // from calls that have ended
	waiting            float64 // from overdue calls
	despair            float64 // from failures, without a comparison with other members
	share              float64 // of bad calls, including overdue ones

	// old is the number of calls that had begun at a time at least as long ago as a slow call
	// takes. mark is the number at a later time.
	old, mark int64
	markAt    time.Time
	lost      int64 // how many of the begun calls belong to earlier epochs and did not end there
	seen      int64 // calls that had begun by the last sweep

	ejections int           // consecutive
	why       string        // the reason of the last ejection
	lasts     time.Duration // about how long the last ejection lasts
	back      time.Time     // when the ejection ends; after it, when it has ended
}

type fleetKey struct{}

// join sets the options of the client's sweeps, and starts the sweeps if they do not run.
func (m *member) join(p *Options, call *yodel.Call) *fleet {
	f := m.fleet.Load()
	if f == nil {
		f = call.State(fleetKey{}, func() any { return newFleet(m.ep.Client()) }).(*fleet) //nolint:forcetypeassert // nobody else has the key
		m.fleet.Store(f)
	}
	f.options.Store(p)
	if now := time.Since(f.born); !f.running.Load() {
		// The goroutine may start late. It does not start if this endpoint is being removed.
		if again := f.again.Load(); int64(now) >= again && f.again.CompareAndSwap(again, int64(now+againTime)) {
			m.ep.Go(f.run)
		}
	}
	return f
}

func newFleet(c *yodel.Client) *fleet {
	f := &fleet{client: c, born: time.Now(), hurry: make(chan struct{}, 1)}
	f.usual.Store(math.MaxInt64)
	f.slow.Store(math.MaxInt64)
	return f
}

// run sweeps until ctx ends, or until there have been no calls for idleTime.
func (f *fleet) run(ctx context.Context) {
	if !f.running.CompareAndSwap(false, true) {
		return
	}
	defer func() { f.running.Store(false) }() // deferred, in case of a panic
	f.last = time.Now()
	busy := f.last
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.hurry:
			if wait := hurryTime - time.Since(f.last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		}
		if f.sweep() {
			busy = f.last
		} else if f.last.Sub(busy) > idleTime {
			called := f.called()
			f.running.Store(false)
			// A call that has just begun relies on this goroutine.
			if !called() || !f.running.CompareAndSwap(false, true) {
				return
			}
			busy = f.last
		}
		timer.Reset(max(every, time.Duration(len(f.members))*everyMore))
	}
}

// called returns a function that reports whether calls have begun since the last sweep. The
// function reads nothing that sweeps change, because another goroutine may sweep at the same time.
func (f *fleet) called() func() bool {
	members, seen := slices.Clone(f.members), make([]int64, len(f.members))
	for i, m := range members {
		seen[i] = m.judged.seen
	}
	return func() bool {
		for i, m := range members {
			if m.begun.Load() != seen[i] {
				return true
			}
		}
		return false
	}
}

// sweep compares the endpoints, and reports whether any endpoint has calls or is ejected.
func (f *fleet) sweep() (busy bool) {
	now := time.Now()
	past := now.Sub(f.last)
	f.last = now
	p := f.options.Load()
	f.members = f.members[:0]
	for _, ep := range f.client.Endpoints() {
		m := memberOf(ep)
		f.members = append(f.members, m)
		j := &m.judged
		busy = busy || m.phase.Load() != in || m.begun.Load() != j.seen || j.seen-j.lost > m.ended.Load()
	}
	f.samples = f.samples[:0]
	for _, m := range f.members {
		f.samples = append(f.samples, m.take(now, past, min(time.Duration(f.slow.Load()), time.Second)))
	}
	f.measure(p)
	ref := f.compare(p)
	for i, m := range f.members {
		ref.judge(m, f.samples[i], past)
	}
	f.decide(p, now, ref)
	return busy
}

// A sample is what a member has counted since the last sweep.
type sample struct{ good, bad, failed float64 }

// take returns the counts since the last sweep, and resets them.
func (m *member) take(now time.Time, past, slow time.Duration) sample {
	j := &m.judged
	times := m.times.Swap(0)
	n, slows := float64(times/timesOne), float64(m.slow.Swap(0))
	failed, late := float64(m.failed.Swap(0)), float64(m.late.Swap(0))
	s := sample{good: max(n-slows, 0) + float64(m.answered.Swap(0)), bad: slows + failed + late, failed: failed}

	// With few calls, each counts for longer. Otherwise chance would decide which share is usual.
	fade := math.Exp(-max(min(float64(past)/float64(memory), (s.good+s.bad)/few), float64(past)/float64(idleTime)))
	j.calls = j.calls*fade + s.good + s.bad
	j.bad = j.bad*fade + s.bad
	j.failed = j.failed*fade + failed
	j.times = j.times*fade + n
	j.logs = j.logs*fade + float64(times&logsOfSum)

	// Of the calls that had begun by then, at most as many have ended as have ended in all.
	measured := m.begun.Load() - j.seen
	j.seen += measured
	if now.Sub(j.markAt) >= slow {
		j.old, j.mark, j.markAt = j.mark, j.seen, now
	}
	if m.phase.Load() == in {
		m.mask.Store(maskFor(float64(measured), past, m.mask.Load()))
	}
	return s
}

// maskFor returns the mask with which enough calls are measured. n calls were measured with the old
// mask in the time past.
func maskFor(n float64, past time.Duration, mask uint32) uint32 {
	if past < every/2 {
		return mask // the time is too short for an estimate
	}
	all := n * float64(mask+1) * float64(every) / float64(past)
	next := uint32(0)
	for all > enough && next < 1023 {
		all /= 2
		next = 2*next + 1
	}
	return next
}

func (m *member) overdue() float64 { return float64(max(m.judged.old-m.judged.lost-m.ended.Load(), 0)) }

// measure computes the usual duration of a call, and the duration above which a call is slow.
func (f *fleet) measure(p *Options) {
	f.logs = f.logs[:0]
	for _, m := range f.members {
		if j := &m.judged; j.times >= 0.5 {
			f.logs = append(f.logs, j.logs/j.times)
		}
	}
	if len(f.logs) < 2 { // no other member to compare with; the previous values stay
		return
	}
	usual := timeOf(median(f.logs))
	f.usual.Store(int64(usual))
	if p.Slow < 0 {
		f.slow.Store(math.MaxInt64)
		return
	}
	const never = 1 << 62 // a larger value overflows an int64
	f.slow.Store(int64(min(max(p.Slow*float64(usual), float64(usual)+float64(p.SlowBy)), never)))
}

// median sorts x and returns its middle element, or the lower of its two middle elements.
func median(x []float64) float64 {
	slices.Sort(x)
	return x[(len(x)-1)/2]
}

// A reference is the values with which members are compared.
type reference struct {
	known    bool
	median   float64       // of the shares of bad calls
	overdue  float64       // twice the median number of overdue calls; only more than that counts
	least    float64       // the lowest share of failures of a member
	limit    float64       // a larger share is bad
	usual    time.Duration // of a good call; 0 if it is unknown
	up, down float64       // how much a bad call, and a good one, change the suspicion
}

// compare computes the usual share of bad calls.
func (f *fleet) compare(p *Options) *reference {
	r := &reference{least: 1}
	if usual := time.Duration(f.usual.Load()); usual < math.MaxInt64 {
		r.usual = usual
	}
	f.shares, f.overdue = f.shares[:0], f.overdue[:0]
	for _, m := range f.members {
		j, over := &m.judged, m.overdue()
		f.overdue = append(f.overdue, over)
		j.share = (j.bad + over) / (j.calls + over + 1)
		if j.calls+over >= 0.5 {
			f.shares = append(f.shares, j.share)
		}
		if j.calls >= 2 {
			r.least = min(r.least, j.failed/j.calls)
		}
	}
	if len(f.shares) >= 2 {
		r.known = true
		r.median = median(f.shares)
		for i, s := range f.shares {
			f.shares[i] = math.Abs(s - r.median)
		}
		const ofNormal = 1.4826 // the standard deviation of a normal distribution, divided by its median deviation
		r.limit = r.median + max(p.Margin, deviations*ofNormal*median(f.shares))
	}
	if len(f.overdue) >= 2 {
		r.overdue = 2 * median(f.overdue)
	}
	p0 := min(max(r.median, leastBad), mostBad)
	p1 := min(p0+p.Margin, 0.98)
	r.up, r.down = math.Log(p1/p0), math.Log((1-p1)/(1-p0))
	return r
}

// judge updates the suspicion of a member with a sample.
func (r *reference) judge(m *member, s sample, past time.Duration) {
	j := &m.judged
	most := certainty * float64(past) / float64(soonest)
	j.suspicion *= math.Exp(-float64(past) / float64(doubt))
	if m.phase.Load() != in {
		most = certainty // the member is already suspect
	}
	fails := s.failed*math.Log(failing/0.5) + (s.good+s.bad-s.failed)*math.Log((1-failing)/0.5)
	j.despair = min(max(j.despair+min(fails, most), 0), certainty)
	if !r.someWell() { // a failure of all members says nothing about one, even after their recovery
		j.despair = 0
	}
	j.suspicion = min(max(j.suspicion+min(s.bad*r.up+s.good*r.down, most), 0), certainty)
	j.waiting = min(j.waiting+most, max(m.overdue()-r.overdue, 0)*r.up)
}

// suspect reports whether a member is worse than the others, and why.
func (r *reference) suspect(p *Options, m *member) (why string) {
	j := &m.judged
	switch {
	case p.Errors > 0 && int(m.row.Load()) >= p.Errors && r.median < 0.5:
		return fmt.Sprintf("%d calls in a row failed", m.row.Load())
	case j.suspicion+j.waiting >= certainty && r.known && j.share >= r.limit:
		return r.compared(m)
	case r.hopeless(m):
		return "nearly all of its calls fail"
	}
	return ""
}

// compared says how a member differs from the others.
func (r *reference) compared(m *member) string {
	j := &m.judged
	if hang := m.overdue(); hang > 0 && j.waiting > j.suspicion {
		return fmt.Sprintf("%.0f of its calls hang, those of the others take %v", hang, brief(r.usual))
	}
	if j.failed < j.bad/2 && j.times >= 0.5 && r.usual > 0 {
		if took := timeOf(j.logs / j.times); took > r.usual {
			return fmt.Sprintf("its calls take %v, those of the others %v", brief(took), brief(r.usual))
		}
	}
	return fmt.Sprintf("%.0f%% of its calls fail, are slow or hang, and %.0f%% of those of the others", 100*j.share, 100*r.median)
}

// brief returns a duration with about two digits.
func brief(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for unit*100 <= d && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit)
}

// someWell reports whether there is a member with less than half of its calls failing.
func (r *reference) someWell() bool { return r.known && r.least < 0.5 }

// hopeless reports whether nearly all calls of a member fail, while another member works.
func (r *reference) hopeless(m *member) bool {
	return r.someWell() && m.judged.despair >= certainty
}

// decide ejects members, and ends ejections.
func (f *fleet) decide(p *Options, now time.Time, r *reference) {
	ejected, ready := 0, 0
	for _, m := range f.members {
		if m.phase.Load() != in {
			ejected++
		} else if m.ep.Ready() {
			ready++
		}
	}
	const rounding = 1e-9
	most := max(int(p.MaxEjected*float64(len(f.members))+rounding), 1)
	half := max(len(f.members)/leastReady, 1)
	panicking := ready < half
	f.suspects = f.suspects[:0]
	for _, m := range f.members {
		switch phase := m.phase.Load(); {
		case phase == in:
			if why := r.suspect(p, m); why != "" {
				f.suspects = append(f.suspects, suspect{m, why})
			}
		case panicking:
			m.takeBack(p, now, "too few others are ready")
		case phase == out:
			m.comeBack(p, now)
		default:
			m.continueTrial(p, now, r)
		}
	}
	// Not all suspects may be ejected at a time. The worst come first.
	slices.SortFunc(f.suspects, func(a, b suspect) int { return cmp.Compare(b.judged.share, a.judged.share) })
	for _, s := range f.suspects {
		others := ready
		if s.ep.Ready() {
			others--
		}
		if ejected < most && others >= half {
			s.eject(p, now, s.why)
			ejected, ready = ejected+1, others
		}
	}
}

// A suspect is a member that should be ejected.
type suspect struct {
	*member
	why string
}

// still begins the reason of an ejection after a trial. The first reason follows.
const still = "it is still bad: "

// eject ejects a member.
func (m *member) eject(p *Options, now time.Time, why string) {
	j := &m.judged
	j.why = why
	if m.phase.Load() == in && now.Sub(j.back) >= 2*j.lasts {
		j.ejections = 0
	}
	about, d := spell.After(j.ejections, p.Ejection, p.MaxEjection)
	j.ejections++
	j.lasts = about
	j.back = now.Add(d)
	m.asked.Store(unasked)
	m.mask.Store(0) // in a trial, every call counts
	m.note("ejected", fmt.Sprintf("%s; it is tried again in %v", why, d.Round(time.Millisecond)))
	m.turn(out, false)
	if p.OnEject != nil {
		_ = aside.Do("outlier.Options.OnEject", nil, func() { p.OnEject(m.ep, why, d) }) // that it failed is in the log
	}
}

// note adds an event to the live data of the process.
func (m *member) note(kind, what string) {
	m.ep.Client().Note(introspect.Event{Kind: kind, Object: m.ep.Addr(), What: what, By: who})
}

// turn changes the phase, and makes the endpoint ready or not ready.
func (m *member) turn(phase int32, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase.Store(phase)
	m.free = ready
	m.ep.SetReady(who, ready)
}

// takeBack ends the ejection of a member.
func (m *member) takeBack(p *Options, now time.Time, why string) {
	m.judged.back = now
	m.row.Store(0)
	m.turn(in, true)
	m.note("readmitted", why)
	if p.OnEject != nil {
		_ = aside.Do("outlier.Options.OnEject", nil, func() { p.OnEject(m.ep, why, 0) })
	}
}

// These are the states of the ping to an ejected member.
const (
	unasked int32 = iota
	asking
	silent
	there
)

// comeBack begins the trial of an ejected member when its time is over and it has answered a ping.
func (m *member) comeBack(p *Options, now time.Time) {
	j := &m.judged
	switch m.asked.Load() {
	case unasked:
		if now.Before(j.back) {
			return
		}
		m.asked.Store(asking)
		m.ep.Go(m.ping)
	case silent:
		j.back = now.Add(p.Ejection) // the next ping
		m.asked.Store(unasked)
	case there:
		j.suspicion, j.despair, j.waiting = certainty-trialRoom, certainty-trialRoom, 0
		m.epoch.Add(1)
		j.lost = m.begun.Load() - m.ended.Load()
		j.old, j.mark, j.markAt = 0, 0, now
		m.row.Store(0)
		m.tried.Store(false)
		m.turn(trial, true)
	}
}

// ping sends a ping to the server. Every answer of the server counts, even an error.
func (m *member) ping(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	err := m.ep.Client().Do(ctx, &yodel.Call{Method: "yodel.Ping", Args: &struct{}{}, Endpoint: m.ep, Idempotent: true})
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded, yodel.Canceled:
		m.asked.Store(silent)
	default:
		m.asked.Store(there)
	}
}

// continueTrial decides whether a trial ends. Otherwise it allows the next call.
func (m *member) continueTrial(p *Options, now time.Time, r *reference) {
	j := &m.judged
	switch {
	case j.suspicion+j.waiting >= certainty && (!r.known || j.share >= r.median+p.Margin), r.hopeless(m):
		m.eject(p, now, still+strings.TrimPrefix(j.why, still))
	case j.suspicion <= certainty-trialRoom-trialGood:
		m.takeBack(p, now, "it is well again")
	case m.tried.Swap(false):
		m.turn(trial, true) // allow the next call
	}
}
