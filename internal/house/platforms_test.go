// SPDX-License-Identifier: Apache-2.0

package house

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// platforms returns the systems and processors of variables of the Makefile, as GOOS/GOARCH.
func platforms(t *testing.T, variables ...string) (all []string) {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(makefile)) {
		name, value, _ := strings.Cut(line, ":=")
		for _, variable := range variables {
			if strings.TrimSpace(name) == variable {
				all = append(all, strings.Fields(value)...)
			}
		}
	}
	return all
}

// A checker checks the types of the root module's packages for one platform. Packages of the
// standard library are checked without the bodies of their functions.
type checker struct {
	build   build.Context
	root    string // the folder of the module
	sizes   types.Sizes
	checked map[string]*types.Package // by import path
	info    *types.Info               // if it is not nil, gets what identifiers mean
	*parsed
}

// A parsed is the files that were parsed, which have most of their packages in common.
type parsed struct {
	fset  *token.FileSet
	files map[string]*ast.File
}

// goroot returns where the standard library is. A program that was built with -trimpath does not
// know.
var goroot = sync.OnceValue(func() string {
	said, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(said))
})

func newChecker(root, platform string, p *parsed) *checker {
	c := &checker{build: build.Default, root: root, parsed: p, checked: map[string]*types.Package{}}
	c.build.GOROOT = goroot()
	c.build.GOOS, c.build.GOARCH, _ = strings.Cut(platform, "/")
	c.build.CgoEnabled = false
	if c.build.GOARCH == "386" { // it passes arguments on the stack
		c.build.ToolTags = slices.DeleteFunc(slices.Clone(c.build.ToolTags), func(tag string) bool {
			return strings.HasPrefix(tag, "goexperiment.regabi")
		})
	}
	c.sizes = types.SizesFor("gc", c.build.GOARCH)
	return c
}

// Import implements types.Importer.
func (c *checker) Import(name string) (*types.Package, error) { return c.ImportFrom(name, c.root, 0) }

// ImportFrom implements types.ImporterFrom. The importing package is in folder from.
func (c *checker) ImportFrom(name, from string, _ types.ImportMode) (*types.Package, error) {
	if name == "unsafe" {
		return types.Unsafe, nil
	}
	if p := c.checked[name]; p != nil {
		return p, nil
	}
	inside, own := strings.CutPrefix(name+"/", module+"/")
	var found *build.Package
	var err error
	if own {
		found, err = c.build.ImportDir(filepath.Join(c.root, filepath.FromSlash(inside)), 0)
	} else {
		if !strings.HasPrefix(from, c.build.GOROOT) {
			from = c.build.GOROOT
		}
		found, err = c.build.Import(name, from, 0) // it knows the packages that the standard library has copied
	}
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range found.GoFiles {
		file, err := c.file(filepath.Join(found.Dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: c, Sizes: c.sizes, IgnoreFuncBodies: !own}
	p, err := config.Check(name, c.fset, files, c.info)
	c.checked[name] = p
	return p, err
}

func (p *parsed) file(path string) (*ast.File, error) {
	if file := p.files[path]; file != nil {
		return file, nil
	}
	file, err := parser.ParseFile(p.fset, path, nil, parser.SkipObjectResolution)
	p.files[path] = file
	return file, err
}

// The root module builds for other systems and processors. Compiling it and the standard library
// for each of them takes minutes, so CI checks the types, and make before-end builds.
func TestRootBuildsForOtherPlatforms(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("it takes five times as long, and make test-timing runs it")
	}
	found := readRepository(t)
	others := platforms(t, "PLATFORMS", "PROCESSORS")
	if len(others) < 4 {
		t.Errorf("the Makefile has the platforms %q, want at least 4", others)
	}
	files := &parsed{token.NewFileSet(), map[string]*ast.File{}}
	for _, platform := range others {
		c := newChecker(repository, platform, files)
		for _, folder := range found.folders {
			if moduleOf(folder.path, found.modules) != "." {
				continue
			}
			name := strings.TrimSuffix(module+"/"+folder.path, "/.")
			if _, err := c.Import(name); err != nil && !errors.As(err, new(*build.NoGoError)) {
				t.Errorf("%s: %s: %v", platform, name, err)
			}
		}
	}
}

func TestPlatformRuleCatchesViolations(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a system that lacks a function": "//go:build windows\n\npackage a\n\nfunc windows() {}\n",
		"a constant that overflows":      "package a\n\nconst size int = 1 << 40\n",
		"a type error in a body":         "package a\n\nfunc f() int { return \"\" }\n",
	} {
		folder := t.TempDir()
		for file, text := range map[string]string{"a.go": text, "b.go": "package a\n\nfunc b() { windows() }\n", "c.go": "//go:build !linux\n\npackage a\n\nfunc windows() {}\n"} {
			if name != "a system that lacks a function" && file != "a.go" {
				continue
			}
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := newChecker(folder, "linux/386", &parsed{token.NewFileSet(), map[string]*ast.File{}}).Import(module); err == nil {
			t.Errorf("%s is not found", name)
		}
	}
}
