// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Send sends a message to an actor, and does not wait until it is handled. Message is a pointer to
// a value of a type that the actor's kind handles, or such a value. It may be changed when Send has
// returned.
//
// While the inbox of an actor of this System is full, Send waits. To an actor of another System,
// Options.Window messages may be on their way. While they are, Send waits. It returns an error if
// the message was certainly not sent. If a message gets lost later, Send calls Options.OnLost.
func (s *System) Send(ctx context.Context, to Ref, message any) error {
	m, err := s.letter(to, message)
	if err != nil {
		return err
	}
	if m.to == nil {
		return s.here(ctx, m)
	}
	m.call.Deadline = time.Now().Add(s.opts.SendTimeout)
	m.until = m.call.Deadline.Add(grace)
	if !s.setOut() {
		m.client.release()
		return errShutDown
	}
	for {
		o := s.outbox(to)
		if err := s.awaitRoom(ctx, o, to); err != nil {
			m.client.release()
			s.arrived()
			return err
		}
		if o.add(m, s.appendWay(verbSend)) {
			m.ref, m.values = to, ctx //nolint:fatcontext,nolintlint // once
			s.begin(ctx, m, o, m)     //nolint:contextcheck,nolintlint // the letter is the context of its call
			return nil
		}
		<-o.window
	}
}

// awaitRoom waits until there is room in the window of o, and takes it.
func (s *System) awaitRoom(ctx context.Context, o *outbox, to Ref) error {
	select {
	case o.window <- struct{}{}:
		return nil
	default:
	}
	select {
	case o.window <- struct{}{}:
		return nil
	case <-ctx.Done():
		return yodel.Errorf(yodel.CodeOf(ctx.Err()), "actor: %d messages to %v wait for room in its inbox: %v", cap(o.window), to, context.Cause(ctx))
	case <-s.ctx.Done():
		return errShutDown
	}
}

// setOut counts a message of Send until arrived. It reports false once Shutdown does not wait for
// further ones.
func (s *System) setOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return false
	}
	s.onWay++
	return true
}

func (s *System) arrived() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onWay--; s.onWay == 0 && s.sealed {
		close(s.allArrived)
	}
}

