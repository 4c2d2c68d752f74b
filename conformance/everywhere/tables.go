// SPDX-License-Identifier: Apache-2.0

package everywhere

import "testing"

// A Table is a table of docs/wires.md.
type Table struct {
	Title string
	File  string // of the test
	Test  string
	Rows  []Guarantee
}

// Modules are the tables of other modules. Docs/wires.md is made from them, and the tests of the
// modules hold them: see HoldTable. What gives a guarantee, and its check, are in these tests only.
var Modules = []Table{
	{"Redis", "middleware/redis/everywhere_test.go", "TestRedisOverEveryWire", []Guarantee{
		{Name: "once in Redis", Only: OneExecution, Lacks: LacksKeys, Server: given},
		{Name: "rate in Redis", Server: given},
	}},
	{"Prometheus", "metrics/prometheus/everywhere_test.go", "TestMetricsOverEveryWire", []Guarantee{
		{Name: "calls are counted", Server: given, Client: given},
	}},
	{"OpenTelemetry", "trace/otel/everywhere_test.go", "TestSpansOverEveryWire", []Guarantee{
		{Name: "calls are spans", Server: given, Client: given},
	}},
}

// OneExecution says why streams are not executed once for each key.
const OneExecution = "a stream with a key is refused, because its messages are not remembered"

// given stands in for what the test of a module gives.
func given(*testing.T, *Trial) {}

// HoldTable is Hold for a table of Modules. The test fails if the guarantees are not its rows, so
// that docs/wires.md shows what the test tries.
func HoldTable(t *testing.T, title string, guarantees []Guarantee) {
	t.Helper()
	for _, tab := range Modules {
		if tab.Title != title {
			continue
		}
		if tab.Test != t.Name() {
			t.Errorf("the test of the table is %s", tab.Test)
		}
		tab.compare(t, guarantees)
		Hold(t, guarantees)
		return
	}
	t.Fatalf("everywhere.Modules has no table %q", title)
}

// compare wants guarantees to have the cells of the table.
func (tab *Table) compare(t *testing.T, guarantees []Guarantee) {
	t.Helper()
	if len(guarantees) != len(tab.Rows) {
		t.Fatalf("everywhere.Modules has %d rows, and the test %d", len(tab.Rows), len(guarantees))
	}
	for i := range guarantees {
		row, g := &tab.Rows[i], &guarantees[i]
		if g.Name != row.Name || g.Only != row.Only || (g.Server == nil) != (row.Server == nil) || (g.Client == nil) != (row.Client == nil) {
			t.Errorf("row %d is %q in the test, and %q in everywhere.Modules, or they differ in Only, Server or Client", i+1, g.Name, row.Name)
		}
		for j := range Wires {
			w := &Wires[j]
			for _, shape := range g.shapes(w) {
				if got, want := g.missing(w, shape), row.missing(w, shape); got != want {
					t.Errorf("%s, %s over %s: it is missing because %q in the test, and %q in everywhere.Modules", g.Name, shape, w.Name, got, want)
				}
			}
		}
	}
}
