// SPDX-License-Identifier: Apache-2.0

// Package process lets a program run copies of itself as processes: the servers of an example are
// real ones, which can be killed, with nothing to build or to start but the example.
package process

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

// A Process is a copy of this program, as its parent sees it. Its methods are for one goroutine at
// a time.
type Process struct {
	// First is the first line that it wrote.
	First string
	// PID is its number.
	PID int
	// Orders goes to its standard input. Closing it has it end: see UntilToldToEnd.
	Orders io.WriteCloser
	// Killed says that Kill ended it; Told is when it was first told to end.
	Killed bool
	Told   time.Time

	// What follows is set when Gone is closed.

	// Err is how it ended, Ended when, and Stderr what it wrote to its standard error.
	Err    error
	Ended  time.Time
	Stderr bytes.Buffer

	cmd  *exec.Cmd
	gone chan struct{}
}

// Start starts a copy of this program with other arguments, and returns when it has written a line.
// Each further line goes to line, on a goroutine of the process's, until it has ended. The process
// outlives ctx: Kill or ShutDown ends it, or the end of this program.
func Start(ctx context.Context, line func(string), args ...string) (*Process, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{gone: make(chan struct{}), cmd: exec.CommandContext(context.WithoutCancel(ctx), binary, args...)} //nolint:gosec // this very program
	p.cmd.Stderr = &p.Stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.Orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = p.cmd.Start(); err != nil {
		return nil, err
	}
	p.PID = p.cmd.Process.Pid
	lines := bufio.NewScanner(stdout)
	if lines.Scan() {
		p.First = lines.Text()
	}
	go p.follow(lines, line)
	if p.First == "" {
		p.Kill()
		p.Wait()
		return nil, fmt.Errorf("the process did not start: %w\n%s", p.Err, &p.Stderr)
	}
	return p, nil
}

// follow reads what the process says until it has ended.
func (p *Process) follow(lines *bufio.Scanner, line func(string)) {
	for lines.Scan() {
		line(lines.Text())
	}
	p.Err = p.cmd.Wait()
	p.Ended = time.Now()
	close(p.gone)
}

// Gone is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process at once, as a crash would.
func (p *Process) Kill() {
	if p.Told.IsZero() {
		p.Killed, p.Told = true, time.Now()
	}
	_ = p.cmd.Process.Kill() // it may have ended already
}

// ShutDown lets the process finish what it has begun.
func (p *Process) ShutDown() {
	if p.Told.IsZero() {
		p.Told = time.Now()
	}
	_ = p.Orders.Close() // it may have ended already
}

// Wait waits until the process has ended, and helps if it does not within 15 s.
func (p *Process) Wait() {
	select {
	case <-p.gone:
	case <-time.After(15 * time.Second):
		p.Kill()
		<-p.gone
	}
}

// UntilToldToEnd is for the copy: it returns a context that ends when its parent has closed its
// standard input, or has died, whatever it was. Each line that comes before goes to order; an error
// of that ends the context as well, and is its cause. Control-C, which reaches parent and children
// alike, is left to the parent.
func UntilToldToEnd(order func(line string) error) context.Context {
	signal.Ignore(os.Interrupt)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			if err := order(lines.Text()); err != nil {
				cancel(err)
				return
			}
		}
		cancel(nil)
	}()
	return ctx
}
