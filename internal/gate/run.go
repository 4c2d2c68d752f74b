// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// maxReruns is how many failed tests of one run are run once more. Three unsteady tests fail the
// run anyway.
const maxReruns = 5

// A runner runs tests with go test.
type runner struct {
	out   io.Writer // what people read while the tests run
	dir   string    // the folder in which go test runs; empty for the current one
	env   []string  // in addition to the environment of this process
	flags []string  // of go test
	args  []string  // -args, and what follows it
}

// An event is an event of go test -json.
type event struct {
	Action      string  `json:"Action"`
	Package     string  `json:"Package"`
	Test        string  `json:"Test"`
	Output      string  `json:"Output"`
	ImportPath  string  `json:"ImportPath"`  // of a build
	FailedBuild string  `json:"FailedBuild"` // of a build
	Key         string  `json:"Key"`         // of an attribute
	Value       string  `json:"Value"`       // of an attribute
	Elapsed     float64 `json:"Elapsed"`     // in seconds
}

// run runs the tests of packages, and those that have failed once more.
func (r *runner) run(ctx context.Context, packages []string) ([]outcome, error) {
	outcomes, err := r.goTest(ctx, r.flags, packages)
	if err != nil {
		return nil, err
	}
	reruns := 0
	for i, o := range outcomes {
		if o.Action != fail || o.Reason != "" || !o.isTopLevel() {
			continue
		}
		if reruns++; reruns > maxReruns {
			outcomes[i].Reason = "too many tests failed to run this one once more"
			continue
		}
		printf(r.out, "run %s of %s once more, alone\n", o.Test, o.Package)
		flags := append(slices.Clone(r.flags), "-run=^"+o.Test+"$", "-count=1", "-p=1")
		again, err := r.goTest(ctx, flags, []string{o.Package})
		if err != nil {
			return nil, err
		}
		outcomes = afterRerun(outcomes, o, again)
	}
	return outcomes, nil
}

// afterRerun returns outcomes as they are after the failed test o ran once more.
func afterRerun(outcomes []outcome, o outcome, again []outcome) []outcome {
	passed := false
	o.Reason = "it did not pass when it ran once more, alone"
	for _, a := range again {
		if a.Action == fail && (a.Test == "" || a.isTopLevel()) {
			o.Output += "\nIt ran once more, alone:\n\n" + a.Output
		}
		passed = passed || a.Test == o.Test && a.Action == pass
	}
	passed = passed && !slices.ContainsFunc(again, func(a outcome) bool { return a.Action == fail })
	known := make(map[string]bool)
	for i := range outcomes {
		before := &outcomes[i]
		if before.Package != o.Package || before.Test != o.Test && !strings.HasPrefix(before.Test, o.Test+"/") {
			continue
		}
		known[before.Test] = true
		if before.Test == o.Test {
			*before = o
		}
		if passed && before.Action == fail {
			before.Action, before.Reason = unsteady, ""
		}
	}
	for _, a := range again { // subtests that the first failure left out
		if a.Test != "" && !known[a.Test] {
			outcomes = append(outcomes, a)
		}
	}
	return outcomes
}

// goTest runs go test once.
func (r *runner) goTest(ctx context.Context, flags, packages []string) ([]outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := slices.Concat([]string{"test", "-json"}, flags, packages, r.args)
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the Makefile gives the arguments
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, append(os.Environ(), r.env...), os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	outcomes, readErr := r.readEvents(stdout)
	if readErr != nil {
		cancel() // go test would wait until its events are read
	}
	err = errors.Join(readErr, ctx.Err(), cmd.Wait())
	failed := slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Action == fail })
	if _, ok := errors.AsType[*exec.ExitError](err); ok && failed && readErr == nil && ctx.Err() == nil {
		err = nil // the outcomes say it
	}
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args[:2+len(flags)], " "), err)
	}
	return outcomes, nil
}

// readEvents reads the events of go test -json to their end, and prints each package that ends.
func (r *runner) readEvents(from io.Reader) (outcomes []outcome, err error) {
	builds := make(map[string]string)        // the output of compilers and go vet, by import path
	packages := make(map[string]*packageRun) // by import path
	for lines := bufio.NewReader(from); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%w in the line %q", err, line)
		}
		if e.Action == "build-output" {
			builds[e.ImportPath] += e.Output
		}
		if e.Package == "" {
			continue
		}
		p := packages[e.Package]
		if p == nil {
			p = &packageRun{path: e.Package, tests: make(map[string]*testRun)}
			packages[e.Package] = p
		}
		if p.take(e) {
			delete(packages, e.Package)
			ended := p.outcomes(builds[e.FailedBuild])
			r.printPackage(p, ended)
			outcomes = append(outcomes, ended...)
		}
	}
	return outcomes, nil
}

// printPackage prints one line for a package, and the output of what has failed in it.
func (r *runner) printPackage(p *packageRun, outcomes []outcome) {
	switch {
	case p.failed:
		printf(r.out, "FAIL %6.1fs %s\n", p.seconds, p.path)
	case len(p.tests) > 0:
		printf(r.out, "ok   %6.1fs %s\n", p.seconds, p.path)
	}
	for _, o := range outcomes {
		if o.Action == fail && (o.Test == "" || o.isTopLevel()) {
			printf(r.out, "%s\n", strings.TrimRight(o.Output, "\n"))
		}
	}
}
