// SPDX-License-Identifier: Apache-2.0

// Package valuetable keeps the table of docs/values.md, which says what each codec does with each
// value of the catalogue in yodeltest. The tests of the codecs try it, and write it with -update.
package valuetable

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var update = flag.Bool("update", false, "write a column of docs/values.md")

// columns are the codecs of the table.
var columns = []string{"JSON", "gob", "msgpack", "hessian2", "thrift", "pbstruct"}

const (
	begin = "<!-- go test in the package of a codec, with -run TestValues -update, writes its column of this table. -->\n"
	end   = "<!-- end of the table -->\n"
)

// Check compares the column of a codec in the page with what the codec does. Page is the path of
// docs/values.md from the folder of the test.
func Check(t *testing.T, c yodel.Codec, column, page string) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(page))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	table, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatalf("%s has no place for the table", page)
	}
	known := parse(table)
	var b strings.Builder
	b.WriteString("| | " + strings.Join(columns, " | ") + " |\n|---" + strings.Repeat("|---", len(columns)) + "|\n")
	for _, o := range yodeltest.ValueOutcomes(c) {
		b.WriteString("| " + escape(o.Value))
		for _, name := range columns {
			text := cmp.Or(known[escape(o.Value)][name], "?") // its test has not run yet
			if name == column {
				text = cell(o, Changes[column])
			}
			b.WriteString(" | " + text)
		}
		b.WriteString(" |\n")
	}
	want := before + begin + b.String() + end + after
	switch {
	case *update:
		if err := os.WriteFile(filepath.FromSlash(page), []byte(want), 0o600); err != nil { //nolint:gosec // the caller is a test, which names the page
			t.Fatal(err)
		}
	case want != string(text):
		t.Errorf("%s is not what %s does: run this test with -update", page, column)
	}
}

// cell returns the text of an outcome.
func cell(o yodeltest.ValueOutcome, changes map[string]string) string {
	switch o.Result {
	case "carried":
		return "✔"
	case "type refused":
		return "✘"
	case "value refused":
		return "✘ value"
	case "changed":
		return "◐ " + changes[o.Value]
	}
	return "**" + o.Result + "**"
}

// parse returns the cells of a table by the names of rows and columns.
func parse(table string) map[string]map[string]string {
	cells := make(map[string]map[string]string)
	for line := range strings.Lines(table) {
		parts := strings.Split(strings.Trim(line, "|\n "), " | ")
		if len(parts) != len(columns)+1 {
			continue
		}
		row := make(map[string]string)
		for i, name := range columns {
			row[name] = strings.TrimSpace(parts[i+1])
		}
		cells[parts[0]] = row
	}
	return cells
}

func escape(text string) string { return strings.ReplaceAll(text, `\`, `\\`) }
