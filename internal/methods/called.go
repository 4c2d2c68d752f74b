// SPDX-License-Identifier: Apache-2.0

package methods

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Called holds what one side knows of the methods that it calls, on all its connections, for at
// most Max methods. F says how their bodies are encoded. A Called may be used concurrently. SetUp
// must be called first.
type Called[F any] struct {
	idempotent map[string]bool // does not change
	table      Table[Method[F]]
	last       atomic.Pointer[Method[F]] // of the last call; reading it is faster than the table

	mu       sync.Mutex    // held to change table, bindings and free
	bindings []*Binding[F] // by handle
	free     []int         // handles whose methods were removed
}

// A Method is what this side knows of a method that it calls.
type Method[F any] struct {
	Name       string
	Idempotent atomic.Bool
	Nests      atomic.Bool                 // its handler makes calls of its own
	Calls      atomic.Pointer[stats.Calls] // nil until its counters are chosen

	usual atomic.Pointer[Binding[F]] // that of calls without a codec or a compressor of their own; nil before the first one
	all   []*Binding[F]              // guarded by Called.mu
}

// A Binding is a method with a codec and a compressor. Each connection has a number for it. Its
// Handle is the same on all connections, and is used again when the method was removed, with
// another Generation.
type Binding[F any] struct {
	mux.Method
	Of     *Method[F]
	Format F              // of bodies
	Reply  atomic.Uintptr // the type of the last reply: see iface.TypeOf
}

// SetUp names the methods that this side declares idempotent.
func (c *Called[F]) SetUp(idempotent []string) {
	c.idempotent = make(map[string]bool)
	for _, name := range idempotent {
		c.idempotent[name] = true
	}
}

// Last returns the method of the last call if it has this name, and nil otherwise. It is inlined.
func (c *Called[F]) Last(name string) *Method[F] {
	if m := c.last.Load(); m != nil && m.Name == name {
		return m
	}
	return nil
}

// Find returns the method of a name, or nil if it was not called or was removed. It becomes the
// last one.
func (c *Called[F]) Find(name string) *Method[F] {
	m := c.table.Get(name)
	if m != nil {
		c.last.Store(m)
	}
	return m
}

// Idempotent reports whether a method is known to be idempotent.
func (c *Called[F]) Idempotent(name string) bool {
	m := c.Last(name)
	if m == nil {
		m = c.table.Get(name)
	}
	if m == nil {
		return c.idempotent[name]
	}
	return m.Idempotent.Load()
}

// Usual returns the binding of calls without a codec or a compressor of their own, if there is one
// and it fits calls of this kind.
func (m *Method[F]) Usual(positional bool, kind uint64) *Binding[F] {
	if b := m.usual.Load(); b != nil && b.Positional == positional && b.Kind == kind {
		return b
	}
	return nil
}

// Bind finds or makes the binding of a method. As names the method, its codec and its compressor,
// by which bindings are compared, as the protocol does. Format is for a new binding. Usual says
// that the call has no codec or compressor of its own.
func (c *Called[F]) Bind(as mux.Method, format F, usual bool) *Binding[F] {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.methodLocked(as.Name)
	for _, b := range m.all {
		if b.Codec == as.Codec && b.Compressor == as.Compressor && b.Positional == as.Positional && b.Kind == as.Kind {
			return b
		}
	}
	b := &Binding[F]{Method: as, Of: m, Format: format}
	b.Name, b.Idempotent = m.Name, m.Idempotent.Load()
	if n := len(c.free); n > 0 {
		b.Handle, c.free = c.free[n-1], c.free[:n-1]
		b.Generation = c.bindings[b.Handle].Generation + 1
		c.bindings[b.Handle] = b
	} else {
		b.Handle = len(c.bindings)
		c.bindings = append(c.bindings, b)
	}
	m.all = append(m.all, b)
	if usual {
		m.usual.Store(b)
	}
	return b
}

// methodLocked finds or makes the method of a name. If there are too many, it removes another one,
// whose calls go on. The caller holds c.mu.
func (c *Called[F]) methodLocked(name string) *Method[F] {
	if m := c.table.Get(name); m != nil {
		return m
	}
	m := &Method[F]{Name: strings.Clone(name)} // the name may be a part of much memory
	m.Idempotent.Store(c.idempotent[name])
	if removed := c.table.Add(m.Name, m); removed != nil {
		c.last.CompareAndSwap(removed, nil)
		for _, b := range removed.all {
			c.free = append(c.free, b.Handle)
		}
	}
	return m
}

// Learn stores what a server says about the method with a handle.
func (c *Called[F]) Learn(handle int, generation uint32, info wire.Info) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if handle >= len(c.bindings) || c.bindings[handle].Generation != generation {
		return
	}
	m := c.bindings[handle].Of
	if info.Idempotent != 0 {
		m.Idempotent.Store(true)
	} else if info.Known != 0 { // another method may now be registered under the name
		m.Idempotent.Store(c.idempotent[m.Name])
	}
	if info.Nests != 0 {
		m.Nests.Store(true)
	}
}
