// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"slices"
	"time"
)

// A queue is the calls that wait, ordered by class, and within a class divided among tenants: the place that becomes free goes to the tenant
// that holds the fewest, of several to the one whose turn was longest ago, and there to the call that came first. That is max-min
// fairness in places, not in calls: a tenant whose calls take ten times as long gets a tenth as many of them.
//
// It knows nothing of time, locks or goroutines.
type queue struct {
	classes []*class // the highest first; each has calls that wait
	n       int      // calls that wait
	turns   uint64   // given so far
	lines   map[lineKey]*line
	spare   []*line  // to be used again, as are the next two
	unused  []*class // never more than maxSpare
	waiters []*waiter
}

// maxSpare is how many of each kind are kept to be used again.
const maxSpare = 64

// A class is the calls of one criticality that wait.
type class struct {
	level int
	lines []*line // of the tenants that have calls in it that wait
	n     int
}

type lineKey struct {
	level  int
	tenant string
}

// A line is the calls of one tenant in one class. It lasts while one of them waits or runs.
type line struct {
	key         lineKey
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

// above returns how many calls wait in classes above level.
func (q *queue) above(level int) (n int) {
	for _, c := range q.classes {
		if c.level <= level {
			break
		}
		n += c.n
	}
	return n
}

// ahead returns about how many calls will run before one that comes now.
func (q *queue) ahead(key lineKey) int {
	n := q.above(key.level)
	if i, ok := q.find(key.level); ok {
		c, own := q.classes[i], 0
		if l := q.lines[key]; l != nil {
			own = l.n
		}
		n += min(c.n, (own+1)*len(c.lines))
	}
	return n
}

// find returns where the class is, or belongs.
func (q *queue) find(level int) (i int, ok bool) {
	return slices.BinarySearchFunc(q.classes, level, func(c *class, level int) int { return level - c.level })
}

// victim returns the call that has to go for one of key, when there is no room for both: of the lowest class the last one of the tenant that has
// most, if that is a lower class, or a tenant that has more even then. It returns nil when key has to go itself.
func (q *queue) victim(key lineKey) *waiter {
	if len(q.classes) == 0 {
		return nil
	}
	lowest := q.classes[len(q.classes)-1]
	if lowest.level > key.level {
		return nil
	}
	most := lowest.lines[0]
	for _, l := range lowest.lines[1:] {
		if l.held() > most.held() || l.held() == most.held() && l.n > most.n {
			most = l
		}
	}
	if lowest.level == key.level {
		own := 0
		if l := q.lines[key]; l != nil {
			own = l.held()
		}
		if most.key == key || most.held() <= own+1 {
			return nil
		}
	}
	return most.last
}

// add puts w last in its line.
func (q *queue) add(w *waiter, key lineKey) {
	l := q.line(key)
	if l.n == 0 {
		c := q.class(key.level)
		c.lines = append(c.lines, l)
	}
	w.line, w.prev, w.next = l, l.last, nil
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	i, _ := q.find(key.level)
	q.classes[i].n++
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
	i, _ := q.find(l.key.level)
	c := q.classes[i]
	c.n--
	if l.n == 0 {
		j := slices.Index(c.lines, l)
		c.lines[j] = c.lines[len(c.lines)-1]
		c.lines = c.lines[:len(c.lines)-1]
		q.forget(l)
	}
	if c.n == 0 {
		q.classes = slices.Delete(q.classes, i, i+1)
		if len(q.unused) < maxSpare {
			q.unused = append(q.unused, c)
		}
	}
}

// next returns the call that is next to run. There must be one.
func (q *queue) next() *waiter {
	lines := q.classes[0].lines
	best := lines[0]
	for _, l := range lines[1:] {
		if l.running < best.running || l.running == best.running && l.turn < best.turn {
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

// class returns the class of a level, which it makes when there is none.
func (q *queue) class(level int) *class {
	i, ok := q.find(level)
	if ok {
		return q.classes[i]
	}
	c := new(class)
	if n := len(q.unused); n > 0 {
		c, q.unused = q.unused[n-1], q.unused[:n-1]
	}
	c.level = level
	q.classes = slices.Insert(q.classes, i, c)
	return c
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
