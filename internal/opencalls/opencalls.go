// SPDX-License-Identifier: Apache-2.0

// Package opencalls lists the calls that a server is executing, and writes the log lines of a
// shutdown about them.
package opencalls

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Call is a call that a server is executing.
type Call struct{ Method, Peer string }

// maxListed is how many entries a log line about open calls has.
const maxListed = 4

// List lists calls in short form, the most frequent first: "Shop.Buy from 10.0.0.7:4711 (2),
// Shop.Price from 10.0.0.8:4712".
func List(open []Call) string {
	counts := make(map[Call]int)
	for _, call := range open {
		counts[call]++
	}
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b Call) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a.Method, b.Method), strings.Compare(a.Peer, b.Peer))
	})
	var words []string
	rest := len(open)
	for _, kind := range kinds[:min(len(kinds), maxListed)] {
		word := kind.Method + " from " + kind.Peer
		if n := counts[kind]; n > 1 {
			word += fmt.Sprintf(" (%d)", n)
		}
		words = append(words, word)
		rest -= counts[kind]
	}
	if rest > 0 {
		words = append(words, fmt.Sprintf("%d more", rest))
	}
	return strings.Join(words, ", ")
}
