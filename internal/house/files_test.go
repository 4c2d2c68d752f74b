// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const header = "// SPDX-License-Identifier: Apache-2.0\n\n"

// headerFaults wants every file that a person wrote to begin with the licence.
func headerFaults(in folder) []string {
	var faults []string
	for _, file := range in.files {
		if !strings.HasPrefix(file.text, header) && !ast.IsGenerated(file.ast) {
			faults = append(faults, fmt.Sprintf("%s does not begin with %q and an empty line", file.path, strings.TrimSpace(header)))
		}
	}
	return faults
}

// commentFaults wants every package to say what it is for.
func commentFaults(in folder) []string {
	documented := func(f goFile) bool { return f.ast.Doc != nil && strings.TrimSpace(f.ast.Doc.Text()) != "" }
	if slices.ContainsFunc(in.files, documented) {
		return nil
	}
	return []string{fmt.Sprintf("%s has no package comment", in.path)}
}

// nameFaults refuses folders whose name does not say what is in them.
func nameFaults(in folder) []string {
	saysNothing := []string{"base", "common", "core", "helper", "helpers", "misc", "pkg", "share", "shared", "util", "utils"}
	if slices.Contains(saysNothing, path.Base(in.path)) {
		return []string{fmt.Sprintf("%s: the name of the folder says nothing: name it after what the package does", in.path)}
	}
	return nil
}

// leakFaults wants the tests of every package to fail when one leaves a goroutine behind.
func leakFaults(in folder) []string {
	if inBench(in.path) || !slices.ContainsFunc(in.files, goFile.isTest) || slices.ContainsFunc(in.files, verifiesLeaks) {
		return nil
	}
	return []string{fmt.Sprintf("%s has tests but no TestMain that calls yodeltest.VerifyNoLeaks, or leak.Verify below the root", in.path)}
}

// unboundedLine is a wait for one line of another process that has no bound.
var unboundedLine = regexp.MustCompile(`\bif .*\.Scan\(\) \{`)

// lineFaults wants tests that start processes to wait for their lines with a bound. A loop of Scan
// is meant for a goroutine that reads all lines, and is allowed.
func lineFaults(in folder) []string {
	var faults []string
	for _, file := range in.files {
		if !file.isTest() && !strings.HasPrefix(file.path, "conformance/") {
			continue
		}
		if !imports(file, "os/exec") && !imports(file, "github.com/yodel-rpc/yodel/internal/await") {
			continue
		}
		for i, line := range strings.Split(file.text, "\n") {
			if unboundedLine.MatchString(line) {
				faults = append(faults, fmt.Sprintf("%s:%d: use await.Line, which bounds the wait for a line of a process", file.path, i+1))
			}
		}
	}
	return faults
}

// sleepFaults wants tests to sleep in the fake time of a synctest bubble only, where it takes none.
// It goes by the imports of the file, because what a bubble calls may stand anywhere in it.
func sleepFaults(in folder) []string {
	var faults []string
	for _, file := range in.files {
		if file.isTest() && calls(file.ast, "time", "Sleep") && !imports(file, "testing/synctest") {
			faults = append(faults, fmt.Sprintf("%s calls time.Sleep: wait for a condition, or use testing/synctest", file.path))
		}
	}
	return faults
}

// idFaults refuses code that decides by the ID of an error. IDs are for people, and errors of other
// systems have none: traits say what an error is about. What is below the root names no IDs at all
// but through package catalogue.
func idFaults(in folder) []string {
	var faults []string
	internal := strings.HasPrefix(in.path, "internal/") && in.path != "internal/catalogue"
	for _, file := range in.files {
		if file.isTest() {
			continue
		}
		for node := range ast.Preorder(file.ast) {
			if expr, ok := node.(ast.Expr); internal && ok && isErrorID(expr) {
				faults = append(faults, fmt.Sprintf("%s names the ID of an error: use package catalogue", file.path))
			} else if slices.ContainsFunc(compared(node), isErrorID) {
				faults = append(faults, fmt.Sprintf("%s decides by the ID of an error: use its methods, or a trait", file.path))
			}
		}
	}
	return faults
}

// compared returns what node compares with something else.
func compared(node ast.Node) []ast.Expr {
	switch node := node.(type) {
	case *ast.BinaryExpr:
		return []ast.Expr{node.X, node.Y}
	case *ast.CaseClause:
		return node.List
	case *ast.CallExpr:
		if callee, ok := node.Fun.(*ast.SelectorExpr); ok && callee.Sel.Name == "HasPrefix" {
			return node.Args
		}
	}
	return nil
}

func isErrorID(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && strings.HasPrefix(literal.Value, `"YDL`)
}

