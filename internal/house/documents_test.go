// SPDX-License-Identifier: Apache-2.0

package house

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Go code in a document is code of a program or a test in the workspace, which the compiler checks
// with everything else. A comment above the block says where it stands:
//
//	<!-- file: examples/hello/server/main.go -->     the file, from its package clause on
//	<!-- file: examples/hello/server/main.go#serve --> what stands between // region serve and // endregion serve,
//	                                                 without its common indentation
//
// A block of another language may have such a comment too. Code that is not meant to compile is a
// text block. Decisions are free, for they also show what was not chosen.
var marker = regexp.MustCompile(`^<!-- file: ([^\s#]+)(?:#(\S+))? -->$`)

// A block is a fenced block of code in a document.
type block struct {
	line     int // of the opening fence, from 1
	language string
	file     string // where the code stands; "" is not said
	region   string // which part of the file; "" is all of it
	text     string
}

// splitDocument returns the fenced blocks of a document, and the prose between them, line by line.
func splitDocument(text string) (blocks []block, prose []string) {
	var open *block
	var fence, above string
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case open != nil && trimmed == fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(trimmed, "```"):
			language := strings.TrimLeft(trimmed, "`")
			fence = strings.TrimSuffix(trimmed, language)
			open = &block{line: i + 1, language: language}
			if where := marker.FindStringSubmatch(above); where != nil {
				open.file, open.region = where[1], where[2]
			}
		default:
			prose = append(prose, line)
		}
		if trimmed != "" {
			above = trimmed
		}
	}
	if open != nil { // to the end of the document
		blocks = append(blocks, *open)
	}
	return blocks, prose
}

// excerpt returns a region of a source, or all of it from the package clause on, without the
// comments that mark regions.
func excerpt(source, region string) (string, error) {
	inside := region == ""
	if at := strings.Index("\n"+source, "\npackage "); inside && at >= 0 {
		source = source[at:]
	}
	var lines []string
	for line := range strings.Lines(source) {
		switch words := strings.TrimSpace(line); {
		case words == "// endregion "+region:
			return unindent(lines), nil
		case words == "// region "+region:
			inside = true
		case inside && !strings.HasPrefix(words, "// region ") && !strings.HasPrefix(words, "// endregion "):
			lines = append(lines, line)
		}
	}
	if region == "" {
		return strings.Join(lines, ""), nil
	}
	return "", fmt.Errorf("it has no lines from %q to %q", "// region "+region, "// endregion "+region)
}

// unindent removes the tabs that all lines with text begin with.
func unindent(lines []string) string {
	for slices.ContainsFunc(lines, hasText) && !slices.ContainsFunc(lines, beginsAtMargin) {
		for i, line := range lines {
			lines[i] = strings.TrimPrefix(line, "\t")
		}
	}
	return strings.Join(lines, "")
}

func hasText(line string) bool        { return strings.TrimSpace(line) != "" }
func beginsAtMargin(line string) bool { return hasText(line) && line[0] != '\t' }

