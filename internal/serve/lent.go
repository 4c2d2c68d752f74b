// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"maps"
	"slices"
	"sync"
)

// A lentConn is a connection of a client.
type lentConn interface {
	comparable
	Refuse() <-chan struct{} // refuses further requests, and closes the channel when none is open
	CancelRequests()         // ends the contexts of the open requests
}

// A pool runs requests.
type pool interface {
	comparable
	Settled() <-chan struct{} // is closed when no request runs
	Cancel()                  // ends the contexts of requests that still run
}

// A Lent holds the connections of clients that execute the methods of a server, and the pools that
// run their requests. They belong to the clients, so they go on when the server has shut down. C
// and P are their types. The zero Lent is empty. It may be used concurrently.
type Lent[C lentConn, P pool] struct {
	mu    sync.Mutex
	conns map[C]struct{}
	pools map[P]struct{}
}

// Add adds a connection, unless it was removed before. Over is the variable of the connection in
// which Remove notes this. Lent.mu guards it.
func (l *Lent[C, P]) Add(c C, over *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *over {
		return
	}
	if l.conns == nil {
		l.conns = make(map[C]struct{})
	}
	l.conns[c] = struct{}{}
}

// Remove removes a connection that has ended. It may come before Add.
func (l *Lent[C, P]) Remove(c C, over *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*over = true
	delete(l.conns, c)
}

// Conns returns the connections in no particular order.
func (l *Lent[C, P]) Conns() []C {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}

// AddPool adds a pool.
func (l *Lent[C, P]) AddPool(p P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pools == nil {
		l.pools = make(map[P]struct{})
	}
	l.pools[p] = struct{}{}
}

// RemovePool removes the pool of a client that was closed.
func (l *Lent[C, P]) RemovePool(p P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pools, p)
}

// Pools returns the pools in no particular order.
func (l *Lent[C, P]) Pools() []P {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.pools))
}