// stateFaults refuses package variables of the root that change: state belongs to a client or a
// server. A variable has a value from the start, no lock or atomic type, and nothing assigns to it.
func stateFaults(in folder) []string {
	if in.path != "." {
		return nil
	}
	var faults []string
	variables := make(map[string]bool)
	for _, file := range in.files {
		for _, decl := range file.ast.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR || file.isTest() {
				continue
			}
			for _, spec := range g.Specs {
				spec, _ := spec.(*ast.ValueSpec)
				for _, name := range spec.Names {
					variables[name.Name] = name.Name != "_"
				}
				if len(spec.Values) == 0 || holdsState(spec) {
					faults = append(faults, fmt.Sprintf("%s: the variable %s can change", file.path, spec.Names[0].Name))
				}
			}
		}
	}
	for _, file := range in.files {
		for node := range ast.Preorder(file.ast) {
			for _, to := range assigned(node) {
				if name := rootOf(to); variables[name] && !file.isTest() {
					faults = append(faults, fmt.Sprintf("%s assigns to %s, which is a variable of the package", file.path, name))
				}
			}
		}
	}
	return faults
}

// holdsState reports whether a declaration names a type of package sync or atomic.
func holdsState(spec *ast.ValueSpec) bool {
	for node := range ast.Preorder(spec) {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			continue
		}
		if from, ok := selector.X.(*ast.Ident); ok && (from.Name == "sync" || from.Name == "atomic") {
			return true
		}
	}
	return false
}

// assigned returns what a statement changes.
func assigned(node ast.Node) []ast.Expr {
	switch node := node.(type) {
	case *ast.AssignStmt:
		if node.Tok != token.DEFINE {
			return node.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{node.X}
	}
	return nil
}

// rootOf returns the name of the variable that an expression is a part of.
func rootOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.IndexExpr:
		return rootOf(e.X)
	case *ast.SelectorExpr:
		return rootOf(e.X)
	}
	return ""
}

// widthFaults refuses comments that are wider than people read with ease. What is preformatted,
// what tools read, the output of examples and generated files may be wider.
func widthFaults(in folder) []string {
	const most = 100
	var faults []string
	for _, file := range in.files {
		if ast.IsGenerated(file.ast) {
			continue
		}
		output := false
		for i, line := range strings.Split(file.text, "\n") {
			text := strings.TrimLeft(line, "\t")
			output = strings.HasPrefix(text, "//") && (output || strings.HasPrefix(strings.ToLower(text), "// output:") || strings.HasPrefix(text, "// Unordered output:"))
			prose := strings.HasPrefix(text, "// ") && !strings.HasPrefix(text, "//  ") || strings.HasPrefix(text, "//   - ")
			if tabs := len(line) - len(text); prose && !output && 4*tabs+utf8.RuneCountInString(text) > most {
				faults = append(faults, fmt.Sprintf("%s:%d: the comment is wider than %d columns", file.path, i+1, most))
			}
		}
	}
	return faults
}

func imports(file goFile, imported string) bool {
	return slices.ContainsFunc(file.ast.Imports, func(spec *ast.ImportSpec) bool {
		return spec.Path.Value == strconv.Quote(imported)
	})
}

func verifiesLeaks(file goFile) bool {
	return file.isTest() && slices.ContainsFunc(file.ast.Decls, func(decl ast.Decl) bool {
		fn, ok := decl.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == "TestMain" && (calls(fn, "yodeltest", "VerifyNoLeaks") || calls(fn, "leak", "Verify"))
	})
}

// calls reports whether something in root calls the function of a package.
func calls(root ast.Node, pkg, name string) bool {
	for node := range ast.Preorder(root) {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			continue
		}
		callee, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			continue
		}
		from, ok := callee.X.(*ast.Ident)
		if ok && from.Name == pkg && callee.Sel.Name == name {
			return true
		}
	}
	return false
}

// What every folder with Go files is held to.
var folderRules = []struct {
	name   string
	faults func(folder) []string
}{
	{"licence", headerFaults},
	{"package comment", commentFaults},
	{"folder name", nameFaults},
	{"leak check", leakFaults},
	{"lines of processes", lineFaults},
	{"sleep", sleepFaults},
	{"error IDs", idFaults},
	{"width of comments", widthFaults},
	{"state of the process", stateFaults},
}

func TestEveryFolderKeepsTheRules(t *testing.T) {
	for _, rule := range folderRules {
		t.Run(rule.name, func(t *testing.T) {
			for _, in := range readRepository(t).folders {
				report(t, rule.faults(in))
			}
		})
	}
}

