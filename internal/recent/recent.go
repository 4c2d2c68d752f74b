// SPDX-License-Identifier: Apache-2.0

// Package recent remembers what a connection has found by name, such as the methods that its calls
// name.
package recent

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Most is how many values of one name Names remembers.
const Most = 8

// Names remembers values by name. A name may have several values, of which it remembers those that
// were used last. The zero Names is empty. It may be used concurrently. Getting the value again
// that was used last takes no lock.
type Names[V any] struct {
	last atomic.Pointer[named[V]] // the last one of all names

	mu    sync.Mutex
	known map[string][]*named[V] // each list has the last one first
}

type named[V any] struct {
	name  string
	value *V
}

// Get returns the last used value of a name that fits, or otherwise the result of create. It
// remembers that result if keep is true and not more than most names are known. It calls fits and
// create with a lock held, at times.
func (n *Names[V]) Get(name string, most int, fits func(*V) bool, create func() (v *V, keep bool)) *V {
	if last := n.last.Load(); last != nil && last.name == name && fits(last.value) {
		return last.value
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.known[name]
	at := slices.IndexFunc(known, func(of *named[V]) bool { return fits(of.value) })
	if at < 0 {
		v, keep := create()
		if !keep || known == nil && len(n.known) >= most {
			return v
		}
		if known == nil {
			name = strings.Clone(name)
		} else {
			name = known[0].name
		}
		known = append(known[:min(len(known), Most-1)], &named[V]{name, v})
		at = len(known) - 1
		if n.known == nil {
			n.known = make(map[string][]*named[V])
		}
		n.known[name] = known
	}
	of := known[at]
	copy(known[1:], known[:at])
	known[0] = of
	n.last.Store(of)
	return of.value
}
