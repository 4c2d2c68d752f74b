// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A step is one line of a file of steps: its name, its bound in seconds, and its command for sh.
type step struct {
	name    string
	bound   time.Duration
	command string

	took time.Duration
	err  error
}

// A step ends with an error after patience times its bound, and all steps together fail after half
// as much again as the sum of their bounds. In between, the table says which step was slow: a slow
// machine must not fail a run by chance.
const patience = 3

// readSteps reads a file of steps. Empty lines and lines that begin with # are comments.
func readSteps(from io.Reader) (steps []step, err error) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		bound, command, _ := strings.Cut(strings.TrimSpace(rest), " ")
		seconds, err := strconv.Atoi(bound)
		if err != nil || seconds <= 0 || command == "" {
			return nil, fmt.Errorf("the step %q is not a name, a bound in seconds and a command", line)
		}
		steps = append(steps, step{name: name, bound: time.Duration(seconds) * time.Second, command: strings.TrimSpace(command)})
	}
	return steps, lines.Err()
}

// stepsCommand runs the steps of a file, all of them even if one fails.
func stepsCommand(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	steps, err := readSteps(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "gate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	began := time.Now()
	for i := range steps {
		s := &steps[i]
		fmt.Printf("\n== %s (%v)\n%s\n", s.name, time.Since(began).Round(time.Second), s.command)
		if s.err = s.run(ctx, os.Stdout, append(os.Environ(), outcomesEnv+"="+folder)); s.err != nil {
			fmt.Printf("== %s failed: %v\n", s.name, s.err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	outcomes, err := load(folder)
	if err != nil {
		return err
	}
	return finish(os.Stdout, steps, joined(outcomes))
}

// run runs a step in a process group of its own, which ends when the step has used up its time.
func (s *step) run(ctx context.Context, out io.Writer, env []string) error {
	most := strconv.Itoa(int(patience * s.bound / time.Second))
	cmd := exec.CommandContext(ctx, "timeout", "--kill-after=30", most, "sh", "-c", s.command)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, env
	began := time.Now()
	err := cmd.Run()
	s.took = time.Since(began)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 124 {
		return fmt.Errorf("it did not end within %s seconds", most)
	}
	return err
}

// finish prints the last lines, and returns an error if anything failed.
func finish(out io.Writer, steps []step, outcomes []outcome) error {
	if len(outcomes) > 0 {
		printOutcomes(out, outcomes)
	}
	err := judge(outcomes)
	var took, bound time.Duration
	fmt.Fprintf(out, "\n%-14s %7s %7s  result\n", "step", "seconds", "bound")
	for _, s := range steps {
		took, bound = took+s.took, bound+s.bound
		result := "ok"
		if s.took > s.bound {
			result = "slow"
		}
		if s.err != nil {
			result, err = "failed: "+s.err.Error(), errReported
		}
		fmt.Fprintf(out, "%-14s %7.0f %7.0f  %s\n", s.name, s.took.Seconds(), s.bound.Seconds(), result)
	}
	result := "ok"
	if took > bound+bound/2 {
		result, err = "failed: more than half as much again as its bound", errReported
	} else if err != nil {
		result = "failed"
	}
	fmt.Fprintf(out, "%-14s %7.0f %7.0f  %s\n", "all", took.Seconds(), bound.Seconds(), result)
	if len(outcomes) > 0 {
		printCounts(out, outcomes)
	}
	return err
}
