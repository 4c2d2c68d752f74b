// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"cmp"
	"slices"
	"time"
)

// A queue is the waiting calls, ordered by class. Within a class, places are divided among tenants.
// A free place goes to the tenant that holds the fewest places. If several tenants hold equally
// few, it goes to the tenant that got its last place longest ago. Among the calls of a tenant, it
// goes to the one that came first. This is max-min fairness of places, not of calls: a tenant whose
// calls take ten times as long gets a tenth as many of them.
//
// A queue uses no clock, no locks and no goroutines.
type queue struct {
	classes []*class // the highest first; classes are never removed, and there are at most 256
	n       int      // number of waiting calls
	turns   uint64   // number of places given so far
	lines   map[lineKey]*line
	spare   []*line   // for reuse, at most maxSpare
	waiters []*waiter // for reuse, at most maxSpare
}

// maxSpare is how many unused lines, and how many unused waiters, a queue keeps for reuse.
const maxSpare = 64

// A class is the waiting calls of one criticality.
type class struct {
	level int
	lines []*line // of the tenants with waiting calls in the class
	n     int

	since time.Duration // since when at least one call of the class has been waiting
	over  time.Duration // when the class was last in an overload: see limiter.standingLocked
}

type lineKey struct {
	level  int
	tenant string
}

// A line is the calls of one tenant in one class. It exists while one of its calls waits, or runs
// after a wait.
type line struct {
	key         lineKey
	class       *class
	first, last *waiter
	n           int    // waiting calls
	running     int    // running calls that have waited
	turn        uint64 // number of the place that the line got last
}

// held returns how many calls of the line wait or run.
func (l *line) held() int { return l.n + l.running }

// A waiter is a waiting call. The queue reuses it, with its channel and its timer, for later calls.
type waiter struct {
	line       *line // nil when no call uses the waiter
	prev, next *waiter
	since      time.Duration // when it began to wait
	latest     time.Duration // when the call must begin to run
	outcome    chan outcome
	timer      *time.Timer
}

// An outcome is how a wait ends.
type outcome uint8

const (
	_         outcome = iota
	granted           // the call has a place
	displaced         // a call that is more critical, or whose tenant holds less, took its place in the queue
	stale             // the call has waited too long
)

// upTo returns how many calls wait in the class and in higher ones.
func (q *queue) upTo(own *class) (n int) {
	for _, c := range q.classes {
		if c.level < own.level {
			break
		}
		n += c.n
	}
	return n
}

// ahead returns about how many calls will run before a call that arrives now.
func (q *queue) ahead(c *class, key lineKey) int {
	return q.upTo(c) - c.n + min(c.n, (q.own(key)+1)*len(c.lines))
}

// own returns how many calls of the line with this key wait.
func (q *queue) own(key lineKey) int {
	if l := q.lines[key]; l != nil {
		return l.n
	}
	return 0
}

// below returns the waiting call that a new call of class c displaces when the queue is full. It is
// in the lowest class with waiting calls, if that class is lower than c, and it is the last call of
// the tenant that holds most. below returns nil if there is no such call.
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

// beside returns the waiting call of class c that a new call of key displaces. Its tenant holds
// more than the tenant of key would hold with the new call. beside returns nil if there is no such
// call.
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

// add appends w to the line of key.
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

// remove removes w from its line.
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

// next returns the waiting call that runs next. There must be a waiting call.
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

// begin removes w, which begins to run. It returns the line of w, for end.
func (q *queue) begin(w *waiter) *line {
	l := w.line
	q.turns++
	l.turn = q.turns
	l.running++
	q.remove(w)
	return l
}

// end notes that a call of l that has waited has ended.
func (q *queue) end(l *line) {
	l.running--
	q.forget(l)
}

// line returns the line of key, and creates it if it does not exist.
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

// forget removes a line without waiting or running calls.
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

// class returns the class of a level, and creates it if it does not exist.
func (q *queue) class(level int) *class {
	i, ok := slices.BinarySearchFunc(q.classes, level, func(c *class, level int) int { return level - c.level })
	if !ok {
		q.classes = slices.Insert(q.classes, i, &class{level: level})
	}
	return q.classes[i]
}

// waiter returns an unused waiter.
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
