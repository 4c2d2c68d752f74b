// SPDX-License-Identifier: Apache-2.0

// Command gate runs the tests of the repository and the steps of CI.
//
//	gate test [flags of go test] packages [-args …]
//	                                        run tests, and each failed test once more
//	gate measured                           print the packages and tests to repeat without -race
//	gate steps FILE                         run the steps of a file, with a bound of seconds for each
//
// A test that fails runs once more, alone. If it passes then, it is unsteady: its first output
// stands in the last lines, and the run goes on. Three unsteady tests fail the run. These failures
// are final, and their tests do not run again: data races, leaks of goroutines, panics, timeouts,
// findings of fuzz targets, what fails outside of a test, and tests that have marked themselves:
//
//	t.Attr("rerun", "never") // the test checks that no call is lost
//
// The last line says how many tests passed, failed and were skipped. A test counts once, even if
// several steps have run it, and it counts as skipped if no step has executed it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintln(os.Stderr, "gate:", err)
		}
		os.Exit(1)
	}
}

// errReported is the error of a run whose last lines say what has failed.
var errReported = errors.New("the run failed")

func command(ctx context.Context, args []string) error {
	switch {
	case len(args) > 1 && args[0] == "test":
		return testCommand(ctx, args[1:])
	case len(args) == 1 && args[0] == "measured":
		return measuredCommand(ctx, os.Stdout)
	case len(args) == 2 && args[0] == "steps":
		return stepsCommand(ctx, args[1])
	}
	return errors.New("usage: gate test [flags of go test] packages | gate measured | gate steps FILE")
}

// testCommand runs tests. In a step it leaves the outcomes to the last lines of all steps. A flag
// and its value are one argument: -timeout=5m. What follows -args goes to the tests.
func testCommand(ctx context.Context, args []string) error {
	r := runner{out: os.Stdout}
	var packages []string
	for i, arg := range args {
		if arg == "-args" {
			r.args = args[i:]
			break
		}
		if strings.HasPrefix(arg, "-") {
			r.flags = append(r.flags, arg)
		} else {
			packages = append(packages, arg)
		}
	}
	outcomes, err := r.run(ctx, packages)
	if err != nil {
		return err
	}
	if folder := os.Getenv(outcomesEnv); folder != "" {
		err = save(folder, outcomes)
	} else {
		printOutcomes(os.Stdout, outcomes)
		printCounts(os.Stdout, outcomes)
	}
	return errors.Join(err, judge(outcomes))
}
