// SPDX-License-Identifier: Apache-2.0

package record

import (
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// Parts is where the time of an attempt was spent, as far as the client knows.
type Parts struct {
	Connecting time.Duration // waiting for a connection
	server     time.Duration // as the server reported; 0 if it did not
	wait       time.Duration // the part of server until the method began
}

// Server stores the times that a server reports, in microseconds: from the arrival of the request
// to its reply, and the part of it until the method began.
func (p *Parts) Server(took, wait uint64) {
	const most = math.MaxInt64 / uint64(time.Microsecond)
	p.server = time.Duration(min(took, most)) * time.Microsecond
	p.wait = time.Duration(min(wait, took, most)) * time.Microsecond
}

// Describe adds the parts to the description of an attempt. Credit is how long the attempt waited
// for the server's window. What is left of the attempt's time is the network's.
func (p *Parts) Describe(a *introspect.Attempt, credit time.Duration) {
	a.Connecting, a.Credit = p.Connecting, credit
	if p.server > 0 {
		a.Queue, a.Handler = p.wait, p.server-p.wait
		a.Network = max(a.Took-a.Connecting-a.Credit-p.server, 0)
	}
}

// Served is when a request was served, on the clock. A time that is not known is 0.
type Served struct {
	Arrived time.Duration // when it was received
	Taken   time.Duration // when a goroutine began to work on it
	Began   time.Duration // when its method began
}

// Queued returns how long the request waited for its goroutine, or 0 if that is unknown.
func (s *Served) Queued() time.Duration {
	if s.Arrived == 0 {
		return 0
	}
	return max(s.Taken-s.Arrived, 0)
}

// Slow reports whether a call was slow. Took is the time since a goroutine began to work on it. For
// a stream only the time until its method began counts, because the stream may go on for ever.
func (s *Served) Slow(took time.Duration, streams bool, after time.Duration) bool {
	if streams {
		took = 0
		if s.Began != 0 { // otherwise no middleware ran before the method
			took = s.Began - s.Taken
		}
	}
	return took+s.Queued() >= after
}

// Describe adds the times to the report of a call that took as long since a goroutine began to work
// on it. It returns when the call began. Now is a reading of the clock.
func (s *Served) Describe(r *introspect.CallReport, took, now time.Duration) (began time.Duration) {
	queue := s.Queued()
	r.Took = queue + took
	began = s.Taken - queue
	if s.Taken == 0 {
		began = now - r.Took
	}
	if s.Began >= began && s.Began != 0 {
		queue = min(s.Began-began, r.Took)
	}
	r.Queue, r.Handler = queue, r.Took-queue
	return began
}

// A Failure is the error of a call or of an attempt.
type Failure struct {
	Code, ID, Message string
	NotProcessed      bool
}

// Call adds the failure to the report of a call, within the limits of a record.
func (f Failure) Call(r *introspect.CallReport) {
	r.Code, r.ID, r.Message, r.NotProcessed = f.Code, text.ID(f.ID), text.Cut(f.Message, MaxText), f.NotProcessed
}

// Attempt adds the failure to the description of an attempt, within the limits of a record.
func (f Failure) Attempt(a *introspect.Attempt) {
	a.Code, a.ID, a.Message, a.NotProcessed = f.Code, text.ID(f.ID), text.Cut(f.Message, MaxText), f.NotProcessed
}
