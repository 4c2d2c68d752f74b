// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"cmp"
	"slices"
	"time"
)

// A queue is the calls that wait, ordered by class, and within a class divided among tenants: the
// place that becomes free goes to the tenant that holds the fewest, of several to the one whose
// turn was longest ago, and there to the call that came first. That is max-min fairness in places,
// not in calls: a tenant whose calls take ten times as long gets a tenth as many of them.
//
// It knows nothing of time, locks or goroutines.
type queue struct {
	classes []*class // the highest first; they stay, and there are no more than 256
	n       int      // calls that wait
	turns   uint64   // given so far
	lines   map[lineKey]*line
	spare   []*line   // to be used again, never more than maxSpare
	waiters []*waiter // likewise
}

// maxSpare is how many of each kind are kept to be used again.
const maxSpare = 64

// A class is the calls of one criticality that wait.
type class struct {
	level int
	lines []*line // of the tenants that have calls in it that wait
	n     int

	since time.Duration // when the first of those came since whom one of this class has always waited
	over  time.Duration // when there was last no room for one of it in an overload: see limiter.standingLocked
}

type lineKey struct {
	level  int
	tenant string
}

// A line is the calls of one tenant in one class. It lasts while one of them waits or runs.
type line struct {
	key         lineKey
	class       *class
	first, last *waiter
	n           int    // that wait
	running     int    // that have waited and run now
	turn        uint64 // the last one it had
}

// held is what it has of the limiter.
func (l *line) held() int { return l.n + l.running }

// A waiter is a call that waits. Between two calls it is kept with its channel and its timer.
type waiter struct {
	line       *line // nil when it does not wait
	prev, next *waiter
	since      time.Duration // when it began to wait
	latest     time.Duration // when it must have begun to run
	outcome    chan outcome
	timer      *time.Timer
}

// An outcome is how a wait ends.
type outcome uint8

const (
	_         outcome = iota
	granted           // it has a place
	displaced         // a call that is more critical, or of a tenant that has less, took its place in the queue
	stale             // it waited for too long
)

// upTo returns how many calls wait in the class and above it.
func (q *queue) upTo(own *class) (n int) {
	for _, c := range q.classes {
		if c.level < own.level {
			break
		}
		n += c.n
	}
	return n
}

// ahead returns about how many calls will run before one that comes now.
func (q *queue) ahead(c *class, key lineKey) int {
	return q.upTo(c) - c.n + min(c.n, (q.own(key)+1)*len(c.lines))
}

// own returns how many calls of key wait.
func (q *queue) own(key lineKey) int {
	if l := q.lines[key]; l != nil {
		return l.n
	}
	return 0
}

// below returns the call that has to go for one of class c when there is no room for both: of the
// lowest class, if that is a lower one, the last one of the tenant that has most. It returns nil
// when there is none.
func (q *queue) below(c *class) *waiter {
	for _, lowest := range slices.Backward(q.classes) {
		if lowest.level <= c.level {
			if lowest.n > 0 && lowest.level < c.level {
				return lowest.largest().last
			}
			continue
		}
		break
	}
	return nil
}

// beside returns the call that has to go for one of key because its tenant has more of the class c,
// even then, or nil.
func (q *queue) beside(c *class, key lineKey) *waiter {
	if c.n == 0 {
		return nil
	}
	own := 0
	if l := q.lines[key]; l != nil {
		own = l.held()
	}
	if most := c.largest(); most.key != key && most.held() > own+1 {
		return most.last
	}
	return nil
}

// largest returns the line of the tenant that holds most.
func (c *class) largest() *line {
	most := c.lines[0]
	for _, l := range c.lines[1:] {
		if cmp.Or(cmp.Compare(l.held(), most.held()), cmp.Compare(l.n, most.n), cmp.Compare(l.last.since, most.last.since)) > 0 {
			most = l
		}
	}
	return most
}

// add puts w last in its line.
func (q *queue) add(w *waiter, c *class, key lineKey) {
	l := q.line(key)
	if l.n == 0 {
		l.class = c
		c.lines = append(c.lines, l)
	}
	c.n++
	w.line, w.prev, w.next = l, l.last, nil
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	q.n++
}

// remove takes w out, wherever it stands.
func (q *queue) remove(w *waiter) {
	l := w.line
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.line, w.prev, w.next = nil, nil, nil
	l.n--
	q.n--
	c := l.class
	c.n--
	if l.n == 0 {
		j := slices.Index(c.lines, l)
		c.lines[j] = c.lines[len(c.lines)-1]
		c.lines = c.lines[:len(c.lines)-1]
		q.forget(l)
	}
}

// next returns the call that is next to run. There must be one.
func (q *queue) next() *waiter {
	i := 0
	for q.classes[i].n == 0 {
		i++
	}
	lines := q.classes[i].lines
	best := lines[0]
	for _, l := range lines[1:] {
		if cmp.Or(cmp.Compare(l.running, best.running), cmp.Compare(l.turn, best.turn), cmp.Compare(l.first.since, best.first.since)) < 0 {
			best = l
		}
	}
	return best.first
}

// begin takes out w, which begins to run, and returns its line, to be told when it has ended.
func (q *queue) begin(w *waiter) *line {
	l := w.line
	q.turns++
	l.turn = q.turns
	l.running++
	q.remove(w)
	return l
}

// end says that a call has ended that had waited.
func (q *queue) end(l *line) {
	l.running--
	q.forget(l)
}

// line returns the line of key, which it makes when there is none.
func (q *queue) line(key lineKey) *line {
	l := q.lines[key]
	if l != nil {
		return l
	}
	if n := len(q.spare); n > 0 {
		l, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		l = new(line)
	}
	l.key = key
	if q.lines == nil {
		q.lines = make(map[lineKey]*line)
	}
	q.lines[key] = l
	return l
}

// forget drops a line that has nothing.
func (q *queue) forget(l *line) {
	if l.held() > 0 {
		return
	}
	delete(q.lines, l.key)
	*l = line{}
	if len(q.spare) < maxSpare {
		q.spare = append(q.spare, l)
	}
}

// class returns the class of a level.
func (q *queue) class(level int) *class {
	i, ok := slices.BinarySearchFunc(q.classes, level, func(c *class, level int) int { return level - c.level })
	if !ok {
		q.classes = slices.Insert(q.classes, i, &class{level: level})
	}
	return q.classes[i]
}

// waiter returns one that is not in use, or a new one.
func (q *queue) waiter() *waiter {
	if n := len(q.waiters); n > 0 {
		w := q.waiters[n-1]
		q.waiters = q.waiters[:n-1]
		return w
	}
	return &waiter{outcome: make(chan outcome, 1)}
}

// release keeps w for another call.
func (q *queue) release(w *waiter) {
	if len(q.waiters) < maxSpare {
		q.waiters = append(q.waiters, w)
	}
}
