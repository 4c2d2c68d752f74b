// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"sync"

	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/methods"
)

// Counters has the counters of the methods that are called on an endpoint, by the handles of their
// bindings. The zero value has none. It may be used concurrently.
type Counters struct {
	byHandle methods.List[chosen]
	mu       sync.Mutex // held to change byHandle
}

// chosen is the counter of a binding.
type chosen struct {
	generation uint32 // of the binding
	counter    *live.Counter
}

// At returns the counter that Set has stored for a binding, and whether there was a Set.
func (c *Counters) At(handle int, generation uint32) (counter *live.Counter, set bool) {
	if of := c.byHandle.At(handle); of != nil && of.generation == generation {
		return of.counter, true
	}
	return nil, false
}

// Set stores the counter of a binding, in place of one of an earlier generation. It is nil if there
// is no memory for it.
func (c *Counters) Set(handle int, generation uint32, counter *live.Counter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byHandle.Set(handle, &chosen{generation, counter})
}
