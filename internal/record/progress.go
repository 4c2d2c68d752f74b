// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// Progress is what the client remembers of a call while its attempts are made. The zero value is
// that of a call without attempts.
type Progress struct {
	Parts Parts // of the last attempt
	// Opened is when the server accepted or answered the stream of the last attempt in the record.
	// It is 0 if the server did neither.
	Opened    time.Duration
	Counted   int           // the number of attempts in the record
	Resolving time.Duration // how long the call waited for the first set of instances
	Concluded bool          // the record is made
}

// A LastAttempt is the last attempt of a call, as far as the client knows.
type LastAttempt struct {
	Addr     string
	Start    time.Duration // when the call was made
	Began    time.Duration
	Ended    time.Duration
	Arrived  time.Duration // when the reply, or the acceptance of the stream, came; 0 before
	Credit   time.Duration // how long it waited for the server's window
	BytesOut int           // of the request, if it was sent
	BytesIn  int           // of the reply
	Fork     bool          // it ran beside another attempt
	Accepted bool          // the server has accepted or answered the stream
	Stream   introspect.Traffic
}

// Waited returns how long the call has waited so far, without the attempts in its record.
func (p *Progress) Waited() time.Duration { return p.Resolving + p.Parts.Connecting }

// Describe describes the last attempt without its outcome. Made is the number of attempts of the
// call.
func (p *Progress) Describe(t *LastAttempt, made int) introspect.Attempt {
	a := introspect.Attempt{Addr: t.Addr, Began: max(t.Began-t.Start, 0), Took: t.Ended - t.Began, Fork: t.Fork, BytesIn: t.BytesIn}
	if made > p.Counted { // the attempt was sent
		a.BytesOut = t.BytesOut
	}
	if t.Accepted {
		a.Taken = max(t.Arrived-t.Began, 0)
	}
	a.Sent, a.Received = t.Stream.Sent, t.Stream.Received
	a.BytesOut += t.Stream.BytesOut
	a.BytesIn += t.Stream.BytesIn
	p.Parts.Describe(&a, t.Credit)
	return a
}
