// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// measuredCommand prints arguments of go test that select the tests of the workspace that judge
// something differently under the race detector, such as allocations, memory or time. Those are the
// tests that stand in a file whose build constraint mentions race, and those that use, directly or
// through other functions, a name that is declared in such a file.
func measuredCommand(ctx context.Context, out io.Writer) error {
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.ImportPath}} {{.Dir}}", "work")
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	var s sources
	for line := range strings.Lines(string(text)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := s.read(path, dir); err != nil {
			return err
		}
	}
	tests, packages := s.measured()
	_, err = fmt.Fprintf(out, "-run=^(%s)$\n%s\n", strings.Join(tests, "|"), strings.Join(packages, "\n"))
	return err
}

// A name is a function, a method, a variable or a constant of a package. Methods of all types of a
// package are not told apart, and begin with a dot.
type name struct{ path, text string }

// sources are the declarations of tests, and of packages that tests use.
type sources struct {
	uses map[name][]name // the names that a declaration uses
	race []name          // declared in a file whose build constraint mentions race
}

// read adds the package in a folder. Of the part that is not for tests, it adds only the files
// whose build constraint mentions race.
func (s *sources) read(importPath, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var tests, others []*ast.File
	helps := false // a package that imports testing helps tests
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasSuffix(file, "_test.go") {
			tests = append(tests, parsed)
			continue
		}
		others = append(others, parsed)
		helps = helps || slices.ContainsFunc(parsed.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
	}
	for _, file := range others {
		if helps || mentionsRace(file) { // tests may ask a constant of the product
			tests = append(tests, file)
		}
	}
	for _, file := range tests {
		s.add(importPath, file)
	}
	return nil
}

// add adds the declarations of a file.
func (s *sources) add(importPath string, file *ast.File) {
	if strings.HasSuffix(file.Name.Name, "_test") {
		importPath += "_test"
	}
	imported := make(map[string]string) // the paths by the names that the file uses
	for _, spec := range file.Imports {
		if from, err := strconv.Unquote(spec.Path.Value); err == nil && spec.Name != nil {
			imported[spec.Name.Name] = from
		} else if err == nil {
			imported[path.Base(from)] = from
		}
	}
	race := mentionsRace(file)
	for _, decl := range file.Decls {
		used := usedBy(decl, importPath, imported)
		for _, text := range declaredBy(decl) {
			n := name{importPath, text}
			if s.uses == nil {
				s.uses = make(map[name][]name)
			}
			s.uses[n] = append(s.uses[n], used...)
			if race {
				s.race = append(s.race, n)
			}
		}
	}
}

// mentionsRace reports whether the build constraint of a file mentions race.
func mentionsRace(file *ast.File) bool {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			expr, err := constraint.Parse(comment.Text)
			if err != nil || comment.Pos() > file.Package {
				continue
			}
			mentioned := false
			for _, others := range []bool{false, true} {
				eval := func(race bool) bool {
					return expr.Eval(func(tag string) bool { return tag == "race" && race || tag != "race" && others })
				}
				mentioned = mentioned || eval(false) != eval(true)
			}
			return mentioned
		}
	}
	return false
}

// declaredBy returns the names that a declaration declares. TestMain concerns all tests of a
// package, and is left out.
func declaredBy(decl ast.Decl) (names []string) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		switch {
		case decl.Recv != nil:
			return []string{"." + decl.Name.Name}
		case decl.Name.Name != "TestMain":
			return []string{decl.Name.Name}
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			if values, ok := spec.(*ast.ValueSpec); ok {
				for _, ident := range values.Names {
					names = append(names, ident.Name)
				}
			}
		}
	}
	return names
}

// usedBy returns the names that a declaration uses.
func usedBy(decl ast.Decl, importPath string, imported map[string]string) (used []name) {
	ast.Inspect(decl, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Ident:
			used = append(used, name{importPath, node.Name})
		case *ast.SelectorExpr:
			if x, ok := node.X.(*ast.Ident); ok && imported[x.Name] != "" {
				used = append(used, name{imported[x.Name], node.Sel.Name})
			} else {
				used = append(used, name{importPath, "." + node.Sel.Name})
				ast.Inspect(node.X, func(inner ast.Node) bool {
					if ident, ok := inner.(*ast.Ident); ok {
						used = append(used, name{importPath, ident.Name})
					}
					return true
				})
			}
			return false
		}
		return true
	})
	return used
}

// measured returns the tests that use a name of s.race, and their packages.
func (s *sources) measured() (tests, packages []string) {
	found := make(map[name]bool)
	for _, n := range s.race {
		found[n] = true
	}
	for more := true; more; {
		more = false
		for n, used := range s.uses {
			if !found[n] && slices.ContainsFunc(used, func(u name) bool { return found[u] }) {
				found[n], more = true, true
			}
		}
	}
	in := make(map[string]bool)
	for n := range found {
		if strings.HasPrefix(n.text, "Test") || strings.HasPrefix(n.text, "Fuzz") {
			tests = append(tests, n.text)
			in[strings.TrimSuffix(n.path, "_test")] = true
		}
	}
	slices.Sort(tests)
	return slices.Compact(tests), slices.Sorted(maps.Keys(in))
}
