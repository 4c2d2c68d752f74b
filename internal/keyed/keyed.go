// SPDX-License-Identifier: Apache-2.0

// Package keyed decides when ordered calls may be sent and when their outcomes are reported. It
// does not send calls itself. It knows endpoints and connections only as values to compare.
//
// A line is the queue of the ordered calls of one key that have not ended, in the order in which
// they were made. A call may be sent when all calls before it are in flight or done. All requests
// of an epoch go to one connection. The epoch ends when the server refuses one of these requests,
// or when one is lost. The client then sends no further request of the line until all requests in
// flight have ended. The first call that is sent after that begins a new epoch. For it, the client
// picks an endpoint and a connection again.
//
// A request is in flight until the server has ended it, even if its caller no longer waits. A
// canceled call therefore keeps its place until then, and so does a one-way call.
package keyed

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Lines holds the ordered calls of a client, by key. E is the type of endpoints, and C is the type
// of connections. Their zero values mean no endpoint and no connection. Lines and its Turns may be
// used concurrently. Their exported fields must be set before the first call.
type Lines[E, C comparable] struct {
	// Limit is how many outcomes of a line may wait until their callbacks run.
	Limit int
	// New returns a new Turn with its Owner. It runs with a lock held, so it must only allocate.
	New func() *Turn[E, C]

	mu    sync.Mutex
	lines map[string]*line[E, C] // by key; only keys that have calls
	epoch uint64                 // the newest epoch of all lines
}

// An Owner is the call of a Turn.
type Owner interface {
	// Conclude reports the outcome of an asynchronous call to its caller. It runs without a lock.
	Conclude()
}

// Len returns the number of keys that have calls.
func (o *Lines[E, C]) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.lines)
}

