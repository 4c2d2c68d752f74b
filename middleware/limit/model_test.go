// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A visit is a call as the model sees it, and what became of it. All that happens to different
// visits happens at different times.
type visit struct {
	at, holds   time.Duration
	deadline    time.Duration // 0 for none
	cancelAt    time.Duration // 0 for never
	level       int
	tenant      string
	waits, runs bool
	from        bool // it has waited
	since       time.Duration
	latest      time.Duration

	outcome string
	began   time.Duration
	ended   time.Duration
}

// A model is a limiter in one slice, looked through from the beginning each time.
type model struct {
	opts        Options
	now         time.Duration
	visits      []*visit // that wait or run, in the order in which they came
	took, least time.Duration
	since, over map[int]time.Duration
	turn        map[lineKey]int // forgotten with the last visit of the line
	turns       int
}

func (m *model) count(what func(v *visit) bool) (n int) {
	for _, v := range m.visits {
		if what(v) {
			n++
		}
	}
	return n
}

func (m *model) key(v *visit) lineKey { return lineKey{v.level, v.tenant} }

func (m *model) held(k lineKey) int {
	return m.count(func(v *visit) bool { return m.key(v) == k && (v.waits || v.runs && v.from) })
}

func (m *model) target() time.Duration {
	if m.opts.Target > 0 {
		return m.opts.Target
	}
	return max(m.took/4, leastTarget)
}

func (m *model) interval() time.Duration { return max(m.opts.Interval, 10*m.target()) }

func (m *model) waiting(level int) int {
	return m.count(func(v *visit) bool { return v.waits && v.level == level })
}

func (m *model) standing(level int) bool {
	for above, since := range m.since {
		if above < level {
			continue
		}
		if m.waiting(above) > 0 && m.now-since >= m.interval() || m.over[above] > 0 && m.now-m.over[above] < m.interval() {
			return true
		}
	}
	return false
}

// finish ends what v does.
func (m *model) finish(v *visit, outcome string) {
	waited := v.waits
	v.waits, v.runs, v.outcome, v.ended = false, false, outcome, m.now
	m.visits = slices.DeleteFunc(m.visits, func(other *visit) bool { return other == v })
	if waited {
		m.emptied(v.level)
	}
	if m.held(m.key(v)) == 0 {
		delete(m.turn, m.key(v))
	}
}

func (m *model) emptied(level int) {
	if m.waiting(level) == 0 && m.now-m.since[level] >= m.interval() {
		m.over[level] = m.now
	}
}

// most returns the visit that waits last in the line of a class that holds most.
func (m *model) most(level int) (last *visit, held int) {
	n := 0
	for _, v := range m.visits {
		if !v.waits || v.level != level {
			continue
		}
		k := m.key(v)
		h, own := m.held(k), m.count(func(o *visit) bool { return o.waits && m.key(o) == k })
		if last == nil || h > held || h == held && own >= n {
			last, held, n = v, h, own
		}
	}
	return last, held
}

