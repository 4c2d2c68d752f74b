// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A step is one line of a file of steps: its name, its bound in seconds, and its command for sh. A
// step whose name begins with + runs beside the step before it.
type step struct {
	name    string
	beside  bool
	bound   time.Duration
	command string

	took time.Duration
	err  error
}

// All steps together have patience times the sum of their bounds. A step ends with an error when
// what is left of that is needed for the bounds of the steps after it, and after 4 times its own
// bound at the latest. Before, the table says that the step was slow: a slow machine must not fail
// a run by chance, and CI's has needed 2.2 times what the same steps took elsewhere.
const patience = 2.5

// sum returns how long groups of steps may take together.
func sum(groups [][]step) (bound time.Duration) {
	for _, group := range groups {
		bound += slices.MaxFunc(group, func(a, b step) int { return cmp.Compare(a.bound, b.bound) }).bound
	}
	return bound
}

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
		s := step{bound: time.Duration(seconds) * time.Second, command: strings.TrimSpace(command)}
		s.name, s.beside = strings.CutPrefix(name, "+")
		steps = append(steps, s)
	}
	return steps, lines.Err()
}

// groups returns the steps that run beside each other.
func groups(steps []step) (all [][]step) {
	for i, s := range steps {
		if !s.beside || i == 0 {
			all = append(all, steps[i:i])
		}
		last := &all[len(all)-1]
		*last = (*last)[:len(*last)+1]
	}
	return all
}

// stepsCommand runs the steps of a file, all of them even if one fails.
func stepsCommand(ctx context.Context, name string) error {
	file, err := os.Open(name) //nolint:gosec // the Makefile names the file
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
	defer os.RemoveAll(folder) //nolint:errcheck // it is a temporary folder
	env := append(os.Environ(), outcomesEnv+"="+folder)
	began, all := time.Now(), groups(steps)
	end := began.Add(time.Duration(patience * float64(sum(all))))
	for i, group := range all {
		printf(os.Stdout, "\n== after %v\n", time.Since(began).Round(time.Second))
		runGroup(ctx, os.Stdout, env, group, end.Add(-sum(all[i+1:])))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	outcomes, err := load(folder)
	if err != nil {
		return err
	}
	return finish(os.Stdout, steps, time.Since(began), joined(outcomes))
}

// runGroup runs the steps of a group. If there are several, it prints the output of each when that
// one has ended.
func runGroup(ctx context.Context, out io.Writer, env []string, group []step, end time.Time) {
	if len(group) == 1 {
		printf(out, "== %s: %s\n", group[0].name, group[0].command)
		group[0].run(ctx, out, env, end)
		return
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range group {
		s := &group[i]
		printf(out, "== %s begins: %s\n", s.name, s.command)
		running.Go(func() {
			var said bytes.Buffer
			s.run(ctx, &said, env, end)
			mu.Lock()
			defer mu.Unlock()
			printf(out, "\n== %s\n%s", s.name, &said)
		})
	}
	running.Wait()
}

// run runs a step in a process group of its own, which ends when the step has used up its time.
func (s *step) run(ctx context.Context, out io.Writer, env []string, end time.Time) {
	most := strconv.Itoa(int(math.Ceil(max(s.bound, min(4*s.bound, time.Until(end))).Seconds())))
	cmd := exec.CommandContext(ctx, "timeout", "--kill-after=30", most, "sh", "-c", s.command)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, env
	began := time.Now()
	s.err = cmd.Run()
	s.took = time.Since(began)
	if exit, ok := errors.AsType[*exec.ExitError](s.err); ok && exit.ExitCode() == 124 {
		s.err = fmt.Errorf("it did not end within %s seconds", most)
	}
	if s.err != nil {
		printf(out, "== %s failed: %v\n", s.name, s.err)
	}
}

// finish prints the last lines, and returns an error if anything failed.
func finish(out io.Writer, steps []step, took time.Duration, outcomes []outcome) error {
	if len(outcomes) > 0 {
		printOutcomes(out, outcomes)
	}
	err := judge(outcomes)
	bound := sum(groups(steps))
	printf(out, "\n%-14s %7s %7s  result\n", "step", "seconds", "bound")
	for _, s := range steps {
		result := "ok"
		if s.took > s.bound {
			result = "slow"
		}
		if s.err != nil {
			result, err = "failed: "+s.err.Error(), errReported
		}
		if s.beside {
			result += ", beside the one above"
		}
		printf(out, "%-14s %7.0f %7.0f  %s\n", s.name, s.took.Seconds(), s.bound.Seconds(), result)
	}
	result := "ok"
	switch {
	case err != nil:
		result = "failed"
	case took > bound:
		result = "slow"
	}
	printf(out, "%-14s %7.0f %7.0f  %s\n", "all", took.Seconds(), bound.Seconds(), result)
	if len(outcomes) > 0 {
		printCounts(out, outcomes)
	}
	return err
}
