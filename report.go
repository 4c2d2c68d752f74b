// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/introspect"
)

// Calls that failed, calls that were slow, and calls with Call.Explain have a record. A record is
// made when the call has ended, from data that the call has anyway. Whether a call was slow is
// computed from the time at which the reader goroutine read the reply.

// Report returns, on the client, the record of a call that has ended. It is nil unless the call
// failed, was slow (see ClientOptions.SlowAfter), or has Explain set. The record must not be
// changed.
func (c *Call) Report() *introspect.CallReport {
	if c.rare == nil {
		return nil
	}
	return c.rare.report
}

// start returns when the call was made, and stores it. It returns 0 if the time is unknown.
func (c *Call) start() time.Duration {
	if c.began == 0 && c.out != nil {
		if c.began = c.out.began; c.began == 0 && c.out.async != nil {
			c.began = c.out.req.Began
		}
	}
	return c.began
}

// Queued returns, for observers, how long the call has waited so far: on the server from the
// arrival of the request until a goroutine began to work on it, and on the client for the first set
// of instances, for connections, and for room in the windows of servers. It is zero where the time
// is unknown.
func (c *Call) Queued() time.Duration {
	switch {
	case c.in != nil:
		return c.in.times.Queued()
	case c.out == nil:
		return 0
	}
	waited := c.out.readExtra().Waited() + c.out.req.Waited
	if c.rare != nil {
		waited += c.rare.Waited()
	}
	return waited
}

// Traffic returns, for observers and handlers, how much was sent and received for the call so far,
// in all its attempts. It counts the bytes of bodies, attachments and metadata in the form in which
// they travel.
func (c *Call) Traffic() (t introspect.Traffic) {
	switch {
	case c.in != nil:
		in := c.in
		t.BytesIn, t.BytesOut = in.protocol.sizes()
		if in.stream != nil {
			s := in.stream.Traffic()
			t.Received, t.Sent = s.Received, s.Sent
			t.BytesIn += s.ReceivedBytes
			t.BytesOut += s.SentBytes
		}
	case c.out != nil:
		if c.rare != nil {
			c.rare.AddTraffic(&t)
		}
		if c.Attempt > c.out.readExtra().Counted { // the last attempt is not in the record
			a := c.out.describe(c, 0, 0)
			t.Add(&a)
		}
	}
	return t
}

// Now returns the time for middleware. On the client, Now returns the time at which the call was
// made until the call's first attempt goes to an endpoint, so that the clock is read once.
func (c *Call) Now() time.Time {
	if c.in != nil || c.out == nil || c.out.began != 0 {
		return time.Now()
	}
	return timeOf(c.made())
}

// made returns approximately when the call was made. The first use reads the clock.
func (c *Call) made() time.Duration {
	if c.began == 0 {
		c.began = clock()
	}
	return c.began
}

// partOf returns what the reason of a failure says about a call.
func partOf(call *Call) reason.Call {
	part := reason.Call{Method: call.Method, Streams: call.stream != nil}
	if call.out != nil {
		part.Waited = call.out.req.Waited
	}
	return part
}

// waited adds to the times that the call has waited for the first set of instances, and for a
// connection.
func (c *Call) waited(resolving, connecting time.Duration) {
	if c.out == nil {
		return
	}
	x := c.out.useExtra()
	x.Resolving += resolving
	x.Parts.Connecting += connecting
}

// attempted returns the record of an attempt without its outcome, and resets the fields from which
// the record is made. Began and ended are readings of the clock.
func (o *outgoing) attempted(call *Call, began, ended time.Duration) introspect.Attempt {
	a := o.describe(call, began, ended)
	x := o.useExtra()
	if call.stream != nil {
		x.Opened, call.stream.Traffic = o.arrived, mux.Traffic{}
	}
	x.Counted, x.Parts, o.req.Waited = call.Attempt, record.Parts{}, 0
	o.arrived, o.received = 0, 0
	return a
}

