// SPDX-License-Identifier: Apache-2.0

package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The picture of packages in docs/architecture.md is drawn from the imports of the code. A package
// imports only packages of the rows below its own.
const (
	architecture = "docs/architecture.md"
	pictureBegin = "<!-- picture: drawn by internal/house -->\n```text\n"
	pictureEnd   = "```\n"
	pictureWidth = 110 // columns
)

var draw = flag.Bool("draw", false, "write the picture of packages into "+architecture)

// below returns what the root is made of: for each package below the root, and for the root, what
// it imports of the repository.
func below(all tree) map[string][]string {
	imported := make(map[string][]string)
	var visit func(name string)
	visit = func(name string) {
		if _, known := imported[name]; known {
			return
		}
		imported[name] = nil
		for _, in := range all.folders {
			if in.path == name {
				imported[name] = importsOf(in)
			}
		}
		for _, other := range imported[name] {
			visit(other)
		}
	}
	visit(".")
	return imported
}

// importsOf returns the folders of the repository that a package imports, without its tests.
func importsOf(in folder) []string {
	found := make(map[string]bool)
	for _, file := range in.files {
		for _, spec := range file.ast.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if other, own := strings.CutPrefix(name, module+"/"); own && err == nil && !file.isTest() {
				found[other] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// picture draws packages in rows: a package stands one row above the highest one that it imports.
func picture(imported map[string][]string) string {
	rows := make(map[int][]string)
	var rowOf func(name string) int
	rowOf = func(name string) int {
		row := 0
		for _, other := range imported[name] {
			row = max(row, rowOf(other)+1)
		}
		return row
	}
	for _, name := range slices.Sorted(maps.Keys(imported)) {
		shown := strings.TrimPrefix(name, "internal/")
		if name == "." {
			shown = "the root package"
		}
		rows[rowOf(name)] = append(rows[rowOf(name)], shown)
	}
	var b strings.Builder
	for row := len(rows) - 1; row >= 0; row-- {
		line := fmt.Sprintf("%2d ", row)
		for _, name := range rows[row] {
			if len(line)+1+len(name) > pictureWidth {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + name
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func TestThePictureOfPackagesIsTrue(t *testing.T) {
	file := filepath.Join(repository, architecture)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), pictureBegin)
	drawn, after, ended := strings.Cut(rest, pictureEnd)
	want := picture(below(readRepository(t)))
	switch {
	case !begun || !ended:
		t.Fatalf("%s has no picture", architecture)
	case *draw:
		if err := os.WriteFile(file, []byte(before+pictureBegin+want+pictureEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case drawn != want:
		t.Errorf("the picture in %s is not that of the code; draw it with: go test -run %s ./internal/house -args -draw\n%s", architecture, t.Name(), want)
	}
}

// A reader who looks for a package finds it on the page.
func TestThePageNamesEachInternalPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, architecture))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range readRepository(t).folders {
		parent, name := path.Split(in.path)
		switch {
		case parent == "internal/" && !strings.Contains(string(text), "(../"+in.path+")"):
		case parent == "protocol/internal/" && !strings.Contains(string(text), "`"+name+"`"):
		default:
			continue
		}
		t.Errorf("%s has no line in the table of packages in %s: say what it knows", in.path, architecture)
	}
}

func TestPicturesShowWhatIsAbove(t *testing.T) {
	got := picture(map[string][]string{".": {"internal/a", "internal/b"}, "internal/a": {"internal/b"}, "internal/b": nil, "internal/c": nil})
	if want := " 2  the root package\n 1  a\n 0  b c\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}
