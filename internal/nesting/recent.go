// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/iface"
)

// A Recent keeps a value for each of some types. Looking one up takes a nanosecond, a fifth of what
// a sync.Map takes. The zero value is empty. It may be used concurrently.
type Recent[T any] struct {
	slots [slots]atomic.Pointer[recent[T]]
}

const slots = 64

type recent[T any] struct {
	of    uintptr
	value T
}

// Get returns the value for the type of v, or nil. The caller must not change it.
func (r *Recent[T]) Get(v any) *T {
	of := iface.TypeOf(v)
	for _, at := range places(of) {
		if found := r.slots[at].Load(); found != nil && found.of == of {
			return &found.value
		}
	}
	return nil
}

// Put keeps a value for the type of v, unless it already keeps ones for other types in its places:
// types that share them do not replace each other all the time.
func (r *Recent[T]) Put(v any, value T) {
	of := iface.TypeOf(v)
	for _, at := range places(of) {
		if r.slots[at].Load() == nil {
			r.slots[at].CompareAndSwap(nil, &recent[T]{of, value})
			return
		}
	}
}

// places returns where the value of a type can be.
func places(of uintptr) [2]uintptr { return [2]uintptr{of >> 6 % slots, of >> 10 % slots} }
