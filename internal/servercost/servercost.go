// SPDX-License-Identifier: Apache-2.0

// Package servercost measures what calls cost a server that has a process of its own. It is for
// tests that compare servers.
package servercost

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/live"
)

// A Kind serves a listener until the function that it returns is called.
type Kind func(l net.Listener) (stop func(), err error)

// kindOf is the environment variable with the kind of the server that a process is.
const kindOf = "YODEL_SERVER_COST"

// Child runs the process as a server if Start has started it, and does not return then. TestMain
// calls it first.
func Child(kinds map[string]Kind) {
	kind := os.Getenv(kindOf)
	if kind == "" {
		return
	}
	if err := serve(kinds[kind]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve prints the address of the server, and a Usage for each line that it reads.
func serve(kind Kind) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stop, err := kind(l)
	if err != nil {
		return err
	}
	defer stop()
	say(l.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		u := usage()
		say(int64(u.Processor), u.Memory, u.Goroutines)
	}
	return nil
}

// say prints a line for the test.
func say(values ...any) { _, _ = fmt.Fprintln(os.Stdout, values...) } // without it the test fails

// A Usage is what a process has used.
type Usage struct {
	Processor  time.Duration
	Memory     int64 // bytes of the heap and of stacks, after a garbage collection
	Goroutines int
}

func usage() Usage {
	u := Usage{Processor: live.ProcessorTime(), Goroutines: runtime.NumGoroutine()}
	runtime.GC() // twice, because a pool keeps what it has for one of them
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Memory = int64(m.HeapInuse + m.StackInuse) //nolint:gosec // no process has that much
	return u
}

// A Server is a process with a server.
type Server struct {
	Addr    string
	process *os.Process
	input   io.Writer
	output  *bufio.Scanner
}

// Start starts a server of a kind that Child knows. It ends with the test.
func Start(t testing.TB, kind string) *Server {
	t.Helper()
	program := await.Command(t, os.Args[0])
	program.Env = append(os.Environ(), kindOf+"="+kind)
	program.Stderr = os.Stderr
	input, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = program.Start(); err != nil {
		t.Fatal(err)
	}
	s := &Server{process: program.Process, input: input, output: bufio.NewScanner(output)}
	t.Cleanup(func() {
		_ = input.Close() // the server ends
		if err := program.Wait(); err != nil {
			t.Errorf("the server %s: %v", kind, err)
		}
	})
	s.Addr = s.line(t)
	return s
}

// line returns the next line of the server.
func (s *Server) line(t testing.TB) string {
	t.Helper()
	line, err := await.Line(s.output, "a line of the server", s.process)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// Used returns what the server has used since it started.
func (s *Server) Used(t testing.TB) (u Usage) {
	t.Helper()
	if _, err := io.WriteString(s.input, "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(s.line(t), &u.Processor, &u.Memory, &u.Goroutines); err != nil {
		t.Fatal(err)
	}
	return u
}
