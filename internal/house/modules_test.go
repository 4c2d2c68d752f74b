// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"maps"
	"os"
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

// requirementFaults wants the go.mod of a module to require every module that its packages import,
// in tests too: go mod tidy of a program that imports a package also loads the tests of that
// package. The workspace hides a missing requirement from every build in this repository.
func requirementFaults(in folder, modules []string, goMod string) []string {
	own := moduleOf(in.path, modules)
	required := []string{path.Join(module, own)}
	for _, words := range directives(goMod) {
		if words[0] == "require" {
			required = append(required, words[1])
		}
	}
	var faults []string
	for _, file := range in.files {
		for _, spec := range file.ast.Imports {
			imported := strings.Trim(spec.Path.Value, "\"`")
			if isStandard(imported) {
				continue
			}
			to, ours := folderOfImport(imported)
			owner := path.Join(module, moduleOf(to, modules))
			if !slices.ContainsFunc(required, func(r string) bool {
				return ours && owner == r || !ours && strings.HasPrefix(imported+"/", r+"/")
			}) {
				faults = append(faults, fmt.Sprintf("%s imports %s, and %s/go.mod does not require its module", file.path, imported, own))
			}
		}
	}
	return faults
}

// versionFaults wants the modules that are released to require one version of each other module.
// What they share is then compiled once, in the workspace and alone, and tested in the versions
// that a user of one module gets. texts has the go.mod of each folder.
func versionFaults(texts map[string]string) []string {
	var faults []string
	type requirement struct{ folder, version string }
	first := make(map[string]requirement)
	for _, folder := range slices.Sorted(maps.Keys(texts)) {
		for _, words := range directives(texts[folder]) {
			if words[0] != "require" {
				continue
			}
			at, seen := first[words[1]]
			switch {
			case !seen:
				first[words[1]] = requirement{folder, words[2]}
			case at.version != words[2]:
				faults = append(faults, fmt.Sprintf("%s/go.mod requires %s %s, and %s/go.mod %s: want the newer in both",
					folder, words[1], words[2], at.folder, at.version))
			}
		}
	}
	return faults
}

// moduleOf returns the folder of the module that a folder belongs to: the nearest go.mod above it.
func moduleOf(folder string, modules []string) string {
	for folder != "." && !slices.Contains(modules, folder) {
		folder = path.Dir(folder)
	}
	return folder
}

func TestModulesRequireWhatTheyImport(t *testing.T) {
	found := readRepository(t)
	texts := make(map[string]string)
	for _, folder := range found.modules {
		text, err := readText(path.Join(folder, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		texts[folder] = text
	}
	for _, in := range found.folders {
		if own := moduleOf(in.path, found.modules); isReleased(own) {
			report(t, requirementFaults(in, found.modules, texts[own]))
		}
	}
}

func TestModulesCanBeReleased(t *testing.T) {
	texts := make(map[string]string)
	for _, folder := range readRepository(t).modules {
		if !isReleased(folder) {
			continue
		}
		text, err := readText(path.Join(folder, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		texts[folder] = text
		report(t, moduleFaults(folder, text))
	}
	report(t, versionFaults(texts))
}

// sharedByServers are the modules that nearly every server in Go needs, and that take long to
// compile.
var sharedByServers = []string{
	"golang.org/x/crypto", "golang.org/x/net", "golang.org/x/sys", "golang.org/x/text", "google.golang.org/grpc", "google.golang.org/protobuf",
}

// sharedVersions returns the requirements of a go.mod that are for one of the modules that servers
// share.
func sharedVersions(goMod string) string {
	var shared []string
	for _, words := range directives(goMod) {
		if words[0] == "require" && slices.Contains(sharedByServers, words[1]) {
			shared = append(shared, strings.Join(words, " "))
		}
	}
	return strings.Join(shared, "\n")
}

// The servers that tests build have the same versions of what they share, which is compiled once
// then. Consul cannot be built with versions of today.
func TestServersShareVersions(t *testing.T) {
	const folder = "internal/realserver/testdata"
	servers, err := os.ReadDir(path.Join(repository, folder))
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for _, server := range servers {
		name := path.Join(folder, server.Name())
		text, err := readText(path.Join(name, "go.mod"))
		if err == nil && server.Name() != "consul" {
			texts[name] = sharedVersions(text)
		}
	}
	if len(texts) < 8 {
		t.Errorf("only %d servers in Go were found", len(texts))
	}
	report(t, versionFaults(texts))
}

func TestWorkspaceListsEveryModule(t *testing.T) {
	text, err := readText("go.work")
	if err != nil {
		t.Fatal(err)
	}
	report(t, workFaults(text, readRepository(t).modules))
}

func TestModuleRulesCatchViolations(t *testing.T) {
	modules := []string{".", "codec/a"}
	importing := func(name, file, imported string) folder {
		return folderOf(t, name, map[string]string{file: "package p\nimport \"" + imported + "\"\n"})
	}
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
		{"root that imports its own package", requirementFaults(importing(".", "a.go", module+"/codec/b"), modules, ""), false},
		{"test of the root that imports another module", requirementFaults(importing(".", "a_test.go", module+"/codec/a"), modules, ""), true},
		{"plug-in that imports the root", requirementFaults(importing("codec/a/b", "b.go", module), modules, "require "+module+" v0.0.0\n"), false},
		{"plug-in that does not require the root", requirementFaults(importing("codec/a", "a.go", module+"/codec/b"), modules, ""), true},
		{"third party", requirementFaults(importing("codec/a", "a.go", "a.org/b/c"), modules, "require a.org/b v1.0.0\n"), false},
		{"third party that is not required", requirementFaults(importing("codec/a", "a.go", "a.org/bc"), modules, "require a.org/b v1.0.0\n"), true},
		{"one version", versionFaults(map[string]string{"a": "require a.org/b v1.0.0\n", "b": "require (\n\ta.org/b v1.0.0 // indirect\n)\n"}), false},
		{"two versions", versionFaults(map[string]string{"a": "require a.org/b v1.0.0\n", "b": "require (\n\ta.org/b v1.1.0 // indirect\n)\n"}), true},
		{"bench in the workspace", workFaults("use .\nuse ./bench\n", []string{".", "bench"}), true},
	}
	for _, test := range tests {
		if got := len(test.faults) > 0; got != test.want {
			t.Errorf("%s: got faults %q, want some: %t", test.name, test.faults, test.want)
		}
	}
}
