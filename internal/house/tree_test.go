// SPDX-License-Identifier: Apache-2.0

package house

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }

const (
	module     = "github.com/yodel-rpc/yodel"
	repository = "../.." // seen from this folder, where its tests run
)

// A goFile is one Go file, tests and generated code included.
type goFile struct {
	path string // from the root of the repository, with slashes
	text string
	ast  *ast.File
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// A folder is the Go files of one folder: a package with its tests.
type folder struct {
	path  string // from the root of the repository, with slashes; "." is the root
	files []goFile
}

// A tree is what the rules see of the repository. Everything is sorted by path.
type tree struct {
	folders  []folder
	modules  []string // the folders with a go.mod
	markdown []string // the paths of the documents
}

// repositoryTree is the real tree, read once.
var repositoryTree = sync.OnceValues(func() (tree, error) { return readTree(os.DirFS(repository)) })

func readRepository(t *testing.T) tree {
	t.Helper()
	found, err := repositoryTree()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// readTree reads what is under version control or about to be: no hidden folders, installed tools,
// foreign packages or test data.
func readTree(fsys fs.FS) (tree, error) {
	var found tree
	files := map[string][]goFile{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if skipped(name) {
				return fs.SkipDir
			}
		case d.Name() == "go.mod":
			found.modules = append(found.modules, path.Dir(name))
		case path.Ext(name) == ".md":
			found.markdown = append(found.markdown, name)
		case path.Ext(name) == ".go":
			text, err := fs.ReadFile(fsys, name)
			if err != nil {
				return err
			}
			file, err := parse(name, string(text))
			if err != nil {
				return err
			}
			files[path.Dir(name)] = append(files[path.Dir(name)], file)
		}
		return nil
	})
	for name, inside := range files {
		found.folders = append(found.folders, folder{name, inside})
	}
	slices.SortFunc(found.folders, func(a, b folder) int { return cmp.Compare(a.path, b.path) })
	return found, err
}

func skipped(folder string) bool {
	base := path.Base(folder)
	return folder == "bin" || base == "testdata" || base == "node_modules" ||
		base != "." && strings.ContainsAny(base[:1], "._")
}

func parse(name, text string) (goFile, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	return goFile{name, text, file}, err
}

// folderOf makes a folder for a rule to look at, from the names and texts of its files.
func folderOf(t *testing.T, name string, texts map[string]string) folder {
	t.Helper()
	made := folder{path: name}
	for base, text := range texts {
		file, err := parse(path.Join(name, base), text)
		if err != nil {
			t.Fatal(err)
		}
		made.files = append(made.files, file)
	}
	return made
}

// directives returns the directives of a go.mod or go.work, one list of words each, with blocks
// written out.
func directives(text string) [][]string {
	var all [][]string
	block := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case block != "" && words[0] == ")":
			block = ""
		case block != "":
			all = append(all, append([]string{block}, words...))
		case len(words) == 2 && words[1] == "(":
			block = words[0]
		default:
			all = append(all, words)
		}
	}
	return all
}

// readText reads a file of the repository.
func readText(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(name)))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return string(text), nil
}

// report fails the test once for every fault.
func report(t *testing.T, faults []string) {
	t.Helper()
	for _, fault := range faults {
		t.Error(fault)
	}
}

// inBench reports whether a path is in bench.
func inBench(name string) bool { return name == "bench" || strings.HasPrefix(name, "bench/") }
