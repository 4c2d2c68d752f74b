// SPDX-License-Identifier: Apache-2.0

package introspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
)

// A CallReport is the record of one call. It is created if the call failed, was slow, or was to be
// explained. The client that made the call creates one. The server that executed it creates another
// one, with less about the network and more about the server. Durations in JSON are nanoseconds.
// The record contains no arguments, no metadata and no attachment. It must not be changed.
//
// The error of a failed call contains the client's record, and yodel.Call.Report returns it. The
// built-in method inspect.Samples returns the records that a server has kept.
//
//	var report *introspect.CallReport
//	if errors.As(err, &report) { … }
type CallReport struct {
	Method string `json:"method"`
	Kind   string `json:"kind,omitempty"` // feed, upload or duplex; empty for one request and one reply
	// Side says who created the record: the "client" that made the call, or the "server" that
	// executed it.
	Side  string    `json:"side"`
	Began time.Time `json:"began"` // when the call was made, or received
	// Took is the total duration. It is 0 for a call on a server that was too short to be measured.
	Took      time.Duration `json:"took"`
	Slow      bool          `json:"slow,omitempty"`
	Explained bool          `json:"explained,omitempty"` // whether the caller has asked for this record

	Code         string `json:"code,omitempty"` // empty if the call succeeded, as are the next three
	ID           string `json:"id,omitempty"`   // of the error, as in docs/errors.md
	Message      string `json:"message,omitempty"`
	NotProcessed bool   `json:"notProcessed,omitempty"` // the method was certainly not executed

	Timeout     time.Duration `json:"timeout,omitempty"` // how long the call was allowed to take; 0 means no limit
	Budget      *Budget       `json:"budget,omitempty"`  // of attempts; nil if there is none
	Criticality int           `json:"criticality,omitempty"`
	Tenant      string        `json:"tenant,omitempty"`
	// Trace is the ID of the trace to which the call belongs: 32 hexadecimal digits. It is empty if
	// the call has no trace context.
	Trace string `json:"trace,omitempty"`

	// The following fields are set on the client.

	Resolver       *Resolver     `json:"resolver,omitempty"`       // that named the candidates; nil for a peer
	Picker         string        `json:"picker,omitempty"`         // that chose among them, or why it chose none
	Candidates     []Candidate   `json:"candidates,omitempty"`     // also empty if too many records were being created
	MoreCandidates int           `json:"moreCandidates,omitempty"` // how many candidates are omitted
	CandidatesAt   time.Duration `json:"candidatesAt,omitempty"`   // when the candidates were examined, after Began
	Turn           time.Duration `json:"turn,omitempty"`           // how long an ordered call waited for earlier ones
	// Attempts are in the order in which they ended. The last one decided the outcome.
	Attempts     []Attempt `json:"attempts,omitempty"`
	MoreAttempts int       `json:"moreAttempts,omitempty"` // how many attempts are omitted, in the middle

	// The following fields are set on the server.

	Peer    string `json:"peer,omitempty"`    // the address of the caller
	Caller  string `json:"caller,omitempty"`  // the name that the caller has given itself
	Attempt int    `json:"attempt,omitempty"` // how many times the caller had sent it before
	// Queue is the time until the method began: receiving the request, waiting, middleware,
	// decoding.
	Queue    time.Duration `json:"queue,omitempty"`
	Handler  time.Duration `json:"handler,omitempty"`  // the remaining time: the method, and encoding its reply
	BytesIn  int           `json:"bytesIn,omitempty"`  // of the request, and of the received messages
	BytesOut int           `json:"bytesOut,omitempty"` // of the reply, and of the sent messages
	Sent     int           `json:"sent,omitempty"`     // messages of the stream
	Received int           `json:"received,omitempty"` // messages of the stream

	Notes     []Note `json:"notes,omitempty"` // what middleware noted about the call
	MoreNotes int    `json:"moreNotes,omitempty"`
}

// Budget is how many attempts a call, and the calls that were made for it, could make.
type Budget struct {
	Given int `json:"given,omitempty"` // to this call; 0 if it shared the budget of the call for which it was made
	Left  int `json:"left"`            // remaining attempts
}

// Resolver is what the client knew of the instances.
type Resolver struct {
	Instances int           `json:"instances"`
	Age       time.Duration `json:"age"`              // since the last update
	Waited    time.Duration `json:"waited,omitempty"` // how long the call waited for the first update
	Err       string        `json:"err,omitempty"`    // why the resolver cannot name them at the moment
}