// AskSync asks an actor, and waits for the answer. Message is as for System.Send. AskSync must not
// be called by a method of the actor that is asked: that actor would wait for itself, unless it is
// Concurrent.
func AskSync[R any](ctx context.Context, s *System, to Ref, message any) (*R, error) {
	answer := new(R)
	if err := s.askSync(ctx, to, message, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

func (s *System) askSync(ctx context.Context, to Ref, message, answer any) error {
	m, err := s.question(ctx, to, message, answer)
	if err != nil {
		return err
	}
	if m.to == nil {
		return m.explain(s, s.here(ctx, m))
	}
	o := s.number(m, to)
	if m.client.connects() {
		begins := make(chan struct{})
		m.client.queue(ctx, s, func() { close(begins) })
		select {
		case <-begins:
		case <-ctx.Done(): // the call says so
		}
	}
	err = m.to.Do(ctx, &m.call)
	s.ended(o, m, err)
	return m.explain(s, err)
}

// Ask asks an actor, and does not wait for the answer. Message is as for System.Send. Ask waits
// while the inbox of an actor of this System is full, and while more calls to another System are
// open than the limits of its client allow. The question ends with ctx.
func Ask[R any](ctx context.Context, s *System, to Ref, message any) *Question[R] {
	q := &Question[R]{done: make(chan struct{})}
	ctx, q.abort = context.WithCancelCause(ctx)
	s.ask(ctx, to, message, &q.answer, func(err error) {
		if err != nil && ctx.Err() == context.Canceled {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		q.err = err
		close(q.done)
		q.abort(nil)
	})
	return q
}

// A Question is what Ask has asked. Its methods may be called concurrently.
type Question[R any] struct {
	answer R
	err    error
	done   chan struct{}
	abort  context.CancelCauseFunc
}

// Done returns a channel that is closed when there is an answer or an error.
func (q *Question[R]) Done() <-chan struct{} { return q.done }

// Get waits for the answer.
func (q *Question[R]) Get() (*R, error) {
	<-q.done
	if q.err != nil {
		return nil, q.err
	}
	return &q.answer, nil
}

// Abort ends the question. Its error wraps reason. An actor that has not handled the message yet
// does not handle it. If the actor handles it already, the context of the handler ends.
func (q *Question[R]) Abort(reason error) {
	if reason == nil {
		reason = context.Canceled
	}
	q.abort(reason)
}

// ask asks an actor, and calls done when answer is there.
func (s *System) ask(ctx context.Context, to Ref, message, answer any, done func(error)) {
	m, err := s.question(ctx, to, message, answer)
	if err != nil {
		done(err)
		return
	}
	if m.to == nil {
		accepted := make(chan struct{}, 2)
		m.parcel.accepted = func() { accepted <- struct{}{} }
		go func() {
			err := s.here(ctx, m)
			accepted <- struct{}{}
			done(m.explain(s, err))
		}()
		<-accepted // so that later messages are behind this one
		return
	}
	m.done = done
	s.begin(ctx, ctx, s.number(m, to), m)
}

// question returns the letter for a question. It ends after Options.AskTimeout, if ctx does not end
// at a time of its own.
func (s *System) question(ctx context.Context, to Ref, message, answer any) (*letter, error) {
	m, err := s.letter(to, message)
	if err != nil {
		return nil, err
	}
	m.asks, m.call.Reply = true, answer
	deadline, has := ctx.Deadline()
	if !has {
		m.limit = s.opts.AskTimeout
		deadline = time.Now().Add(m.limit)
		m.call.Deadline = deadline
	}
	m.until = deadline.Add(grace)
	return m, nil
}

// explain adds the option to an error that it has caused.
func (m *letter) explain(s *System, err error) error {
	if err != nil && m.limit > 0 && yodel.CodeOf(err) == yodel.DeadlineExceeded && !time.Now().Before(m.call.Deadline) {
		return fmt.Errorf("%w (Options.AskTimeout is %v)", err, s.opts.AskTimeout)
	}
	return err
}

// Lookup returns the Ref of the actor with a name in the System at an address. It asks that System
// whether the actor exists.
func (s *System) Lookup(ctx context.Context, addr, name string) (Ref, error) {
	if err := checkAddr(addr); err != nil {
		return Ref{}, yodel.Errorf(yodel.InvalidArgument, "actor: %.200q is not the address of a System: %v", addr, err)
	}
	to, c, err := s.route(addr)
	if err != nil {
		return Ref{}, err
	}
	defer c.release()
	var caller yodel.Caller = s.server
	if to != nil {
		caller = to
	}
	limit := ""
	if _, has := ctx.Deadline(); !has {
		limited, cancel := context.WithTimeout(ctx, s.opts.LookupTimeout)
		defer cancel()
		ctx, limit = limited, fmt.Sprintf(" (Options.LookupTimeout is %v)", s.opts.LookupTimeout)
	}
	found, err := lookup.Do(ctx, caller, &yodel.Call{Codec: yodel.JSON}, &lookupArgs{Name: name})
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded:
		return Ref{}, fmt.Errorf("actor: cannot look up %q at %s: %w%s", name, addr, err, limit)
	case err != nil:
		return Ref{}, fmt.Errorf("actor: cannot look up %q at %s: %w", name, addr, err)
	case found.Kind == "":
		return Ref{}, yodel.Errorf(yodel.NotFound, "actor: there is no actor called %q at %s", name, addr)
	}
	return Ref{Addr: addr, Kind: found.Kind, Name: name}, nil
}

// A letter is a message on its way.
type letter struct {
	call   yodel.Call
	to     sender  // nil if the actor is in this System
	client *client // that is in use; nil without one
	asks   bool    // an answer is wanted
	parcel parcel  // of a message in this System
	body   yodel.Encoded
	until  time.Time       // the receiver does not handle the message later
	limit  time.Duration   // after which a question ends because of an option; 0 if for another reason
	done   func(error)     // of Ask
	ref    Ref             // of Send
	values context.Context //nolint:containedctx // of Send

	// The lock of the outbox guards the rest.

	number       uint64
	older, newer *letter // in the outbox
	says         int     // where the order begins in the metadata
	told         bool    // the order has lost spans
}

// A letter of Send is the context of its call, which does not end with that of Send. A
// context.WithoutCancel would be two allocations for each message.

// Deadline implements context.Context.
func (*letter) Deadline() (deadline time.Time, has bool) { return time.Time{}, false }

// Done implements context.Context.
func (*letter) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (*letter) Err() error { return nil }

// Value implements context.Context.
func (m *letter) Value(key any) any { return m.values.Value(key) }

// grace is how long after its deadline a message may arrive, at most, because it was on its way.
const grace = time.Minute

// A sender is a yodel.Client or a yodel.Peer.
type sender interface {
	yodel.Caller
	Go(ctx context.Context, call *yodel.Call, done func(error))
}

// A messageType is what a System knows of the messages of one type.
type messageType struct {
	name   string
	err    error                  // why there is no name
	remote error                  // why the codec does not carry the type
	method atomic.Pointer[method] // of the kind to which the last message went
}

type method struct{ kind, name string }

// typeOf returns what the System knows of a type.
func (s *System) typeOf(t reflect.Type) *messageType {
	if known, ok := s.types.Load(t); ok {
		return known.(*messageType) //nolint:forcetypeassert // the map has only these
	}
	mt := new(messageType)
	mt.name, mt.err = messageName(t)
	if c, ok := s.opts.Client.Codec.(interface{ CheckType(t reflect.Type) error }); ok {
		mt.remote = c.CheckType(t)
	}
	known, _ := s.types.LoadOrStore(t, mt)
	return known.(*messageType) //nolint:forcetypeassert // as above
}

// methodOf returns the method of the messages to actors of a kind.
func (mt *messageType) methodOf(kind string) string {
	if m := mt.method.Load(); m != nil && m.kind == kind {
		return m.name
	}
	m := &method{kind, kind + "." + mt.name}
	mt.method.Store(m)
	return m.name
}

// letter returns the letter for a message.
func (s *System) letter(to Ref, message any) (*letter, error) {
	v := reflect.ValueOf(message)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return nil, yodel.Errorf(yodel.InvalidArgument, "actor: the message to %v is nil", to)
	}
	mt := s.typeOf(v.Type())
	if mt.err != nil {
		return nil, mt.err
	}
	m := new(letter)
	var err error
	if m.to, m.client, err = s.route(to.Addr); err != nil {
		return nil, err
	}
	m.call.Method = mt.methodOf(to.Kind)
	m.call.Metadata = yodel.Metadata{keyActor: to.Name}
	if m.to == nil {
		m.parcel.value = message
		return m, nil
	}
	if err = mt.remote; err == nil {
		m.body.Body, err = s.opts.Client.Codec.Append(nil, message)
	}
	if err != nil {
		m.client.release()
		return nil, yodel.Errorf(yodel.InvalidArgument, "actor: the message to %v cannot be sent: %v", to, err)
	}
	m.call.Args, m.call.Codec = &m.body, s.opts.Client.Codec
	return m, nil
}

// appendWay appends the metadata of a message, up to its order or the number of a parcel.
func (s *System) appendWay(verb string) []byte {
	b := append(make([]byte, 0, 96), verb...)
	return append(append(b, s.Addr()...), ' ')
}

// here makes a call to an actor of this System.
func (s *System) here(ctx context.Context, m *letter) error {
	if e := envelopeOf(ctx); e != nil && e.cell.system == s {
		m.parcel.by = e.cell
	}
	s.local.add(&m.parcel)
	defer s.local.remove(&m.parcel)
	verb := verbSend
	if m.asks {
		verb = verbAsk
	}
	m.call.Metadata[keyWay] = string(strconv.AppendUint(s.appendWay(verb), m.parcel.number, 10))
	m.call.Args, m.call.Codec = &m.parcel, s.local
	return s.server.Do(ctx, &m.call)
}

// number gives a question its number. It returns the outbox.
func (s *System) number(m *letter, to Ref) *outbox {
	for {
		if o := s.outbox(to); o.add(m, s.appendWay(verbAsk)) {
			return o
		}
	}
}

// begin sends a letter that has a number to an actor of another System. It waits until ctx ends at
// most. The call has a context of its own.
func (s *System) begin(ctx, call context.Context, o *outbox, m *letter) {
	if m.client.connects() {
		m.client.queue(ctx, s, func() { s.depart(call, o, m) })
		return
	}
	s.depart(call, o, m)
}

// depart is begin for a letter that need not wait for a connection.
func (s *System) depart(ctx context.Context, o *outbox, m *letter) {
	m.to.Go(ctx, &m.call, func(err error) {
		s.ended(o, m, err)
		switch {
		case m.asks:
			m.done(m.explain(s, err))
		default:
			<-o.window
			if err != nil {
				s.opts.OnLost(m.ref, m.call.Method, err)
			}
			s.arrived()
		}
	})
}

// ended notes how the call of a letter has ended.
func (s *System) ended(o *outbox, m *letter, err error) {
	if order := o.ended(m, err); order != "" {
		kind := m.call.Method[:strings.LastIndex(m.call.Method, ".")]
		args := &skipArgs{Kind: kind, Name: m.call.Metadata[keyActor], Order: order}
		call := &yodel.Call{Method: string(skip), Args: args, Reply: new(struct{}), Codec: yodel.JSON}
		m.to.Go(s.ctx, call, func(error) {}) // if it is lost too, the next message has it
	}
	if m.client != nil && err != nil && yodel.CodeOf(err) == yodel.Unavailable {
		m.client.connected.Store(false)
	}
	m.client.release()
}

// manyOutboxes is the number of outboxes, and of clients, above which unused ones are forgotten.
const manyOutboxes = 1024

// outbox returns the outbox of messages to an actor.
func (s *System) outbox(to Ref) *outbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.outboxes[to]
	if o != nil {
		return o
	}
	if len(s.outboxes) >= max(s.many, manyOutboxes) {
		now := time.Now()
		for at, o := range s.outboxes {
			if o.retire(now) {
				delete(s.outboxes, at)
			}
		}
		s.many = 2 * len(s.outboxes)
	}
	s.last++
	o = newOutbox(s.id+"."+strconv.FormatUint(s.last, 10), s.opts.Window)
	s.outboxes[to] = o
	return o
}

