// SPDX-License-Identifier: Apache-2.0

package introspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
)

// A CallReport is the record of one call, which is made when it has failed, was slow, or was to be
// explained. Its caller makes one, and the server that carried it out another one, which knows less
// of the network and more of what happened on the server. Durations in JSON are nanoseconds. It has
// nothing of what was sent: no argument, no metadata, no attachment. It must not be changed.
//
// The error of a failed call contains the caller's record, and yodel.Call.Report returns it. The
// built-in method inspect.Samples returns the records that were kept.
//
//	var report *introspect.CallReport
//	if errors.As(err, &report) { … }
type CallReport struct {
	Method string `json:"method"`
	Kind   string `json:"kind,omitempty"` // feed, upload or duplex; empty for one request and one reply
	// who tells this: the "client" that made the call, or the "server" that carried it out
	Side  string    `json:"side"`
	Began time.Time `json:"began"` // when the call was made, or came in
	// in all; 0 of a call on the server that was so short that nobody looked
	Took      time.Duration `json:"took"`
	Slow      bool          `json:"slow,omitempty"`
	Explained bool          `json:"explained,omitempty"` // its caller has asked for this record

	Code         string `json:"code,omitempty"` // empty when the call succeeded, as are the next three
	ID           string `json:"id,omitempty"`   // of the error, as in docs/errors.md
	Message      string `json:"message,omitempty"`
	NotProcessed bool   `json:"notProcessed,omitempty"` // the method was certainly not executed

	Timeout     time.Duration `json:"timeout,omitempty"` // how long it was allowed to take; 0 for ever
	Budget      *Budget       `json:"budget,omitempty"`  // of attempts; nil for none
	Criticality int           `json:"criticality,omitempty"`
	Tenant      string        `json:"tenant,omitempty"`

	// On the client.

	Resolver       *Resolver     `json:"resolver,omitempty"`       // who named the candidates; nil of a call to a peer
	Picker         string        `json:"picker,omitempty"`         // who chose among them, or why nobody was chosen
	Candidates     []Candidate   `json:"candidates,omitempty"`     // empty also when too many records were being made
	MoreCandidates int           `json:"moreCandidates,omitempty"` // how many were left out
	CandidatesAt   time.Duration `json:"candidatesAt,omitempty"`   // when they were looked at, after Began
	Turn           time.Duration `json:"turn,omitempty"`           // an ordered call waited for those before it
	// in the order in which they ended; the last one decided
	Attempts     []Attempt `json:"attempts,omitempty"`
	MoreAttempts int       `json:"moreAttempts,omitempty"` // how many were left out, in the middle

	// On the server.

	Peer    string `json:"peer,omitempty"`    // who called
	Attempt int    `json:"attempt,omitempty"` // how often the caller had sent it before
	// until the method began: receiving it, waiting, middleware, decoding
	Queue    time.Duration `json:"queue,omitempty"`
	Handler  time.Duration `json:"handler,omitempty"`  // the rest: the method, and encoding its reply
	BytesIn  int           `json:"bytesIn,omitempty"`  // of the request, and of the messages that came
	BytesOut int           `json:"bytesOut,omitempty"` // of the reply, and of the messages that were sent
	Sent     int           `json:"sent,omitempty"`     // messages of the stream
	Received int           `json:"received,omitempty"` // likewise, that came

	Notes     []Note `json:"notes,omitempty"` // what middleware did with the call
	MoreNotes int    `json:"moreNotes,omitempty"`
}

// Budget is how many attempts a call, and those that were made for it, could make.
type Budget struct {
	Given int `json:"given,omitempty"` // to this call; 0 when it shared that of the call it was made for
	Left  int `json:"left"`            // beyond those that were made
}

// Resolver is what was known of the instances.
type Resolver struct {
	Instances int           `json:"instances"`
	Age       time.Duration `json:"age"`              // since it last named them
	Waited    time.Duration `json:"waited,omitempty"` // the call waited for the first word
	Err       string        `json:"err,omitempty"`    // why it cannot name them at the moment
}

// A Candidate is an instance that an attempt could have gone to.
type Candidate struct {
	Addr string `json:"addr"`
	// picked, tried before, another attempt is on its way to it, not ready, the call is pinned
	// elsewhere, or not chosen
	Verdict string `json:"verdict"`
	// NotReady is who says that it should get no calls: a breaker, "connection".
	NotReady []string      `json:"notReady,omitempty"`
	Unlisted bool          `json:"unlisted,omitempty"` // the resolver does not name it any more
	Full     bool          `json:"full,omitempty"`     // callers wait for its window
	Zone     string        `json:"zone,omitempty"`
	Weight   int           `json:"weight,omitempty"`
	Load     int           `json:"load,omitempty"` // calls that it is working on, as far as is known
	RTT      time.Duration `json:"rtt,omitempty"`  // the last one that was measured
}

