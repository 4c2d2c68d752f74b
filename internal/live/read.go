// SPDX-License-Identifier: Apache-2.0

package live

import "time"

// A Reader gets the series of a Recorder. Its functions must not call the Recorder.
type Reader struct {
	// Span is how far the points go back; 0 means a minute.
	Span time.Duration
	// Begin gets the distance between two points, and how many there are.
	Begin func(length time.Duration, points int)
	// Point gets a point of a series that has calls in it, from the oldest point to the newest.
	Point func(k Key, point int, s *Step)
}

// Read reads all series up to the present. Left is how many series were left out, because the
// memory was used up.
func (r *Recorder) Read(now time.Time, x *Reader) (left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tickLocked(now)
	ring, points := r.rangeOf(x.Span)
	length := r.rings[ring].length
	x.Begin(time.Duration(length)*time.Second, points)
	last := r.second / length
	for i := range points {
		parts, missing := r.partsLocked(ring, last-int64(points-1-i), 1)
		if i == points-1 {
			parts, missing = r.openLocked(ring)
		}
		left = max(left, missing)
		merge(parts, func(id int, s *Step) { x.Point(r.series[id].key, i, s) })
	}
	return left + r.refused.count
}

// rangeOf returns which ring has a span, and how many steps it takes.
func (r *Recorder) rangeOf(span time.Duration) (ring, points int) {
	if span <= 0 {
		span = time.Minute
	}
	for ring < len(r.rings)-1 && span > time.Duration(int64(len(r.rings[ring].steps))*r.rings[ring].length)*time.Second {
		ring++
	}
	of := &r.rings[ring]
	length := time.Duration(of.length) * time.Second
	return ring, int(min((span-1)/length+1, time.Duration(len(of.steps))))
}

// openLocked returns the records of the step of a ring that has not ended.
func (r *Recorder) openLocked(ring int) (parts [][]byte, left int) {
	for i := range ring {
		within := r.rings[i+1].length / r.rings[i].length
		done := r.second / r.rings[i].length % within
		more, missing := r.partsLocked(i, r.second/r.rings[i].length-done, done)
		parts, left = append(parts, more...), max(left, missing)
	}
	records, missing := r.collectLocked(nil, false)
	return append(parts, records), max(left, missing)
}