// A client is a yodel.Client to another System.
type client struct {
	*yodel.Client
	open atomic.Int64 // calls; it grows only under the lock of the System
	used bool         // since forgetClientsLocked was called; guarded by the lock of the System

	connected atomic.Bool // as far as is known; it becomes true under mu
	mu        sync.Mutex
	waiting   []func()      // begin messages, in their order
	attempt   chan struct{} // is closed at the end of an attempt to connect; nil if there is none
}

// connects reports whether messages have to wait in the queue of the client. C may be nil.
func (c *client) connects() bool { return c != nil && !c.connected.Load() }

// queue calls begin when the client is connected, or cannot be. Without the queue, messages that
// wait for the connection would be sent in any order. Then the later ones could use all of the
// limits of the connection while they wait for an earlier one. Queue waits while it is full. If ctx
// ends then, queue calls begin, and the call of the message ends with ctx.
func (c *client) queue(ctx context.Context, s *System, begin func()) {
	c.mu.Lock()
	for c.attempt != nil && len(c.waiting) >= s.opts.Window && ctx.Err() == nil {
		ended := c.attempt
		c.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	if c.connected.Load() || ctx.Err() != nil {
		c.mu.Unlock()
		begin()
		return
	}
	c.waiting = append(c.waiting, begin)
	if c.attempt == nil {
		c.attempt = make(chan struct{})
		s.run(&connecting{s, c})
	}
	c.mu.Unlock()
}

// A connecting is an attempt to connect a client.
type connecting struct {
	system *System
	client *client
}

func (t *connecting) work() {
	c := t.client
	err := c.Ready(t.system.ctx) // the messages get the error too
	c.mu.Lock()
	for len(c.waiting) > 0 {
		begin := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		begin()
		c.mu.Lock()
	}
	c.connected.Store(err == nil)
	close(c.attempt)
	c.attempt, c.waiting = nil, nil
	c.mu.Unlock()
}

// release ends a use of the client. C may be nil.
func (c *client) release() {
	if c != nil {
		c.open.Add(-1)
	}
}

// route returns the sender of calls to the System at addr, and the client that is in use until
// release. The sender is nil for this System.
func (s *System) route(addr string) (sender, *client, error) {
	s.mu.Lock()
	switch {
	case s.clients == nil:
		s.mu.Unlock()
		return nil, nil, errShutDown
	case addr == s.Addr() || addr == s.hidden:
		s.mu.Unlock()
		return nil, nil, nil
	case strings.HasPrefix(addr, "@"):
		p, connected := s.peers[addr]
		if connected {
			select {
			case <-p.Done():
				delete(s.peers, addr)
				connected = false
			default:
			}
		}
		s.mu.Unlock()
		if !connected {
			return nil, nil, yodel.Errorf(yodel.Unavailable, "actor: the System %s, which does not listen, is not connected to this one", addr)
		}
		return p, nil, nil
	}
	var unused []*client
	c := s.clients[addr]
	if c == nil {
		if err := checkAddr(addr); err != nil {
			s.mu.Unlock()
			return nil, nil, yodel.Errorf(yodel.InvalidArgument, "actor: %.200q is not the address of a System: %v", addr, err)
		}
		unused = s.forgetClientsLocked()
		c = &client{Client: s.newClientLocked(addr)}
		s.clients[addr] = c
	}
	c.open.Add(1)
	c.used = true
	s.mu.Unlock()
	for _, c := range unused {
		c.Close()
	}
	return c.Client, c, nil
}

// newClientLocked returns a client of the System at addr.
func (s *System) newClientLocked(addr string) *yodel.Client {
	o := *s.opts.Client
	o.ConnMetadata = yodel.Metadata{keySystem: s.Addr()}
	maps.Copy(o.ConnMetadata, s.opts.Client.ConnMetadata)
	return yodel.NewClient(discovery.Static(addr), &o)
}

// forgetClientsLocked removes clients that were not used for some time, if there are many. The
// caller closes them. A System that does not listen keeps all of them, because others reach it over
// their connections.
func (s *System) forgetClientsLocked() (unused []*client) {
	if s.addr == "" || len(s.clients) < max(s.manyClients, manyOutboxes) {
		return nil
	}
	for addr, c := range s.clients {
		if !c.used && c.open.Load() == 0 {
			delete(s.clients, addr)
			unused = append(unused, c)
		}
		c.used = false
	}
	s.manyClients = len(s.clients) + manyOutboxes/2
	return unused
}
