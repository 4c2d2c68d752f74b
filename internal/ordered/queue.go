// SPDX-License-Identifier: Apache-2.0

// Package ordered keeps the ordered calls of a client in order. It decides when each call may be
// sent, over which connection, whether it may be sent again, and when its caller gets the outcome.
// A Sender sends the requests. Package ordered knows endpoints and connections only as values to
// compare.
//
// A queue holds the ordered calls of one key that have not ended, in the order in which they were
// made. A call may be sent when all calls before it are in flight or done. All requests of an epoch
// go to one connection. The epoch ends when the server refuses one of these requests, or when one
// is lost. The client then sends no further request of the queue until all requests in flight have
// ended. The first call that is sent after that begins a new epoch. For it, the client picks an
// endpoint and a connection again.
//
// A request is in flight until the server has ended it, even if its caller no longer waits. A
// canceled call therefore keeps its place until then, and so does a one-way call.
package ordered

import (
	"context"
	"sync"

	"github.com/yodel-rpc/yodel/internal/guard"
)

// MinLimit is the smallest limit on the outcomes of a key whose callbacks have not run yet. If a
// callback makes calls with its own key and waits for them, it delays the callbacks of the calls
// between.
const MinLimit = 1024

// Queues holds the ordered calls of a client, by key. E is the type of endpoints, and C is the type
// of connections. Their zero values mean no endpoint and no connection. Queues and its Turns may be
// used concurrently. The exported fields must be set before the first call.
type Queues[E, C comparable] struct {
	// Limit is how many outcomes of a key may wait until their callbacks run: MinLimit or more.
	Limit int
	// MaxResends is how often a one-way call whose caller has returned is sent to another endpoint.
	MaxResends int
	// Final says that the client does not repeat calls that were executed and failed.
	Final bool
	// Closing is closed when the client is.
	Closing <-chan struct{}
	// Guard logs panics of user code, and makes the errors of the calls that they interrupt.
	Guard *guard.Guard

	mu     sync.Mutex
	queues map[string]*queue[E, C] // by key; only keys that have calls
	epoch  uint64                  // the newest epoch of all queues
}

// Len returns the number of keys that have calls.
func (o *Queues[E, C]) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queues)
}

// A queue holds the ordered calls of one key. It is guarded by Queues.mu.
type queue[E, C comparable] struct {
	of          *Queues[E, C]
	key         string
	first, last *Turn[E, C]
	// next is the first call that is neither in flight nor done. Only this call may be sent.
	next *Turn[E, C]
	// unknown is the first call without an outcome. The outcomes of all calls before it have been
	// reported.
	unknown *Turn[E, C]

	made    uint64 // the number of the newest call
	passed  uint64 // the highest number that may have been executed
	severed uint64 // calls up to this number are not sent, because an earlier call was interrupted
	doubts  int    // calls that were interrupted, and whose callers have not been told

	flights int  // requests that are being sent or are in flight
	open    bool // the epoch accepts more requests
	epoch   uint64
	sent    uint64 // the highest number sent in the epoch
	granted uint64 // the highest number that may have been sent in the epoch
	ep      E      // the endpoint of the epoch; nil until it is known
	conn    C

	tell, tellLast *Turn[E, C] // asynchronous calls whose callbacks are due
	untold         int         // the number of calls in tell
	telling        bool        // a goroutine is calling callbacks
	room           chan struct{}
}

// Enter adds t, a new Turn, to the end of the queue of a key. Enter of an asynchronous call waits
// while Limit outcomes of the key wait for their callbacks. If ctx ends first, Enter returns an
// error.
func (o *Queues[E, C]) Enter(ctx context.Context, t *Turn[E, C], owner Owner, key string, async bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for async {
		q := o.queues[key]
		if q == nil || q.untold < o.Limit {
			break
		}
		if q.room == nil {
			q.room = make(chan struct{})
		}
		if ended := o.waitForRoomLocked(ctx, q.room); ended != nil {
			return tooLate(ended, 0, key)
		}
	}
	o.enterLocked(t, owner, key, async)
	return nil
}