func TestFolderRulesCatchViolations(t *testing.T) {
	const comment = "// Package a adds.\n"
	testMain := func(body string) string {
		return header + "package a_test\n\nfunc TestMain(m *testing.M) { " + body + " }\n"
	}
	tests := []struct {
		name   string
		faults func(folder) []string
		folder string
		file   string
		text   string
		want   bool
	}{
		{"licence", headerFaults, "a", "a.go", header + comment + "package a\n", false},
		{"no licence", headerFaults, "a", "a.go", comment + "package a\n", true},
		{"licence in the package comment", headerFaults, "a", "a.go", strings.TrimSpace(header) + "\npackage a\n", true},
		{"generated", headerFaults, "a", "a.go", "// Code generated by protoc-gen-go. DO NOT EDIT.\n\npackage a\n", false},
		{"package comment", commentFaults, "a", "a.go", header + comment + "package a\n", false},
		{"no package comment", commentFaults, "a", "a.go", header + "package a\n", true},
		{"error by its trait", idFaults, "a", "a.go", "package a\n\nfunc f(e *yodel.Error) bool { return e.Stale() || g(\"YDL1004\") }\n", false},
		{"error by its ID", idFaults, "a", "a.go", "package a\n\nfunc f(e *yodel.Error) bool { return e.ID == \"YDL1004\" }\n", true},
		{"error by its ID in a switch", idFaults, "a", "a.go", "package a\n\nfunc f(e *yodel.Error) { switch e.ID {\n\tcase \"YDL1004\":\n\t}\n}\n", true},
		{"error by the beginning of its ID", idFaults, "a", "a.go", "package a\n\nfunc f(e *yodel.Error) bool { return strings.HasPrefix(e.ID, \"YDL21\") }\n", true},
		{"ID in the catalogue", idFaults, "internal/catalogue", "a.go", "package a\n\nconst id = \"YDL1004\"\n", false},
		{"ID below the root", idFaults, "internal/mux", "a.go", "package a\n\nconst id = \"YDL1004\"\n", true},
		{"narrow comment", widthFaults, "a", "a.go", "package a\n\n// " + strings.Repeat("é", 97) + "\n//\t" + strings.Repeat("e", 200) + "\n", false},
		{"output of an example", widthFaults, "a", "a.go", "package a\n\n\t// Output:\n\t// " + strings.Repeat("e", 94) + "\n", false},
		{"wide comment in a generated file", widthFaults, "a", "a.go", "// Code generated by protoc-gen-go. DO NOT EDIT.\n\npackage a\n\n// " + strings.Repeat("e", 98) + "\n", false},
		{"wide comment", widthFaults, "a", "a.go", "package a\n\n\t// " + strings.Repeat("e", 94) + "\n", true},
		{"variable that does not change", stateFaults, ".", "a.go", "package a\n\nvar a, b = 1, 2\n\nfunc f() (c int) { c = a + b; return c }\n", false},
		{"variable that is assigned to", stateFaults, ".", "a.go", "package a\n\nvar a = 1\n\nfunc f() { a = 2 }\n", true},
		{"variable that is counted", stateFaults, ".", "a.go", "package a\n\nvar a = 1\n\nfunc f() { a++ }\n", true},
		{"map that grows", stateFaults, ".", "a.go", "package a\n\nvar a = map[int]int{}\n\nfunc f() { a[1] = 1 }\n", true},
		{"pool", stateFaults, ".", "a.go", "package a\n\nvar a = sync.Pool{New: f}\n", true},
		{"variable without a value", stateFaults, ".", "a.go", "package a\n\nvar a []int\n", true},
		{"state below the root", stateFaults, "internal/a", "a.go", "package a\n\nvar a []int\n", false},
		{"folder name", nameFaults, "middleware/retry", "a.go", "package a\n", false},
		{"folder name that says nothing", nameFaults, "internal/utils", "a.go", "package a\n", true},
		{"no tests", leakFaults, "a", "a.go", "package a\n", false},
		{"leak check", leakFaults, "a", "a_test.go", testMain("yodeltest.VerifyNoLeaks(m)"), false},
		{"no TestMain", leakFaults, "a", "a_test.go", "package a_test\n", true},
		{"TestMain without leak check", leakFaults, "a", "a_test.go", testMain("m.Run()"), true},
		{"line of a process", lineFaults, "a", "a_test.go", "package a\n\nimport \"os/exec\"\n\nfunc line(c *exec.Cmd) {\n\tif !lines.Scan() {\n\t}\n}\n", true},
		{"line of a connection", lineFaults, "a", "a_test.go", "package a\n\nimport \"net\"\n\nfunc line(c net.Conn) {\n\tif !lines.Scan() {\n\t}\n}\n", false},
		{"sleep", sleepFaults, "a", "a_test.go", "package a\n\nfunc TestA(t *testing.T) { time.Sleep(1) }\n", true},
		{"sleep in fake time", sleepFaults, "a", "a_test.go", "package a\n\nimport \"testing/synctest\"\n\nfunc TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }\n", false},
		{"outside of the workspace", leakFaults, "bench/grpc", "a_test.go", "package a_test\n", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			faults := test.faults(folderOf(t, test.folder, map[string]string{test.file: test.text}))
			if got := len(faults) > 0; got != test.want {
				t.Errorf("got faults %q, want some: %t", faults, test.want)
			}
		})
	}
}