// blockFault compares a block with the file it comes from; read reads a file of the repository.
func blockFault(b block, read func(name string) (string, error)) error {
	if b.file == "" {
		if b.language != "go" {
			return nil
		}
		return errors.New("a go block needs a comment <!-- file: … --> above it, or is a text block")
	}
	source, err := read(b.file)
	if err != nil {
		return err
	}
	want, err := excerpt(source, b.region)
	if err != nil {
		return fmt.Errorf("%s: %w", b.file, err)
	}
	if strings.TrimSpace(b.text) != strings.TrimSpace(want) {
		return fmt.Errorf("the block is not what stands in %s, which is\n%s", b.file, want)
	}
	return nil
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	inlineLink = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)`)
	definition = regexp.MustCompile(`^\s*\[[^\]]+\]:\s+(\S+)`)
)

// relativeLinks returns the links in a line of prose that lead to other files, without their
// fragments.
func relativeLinks(line string) []string {
	line = inlineCode.ReplaceAllString(line, "")
	var links []string
	for _, match := range append(inlineLink.FindAllStringSubmatch(line, -1), definition.FindAllStringSubmatch(line, -1)...) {
		link, err := url.Parse(match[1])
		if err != nil {
			links = append(links, match[1])
		} else if !link.IsAbs() && link.Host == "" && link.Path != "" {
			links = append(links, link.Path)
		}
	}
	return links
}

// linkFaults returns the links in a document, prose, that lead nowhere in the repository.
func linkFaults(name string, prose []string, tree fs.FS) []string {
	var faults []string
	for _, line := range prose {
		for _, link := range relativeLinks(line) {
			target := path.Join(path.Dir(name), link)
			if strings.HasPrefix(link, "/") {
				target = path.Join(".", link[1:])
			}
			if _, err := fs.Stat(tree, target); err != nil {
				faults = append(faults, fmt.Sprintf("%s: the link %s leads nowhere", name, link))
			}
		}
	}
	return faults
}

func TestCodeInDocumentsIsCompiled(t *testing.T) {
	for _, name := range readRepository(t).markdown {
		if strings.HasPrefix(name, "docs/decisions/") {
			continue
		}
		text, err := readText(name)
		if err != nil {
			t.Fatal(err)
		}
		blocks, _ := splitDocument(text)
		for _, b := range blocks {
			if err := blockFault(b, readText); err != nil {
				t.Errorf("%s:%d: %v", name, b.line, err)
			}
		}
	}
}

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for _, name := range readRepository(t).markdown {
		text, err := readText(name)
		if err != nil {
			t.Fatal(err)
		}
		_, prose := splitDocument(text)
		report(t, linkFaults(name, prose, os.DirFS(repository)))
	}
}

func TestDocumentCodeRuleCatchesViolations(t *testing.T) {
	const source = header + "// Command a adds.\npackage main\n\nfunc main() {\n\t// region add\n\tif x {\n\t\tadd()\n\t}\n\t// endregion add\n}\n"
	const whole = "package main\n\nfunc main() {\n\tif x {\n\t\tadd()\n\t}\n}\n"
	read := func(name string) (string, error) {
		if name != "a/main.go" {
			return "", fs.ErrNotExist
		}
		return source, nil
	}
	fenced := func(comment, language, text string) string {
		return comment + "\n```" + language + "\n" + text + "\n```\n"
	}
	tests := []struct {
		name, document string
		want           bool
	}{
		{"region", fenced("<!-- file: a/main.go#add -->", "go", "if x {\n\tadd()\n}"), false},
		{"changed region", fenced("<!-- file: a/main.go#add -->", "go", "if y {\n\tadd()\n}"), true},
		{"region that does not exist", fenced("<!-- file: a/main.go#sub -->", "go", "if x {\n\tadd()\n}"), true},
		{"whole file", fenced("<!-- file: a/main.go -->", "go", whole), false},
		{"part of a whole file", fenced("<!-- file: a/main.go -->", "go", "package main"), true},
		{"file that does not exist", fenced("<!-- file: b/main.go -->", "go", "package main"), true},
		{"code from nowhere", fenced("As follows:", "go", "add()"), true},
		{"marker of another block", fenced("<!-- file: a/main.go#add -->\nor", "go", "if x {\n\tadd()\n}"), true},
		{"code that does not end", "```go\nadd()\n", true},
		{"text", fenced("As follows:", "text", "add()"), false},
		{"go in a longer fence", "````text\n```go\nadd()\n```\n````\n", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			blocks, _ := splitDocument(test.document)
			if len(blocks) != 1 {
				t.Fatalf("got %d blocks, want 1", len(blocks))
			}
			if err := blockFault(blocks[0], read); (err != nil) != test.want {
				t.Errorf("got fault %v, want one: %t", err, test.want)
			}
		})
	}
}

func TestLinkRuleCatchesViolations(t *testing.T) {
	tests := []struct {
		document string
		want     bool
	}{
		{"see [house](internal/house/house.go#L3)", false},
		{"see [house](internal/house) and [no house](internal/mouse)", true},
		{"[house]: internal/mouse", true},
		{"![picture](internal/house.png \"a house\")", true},
		{"[outside](../secret)", true},
		{"[web](https://go.dev/doc), [mail](mailto:a@go.dev), [here](#below)", false},
		{"`[code](internal/mouse)`", false},
		{"```text\n[code](internal/mouse)\n```", false},
	}
	for _, test := range tests {
		_, prose := splitDocument(test.document)
		faults := linkFaults("README.md", prose, os.DirFS(repository))
		if got := len(faults) > 0; got != test.want {
			t.Errorf("%q: got faults %q, want some: %t", test.document, faults, test.want)
		}
	}
}