// waitForRoomLocked waits for room or the end of ctx, and returns the cause of ctx if ctx has
// ended. It unlocks o.mu meanwhile.
func (o *Queues[E, C]) waitForRoomLocked(ctx context.Context, room <-chan struct{}) (ended error) {
	o.mu.Unlock()
	defer o.mu.Lock()
	select {
	case <-room:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

func (o *Queues[E, C]) enterLocked(t *Turn[E, C], owner Owner, key string, async bool) {
	q := o.queues[key]
	if q == nil {
		if o.queues == nil {
			o.queues = make(map[string]*queue[E, C])
		}
		q = &queue[E, C]{of: o, key: key}
		o.queues[key] = q
	}
	if q.made++; q.doubts > 0 {
		q.severed = q.made
	}
	t.owner, t.queue, t.number, t.async, t.prev = owner, q, q.made, async, q.last
	if q.last == nil {
		q.first = t
	} else {
		q.last.next = t
	}
	q.last = t
	if q.next == nil {
		q.next = t
	}
	if q.unknown == nil {
		q.unknown = t
	}
}

// EnterAtOnce is Enter and Await in one step, for an asynchronous call that can be sent at once. If
// the call cannot be sent at once, entered is false. If the call would begin an epoch, ep and conn
// are the endpoint and the connection of that epoch. If conn is missing then, EnterAtOnce sets
// needsConn.
func (o *Queues[E, C]) EnterAtOnce(t *Turn[E, C], owner Owner, method, key string, pin, ep E, conn C) (entered, needsConn bool) {
	var noEndpoint E
	var noConn C
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queues[key]
	begins := q == nil || q.flights == 0
	switch {
	case q != nil && (q.next != nil || q.untold >= o.Limit || q.doubts > 0):
		return false, false
	case begins && conn == noConn:
		return false, true
	case !begins && (!q.open || q.conn == noConn || pin != noEndpoint && pin != q.ep):
		return false, false
	}
	o.enterLocked(t, owner, key, true)
	t.method, t.state, t.pin = method, waiting, pin
	t.queue.step()
	if begins {
		t.queue.ep, t.queue.conn = ep, conn
	}
	return true, false
}

// step allows the next call to be sent, if it is waiting and may be sent.
func (q *queue[E, C]) step() {
	var noEndpoint E
	var noConn C
	t := q.next
	if t == nil || t.state != waiting {
		return
	}
	switch {
	case q.barred(t) != "":
		t.sender.ring()
		return
	case q.flights == 0:
		q.of.epoch++
		q.epoch, q.open, q.sent, q.granted, q.ep, q.conn = q.of.epoch, true, 0, 0, noEndpoint, noConn
		t.follows = false
	case q.open && q.conn != noConn && t.number >= q.granted && (t.pin == noEndpoint || t.pin == q.ep):
		t.follows = true
	default:
		return // the call waits until more requests have ended
	}
	q.flights++
	q.granted = max(q.granted, t.number)
	t.attempt++
	t.state, t.landed = sending, false
	t.sender.ring()
}

// barred returns why a call must not be sent any more, as a format for its key, or "".
func (q *queue[E, C]) barred(t *Turn[E, C]) (why string) {
	switch {
	case q.passed > t.number:
		return "a later call with the key %.60q may have been executed, so this one is not sent again"
	case q.severed >= t.number:
		return "an earlier call with the key %.60q was interrupted; it may still be executing"
	case t.known && !t.back: // an attempt continues after its call has ended
		return inFlight
	}
	return ""
}

// forward moves next past calls that are in flight or done.
func (q *queue[E, C]) forward() {
	for q.next != nil && (q.next.over || q.next.state == flying) {
		q.next = q.next.next
	}
}

// backTo moves next back to a call that may have to be sent again.
func (q *queue[E, C]) backTo(t *Turn[E, C]) {
	if !t.over && (q.next == nil || t.number < q.next.number) {
		q.next = t
	}
}

// sever makes calls fail that were not sent: those that are made before the caller of t has been
// told that nobody knows the outcome of t.
func (q *queue[E, C]) sever(t *Turn[E, C]) {
	q.severed = q.made
	if !t.left && !t.doubted {
		t.doubted = true
		q.doubts++
	}
	for other := t.next; other != nil; other = other.next {
		if other.state == waiting {
			other.sender.ring()
		}
	}
}

// noteLocked stores how an ended request affects the other calls of the queue.
func (q *queue[E, C]) noteLocked(t *Turn[E, C], how outcome) {
	if how != refused {
		q.passed = max(q.passed, t.number)
	}
	if how == refused || how == lost {
		q.open = false
	}
}

func (q *queue[E, C]) tellLocked(t *Turn[E, C]) {
	if q.tell == nil {
		q.tell = t
	} else {
		q.tellLast.nextTell = t
	}
	q.tellLast = t
	q.untold++
}

// closeLocked removes a queue that has no calls and no running callback.
func (q *queue[E, C]) closeLocked() {
	if q.first == nil && !q.telling && q.of.queues[q.key] == q {
		delete(q.of.queues, q.key)
	}
}

// deliver calls the callbacks of a queue one after the other, in order, unless another goroutine is
// doing so.
func (q *queue[E, C]) deliver() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	q.deliverLocked()
}

func (q *queue[E, C]) deliverLocked() {
	if q.telling {
		return
	}
	q.telling = true
	normal := false
	defer func() {
		q.telling = false
		if !normal { // a callback ended the goroutine
			go q.deliver()
		}
		q.closeLocked()
	}()
	for q.tell != nil {
		t := q.tell
		q.tell, t.nextTell = t.nextTell, nil
		q.untold--
		if q.room != nil {
			close(q.room)
			q.room = nil
		}
		t.tellLocked()
		t.removeLocked()
		t.concludeUnlocked()
	}
	normal = true
}
