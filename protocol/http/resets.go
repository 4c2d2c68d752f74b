// SPDX-License-Identifier: Apache-2.0

package http

import (
	"fmt"
	"sync"
	"time"
)

// A client of HTTP/2 that opens streams and resets them at once makes the server work without
// waiting for anything: MaxConcurrentStreams counts open streams only. A client that cancels much
// gets a reply or a message of a stream now and then: a search box that cancels the previous query,
// or hedged requests of which the other one is usually faster. So a connection ends when the client
// resets maxResets requests in a row within resetTime, and was sent no reply and no message of a
// stream between them.
const (
	maxResets = 5000
	resetTime = 10 * time.Second
)

var errFlooded = fmt.Errorf("the client has reset %d requests of HTTP/2 within %v and waited for no reply", maxResets, resetTime)

// resets counts the requests in a row that the client of a connection has reset. Its methods may be
// called concurrently.
type resets struct {
	mu    sync.Mutex
	n     int
	since time.Time // when the first of them was counted
}

// replied ends a row.
func (r *resets) replied() {
	r.mu.Lock()
	r.n = 0
	r.mu.Unlock()
}

// add counts a request that was reset, and reports whether the connection must end.
func (r *resets) add(now time.Time) (tooMany bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == 0 || now.Sub(r.since) > resetTime {
		r.n, r.since = 0, now
	}
	r.n++
	return r.n >= maxResets
}
