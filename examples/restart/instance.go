// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
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

// patience is how long anything may take that should take a moment.
const patience = 15 * time.Second

// An instance of the service is always at the same address, whatever process carries it out.
type instance struct {
	name   string
	addr   string
	books  *books
	row    *row
	stderr bytes.Buffer // of all its processes
}

// A row is processes one of which is started, and each of which hands over to the next one.
type row struct {
	first   *exec.Cmd
	stdin   io.Closer
	serving *os.Process // the last one
	news    chan news

	gone chan struct{} // closed when all have ended; what follows is set then
	err  error         // what was wrong with one of them
}

// News is that a process serves, or that it has finished.
type news struct {
	what string // up or down
	pid  int
	text string // the address, or the error
}

// start starts a row of processes, and returns when the first one listens.
func (in *instance) start() error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	r := &row{first: exec.Command(binary, "-instance", in.addr), news: make(chan news, 16), gone: make(chan struct{})} //nolint:gosec,noctx // this very program; it outlives every context
	r.first.Stderr = &in.stderr
	stdout, err := r.first.StdoutPipe()
	if err != nil {
		return err
	}
	if r.stdin, err = r.first.StdinPipe(); err != nil {
		return err
	}
	if err = r.first.Start(); err != nil {
		return err
	}
	in.row = r
	go r.follow(stdout, in.books)
	up, err := r.await("up")
	if err != nil {
		in.kill()
		<-r.gone
		return fmt.Errorf("%w\n%s", in.failed("start", err), &in.stderr)
	}
	in.addr = up.text
	return nil
}

// follow takes down what the processes say that they do, until the last of them has ended.
func (r *row) follow(stdout io.Reader, b *books) {
	running := 0
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		what, rest, _ := strings.Cut(lines.Text(), " ")
		a, rest, _ := strings.Cut(rest, " ")
		number, _ := strconv.Atoi(a)
		switch what {
		case "job":
			b.job(number)
			continue
		case "item":
			seq, _ := strconv.Atoi(rest)
			b.item(number, seq)
			continue
		case "up":
			running++
		case "down":
			running--
			if rest != "" {
				r.err = fmt.Errorf("process %d ended with %s", number, rest)
			}
		}
		select {
		case r.news <- news{what, number, rest}:
		default: // nobody asks any more
		}
	}
	err := r.first.Wait()
	switch {
	case r.err != nil:
	case err != nil:
		r.err = err
	case running != 0:
		r.err = errors.New("a process was lost without a word")
	}
	close(r.gone)
}

// await waits for news of one kind.
func (r *row) await(what string) (news, error) {
	select {
	case n := <-r.news:
		if n.what != what || what == "down" && n.text != "" {
			return n, fmt.Errorf("process %d is %s: %s", n.pid, n.what, n.text)
		}
		if what == "up" {
			var err error
			r.serving, err = os.FindProcess(n.pid)
			return n, err
		}
		return n, nil
	case <-r.gone:
		return news{}, fmt.Errorf("it has ended: %w", r.err)
	case <-time.After(patience):
		return news{}, fmt.Errorf("no process is %s after %v", what, patience)
	}
}

// handOver makes the process of the instance hand over to a successor, and returns when it has
// ended.
func (in *instance) handOver() (what string, err error) {
	r := in.row
	old := r.pid()
	if err = r.serving.Signal(syscall.SIGHUP); err != nil {
		return "", in.failed("hand over", err)
	}
	if _, err = r.await("up"); err != nil {
		return "", in.failed("hand over", err)
	}
	if _, err = r.await("down"); err != nil {
		return "", in.failed("hand over", err)
	}
	return fmt.Sprintf("handed over, process %d → %d", old, r.pid()), nil
}

// restart stops the process of the instance, and starts another one when it has ended.
func (in *instance) restart() (what string, err error) {
	old := in.row.pid()
	in.shutDown()
	if err = in.wait(); err != nil {
		return "", in.failed("end", err)
	}
	if err = in.start(); err != nil {
		return "", err
	}
	return fmt.Sprintf("stopped and started, process %d → %d", old, in.row.pid()), nil
}

// failed says which instance did not do what.
func (in *instance) failed(to string, err error) error {
	return fmt.Errorf("instance %s at %s did not %s: %w", in.name, in.addr, to, err)
}

func (r *row) pid() int { return r.serving.Pid }

// shutDown lets the process of the instance finish what it has begun.
func (in *instance) shutDown() {
	if in.row != nil && in.row.serving != nil {
		_ = in.row.serving.Signal(syscall.SIGTERM) // it may have ended
	}
}

// wait waits until all processes of the instance have ended, and helps if they do not.
func (in *instance) wait() error {
	select {
	case <-in.row.gone:
	case <-time.After(patience):
		in.kill()
		<-in.row.gone
	}
	return in.row.err
}

// kill ends the processes of the instance at once.
func (in *instance) kill() {
	r := in.row
	if r == nil {
		return
	}
	_ = r.stdin.Close() // for a successor that nobody knows yet
	_ = r.first.Process.Kill()
	if r.serving != nil {
		_ = r.serving.Kill()
	}
}
