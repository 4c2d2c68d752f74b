// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// printOutcomes prints what has to be known of joined outcomes, except their counts.
func printOutcomes(out io.Writer, outcomes []outcome) {
	printSlowest(out, outcomes)
	printSkipped(out, outcomes)
	printFaults(out, outcomes)
}

// printf prints to the standard output of the gate. What cannot be printed has no other place.
func printf(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

// printSlowest prints the packages and tests that took longest.
func printSlowest(out io.Writer, outcomes []outcome) {
	show := func(title string, of []outcome) {
		slices.SortStableFunc(of, func(a, b outcome) int { return cmp.Compare(b.Seconds, a.Seconds) })
		printf(out, "\n== the slowest %s\n", title)
		for _, o := range of[:min(10, len(of))] {
			printf(out, "%6.1fs %s %s\n", o.Seconds, o.Package, o.Test)
		}
	}
	show("packages", slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.Test != "" }))
	show("tests", slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return !o.isTopLevel() }))
}

// printSkipped prints the tests that were not executed, with the reason that each has given.
func printSkipped(out io.Writer, outcomes []outcome) {
	title := "\n== skipped, and executed in no step\n"
	for _, o := range outcomes {
		if o.Action != skip || o.Test == "" {
			continue
		}
		printf(out, "%s%s %s: %s\n", title, o.Package, o.Test, reasonOf(o))
		title = ""
	}
}

// reasonOf returns what a test said before it was skipped.
func reasonOf(skipped outcome) string {
	reason := ""
	for line := range strings.Lines(skipped.Output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- ") && !strings.HasPrefix(line, "=== ") {
			reason = line
		}
	}
	return reason
}

// printFaults prints the tests that are unsteady and those that have failed, with their output.
func printFaults(out io.Writer, outcomes []outcome) {
	for _, kind := range []struct{ action, title string }{
		{unsteady, "unsteady: failed, and passed when it ran once more, alone"}, {fail, "failed"},
	} {
		title := "\n== " + kind.title + "\n"
		for _, o := range outcomes {
			if o.Action != kind.action || o.Test != "" && !o.isTopLevel() {
				continue
			}
			printf(out, "%s%s %s", title, o.Package, o.Test)
			if o.Reason != "" {
				printf(out, " (%s)", o.Reason)
			}
			printf(out, "\n%s\n", indented(o.Output))
			title = ""
		}
	}
}

// indented returns the first and last lines of a text, indented.
func indented(text string) string {
	const most = 100
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if left := len(lines) - most; left > 0 {
		lines = slices.Concat(lines[:most/2], []string{fmt.Sprintf("… %d more lines above …", left)}, lines[len(lines)-most/2:])
	}
	return "    " + strings.Join(lines, "\n    ")
}

// printCounts prints the last line.
func printCounts(out io.Writer, outcomes []outcome) {
	n := count(outcomes)
	if n.unsteady > maxUnsteady {
		printf(out, "\n%d tests are unsteady, %d may be: they count as failed\n", n.unsteady, maxUnsteady)
		n.passed, n.failed = n.passed-n.unsteady, n.failed+n.unsteady
	}
	printf(out, "\n%d passed, %d failed, %d skipped\n", n.passed, n.failed, n.skipped)
}
