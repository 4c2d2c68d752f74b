// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// mention is a name of the root package in a document, such as `yodel.Dial(…)` or `Call.Budget`.
var mention = regexp.MustCompile("`([A-Za-z]+)\\.([A-Z][A-Za-z]*)")

// rootMembers returns the fields and methods that each type of the root package exports, and under
// "yodel" the names of the package itself, with its tests.
func rootMembers(t tree) map[string]map[string]bool {
	members := map[string]map[string]bool{"yodel": {}}
	add := func(of, name string) {
		if members[of] == nil {
			members[of] = make(map[string]bool)
		}
		members[of][name] = true
	}
	for _, in := range t.folders {
		for _, file := range in.files {
			if in.path != "." {
				continue
			}
			if file.isTest() {
				addTests(file, add)
				continue
			}
			for node := range ast.Preorder(file.ast) {
				addMembers(node, add)
			}
		}
	}
	return members
}

// addTests adds the tests of the package, such as yodel.TestTook.
func addTests(file goFile, add func(of, name string)) {
	for _, decl := range file.ast.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
			add("yodel", f.Name.Name)
		}
	}
}

func addMembers(node ast.Node, add func(of, name string)) {
	fields := func(of string, list *ast.FieldList) {
		for _, field := range list.List {
			for _, name := range field.Names {
				add(of, name.Name)
			}
			if typ, ok := field.Type.(*ast.Ident); ok && len(field.Names) == 0 {
				add(of, typ.Name)
			}
		}
	}
	switch node := node.(type) {
	case *ast.FuncDecl:
		if node.Recv == nil {
			add("yodel", node.Name.Name)
			return
		}
		typ := node.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if index, ok := typ.(*ast.IndexListExpr); ok {
			typ = index.X
		} else if index, ok := typ.(*ast.IndexExpr); ok {
			typ = index.X
		}
		if name, ok := typ.(*ast.Ident); ok {
			add(name.Name, node.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range node.Names {
			add("yodel", name.Name)
		}
	case *ast.TypeSpec:
		add("yodel", node.Name.Name)
		switch typ := node.Type.(type) {
		case *ast.StructType:
			fields(node.Name.Name, typ.Fields)
		case *ast.InterfaceType:
			fields(node.Name.Name, typ.Methods)
		}
	}
}

// mentionFaults returns the names of the root package in a document that do not exist.
func mentionFaults(name string, prose []string, members map[string]map[string]bool) []string {
	var faults []string
	for _, line := range prose {
		for _, m := range mention.FindAllStringSubmatch(line, -1) {
			if of := members[m[1]]; of != nil && !of[m[2]] && (m[1] == "yodel" || ast.IsExported(m[1])) {
				faults = append(faults, fmt.Sprintf("%s: there is no %s.%s", name, m[1], m[2]))
			}
		}
	}
	return faults
}

func TestDocumentsNameWhatExists(t *testing.T) {
	found := readRepository(t)
	members := rootMembers(found)
	for _, method := range []string{"Conns", "Health", "Info", "Live", "Ping", "Rules", "Samples", "Stats", "Tap"} {
		members["yodel"][method] = true // the built-in method yodel.Info, and so on
	}
	for _, name := range found.markdown {
		if strings.HasPrefix(name, "docs/decisions/") || strings.HasPrefix(name, "docs/migrate/") { // history, and other systems
			continue
		}
		_, prose := splitDocument(documentText(t, name))
		report(t, mentionFaults(name, prose, members))
	}
}

func TestMentionRuleCatchesViolations(t *testing.T) {
	members := rootMembers(tree{folders: []folder{folderOf(t, ".", map[string]string{
		"a.go":      "package a\ntype Call struct{ Budget int }\nfunc (*Call) Do() {}\nfunc Static() {}\nconst Max = 1\n",
		"a_test.go": "package a\nfunc TestStatic() {}\nfunc StaticOf() {}\n",
	})}})
	for text, want := range map[string]bool{
		"`yodel.Static(\"a\")`, `yodel.Max`, `yodel.Call`": false,
		"`Call.Budget` and `Call.Do()`":                    false,
		"`http.Anything`":                                  false,
		"`yodel.TestStatic`":                               false,
		"`yodel.StaticOf`":                                 true,
		"`yodel.Gone`":                                     true,
		"`Call.Gone`":                                      true,
	} {
		if faults := mentionFaults("a.md", []string{text}, members); len(faults) > 0 != want {
			t.Errorf("%s: got faults %q, want some: %t", text, faults, want)
		}
	}
}
