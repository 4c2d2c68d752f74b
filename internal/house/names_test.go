// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// maxNames is how many names the root package may export, so that one person can know them all.
const maxNames = 50

// exportedNames returns the names that a package exports, sorted: types, functions, variables and
// constants at the top level. Methods and fields do not count, for they are found from their type.
// The error codes, which are the constants of the block that begins with one of type Code, count as
// one name.
func exportedNames(in folder) []string {
	var names []string
	for _, file := range in.files {
		if file.isTest() {
			continue
		}
		for _, decl := range file.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil {
					names = append(names, decl.Name.Name)
				}
			case *ast.GenDecl:
				names = append(names, declaredNames(decl)...)
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !ast.IsExported(name) })
	slices.Sort(names)
	return slices.Compact(names) // a name may be declared once for each operating system
}

func declaredNames(decl *ast.GenDecl) []string {
	if isCodeBlock(decl) {
		return []string{"Codes"}
	}
	var names []string
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			names = append(names, spec.Name.Name)
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

func isCodeBlock(decl *ast.GenDecl) bool {
	if decl.Tok != token.CONST || len(decl.Specs) < 2 {
		return false
	}
	first, ok := decl.Specs[0].(*ast.ValueSpec)
	if !ok {
		return false
	}
	of, ok := first.Type.(*ast.Ident)
	return ok && of.Name == "Code"
}

func TestRootExportsFewNames(t *testing.T) {
	folders := readRepository(t).folders
	root := slices.IndexFunc(folders, func(in folder) bool { return in.path == "." })
	if root < 0 {
		t.Fatal("the root has no Go files")
	}
	names := exportedNames(folders[root])
	t.Logf("%d of %d names: %s", len(names), maxNames, strings.Join(names, " "))
	if len(names) > maxNames {
		t.Error("the root exports too many names")
	}
}

func TestExportedNamesCounts(t *testing.T) {
	in := folderOf(t, ".", map[string]string{
		"a.go": `package a
			type Shown struct{ Field int }
			type hidden struct{}
			func Make() {}
			func (Shown) Method() {}
			var One, Two, three = 1, 2, 3
			const Single = 1
			const (
				_ Code = iota
				Canceled
				Unknown
			)`,
		"a_linux.go":   "package a\nfunc PerSystem() {}",
		"a_windows.go": "package a\nfunc PerSystem() {}",
		"a_test.go":    "package a\nfunc ForTests() {}",
	})
	got := fmt.Sprint(exportedNames(in))
	const want = "[Codes Make One PerSystem Shown Single Two]"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
