// SPDX-License-Identifier: Apache-2.0

package methods

import "sync/atomic"

// A List has values at small indexes, for example the handles of methods. The zero List is empty.
// At may be called concurrently, also with Set. Set must not be called concurrently.
type List[V any] struct {
	values atomic.Pointer[[]atomic.Pointer[V]]
}

// At returns the value at an index, or nil.
func (l *List[V]) At(i int) *V {
	if all := l.values.Load(); all != nil && i < len(*all) {
		return (*all)[i].Load()
	}
	return nil
}

// Set stores a value at an index. The List grows by doubling.
func (l *List[V]) Set(i int, value *V) {
	var all []atomic.Pointer[V]
	if old := l.values.Load(); old != nil {
		all = *old
	}
	if i >= len(all) {
		more := make([]atomic.Pointer[V], max(2*len(all), i+1))
		for j := range all {
			more[j].Store(all[j].Load())
		}
		all = more
		l.values.Store(&all)
	}
	all[i].Store(value)
}
