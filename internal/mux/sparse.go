// SPDX-License-Identifier: Apache-2.0

package mux

import "iter"

// A sparseTable is a slice whose indices the peer chooses. It takes memory for the elements in use,
// and not for all elements up to the highest index. The first elements are in a slice, which is
// enough for a peer that takes the lowest free index. The other elements are in pages.
type sparseTable[T any] struct {
	first []T
	pages *[]*[pageLen]T // without the first page; nil before the first one exists
}

const (
	pageBits = 6
	pageLen  = 1 << pageBits
)

// at returns element i, or nil if it has no memory yet.
func (t *sparseTable[T]) at(i int) *T {
	if i < len(t.first) {
		return &t.first[i]
	}
	return t.beyond(i)
}

// beyond is at for an element outside of first.
func (t *sparseTable[T]) beyond(i int) *T {
	p := i>>pageBits - 1
	if p < 0 || t.pages == nil || p >= len(*t.pages) || (*t.pages)[p] == nil {
		return nil
	}
	return &(*t.pages)[p][i&(pageLen-1)]
}

// grow returns element i, and allocates memory for it if necessary.
func (t *sparseTable[T]) grow(i int) *T {
	if e := t.at(i); e != nil {
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

// all ranges over the elements that have memory.
func (t *sparseTable[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range t.first {
			if !yield(&t.first[i]) {
				return
			}
		}
		if t.pages == nil {
			return
		}
		for _, page := range *t.pages {
			for i := 0; page != nil && i < pageLen; i++ {
				if !yield(&page[i]) {
					return
				}
			}
		}
	}
}
