// SPDX-License-Identifier: Apache-2.0

// Package reuse decides which memory of a call that has ended may serve another call. Code of the
// user may still have a part of it.
package reuse

import (
	"sync"
	"sync/atomic"
)

// most is the largest buffer that is kept for another use, in bytes.
const most = 64 << 10

// Small reports whether a buffer is small enough to be kept for another use.
func Small(b []byte) bool { return cap(b) <= most }

// Keep returns b, emptied for another use, or nil if it is too large to be kept.
func Keep(b []byte) []byte {
	if !Small(b) {
		return nil
	}
	return b[:0]
}

// A Pool has buffers. The zero Pool is empty. Its methods may be called concurrently.
type Pool struct{ buffers sync.Pool }

// Get returns an empty buffer.
func (p *Pool) Get() *[]byte {
	if b, ok := p.buffers.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// Put returns a buffer to the pool. With Poison, it overwrites what the buffer has.
func (p *Pool) Put(b *[]byte) {
	if Poison {
		for i := range *b {
			(*b)[i] = 0xdb
		}
	}
	if Small(*b) {
		*b = (*b)[:0]
		p.buffers.Put(b)
	}
}

// An Owner is the state of a call that may serve another call after its end, unless code of the
// user has got the call. The user's code gets it by a reference of type R, which is not reused. The
// methods may be called concurrently, except that Begin, Next and Drop exclude each other.
//
// Held says that code of the user has got the call. It is no field of an Owner, because it fits
// into a gap between the other fields of the state.
type Owner[R any] struct {
	current atomic.Pointer[R] // the reference to the present call; nil for none
}

// Begin sets the reference to the first call.
func (o *Owner[R]) Begin(first *R) { o.current.Store(first) }

// Hold sets held, which prevents that the state serves another call, and returns true. If r refers
// to an earlier call, Hold changes nothing and returns false.
func (o *Owner[R]) Hold(r *R, held *atomic.Bool) bool {
	if o.current.Load() != r {
		return false
	}
	held.Store(true)
	return o.current.Load() == r // the state was not reused in the meantime
}

// Next makes the state that of another call, to which next refers. It reports whether that is
// possible.
func (o *Owner[R]) Next(next *R, held *atomic.Bool) bool {
	return !Poison && !held.Load() && o.change(next, held)
}

// Drop makes every reference to the present call useless. It reports whether that is possible.
func (o *Owner[R]) Drop(held *atomic.Bool) bool { return o.change(nil, held) }

func (o *Owner[R]) change(to *R, held *atomic.Bool) bool {
	last := o.current.Load()
	o.current.Store(to)
	if held.Load() { // code of the user has got the call in the meantime
		o.current.Store(last)
		return false
	}
	return true
}