// A line holds the ordered calls of one key. It is guarded by Lines.mu.
type line[E, C comparable] struct {
	of          *Lines[E, C]
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

// A Turn is the place of a call in its line. Its variable fields are guarded by Lines.mu.
type Turn[E, C comparable] struct {
	Owner Owner

	line       *line[E, C]
	prev, next *Turn[E, C]
	number     uint64
	stood      time.Duration // how long the call has waited to be sent; used by the sender only
	sender     bell          // wakes the goroutine that sends the call
	leaver     bell          // wakes the caller

	state   flightState
	attempt uint64 // how many times the call was allowed to be sent
	landed  bool   // the attempt has ended, perhaps before its sender knows that it was sent
	follows bool   // the attempt uses the connection of the calls before it
	pin     E      // the endpoint to which the call is pinned; nil for none
	oneWay  bool   // no caller waits for its end
	over    bool   // the call need not be sent any more
	lost    bool   // the outcome is unknown: the call may have been executed
	gone    int    // requests in flight that no caller waits for
	kept    bool   // the call is one-way and was sent, so Do may return before the call ends
	back    bool   // a kept call was refused and must be sent again
	known   bool   // its outcome is known
	left    bool   // its caller has the outcome, or is about to get it
	doubted bool   // line.doubts counts it

	goes     bool        // asynchronous
	nextTell *Turn[E, C] // in line.tell
}

// A flightState is the state of an attempt.
type flightState uint8

const (
	resting flightState = iota // there is no attempt
	waiting                    // it waits for the calls before it
	sending                    // it may be sent
	flying                     // it was sent
)

// A Landing is how a request ended.
type Landing uint8

const (
	Succeeded Landing = iota
	Executed          // it was executed and failed
	Refused           // it was certainly not executed
	Lost              // it may have been executed
)

// The reasons why a call is not sent any more.
var (
	ErrSevered   = errors.New("an earlier call was interrupted")
	ErrOvertaken = errors.New("a later call may have been executed")
	ErrTwice     = errors.New("it is in flight")
)

// The causes of an Interrupted, in addition to the cause of a context.
var (
	ErrDeadline = errors.New("the deadline passed")
	ErrClosed   = errors.New("the client was closed")
)

// An Interrupted is the error of a call that waited until its Cause ended it.
type Interrupted struct{ Cause error }

// Error implements error.
func (e *Interrupted) Error() string { return e.Cause.Error() }

// Enter adds a call to the end of its line. Enter of an asynchronous call waits while more outcomes
// of the line than Limit wait for their callbacks.
func (o *Lines[E, C]) Enter(ctx context.Context, key string, goes bool) (*Turn[E, C], error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for goes {
		l := o.lines[key]
		if l == nil || l.untold < o.Limit {
			break
		}
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room := l.room
		o.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
		o.mu.Lock()
		if ctx.Err() != nil {
			return nil, &Interrupted{context.Cause(ctx)}
		}
	}
	return o.enterLocked(key, goes), nil
}

func (o *Lines[E, C]) enterLocked(key string, goes bool) *Turn[E, C] {
	l := o.lines[key]
	if l == nil {
		if o.lines == nil {
			o.lines = make(map[string]*line[E, C])
		}
		l = &line[E, C]{of: o, key: key}
		o.lines[key] = l
	}
	if l.made++; l.doubts > 0 {
		l.severed = l.made
	}
	t := o.New()
	t.line, t.number, t.goes, t.prev = l, l.made, goes, l.last
	if l.last == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
	if l.next == nil {
		l.next = t
	}
	if l.unknown == nil {
		l.unknown = t
	}
	return t
}

// Embark is Enter and Await in one step, for an asynchronous call that can be sent at once. If the
// call cannot be sent at once, Embark returns nil, and the call is not in the line. If the call
// would begin an epoch, ep and conn are the endpoint and the connection of that epoch. If conn is
// missing then, Embark sets needsConn.
func (o *Lines[E, C]) Embark(key string, pin, ep E, conn C) (t *Turn[E, C], needsConn bool) {
	var noEndpoint E
	var noConn C
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lines[key]
	begins := l == nil || l.flights == 0
	switch {
	case l != nil && (l.next != nil || l.untold >= o.Limit || l.doubts > 0):
		return nil, false
	case begins && conn == noConn:
		return nil, true
	case !begins && (!l.open || l.conn == noConn || pin != noEndpoint && pin != l.ep):
		return nil, false
	}
	t = o.enterLocked(key, true)
	t.state, t.pin = waiting, pin
	t.line.step()
	if begins {
		t.line.ep, t.line.conn = ep, conn
	}
	return t, false
}

// step allows the next call to be sent, if it is waiting and may be sent.
func (l *line[E, C]) step() {
	var noEndpoint E
	var noConn C
	t := l.next
	if t == nil || t.state != waiting {
		return
	}
	switch {
	case l.barred(t) != nil:
		t.sender.ring()
		return
	case l.flights == 0:
		l.of.epoch++
		l.epoch, l.open, l.sent, l.granted, l.ep, l.conn = l.of.epoch, true, 0, 0, noEndpoint, noConn
		t.follows = false
	case l.open && l.conn != noConn && t.number >= l.granted && (t.pin == noEndpoint || t.pin == l.ep):
		t.follows = true
	default:
		return // the call waits until more requests have ended
	}
	l.flights++
	l.granted = max(l.granted, t.number)
	t.attempt++
	t.state, t.landed = sending, false
	t.sender.ring()
}

// barred returns why a call must not be sent any more, or nil.
func (l *line[E, C]) barred(t *Turn[E, C]) error {
	switch {
	case l.passed > t.number:
		return ErrOvertaken
	case l.severed >= t.number:
		return ErrSevered
	case t.known && !t.back: // an attempt continues after its call has ended
		return ErrTwice
	}
	return nil
}

// A bell wakes a goroutine so that it checks its condition again. It is guarded by Lines.mu, and
// nil until a goroutine waits.
type bell chan struct{}

func (b bell) ring() {
	if b == nil {
		return
	}
	select {
	case b <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// waitLocked waits for b, done, late or closing. It reports whether b has woken it. It unlocks o.mu
// while it waits.
func (o *Lines[E, C]) waitLocked(b *bell, done <-chan struct{}, late <-chan time.Time, closing <-chan struct{}) (rang bool) {
	if *b == nil {
		*b = make(bell, 1)
	}
	heard := *b
	o.mu.Unlock()
	defer o.mu.Lock()
	select {
	case <-heard:
		return true
	case <-done:
	case <-late:
	case <-closing:
	}
	return false
}

// Await waits until an attempt may be sent. If the attempt must go to the same endpoint as the
// earlier calls of the line, Await returns that endpoint. Otherwise it returns no endpoint, and the
// attempt may go to any endpoint.
func (t *Turn[E, C]) Await(ctx context.Context, deadline time.Time, closing <-chan struct{}, pin E) (E, error) {
	var noEndpoint E
	l := t.line
	o := l.of
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.state == sending { // endpoint middleware did not send the previous attempt
		t.restLocked(false)
	}
	if t.state != resting {
		return noEndpoint, ErrTwice
	}
	t.state, t.pin = waiting, pin
	if !t.known { // middleware may repeat even a successful call
		t.over = false
		l.backTo(t)
	}
	l.step()
	var late <-chan time.Time
	for t.state == waiting {
		if err := l.barred(t); err != nil {
			t.state = resting
			return noEndpoint, err
		}
		if late == nil && !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			late = timer.C
		}
		began := time.Now()
		rang := o.waitLocked(&t.sender, ctx.Done(), late, closing)
		if t.stood += time.Since(began); rang || t.state != waiting {
			continue
		}
		t.state = resting
		switch {
		case ctx.Err() != nil:
			return noEndpoint, &Interrupted{context.Cause(ctx)}
		case !deadline.IsZero() && !time.Now().Before(deadline):
			return noEndpoint, &Interrupted{ErrDeadline}
		default:
			return noEndpoint, &Interrupted{ErrClosed}
		}
	}
	if t.follows {
		return l.ep, nil
	}
	return noEndpoint, nil // the attempt may go to any endpoint
}

// Stood returns how long the call has waited to be sent. Only the goroutine that sends the call may
// call Stood.
func (t *Turn[E, C]) Stood() time.Duration { return t.stood }

// Key returns the key of the line.
func (t *Turn[E, C]) Key() string { return t.line.key }

// Follows reports whether the attempt uses the connection of the earlier calls of the line.
func (t *Turn[E, C]) Follows() bool {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	return t.follows
}

// Endpoint returns the endpoint of the epoch. The endpoint does not change while the call may be
// sent.
func (t *Turn[E, C]) Endpoint() E {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	return t.line.ep
}

// Route returns the connection, the epoch and the number of an attempt that may be sent.
func (t *Turn[E, C]) Route(oneWay bool) (conn C, epoch, attempt uint64) {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	t.oneWay = oneWay
	return t.line.conn, t.line.epoch, t.attempt
}

// Board sets the endpoint and the connection of a new epoch.
func (t *Turn[E, C]) Board(ep E, conn C) {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	t.line.ep, t.line.conn = ep, conn
}

// MaySend reports whether the attempt may be sent now, without waiting.
func (t *Turn[E, C]) MaySend() bool {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	return t.state == sending
}

// Unsent says that an attempt was not sent. Usable says that the connection may still be used.
func (t *Turn[E, C]) Unsent(usable bool) {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	if t.state == sending {
		t.restLocked(usable)
	}
}

func (t *Turn[E, C]) restLocked(usable bool) {
	t.state = resting
	t.line.flights--
	if !usable {
		t.line.open = false
	}
}

// WasSent says that an attempt was sent, so that the next call may follow. It reports whether the
// call is one-way, was refused in the meantime, and must be sent again. If another attempt of the
// call has begun in the meantime, WasSent does nothing.
func (t *Turn[E, C]) WasSent(attempt uint64) (back bool) {
	l := t.line
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if attempt != t.attempt {
		return false
	}
	l.sent = max(l.sent, t.number)
	switch {
	case t.oneWay: // no caller waits for the call
		t.state, t.kept = resting, true
		if t.gone++; t.gone > 0 { // otherwise it has already ended
			t.back, t.over = false, true
		}
	case !t.landed && t.state == sending:
		t.state = flying
	}
	l.forward()
	l.step()
	return t.oneWay && t.back
}

// forward moves next past calls that are in flight or done.
func (l *line[E, C]) forward() {
	for l.next != nil && (l.next.over || l.next.state == flying) {
		l.next = l.next.next
	}
}

// backTo moves next back to a call that may have to be sent again.
func (l *line[E, C]) backTo(t *Turn[E, C]) {
	if !t.over && (l.next == nil || t.number < l.next.number) {
		l.next = t
	}
}

// A Next says which goroutine continues a call when an attempt of it has ended.
type Next uint8

const (
	Sender Next = iota // the goroutine that waits in Result
	Caller             // the caller of Land
	Nobody             // the asynchronous call is finished
)

// Land says how an attempt has ended. Abandoned says that the caller no longer waits, and that the
// attempt is still in flight. Final says that the call is not repeated if it was executed.
func (t *Turn[E, C]) Land(how Landing, abandoned, final bool, next Next) {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	if abandoned {
		t.abandonLocked()
	} else {
		t.landLocked(how, final)
	}
	switch next {
	case Sender:
		t.sender.ring()
	case Caller:
	case Nobody:
		t.finishLocked(false)
	}
}

// Result waits for the Land of an attempt that was sent.
func (t *Turn[E, C]) Result() {
	o := t.line.of
	o.mu.Lock()
	defer o.mu.Unlock()
	for !t.landed {
		o.waitLocked(&t.sender, nil, nil, nil) // if the caller stops waiting, the connection ends the attempt
	}
}

// Gone says how a request without a waiting caller has ended. Again says that the request should be
// sent again if it was refused. Gone reports whether its caller must send the request again now.
func (t *Turn[E, C]) Gone(how Landing, again bool) (back bool) {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	return t.goneLocked(how, again)
}

// landLocked stores how an attempt ended. Final says that the call is not repeated if it was
// executed.
func (t *Turn[E, C]) landLocked(how Landing, final bool) {
	t.landed = true
	if t.known {
		t.goneLocked(how, false)
		return
	}
	l := t.line
	l.flights--
	t.state = resting
	l.noteLocked(t, how)
	t.lost = how == Lost || how == Refused && t.lost
	if how == Succeeded || how == Executed && final {
		t.over = true
		l.forward()
	} else {
		l.backTo(t)
	}
	l.step()
}

// noteLocked stores how an ended request affects the other calls of the line.
func (l *line[E, C]) noteLocked(t *Turn[E, C], how Landing) {
	if how != Refused {
		l.passed = max(l.passed, t.number)
	}
	if how == Refused || how == Lost {
		l.open = false
	}
}

// abandonLocked records that the caller no longer waits for an attempt that is in flight.
func (t *Turn[E, C]) abandonLocked() {
	t.landed = true
	if t.known {
		return // knowLocked has counted it in t.gone
	}
	t.state = resting
	t.gone++
	t.line.backTo(t)
}

// goneLocked stores how a request without a waiting caller ended. Again says that the request
// should be sent again if it was refused. It reports whether the caller must send the request again
// now.
func (t *Turn[E, C]) goneLocked(how Landing, again bool) (back bool) {
	l := t.line
	l.flights--
	t.gone--
	l.noteLocked(t, how)
	if how == Lost {
		t.lost = true
		if t.known {
			l.sever(t)
		}
	}
	if t.oneWay {
		t.back = how == Refused && again
		t.over = !t.back
		l.backTo(t)
		l.forward()
	}
	t.removeLocked()
	l.step()
	return t.back && t.state == resting
}

// Drop ends a one-way call that was refused and is not sent again.
func (t *Turn[E, C]) Drop() {
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	t.back, t.over = false, true
	t.line.forward()
	t.line.step()
	t.removeLocked()
}

// sever makes calls fail that were not sent: those that are made before the caller of t has been
// told that nobody knows the outcome of t.
func (l *line[E, C]) sever(t *Turn[E, C]) {
	l.severed = l.made
	if !t.left && !t.doubted {
		t.doubted = true
		l.doubts++
	}
	for other := t.next; other != nil; other = other.next {
		if other.state == waiting {
			other.sender.ring()
		}
	}
}

// knowLocked records that the outcome of a call is known, so that the call is not sent any more.
func (t *Turn[E, C]) knowLocked() {
	l := t.line
	if !t.kept {
		t.over = true
		switch t.state {
		case resting:
		case sending:
			t.restLocked(false)
		case flying: // middleware no longer waits for the attempt
			t.state = resting
			t.gone++
		case waiting:
			t.sender.ring()
		}
	}
	t.known = true
	if t.lost {
		l.sever(t)
	}
	l.forward()
	l.step()
	for l.unknown != nil && l.unknown.known {
		other := l.unknown
		l.unknown = other.next
		switch {
		case other.left:
		case other.goes:
			l.tellLocked(other)
		default:
			other.leaver.ring()
		}
	}
}

func (l *line[E, C]) tellLocked(t *Turn[E, C]) {
	if l.tell == nil {
		l.tell = t
	} else {
		l.tellLast.nextTell = t
	}
	l.tellLast = t
	l.untold++
}

// Leave ends a synchronous call. It waits until all calls before it have outcomes, unless its
// caller cannot wait any longer. It does not wait for callbacks, because a callback may wait for
// this call.
func (t *Turn[E, C]) Leave(ctx context.Context, deadline time.Time, gaveUp bool) {
	l := t.line
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	t.knowLocked()
	var late <-chan time.Time
	for !gaveUp && l.unknown != nil && l.unknown.number < t.number {
		if late == nil && !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			late = timer.C
		}
		if !l.of.waitLocked(&t.leaver, ctx.Done(), late, nil) {
			break
		}
	}
	t.tellLocked()
	if l.tell != nil && !l.telling {
		go l.deliver()
	}
	t.removeLocked()
}

// tellLocked records that the caller is about to get the outcome.
func (t *Turn[E, C]) tellLocked() {
	t.left = true
	if t.doubted {
		t.doubted = false
		t.line.doubts--
	}
}

// removeLocked removes a call from its line if it has ended completely.
func (t *Turn[E, C]) removeLocked() {
	if !t.left || t.gone > 0 || t.back || t.state != resting {
		return
	}
	l := t.line
	if t.prev == nil {
		l.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	l.closeLocked()
}

// closeLocked removes a line that has no calls and no running callback.
func (l *line[E, C]) closeLocked() {
	if l.first == nil && !l.telling && l.of.lines[l.key] == l {
		delete(l.of.lines, l.key)
	}
}

// deliver calls the callbacks of a line one after the other, in order, unless another goroutine is
// doing so.
func (l *line[E, C]) deliver() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.deliverLocked()
}

func (l *line[E, C]) deliverLocked() {
	if l.telling {
		return
	}
	l.telling = true
	normal := false
	defer func() {
		l.telling = false
		if !normal { // a callback ended the goroutine
			go l.deliver()
		}
		l.closeLocked()
	}()
	for l.tell != nil {
		t := l.tell
		l.tell, t.nextTell = t.nextTell, nil
		l.untold--
		if l.room != nil {
			close(l.room)
			l.room = nil
		}
		t.tellLocked()
		t.removeLocked()
		t.concludeUnlocked()
	}
	normal = true
}

// concludeUnlocked unlocks Lines.mu while it calls the callback of t.
func (t *Turn[E, C]) concludeUnlocked() {
	o := t.line.of
	o.mu.Unlock()
	defer o.mu.Lock()
	t.Owner.Conclude()
}

// Finish ends an asynchronous call. Its callback runs after the callbacks of the earlier calls. If
// the caller has stopped waiting, the callback runs at once.
func (t *Turn[E, C]) Finish(gaveUp bool) {
	l := t.line
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	t.finishLocked(gaveUp)
}

func (t *Turn[E, C]) finishLocked(gaveUp bool) {
	t.left = gaveUp
	t.knowLocked()
	if gaveUp {
		t.removeLocked()
		t.concludeUnlocked()
	}
	t.line.deliverLocked()
}

// MayRepeat reports whether a failed call may be sent again, so that no later call has been
// executed before it.
func (t *Turn[E, C]) MayRepeat(notProcessed bool) bool {
	l := t.line
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	overtaken := !notProcessed && l.flights > 0 && l.sent > t.number // later calls were probably executed
	return !overtaken && l.barred(t) == nil
}
