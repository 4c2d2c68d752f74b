// SPDX-License-Identifier: Apache-2.0

// Package await bounds the waits of tests for other processes. When a wait takes too long, the test
// fails with what it awaited and the stacks of both sides.
package await

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

const (
	// Patience is a bound for waits that take seconds on a busy machine.
	Patience = time.Minute
	// early is how long before the time-out of its package a test still has when its processes
	// print their stacks.
	early = 15 * time.Second
	// never is the time-out of a package without one.
	never = 24 * time.Hour
	// printing is how long a process may take to print its stacks.
	printing = 5 * time.Second
)

// Command returns a command for a process that helps a test. The process is killed when the test
// and its cleanups have ended. If the test still runs shortly before the time-out of its package,
// the process gets SIGQUIT, with which a Go program prints its stacks and ends. Package testing
// prints the stacks of the test at the time-out, so a test that hangs shows both sides.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	end := time.Now().Add(never)
	if timed, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if timeout, ok := timed.Deadline(); ok {
			end = timeout.Add(-early)
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the test names the program
	cmd.WaitDelay = printing
	cmd.Cancel = func() error {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return cmd.Process.Kill()
		}
		return cmd.Process.Signal(syscall.SIGQUIT)
	}
	return cmd
}

// Line returns the next line that a process prints. Lines reads its output, and what names the line
// in the error. Line waits for at most Patience.
func Line(lines *bufio.Scanner, what string, processes ...*os.Process) (string, error) {
	ended := false
	if err := Within(Patience, what, func() { ended = !lines.Scan() }, processes...); err != nil {
		return "", err
	}
	if ended {
		return "", fmt.Errorf("the process ended before %s: %w", what, errors.Join(errors.New("its output ends"), lines.Err()))
	}
	return lines.Text(), nil
}

// Value returns the next value of ch, or ends the test after Patience. What describes the value in
// the error.
func Value[T any](t testing.TB, ch <-chan T, what string) (value T) {
	t.Helper()
	if err := Within(Patience, what, func() { value = <-ch }); err != nil {
		t.Fatal(err)
	}
	return value
}

// Within calls f and returns nil when f returns. If f takes longer than d, Within sends SIGQUIT to
// the processes, with which a Go program prints its stacks to its standard error and ends. It then
// returns an error with what was awaited, and the stacks of this process from before that.
func Within(d time.Duration, what string, f func(), processes ...*os.Process) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(d):
	}
	err := fmt.Errorf("after %v the test still waits for %s; its stacks:\n%s", d, what, stacks())
	for _, p := range processes {
		if quit := p.Signal(syscall.SIGQUIT); quit != nil && !errors.Is(quit, os.ErrProcessDone) {
			err = errors.Join(err, fmt.Errorf("the stacks of process %d: %w", p.Pid, quit))
		}
	}
	if len(processes) > 0 {
		select {
		case <-done: // f has read the end of the output of the processes
		case <-time.After(printing):
		}
	}
	return err
}

// stacks returns the stacks of all goroutines of this process.
func stacks() []byte {
	for b := make([]byte, 1<<20); ; b = make([]byte, 2*len(b)) {
		if n := runtime.Stack(b, true); n < len(b) || len(b) >= 64<<20 {
			return b[:n]
		}
	}
}