// describe returns the record of the last attempt without its outcome.
func (o *outgoing) describe(call *Call, began, ended time.Duration) introspect.Attempt {
	t := record.LastAttempt{
		Addr: addrOf(call), Start: call.start(), Began: began, Ended: ended, Arrived: o.arrived, Credit: o.req.Waited, Fork: o.readExtra().fork,
		BytesIn: int(o.received), BytesOut: len(o.req.Body) + len(o.req.Attachment) + len(o.req.Metadata),
	}
	if s := call.stream; s != nil {
		t.Accepted = s.Begun
		t.Stream = introspect.Traffic{Sent: s.Traffic.Sent, Received: s.Traffic.Received, BytesOut: s.Traffic.SentBytes, BytesIn: s.Traffic.ReceivedBytes}
	}
	return o.readExtra().Describe(&t, call.Attempt)
}

// failureOf returns an error as records contain it.
func failureOf(err error) record.Failure {
	e := asError(err)
	return record.Failure{Code: e.Code.String(), ID: e.ID, Message: e.Message, NotProcessed: e.NotProcessed}
}

// record adds a failed attempt to the record of its call.
func (o *outgoing) record(call *Call, err error, began time.Duration) {
	if call.Endpoint == nil && o.peer == nil {
		return
	}
	now := clock()
	if began == 0 { // the attempt did not begin
		began = now
	}
	a := o.attempted(call, began, now)
	failureOf(err).Attempt(&a)
	call.rarely().Add(&a)
}

// recordGood adds the last attempt to the record of its call, if it succeeded and is not there yet.
func (o *outgoing) recordGood(call *Call) {
	if o.arrived == 0 && (!call.OneWay || call.Attempt == o.readExtra().Counted) {
		return
	}
	began, ended := o.began, o.arrived
	if began == 0 {
		began = call.start()
	}
	if call.stream != nil || ended == 0 {
		ended = clock()
	}
	a := o.attempted(call, began, ended)
	call.rarely().Add(&a)
}

// watchAttempt runs the Attempt functions of the observers for an attempt that ended with err.
//
//go:noinline
func (q *requester) watchAttempt(ctx context.Context, call *Call, err error) {
	o := call.out
	watchers := o.watchers().attempts
	if len(watchers) == 0 {
		return
	}
	began := cmp.Or(max(o.req.Began, o.began), call.start())
	a := o.describe(call, began, clock())
	if err != nil {
		failureOf(q.explainAt(ctx, call, addrOf(call), err)).Attempt(&a)
	}
	for i := range watchers {
		func() {
			defer q.guard.Rescue("an Observer's Attempt")
			watchers[i].Attempt(ctx, call, &a)
		}()
	}
}

// conclude ends a call, makes its record if one is needed, and returns the error for the caller.
// For a call with observers, observe has already done this.
func (q *requester) conclude(ctx context.Context, call *Call, err error) error {
	if call.watch != unwatched {
		return err
	}
	return q.concludeOnce(ctx, call, err)
}

func (q *requester) concludeOnce(ctx context.Context, call *Call, err error) error {
	if !q.remarkable(call, err) {
		return err
	}
	return q.report(ctx, call, causedAtEnd(ctx, err))
}

// remarkable reports whether a call that ended with err needs a record.
func (q *requester) remarkable(call *Call, err error) bool {
	if t := call.turn; t != nil && t.kept != nil {
		return false // another goroutine may be sending the call again, with the same memory
	}
	// an ordered one-way call may still be in flight: see Call.keep
	return err != nil || (call.Explain || q.slow(call)) && (!call.OneWay || call.turn == nil)
}

// slow reports whether a successful call was slow.
func (q *requester) slow(call *Call) bool {
	if call.watch != unwatched && call.stream == nil {
		return call.Took() >= q.slowAfter
	}
	o := call.out
	ended := o.arrived
	if ended == 0 || call.rare != nil { // no reply has come, or there were earlier attempts
		if q.slowAfter == math.MaxInt64 || call.OneWay && call.rare == nil && o.readExtra().Parts.Connecting == 0 && o.req.Waited == 0 {
			return false
		}
		if call.stream == nil || ended == 0 {
			ended = clock()
		}
	}
	return ended-call.start() >= q.slowAfter
}

