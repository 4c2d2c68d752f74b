// SPDX-License-Identifier: Apache-2.0

package nearest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/nearest"
)

func serviceOf(name string) string { return name[:max(strings.LastIndex(name, "."), 0)] }

func TestNameIsTheMostSimilar(t *testing.T) {
	names := map[string]bool{"Arith.Mul": true, "Arith.Add": true, "Arith.Adf": true, "Shop.Order": true, "sum": true}
	for name, want := range map[string]string{
		"Arith.Mult": "Arith.Mul",
		"arith.MUL":  "Arith.Mul",
		"Arith.Adx":  "Arith.Add", // the first of two
		"Mul":        "Arith.Mul",
		"SUM":        "sum",
		"Shop.Mul":   "", // what is alike is the service
		"Weather":    "",
		"":           "",
	} {
		if got := nearest.Name(name, names, serviceOf); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestServicesNamesTheMostSimilar(t *testing.T) {
	tests := []struct {
		known []string
		want  string
	}{
		{nil, "; the registry knows no other service there"},
		{[]string{"Inventory"}, "; the registry knows no other service there"}, // it has no instance
		{[]string{"Weather", "inventory", "Inventroy"}, `; did you mean "inventory" or "Inventroy"?`},
		{[]string{"D", "B", "A", "C", "E"}, `; the services there are "A", "B", "C" and 2 more`},
	}
	for _, test := range tests {
		if got := nearest.Services("Inventory", test.known); got != test.want {
			t.Errorf("of %q: got %q, want %q", test.known, got, test.want)
		}
	}
}

func TestDistance(t *testing.T) {
	long := strings.Repeat("a", 65)
	for _, test := range []struct {
		a, b        string
		limit, want int
	}{
		{"kitten", "sitting", 10, 3},
		{"kitten", "sitting", 3, 3},
		{"kitten", "sitting", 2, 2}, // no more than the limit
		{"", "abc", 10, 3},
		{"same", "same", 10, 0},
		{"flaw", "lawn", 10, 2},
		{"sl", "ls", 10, 1}, // neighbours that are swapped
		{"sl", "ls", 2, 1},
		{"abcd", "badc", 3, 2},
		{"ca", "abc", 10, 3}, // a swapped byte is not changed again
		{"sevrice", "services", 3, 2},
		{long, long, 10, 10},
	} {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			if got := nearest.Distance(pair[0], pair[1], test.limit); got != test.want {
				t.Errorf("%q to %q within %d: got %d, want %d", pair[0], pair[1], test.limit, got, test.want)
			}
		}
	}
}

func TestWordIsTheMostSimilar(t *testing.T) {
	long := strings.Repeat("a", 100)
	words := []string{"cart", "CARD", "service", long}
	for _, test := range []struct {
		text  string
		limit int
		want  string
	}{
		{"card", 2, "CARD"},
		{"carx", 2, "cart"}, // the first of two
		{"sevrice", 2, "service"},
		{"servixxe", 2, ""},
		{long + "b", 2, long},
		{"", 0, ""},
	} {
		if got := nearest.Word(test.text, words, test.limit); got != test.want {
			t.Errorf("%q within %d: got %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}

// Any peer can ask for a search, so that it looks at 256 names at most.
func TestASearchIsBounded(t *testing.T) {
	names := make(map[string]bool)
	for i := range 10_000 {
		names[fmt.Sprintf("Service.Method%d", i)] = true
	}
	asked := 0
	nearest.Name("Service.Methud", names, func(name string) string { asked++; return serviceOf(name) })
	if asked != 257 {
		t.Errorf("the search looked at %d names, want the unknown one and 256 others", asked)
	}
}
