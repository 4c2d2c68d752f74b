// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A cell is an actor with its inbox.
type cell struct {
	system     *System
	kind, name string
	actor      any
	inbox      int
	concurrent int
	handled    atomic.Uint64 // messages
	ended      chan struct{} // closed after OnStop

	mu       sync.Mutex
	queue    queue
	running  int        // goroutines that handle messages
	started  bool       // OnStart has returned
	stopping bool       // no further messages are accepted
	over     bool       // OnStop has returned
	streams  *streams   // nil before the first message with an order
	wake     *sync.Cond // of an actor with its own goroutine; nil otherwise
}

// An envelope is a message in an inbox, or another call of a method of the actor. It is the context
// of the method too.
type envelope struct {
	context.Context                 //nolint:containedctx // of the call of a question, and otherwise of the System
	values          context.Context //nolint:containedctx // of the call of a statement, or nil
	cell            *cell
	handler         *handler
	message         any
	method          func(ctx context.Context) error // is called if handler is nil
	what            string                          // the name of the method, for errors
	from            string                          // the address of the sender's System
	kind            envelopeKind
	later           bool // the handler answers later
	call            *yodel.Call
	local           *parcel          // of a caller in this process
	reply           func(any, error) // replies to the call, if its handler has returned without a reply
	replied         atomic.Bool
	stream          *inflow // nil if the message has no order
	number          uint64  // in the stream
	sender          any     // to whom the memory of the message counts
	cost            int     // bytes of memory while the inbox has accepted the message; 0 if it is not counted

	// The lock of the cell guards the rest.

	release    func() bool // stops watching the caller; nil if it is not watched
	queued     bool
	waits      bool // there is no room for it in the inbox, or no memory
	handling   bool
	dropped    bool      // the caller had left before there was room
	next, prev *envelope // in the queue
}

type envelopeKind uint8

const (
	statement envelopeKind = iota // of Send
	question                      // of Ask
	event
	starting
	stopping
)

// Value implements context.Context.
func (e *envelope) Value(key any) any {
	if _, ok := key.(contextKey); ok {
		return e
	}
	if v := e.Context.Value(key); v != nil || e.values == nil {
		return v
	}
	return e.values.Value(key)
}

// AfterFunc lets contexts be derived without a goroutine: see context.AfterFunc.
func (e *envelope) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(e.Context, f) }

// caller returns the context of the call.
func (e *envelope) caller() context.Context {
	if e.values != nil {
		return e.values
	}
	return e.Context
}

// A queue is a list of envelopes.
type queue struct {
	first, last *envelope
	waiting     *envelope // the first one that the inbox has not accepted, or nil
	n           int
	accepted    int // envelopes before waiting
}

// push appends e, which waits until it is accepted.
func (q *queue) push(e *envelope) {
	if e.prev = q.last; q.last == nil {
		q.first = e
	} else {
		q.last.next = e
	}
	q.last = e
	q.n++
	e.queued, e.waits = true, true
	if q.waiting == nil {
		q.waiting = e
	}
}

// accept accepts the first envelope that waits.
func (q *queue) accept() {
	q.waiting.waits, q.waiting = false, q.waiting.next
	q.accepted++
}

