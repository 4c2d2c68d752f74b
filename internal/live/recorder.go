// SPDX-License-Identifier: Apache-2.0

// Package live records what a process measures in the course of time. It counts the calls of each
// series, which is a method with a caller or with an endpoint. It keeps the counts of the last 60
// seconds, 60 minutes and 24 hours. Its memory is bounded.
package live

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/yodel-rpc/yodel/internal/stats"
)

// Bounds of a Recorder.
const (
	// seriesMemory is how many bytes the series may take, and stepMemory how many the records of
	// all steps may take. With the fixed parts they are less than 8 MiB.
	seriesMemory = 3 << 20
	stepMemory   = 9 << 19
	// seriesCost is how many bytes a series takes without its strings, with the entry in the map.
	seriesCost = 1 << 10
	// maxPeers is how many callers or endpoints a method has at once. Others are counted together.
	maxPeers = 64
	// Other is the name of the series of all further peers.
	Other = "other"
)

// The sides of a series.
const (
	Server = "server"
	Client = "client"
)

// A Key identifies a series.
type Key struct{ Side, Method, Peer string }

// method identifies the series of one method.
type method struct{ side, name string }

// A series is the calls of a method with a peer.
type series struct {
	key    Key
	counts *counts               // nil if no Counter is left
	user   weak.Pointer[Counter] // the Counter that others have
	active int64                 // the last second with calls
	totals Totals                // of all ended steps
}

// Totals is the calls of a series since it began: all of them at 0, and those that failed with a
// code at that code.
type Totals [stats.Codes]uint64

func (t *Totals) add(s *Step) {
	t[0] += s.Calls()
	for code := 1; code < len(t); code++ {
		t[code] += s.Failed(code)
	}
}

// A ring has the records of the last steps of one length.
type ring struct {
	length int64 // seconds
	steps  []recorded
}

// recorded is the records of one step.
type recorded struct {
	records []byte
	left    int // series that did not fit
}

func (r *ring) at(step int64) *recorded { return &r.steps[step%int64(len(r.steps))] }

// A Recorder has the series of a process. It may be used concurrently.
type Recorder struct {
	mu      sync.Mutex
	series  []*series // by number; nil if the number is free
	ids     map[Key]int
	peers   map[method]int // how many have a Counter
	used    int            // bytes of series
	refused refused
	rings   [3]ring
	second  int64 // the current second, since 1970
	behind  int64 // how many seconds the wall clock was set back
	scratch []byte
}

// refused counts the different series for which there was no memory, approximately.
type refused struct {
	seed  maphash.Seed
	bits  [1 << 10]uint64
	count int
}

// New returns a Recorder without series.
func New(now time.Time) *Recorder {
	r := &Recorder{ids: make(map[Key]int), peers: make(map[method]int), second: now.Unix()}
	r.refused.seed = maphash.MakeSeed()
	r.rings = [...]ring{{1, make([]recorded, 60)}, {60, make([]recorded, 60)}, {3600, make([]recorded, 24)}}
	return r
}

// stepLimit is how many bytes the records of a step may take.
const stepLimit = stepMemory / (60 + 60 + 24)

// Counter returns the counter of a series. It returns nil if there is no memory for the series.
func (r *Recorder) Counter(k Key) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, known := r.ids[k]
	if !known || r.series[id].counts == nil {
		if of := (method{k.Side, k.Method}); r.peers[of] >= maxPeers {
			k.Peer = Other
			id, known = r.ids[k]
		}
	}
	if !known {
		cost := seriesCost + len(k.Method) + len(k.Peer)
		if r.used+cost > seriesMemory {
			r.refused.add(k)
			return nil
		}
		r.used += cost
		id = r.addLocked(k)
	}
	s := r.series[id]
	s.active = r.second
	if s.counts == nil {
		s.counts = new(counts)
		r.peers[method{k.Side, k.Method}]++
	}
	if c := s.user.Value(); c != nil {
		return c
	}
	c := &Counter{s.counts}
	s.user = weak.Make(c)
	return c
}

// addLocked adds a series, and returns its number.
func (r *Recorder) addLocked(k Key) int {
	id := len(r.series)
	for i, s := range r.series {
		if s == nil {
			id = i
			break
		}
	}
	if id == len(r.series) {
		r.series = append(r.series, nil)
	}
	r.series[id] = &series{key: k}
	r.ids[k] = id
	return id
}

func (r *refused) add(k Key) {
	h := maphash.Comparable(r.seed, k)
	word, bit := &r.bits[h/64%uint64(len(r.bits))], uint64(1)<<(h%64)
	if *word&bit == 0 {
		*word |= bit
		r.count++
	}
}

// Totals returns the totals of all series of a side.
func (r *Recorder) Totals(side string) map[Key]Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[Key]Totals)
	for _, s := range r.series {
		if s == nil || s.key.Side != side {
			continue
		}
		t := s.totals
		if s.counts != nil {
			var now Step
			s.counts.readLocked(&now, false)
			t.add(&now)
		}
		all[s.key] = t
	}
	return all
}

