// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// codes is how many outcomes are counted separately: success, which is 0, and the codes of errors.
const codes = int(yodel.Unauthenticated) + 1

// other is the method of calls that are not counted by themselves.
const other = "other"

// calls counts what Stats of a server or a client does not have.
type calls struct {
	exemplars table[exemplars]     // by method
	errors    table[atomic.Uint64] // by ID
	events    table[atomic.Uint64] // of connections, by kind
	unknown   unknown
}

// unknown counts the calls of methods that a server does not have.
type unknown struct {
	used     atomic.Bool
	codes    [codes]atomic.Uint64
	latency  latency
	bytesIn  atomic.Uint64
	bytesOut atomic.Uint64
}

func newCalls(maxMethods int) *calls {
	return &calls{
		exemplars: table[exemplars]{most: maxMethods}, errors: table[atomic.Uint64]{most: maxIDs}, events: table[atomic.Uint64]{most: maxIDs},
	}
}

// maxIDs bounds the IDs of errors that are counted by themselves, because IDs come from servers.
const maxIDs = 200

// serverObserver returns an observer of a server.
func (c *calls) serverObserver() yodel.Observer {
	return yodel.Observer{Notable: func(_ context.Context, call *yodel.Call, err error) {
		c.failed(err)
		traced := c.exemplars.other
		if call.Kind() != "" { // the server has the method, so the client cannot make up names
			traced = func() *exemplars { return c.exemplars.at(call.Method) }
		} else {
			c.unknown.count(call, err)
		}
		if call.Trace != "" {
			traced().note(call.Trace, call.Took())
		}
	}}
}

// clientObserver returns an observer of a client.
func (c *calls) clientObserver() yodel.Observer {
	return yodel.Observer{Notable: func(_ context.Context, call *yodel.Call, err error) {
		c.failed(err)
		if call.Trace != "" {
			c.exemplars.at(call.Method).note(call.Trace, call.Took())
		}
	}}
}

func (u *unknown) count(call *yodel.Call, err error) {
	u.used.Store(true)
	code := int(yodel.CodeOf(err))
	if code >= codes { // it has no name
		code = int(yodel.Unknown)
	}
	u.codes[code].Add(1)
	u.latency.count(call.Took())
	t := call.Traffic()
	u.bytesIn.Add(uint64(t.BytesIn))
	u.bytesOut.Add(uint64(t.BytesOut))
}

// failed counts the ID of an error, unless the caller has canceled the call.
func (c *calls) failed(err error) {
	if err == nil || yodel.CodeOf(err) == yodel.Canceled {
		return
	}
	if e, ok := err.(*yodel.Error); ok && e.ID != "" { //nolint:errorlint // the error itself, not one that it wraps
		c.errors.at(e.ID).Add(1)
	}
}

// onConn returns a function for OnConn that counts the events, and passes them on to next.
func (c *calls) onConn(next func(introspect.ConnEvent)) func(introspect.ConnEvent) {
	return func(e introspect.ConnEvent) {
		c.events.at(string(e.Kind)).Add(1)
		if next != nil {
			next(e)
		}
	}
}

// A table has a value for each name. Reading it takes no lock. Names beyond
// the first most ones share one value.
type table[T any] struct {
	most   int
	mu     sync.Mutex // for changes
	byName atomic.Pointer[map[string]*T]
	rest   T
	used   atomic.Bool // rest
}

// at returns the value of a name.
func (t *table[T]) at(name string) *T {
	if m := t.byName.Load(); m != nil {
		if v := (*m)[name]; v != nil {
			return v
		}
	}
	return t.add(name)
}

// other returns the value that names without a value of their own share.
func (t *table[T]) other() *T {
	if !t.used.Load() {
		t.used.Store(true)
	}
	return &t.rest
}

func (t *table[T]) add(name string) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := map[string]*T{}
	if m := t.byName.Load(); m != nil {
		if v := (*m)[name]; v != nil {
			return v
		}
		if len(*m) >= t.most {
			return t.other()
		}
		names = maps.Clone(*m)
	}
	v := new(T)
	names[strings.Clone(name)] = v
	t.byName.Store(&names)
	return v
}

// all calls f for each name, in order.
func (t *table[T]) all(f func(name string, v *T)) {
	if m := t.byName.Load(); m != nil {
		for _, name := range slices.Sorted(maps.Keys(*m)) {
			if name != other || !t.used.Load() {
				f(name, (*m)[name])
			}
		}
	}
	if t.used.Load() {
		f(other, &t.rest)
	}
}

// find returns the value of a name, or nil.
func (t *table[T]) find(name string) *T {
	if name == other && t.used.Load() {
		return &t.rest
	}
	if m := t.byName.Load(); m != nil {
		return (*m)[name]
	}
	return nil
}