func (m *model) arrive(v *visit) {
	running := m.count(func(v *visit) bool { return v.runs })
	waiting := m.count(func(v *visit) bool { return v.waits })
	if waiting == 0 && running < m.opts.Limit {
		v.runs, v.began = true, m.now
		m.visits = append(m.visits, v)
		return
	}
	if _, ok := m.since[v.level]; !ok {
		m.since[v.level] = 0
	}
	standing := m.standing(v.level)
	v.latest = m.now + m.interval()
	if standing {
		v.latest = m.now + 2*m.target()
	}
	own := m.count(func(o *visit) bool { return o.waits && m.key(o) == m.key(v) })
	if v.deadline > 0 {
		lines := map[string]bool{}
		for _, o := range m.visits {
			if o.waits && o.level == v.level {
				lines[o.tenant] = true
			}
		}
		ahead := m.count(func(o *visit) bool { return o.waits && o.level > v.level }) + min(m.waiting(v.level), (own+1)*len(lines))
		expected := time.Duration(ahead+1) * m.took / time.Duration(m.opts.Limit)
		if m.now+expected > v.deadline-m.least {
			v.outcome, v.ended = "YDL3202", m.now
			return
		}
		v.latest = min(v.latest, v.deadline-m.least)
	}
	most := max(m.opts.Limit, leastQueue)
	if m.opts.Queue > 0 {
		most = m.opts.Queue
	}
	room := math.MaxInt
	if standing && m.took > 0 {
		room = int(math.Ceil(float64(m.opts.Limit) * float64(m.target()) / float64(m.took)))
	}
	var goes *visit
	switch upTo := m.count(func(o *visit) bool { return o.waits && o.level >= v.level }); {
	case own >= room:
		m.over[v.level] = m.now
	case upTo >= most:
		if standing {
			m.over[v.level] = m.now
		}
		if last, held := m.most(v.level); last != nil && last.tenant != v.tenant && held > m.held(m.key(v))+1 {
			goes = last
		}
	case waiting >= most:
		lowest := v.level
		for _, o := range m.visits {
			if o.waits {
				lowest = min(lowest, o.level)
			}
		}
		if lowest < v.level {
			goes, _ = m.most(lowest)
		}
	default:
		goes = v
	}
	if goes == nil {
		v.outcome, v.ended = "YDL3201", m.now
		return
	}
	if goes != v {
		m.finish(goes, "YDL3201")
	}
	if m.waiting(v.level) == 0 {
		m.since[v.level] = m.now
	}
	v.waits, v.since = true, m.now
	m.visits = append(m.visits, v)
}

// dispatch lets those run whose turn it is.
func (m *model) dispatch() {
	for m.count(func(v *visit) bool { return v.runs }) < m.opts.Limit {
		var next *visit
		for _, v := range m.visits {
			if v.waits && (next == nil || m.before(v, next)) {
				next = v
			}
		}
		if next == nil {
			return
		}
		latest := next.latest
		if m.standing(next.level) {
			latest = min(latest, next.since+2*m.target())
		}
		if m.now > latest {
			m.finish(next, "YDL3202")
			continue
		}
		m.turns++
		m.turn[m.key(next)] = m.turns
		next.waits, next.runs, next.from, next.began = false, true, true, m.now
		m.emptied(next.level)
	}
}

// before reports whether a, which came later or is b, comes before b all the same.
func (m *model) before(a, b *visit) bool {
	running := func(v *visit) int {
		return m.count(func(o *visit) bool { return o.runs && o.from && m.key(o) == m.key(v) })
	}
	return cmp.Or(cmp.Compare(b.level, a.level), cmp.Compare(running(a), running(b)), cmp.Compare(m.turn[m.key(a)], m.turn[m.key(b)]), cmp.Compare(a.since, b.since)) < 0
}

// next returns when something happens to v on its own, and what.
func (m *model) next(v *visit) (at time.Duration, outcome string) {
	if v.runs {
		return v.began + v.holds, "served"
	}
	at, outcome = v.latest, "YDL3202"
	if v.deadline > 0 && at == v.deadline {
		outcome = "YDL3203"
	}
	if v.cancelAt > 0 && v.cancelAt < at {
		at, outcome = v.cancelAt, "YDL1006"
	}
	return at, outcome
}

func (m *model) run(visits []*visit) {
	m.since, m.over, m.turn = map[int]time.Duration{}, map[int]time.Duration{}, map[lineKey]int{}
	for len(visits) > 0 || len(m.visits) > 0 {
		var first *visit
		var at time.Duration
		var outcome string
		for _, v := range m.visits {
			if t, o := m.next(v); first == nil || t < at {
				first, at, outcome = v, t, o
			}
		}
		if len(visits) > 0 && (first == nil || visits[0].at < at) {
			m.now = visits[0].at
			m.arrive(visits[0])
			visits = visits[1:]
			continue
		}
		m.now = at
		if !first.runs {
			m.finish(first, outcome)
			continue
		}
		from := first.from
		m.finish(first, outcome)
		if from {
			if m.took == 0 {
				m.took, m.least = first.holds, first.holds
			} else {
				m.took += (first.holds - m.took) / 16
				m.least = min(first.holds, m.least+m.least/128)
			}
		}
		m.dispatch()
	}
}