// A Candidate is an instance to which an attempt could have gone.
type Candidate struct {
	Addr string `json:"addr"`
	// Verdict is one of: picked, tried before, another attempt is on its way to it, not ready, the
	// call is pinned elsewhere, or not chosen. A picker may give another reason, for example left
	// out by a rule.
	Verdict string `json:"verdict"`
	// NotReady has the names under which the endpoint was made not ready, such as a breaker's, or
	// "connection".
	NotReady []string      `json:"notReady,omitempty"`
	Unlisted bool          `json:"unlisted,omitempty"` // the resolver no longer names it
	Full     bool          `json:"full,omitempty"`     // whether callers wait for its window
	Zone     string        `json:"zone,omitempty"`
	Weight   int           `json:"weight,omitempty"`
	Load     int           `json:"load,omitempty"` // calls that it is working on, as far as the client knows
	RTT      time.Duration `json:"rtt,omitempty"`  // the last measured round trip
}

// An Attempt is one attempt of a call on one endpoint.
type Attempt struct {
	Addr  string        `json:"addr"`  // of the endpoint
	Began time.Duration `json:"began"` // after the call was made
	Took  time.Duration `json:"took"`  // until the outcome was known
	Fork  bool          `json:"fork,omitempty"`

	// The following fields are the parts of Took. If Queue or Handler is not 0, the server has
	// reported its part, and Network is the rest.

	Connecting time.Duration `json:"connecting,omitempty"` // time waiting for a connection
	// Credit is the time waiting for the server's window, or for earlier frames to be written.
	Credit  time.Duration `json:"credit,omitempty"`
	Network time.Duration `json:"network,omitempty"`
	Queue   time.Duration `json:"queue,omitempty"`   // on the server, until the method began
	Handler time.Duration `json:"handler,omitempty"` // the method

	// Taken is when the server accepted the stream, or when the first message of a feed arrived,
	// after the attempt began. Only this time decides whether a stream is slow.
	Taken time.Duration `json:"taken,omitempty"`

	// BytesOut is the size of the body, attachment and metadata as sent, and of the messages of a
	// stream.
	BytesOut int `json:"bytesOut,omitempty"`
	BytesIn  int `json:"bytesIn,omitempty"`
	Sent     int `json:"sent,omitempty"`     // messages of the stream
	Received int `json:"received,omitempty"` // messages of the stream

	Code         string `json:"code,omitempty"` // empty if the attempt succeeded, as are the next three
	ID           string `json:"id,omitempty"`
	Message      string `json:"message,omitempty"`
	NotProcessed bool   `json:"notProcessed,omitempty"` // the method was certainly not executed
}

// Traffic is the amount of data that was sent and received for a call.
type Traffic struct {
	BytesOut int `json:"bytesOut,omitempty"`
	BytesIn  int `json:"bytesIn,omitempty"`
	Sent     int `json:"sent,omitempty"`     // messages of the stream
	Received int `json:"received,omitempty"` // messages of the stream
	Forks    int `json:"forks,omitempty"`    // attempts that ran beside another one, such as hedged requests
}

// Add adds the traffic of an attempt.
func (t *Traffic) Add(a *Attempt) {
	t.BytesOut += a.BytesOut
	t.BytesIn += a.BytesIn
	t.Sent += a.Sent
	t.Received += a.Received
	if a.Fork {
		t.Forks++
	}
}

// A Note is a middleware's note about a call.
type Note struct {
	At   time.Duration `json:"at"` // after the call was made
	By   string        `json:"by"` // the middleware
	What string        `json:"what"`
}

// SamplesQuery selects the records that inspect.Samples returns: the records of the given kinds, or
// all records if no kind is given.
type SamplesQuery struct {
	Method    string `json:"method,omitempty"` // only this method; empty means all
	Side      string `json:"side,omitempty"`   // only "client" or only "server"; empty means both
	Failed    bool   `json:"failed,omitempty"` // without canceled calls
	Slow      bool   `json:"slow,omitempty"`
	Explained bool   `json:"explained,omitempty"`
	Trace     string `json:"trace,omitempty"`  // only calls of this trace: its ID, or a traceparent
	Tenant    string `json:"tenant,omitempty"` // only calls for this tenant
	Limit     int    `json:"limit,omitempty"`  // the maximum number of records; 0 means all
}

