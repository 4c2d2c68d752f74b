// SPDX-License-Identifier: Apache-2.0

// Command outcomes joins the event files of several test runs into one stream of go test -json
// events. It leaves out the skips of tests that another run has executed, for example those that
// are skipped only under the race detector. What remains as skipped was executed in no run.
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
	executed := make(map[string]bool)
	err := read(files, func(_ []byte, e event) {
		if e.Action == "pass" || e.Action == "fail" {
			executed[e.Package+" "+e.Test] = true
		}
	})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	err = read(files, func(line []byte, e event) {
		if e.Action != "skip" || e.Test == "" || !executed[e.Package+" "+e.Test] {
			_, _ = out.Write(append(line, '\n')) // Flush returns the error
		}
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// read passes every event of the files to f, with the line it stands in.
func read(files []string, f func(line []byte, e event)) error {
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
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
		_ = file.Close() // it was only read
	}
	return nil
}