// report makes the record of a call that has ended, once, and returns err with it. If calls fail
// faster than their records can be kept, report omits the parts that take long to make. For a call
// that never reached an endpoint it then makes no record at all.
func (q *requester) report(ctx context.Context, call *Call, err error) error {
	o := call.out
	used := o.useExtra()
	if used.Concluded {
		return err
	}
	used.Concluded = true
	now := clock()
	if err != nil && call.Attempt == 0 && q.client != nil {
		q.client.countUnsent(call, err)
	}
	server, _ := ctx.Value(samplerKey{}).(*samples.Sampler) // it also has the calls of its handlers
	kept := samples.Admit(call.Explain, int(CodeOf(err)), now, q.samples, server)
	whole := kept.Any() || call.Explain
	if !whole && call.rare == nil && call.Attempt == 0 {
		return err
	}
	began := call.start()
	if began == 0 {
		began = now
	}
	r := &introspect.CallReport{
		Method: shorten(call.Method, record.MaxName), Side: clientSide, Began: timeOf(began).Round(0), Took: now - began, Slow: now-began >= q.slowAfter, Explained: call.Explain,
		Criticality: call.Criticality, Tenant: shorten(call.Tenant, record.MaxName), Trace: samples.TraceID(call.Trace), Timeout: o.allowed(ctx, call, began),
	}
	if call.stream != nil {
		r.Kind = kinds.Name(call.stream.Kind)
		r.Slow = cmp.Or(o.arrived, used.Opened, now)-began >= q.slowAfter
	}
	if err != nil {
		failureOf(err).Call(r)
	}
	if b := call.budget; b != nil {
		r.Budget = &introspect.Budget{Given: call.Budget, Left: int(b.Left())}
	}
	if call.turn != nil {
		r.Turn = call.turn.Stood()
	}
	o.recordGood(call)
	if call.stream != nil && call.stream.Left {
		call.Note("caller", "left the loop")
	}
	x := call.rarely()
	x.Attempts(r)
	x.Notes(r, began)
	if whole {
		r.Began = monotime.Wall(began)
		if c := call.Client(); c != nil {
			c.cluster.describe(r, call, began, now)
		}
	}
	kept.Keep(r)
	before := x.report
	x.report = r
	return q.attach(err, r, before, x.own)
}

// attach returns err with its record. If user code may already hold err, attach returns a copy. It
// does not change an error that middleware has wrapped or has made without an ID, or an error that
// has the record of another call. Before is the earlier record that err may have. Own is an error
// to which only the client has a pointer.
func (q *requester) attach(err error, r, before *introspect.CallReport, own *Error) error {
	e, ok := err.(*Error) //nolint:errorlint // a wrapped error is the wrapper's
	switch {
	case ok && e == own: // no user code holds it
		e.Report, e.relayed = r, true
		return e
	case !ok || e.Report == nil && e.ID == "" || e.Report != nil && e.Report != before:
		return err
	}
	final := *e
	if final.Report == nil {
		final.Cause = e // errors.Is finds e itself as well
	}
	final.Report, final.relayed = r, true
	return &final
}

// allowed returns how long the call was allowed to take, or 0 if that is unlimited or unknown.
func (o *outgoing) allowed(ctx context.Context, call *Call, began time.Duration) time.Duration {
	deadline := expiry.Earliest(ctx, call.Deadline)
	if call.Attempt > 0 && o.binding != nil && !o.req.Deadline.IsZero() { // middleware/timeout resets its own
		deadline = o.req.Deadline
	}
	if deadline.IsZero() {
		return 0
	}
	return max(deadline.Sub(timeOf(began)), 1)
}

