// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/wires.md")

func tables() []Table {
	return slices.Concat([]Table{
		{"Middleware", "conformance/everywhere/middleware_test.go", "TestMiddlewareOverEveryWire", middlewareGuarantees},
		{"Clients", "conformance/everywhere/clients_test.go", "TestClientsOverEveryWire", clientGuarantees},
		{"Deadlines", "conformance/everywhere/deadlines_test.go", "TestDeadlinesOverEveryWire", deadlineGuarantees()},
		{"Rules", "conformance/everywhere/rules_test.go", "TestRulesOverEveryWire", ruleGuarantees()},
	}, Modules, []Table{
		{"The framework", "conformance/everywhere/guarantees_test.go", "TestGuaranteesOverEveryWire", frameworkGuarantees},
		{"One-way calls", "conformance/everywhere/oneway_test.go", "TestOneWayCallsOverEveryWire", oneWayGuarantees()},
	})
}

const (
	page       = "../../docs/wires.md"
	beginTable = "<!-- go test ./conformance/everywhere -run TestPage -update writes these tables from the tests. -->\n"
	endTable   = "<!-- end of the tables -->\n"
)

// The tables of docs/wires.md are those that the tests try.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash(page))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), beginTable)
	_, after, foundEnd := strings.Cut(rest, endTable)
	if !found || !foundEnd {
		t.Fatalf("%s has no place for the tables", page)
	}
	want := before + beginTable + document(tables()) + endTable + after
	if *update {
		if err := os.WriteFile(filepath.FromSlash(page), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want != string(text) && !*update {
		t.Errorf("%s is not what the tests try: go test ./conformance/everywhere -run TestPage -update", page)
	}
}

// document returns the tables, and below them the reasons of the cells that cannot be.
func document(all []Table) string {
	var b strings.Builder
	var reasons []string
	number := func(why string) int {
		n := slices.Index(reasons, why)
		if n < 0 {
			n, reasons = len(reasons), append(reasons, why)
		}
		return n + 1
	}
	for _, tab := range all {
		fmt.Fprintf(&b, "\n### %s\n\nThe test is [%s](../%s).\n\n| | on | calls |", tab.Title, tab.Test, tab.File)
		for i := range Wires {
			fmt.Fprintf(&b, " %s |", Wires[i].Name)
		}
		b.WriteString("\n" + strings.Repeat("|---", 3+len(Wires)) + "|\n")
		for i := range tab.Rows {
			g := &tab.Rows[i]
			fmt.Fprintf(&b, "| %s | %s | %s |", g.Name, g.on(), g.calls(number))
			for i := range Wires {
				fmt.Fprintf(&b, " %s |", g.cell(&Wires[i], number))
			}
			b.WriteString("\n")
		}
	}
	b.WriteString("\n")
	for i, why := range reasons {
		fmt.Fprintf(&b, "%d. %s.\n", i+1, why)
	}
	b.WriteString("\n")
	return b.String()
}

// cell says whether a guarantee is tried over a wire, and why not.
func (g *Guarantee) cell(w *Wire, number func(why string) int) string {
	missing, why := 0, ""
	shapes := g.shapes(w)
	for _, shape := range shapes {
		if no := g.missing(w, shape); no != "" {
			missing, why = missing+1, no
		}
	}
	switch missing {
	case 0:
		return "✔"
	case len(shapes):
		return fmt.Sprint("✘ ", number(why))
	}
	return fmt.Sprint("◐ ", number(why))
}

// on says on which sides a guarantee is tried.
func (g *Guarantee) on() string {
	switch {
	case g.Server != nil && g.Client != nil:
		return "server, client"
	case g.Server != nil:
		return "server"
	case g.Client != nil:
		return "client"
	}
	return "both"
}

// calls says which calls have a guarantee.
func (g *Guarantee) calls(number func(why string) int) string {
	switch {
	case g.oneWay:
		return "one-way"
	case g.Only == "":
		return "all"
	}
	return fmt.Sprintf("unary %d", number(g.Only))
}
