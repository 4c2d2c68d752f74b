// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// maxSeconds is how long the steps of a file may take together. To raise one of these, say why
// here.
var maxSeconds = map[string]int{
	".ci/steps":      35 * 60,
	".ci/before-end": 3 * 60 * 60,
}

// stepFaults wants each step to have a bound in seconds and a command, and all of them together to
// take at most a time. A step whose name begins with + runs beside the one before it.
func stepFaults(name, text string, most int) []string {
	var faults []string
	sum, group := 0, 0
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		seconds := 0
		if len(words) > 2 {
			seconds, _ = strconv.Atoi(words[1])
		}
		if seconds <= 0 {
			faults = append(faults, fmt.Sprintf("%s: the step %s has no bound or no command", name, words[0]))
		}
		if !strings.HasPrefix(words[0], "+") {
			sum, group = sum+group, 0
		}
		group = max(group, seconds)
	}
	sum += group
	if sum == 0 || sum > most {
		faults = append(faults, fmt.Sprintf("%s: its steps may take %d s together, want at most %d s", name, sum, most))
	}
	return faults
}

// seedFaults wants the seeds of each fuzz target to run in CI: its module is in the workspace or
// among the peers of the Makefile, and its file is built under Linux with the race detector.
func seedFaults(found tree, work, makefile string) []string {
	tested := strings.Fields(regexp.MustCompile(`(?m)^PEERS := (.*)$`).FindString(makefile))
	for _, words := range directives(work) {
		if words[0] == "use" {
			tested = append(tested, path.Clean(words[1]))
		}
	}
	var faults []string
	for _, in := range found.folders {
		if inBench(in.path) {
			continue
		}
		for _, file := range in.files {
			targets := slices.ContainsFunc(file.ast.Decls, func(decl ast.Decl) bool {
				fn, ok := decl.(*ast.FuncDecl)
				return ok && file.isTest() && strings.HasPrefix(fn.Name.Name, "Fuzz")
			})
			if targets && (!slices.Contains(tested, moduleOf(in.path, found.modules)) || !isBuiltInCI(file)) {
				faults = append(faults, fmt.Sprintf("%s: CI does not run the seeds of its fuzz targets", file.path))
			}
		}
	}
	return faults
}

// isBuiltInCI reports whether a file is built under Linux with the race detector.
func isBuiltInCI(file goFile) bool {
	for _, group := range file.ast.Comments {
		for _, comment := range group.List {
			expr, err := constraint.Parse(comment.Text)
			if err == nil && comment.Pos() < file.ast.Package {
				return expr.Eval(func(tag string) bool {
					return slices.Contains([]string{"linux", "unix", "amd64", "race", "cgo", "gc"}, tag)
				})
			}
		}
	}
	return true
}

func TestStepsHaveBounds(t *testing.T) {
	for name, most := range maxSeconds {
		text, err := readText(name)
		if err != nil {
			t.Fatal(err)
		}
		report(t, stepFaults(name, text, most))
	}
}

func TestSeedsOfFuzzTargetsRunInCI(t *testing.T) {
	work, err := readText("go.work")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := readText("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	report(t, seedFaults(readRepository(t), work, makefile))
}

func TestGateRulesCatchViolations(t *testing.T) {
	target := func(name, constraint string) tree {
		text := constraint + "package a\n\nfunc FuzzA(f *testing.F) {}\n"
		return tree{folders: []folder{folderOf(t, name, map[string]string{"a_test.go": text})}, modules: []string{".", "b", "peer"}}
	}
	const work, makefile = "go 1.26\n\nuse .\n", "PEERS := conformance/x peer\n"
	for _, test := range []struct {
		name   string
		faults []string
		want   bool
	}{
		{"steps", stepFaults("f", "# comment\n\na 60 make a\nb 40 make b\n", 100), false},
		{"steps beside each other", stepFaults("f", "a 60 make a\n+b 70 make b\nc 30 make c\n", 100), false},
		{"steps beside each other over the sum", stepFaults("f", "a 60 make a\n+b 71 make b\nc 30 make c\n", 100), true},
		{"steps over the sum", stepFaults("f", "a 60 make a\nb 41 make b\n", 100), true},
		{"step without a bound", stepFaults("f", "a 60 make a\nb make b\n", 100), true},
		{"step without a command", stepFaults("f", "a 60\n", 100), true},
		{"no steps", stepFaults("f", "", 100), true},
		{"target in the workspace", seedFaults(target("a", ""), work, makefile), false},
		{"target of a peer", seedFaults(target("peer", ""), work, makefile), false},
		{"target outside", seedFaults(target("b/c", ""), work, makefile), true},
		{"target with the race detector", seedFaults(target("a", "//go:build race && linux\n\n"), work, makefile), false},
		{"target without the race detector", seedFaults(target("a", "//go:build !race\n\n"), work, makefile), true},
	} {
		if got := len(test.faults) > 0; got != test.want {
			t.Errorf("%s: got faults %q, want some: %t", test.name, test.faults, test.want)
		}
	}
}
