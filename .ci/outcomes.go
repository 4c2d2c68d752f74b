// SPDX-License-Identifier: Apache-2.0

// Command outcomes joins the event files of several test runs into one stream of go test -json
// events. It leaves out all events of a test from a run that has skipped it if another run has
// executed it, for example a test that is skipped only under the race detector. What remains as
// skipped was executed in no run.
//
//	go run .ci/outcomes.go race.json norace.json
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// An event is the part of an event of go test -json that identifies a test and its outcome.
type event struct{ Action, Package, Test string }

func main() {
	if err := join(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func join(files []string) error {
	executed := make(map[event]bool)              // without an action
	skipped := make([]map[event]bool, len(files)) // by each run
	for i, name := range files {
		skipped[i] = make(map[event]bool)
		err := read(name, func(_ []byte, e event) {
			switch test := (event{Package: e.Package, Test: e.Test}); e.Action {
			case "pass", "fail":
				executed[test] = true
			case "skip":
				skipped[i][test] = e.Test != ""
			}
		})
		if err != nil {
			return err
		}
	}
	out := bufio.NewWriter(os.Stdout)
	for i, name := range files {
		err := read(name, func(line []byte, e event) {
			if test := (event{Package: e.Package, Test: e.Test}); !skipped[i][test] || !executed[test] {
				_, _ = out.Write(append(line, '\n')) // Flush returns the error
			}
		})
		if err != nil {
			return err
		}
	}
	return out.Flush()
}

// read passes every event of a file to f, with the line it stands in.
func read(name string, f func(line []byte, e event)) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close() // it is only read
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f(lines.Bytes(), e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
