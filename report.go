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
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes records of calls that failed, of calls that were slow, and of calls with
// Call.Explain. A record is made when the call has ended, from data that the call has anyway. So
// for a call without a record this costs two comparisons. Whether a call was slow is computed from
// the time at which the reader goroutine read the reply.

// slowTime is the default of ClientOptions.SlowAfter and ServerOptions.SlowAfter.
const slowTime = time.Second

// slowAfter returns the value of a SlowAfter option, with the default in place of 0.
func slowAfter(d time.Duration) time.Duration {
	switch {
	case d < 0:
		return math.MaxInt64
	case d == 0:
		return slowTime
	}
	return d
}

// Limits of a record.
const (
	maxCandidates  = 32
	maxAttempts    = 32
	maxNotes       = 32
	maxReportText  = 300 // bytes of a message
	maxReportShort = 100 // bytes of a name that a peer chose
)

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

// attempted returns the record of an attempt without its outcome, and resets the fields from which
// the record is made. Began and ended are readings of the clock.
func (c *Call) attempted(began, ended time.Duration) introspect.Attempt {
	a := c.describeAttempt(began, ended)
	o := c.out
	x := o.useExtra()
	if c.stream != nil {
		x.opened, c.stream.traffic = o.arrived, mux.Traffic{}
	}
	x.counted, x.connecting, o.req.Waited = c.Attempt, 0, 0
	o.arrived, o.received, x.serverTime, x.serverWait = 0, 0, 0, 0
	return a
}

// describeAttempt returns the record of the last attempt without its outcome.
func (c *Call) describeAttempt(began, ended time.Duration) introspect.Attempt {
	o, x, start := c.out, c.out.readExtra(), c.start()
	a := introspect.Attempt{
		Addr: addrOf(c), Began: max(began-start, 0), Took: ended - began, Fork: x.fork,
		Connecting: x.connecting, Credit: o.req.Waited, BytesIn: int(o.received),
	}
	if c.Attempt > x.counted { // the attempt was sent
		a.BytesOut = len(o.req.Body) + len(o.req.Attachment) + len(o.req.Metadata)
	}
	if c.stream != nil {
		c.stream.describe(&a, began, o.arrived)
	}
	if x.serverTime > 0 {
		a.Queue, a.Handler = x.serverWait, x.serverTime-x.serverWait
		a.Network = max(a.Took-a.Connecting-a.Credit-x.serverTime, 0)
	}
	return a
}

// describe adds the traffic of a stream to the record of an attempt. Taken is the reading of the
// clock when the server accepted or answered the stream, or 0.
func (s *outgoingStream) describe(a *introspect.Attempt, began, taken time.Duration) {
	if s.begun {
		a.Taken = max(taken-began, 0)
	}
	t := &s.traffic
	a.Sent, a.Received = t.Sent, t.Received
	a.BytesOut += t.SentBytes
	a.BytesIn += t.ReceivedBytes
}

// add adds an attempt to the record. If there are too many attempts, it drops one from the middle.
func (r *rareCall) add(a *introspect.Attempt) {
	if len(r.attempts) == maxAttempts {
		// errors that user code holds may refer to the old slice
		r.attempts = slices.Delete(slices.Clone(r.attempts), maxAttempts/2, maxAttempts/2+1)
		r.unlisted++
	}
	if r.attempts == nil {
		r.attempts = r.first[:0]
	}
	r.attempts = append(r.attempts, *a)
}

// record adds a failed attempt to the record.
func (c *Call) record(err error, began time.Duration) {
	if c.Endpoint == nil && c.out.peer == nil {
		return
	}
	now := clock()
	if began == 0 { // the attempt did not begin
		began = now
	}
	a := c.attempted(began, now)
	failAttempt(&a, err)
	c.rarely().add(&a)
}

// failAttempt adds the error of an attempt to its record.
func failAttempt(a *introspect.Attempt, err error) {
	e := asError(err)
	a.Code, a.ID, a.Message, a.NotProcessed = e.Code.String(), text.ID(e.ID), shorten(e.Message, maxReportText), e.NotProcessed
}

