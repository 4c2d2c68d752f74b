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
)

// featuresPage has a table of features, which a section may continue.
const featuresPage = "docs/features.md"

const featuresHeader = "| feature | from | state | package | example | shown by |"

// A feature is a row of featuresPage.
type feature struct {
	name, from, state, packages, example, shown string
}

var (
	featureState = []string{"yes", "no test", "not yet", "not planned"}
	featureTest  = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Example|Fuzz)\\w*)(?:/([^`]+))?`")
	featureLink  = regexp.MustCompile(`\[([^\]]+)\]\(\.\.(?:/([^)]+))?\)`)
)

// featuresOf returns the rows of all tables of the page.
func featuresOf(prose []string) (all []feature, faults []string) {
	inTable := false
	for _, line := range prose {
		switch {
		case line == featuresHeader:
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case !inTable:
			faults = append(faults, "a table does not begin with "+featuresHeader)
		case strings.Trim(line, "|-") != "":
			cells := strings.Split(strings.Trim(line, "|"), "|")
			if len(cells) != 6 {
				faults = append(faults, fmt.Sprintf("a row has %d cells: %s", len(cells), line))
				continue
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all = append(all, feature{cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]})
		}
	}
	return all, faults
}

// tested has the tests of each folder, and the texts that its tests may name parts by.
type tested map[string]struct{ tests, texts map[string]bool }

func testsOf(found tree) tested {
	all := make(tested)
	for _, in := range found.folders {
		tests, texts := make(map[string]bool), make(map[string]bool)
		for _, file := range in.files {
			if !file.isTest() {
				continue
			}
			for node := range ast.Preorder(file.ast) {
				switch node := node.(type) {
				case *ast.FuncDecl:
					if node.Recv == nil {
						tests[node.Name.Name] = true
					}
				case *ast.BasicLit:
					if text, err := strconv.Unquote(node.Value); err == nil && node.Kind == token.STRING {
						texts[text] = true
					}
				}
			}
		}
		all[in.path] = struct{ tests, texts map[string]bool }{tests, texts}
	}
	return all
}

// folderExists reports whether a folder has Go files, in itself or below.
func (all tested) folderExists(name string) bool {
	for found := range all {
		if found == name || strings.HasPrefix(found, name+"/") {
			return true
		}
	}
	return false
}

// faults returns what is wrong with a row.
func (all tested) faults(f *feature) []string {
	var faults []string
	add := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%q: ", f.name)+fmt.Sprintf(format, args...))
	}
	if f.name == "" || f.from == "" {
		add("it needs a name, and a system that it is from")
	}
	if !slices.Contains(featureState, f.state) {
		add("the state %q is none of %q", f.state, featureState)
	}
	links := append(featureLink.FindAllStringSubmatch(f.packages, -1), featureLink.FindAllStringSubmatch(f.example, -1)...)
	for _, link := range links {
		folder, name := path.Clean(link[2]), link[1]
		if name != folder && path.Join("examples", name) != folder && (name != "yodel" || folder != ".") || !all.folderExists(folder) {
			add("there is no folder %s, or it has another name than %s", folder, name)
		}
	}
	if of := strings.Count(f.packages, ",") + 1; f.packages != "" && len(featureLink.FindAllString(f.packages, -1)) != of {
		add("%q has %d packages that are not links to folders", f.packages, of)
	}
	tests := featureTest.FindAllStringSubmatch(f.shown, -1)
	for _, test := range tests {
		folder := test[1]
		if folder == "yodel" {
			folder = "."
		}
		if !all[folder].tests[test[2]] || test[3] != "" && !all[folder].texts[test[3]] {
			add("there is no test %s", test[0])
		}
	}
	switch {
	case f.state == "yes" && (len(tests) == 0 || featureTest.ReplaceAllString(f.shown, "") != strings.Repeat(", ", len(tests)-1)):
		add("%q names no test, or something beside tests", f.shown)
	case f.state == "yes" && f.packages == "" && f.example == "":
		add("it names no package and no example")
	case f.state != "yes" && len(tests) > 0:
		add("it has a test, and the state %q", f.state)
	case (f.state == "no test" || f.state == "not planned") && f.shown == "":
		add("the state %q needs a reason", f.state)
	}
	return faults
}

// featureFaults returns what is wrong with the page.
func featureFaults(prose []string, found tree) []string {
	all, faults := featuresOf(prose)
	tests := testsOf(found)
	seen := make(map[string]bool)
	for i := range all {
		name := strings.ToLower(all[i].name)
		if seen[name] {
			faults = append(faults, fmt.Sprintf("%q has two rows", all[i].name))
		}
		seen[name] = true
		faults = append(faults, tests.faults(&all[i])...)
	}
	return faults
}

func TestFeaturesHaveTheTestsThatThePageNames(t *testing.T) {
	_, prose := splitDocument(documentText(t, featuresPage))
	if all, _ := featuresOf(prose); len(all) < 250 {
		t.Errorf("%s has %d features, want at least 250", featuresPage, len(all))
	}
	report(t, featureFaults(prose, readRepository(t)))
}

func TestFeatureRuleCatchesViolations(t *testing.T) {
	test := func(name string) folder {
		return folderOf(t, name, map[string]string{
			"a_test.go": "package a\nfunc TestA(t *testing.T) { t.Run(\"part\", nil) }\nfunc (x X) TestM() {}\n",
		})
	}
	found := tree{folders: []folder{test("."), test("codec/gob"), test("examples/hello/server")}}
	const tests = "`yodel.TestA`, `codec/gob.TestA/part`"
	for row, want := range map[string]bool{
		"| Calls | rpcx | yes | [yodel](..) | [hello](../examples/hello) | " + tests + " |": false,
		"| Gob | rpcx | yes | [codec/gob](../codec/gob), [yodel](..) | | `yodel.TestA` |":   false,
		"| XDS | gRPC | not planned | | | too large |":                                      false,
		"| QUIC | rpcx | not yet | | | |":                                                   false,
		"| Calls | rpcx | yes | [yodel](..) | | `yodel.TestRenamed` |":                      true,
		"| Calls | rpcx | yes | [yodel](..) | | `codec/json.TestA` |":                       true,
		"| Calls | rpcx | yes | [yodel](..) | | `yodel.TestA/other part` |":                 true,
		"| Calls | rpcx | yes | [yodel](..) | | `yodel.TestM` |":                            true,
		"| Calls | rpcx | yes | [yodel](..) | | it works |":                                 true,
		"| Calls | rpcx | yes | [yodel](..) | | `yodel.TestA` and more |":                   true,
		"| Calls | rpcx | yes | | | `yodel.TestA` |":                                        true,
		"| Calls | rpcx | yes | codec/gob | | `yodel.TestA` |":                              true,
		"| Calls | rpcx | yes | [codec/xml](../codec/xml) | | `yodel.TestA` |":              true,
		"| Calls | rpcx | yes | [codec/xml](../codec/gob) | | `yodel.TestA` |":              true,
		"| Calls | rpcx | yes | [yodel](..) | [hi](../examples/hi) | `yodel.TestA` |":       true,
		"| Calls | rpcx | | [yodel](..) | | `yodel.TestA` |":                                true,
		"| Calls | rpcx | partly | [yodel](..) | | `yodel.TestA` |":                         true,
		"| Calls | rpcx | not yet | [yodel](..) | | `yodel.TestA` |":                        true,
		"| Calls | | not yet | | | |":                                                       true,
		"| XDS | gRPC | not planned | | | |":                                                true,
		"| Calls | rpcx | not yet | | |":                                                    true,
		"| One | rpcx | not yet | | | |\n| one | gRPC | not yet | | | |":                    true,
		"\n| row of another table |":                                                        true,
	} {
		page := featuresHeader + "\n|---|---|---|---|---|---|\n" + row
		if faults := featureFaults(strings.Split(page, "\n"), found); len(faults) > 0 != want {
			t.Errorf("%s: got faults %q, want some: %t", row, faults, want)
		}
	}
}