// describe adds the resolver's state and the candidates to a record.
func (cl *cluster) describe(r *introspect.CallReport, call *Call, began, now time.Duration) {
	state := cl.resolver()
	state.Waited = call.out.readExtra().Resolving
	r.Resolver = &state
	if call.rare.Candidates == nil {
		cl.survey(call, call.Endpoint, now)
	}
	call.rare.Candidates.Describe(r, began)
}

// resolver returns the state of the resolver.
func (cl *cluster) resolver() introspect.Resolver {
	s := cl.list.Describe()
	if set := cl.set.Load(); set != nil {
		s.Instances = len(set.endpoints)
	}
	return s
}

// survey stores the current candidate endpoints of an attempt for the call's record. Picked is the
// endpoint that was chosen.
func (cl *cluster) survey(call *Call, picked *Endpoint, now time.Duration) {
	set := cl.set.Load()
	if set == nil {
		return
	}
	all := &record.Candidates{Picker: fmt.Sprintf("%T", set.picker), At: now}
	if p, ok := set.picker.(fmt.Stringer); ok {
		all.Picker = p.String()
	}
	judge, _ := set.picker.(interface {
		Verdict(call *Call, ep, picked *Endpoint) string
	})
	for _, ep := range set.endpoints {
		c := ep.candidate(call, picked)
		if c.Verdict == "" && judge != nil { // the picker may say why it does not pick the endpoint
			c.Verdict = judge.Verdict(call, ep, picked)
		}
		all.Add(c)
	}
	call.rarely().Candidates = all
}

// candidate describes the endpoint for the record of a call. It has no verdict if the endpoint
// could have been chosen as well.
func (ep *Endpoint) candidate(call *Call, picked *Endpoint) introspect.Candidate {
	in := ep.instance.Load()
	c := introspect.Candidate{
		Addr: in.Addr, Zone: in.Zone, Weight: in.Weight, Load: ep.Load(), RTT: ep.trip.Took(), Unlisted: ep.core.Unlisted(), NotReady: ep.core.NotReady(),
	}
	if conns := ep.core.Conns(); len(conns) > 0 {
		_, c.Full = dialled.Conns(conns).Least(false)
	}
	switch {
	case ep == picked:
		c.Verdict = "picked"
	case slices.Contains(call.tried, ep), call.rare != nil && call.rare.Tried(c.Addr):
		c.Verdict = "tried before"
	case call.besides(ep):
		c.Verdict = "another attempt is on its way to it"
	case len(c.NotReady) > 0:
		c.Verdict = "not ready"
	case call.pinned():
		c.Verdict = "the call is pinned elsewhere"
	}
	return c
}

// slow reports whether the call was slow. Took is its duration since execution began.
func (c *serverCall) slow(took time.Duration) bool {
	return c.times.Slow(took, c.stream != nil && c.executed, c.server.slowAfter)
}

// report makes the record of a call that this server executed.
func (c *serverCall) report(took time.Duration) {
	call := &c.call
	now := clock()
	kept := samples.Admit(call.Explain, int(CodeOf(c.err)), now, c.server.samples)
	if !kept.Any() {
		return
	}
	r := &introspect.CallReport{
		Method: shorten(call.Method, record.MaxName), Side: serverSide, Slow: took != mux.Untimed && c.slow(took), Explained: call.Explain,
		Peer: c.peer.Addr.String(), Caller: c.as.caller, Attempt: call.Attempt, Criticality: call.Criticality, Tenant: shorten(call.Tenant, record.MaxName), Trace: samples.TraceID(call.Trace),
	}
	t := call.Traffic()
	r.BytesIn, r.BytesOut, r.Sent, r.Received = t.BytesIn, t.BytesOut, t.Sent, t.Received
	if c.stream != nil {
		r.Kind = kinds.Name(c.as.Kind)
		if c.as.Kind == registered.AnyKind {
			r.Kind = kinds.Name(c.method.Kind)
		}
	}
	if c.err != nil {
		failureOf(c.err).Call(r)
	}
	r.NotProcessed = c.notProcessed
	began := now
	if took != mux.Untimed {
		began = c.times.Describe(r, took, now)
	}
	r.Began = monotime.Wall(began)
	if !call.Deadline.IsZero() {
		r.Timeout = max(call.Deadline.Sub(timeOf(began)), 1)
	}
	if call.Budget > 0 {
		r.Budget = &introspect.Budget{Given: call.Budget, Left: max(call.Budget-1-int(min(c.used(), budget.Max)), 0)}
	}
	if call.rare != nil {
		call.rare.Notes(r, began)
	}
	kept.Keep(r)
}

