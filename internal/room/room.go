// SPDX-License-Identifier: Apache-2.0

// Package room bounds the memory that decoding a message may take, for codecs that decode by
// themselves. docs/decisions/0068 has the reasons.
package room

import (
	"errors"
	"reflect"
)

// ErrNone says that a message needs more than its room.
var ErrNone = errors.New("the message needs too much memory for its length")

// A Room is how many bytes may still be allocated.
type Room int

// For returns the room for a message of n bytes. Messages of more than 512 KiB get less for each
// byte.
func For(n int) Room { return Room(min(256<<10+128*n, max(64<<20, 16*n))) }

// Take counts n values of the given size before they are allocated. It reports false, and counts
// nothing, if there is no room for them.
func (r *Room) Take(n int, size uintptr) bool {
	if size != 0 && uintptr(n) > uintptr(max(*r, 0))/size {
		return false
	}
	*r -= Room(n) * Room(size)
	return true
}

// The sizes of Go's maps: of a map without entries, how many entries its first group has, up to
// which size a key or an element is in the group itself, and how many slots a larger map may have
// for each entry.
const (
	mapSize   = 48
	groupSize = 8
	maxInline = 128
	perEntry  = 3
)

// Map returns how many bytes a map of type t with n entries takes, or more.
func Map(t reflect.Type, n int) uintptr {
	if n == 0 {
		return mapSize
	}
	slot, apart := uintptr(1), uintptr(0)
	for _, of := range []reflect.Type{t.Key(), t.Elem()} {
		if of.Size() > maxInline {
			slot, apart = slot+8, apart+of.Size()
		} else {
			slot += of.Size()
		}
	}
	slots := uintptr(groupSize)
	if n > groupSize {
		slots = perEntry * uintptr(n)
	}
	return mapSize + slots*slot + uintptr(n)*apart
}

// Entry returns how many bytes one more entry of m takes. M may be nil.
func Entry(m reflect.Value) uintptr {
	if m.IsNil() {
		return Map(m.Type(), 1)
	}
	t, n := m.Type(), m.Len()
	if 0 < n && n < groupSize && max(t.Key().Size(), t.Elem().Size()) <= maxInline {
		return 0 // the first group has room for it
	}
	return Map(t, n+1) - Map(t, n)
}
