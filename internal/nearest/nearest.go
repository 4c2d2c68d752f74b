// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the name that is most like an unknown one, so that an error can ask "did
// you mean …?". A search takes a bounded amount of work, because any peer can cause one.
package nearest

import (
	"cmp"
	"strings"
)

const (
	among   = 256 // names at most are compared with the unknown one
	longest = 64  // bytes; longer names are not compared
)

// Name returns the key of names that is most like name, or "" if none is like it. Of two that are
// equally like it, it returns the first in alphabetical order. ServiceOf returns the part of a name
// that is its service, without the separator behind it, or "".
func Name[V any](name string, names map[string]V, serviceOf func(name string) string) string {
	service := serviceOf(name)
	best, distance, compared := "", len(name), 0
	inService := "" // the method that name is without its service
	for other := range names {
		if compared++; compared > among {
			break
		}
		of := serviceOf(other)
		limit := len(name)/3 + 1
		if of == service { // what they have in common makes them no more alike
			limit = min(limit, (len(name)-len(service)+1)/3+1)
		}
		d := 0
		if !strings.EqualFold(other, name) {
			d = Distance(name, other, limit)
		}
		if d < limit && (d < distance || d == distance && other < best) {
			best, distance = other, d
		}
		if service == "" && of != "" && strings.EqualFold(other[len(of)+1:], name) && (inService == "" || other < inService) {
			inService = other
		}
	}
	return cmp.Or(best, inService)
}

// Distance is the Levenshtein distance: how many bytes of a have to be changed, added or removed to
// make b of it. It returns limit if there are at least that many, and for long names.
func Distance(a, b string, limit int) int {
	if len(a) > longest || len(b) > longest || max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	var memory [longest + 1]int
	row := memory[:len(b)+1]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, least := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
			least = min(least, row[j+1])
		}
		if least >= limit {
			return limit
		}
	}
	return min(row[len(b)], limit)
}
