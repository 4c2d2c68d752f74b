// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logMethods are the methods of *slog.Logger that log a line, with the number of arguments before
// the attributes.
var logMethods = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3,
}

// attrFuncs are the functions of slog that make an attribute from a key.
var attrFuncs = []string{"String", "Int", "Int64", "Uint64", "Float64", "Bool", "Time", "Duration", "Any", "Group"}

// logKeys returns the keys of the attributes that a file hands to a logger. It finds the arguments
// of the logger's methods and of the functions that make an slog.Attr. For attributes that are
// collected first, it finds lists of type []any and what is appended to a list, if the first
// element is a constant text.
func logKeys(f goFile) (keys []string) {
	literal := func(e ast.Expr) (string, bool) {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(lit.Value)
		return text, err == nil
	}
	pairs := func(args []ast.Expr) {
		for i := 0; i < len(args); i += 2 {
			if key, ok := literal(args[i]); ok {
				keys = append(keys, key)
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if array, ok := n.Type.(*ast.ArrayType); ok && array.Len == nil && isName(array.Elt, "any") && len(n.Elts)%2 == 0 {
				pairs(n.Elts)
			}
		case *ast.CallExpr:
			if isName(n.Fun, "append") && len(n.Args)%2 == 1 && len(n.Args) > 1 {
				pairs(n.Args[1:])
				return true
			}
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if isName(called.X, "slog") && slices.Contains(attrFuncs, called.Sel.Name) {
				pairs(n.Args[:min(1, len(n.Args))])
			}
			if before, ok := logMethods[called.Sel.Name]; ok && len(n.Args) > before && !isName(called.X, "std") { // std.Error is that of net/http
				pairs(n.Args[before:])
			}
		}
		return true
	})
	return keys
}

func isName(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

// logPage has the table of the keys. Its rows begin with the key in backquotes.
const logPage = "docs/observability.md"

var logRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// tableOfLogKeys returns the keys in the table of the page, below its heading about logs.
func tableOfLogKeys(page string) (keys []string) {
	_, section, _ := strings.Cut(page, "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range logRow.FindAllStringSubmatch(section, -1) {
		keys = append(keys, row[1])
	}
	return keys
}

// usersKeys are keys that programs commonly add to all their lines, by slog.Logger.With. A line
// with the same key twice is hard to search, and some log stores refuse it.
var usersKeys = strings.Fields("service app application component module name version env environment host hostname instance region pid level msg time source error")

// logKeyFaults compares the keys that a file hands to a logger with the table. It adds the keys
// that it finds to used.
func logKeyFaults(f goFile, table []string, used map[string]bool) (faults []string) {
	if !strings.Contains(strings.ToLower(f.text), "log") {
		return nil
	}
	for _, key := range logKeys(f) {
		if !slices.Contains(table, key) {
			faults = append(faults, f.path+": the key "+strconv.Quote(key)+" of a log line is not in the table of "+logPage+": use one of those, or add it")
		}
		used[key] = true
	}
	return faults
}

// All packages use one set of keys, so that a search finds what every package says about a method,
// an error or an address.
func TestKeysOfLogLinesAreThoseOfTheTable(t *testing.T) {
	page, err := readText(logPage)
	if err != nil {
		t.Fatal(err)
	}
	table := tableOfLogKeys(page)
	if len(table) == 0 {
		t.Fatalf("%s has no table of the keys", logPage)
	}
	var faults []string
	used := make(map[string]bool)
	for _, in := range readRepository(t).folders {
		for _, file := range in.files {
			if logs := isReleased(in.path) && !file.isTest() && in.path != "yodeltest"; logs {
				faults = append(faults, logKeyFaults(file, table, used)...)
			}
		}
	}
	for i, key := range table {
		switch {
		case !used[key]:
			faults = append(faults, logPage+": no line has the key "+strconv.Quote(key))
		case slices.Contains(usersKeys, key):
			faults = append(faults, logPage+": the key "+strconv.Quote(key)+" is one that programs add to their lines: choose another")
		case slices.Contains(table[:i], key):
			faults = append(faults, logPage+": the key "+strconv.Quote(key)+" is there twice")
		}
	}
	report(t, faults)
}

func TestLogKeysAreFound(t *testing.T) {
	in := folderOf(t, "registry/new", map[string]string{"new.go": `package new
func f() {
	log.Warn("it failed", "err", err)
	log.InfoContext(ctx, "it works", "again in", 3, append(attrs, "name", n)...)
	log.Info("", slog.String("service", s), slog.Any("error", err))
	attrs := []any{"peer", p, "id", "YDL1101"}
}`})
	var got []string
	for _, fault := range logKeyFaults(in.files[0], []string{"err", "peer"}, make(map[string]bool)) {
		got = append(got, strings.Split(fault, `"`)[1])
	}
	if want := []string{"again in", "name", "service", "error", "id"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
