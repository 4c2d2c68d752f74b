// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/parker"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/spares"
)

// A Runtime provides what connections share within a process: the clock, random numbers, the
// parker, the limit of goroutines that poll, and memory for large messages. A client or a server
// names one in its Config. Without one, its connections use that of the process.
//
// Tests set Now and Rand. Both must be set before the first connection begins. Several goroutines
// may call them at the same time. Timers use the time of the process, whatever Now returns.
type Runtime struct {
	Now  func() time.Time    // nil means time.Now
	Rand func(n int64) int64 // a random number from 0 to n-1; nil means rand.Int64N

	parker  parker.Parker
	pollers socket.Pollers
	spares  *spares.Set
}

// NewRuntime returns a Runtime that shares only spares.Process with others. It need not be closed.
func NewRuntime() *Runtime {
	rt := &Runtime{spares: &spares.Process}
	rt.parker.Now = rt.now
	return rt
}

// processRuntime is the Runtime of connections whose Config names none. They share it because a
// process may have many clients with few connections each, and because processors and the garbage
// collector belong to the process. See decision 0041.
var processRuntime = NewRuntime()

// runtime returns the Runtime of the connections with this Config.
func (cfg *Config) runtime() *Runtime {
	if cfg.Runtime != nil {
		return cfg.Runtime
	}
	return processRuntime
}

// clock is like monotime.Now, but takes the time from the Runtime.
func (rt *Runtime) clock() time.Duration {
	if rt.Now != nil {
		return monotime.Of(rt.Now())
	}
	return monotime.Now()
}

// now returns the reading of clock in nanoseconds.
func (rt *Runtime) now() int64 { return int64(rt.clock()) }

// time returns the current time.
func (rt *Runtime) time() time.Time {
	if rt.Now != nil {
		return rt.Now()
	}
	return time.Now()
}

// random returns a random duration below d, which is positive.
func (rt *Runtime) random(d time.Duration) time.Duration {
	if rt.Rand != nil {
		return time.Duration(rt.Rand(int64(d)))
	}
	return rand.N(d)
}
