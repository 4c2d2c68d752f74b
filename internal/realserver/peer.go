// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Peer is a program that prints what happens, for tests of protocols with the libraries of
// others. A server prints "ready" when it serves. A client prints a line "> call: outcome" for each
// call, and "done" at the end.
type Peer struct {
	t     testing.TB
	name  string
	lines chan string // of its standard output; closed at its end
}

// StartPeer starts a program. It ends with the test, which then logs what the program has written
// to standard error if the test has failed.
func StartPeer(t testing.TB, cmd *exec.Cmd) *Peer {
	t.Helper()
	p := &Peer{t: t, name: filepath.Base(cmd.Path), lines: make(chan string, 1000)}
	file := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = cmd.StdinPipe(); err != nil { // a server runs up to its end
		t.Fatal(err)
	}
	EndWithParent(cmd)
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.read(out)
		_ = cmd.Wait() // the log says how it ended
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			text, _ := os.ReadFile(file)
			t.Logf("%s said:\n%s", p.name, text)
		}
	})
	return p
}

// read passes the lines of the program on.
func (p *Peer) read(out io.Reader) {
	defer close(p.lines)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		select {
		case p.lines <- lines.Text():
		default: // nothing waits for the lines of a server that is ready
		}
	}
}

// Ready waits until the program has printed "ready".
func (p *Peer) Ready() {
	p.t.Helper()
	p.until("ready")
}

// Outcomes returns the outcomes of calls that a consumer has printed.
func (p *Peer) Outcomes() map[string]string {
	p.t.Helper()
	outcomes := make(map[string]string)
	for _, line := range p.until("done") {
		if name, outcome, ok := strings.Cut(strings.TrimPrefix(line, "> "), ": "); ok {
			outcomes[name] = outcome
		}
	}
	return outcomes
}

// until returns the lines before a line.
func (p *Peer) until(last string) (lines []string) {
	p.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s ended before it said %q, after %q", p.name, last, lines)
			}
			if line == last {
				return lines
			}
			lines = append(lines, line)
		case <-deadline:
			p.t.Fatalf("%s did not say %q, but %q", p.name, last, lines)
		}
	}
}
