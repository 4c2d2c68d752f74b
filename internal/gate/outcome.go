// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The actions of outcomes. All except unsteady are also actions of go test -json.
const (
	pass     = "pass"
	fail     = "fail"
	skip     = "skip"
	unsteady = "unsteady" // it failed, and passed when it ran once more
)

// maxUnsteady is how many tests may be unsteady in a run that passes.
const maxUnsteady = 2

// An outcome says what became of a test, or of a whole package if Test is empty.
type outcome struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	Action  string  `json:"action"`
	Seconds float64 `json:"seconds"`
	Output  string  `json:"output,omitempty"` // of what has not passed
	Reason  string  `json:"reason,omitempty"` // why a failure is final
}

// isTopLevel reports whether o is the outcome of a test that is not a subtest.
func (o outcome) isTopLevel() bool { return o.Test != "" && !strings.Contains(o.Test, "/") }

// joined returns one outcome for each test and package that has several: a failure, if there is
// one, and what has skipped a test only if nothing has executed it.
func joined(outcomes []outcome) []outcome {
	rank := func(o outcome) int { return slices.Index([]string{fail, unsteady, pass, skip}, o.Action) }
	all := slices.Clone(outcomes)
	slices.SortStableFunc(all, func(a, b outcome) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Test, b.Test), cmp.Compare(rank(a), rank(b)))
	})
	return slices.CompactFunc(all, func(a, b outcome) bool { return a.Package == b.Package && a.Test == b.Test })
}

// A tally counts the outcomes of tests.
type tally struct{ passed, failed, skipped, unsteady int }

func count(outcomes []outcome) (n tally) {
	for _, o := range outcomes {
		switch o.Action {
		case fail:
			n.failed++
		case skip:
			n.skipped++
		case unsteady:
			n.passed++
			if o.isTopLevel() {
				n.unsteady++
			}
		case pass:
			if o.Test != "" {
				n.passed++
			}
		}
	}
	return n
}

// judge returns an error unless all tests have passed, with a few unsteady ones.
func judge(outcomes []outcome) error {
	if n := count(outcomes); n.failed > 0 || n.unsteady > maxUnsteady {
		return errReported
	}
	return nil
}

// outcomesEnv names the folder in which the outcomes of the tests of a step are kept for the last
// lines of all steps.
const outcomesEnv = "YODEL_GATE"

// save writes outcomes into a new file of a folder.
func save(folder string, outcomes []outcome) error {
	file, err := os.CreateTemp(folder, "*.json")
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(file).Encode(outcomes), file.Close())
}

// load reads all files of a folder that save has written.
func load(folder string) (all []outcome, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // save has made it
		if err != nil {
			return nil, err
		}
		var outcomes []outcome
		if err := json.Unmarshal(text, &outcomes); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, outcomes...)
	}
	return all, nil
}
