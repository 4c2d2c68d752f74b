// SPDX-License-Identifier: Apache-2.0

package house

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxReadme is how many lines the README may have, so that a reader sees what yodel is and how to
// begin. A text that is longer is a page of its own.
const maxReadme = 160

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(documentText(t, "README.md"), "\n"); n > maxReadme {
		t.Errorf("the README has %d lines, want at most %d", n, maxReadme)
	}
}

// The README shows the commands that install the program and run the tests.
func TestReadmeNamesTheGate(t *testing.T) {
	blocks, _ := splitDocument(documentText(t, "README.md"))
	makefile := documentText(t, "Makefile")
	for command, exists := range map[string]bool{
		"make test":              strings.Contains(makefile, "\ntest:"),
		"go install ./cmd/yodel": strings.Contains(documentText(t, "cmd/yodel/main.go"), "\npackage main\n"),
	} {
		shown := false
		for _, b := range blocks {
			for line := range strings.Lines(b.text) {
				line, _, _ = strings.Cut(line, "#")
				shown = shown || b.language == "sh" && strings.TrimSpace(line) == command
			}
		}
		if !shown || !exists {
			t.Errorf("%s: the README shows it: %t, it exists: %t", command, shown, exists)
		}
	}
}

// CONTRIBUTING lists the packages that the gate installs.
func TestContributingListsThePackagesOfTheGate(t *testing.T) {
	contributing, install := documentText(t, "CONTRIBUTING.md"), documentText(t, ".ci/install")
	_, shown, _ := strings.Cut(contributing, "apt-get install --no-install-recommends ")
	shown, _, _ = strings.Cut(shown, "```")
	_, others, _ := strings.Cut(contributing, "adds peers in other languages than Go, which need `")
	others, _, _ = strings.Cut(others, "`")
	list := regexp.MustCompile(`packages\+?=\((.*?)\)`).FindAllStringSubmatch(install, -1)
	if len(list) < 3 {
		t.Fatalf(".ci/install has %d lists of packages", len(list))
	}
	for _, packages := range list {
		for name := range strings.FieldsSeq(packages[1]) {
			if !slices.Contains(strings.Fields(shown+" "+others), name) {
				t.Errorf("CONTRIBUTING does not name the package %s of .ci/install", name)
			}
		}
	}
}

// The figures of the README are those of the pages that it names.
func TestReadmeFiguresAreMeasured(t *testing.T) {
	readme := documentText(t, "README.md")
	for _, figure := range []struct{ readme, page, measured string }{
		{
			`yodel makes (\S+) times as many calls a second as arpc`,
			"docs/benchmarks/short/README.md",
			`\| 1 \| 100 callers: throughput / best Go peer \|.*\*\*(\S+)\*\*.*\| arpc \|`,
		},
		{
			`answers (\S+) times as many calls a second as grpc-go's`,
			"docs/benchmarks/wires/README.md",
			`(?s)\n### servers of the client of grpc-go, 100 callers\n.*?\n\| \**yodel-wires\** \|[^|]*\|[^|]*\| (\S+) \|`,
		},
		{
			`benchmarks/wires/README.md\) on (\d{4}-\d\d-\d\d)`,
			"docs/benchmarks/wires/README.md",
			`\| measured on \| (\S+) \|`,
		},
		{
			`short/README.md\) on (\d{4}-\d\d-\d\d)`,
			"docs/benchmarks/short/README.md",
			`\| measured on \| (\S+) \|`,
		},
	} {
		said := regexp.MustCompile(figure.readme).FindStringSubmatch(readme)
		measured := regexp.MustCompile(figure.measured).FindStringSubmatch(documentText(t, figure.page))
		if said == nil || measured == nil || said[1] != measured[1] || !strings.Contains(readme, figure.page) {
			t.Errorf("the README says %q, %s says %q", said, figure.page, measured)
		}
	}
}

func documentText(t *testing.T, name string) string {
	t.Helper()
	text, err := readText(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
