// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/rules"
)

// This file says by name what a kind of rule lacks.

// goNames returns the names of the fields of Rule that decide its kind, by their names in JSON, and
// the latter in the order of the fields.
func goNames() (names map[string]string, order []string) {
	names = make(map[string]string)
	for field := range reflect.TypeFor[rules.Rule]().Fields() {
		if field.Type.Kind() == reflect.Pointer && field.Name != "Rollback" {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			names[name] = field.Name
			order = append(order, name)
		}
	}
	return names, order
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEachKindIsInTheTable(t *testing.T) {
	if _, order := goNames(); !slices.Equal(order, rules.Kinds()) {
		t.Errorf("the fields of Rule are %v\nthe table has %v", order, rules.Kinds())
	}
}

// A kind stands alone in its file. No other file reads its field of Rule.
func TestEachKindHasAFileOfItsOwn(t *testing.T) {
	names, _ := goNames()
	kinds := make(map[string]string)
	for kind, name := range names {
		kinds[name] = kind
		if _, err := os.Stat("kind_" + kind + ".go"); err != nil {
			t.Error(err)
		}
	}
	for _, file := range sourceFiles(t) {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for node := range ast.Preorder(parsed) {
			s, ok := node.(*ast.SelectorExpr)
			if !ok || kinds[s.Sel.Name] == "" || file == "kind_"+kinds[s.Sel.Name]+".go" {
				continue
			}
			of := text(s.X)
			if !slices.Contains([]string{"in", "instances", "opts"}, of) { // they have a weight or a timeout too
				t.Errorf("%v: %s.%s belongs into kind_%s.go", set.Position(s.Pos()), of, s.Sel.Name, kinds[s.Sel.Name])
			}
		}
	}
}

// text returns the first name in an expression.
func text(x ast.Expr) string {
	for node := range ast.Preorder(x) {
		if name, ok := node.(*ast.Ident); ok {
			return name.Name
		}
	}
	return ""
}

func TestEachKindHasTranslations(t *testing.T) {
	for _, file := range []string{"en.ts", "zh.ts"} {
		texts := read(t, "../console/web/src/"+file)
		for _, form := range rules.Forms() {
			if !strings.Contains(texts, `"kind.`+form.Kind+`": "`) {
				t.Errorf("%s has no name of the kind: kind.%s", file, form.Kind)
			}
			for _, field := range form.Fields {
				name := field.Path[strings.LastIndex(field.Path, ".")+1:]
				if !strings.Contains(texts, `"field.`+name+`": "`) {
					t.Errorf("%s has no name of %s.%s: field.%s", file, form.Kind, field.Path, name)
				}
			}
		}
	}
	var phrases []*regexp.Regexp
	for _, found := range regexp.MustCompile(`(?m)^\t\["(.*)", ".*"\],$`).FindAllStringSubmatch(read(t, "../console/web/src/phrases.ts"), -1) {
		phrases = append(phrases, regexp.MustCompile("^"+regexp.MustCompile(`\\\{\d\\\}`).ReplaceAllString(regexp.QuoteMeta(found[1]), ".+")+`\. It ends`))
	}
	for _, r := range documented(t) {
		if said := r.Sentence(); !slices.ContainsFunc(phrases, func(p *regexp.Regexp) bool { return p.MatchString(said) }) {
			t.Errorf("phrases.ts does not translate what a %s rule does: %s", r.Kind(), said)
		}
	}
}

// documented returns the rules in the table of the kinds in docs/rules.md.
func documented(t *testing.T) (all []rules.Rule) {
	t.Helper()
	for _, row := range kindRow.FindAllStringSubmatch(read(t, "../docs/rules.md"), -1) {
		for _, example := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			r, err := rules.Decode([]byte(`{"service":"Shop","expires":"2099-01-01T00:00:00Z","` + row[1] + `":` + example[1] + `}`))
			if err != nil || len(r.Check()) > 0 {
				t.Errorf("%s: %v, %v", example[1], err, r.Check())
			}
			all = append(all, r)
		}
	}
	return all
}

// kindRow is a row of the table of the kinds: the kind, examples, and where it acts.
var kindRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (`.*?) \\| (.*?) \\|")

func TestTheDocumentationSaysWhereEachKindActs(t *testing.T) {
	doc := read(t, "../docs/rules.md")
	rows := make(map[string][]string)
	for _, row := range kindRow.FindAllStringSubmatch(doc, -1) {
		rows[row[1]] = append(rows[row[1]], row[3])
	}
	for kind, want := range rules.ActsIn() {
		if got := rows[kind]; !slices.Equal(got, want) {
			t.Errorf("docs/rules.md says that %s acts in %q, want %q", kind, got, want)
		}
	}
	for chain, order := range rules.Order() {
		if line := fmt.Sprintf("| %s | %s |", chain, "`"+strings.Join(order, "`, `")+"`"); !strings.Contains(doc, line) {
			t.Errorf("docs/rules.md lacks %s", line)
		}
	}
}

func TestEachKindIsTestedInOtherProcesses(t *testing.T) {
	names, _ := goNames()
	for _, file := range []string{"../conformance/governed/governed.go", "../conformance/everywhere/rules_test.go"} {
		tests := read(t, file)
		for kind, name := range names {
			if !strings.Contains(tests, name+": &rules.") && (kind != "switch" || !strings.Contains(file, "everywhere")) {
				t.Errorf("%s has no test of %s", file, kind)
			}
		}
	}
}

func TestFormsHaveTheFieldsOfRules(t *testing.T) {
	want := map[string]string{
		"disable":  "to.addr text, to.version text, to.tag text, to.group text, to.zone text, except list",
		"breaker":  "errors number, share number, window text, minCalls number, open text",
		"mock":     "reply json, code text, message text",
		"fallback": "reply json",
		"timeout":  "after text, streams bool",
	}
	for _, form := range rules.Forms() {
		var fields []string
		for _, field := range form.Fields {
			fields = append(fields, field.Path+" "+field.Type)
		}
		if got := strings.Join(fields, ", "); want[form.Kind] != "" && got != want[form.Kind] {
			t.Errorf("%s has the fields %s", form.Kind, got)
		}
		if form.Scope == (form.Kind == "switch") {
			t.Errorf("%s: scope %v", form.Kind, form.Scope)
		}
		if form.Start == nil {
			continue
		}
		if _, err := rules.Decode([]byte(`{"` + form.Kind + `":` + string(form.Start) + `}`)); err != nil {
			t.Errorf("%s begins with %s: %v", form.Kind, form.Start, err)
		}
	}
}
