// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killGrace is how long a process may take to die once it is killed. The kernel has thousands of
// connections to close.
const killGrace = 30 * time.Second

// A process is a peer's program that runs: it reads lines of JSON and answers with lines of JSON.
type process struct {
	name   string        // in errors: "kitex serve"
	grace  time.Duration // how long it may take to end after its input has
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan []byte   // its standard output; closed at the end of it
	ended  chan struct{} // closed when it has ended
	err    error         // of Wait; read after ended
	broken error         // why lines was closed before the end of the output; read after that
	quit   chan struct{} // closed when nobody reads lines any more
	ending error         // what stop returned
	stderr lastText
}

// startProcess starts a program in a process group of its own, so that an interrupt at the terminal
// reaches only us, and we end it in our own way.
func startProcess(name, dir string, grace time.Duration, argv ...string) (*process, error) {
	p := &process{
		name: name, grace: grace,
		lines: make(chan []byte), ended: make(chan struct{}), quit: make(chan struct{}),
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go p.read(stdout)
	return p, nil
}

// read hands out the lines of the standard output, and waits for the end of the process.
func (p *process) read(stdout io.Reader) {
	scanner := bufio.NewScanner(stdout)
	scanner.Buffer(nil, 1<<20)
	for open := true; open && scanner.Scan(); {
		select {
		case p.lines <- bytes.Clone(scanner.Bytes()):
		case <-p.quit:
			open = false
		}
	}
	p.broken = scanner.Err()
	close(p.lines)
	// What it says after that is nobody's business, but it must not block on a full pipe. Wait
	// closes the pipe.
	io.Copy(io.Discard, stdout) //nolint:errcheck // the end is all we wait for
	p.err = p.cmd.Wait()
	close(p.ended)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// tell writes one line.
func (p *process) tell(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%s does not listen: %w%s", p.name, err, p.stderr.quoted())
	}
	return nil
}

// hear reads one line into answer. It waits no longer than timeout for it; what it waited for is
// said in the error.
func (p *process) hear(ctx context.Context, timeout time.Duration, what string, answer any) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			return p.gone(what)
		}
		if err := json.Unmarshal(line, answer); err != nil {
			return fmt.Errorf("%s printed %.80q instead of %s%s", p.name, line, what, p.stderr.quoted())
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s hangs: it has not said %s within %s%s", p.name, what, timeout, p.stderr.quoted())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gone says how a process ended that should have said something.
func (p *process) gone(what string) error {
	if p.broken != nil {
		return fmt.Errorf("%s instead of %s: %w%s", p.name, what, p.broken, p.stderr.quoted())
	}
	select {
	case <-p.ended:
	case <-time.After(p.grace): // it closed its output, and lives
		return fmt.Errorf("%s closed its output instead of saying %s%s", p.name, what, p.stderr.quoted())
	}
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended (%s) instead of saying %s%s", p.name, how, what, p.stderr.quoted())
}

// fate is why the process cannot be looked at: how it has ended, or err when it has not.
func (p *process) fate(err error) error {
	if gone := syscall.Kill(p.pid(), 0); !errors.Is(gone, syscall.ESRCH) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	<-p.ended // what is gone was waited for
	return p.gone("its figures")
}

// stop ends the process: by the end of its input, and when that does not help, by force. The error
// says that it had to be forced, or how it failed.
func (p *process) stop() error {
	select {
	case <-p.quit: // stopped before
	default:
		close(p.quit)
	}
	p.stdin.Close() //nolint:errcheck // it is closed already when the process has ended
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w%s", p.name, p.err, p.stderr.quoted())
		}
		return nil
	case <-time.After(p.grace):
	}
	// The group is ours alone: the process and what it has started.
	killed := syscall.Kill(-p.pid(), syscall.SIGKILL)
	select {
	case <-p.ended:
		return fmt.Errorf("%s was killed: it went on %s after the end of its input", p.name, p.grace)
	case <-time.After(killGrace):
		return errors.Join(fmt.Errorf("%s (process %d) cannot be killed", p.name, p.pid()), killed)
	}
}

// lastText keeps the last 16 KiB that were written to it, for an error's text.
type lastText struct {
	mu   sync.Mutex
	text []byte
}

func (t *lastText) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - 16<<10; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// quoted is what a reader wants to see of it: a panic from its first line on, otherwise the last
// lines.
func (t *lastText) quoted() string {
	t.mu.Lock()
	text := strings.TrimSpace(string(t.text))
	t.mu.Unlock()
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	first := max(0, len(lines)-4)
	for i, line := range lines {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.HasPrefix(line, "Exception in") {
			first = i
			break
		}
	}
	return ": " + strings.Join(lines[first:min(first+4, len(lines))], "; ")
}
