// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A function that is called with a lock held and releases it says so in its name: …AndUnlock
// returns without the lock, …Relocking returns with the lock held again. See docs/locks.md.
func TestFunctionsThatUnlockSaySo(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	saying := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			says := saysThatItUnlocks(fn.Name.Name)
			if says {
				saying++
			}
			if unlocks := unlocksFirst(fn.Body); unlocks != says {
				t.Errorf("%s: %s: unlocks a lock that its caller holds: %v, its name says so: %v", name, fn.Name.Name, unlocks, says)
			}
		}
	}
	if saying == 0 {
		t.Error("no function unlocks: this test looks in the wrong place")
	}
}

func saysThatItUnlocks(name string) bool {
	return strings.HasSuffix(name, "AndUnlock") || strings.HasSuffix(name, "Relocking")
}

// unlocksFirst reports whether the first operation on a mutex in body, in source order, releases
// it.
func unlocksFirst(body *ast.BlockStmt) (unlocks bool) {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok || found {
			return false // a function literal runs at another time
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		callee, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch name := callee.Sel.Name; {
		case name == "Lock" && onMutex(callee.X):
			found = true
		case name == "Unlock" && onMutex(callee.X), saysThatItUnlocks(name):
			found, unlocks = true, true
		}
		return true
	})
	return unlocks
}

// onMutex reports whether x is a field that is called mu.
func onMutex(x ast.Expr) bool {
	field, ok := x.(*ast.SelectorExpr)
	return ok && field.Sel.Name == "mu"
}
