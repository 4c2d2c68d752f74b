// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"sync"
	"sync/atomic"
)

// An issuer starts calls from one goroutine, and sleeps while as many are open as may be.
//
// It is to cost little beside a framework that makes millions of calls a second: the issuer and the
// goroutine that gets the replies have a counter each, so that no memory is written by both; the
// issuer is woken when half of the calls have ended, not for each of them; the clock is read for
// one call in 64.
type issuer struct {
	run    *run
	issued int64 // calls, and of these the issuer knows that seen have ended
	seen   int64
	_      [64]byte
	ended  atomic.Int64
	_      [64]byte
	wakeAt atomic.Int64 // which end of a call wakes the issuer
	wake   chan struct{}

	samples sync.Pool // of *sample
}

const sampled = 64 // one call of so many

// A sample is a call whose latency is measured. It is used again.
type sample struct {
	begin int64
	done  func(error)
}

// issue makes asynchronous calls until the measurement has ended, and waits for their ends.
func (r *run) issue(start func(done func(error))) {
	i := &issuer{run: r, wake: make(chan struct{}, 1)}
	i.samples.New = func() any { return i.newSample() }
	early := func(err error) { r.unless(err); i.end() }
	counted := func(err error) {
		if err != nil {
			r.fail(err)
		}
		i.end()
	}
	done := early
	var from, first, now int64 // the time and the count when the measurement began
	for n := 0; ; n++ {
		slept := i.waitForRoom()
		if slept || n%sampled == 0 {
			now = r.now()
			if now >= r.until.Load() {
				break
			}
			if from == 0 && r.counts(now) {
				from, first, done = now, i.issued, counted
			}
		}
		i.issued++
		if n%sampled != 0 {
			start(done)
			continue
		}
		s := i.samples.Get().(*sample) //nolint:forcetypeassert // New makes them
		s.begin = now
		start(s.done)
	}
	i.waitFor(i.issued)
	if from == 0 { // one start took all the time
		from, first = r.from.Load(), i.issued
	}
	r.busy.Store(now - from)
	r.calls.Store(i.issued - first - r.errors.Load())
}

func (i *issuer) newSample() *sample {
	s := new(sample)
	s.done = func(err error) {
		switch r := i.run; {
		case !r.counts(s.begin):
			r.unless(err)
		case err != nil:
			r.fail(err)
		default:
			r.latency.shard(0).record(r.now() - s.begin)
		}
		i.samples.Put(s)
		i.end()
	}
	return s
}

// end counts a call that has ended.
func (i *issuer) end() {
	if i.ended.Add(1) == i.wakeAt.Load() {
		select {
		case i.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// waitForRoom waits until a call may be made, and reports whether it had to.
func (i *issuer) waitForRoom() bool {
	window := int64(i.run.Window)
	if i.issued-i.seen < window {
		return false
	}
	if i.seen = i.ended.Load(); i.issued-i.seen < window {
		return false
	}
	i.waitFor(i.issued - window/2)
	return true
}

// waitFor sleeps until n calls have ended.
func (i *issuer) waitFor(n int64) {
	i.wakeAt.Store(n)
	for i.seen = i.ended.Load(); i.seen < n; i.seen = i.ended.Load() {
		<-i.wake // by the n-th, or left from an earlier sleep
	}
}
