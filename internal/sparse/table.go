// SPDX-License-Identifier: Apache-2.0

// Package sparse has a table whose indices a peer chooses.
package sparse

import "iter"

// A Table is like a slice that is as long as its highest index requires. It takes memory for the
// elements in use, and not for all elements up to the highest index. The first elements are in a
// slice, which is enough for a peer that takes the lowest free index. The other elements are in
// pages. Elements never move to another index. The zero Table is empty.
type Table[T any] struct {
	first []T
	pages *[]*[pageLen]T // without the first page; nil before the first one exists
}

const (
	pageBits = 6
	pageLen  = 1 << pageBits
)

// At returns element i, or nil if it has no memory yet. The next Grow may move the element, so the
// caller must not keep the pointer.
func (t *Table[T]) At(i int) *T {
	if i < len(t.first) {
		return &t.first[i]
	}
	return t.beyond(i)
}

// beyond is At for an element outside of first.
func (t *Table[T]) beyond(i int) *T {
	p := i>>pageBits - 1
	if p < 0 || t.pages == nil || p >= len(*t.pages) || (*t.pages)[p] == nil {
		return nil
	}
	return &(*t.pages)[p][i&(pageLen-1)]
}

// Grow returns element i, and allocates memory for it if necessary.
func (t *Table[T]) Grow(i int) *T {
	if e := t.At(i); e != nil {
		return e
	}
	if i < pageLen {
		t.first = append(t.first, make([]T, i+1-len(t.first))...)
		return &t.first[i]
	}
	if t.pages == nil {
		t.pages = new([]*[pageLen]T)
	}
	p := i>>pageBits - 1
	if n := len(*t.pages); p >= n {
		*t.pages = append(*t.pages, make([]*[pageLen]T, p+1-n)...)
	}
	(*t.pages)[p] = new([pageLen]T)
	return t.beyond(i)
}

// All ranges over the elements that have memory, from index i on.
func (t *Table[T]) All(i int) iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for ; i < len(t.first); i++ {
			if !yield(i, &t.first[i]) {
				return
			}
		}
		if t.pages == nil {
			return
		}
		for i = max(i, pageLen); i < (len(*t.pages)+1)<<pageBits; i++ {
			if (*t.pages)[i>>pageBits-1] == nil {
				i |= pageLen - 1 // the last one of the page
			} else if !yield(i, t.beyond(i)) {
				return
			}
		}
	}
}