// Run calls Tick at the beginning of each second, until stop is closed.
func (r *Recorder) Run(stop <-chan struct{}) {
	timer := time.NewTimer(untilNext(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			// The wall clock may be short of the second. The same reading decides about the next
			// tick, so that none is left out.
			now := time.Now()
			r.Tick(now)
			timer.Reset(untilNext(now))
		case <-stop:
			return
		}
	}
}

// untilNext returns how long the current second lasts.
func untilNext(now time.Time) time.Duration {
	return now.Truncate(time.Second).Add(time.Second).Sub(now)
}

// Tick ends the steps that have passed. The calls that have ended since the last Tick count in the
// first of them.
func (r *Recorder) Tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tickLocked(now)
}

func (r *Recorder) tickLocked(now time.Time) {
	second := now.Unix() + r.behind
	if second < r.second { // the wall clock was set back
		r.behind += r.second - second
		return
	}
	if second == r.second {
		return
	}
	r.endSecondLocked()
	for r.second++; ; r.second++ {
		if r.second%60 == 0 {
			r.sumLocked(1)
			r.releaseLocked()
		}
		if r.second%3600 == 0 {
			r.sumLocked(2)
		}
		if r.second == second {
			return
		}
		// the process has slept: no calls have ended in this second
		r.second = max(r.second, second-longest)
		*r.rings[0].at(r.second) = recorded{}
	}
}

// longest is a time in seconds that is longer than all rings. After a longer sleep, Tick begins so
// many seconds before the present, which overwrites all steps.
const longest = 26 * 60 * 60

// endSecondLocked moves the counts to the record of the current second.
func (r *Recorder) endSecondLocked() {
	to := r.rings[0].at(r.second)
	r.scratch, to.left = r.collectLocked(r.scratch[:0], true)
	to.records = append(to.records[:0], r.scratch...)
}

// collectLocked appends the records of the counts that belong to the current second.
func (r *Recorder) collectLocked(dst []byte, take bool) (records []byte, left int) {
	for id, s := range r.series {
		if s == nil || s.counts == nil {
			continue
		}
		var now Step
		if !s.counts.readLocked(&now, take) {
			continue
		}
		s.active = r.second
		if take {
			s.totals.add(&now)
		}
		before := len(dst)
		if dst = appendRecord(dst, id, &now); len(dst) > stepLimit {
			dst = dst[:before]
			left++
		}
	}
	return dst, left
}

// sumLocked makes the last step of a ring from those of the ring before it.
func (r *Recorder) sumLocked(ring int) {
	of := &r.rings[ring]
	to := of.at(r.second/of.length - 1)
	parts, left := r.partsLocked(ring-1, (r.second-of.length)/r.rings[ring-1].length, of.length/r.rings[ring-1].length)
	r.scratch, to.left = r.scratch[:0], left
	merge(parts, func(id int, s *Step) {
		before := len(r.scratch)
		if r.scratch = appendRecord(r.scratch, id, s); len(r.scratch) > stepLimit {
			r.scratch = r.scratch[:before]
			to.left++
		}
	})
	to.records = append(to.records[:0], r.scratch...)
}

// partsLocked returns the records of n steps of a ring, and the largest number of series that one
// of them lacks.
func (r *Recorder) partsLocked(ring int, first, n int64) (parts [][]byte, left int) {
	for i := first; i < first+n; i++ {
		of := r.rings[ring].at(i)
		parts, left = append(parts, of.records), max(left, of.left)
	}
	return parts, left
}

// releaseLocked frees what series without calls need no longer.
func (r *Recorder) releaseLocked() {
	for id, s := range r.series {
		switch {
		case s == nil:
		case s.counts != nil && s.user.Value() == nil:
			var rest Step
			if s.counts.readLocked(&rest, false) { // they are recorded at the end of the second
				continue
			}
			s.counts = nil
			of := method{s.key.Side, s.key.Method}
			if r.peers[of]--; r.peers[of] == 0 {
				delete(r.peers, of)
			}
		case s.counts == nil && r.second-s.active > 26*60*60: // no step has a record of it
			r.used -= seriesCost + len(s.key.Method) + len(s.key.Peer)
			delete(r.ids, s.key)
			r.series[id] = nil
		}
	}
}

// A Ring has the last different values of a list. The zero value has none. It may be used
// concurrently.
type Ring[T comparable] struct {
	mu     sync.Mutex
	values []T
	next   int // the index of the oldest one, once there are ringSize
}

// ringSize is how many values a Ring keeps.
const ringSize = 256

// Add adds a value, in place of the oldest one if there are too many. It does nothing if the ring
// has the value.
func (r *Ring[T]) Add(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.values, v) {
		return
	}
	if len(r.values) < ringSize {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % ringSize
}

// All returns the values, the oldest first.
func (r *Ring[T]) All() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append([]T(nil), r.values[r.next:]...), r.values[:r.next]...)
}
