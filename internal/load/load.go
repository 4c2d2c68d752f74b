// SPDX-License-Identifier: Apache-2.0

// Package load measures how busy servers are. A server counts the calls that it is executing and
// reports the number to its clients on replies. A client adds its own calls in flight, and measures
// the round trip to the server. Balancers compare endpoints by these values.
package load

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

// An Inflight counts the calls of a client that are in flight on an endpoint. Its counters are on
// separate cache lines, because asynchronous calls begin on one processor and end on another.
type Inflight struct {
	_       [cacheLine]byte
	Begun   atomic.Int64
	Waiting atomic.Int64 // calls that wait for a connection; rarely written
	_       [cacheLine]byte
	Ended   atomic.Int64
	_       [cacheLine]byte
}

const cacheLine = 64

// Sent returns how many calls were sent, or are about to be, and have not ended.
func (n *Inflight) Sent() int {
	ended := n.Ended.Load() // read first, so that the result is never negative
	return int(n.Begun.Load() - ended)
}

// A Report is the load of a server as it has reported it to a client. The zero Report is none. It
// may be used concurrently.
type Report struct {
	others atomic.Int64 // calls of other clients, plus 1; 0 without a report
	at     atomic.Int64 // on the clock
	fading atomic.Bool  // a timer will reduce it
}

// fadeTime is how long a report is valid. After that the reported load is halved once per fadeTime.
// Without this, a client that sends nothing to a busy endpoint would never learn that the endpoint
// is idle again. A server reports an unchanged load again every renewTime.
const fadeTime = 2 * time.Second

// A life tells when an endpoint has ended.
type life interface{ Err() error }

// Others returns how many calls of other clients the server is executing. Before the first report
// it returns known, which comes from a registry.
func (r *Report) Others(known int) int {
	if others := int(r.others.Load() - 1); others >= 0 {
		return others
	}
	return min(max(known, 0), math.MaxInt32) // a registry may say anything
}

// Set stores a load that came with a reply. N includes the call of that reply and own calls of the
// client, which are in flight without that call. The Report fades until the Err of endpoint returns
// an error.
func (r *Report) Set(n uint64, own int, endpoint life) {
	others := max(int64(min(n, math.MaxInt32))-1-int64(own), 0)
	r.others.Store(others + 1)
	r.at.Store(int64(monotime.Now()))
	if others > 0 && !r.fading.Swap(true) {
		time.AfterFunc(fadeTime, func() { r.fade(endpoint) })
	}
}

// fade halves an old report.
func (r *Report) fade(endpoint life) {
	others := r.others.Load() - 1
	if int64(monotime.Now())-r.at.Load() >= int64(fadeTime) && r.others.CompareAndSwap(others+1, others/2+1) {
		others /= 2
	}
	if others == 0 {
		r.fading.Store(false)
		if r.others.Load() == 1 || r.fading.Swap(true) { // otherwise a new report has just arrived
			return
		}
	}
	if endpoint.Err() == nil {
		time.AfterFunc(fadeTime, func() { r.fade(endpoint) })
	}
}

// A RoundTrip is the duration of the last ping to an endpoint, and the time from which the next one
// may be sent. The zero RoundTrip has none. It may be used concurrently.
type RoundTrip struct {
	took atomic.Int64
	due  atomic.Int64 // on the clock, which may be negative; 0 before the first ping
}

// roundTripAge is the age from which a round trip is measured again.
const roundTripAge = 5 * time.Second

// Took returns the duration of the last ping, or 0 before the first one has ended.
func (r *RoundTrip) Took() time.Duration { return time.Duration(r.took.Load()) }

// Due reports whether the next ping may be sent.
func (r *RoundTrip) Due() bool {
	due := r.due.Load()
	return due == 0 || int64(monotime.Now()) >= due
}

// Measure sends a ping if Due reports true. The ping waits on a goroutine that begin starts. If
// several goroutines call Measure at the same time, only one ping is sent.
func (r *RoundTrip) Measure(ping func(context.Context) (time.Duration, error), begin func(func(context.Context)) bool) {
	due := r.due.Load()
	if due != 0 && int64(monotime.Now()) < due || !r.due.CompareAndSwap(due, math.MaxInt64) {
		return
	}
	begin(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, roundTripAge)
		defer cancel()
		// else the connection has ended; a later Measure tries again
		if took, err := ping(ctx); err == nil {
			r.took.Store(int64(max(took, 1)))
		}
		r.due.Store(int64(monotime.Now() + roundTripAge))
	})
}
