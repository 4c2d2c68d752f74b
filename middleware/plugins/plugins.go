// SPDX-License-Identifier: Apache-2.0

// Package plugins adds, replaces and removes middleware by name, while a client or server runs.
//
//	var set plugins.Set
//	options.Middleware = []yodel.Middleware{auth.Check(check), set.Middleware}
//	server := yodel.NewServer(options)
//	…
//	set.Put("audit", audit)   // the next call passes through it
//	set.Remove("audit")       // and the next one does not
//
// The Set has one place in the chain, where its plug-ins stand in the order in which they were
// added. A call sees each plug-in at most once: one that was removed while the call was above it
// may still see it, and one that was added may not. One that is removed and added again is another
// one. A call that runs while plug-ins are added may pass these too. A plug-in keeps its state
// while others come and go. A call through an empty Set costs an atomic load.
//
// To change what an operator may change, such as limits, timeouts and faults, use rules: see
// package rules.
package plugins

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// A Set holds plug-ins by name. The zero value is empty. Its methods may be called concurrently,
// also by the functions of plug-ins. A Set must not be copied.
type Set struct {
	mu      sync.Mutex
	plugins []*plugin // not changed once a chain has it
	chains  []*chain
}

type plugin struct {
	name string
	wrap yodel.Middleware
}

// Put adds a plug-in as the innermost one, or puts it in the place of the plug-in with its name.
func (s *Set) Put(name string, m yodel.Middleware) {
	if m == nil {
		panic("plugins: the plug-in " + name + " is nil")
	}
	added, links := &plugin{name, m}, make(map[*chain]*link)
	for {
		missing := s.put(added, links)
		if len(missing) == 0 {
			return
		}
		for _, c := range missing { // without the lock, because m is code of the user
			links[c] = newLink(m)
		}
	}
}

// put adds a plug-in with its link in each chain. If chains lack a link, put returns them instead.
func (s *Set) put(added *plugin, links map[*chain]*link) (missing []*chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chains {
		if links[c] == nil {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return missing
	}
	for _, c := range s.chains {
		c.links[added] = links[c]
	}
	plugins := slices.Clone(s.plugins)
	if i := slices.IndexFunc(plugins, func(p *plugin) bool { return p.name == added.name }); i >= 0 {
		plugins[i] = added
	} else {
		plugins = append(plugins, added)
	}
	s.changeLocked(plugins)
	return nil
}

// Remove removes the plug-in with a name, and reports whether there was one.
func (s *Set) Remove(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	plugins := slices.DeleteFunc(slices.Clone(s.plugins), func(p *plugin) bool { return p.name == name })
	removed := len(plugins) < len(s.plugins)
	s.changeLocked(plugins)
	return removed
}

// Names returns the names of the plug-ins, the outermost first.
func (s *Set) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(s.plugins))
	for i, p := range s.plugins {
		names[i] = p.name
	}
	return names
}

// Middleware is the place of the plug-ins in a chain: an element of the Middleware of a client or
// server. Several chains may have the same Set. Each runs the function of each plug-in once, so
// each has plug-ins with a state of their own. The Set keeps its chains as long as it lives.
func (s *Set) Middleware(next yodel.Handler) yodel.Handler {
	c := &chain{end: next, links: make(map[*plugin]*link)}
	for {
		missing := s.join(c)
		if len(missing) == 0 {
			return c.do
		}
		for _, p := range missing { // without the lock, as in Put
			c.links[p] = newLink(p.wrap)
		}
	}
}

// join adds a chain that has a link for each plug-in. If plug-ins lack a link, join returns them
// instead.
func (s *Set) join(c *chain) (missing []*plugin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plugins {
		if c.links[p] == nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		s.chains = append(s.chains, c)
		c.connect(s.plugins)
	}
	return missing
}

func (s *Set) changeLocked(plugins []*plugin) {
	s.plugins = plugins
	for _, c := range s.chains {
		c.connect(plugins)
	}
}

// A chain is the plug-ins of a Set around a handler.
type chain struct {
	end   yodel.Handler
	first atomic.Pointer[yodel.Handler]
	links map[*plugin]*link // guarded by Set.mu once the Set has the chain
}

// A link is a plug-in in a chain.
type link struct {
	handler yodel.Handler                 // the plug-in around next
	next    atomic.Pointer[yodel.Handler] // what is below it
}

// newLink calls the function of a plug-in.
func newLink(wrap yodel.Middleware) *link {
	l := new(link)
	l.handler = wrap(func(ctx context.Context, call *yodel.Call) error { return (*l.next.Load())(ctx, call) })
	return l
}

func (c *chain) do(ctx context.Context, call *yodel.Call) error { return (*c.first.Load())(ctx, call) }

// connect puts the chain together from the inside out. A plug-in that was removed keeps its next,
// for calls that are above it.
func (c *chain) connect(plugins []*plugin) {
	h := c.end
	for _, p := range slices.Backward(plugins) {
		below, l := h, c.links[p]
		l.next.Store(&below)
		h = l.handler
	}
	maps.DeleteFunc(c.links, func(p *plugin, _ *link) bool { return !slices.Contains(plugins, p) })
	c.first.Store(&h)
}
