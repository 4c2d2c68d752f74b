// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mark is how a test says that a failure of it is final: internal/gate does not run it once more.
const mark = `Attr("rerun", "never")`

// A test is about loss, double execution or order if its name says so, and a function of tests if
// it has an error text that says so.
var (
	finalNames = regexp.MustCompile(`^Test.*(Los(e|es|ing)(No|Nothing)|(No|Not)[A-Za-z]*Lost|Execut(ed|es|e)[A-Za-z]*(Twice|Once)|PaysOnce|NotExecuted|NothingIsExecuted|` +
		`OrderHolds|KeepsTheOrder|KeyedOrder|InTurn|TheirTurn|ReturnInOrder|RollingRestart|AreKilled|WithKills|KilledServer|Chaos|MixedFleet)`)
	finalTexts = regexp.MustCompile(`(executed|execute it|executed it) (%d times|twice)|call (is|was) lost|calls (are|were) lost|executed twice|out of order`)
)

// markedPackages check the promises of loss, double execution and order.
var markedPackages = []string{
	".", "conformance/everywhere", "conformance/failmodes", "conformance/fleet", "conformance/governed", "conformance/grpc", "conformance/keys",
	"conformance/rolling", "conformance/rpcx", "conformance/thrift", "internal/mux", "internal/ordered", "internal/torture", "middleware/hedge", "middleware/once", "middleware/redis", "middleware/retry",
	"protocol/http", "recommended", "restart", "rules",
}

// markFaults wants functions that check for loss, double execution and order to be marked, and the
// packages of markedPackages to have such functions.
func markFaults(in folder) []string {
	var faults []string
	marked := false
	for _, file := range in.files {
		for _, decl := range file.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil || !imports(file, "testing") {
				continue
			}
			is := isMarked(fn)
			marked = marked || is
			if !is && (finalNames.MatchString(fn.Name.Name) || saysFinal(fn)) {
				faults = append(faults, fmt.Sprintf("%s: %s checks for loss, double execution or order, and does not call t.%s", file.path, fn.Name.Name, mark))
			}
		}
	}
	if !marked && slices.Contains(markedPackages, in.path) {
		faults = append(faults, fmt.Sprintf("%s: no test calls t.%s", in.path, mark))
	}
	return faults
}

// isMarked reports whether a function calls Attr("rerun", "never") of a test.
func isMarked(fn *ast.FuncDecl) bool {
	for node := range ast.Preorder(fn) {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			continue
		}
		callee, ok := call.Fun.(*ast.SelectorExpr)
		if ok && callee.Sel.Name == "Attr" && isText(call.Args[0], `"rerun"`) && isText(call.Args[1], `"never"`) {
			return true
		}
	}
	return false
}

func isText(e ast.Expr, quoted string) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && literal.Value == quoted
}

// saysFinal reports whether a function calls a method of a test, such as Errorf, with a text of
// finalTexts.
func saysFinal(fn *ast.FuncDecl) bool {
	for node := range ast.Preorder(fn) {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			continue
		}
		callee, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, callee.Sel.Name) {
			continue
		}
		if from, ok := callee.X.(*ast.Ident); ok && from.Name == "fmt" {
			continue // an error, which the test that gets it reports
		}
		if literal, ok := call.Args[0].(*ast.BasicLit); ok && finalTexts.MatchString(literal.Value) {
			return true
		}
	}
	return false
}

func TestChecksOfLossDoubleExecutionAndOrderAreMarked(t *testing.T) {
	folders := readRepository(t).folders
	for _, in := range folders {
		if !inBench(in.path) && in.path != path.Join("internal", "gate") {
			report(t, markFaults(in))
		}
	}
	for _, name := range markedPackages {
		if !slices.ContainsFunc(folders, func(in folder) bool { return in.path == name }) {
			t.Errorf("%s is no package", name)
		}
	}
}

func TestMarkRuleCatchesViolations(t *testing.T) {
	for _, test := range []struct {
		folder, code string
		want         bool
	}{
		{"a", "func TestRestartsLoseNoCall(t *testing.T) { t.Error() }", true},
		{"a", `func TestRestartsLoseNoCall(t *testing.T) { t.Attr("rerun", "never") }`, false},
		{"a", `func TestRestartsLoseNoCall(t *testing.T) { t.Attr("rerun", "once") }`, true},
		{"a", `func check(t *testing.T) { t.Errorf("call %d was executed %d times", 1, 2) }`, true},
		{"a", `func check(t *testing.T) { t.Attr("rerun", "never"); t.Errorf("call %d was executed %d times", 1, 2) }`, false},
		{"a", `func check(t *testing.T) { t.Errorf("it was slow") }`, false},
		{"a", `func check() error { return fmt.Errorf("executed twice") }`, false},
		{"a", `func count() string { return fmt.Sprintf("executed %d times", 1) }`, false},
		{"conformance/keys", `func TestKeys(t *testing.T) {}`, true},
		{"conformance/keys", `func TestKeys(t *testing.T) { synctest.Test(t, func(t *testing.T) { t.Attr("rerun", "never") }) }`, false},
	} {
		faults := markFaults(folderOf(t, test.folder, map[string]string{"a_test.go": "package a\n\nimport \"testing\"\n\n" + test.code + "\n"}))
		if got := len(faults) > 0; got != test.want {
			t.Errorf("%s: %s: got faults %q, want some: %t", test.folder, strings.TrimSpace(test.code), faults, test.want)
		}
	}
}
