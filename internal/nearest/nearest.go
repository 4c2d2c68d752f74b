// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the known name that is most similar to an unknown name, so that an error
// can ask "did you mean …?". A search takes a bounded amount of work, because any peer can cause
// one.
package nearest

import (
	"cmp"
	"strings"
)

const (
	among   = 256 // the largest number of names that are compared with the unknown name
	longest = 64  // bytes; longer names are not compared
)

// Name returns the key of names that is most similar to name, or "" if no key is similar. If two
// keys are equally similar, it returns the first in alphabetical order. ServiceOf returns the
// service part of a name, without the separator after it, or "".
func Name[V any](name string, names map[string]V, serviceOf func(name string) string) string {
	service := serviceOf(name)
	best, distance, compared := "", len(name), 0
	inService := "" // a method whose name without its service is name
	for other := range names {
		if compared++; compared > among {
			break
		}
		of := serviceOf(other)
		limit := len(name)/3 + 1
		if of == service { // the common service does not make the names more similar
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

// Distance returns how many bytes of a must be changed, added or removed, or swapped with the next
// one, to turn a into b. No byte takes part in two such edits. It returns limit if the distance is
// at least limit, or if a name is long.
func Distance(a, b string, limit int) int {
	if len(a) > longest || len(b) > longest {
		return limit
	}
	var rows [3][longest + 1]int
	n := len(b) + 1
	return distance(rows[0][:n], rows[1][:n], rows[2][:n], a, b, limit)
}

// distance is Distance for names of any length. The rows are memory for a number more than b has
// bytes.
func distance(row, last, older []int, a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	for j := range last {
		last[j] = j
	}
	lastLeast := 0
	for i := range len(a) {
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			d = min(d, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, older[j-1]+1)
			}
			row[j+1] = d
			least = min(least, d)
		}
		if least >= limit && lastLeast+1 >= limit { // a swap goes back two rows
			return limit
		}
		row, last, older, lastLeast = older, row, last, least
	}
	return min(last[len(b)], limit)
}

// Word returns the word that is most similar to text, or "" if the distance of all words is at
// least limit. It ignores case. If two words are equally similar, it returns the first. It is for
// texts of the user of this process, so it does not bound the work.
func Word(text string, words []string, limit int) string {
	best := ""
	text = strings.ToLower(text)
	for _, word := range words {
		lower := strings.ToLower(word)
		n := len(lower) + 1
		if d := distance(make([]int, n), make([]int, n), make([]int, n), text, lower, limit); d < limit {
			best, limit = word, d
		}
	}
	return best
}