// remove removes e.
func (q *queue) remove(e *envelope) {
	if e == q.waiting {
		q.waiting = e.next
	}
	if !e.waits {
		q.accepted--
	}
	if e.prev == nil {
		q.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		q.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.next, e.prev, e.queued = nil, nil, false
	q.n--
}

func (c *cell) ref() Ref { return Ref{Addr: c.system.Addr(), Kind: c.kind, Name: c.name} }

func (c *cell) String() string { return c.kind + " " + c.name }

// gone is the error of messages to an actor that does not exist.
func gone(kind, name string) error {
	return yodel.Errorf(yodel.NotFound, "actor: there is no %s called %.128q", kind, name)
}

// start begins the life of the actor.
func (c *cell) start(own bool) {
	if own {
		c.wake = sync.NewCond(&c.mu)
	}
	c.mu.Lock()
	c.appendLocked(c.own(starting, "OnStart", func(ctx context.Context) error {
		if a, ok := c.actor.(Starter); ok {
			return a.OnStart(ctx)
		}
		return nil
	}))
	c.running++ // so that no other goroutine handles the first message
	c.mu.Unlock()
	c.runOn()
}

// own returns the envelope of a call that no message causes.
func (c *cell) own(kind envelopeKind, what string, method func(context.Context) error) *envelope {
	return &envelope{Context: c.system.ctx, cell: c, kind: kind, what: what, method: method}
}

// runOn lets a goroutine handle messages.
func (c *cell) runOn() {
	if c.wake != nil {
		go c.work()
		return
	}
	c.system.run(c)
}

// stop lets the actor handle the messages of its inbox and end.
func (c *cell) stop() {
	e := c.own(stopping, "OnStop", func(ctx context.Context) error {
		if a, ok := c.actor.(Stopper); ok {
			return a.OnStop(ctx)
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopping {
		c.stopping = true
		c.failHeldLocked()
		c.appendLocked(e)
		c.runLocked()
	}
}

// failHeldLocked refuses the messages that wait for earlier ones, because these will not arrive.
func (c *cell) failHeldLocked() {
	for _, f := range c.streams.all() {
		for _, e := range f.held {
			e.conclude(nil, gone(c.kind, c.name))
		}
		f.held = nil
	}
}

// maxEvents is how many messages and events wait before further events are dropped.
const maxEvents = 10000

// inform puts an event into the inbox.
func (c *cell) inform(what string, method func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopping:
	case c.queue.n >= max(c.inbox, maxEvents):
		c.system.opts.log().Warn("an actor with a full inbox was not informed", slog.String("actor", c.String()), slog.String("event", what))
	default:
		c.appendLocked(c.own(event, what, method))
		c.runLocked()
	}
}

// take puts a message into the inbox. It reports whether the inbox has accepted the message. If
// not, the call is answered when it has. Says is the order of the message, if it has one.
func (c *cell) take(e *envelope, says string) (accepted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return false, gone(c.kind, c.name)
	}
	if says == "" {
		return c.pushLocked(e), nil
	}
	o, err := parseOrder(says)
	if err != nil || o.n == 0 {
		return false, yodel.Errorf(yodel.InvalidArgument, "actor: %.60q is no order of messages", says)
	}
	if c.streams == nil {
		c.streams = newStreams()
	}
	f := c.streams.of(o, e.call.Peer(), time.Now())
	if f == nil {
		return false, yodel.Errorf(yodel.ResourceExhausted, "actor: the sender has too many streams of messages to %v", c)
	}
	if f.isNext(o) {
		f.next++
		e.joinLocked(f, o.n)
		return c.pushLocked(e), nil
	}
	if err := f.hold(o, e); err != nil {
		c.pushAllLocked(f.ready(o))
		return false, err
	}
	e.joinLocked(f, o.n)
	c.pushAllLocked(f.ready(o))
	if f.held[o.n] == e {
		e.awaitLocked()
		e.watchLocked()
	}
	return e.queued && !e.waits, nil
}

// joinLocked notes the place of e in a stream, which is kept while a question of it is open.
func (e *envelope) joinLocked(f *inflow, n uint64) {
	e.stream, e.number = f, n
	if e.kind == question {
		f.open.Add(1)
	}
}

// skip handles what a sender says of messages that will not arrive.
func (c *cell) skip(says string) error {
	o, err := parseOrder(says)
	if err != nil {
		return yodel.Errorf(yodel.InvalidArgument, "actor: %.60q is no order of messages", says)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.streams.all()[o.stream]; f != nil && !c.stopping {
		c.pushAllLocked(f.ready(o))
	}
	return nil
}

// pushAllLocked puts messages that have waited for earlier ones, or have just arrived, into the
// inbox.
func (c *cell) pushAllLocked(ready []*envelope) {
	for _, e := range ready {
		c.pushLocked(e)
	}
}

// pushLocked puts a message into the inbox, and reports whether it is accepted. If it is not, its
// sender waits.
func (c *cell) pushLocked(e *envelope) (accepted bool) {
	c.appendLocked(e)
	if e.waits {
		e.awaitLocked()
	}
	if e.kind == question || e.waits && e.local != nil {
		e.watchLocked()
	}
	c.runLocked()
	return !e.waits
}

// appendLocked puts e behind the others, and accepts it if there are room and memory for it.
func (c *cell) appendLocked(e *envelope) {
	c.queue.push(e)
	c.admitLocked()
}

// admitLocked accepts the messages for which there are room and memory.
func (c *cell) admitLocked() {
	for e := c.queue.waiting; e != nil && c.queue.accepted < c.inbox && c.system.accounts.take(e); e = c.queue.waiting {
		c.queue.accept()
		e.accept()
	}
}

// awaitLocked lets the call of a statement wait until the inbox accepts the message.
func (e *envelope) awaitLocked() {
	if e.reply == nil {
		e.reply = e.call.Later()
	}
}

// watchLocked lets the message be removed when its caller has gone.
func (e *envelope) watchLocked() {
	if e.release != nil {
		return
	}
	stop := context.AfterFunc(e.caller(), func() { e.cell.leave(e) })
	if e.release = stop; e.kind == statement && e.local != nil {
		timer := time.AfterFunc(e.cell.system.opts.SendTimeout, func() { e.cell.leave(e) })
		e.release = func() bool { return timer.Stop() && stop() }
	}
}

// accept informs the sender that the message is in the inbox.
func (e *envelope) accept() {
	switch {
	case e.kind == question && e.local != nil && e.local.accepted != nil:
		e.local.accepted()
	case e.kind == statement && e.reply != nil:
		if e.release != nil {
			e.release()
		}
		e.dropped = e.local == nil && hasEnded(e.caller())
		e.conclude(new(yodel.Encoded), nil) // the sender does not read it
	}
}

// leave removes a message whose caller has gone. A statement that was accepted is handled all the
// same.
func (c *cell) leave(e *envelope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.queued && e.kind == statement && !e.waits:
		return
	case e.queued:
		c.removeLocked(e)
	case !e.handling && e.stream != nil && e.stream.held[e.number] == e:
		c.pushAllLocked(e.stream.leave(e.number))
	}
	if e.reply == nil {
		return
	}
	if ctx := e.caller(); ctx.Err() == nil {
		e.conclude(nil, yodel.Errorf(yodel.DeadlineExceeded, "actor: the inbox of %v has been full for %v (Options.SendTimeout)", c, c.system.opts.SendTimeout))
	} else {
		e.conclude(nil, yodel.Errorf(yodel.CodeOf(ctx.Err()), "actor: %s was not answered: %v", e.what, context.Cause(ctx)))
	}
}

// expire ends a question whose caller has gone, and which leave has not removed yet.
func (e *envelope) expire() {
	e.release()
	err := cmp.Or(e.caller().Err(), context.DeadlineExceeded)
	e.conclude(nil, yodel.Errorf(yodel.CodeOf(err), "actor: %s was not answered: %v", e.what, err))
}

// removeLocked removes a message from the inbox, and accepts others in its place.
func (c *cell) removeLocked(e *envelope) {
	c.queue.remove(e)
	if !e.waits {
		if short := c.system.accounts.give(e); short != nil {
			c.system.run(admission(short))
		}
	}
	c.admitLocked()
}

// respond replies to the call of the message, once. It does not block. The reply is encoded before
// respond returns, because the actor may change it later.
func (e *envelope) respond(out any, err error) {
	if err == nil && !e.replied.Load() {
		out, err = e.encode(out)
	}
	e.conclude(out, err)
}

// conclude replies to the call of the message with a reply that is encoded, once.
func (e *envelope) conclude(out any, err error) {
	if e.replied.Swap(true) {
		return
	}
	if e.kind == question && e.stream != nil {
		e.stream.open.Add(-1)
	}
	if e.local != nil {
		e.reply(out, err)
		return
	}
	e.cell.system.run(&lateReply{e.reply, out, err})
}

// A lateReply is a reply on its way to the connection. The connection may have to wait for a peer
// that does not read.
type lateReply struct {
	reply func(any, error)
	out   any
	err   error
}

func (r *lateReply) work() { r.reply(r.out, r.err) }

// encode encodes a reply, or copies it for a caller in this process.
func (e *envelope) encode(out any) (encoded any, err error) {
	defer func() {
		if r := recover(); r != nil {
			e.cell.system.opts.log().Error("the encoding of an actor's answer panicked", slog.String("actor", e.cell.String()),
				slog.String("message", e.what), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
			err = yodel.Errorf(yodel.Internal, "actor: the answer of %v to %s cannot be encoded", e.cell, e.what)
		}
	}()
	if isNil(out) {
		return nil, yodel.Errorf(yodel.Internal, "actor: %v gave no answer to %s", e.cell, e.what)
	}
	if e.local != nil {
		return e.local.answer(e.cell.system.local, out)
	}
	body, err := e.call.Encoding().Append(nil, out)
	if err != nil {
		return nil, yodel.Errorf(yodel.Internal, "actor: the answer of %v to %s cannot be encoded: %v", e.cell, e.what, err)
	}
	return &yodel.Encoded{Body: body}, nil
}

// runLocked lets another goroutine handle messages if there is work for it.
func (c *cell) runLocked() {
	switch {
	case c.wake != nil:
		c.wake.Signal()
	case c.queue.n > 0 && c.running < c.mostLocked():
		c.running++
		c.runOn()
	}
}

// mostLocked returns how many goroutines may handle messages.
func (c *cell) mostLocked() int {
	if c.started && !c.stopping {
		return c.concurrent
	}
	return 1
}

// work handles messages until there are none.
func (c *cell) work() {
	ended := false
	defer func() {
		if !ended { // a handler has ended the goroutine
			c.runOn()
		}
	}()
	for {
		e := c.pop()
		if e == nil {
			break
		}
		switch {
		case e.dropped:
		case e.kind == question && hasEnded(e.caller()):
			e.expire()
		default:
			c.handle(e)
		}
	}
	ended = true
}

// pop returns the next message, or nil if this goroutine has nothing more to do.
func (c *cell) pop() *envelope {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.wake != nil && c.queue.n == 0 && !c.over {
		c.wake.Wait()
	}
	if c.queue.n == 0 || c.running > c.mostLocked() {
		c.running--
		return nil
	}
	e := c.queue.first
	c.removeLocked(e)
	e.handling = true
	if e.waits { // there was no memory for it
		e.waits = false
		e.accept()
	}
	return e
}

// hasEnded reports whether a call has ended. To watch the calls of Send for that, rather than to
// look when there is room, would make the server read its connections on other goroutines.
func hasEnded(ctx context.Context) bool {
	deadline, has := ctx.Deadline()
	return ctx.Err() != nil || has && time.Now().After(deadline)
}

// handle lets the actor handle a message.
func (c *cell) handle(e *envelope) {
	var out any
	var err error
	ended := false
	defer func() {
		if !ended {
			err = &brokenError{e.what, recover(), debug.Stack()}
		}
		c.after(e, out, err)
	}()
	if e.handler != nil {
		out, err = e.handler.run(c.actor, e, e.message)
	} else {
		err = e.method(e)
	}
	ended = true
}

// after ends the handling of a message.
func (c *cell) after(e *envelope, out any, err error) {
	switch e.kind {
	case starting:
		c.mu.Lock()
		c.started = true
		for range min(c.queue.n, c.concurrent) {
			c.runLocked()
		}
		c.mu.Unlock()
	case question:
		c.handled.Add(1)
		err = e.answer(out, err)
	case statement:
		c.handled.Add(1)
	case event, stopping:
	}
	if err != nil {
		c.fault(e, err)
	}
	if e.kind == stopping {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
		c.system.hasEnded(c)
	}
}

// answer answers a question with the result of its handler, unless the handler answers later. It
// returns the error of the handler.
func (e *envelope) answer(out any, err error) error {
	if e.later && err == nil {
		return nil
	}
	if e.release != nil {
		e.release()
	}
	var b *brokenError
	switch {
	case errors.As(err, &b):
		e.conclude(nil, yodel.Errorf(yodel.Internal, "actor: %v panicked while it handled %s", e.cell, e.what))
	case err != nil:
		e.conclude(nil, err)
	case isNil(out):
		err = yodel.Errorf(yodel.Internal, "actor: %v gave no answer to %s", e.cell, e.what)
		e.conclude(nil, err)
	default:
		e.respond(out, nil)
	}
	return err
}

// A brokenError is the panic of an actor.
type brokenError struct {
	what  string
	value any
	stack []byte
}

func (e *brokenError) Error() string {
	if e.value == nil {
		return e.what + " ended its goroutine"
	}
	return fmt.Sprintf("%s panicked: %v", e.what, e.value)
}

// fault passes an error to the actor, or logs it.
func (c *cell) fault(e *envelope, err error) {
	log := c.system.opts.log()
	a, handles := c.actor.(ErrorHandler)
	var b *brokenError
	switch {
	case handles:
	case errors.As(err, &b):
		log.Error("an actor panicked", slog.String("actor", c.String()), slog.Any("err", err), slog.String("stack", string(b.stack)))
		return
	case e.kind != question: // there is no caller to get the error
		log.Warn("an actor failed", slog.String("actor", c.String()), slog.String("message", e.what), slog.Any("err", err))
		return
	default:
		return
	}
	ended := false
	defer func() {
		if !ended {
			log.Error("OnError of an actor panicked", slog.String("actor", c.String()), slog.Any("panic", recover()), slog.Any("err", err))
		}
	}()
	// The context of a question has ended with its answer.
	a.OnError(&envelope{Context: c.system.ctx, values: e.caller(), cell: c, kind: e.kind, what: "OnError", from: e.from}, err)
	ended = true
}
