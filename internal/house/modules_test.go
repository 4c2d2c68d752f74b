// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// moduleFaults holds the go.mod of a folder to what every release needs: its place in its path,
// nothing replaced, for that breaks go install, and no requirement at all in the root.
func moduleFaults(folder, text string) []string {
	var faults []string
	want := path.Join(module, folder)
	for _, words := range directives(text) {
		switch {
		case words[0] == "module" && words[1] != want:
			faults = append(faults, fmt.Sprintf("%s/go.mod: module %s, want %s", folder, words[1], want))
		case words[0] == "replace":
			faults = append(faults, fmt.Sprintf("%s/go.mod replaces %s: go.work does that here, and a release has none", folder, words[1]))
		case words[0] == "require" && folder == ".":
			faults = append(faults, fmt.Sprintf("the root requires %s: it needs the standard library alone", words[1]))
		}
	}
	return faults
}

// isReleased reports whether a module of the repository is released. Those in bench and conformance
// only measure or test, with the dependencies of other systems.
func isReleased(folder string) bool {
	return !inBench(folder) && !strings.HasPrefix(folder, "conformance/")
}

// workFaults wants go.work to list every module of the repository that is released.
func workFaults(text string, modules []string) []string {
	var faults, listed []string
	for _, words := range directives(text) {
		if words[0] == "use" {
			listed = append(listed, path.Clean(words[1]))
		}
	}
	for _, folder := range modules {
		switch in := slices.Contains(listed, folder); {
		case in && !isReleased(folder):
			faults = append(faults, fmt.Sprintf("go.work lists %s: its dependencies would reach every module", folder))
		case !in && isReleased(folder):
			faults = append(faults, fmt.Sprintf("go.work does not list %s", folder))
		}
	}
	return faults
}

func TestModulesCanBeReleased(t *testing.T) {
	for _, folder := range readRepository(t).modules {
		if !isReleased(folder) {
			continue
		}
		text, err := readText(path.Join(folder, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		report(t, moduleFaults(folder, text))
	}
}

func TestWorkspaceListsEveryModule(t *testing.T) {
	text, err := readText("go.work")
	if err != nil {
		t.Fatal(err)
	}
	report(t, workFaults(text, readRepository(t).modules))
}

func TestModuleRulesCatchViolations(t *testing.T) {
	tests := []struct {
		name   string
		faults []string
		want   bool
	}{
		{"root", moduleFaults(".", "module "+module+"\n\ngo 1.26\n"), false},
		{"root with a requirement", moduleFaults(".", "module "+module+"\nrequire a.org/b v1.0.0\n"), true},
		{"root with a block of requirements", moduleFaults(".", "module "+module+"\nrequire (\n\ta.org/b v1.0.0 // indirect\n)\n"), true},
		{"plug-in with a requirement", moduleFaults("codec/a", "module "+module+"/codec/a\nrequire a.org/b v1.0.0\n"), false},
		{"plug-in that replaces", moduleFaults("codec/a", "module "+module+"/codec/a\nreplace "+module+" => ../..\n"), true},
		{"module in the wrong place", moduleFaults("codec/a", "module "+module+"/codec/b\n"), true},
		{"workspace", workFaults("use (\n\t.\n\t./codec/a // new\n)\n", []string{".", "codec/a", "bench"}), false},
		{"module that the workspace lacks", workFaults("use .\n", []string{".", "codec/a"}), true},
		{"workspace without conformance", workFaults("use .\n", []string{".", "conformance/a"}), false},
		{"conformance in the workspace", workFaults("use .\nuse ./conformance/a\n", []string{".", "conformance/a"}), true},
		{"bench in the workspace", workFaults("use .\nuse ./bench\n", []string{".", "bench"}), true},
	}
	for _, test := range tests {
		if got := len(test.faults) > 0; got != test.want {
			t.Errorf("%s: got faults %q, want some: %t", test.name, test.faults, test.want)
		}
	}
}
