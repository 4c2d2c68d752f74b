// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

const (
	// maxCounted is how many methods are counted separately.
	maxCounted = 1000
	// maxUnknown is how many of them may be methods that no server has. So names that callers of a
	// gateway invent leave room for methods that exist.
	maxUnknown = maxCounted / 2
	// otherMethods is the name of all further methods.
	otherMethods = "other"
)

// MethodCounts count the calls that a client makes of each method. Their memory is bounded. They
// may be used concurrently.
type MethodCounts struct {
	mu     sync.Mutex
	byName map[string]*stats.Calls
	others stats.Calls // of methods without counters of their own
}

// For returns the counters of a method of which a call has ended with a code. Kept has the result
// of an earlier For. It is nil if the method has no place for it.
func (c *MethodCounts) For(kept *atomic.Pointer[stats.Calls], name string, code int) *stats.Calls {
	if kept == nil {
		n, _ := c.of(name, code == int(catalogue.Unimplemented))
		return n
	}
	if n := kept.Load(); n != nil {
		return n
	}
	n, final := c.of(name, code == int(catalogue.Unimplemented))
	if final {
		kept.Store(n)
	}
	return n
}

// of returns the counters of a method. Unknown says that no server has the method. The result is
// final if later calls will return the same counters.
func (c *MethodCounts) of(name string, unknown bool) (n *stats.Calls, final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.byName[name]; n != nil {
		return n, true
	}
	most := maxCounted
	if unknown {
		most = maxUnknown
	}
	if len(c.byName) >= most || name == otherMethods || len(name) > wire.MaxName {
		return &c.others, len(c.byName) >= maxCounted
	}
	if c.byName == nil {
		c.byName = make(map[string]*stats.Calls)
	}
	n = new(stats.Calls)
	c.byName[strings.Clone(name)] = n
	return n, true
}

// All returns the counters of all methods, sorted by name.
func (c *MethodCounts) All() (all []introspect.MethodStats) {
	c.mu.Lock()
	byName := maps.Clone(c.byName)
	c.mu.Unlock()
	for name, n := range byName {
		all = append(all, Calls(name, n))
	}
	if other := Calls(otherMethods, &c.others); other.Calls > 0 {
		all = append(all, other)
	}
	slices.SortFunc(all, func(a, b introspect.MethodStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}