// visitsOf makes calls, more than can be served or fewer, in phases.
func visitsOf(rng *rand.Rand, n int) []*visit {
	const unit = 10_000 // of time: what is left over tells the visits apart
	all := make([]*visit, n)
	at, load := time.Duration(unit), 1.0
	for i := range all {
		if i%100 == 0 {
			load = []float64{0.7, 1, 2, 10}[rng.IntN(4)]
		}
		at += time.Duration(rng.ExpFloat64()*100/load) * unit
		v := &visit{at: at + time.Duration(i), holds: time.Duration(1+rng.IntN(800)) * unit, level: rng.IntN(4) - 2, tenant: string(rune('a' + rng.IntN(4)))}
		if rng.IntN(3) == 0 {
			v.tenant = "greedy"
		}
		if rng.IntN(4) == 0 {
			v.deadline = v.at + time.Duration(1+rng.IntN(1000))*unit
		}
		if rng.IntN(8) == 0 {
			v.cancelAt = v.at + time.Duration(1+rng.IntN(500))*unit
		}
		all[i] = v
	}
	return all
}

func TestLimiterDoesWhatTheModelDoes(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		opts := (&Options{Limit: 1 + rng.IntN(8), Queue: rng.IntN(3) * 5, Interval: time.Duration(1+rng.IntN(30)) * time.Millisecond}).complete()
		if rng.IntN(2) == 0 {
			opts.Target = time.Duration(1+rng.IntN(3)) * time.Millisecond
		}
		expected := visitsOf(rng, 600)
		actual := make([]*visit, len(expected))
		for i, v := range expected {
			actual[i] = &visit{at: v.at, holds: v.holds, deadline: v.deadline, cancelAt: v.cancelAt, level: v.level, tenant: v.tenant}
		}
		(&model{opts: opts}).run(expected)
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter("test", opts)
			var wg sync.WaitGroup
			for _, v := range actual {
				wg.Go(func() { v.make(l) })
			}
			wg.Wait()
			if s := l.stats(); s.Running != 0 || s.Waiting != 0 || len(l.queue.lines) != 0 || l.state.Load()&crowded != 0 {
				t.Errorf("seed %d: it is left with %v and %d lines", seed, &s, len(l.queue.lines))
			}
		})
		outcomes := map[string]int{}
		for i, v := range expected {
			a := actual[i]
			outcomes[v.outcome]++
			if a.outcome != v.outcome || a.ended != v.ended || a.began != v.began {
				t.Fatalf("seed %d, limit %d: call %d, %+v: it is %s from %v to %v", seed, opts.Limit, i, *v, a.outcome, a.began, a.ended)
			}
		}
		t.Logf("seed %d: limit %d, %v", seed, opts.Limit, outcomes)
	}
}

// make makes the call, at its time.
func (v *visit) make(l *limiter) {
	time.Sleep(v.at)
	ctx, call := context.Background(), &yodel.Call{Method: "Test.Work", Criticality: v.level, Tenant: v.tenant}
	if v.deadline > 0 {
		call.Deadline = l.born.Add(v.deadline)
	}
	if v.cancelAt > 0 {
		canceled, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(v.cancelAt-v.at, cancel)
		defer timer.Stop()
		defer cancel()
		ctx = canceled
	}
	err := l.do(ctx, call, func(context.Context, *yodel.Call) error {
		v.began = l.now()
		time.Sleep(v.holds)
		return nil
	})
	v.ended, v.outcome = l.now(), "served"
	if err != nil {
		e, ok := errors.AsType[*yodel.Error](err)
		if v.outcome = fmt.Sprint(err); ok && e.NotProcessed {
			v.outcome = e.ID
		}
	}
}
