// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/restart"
)

// The environment of a server.
const (
	kindOf    = "YODEL_ROLLING_KIND"
	addrOf    = "YODEL_ROLLING_ADDR"
	journalOf = "YODEL_ROLLING_JOURNAL"
	endingOf  = "YODEL_ROLLING_ENDING" // "handover", "cut", or "" for a drain
)

// recordSize is the number of bytes that a journal has for an execution.
const recordSize = 8

// An Execute executes the call with an ID, and returns its answer.
type Execute func(id int64) string

// A Serve returns a server whose methods call execute.
type Serve func(o *yodel.ServerOptions, execute Execute) (*yodel.Server, error)

// Child runs the process as a server if its environment says so, and does not return then. TestMain
// calls it first.
func Child(kinds map[string]Serve) {
	kind := os.Getenv(kindOf)
	if kind == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
		stop()
	}()
	err := serve(ctx, kinds[kind])
	say("down", err)
	os.Exit(0)
}

// say prints a line for the test, in one piece.
func say(what string, rest any) {
	_, _ = fmt.Fprintf(os.Stdout, "%d %s %v\n", os.Getpid(), what, rest) // without its line the test fails
}

// serve serves until ctx ends or a successor has taken over.
func serve(ctx context.Context, kind Serve) error {
	if kind == nil {
		return errors.New("TestMain does not know the kind of the server")
	}
	journal, err := os.OpenFile(os.Getenv(journalOf), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) //nolint:gosec // the test names the file
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	o := &yodel.ServerOptions{Logger: quiet}
	if os.Getenv(endingOf) == "cut" {
		o.DrainTimeout = time.Nanosecond
	}
	s, err := kind(o, func(id int64) string {
		if _, err := journal.Write(binary.LittleEndian.AppendUint64(nil, uint64(id))); err != nil { //nolint:gosec // it is not negative
			panic(err) // the call fails, and the test with it
		}
		<-time.After(takes(id))
		return Answer(id)
	})
	if err != nil {
		return err
	}
	transport, run := yodel.TCP, func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
	if os.Getenv(endingOf) == "handover" {
		process, err := restart.New(&restart.Options{Logger: quiet})
		if err != nil {
			return err
		}
		transport = process.Transport(yodel.TCP)
		run = func(ctx context.Context, f func(context.Context) error) error { return process.Run(ctx, f) }
	}
	l, err := transport.Listen(os.Getenv(addrOf))
	if err != nil {
		return err
	}
	say("up", l.Addr())
	return run(ctx, func(ctx context.Context) error { return s.Serve(ctx, l) })
}

// A member is the server at one address: a process, and later the one that replaces it.
type member struct {
	t             *testing.T
	plan          Plan
	addr, journal string
	pid           int            // of the process that listens
	cmd           *exec.Cmd      // the first process of a series that pass their socket on
	in, out       *os.File       // of the series, which ends when in is closed
	lines         *bufio.Scanner // of out
	drained       time.Duration  // the longest shutdown
	before        int64          // the size of the journal when the process began to listen
}

// newMember starts the server at an address that is not among others.
func newMember(t *testing.T, p Plan, journal string, others []string) *member {
	t.Helper()
	m := &member{t: t, plan: p, addr: freeAddr(t, others), journal: journal}
	t.Cleanup(m.stop)
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	return m
}

// freeAddr returns an address whose port remains free while no server listens there. The system
// chooses ports for outgoing connections, and for listeners at port 0, among those from 32768 on.
func freeAddr(t *testing.T, others []string) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if _ = l.Close(); !slices.Contains(others, addr) { // nothing has connected
			return addr
		}
	}
	t.Fatal("none of 100 ports is free")
	return ""
}

// start starts a process, and waits until it listens.
func (m *member) start() error {
	cmd := await.Command(m.t, os.Args[0])
	ending := ""
	switch {
	case m.plan.cut:
		ending = "cut"
	case m.plan.Handover:
		ending = "handover"
	}
	cmd.Env = append(os.Environ(), kindOf+"="+m.plan.Kind, addrOf+"="+m.addr, journalOf+"="+m.journal, endingOf+"="+ending,
		"GORACE=atexit_sleep_ms=0") // otherwise a process with the race detector ends a second later
	cmd.Stderr = os.Stderr
	theirIn, in, err := os.Pipe() // files, which successors have too, and for which Wait does not wait
	if err != nil {
		return err
	}
	defer theirIn.Close()
	out, theirOut, err := os.Pipe()
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer theirOut.Close()
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	if err := cmd.Start(); err != nil {
		return errors.Join(err, in.Close(), out.Close())
	}
	m.cmd, m.in, m.out, m.lines = cmd, in, out, bufio.NewScanner(out)
	m.pid, err = m.says("up")
	return err
}

// says reads the next line of the processes, and returns the ID of the one that says what.
func (m *member) says(what string) (pid int, err error) {
	line, err := await.Line(m.lines, fmt.Sprintf("the line %q of a server", what), m.cmd.Process)
	if err != nil {
		return 0, err
	}
	var said, rest string
	if _, err := fmt.Sscan(line, &pid, &said, &rest); err != nil || said != what || what == "down" && rest != "<nil>" && !m.plan.cut {
		return 0, fmt.Errorf("a server says %q, want %q", line, what)
	}
	return pid, nil
}

// replace ends the process that listens, and starts another one, or has it pass its socket on to
// another one.
func (m *member) replace() error {
	listening, err := os.FindProcess(m.pid)
	if err != nil {
		return err
	}
	if m.plan.Handover && !m.plan.cut {
		if err := listening.Signal(syscall.SIGHUP); err != nil {
			return err
		}
		if m.pid, err = m.says("up"); err != nil {
			return err
		}
	} else if err := listening.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	began := time.Now()
	if _, err := m.says("down"); err != nil {
		return err
	}
	m.drained = max(m.drained, time.Since(began))
	if !m.plan.Handover || m.plan.cut {
		m.stop()
		err = m.start()
	}
	m.before = m.size()
	return err
}

// size returns the size of the journal, which is zero before the first call.
func (m *member) size() int64 {
	info, err := os.Stat(m.journal)
	if err != nil {
		return 0
	}
	return info.Size()
}

// used waits until the new process has executed some calls, but not long.
func (m *member) used(atMost time.Duration) {
	const some = 20 * recordSize
	for end := time.Now().Add(atMost); m.size() < m.before+some && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
	}
}

// stop ends the processes.
func (m *member) stop() {
	if m.cmd == nil {
		return
	}
	_ = m.in.Close() // nothing was written
	var failed error
	err := await.Within(await.Patience, "the end of a server", func() {
		for m.lines.Scan() {
		}
		failed = m.cmd.Wait() // also with the race detector
	}, m.cmd.Process)
	if err = errors.Join(err, failed); err != nil {
		m.t.Errorf("a server: %v", err)
	}
	_ = m.out.Close() // it was only read
	m.cmd = nil
}
