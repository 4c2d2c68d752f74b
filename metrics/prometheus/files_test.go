// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
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

// The dashboard and the alert rules take the same calls for failures as the command, the console
// and the rules do.
func TestDashboardAndAlertsUseTheOutcomesOfCalls(t *testing.T) {
	var failed, unjudged []string
	for code := yodel.Code(1); code <= yodel.Unauthenticated; code++ {
		switch introspect.OutcomeOf(code.String()) {
		case introspect.Failed:
			failed = append(failed, code.String())
		case introspect.Limited, introspect.Canceled:
			unjudged = append(unjudged, code.String())
		}
	}
	failed = append(failed, introspect.Disabled)
	slices.Sort(failed)
	slices.Sort(unjudged)
	selectors := regexp.MustCompile(`code(=~|!~|!=|=)\\?"([^"\\]*)`)
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, found := range selectors.FindAllStringSubmatch(string(text), -1) {
			codes := strings.Split(found[2], "|")
			slices.Sort(codes)
			switch {
			case found[1] == "=~" && slices.Equal(codes, failed), found[1] == "!~" && slices.Equal(codes, unjudged):
				n++
			case found[1] == "!~" && slices.Equal(codes, []string{"canceled", "ok"}): // errors by code
			default:
				t.Errorf("%s: %s selects other codes", file, found[0])
			}
		}
		if n < 4 {
			t.Errorf("%s: %d selectors of failed and judged calls", file, n)
		}
	}
}