// Samples returns records of recent calls of the client that failed, that were slow, or that had
// Call.Explain set. A nil query returns all records. Samples may be called concurrently.
func (c *Client) Samples(q *introspect.SamplesQuery) *introspect.Samples {
	return c.samples.Read(q)
}

// Samples returns records of recent calls that the server has executed, and of calls that it and
// its handlers have made. If ServerOptions.Diagnostics is set, the built-in method yodel.Samples
// returns the same records to callers. A nil query returns all records. Samples may be called
// concurrently.
func (s *Server) Samples(q *introspect.SamplesQuery) *introspect.Samples {
	return s.samples.Read(q)
}

// samplerKey is the context key of the sampler of a handler's server.
type samplerKey struct{}

// An Observer watches calls without changing them. Unlike with a Middleware, an asynchronous call
// with an Observer needs no goroutine of its own. Each function may be nil. Several goroutines may
// call the functions at the same time. The functions must return soon.
type Observer struct {
	// Start runs before the call is sent or its handler is called. The context that Start returns
	// becomes the context of the call.
	Start func(ctx context.Context, call *Call) context.Context
	// Attempt runs when an attempt of the call has ended, on the side that sends it. The record is
	// valid until Attempt returns. One-way attempts end when they are sent.
	Attempt func(ctx context.Context, call *Call, attempt *introspect.Attempt)
	// Message runs when a message of a stream was sent or received, on both sides. Bytes is its
	// size when encoded, before compression.
	Message func(ctx context.Context, call *Call, sent bool, bytes int)
	// End runs when the call has ended: on the client before the caller gets the result, on the
	// server after the connection has taken the reply.
	End func(ctx context.Context, call *Call, err error)
	// Notable runs after End for calls that failed, and for calls whose Trace is sampled, on both
	// sides. All other calls cost nothing for an Observer that has only Notable. Call.Took is then
	// the time since the server began to execute the call, or since the client made it. It is 0 for
	// a call that could not be sent or that the server has not timed.
	Notable func(ctx context.Context, call *Call, err error)
}

// Took returns how long the call has taken so far, for its observers. This is the time from just
// before the first observer starts until the call has ended, so all observers see the same
// duration. It is zero for a call without observers.
func (c *Call) Took() time.Duration {
	if c.watch == watching {
		return clock() - c.began
	}
	return c.took
}

// startAll runs the Start functions of the observers. It is not inlined, so that its stack frame is
// gone while the call runs: see Decode of package body.
//
//go:noinline
func startAll(ctx context.Context, observers []Observer, call *Call) context.Context {
	if len(observers) == 0 {
		return ctx
	}
	call.watch = watching
	call.made()
	for i := range observers {
		if start := observers[i].Start; start != nil {
			ctx = start(ctx, call) //nolint:fatcontext // each observer adds to it
		}
	}
	return ctx
}

// endAll runs the End functions of the observers, in reverse order.
//
//go:noinline
func endAll(ctx context.Context, g *guard.Guard, observers []Observer, call *Call, err error) {
	if len(observers) == 0 {
		return
	}
	call.stopWatch()
	for _, o := range slices.Backward(observers) {
		if o.End != nil {
			o.end(ctx, g, call, err)
		}
	}
}

// end calls End. If End panics, the other observers still run.
func (o *Observer) end(ctx context.Context, g *guard.Guard, call *Call, err error) {
	defer g.Rescue("an Observer's End")
	o.End(ctx, call, err)
}