// recordGood adds the last attempt to the record, if it succeeded and is not there yet.
func (c *Call) recordGood() {
	o := c.out
	if o.arrived == 0 && (!c.OneWay || c.Attempt == o.readExtra().counted) {
		return
	}
	began, ended := o.began, o.arrived
	if began == 0 {
		began = c.start()
	}
	if c.stream != nil || ended == 0 {
		ended = clock()
	}
	a := c.attempted(began, ended)
	c.rarely().add(&a)
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
	if t := call.turn; t != nil && t.trip.kept != nil {
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
		if q.slowAfter == math.MaxInt64 || call.OneWay && call.rare == nil && o.readExtra().connecting == 0 && o.req.Waited == 0 {
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
	kind := samples.KindOf(call.Explain, err != nil)
	kept := q.samples.Admit(kind, now)
	// The server's samples also contain the calls of its handlers.
	server, _ := ctx.Value(samplerKey{}).(*sampler)
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
		Method: shorten(call.Method, maxReportShort), Side: clientSide, Began: mux.TimeOf(began).Round(0), Took: now - began, Slow: now-began >= q.slowAfter, Explained: call.Explain,
		Criticality: call.Criticality, Tenant: shorten(call.Tenant, maxReportShort), Timeout: call.allowed(ctx, began),
	}
	if call.stream != nil {
		r.Kind = kinds.Name(call.stream.kind)
		r.Slow = cmp.Or(o.arrived, used.opened, now)-began >= q.slowAfter
	}
	fail(r, err)
	if b := call.budget; b != nil {
		r.Budget = &introspect.Budget{Given: call.Budget, Left: int(b.Left())}
	}
	if call.turn != nil {
		r.Turn = call.turn.Stood()
	}
	call.recordGood()
	if call.stream != nil && call.stream.left {
		call.Note("caller", "left the loop")
	}
	x := call.rarely()
	r.Attempts, r.MoreAttempts = x.attempts, x.unlisted
	x.printNotes(r, began)
	if whole {
		r.Began = wallOf(now, began)
		call.describe(r, began, now)
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

// describe adds the resolver's state and the candidates to a record.
func (c *Call) describe(r *introspect.CallReport, began, now time.Duration) {
	client := c.Client()
	if client == nil {
		return
	}
	client.cluster.describe(r, c)
	if c.rare.survey == nil {
		client.cluster.survey(c, c.Endpoint, now)
	}
	if v := c.rare.survey; v != nil {
		r.Picker, r.Candidates, r.MoreCandidates, r.CandidatesAt = v.picker, v.candidates, v.more, max(v.at-began, 0)
	}
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

// wallOf converts a reading of the clock, at, to wall-clock time. Now is the current reading.
func wallOf(now, at time.Duration) time.Time {
	// the result has no monotonic part, because the wall clock may have been set meanwhile
	return time.Now().Add(at - now).Round(0).UTC()
}

// fail adds the error of a call to its record.
func fail(r *introspect.CallReport, err error) {
	if err == nil {
		return
	}
	e := asError(err)
	r.Code, r.ID, r.Message, r.NotProcessed = e.Code.String(), text.ID(e.ID), shorten(e.Message, maxReportText), e.NotProcessed
}

// allowed returns how long the call was allowed to take, or 0 if that is unlimited or unknown.
func (c *Call) allowed(ctx context.Context, began time.Duration) time.Duration {
	deadline := expiry.Earliest(ctx, c.Deadline)
	if c.Attempt > 0 && c.out.binding != nil && !c.out.req.Deadline.IsZero() { // middleware/timeout resets its own
		deadline = c.out.req.Deadline
	}
	if deadline.IsZero() {
		return 0
	}
	return max(deadline.Sub(mux.TimeOf(began)), 1)
}

// printNotes adds the notes to the record.
func (x *rareCall) printNotes(r *introspect.CallReport, began time.Duration) {
	r.MoreNotes = x.unnoted
	for _, n := range x.notes {
		r.Notes = append(r.Notes, introspect.Note{At: max(n.at-began, 0), By: n.by, What: shorten(n.what, maxReportText)})
	}
	// the notes of forks were added last
	slices.SortStableFunc(r.Notes, func(a, b introspect.Note) int { return cmp.Compare(a.At, b.At) })
}

// describe adds the resolver's state to a record.
func (cl *cluster) describe(r *introspect.CallReport, call *Call) {
	s := cl.resolver()
	s.Waited = call.out.readExtra().resolving
	r.Resolver = &s
}

// resolver returns the state of the resolver.
func (cl *cluster) resolver() (s introspect.Resolver) {
	if set := cl.set.Load(); set != nil {
		s.Instances = len(set.endpoints)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.heard != 0 {
		s.Age = clock() - cl.heard
	}
	s.Err = shorten(cl.errText, maxReportText)
	return s
}

// A survey lists the candidate endpoints of an attempt.
type survey struct {
	picker     string // the picker
	candidates []introspect.Candidate
	more       int           // the number of candidates left out
	at         time.Duration // on the clock
}

// survey stores the current candidate endpoints of an attempt for the call's record. Picked is the
// endpoint that was chosen.
func (cl *cluster) survey(call *Call, picked *Endpoint, now time.Duration) {
	set := cl.set.Load()
	if set == nil {
		return
	}
	v := &survey{picker: fmt.Sprintf("%T", set.picker), at: now}
	if p, ok := set.picker.(fmt.Stringer); ok {
		v.picker = shorten(p.String(), maxReportText)
	}
	var rest []introspect.Candidate
	for _, ep := range set.endpoints {
		switch c, told := ep.candidate(call, picked); {
		case told && len(v.candidates) < maxCandidates:
			v.candidates = append(v.candidates, c)
		case !told && len(rest) < maxCandidates:
			rest = append(rest, c)
		default:
			v.more++
		}
	}
	fits := min(len(rest), maxCandidates-len(v.candidates))
	v.more += len(rest) - fits
	v.candidates = append(v.candidates, rest[:fits]...)
	call.rarely().survey = v
}

// candidate describes the endpoint for the record of a call. Told reports whether the record should
// contain this candidate.
func (ep *Endpoint) candidate(call *Call, picked *Endpoint) (c introspect.Candidate, told bool) {
	in := ep.instance.Load()
	c = introspect.Candidate{
		Addr: shorten(in.Addr, maxReportShort), Zone: shorten(in.Zone, maxReportShort), Weight: in.Weight, Load: ep.Load(), RTT: time.Duration(ep.trip.took.Load()),
		Unlisted: ep.unlisted.Load(), NotReady: ep.notReady(),
	}
	if conns := *ep.conns.Load(); len(conns) > 0 {
		_, c.Full = leastLoaded(conns)
	}
	switch {
	case ep == picked:
		c.Verdict = "picked"
	case slices.Contains(call.tried, ep), call.hasTried(c.Addr):
		c.Verdict = "tried before"
	case call.besides(ep):
		c.Verdict = "another attempt is on its way to it"
	case len(c.NotReady) > 0:
		c.Verdict = "not ready"
	case call.pinned():
		c.Verdict = "the call is pinned elsewhere"
	default:
		if c.Verdict = ep.leftOut(call, picked); c.Verdict == "" {
			c.Verdict = "not chosen"
			return c, false
		}
	}
	return c, true
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
	return shorten(p.Verdict(call, ep, picked), maxReportText)
}

func (c *Call) hasTried(addr string) bool {
	return c.rare != nil && slices.ContainsFunc(c.rare.attempts, func(a introspect.Attempt) bool { return a.Addr == addr })
}

// notReady returns the reasons why the endpoint is not ready.
func (ep *Endpoint) notReady() []string {
	if ep.Ready() {
		return nil
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	var by []string
	for name := range ep.by {
		by = append(by, shorten(name, maxReportShort))
	}
	slices.Sort(by)
	return by[:min(len(by), 8)]
}

// queued returns how long the request waited before its execution began, or 0 if that is unknown.
func (c *serverCall) queued() time.Duration {
	if c.arrived == 0 {
		return 0
	}
	return max(c.taken-c.arrived, 0)
}

// slow reports whether the call was slow. Took is its duration since execution began. For a stream
// only the time until the method began counts, because the stream may go on for ever.
func (c *serverCall) slow(took time.Duration) bool {
	if c.stream != nil && c.executed {
		took = 0
		if c.began != 0 { // otherwise no middleware ran before the method
			took = c.began - c.taken
		}
	}
	return took+c.queued() >= c.server.slowAfter
}

// report makes the record of a call that this server executed.
func (c *serverCall) report(took time.Duration) {
	call := &c.call
	now := clock()
	kept := c.server.samples
	kind := samples.KindOf(call.Explain, c.err != nil)
	if !kept.Admit(kind, now) {
		return
	}
	queue := c.queued()
	r := &introspect.CallReport{
		Method: shorten(call.Method, maxReportShort), Side: serverSide, Slow: took != mux.Untimed && c.slow(took), Explained: call.Explain,
		Peer: c.peer.Addr.String(), Attempt: call.Attempt, Criticality: call.Criticality, Tenant: shorten(call.Tenant, maxReportShort),
	}
	r.BytesIn, r.BytesOut = c.protocol.sizes()
	if c.stream != nil {
		t := c.stream.Traffic()
		r.Kind, r.Sent, r.Received = kinds.Name(c.as.kind), t.Sent, t.Received
		if c.as.kind == anyKind {
			r.Kind = kinds.Name(c.method.kind)
		}
		r.BytesIn += t.ReceivedBytes
		r.BytesOut += t.SentBytes
	}
	fail(r, c.err)
	r.NotProcessed = c.notProcessed
	began := now
	if took != mux.Untimed {
		r.Took = queue + took
		began = c.taken - queue
		if c.taken == 0 {
			began = now - r.Took
		}
		if c.began >= began && c.began != 0 {
			queue = min(c.began-began, r.Took)
		}
		r.Queue, r.Handler = queue, r.Took-queue
	}
	r.Began = wallOf(now, began)
	if !call.Deadline.IsZero() {
		r.Timeout = max(call.Deadline.Sub(mux.TimeOf(began)), 1)
	}
	if call.Budget > 0 {
		r.Budget = &introspect.Budget{Given: call.Budget, Left: max(call.Budget-1-int(min(c.used(), budget.Max)), 0)}
	}
	if call.rare != nil {
		call.rare.printNotes(r, began)
	}
	kept.Keep(kind, r)
}

// Samples returns records of recent calls of the client that failed, that were slow, or that had
// Call.Explain set. A nil query returns all records. Samples may be called concurrently.
func (c *Client) Samples(q *introspect.SamplesQuery) *introspect.Samples {
	return readSamples(c.samples, q)
}

// Samples returns records of recent calls that the server has executed, and of calls that it and
// its handlers have made. If ServerOptions.Diagnostics is set, the built-in method yodel.Samples
// returns the same records to callers. A nil query returns all records. Samples may be called
// concurrently.
func (s *Server) Samples(q *introspect.SamplesQuery) *introspect.Samples {
	return readSamples(s.samples, q)
}

// samplerKey is the context key of the sampler of a handler's server.
type samplerKey struct{}

// A sampler keeps the records of the calls of one client or server.
type sampler = samples.Sampler[introspect.CallReport]

// readSamples returns the records that match q.
func readSamples(s *sampler, q *introspect.SamplesQuery) *introspect.Samples {
	if q == nil {
		q = &introspect.SamplesQuery{}
	}
	out := &introspect.Samples{
		Failed: s.Seen(samples.Failed), Slow: s.Seen(samples.Slow), Explained: s.Seen(samples.Explained),
		LeftOut: s.LeftOut(), Calls: []introspect.CallReport{},
	}
	all := !q.Failed && !q.Slow && !q.Explained
	for _, r := range s.Records() {
		kind := all || q.Failed && r.Code != "" || q.Slow && r.Slow || q.Explained && r.Explained
		if kind && (q.Method == "" || q.Method == r.Method) && (q.Side == "" || q.Side == r.Side) {
			out.Calls = append(out.Calls, *r)
		}
	}
	slices.SortStableFunc(out.Calls, func(a, b introspect.CallReport) int { return b.Began.Add(b.Took).Compare(a.Began.Add(a.Took)) })
	if q.Limit > 0 && q.Limit < len(out.Calls) {
		out.Calls = out.Calls[:q.Limit]
	}
	return out
}
