// SPDX-License-Identifier: Apache-2.0

// Package keyqueue keeps the order of requests with a key. The requests of one key are executed one
// after the other, in the order in which they were put into the queue of the key.
//
// The opener is the side that sends the requests. It sends the requests of a key without waiting
// for replies. If this side refuses one of them, the opener sends it again. Requests that the
// opener sent after it must not overtake it. So a refusal breaks the key: this side refuses all
// later requests of that key and epoch. When all of them have been refused, the opener begins a new
// epoch.
package keyqueue

// Queues are the queues of the keys in use, and the broken keys. The zero value is ready. A lock of
// the owner guards it and the entries.
type Queues[R any] struct {
	queues map[string]*queue[R] // only keys that have requests
	broken map[string]uint64    // maps a key to the epoch in which a request was refused
	bytes  int                  // the length of the keys in broken
	top    uint64               // the highest epoch seen
	floor  uint64               // every key is broken up to this epoch
}

// A queue has the requests of one key, oldest first. The first one is being executed.
type queue[R any] struct {
	first, last *Entry[R]
	// The highest epoch in which a request of the queue was refused. The waiting requests of that
	// epoch are refused too.
	broken uint64
}

// An Entry is what Queues keep of a request.
type Entry[R any] struct {
	Request    R
	key        string
	epoch      uint64
	queue      *queue[R] // nil before Put and after Remove
	prev, next *Entry[R]
	refused    bool
}

// MaxBroken and maxBrokenBytes bound the broken keys that are remembered. A key remains broken
// until the opener uses it again. Beyond these bounds this side no longer remembers single keys,
// and treats all keys as broken. It may then refuse requests needlessly. The opener sends these
// again in a new epoch.
const (
	MaxBroken      = 1024
	maxBrokenBytes = 64 << 10
)

// New returns the entry of a request, which is in no queue yet.
func New[R any](r R, key []byte, epoch uint64) *Entry[R] {
	return &Entry[R]{Request: r, key: string(key), epoch: epoch}
}

// Waits reports whether the request is in a queue behind another one. A nil Entry does not wait.
func (e *Entry[R]) Waits() bool { return e != nil && e.queue != nil && e.prev != nil }

// Refused reports whether the request must be refused because an earlier request of its key was
// refused.
func (e *Entry[R]) Refused() bool { return e.refused }

// Broken reports whether a request must be refused, before it is put into its queue.
func (q *Queues[R]) Broken(e *Entry[R]) bool {
	q.top = max(q.top, e.epoch)
	return e.epoch <= q.floor || len(q.broken) > 0 && e.epoch <= q.broken[e.key]
}

// Break records that a request was refused. All later requests of its key and epoch are then
// broken.
func (q *Queues[R]) Break(e *Entry[R]) {
	old, known := q.broken[e.key]
	switch {
	case e.epoch <= max(old, q.floor):
		return
	case known:
	case len(q.broken) >= MaxBroken || q.bytes+len(e.key) > maxBrokenBytes:
		q.floor, q.broken, q.bytes = q.top, nil, 0
		return
	case q.broken == nil:
		q.broken = make(map[string]uint64)
		fallthrough
	default:
		q.bytes += len(e.key)
	}
	q.broken[e.key] = e.epoch
}

// Put puts a request at the end of the queue of its key. It reports whether the request is the
// first, and is executed now. If the key is broken, the request is Refused. Otherwise the key is
// mended, because the request has a later epoch.
func (q *Queues[R]) Put(e *Entry[R]) (first bool) {
	if e.refused = q.Broken(e); !e.refused {
		if _, ok := q.broken[e.key]; ok {
			delete(q.broken, e.key)
			q.bytes -= len(e.key)
		}
	}
	of := q.queues[e.key]
	if of == nil {
		if q.queues == nil {
			q.queues = make(map[string]*queue[R])
		}
		of = new(queue[R])
		q.queues[e.key] = of
	}
	e.queue, e.prev = of, of.last
	of.last = e
	if e.prev == nil {
		of.first = e
		return true
	}
	e.prev.next = e
	return false
}

// Remove removes a request from its queue, if it is in one. Refused says that the request was
// refused, and that the opener may send it again, so that the key breaks. Remove returns the
// request that is executed next, or nil.
func (q *Queues[R]) Remove(e *Entry[R], refused bool) (next *Entry[R]) {
	of := e.queue
	if of == nil {
		return nil
	}
	if refused && !e.refused {
		q.Break(e)
		of.broken = max(of.broken, e.epoch)
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		of.last = e.prev
	}
	switch {
	case e.prev != nil: // it was waiting
		e.prev.next = e.next
	case e.next != nil:
		next = e.next
		of.first, next.refused = next, next.refused || next.epoch <= of.broken
	default:
		delete(q.queues, e.key)
	}
	e.queue, e.prev, e.next = nil, nil, nil
	return next
}

// Whole reports whether no key is broken.
func (q *Queues[R]) Whole() bool { return q.floor == 0 && len(q.broken) == 0 }

// Sizes returns how many keys have requests and how many are remembered as broken, and the epoch up
// to which all keys are broken.
func (q *Queues[R]) Sizes() (keys, broken int, floor uint64) {
	return len(q.queues), len(q.broken), q.floor
}