// stopWatch stores the duration of an observed call.
func (c *Call) stopWatch() {
	if c.watch == watching {
		c.took, c.watch = c.Took(), watched
	}
}

// watchers is the observers of one kind of calls, by their functions.
type watchers struct {
	calls    []Observer // those with a function for all calls
	attempts []Observer // those with Attempt
	messages []Observer // those with Message
	notable  []Observer // those with Notable
}

func watchersOf(observers []Observer) watchers {
	with := func(wanted func(o *Observer) bool) []Observer {
		return slices.DeleteFunc(slices.Clone(observers), func(o Observer) bool { return !wanted(&o) })
	}
	return watchers{
		calls:    with(func(o *Observer) bool { return o.Start != nil || o.Attempt != nil || o.Message != nil || o.End != nil }),
		attempts: with(func(o *Observer) bool { return o.Attempt != nil }),
		messages: with(func(o *Observer) bool { return o.Message != nil }),
		notable:  with(func(o *Observer) bool { return o.Notable != nil }),
	}
}

// wants reports whether Notable must run for a call that has ended with err.
func (w *watchers) wants(call *Call, err error) bool {
	return len(w.notable) > 0 && (err != nil || call.Trace != "" && samples.Sampled(call.Trace))
}

// tellNotable runs the Notable functions for a call that has ended.
func (w *watchers) tellNotable(ctx context.Context, g *guard.Guard, call *Call, err error) {
	for i := range w.notable {
		func() {
			defer g.Rescue("an Observer's Notable")
			w.notable[i].Notable(ctx, call, err)
		}()
	}
}

// tellNotable runs the Notable functions for a call that the server has executed. Took is the time
// since execution began, or mux.Untimed.
func (c *serverCall) tellNotable(took time.Duration) {
	call := &c.call
	if call.watch != watched {
		if took == mux.Untimed {
			took = 0
			if call.began != 0 {
				took = clock() - call.began
			}
		}
		call.took = took
	}
	c.server.watchers.tellNotable(c.ctx, c.server.guard, call, c.err)
	if call.watch != watched {
		call.took = 0 // the memory may be used for another call
	}
}

// endWatched runs the End and Notable functions for a call that this side has made, and counts the
// call.
//
//go:noinline
func (q *requester) endWatched(ctx context.Context, w *watchers, o *outgoing, call *Call, err error) {
	endAll(ctx, q.guard, w.calls, call, err)
	q.count(o, call, err)
	if w.wants(call, err) {
		call.took = q.tookFor(o, call, err)
		w.tellNotable(ctx, q.guard, call, err)
	}
}

// A messageWatch runs the Message functions of observers for one stream.
type messageWatch struct {
	observers []Observer
	guard     *guard.Guard
	call      *Call
}

// Message runs them for a message.
func (w *messageWatch) Message(ctx context.Context, sent bool, bytes int) {
	for i := range w.observers {
		func() {
			defer w.guard.Rescue("an Observer's Message")
			w.observers[i].Message(ctx, w.call, sent, bytes)
		}()
	}
}

// ending returns the event for a connection that ended with err.
func ending(addr string, err error) introspect.ConnEvent {
	kind, why := reason.OfEnd(err)
	return introspect.ConnEvent{Kind: kind, Addr: addr, Err: why}
}

// event passes a connection event to the OnConn hook. If the event suggests that instances have
// moved, it also asks the resolver to refresh.
func (c *Client) event(e introspect.ConnEvent) {
	if c.refresh != nil && e.Kind != introspect.Connected && e.Kind != introspect.Closed {
		_ = c.guard.Apart("the resolver's Refresh", nil, func() error { // a failure is in the log
			c.refresh()
			return nil
		})
	}
	if c.opts.OnConn != nil {
		_ = c.hooks.Run(c.guard, "the OnConn hook", func() error {
			c.opts.OnConn(e)
			return nil
		})
	}
}