// An Attempt is one try of a call on one endpoint.
type Attempt struct {
	Addr  string        `json:"addr"`  // of the endpoint
	Began time.Duration `json:"began"` // after the call was made
	Took  time.Duration `json:"took"`  // until the outcome was known
	Fork  bool          `json:"fork,omitempty"`

	// Where that went. The server has told of its part when Queue or Handler is not 0, and Network
	// is then the rest.

	Connecting time.Duration `json:"connecting,omitempty"` // waiting for a connection
	// waiting for the server's window, or until what was to be sent before had been written
	Credit  time.Duration `json:"credit,omitempty"`
	Network time.Duration `json:"network,omitempty"`
	Queue   time.Duration `json:"queue,omitempty"`   // on the server, until the method began
	Handler time.Duration `json:"handler,omitempty"` // the method

	// Taken is when the server had taken the stream, or the first message of a feed had come, after
	// the attempt began. A stream is slow by this alone.
	Taken time.Duration `json:"taken,omitempty"`

	// body, attachment and metadata, as they were sent, and the messages of a stream
	BytesOut int `json:"bytesOut,omitempty"`
	BytesIn  int `json:"bytesIn,omitempty"`
	Sent     int `json:"sent,omitempty"`     // messages of the stream
	Received int `json:"received,omitempty"` // likewise, that came

	Code         string `json:"code,omitempty"` // empty when it succeeded, as are the next three
	ID           string `json:"id,omitempty"`
	Message      string `json:"message,omitempty"`
	NotProcessed bool   `json:"notProcessed,omitempty"` // the method was certainly not executed
}

// Traffic is how much was sent and received for a call.
type Traffic struct {
	BytesOut int `json:"bytesOut,omitempty"`
	BytesIn  int `json:"bytesIn,omitempty"`
	Sent     int `json:"sent,omitempty"`     // messages of the stream
	Received int `json:"received,omitempty"` // likewise, that came
}

// Add adds the traffic of an attempt.
func (t *Traffic) Add(a *Attempt) {
	t.BytesOut += a.BytesOut
	t.BytesIn += a.BytesIn
	t.Sent += a.Sent
	t.Received += a.Received
}

// A Note is what a middleware did with a call.
type Note struct {
	At   time.Duration `json:"at"` // after the call was made
	By   string        `json:"by"` // the middleware
	What string        `json:"what"`
}

// SamplesQuery says which records inspect.Samples returns. Those of a kind that is named, or all
// when none is.
type SamplesQuery struct {
	Method    string `json:"method,omitempty"` // only of this one; empty is all
	Side      string `json:"side,omitempty"`   // only "client" or only "server"; empty is both
	Failed    bool   `json:"failed,omitempty"`
	Slow      bool   `json:"slow,omitempty"`
	Explained bool   `json:"explained,omitempty"`
	Limit     int    `json:"limit,omitempty"` // how many at most; 0 is all
}

// Samples has the records that a client or server has kept, the newest first, and counts the calls
// of which it could have kept one. A call that is of several kinds is counted once: as one that was
// to be explained, or else as one that failed.
type Samples struct {
	Calls     []CallReport `json:"calls"`
	Failed    uint64       `json:"failed"`
	Slow      uint64       `json:"slow"`
	Explained uint64       `json:"explained"`
	LeftOut   uint64       `json:"leftOut"` // of these, because there were too many at a time
}

// Error returns the record for people to read. With it errors.As finds a record in the error of a
// call.
func (r *CallReport) Error() string { return r.String() }

// String returns the record for people to read: one line for each thing to know.
func (r *CallReport) String() string {
	var p page
	p.linef("call", "%s", r.headline())
	if terms := r.terms(); terms != "" {
		p.linef("terms", "%s", terms)
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

// headline says what became of the call.
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
		return fmt.Sprintf("%s, carried out for %s%s, %s", what, r.Peer, at, outcome)
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

// terms says what the call was allowed.
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

// class returns the name of a criticality, as package criticality has them.
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

// printChoice says who could have been called.
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
		said += ", its window is full"
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

// A page is lines with a word before each that says what it is about. Names and messages come from
// outside: whatever they hold, they neither add a line nor control a terminal.
type page struct{ lines []string }

func (p *page) linef(about, format string, args ...any) {
	p.lines = append(p.lines, strings.TrimRight(fmt.Sprintf("  %-10s %s", about, text.Line(fmt.Sprintf(format, args...))), " "))
}

// brief returns a duration with three digits, more or less: nobody compares the others.
func brief(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}