// Samples has the records that a client or server has kept, newest first. It also counts the calls
// that could have a record. A call of several kinds is counted once: as one that was to be
// explained, or else as one that failed or was canceled.
type Samples struct {
	Calls     []CallReport `json:"calls"`
	Failed    uint64       `json:"failed"`
	Canceled  uint64       `json:"canceled"` // by their callers; they did not fail
	Slow      uint64       `json:"slow"`
	Explained uint64       `json:"explained"`
	LeftOut   uint64       `json:"leftOut"` // calls without a record, because there were too many at a time
}

// Failed reports whether the call failed. A call that its caller has canceled did not.
func (r *CallReport) Failed() bool { return r.Code != "" && OutcomeOf(r.Code) != Canceled }

// Error returns the record as text for people. This method makes a CallReport an error, so that
// errors.As finds it in the error of a call.
func (r *CallReport) Error() string { return r.String() }

// String returns the record as text for people, with one fact on each line.
func (r *CallReport) String() string {
	var p page
	p.linef("call", "%s", r.headline())
	if terms := r.terms(); terms != "" {
		p.linef("terms", "%s", terms)
	}
	if r.Trace != "" {
		p.linef("trace", "%s", r.Trace)
	}
	if r.Side == "server" {
		r.printServer(&p)
	} else {
		r.printChoice(&p)
	}
	for i := range r.Attempts {
		a := r.Attempts[i]
		if a.Message == r.Message && a.ID == r.ID && a.Message != "" {
			a.Message, a.ID = "as above", ""
		}
		a.print(&p, i+1)
	}
	if r.MoreAttempts > 0 {
		p.linef("", "and %d more attempts, before the last ones", r.MoreAttempts)
	}
	for _, n := range r.Notes {
		p.linef("note", "at %s  %s: %s", brief(n.At), n.By, n.What)
	}
	if r.MoreNotes > 0 {
		p.linef("", "and %d more notes", r.MoreNotes)
	}
	return strings.Join(p.lines, "\n")
}

// headline returns the line about the outcome of the call.
func (r *CallReport) headline() string {
	outcome := "succeeded"
	if r.Code != "" {
		outcome = "failed"
	}
	if r.Took > 0 {
		outcome += " after " + brief(r.Took)
	}
	if r.Slow {
		outcome += ", which is slow"
	}
	if r.Code != "" {
		outcome += ": " + failure(r.Code, r.ID, r.Message, r.NotProcessed)
	}
	at := ""
	if !r.Began.IsZero() {
		at = " at " + r.Began.UTC().Format("2006-01-02 15:04:05.000") + " UTC"
	}
	what := r.Method
	if r.Kind != "" {
		what += " (" + r.Kind + ")"
	}
	if r.Side == "server" {
		caller := r.Peer
		if r.Caller != "" {
			caller = r.Caller + " (" + r.Peer + ")"
		}
		return fmt.Sprintf("%s, carried out for %s%s, %s", what, caller, at, outcome)
	}
	return fmt.Sprintf("%s, made%s, %s", what, at, outcome)
}

func failure(code, id, message string, notProcessed bool) string {
	if id != "" {
		id = " [" + id + "]"
	}
	executed := "may have executed"
	if notProcessed {
		executed = "not executed"
	}
	return fmt.Sprintf("%s: %s%s (%s)", code, message, id, executed)
}

// terms returns the line about the limits of the call.
func (r *CallReport) terms() string {
	var terms []string
	if r.Timeout > 0 {
		left := ", all of which was used"
		if r.Took < r.Timeout {
			left = fmt.Sprintf(", of which %s were left", brief(r.Timeout-r.Took))
		}
		terms = append(terms, "it had "+brief(r.Timeout)+left)
	}
	if b := r.Budget; b != nil {
		given := "a budget of attempts that it shared"
		if b.Given > 0 {
			given = fmt.Sprintf("a budget of %d attempts", b.Given)
		}
		terms = append(terms, fmt.Sprintf("%s, of which %d were left", given, b.Left))
	}
	if r.Criticality != 0 {
		terms = append(terms, class(r.Criticality))
	}
	if r.Tenant != "" {
		terms = append(terms, fmt.Sprintf("tenant %q", r.Tenant))
	}
	return strings.Join(terms, "; ")
}

// class returns the name of a criticality, as in package criticality.
func class(c int) string {
	switch c {
	case 1:
		return "critical"
	case -1:
		return "sheddable"
	case -2:
		return "batch"
	}
	return fmt.Sprintf("criticality %d", c)
}

