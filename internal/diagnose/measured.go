// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/tenants"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Measured holds what a server measures in the course of time: its calls, those of the clients
// that its handlers use, and what has happened to both. C is the type of clients. It may be used
// concurrently. The methods that say so may be called for a nil Measured, which measures nothing.
type Measured[C comparable] struct {
	*live.Recorder
	Taps Taps

	events  live.Ring[introspect.Event]
	tenants tenants.Counts

	mu      sync.Mutex
	clients map[C]struct{} // those that handlers use
	name    string         // of the first of them
}

// NewMeasured returns a Measured that begins now.
func NewMeasured[C comparable]() *Measured[C] {
	return &Measured[C]{Recorder: live.New(time.Now()), clients: make(map[C]struct{})}
}

// Follow records the steps of time until the caller calls stop. M may be nil.
func (m *Measured[C]) Follow() (stop func()) {
	if m == nil {
		return func() {}
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		m.Run(ended)
	}()
	return func() {
		close(ended)
		<-stopped
	}
}

// Adopt adds a client of a name, which handlers use.
func (m *Measured[C]) Adopt(c C, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients[c] = struct{}{}
	m.name = cmp.Or(m.name, name)
}

// Leave removes a client that was closed.
func (m *Measured[C]) Leave(c C) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.clients, c)
}

// Clients returns the clients that handlers use. M may be nil.
func (m *Measured[C]) Clients() []C {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.clients))
}

// Note adds an event, unless it is there. It cuts texts that are too long. M may be nil.
func (m *Measured[C]) Note(e introspect.Event) {
	if m != nil {
		clipEvent(&e)
		m.events.Add(e)
	}
}

// CountTenant counts a call of a method that was made for a tenant and has ended with a code.
func (m *Measured[C]) CountTenant(method, tenant string, code int) {
	m.tenants.Count(method, tenant, introspect.OutcomeOf(nameOf(code)), monotime.Now())
}

// Answer adds to out what a query selects. The name of a client replaces out.Name.
func (m *Measured[C]) Answer(q *introspect.LiveQuery, out *introspect.Live) {
	addSeries(m.Recorder, q, out)
	out.Events = m.events.All()
	out.Tenants = m.tenants.Top(q.Method, q.Tenants, monotime.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Name = cmp.Or(m.name, out.Name)
}

// Callers returns a function that returns the calls of a method by caller, under all its names. It
// uses the series of a side as they are now. M may be nil.
func (m *Measured[C]) Callers(side string) func(names []string) []introspect.CallerStats {
	if m == nil {
		return func([]string) []introspect.CallerStats { return nil }
	}
	all := make(map[string]map[string]live.Totals)
	for k, t := range m.Totals(side) {
		if all[k.Method] == nil {
			all[k.Method] = make(map[string]live.Totals)
		}
		all[k.Method][k.Peer] = t
	}
	return func(names []string) []introspect.CallerStats { return callers(all, names) }
}
