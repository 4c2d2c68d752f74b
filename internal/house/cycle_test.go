// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxCycle bounds the files of the root that can only be understood together.
var maxCycle = size{of: "files of the root that refer to each other in a cycle", most: 21}

// references returns to which other files of a package each of its files refers. A file refers to
// another one if it names a declaration, a field or a method of it.
func references(root, path string) (map[string][]string, error) {
	c := newChecker(root, "linux/amd64", &parsed{token.NewFileSet(), map[string]*ast.File{}})
	c.info = &types.Info{Uses: map[*ast.Ident]types.Object{}}
	p, err := c.Import(path)
	if err != nil {
		return nil, err
	}
	found := map[string]map[string]bool{}
	file := func(at token.Pos) string { return filepath.Base(c.fset.Position(at).Filename) }
	for name, of := range c.info.Uses {
		if of.Pkg() != p || of.Parent() == types.Universe {
			continue
		}
		from, to := file(name.Pos()), file(of.Pos())
		if found[from] == nil {
			found[from] = map[string]bool{}
		}
		found[from][to] = true
	}
	all := map[string][]string{}
	for from, to := range found {
		all[from] = slices.Sorted(maps.Keys(to))
	}
	return all, nil
}

// largestCycle returns the largest set of files of which each one refers to every other one, maybe
// by way of further files.
func largestCycle(references map[string][]string) (largest []string) {
	reached := map[string]map[string]bool{}
	for from := range references {
		seen, next := map[string]bool{}, []string{from}
		for len(next) > 0 {
			at := next[len(next)-1]
			next = next[:len(next)-1]
			for _, to := range references[at] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		reached[from] = seen
	}
	for from := range references {
		in := []string{from}
		for to := range reached[from] {
			if to != from && reached[to][from] {
				in = append(in, to)
			}
		}
		if len(in) > len(largest) {
			largest = in
		}
	}
	slices.Sort(largest)
	return largest
}

func TestCycleOfTheRootKeepsItsBound(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("it checks types, as TestRootBuildsForOtherPlatforms does")
	}
	all, err := references(repository, module)
	if err != nil {
		t.Fatal(err)
	}
	cycle := largestCycle(all)
	bound := maxCycle
	bound.count = func(tree) int { return len(cycle) }
	if faults := bound.faults(tree{}); len(faults) > 0 {
		report(t, faults)
		t.Logf("the cycle has %s", strings.Join(cycle, ", "))
	}
}

func TestCyclesAreFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ a, b, c, want string }{
		"none":            {"func a() { b() }", "func b() { c() }", "func c() {}", "[a.go]"},
		"of two":          {"func a() { b() }", "func b() { a() }", "func c() { b() }", "[a.go b.go]"},
		"by a method":     {"type a int", "func (a) m() {}", "func c(x a) { x.m() }", "[a.go]"},
		"by a field":      {"type a struct{ f int }", "func b(x a) int { c(); return x.f }", "func c() { b(a{}) }", "[b.go c.go]"},
		"by another file": {"func a() { b() }", "func b() { c() }", "func c() { a() }", "[a.go b.go c.go]"},
	} {
		folder := t.TempDir()
		for file, text := range map[string]string{"a.go": test.a, "b.go": test.b, "c.go": test.c} {
			if err := os.WriteFile(filepath.Join(folder, file), []byte("package a\n\n"+text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all, err := references(folder, module)
		if err != nil {
			t.Fatal(err)
		}
		got := largestCycle(all)
		if len(got) == 1 { // which of several files it is does not matter
			got = []string{"a.go"}
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("%s: got %v, want %s", name, got, test.want)
		}
	}
}
