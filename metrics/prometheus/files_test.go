// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var metricName = regexp.MustCompile(`\byodel_[a-z_]+`)

// series are the suffixes that the series of a histogram have in queries.
var series = regexp.MustCompile(`_(bucket|sum|count)$`)

// Every metric in the dashboard and in the alert rules exists. The dashboard shows all metrics.
// Package conformance/observe runs the queries.
func TestDashboardAndAlertsUseMetricsThatExist(t *testing.T) {
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used := make(map[string]bool)
		for _, name := range metricName.FindAllString(string(text), -1) {
			f := slices.IndexFunc(families, func(f *family) bool {
				return f.name == name || f.kind == "histogram" && f.name == series.ReplaceAllString(name, "")
			})
			if f < 0 {
				t.Errorf("%s: there is no metric %s", file, name)
				continue
			}
			used[families[f].name] = true
		}
		for _, f := range families {
			if file == "dashboard.json" && !used[f.name] {
				t.Errorf("%s: it does not show %s", file, f.name)
			}
		}
	}
}

// The table of metrics in the documentation is that of the code.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n")
	for _, f := range families {
		_, _ = fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(f.labels, ", "), strings.TrimSuffix(f.help, "."))
	}
	if !strings.Contains(string(text), "\n"+table.String()+"\n") {
		t.Errorf("docs/observability.md does not have this table:\n%s", &table)
	}
}
