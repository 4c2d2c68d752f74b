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
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes records of calls that failed, of calls that were slow, and of calls with
// Call.Explain. A record is made when the call has ended, from data that the call has anyway.
// Whether a call was slow is computed from the time at which the reader goroutine read the reply.

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
	x := c.out.readExtra()
	waited := x.resolving + x.parts.Connecting + c.out.req.Waited
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
		if c.Attempt > c.out.readExtra().counted { // the last attempt is not in the record
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

// creditOf returns how long the last attempt of a call waited for the server's window.
func creditOf(call *Call) time.Duration {
	if call.out == nil {
		return 0
	}
	return call.out.req.Waited
}

// waited adds to the times that the call has waited for the first set of instances, and for a
// connection.
func (c *Call) waited(resolving, connecting time.Duration) {
	if c.out == nil {
		return
	}
	x := c.out.useExtra()
	x.resolving += resolving
	x.parts.Connecting += connecting
}

// attempted returns the record of an attempt without its outcome, and resets the fields from which
// the record is made. Began and ended are readings of the clock.
func (o *outgoing) attempted(call *Call, began, ended time.Duration) introspect.Attempt {
	a := o.describe(call, began, ended)
	x := o.useExtra()
	if call.stream != nil {
		x.opened, call.stream.Traffic = o.arrived, mux.Traffic{}
	}
	x.counted, x.parts, o.req.Waited = call.Attempt, record.Parts{}, 0
	o.arrived, o.received = 0, 0
	return a
}

// describe returns the record of the last attempt without its outcome.
func (o *outgoing) describe(call *Call, began, ended time.Duration) introspect.Attempt {
	x, start := o.readExtra(), call.start()
	a := introspect.Attempt{
		Addr: addrOf(call), Began: max(began-start, 0), Took: ended - began, Fork: x.fork, BytesIn: int(o.received),
	}
	if call.Attempt > x.counted { // the attempt was sent
		a.BytesOut = len(o.req.Body) + len(o.req.Attachment) + len(o.req.Metadata)
	}
	if s := call.stream; s != nil {
		if s.Begun {
			a.Taken = max(o.arrived-began, 0) // when the server accepted or answered the stream
		}
		a.Sent, a.Received = s.Traffic.Sent, s.Traffic.Received
		a.BytesOut += s.Traffic.SentBytes
		a.BytesIn += s.Traffic.ReceivedBytes
	}
	x.parts.Describe(&a, o.req.Waited)
	return a
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
	if o.arrived == 0 && (!call.OneWay || call.Attempt == o.readExtra().counted) {
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
		if q.slowAfter == math.MaxInt64 || call.OneWay && call.rare == nil && o.readExtra().parts.Connecting == 0 && o.req.Waited == 0 {
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
	if used.concluded {
		return err
	}
	used.concluded = true
	now := clock()
	if err != nil && call.Attempt == 0 && q.client != nil {
		q.client.countUnsent(call, err)
	}
	kind := samples.KindOf(call.Explain, int(CodeOf(err)))
	kept := q.samples.Admit(kind, now)
	// The server's samples also contain the calls of its handlers.
	server, _ := ctx.Value(samplerKey{}).(*samples.Sampler)
	if server == q.samples || server != nil && !server.Admit(kind, now) {
		server = nil
	}
	whole := kept || server != nil || call.Explain
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
		r.Slow = cmp.Or(o.arrived, used.opened, now)-began >= q.slowAfter
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
		r.Began = monotime.Wall(now, began)
		if c := call.Client(); c != nil {
			c.cluster.describe(r, call, began, now)
		}
	}
	if kept {
		q.samples.Keep(kind, r)
	}
	if server != nil {
		server.Keep(kind, r)
	}
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
	state.Waited = call.out.readExtra().resolving
	r.Resolver = &state
	if call.rare.Candidates == nil {
		cl.survey(call, call.Endpoint, now)
	}
	call.rare.Candidates.Describe(r, began)
}

// resolver returns the state of the resolver.
func (cl *cluster) resolver() (s introspect.Resolver) {
	if set := cl.set.Load(); set != nil {
		s.Instances = len(set.endpoints)
	}
	failure, heard, _ := cl.list.Resolver()
	if !heard.IsZero() {
		s.Age = time.Since(heard)
	}
	s.Err = shorten(failure, record.MaxText)
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
	for _, ep := range set.endpoints {
		all.Add(ep.candidate(call, picked))
	}
	call.rarely().Candidates = all
}

// candidate describes the endpoint for the record of a call. It has no verdict if the endpoint
// could have been chosen as well.
func (ep *Endpoint) candidate(call *Call, picked *Endpoint) introspect.Candidate {
	in := ep.instance.Load()
	c := introspect.Candidate{
		Addr: in.Addr, Zone: in.Zone, Weight: in.Weight, Load: ep.Load(), RTT: ep.trip.Took(), Unlisted: ep.core.Unlisted(), NotReady: ep.notReady(),
	}
	if conns := ep.core.Conns(); len(conns) > 0 {
		_, c.Full = leastLoaded(conns, false)
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
	default:
		c.Verdict = ep.leftOut(call, picked)
	}
	return c
}

// leftOut returns why the picker does not pick the endpoint for a call, or "" if it does not say.
func (ep *Endpoint) leftOut(call *Call, picked *Endpoint) string {
	set := ep.client.cluster.set.Load()
	if set == nil {
		return ""
	}
	p, ok := set.picker.(interface {
		Verdict(call *Call, ep, picked *Endpoint) string
	})
	if !ok {
		return ""
	}
	return p.Verdict(call, ep, picked)
}

// notReady returns the reasons why the endpoint is not ready.
func (ep *Endpoint) notReady() []string {
	if ep.Ready() {
		return nil
	}
	by := ep.core.NotReady()
	by = by[:min(len(by), 8)]
	for i := range by {
		by[i] = shorten(by[i], record.MaxName)
	}
	return by
}

// slow reports whether the call was slow. Took is its duration since execution began. For a stream
// only the time until the method began counts, because the stream may go on for ever.
func (c *serverCall) slow(took time.Duration) bool {
	if c.stream != nil && c.executed {
		took = 0
		if c.times.Began != 0 { // otherwise no middleware ran before the method
			took = c.times.Began - c.times.Taken
		}
	}
	return took+c.times.Queued() >= c.server.slowAfter
}

// report makes the record of a call that this server executed.
func (c *serverCall) report(took time.Duration) {
	call := &c.call
	now := clock()
	kept := c.server.samples
	kind := samples.KindOf(call.Explain, int(CodeOf(c.err)))
	if !kept.Admit(kind, now) {
		return
	}
	r := &introspect.CallReport{
		Method: shorten(call.Method, record.MaxName), Side: serverSide, Slow: took != mux.Untimed && c.slow(took), Explained: call.Explain,
		Peer: c.peer.Addr.String(), Caller: c.as.caller, Attempt: call.Attempt, Criticality: call.Criticality, Tenant: shorten(call.Tenant, record.MaxName), Trace: samples.TraceID(call.Trace),
	}
	r.BytesIn, r.BytesOut = c.protocol.sizes()
	if c.stream != nil {
		t := c.stream.Traffic()
		r.Kind, r.Sent, r.Received = kinds.Name(c.as.Kind), t.Sent, t.Received
		if c.as.Kind == registered.AnyKind {
			r.Kind = kinds.Name(c.method.Kind)
		}
		r.BytesIn += t.ReceivedBytes
		r.BytesOut += t.SentBytes
	}
	if c.err != nil {
		failureOf(c.err).Call(r)
	}
	r.NotProcessed = c.notProcessed
	began := now
	if took != mux.Untimed {
		began = c.times.Describe(r, took, now)
	}
	r.Began = monotime.Wall(now, began)
	if !call.Deadline.IsZero() {
		r.Timeout = max(call.Deadline.Sub(timeOf(began)), 1)
	}
	if call.Budget > 0 {
		r.Budget = &introspect.Budget{Given: call.Budget, Left: max(call.Budget-1-int(min(c.used(), budget.Max)), 0)}
	}
	if call.rare != nil {
		call.rare.Notes(r, began)
	}
	kept.Keep(kind, r)
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
