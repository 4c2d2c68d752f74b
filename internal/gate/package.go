// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
)

// A packageRun is what go test says of one package.
type packageRun struct {
	path    string
	tests   map[string]*testRun // by name
	output  strings.Builder     // outside of tests
	seconds float64
	failed  bool
}

// A testRun is what go test says of one test.
type testRun struct {
	action  string // empty until the test ends
	seconds float64
	output  strings.Builder
	marked  bool // it must not run again
}

// take adds an event, and reports whether it was the last one of the package.
func (p *packageRun) take(e event) (last bool) {
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output.WriteString(e.Output)
		case pass, skip, fail:
			p.seconds, p.failed = e.Elapsed, e.Action == fail
			return true
		}
		return false
	}
	t := p.tests[e.Test]
	if t == nil {
		t = new(testRun)
		p.tests[e.Test] = t
	}
	switch e.Action {
	case "output":
		t.output.WriteString(e.Output)
	case "attr":
		t.marked = t.marked || e.Key == "rerun" && e.Value == "never"
	case pass, skip, fail:
		t.action, t.seconds = e.Action, e.Elapsed
		if e.Action == pass {
			t.output = strings.Builder{}
		}
	}
	return false
}

// outcomes returns the outcomes of a package that has ended: that of the package first, then those
// of its tests by name. A package has failed only if something outside of its tests has.
func (p *packageRun) outcomes(build string) []outcome {
	whole := outcome{Package: p.path, Action: pass, Seconds: p.seconds}
	all := []outcome{whole}
	failures := 0
	var unfinished strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		t := p.tests[name]
		o := outcome{Package: p.path, Test: name, Action: t.action, Seconds: t.seconds, Output: t.output.String()}
		switch t.action {
		case "":
			unfinished.WriteString(o.Output)
			continue
		case fail:
			failures++
			o.Reason = p.final(name)
			if o.isTopLevel() {
				o.Output = p.outputBelow(name)
			}
		}
		all = append(all, o)
	}
	if p.failed && (failures == 0 || unfinished.Len() > 0) {
		whole.Action, whole.Reason, whole.Output = fail, "it failed outside of a test", build+unfinished.String()+p.output.String()
		all[0] = whole
	}
	return all
}

// outputBelow returns the output of a failed test, followed by that of its failed subtests.
func (p *packageRun) outputBelow(top string) string {
	var output strings.Builder
	output.WriteString(p.tests[top].output.String())
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		if strings.HasPrefix(name, top+"/") && p.tests[name].action == fail {
			output.WriteString(p.tests[name].output.String())
		}
	}
	return output.String()
}

// finalTexts begin lines of failures that are final.
var finalTexts = []struct{ text, reason string }{
	{"WARNING: DATA RACE", "a data race"},
	{"race detected during execution of test", "a data race"},
	{"goroutines outlive the test", "a leak of goroutines"},
	{"panic: test timed out", "a timeout"},
	{"panic: ", "a panic"},
	{"fatal error: ", "a panic"},
	{"Failing input written to", "a finding of a fuzz target"},
}

// final returns the reason why a failed test is not run once more, or "" if it is.
func (p *packageRun) final(name string) string {
	if strings.HasPrefix(name, "Fuzz") {
		return "a finding of a fuzz target"
	}
	top, _, _ := strings.Cut(name, "/")
	var output strings.Builder
	output.WriteString(p.output.String())
	for other, t := range p.tests {
		if other != top && !strings.HasPrefix(other, top+"/") && t.action != "" {
			continue // another test, which has ended
		}
		if t.marked {
			return `the test is marked: t.Attr("rerun", "never")`
		}
		output.WriteString(t.output.String())
	}
	for line := range strings.Lines(output.String()) {
		line = strings.TrimSpace(line)
		_, logged, _ := strings.Cut(line, ".go:") // a test logs its file and line first
		_, logged, _ = strings.Cut(logged, ": ")
		for _, known := range finalTexts {
			if strings.HasPrefix(line, known.text) || strings.HasPrefix(logged, known.text) {
				return known.reason
			}
		}
	}
	return ""
}