func (r *CallReport) printServer(p *page) {
	var parts []string
	if r.Queue > 0 || r.Handler > 0 {
		parts = append(parts, fmt.Sprintf("%s until the method began, %s in it", brief(r.Queue), brief(r.Handler)))
	}
	if r.Attempt > 0 {
		parts = append(parts, fmt.Sprintf("sent %d times before", r.Attempt))
	}
	if r.Kind != "" {
		parts = append(parts, fmt.Sprintf("%d messages in, %d out", r.Received, r.Sent))
	}
	p.linef("server", "%s", strings.Join(append(parts, fmt.Sprintf("%d bytes in, %d out", r.BytesIn, r.BytesOut)), "; "))
}

// printChoice adds the lines about the candidates.
func (r *CallReport) printChoice(p *page) {
	if s := r.Resolver; s != nil {
		said := fmt.Sprintf("%d instances, named %s before the end", s.Instances, brief(s.Age))
		if s.Waited > 0 {
			said += fmt.Sprintf("; the call waited %s for its first word", brief(s.Waited))
		}
		if s.Err != "" {
			said += "; it fails now: " + s.Err
		}
		p.linef("resolver", "%s", said)
	}
	if r.Turn > 0 {
		p.linef("order", "waited %s for the calls before it", brief(r.Turn))
	}
	if len(r.Candidates) > 0 {
		p.linef("picker", "%s, among these as they were at %s:", r.Picker, brief(r.CandidatesAt))
	} else if r.Picker != "" {
		p.linef("picker", "%s", r.Picker)
	}
	width := 0
	for _, c := range r.Candidates {
		width = max(width, len(c.Addr))
	}
	for _, c := range r.Candidates {
		p.linef("", "%-*s  %s", width, c.Addr, c.describe())
	}
	if r.MoreCandidates > 0 {
		p.linef("", "and %d more", r.MoreCandidates)
	}
}

func (c *Candidate) describe() string {
	said := c.Verdict
	if len(c.NotReady) > 0 {
		if said != "not ready" {
			said += ", not ready"
		}
		said += " (so says " + strings.Join(c.NotReady, ", ") + ")"
	}
	if c.Unlisted {
		said += ", not named by the resolver any more"
	}
	if c.Full {
		said += ", its connections are full"
	}
	if c.Load > 0 {
		said += fmt.Sprintf(", load %d", c.Load)
	}
	if c.Weight > 0 {
		said += fmt.Sprintf(", weight %d", c.Weight)
	}
	if c.Zone != "" {
		said += ", zone " + c.Zone
	}
	if c.RTT > 0 {
		said += ", round trip " + brief(c.RTT)
	}
	return said
}

func (a *Attempt) print(p *page, number int) {
	fork := ""
	if a.Fork {
		fork = ", beside another one"
	}
	outcome := "succeeded"
	if a.Code != "" {
		outcome = failure(a.Code, a.ID, a.Message, a.NotProcessed)
	}
	p.linef(fmt.Sprintf("attempt %d", number), "%s  at %s for %s%s  %s", a.Addr, brief(a.Began), brief(a.Took), fork, outcome)
	var parts []string
	part := func(name string, d time.Duration) {
		if d > 0 {
			parts = append(parts, name+" "+brief(d))
		}
	}
	part("connecting", a.Connecting)
	part("waiting for credit", a.Credit)
	part("network", a.Network)
	part("on the server before the method", a.Queue)
	part("in the method", a.Handler)
	part("taken after", a.Taken)
	if a.Sent > 0 || a.Received > 0 {
		parts = append(parts, fmt.Sprintf("%d messages out, %d in", a.Sent, a.Received))
	}
	if a.BytesOut > 0 || a.BytesIn > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes out, %d in", a.BytesOut, a.BytesIn))
	}
	if len(parts) > 0 {
		p.linef("", "  %s", strings.Join(parts, ", "))
	}
}

// A page is lines of text, each with a heading. Names and messages come from other programs, so a
// page removes line breaks and control characters from them.
type page struct{ lines []string }

func (p *page) linef(about, format string, args ...any) {
	p.lines = append(p.lines, strings.TrimRight(fmt.Sprintf("  %-10s %s", about, text.Line(fmt.Sprintf(format, args...))), " "))
}

// brief returns a duration with about three digits, which are enough for people.
func brief(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}
