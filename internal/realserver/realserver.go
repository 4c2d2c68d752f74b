// SPDX-License-Identifier: Apache-2.0

// Package realserver starts real servers for tests: registries on loopback. Each server has its
// data and its log in a temporary folder, and ends with the test.
//
//	s := realserver.Redis(t)
//	client := redis.NewClient(&redis.Options{Addr: s.Addr})
//	s.Kill()
//	s.Restart()
//
// The servers are used only if YODEL_REAL is set, as in make test-all and CI, because some of them
// take minutes to build. Otherwise their tests are skipped. Peers in other languages than Go are
// used only if YODEL_REAL is all, as in make before-end. If YODEL_REAL is set and a server is not
// installed, its tests fail, and the failure says what to install. To add a server, write a file
// like redis.go.
package realserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A Program describes how to start a server.
type Program struct {
	Name string
	// Install says what to do when Find fails.
	Install string
	// Find returns the path of the program, or of another file that Command needs. It may build the
	// program: see Built.
	Find func() (string, error)
	// Command returns the command that runs the program in the foreground. The program serves
	// clients at addr and keeps its data in folder. Command may write files into folder.
	Command func(found, addr, folder string) (*exec.Cmd, error)
	// Probe succeeds when the server at addr answers its clients.
	Probe func(ctx context.Context, addr string) error
	// Within is how long the server may take until Probe succeeds. Default 30 s.
	Within time.Duration
}

// A Server is a running program. If one of its methods does not succeed, it fails the test.
type Server struct {
	// Addr is the address to which clients connect. It remains the same when the server is
	// restarted.
	Addr string
	// Folder is the folder with the data of the server.
	Folder string

	t       testing.TB
	program Program
	found   string
	log     string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// Start starts a server and returns when it answers. The server ends with the test, or when Kill is
// called.
func Start(t testing.TB, p Program) *Server {
	wanted(t, p.Name)
	found, err := p.Find()
	if err != nil {
		missing(t, p.Name, p.Install, err)
	}
	if p.Within == 0 {
		p.Within = 30 * time.Second
	}
	folder := t.TempDir()
	s := &Server{t: t, program: p, found: found, Folder: filepath.Join(folder, "data"), log: filepath.Join(folder, "log")}
	t.Cleanup(s.end)
	for try := 1; ; try++ {
		s.Addr = FreeAddr(t)
		if err = s.start(); err == nil {
			return s
		}
		if try == 3 { // another process may take the port meanwhile, but not three times
			t.Fatalf("%s does not start: %v\n%s", p.Name, err, s.logged())
		}
		s.stopProcess()
		if err = os.RemoveAll(s.Folder); err != nil { // incomplete data could make the next try fail
			t.Fatal(err)
		}
	}
}

// wanted skips a test that needs a real server, unless YODEL_REAL is set.
func wanted(t testing.TB, name string) {
	t.Helper()
	if os.Getenv("YODEL_REAL") == "" {
		t.Skipf("%s is needed: set YODEL_REAL=1, or run make test-all", name)
	}
}

// wantedLarge skips a test that needs a server which Go compiles for many minutes, unless
// YODEL_REAL is all, or it is set and the server has been built before.
func wantedLarge(t testing.TB, name string) {
	t.Helper()
	wanted(t, name)
	if os.Getenv("YODEL_REAL") != "all" && !isBuilt(name) {
		t.Skipf("%s is needed, which compiles for many minutes: run YODEL_REAL=all make servers once", name)
	}
}

// wantedForeign skips a test that needs a peer in another language than Go, unless YODEL_REAL is
// all: the peers take minutes to download, compile and run.
func wantedForeign(t testing.TB, name string) {
	t.Helper()
	if os.Getenv("YODEL_REAL") != "all" {
		t.Skipf("%s is needed: set YODEL_REAL=all, or run make before-end", name)
	}
}

// missing fails a test that needs a program that is not installed.
func missing(t testing.TB, name, install string, err error) {
	t.Helper()
	t.Fatalf("%s is needed: %v\nTo install it: %s", name, err, install)
}

// FreeAddr returns an address on loopback at which no process listens.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Kill ends the process like kill -9.
func (s *Server) Kill() {
	s.t.Helper()
	if s.cmd == nil {
		s.t.Fatalf("%s does not run", s.program.Name)
	}
	s.stopProcess()
}

// Restart starts the server again at the same address with its data. It returns when the server
// answers.
func (s *Server) Restart() {
	s.t.Helper()
	if s.cmd != nil {
		s.stopProcess()
	}
	deadline := time.Now().Add(s.program.Within)
	for {
		err := s.start()
		if err == nil {
			return
		}
		s.stopProcess()
		if !time.Now().Before(deadline) {
			s.t.Fatalf("%s does not start again: %v\n%s", s.program.Name, err, s.logged())
		}
		<-time.After(50 * time.Millisecond) // a client may be using the port as its own for a moment
	}
}

// RestartEmpty is Restart without the data.
func (s *Server) RestartEmpty() {
	s.t.Helper()
	if s.cmd != nil {
		s.stopProcess()
	}
	if err := os.RemoveAll(s.Folder); err != nil {
		s.t.Fatal(err)
	}
	s.Restart()
}

// Stop makes the process hang, with its connections open, until Continue is called.
func (s *Server) Stop() {
	s.t.Helper()
	if err := suspend(s.cmd.Process); err != nil {
		s.t.Fatalf("stop %s: %v", s.program.Name, err)
	}
}

// Continue undoes Stop.
func (s *Server) Continue() {
	s.t.Helper()
	if err := resume(s.cmd.Process); err != nil {
		s.t.Fatalf("continue %s: %v", s.program.Name, err)
	}
}

// Pid returns the id of the process, for tests that measure the process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// start starts the process and waits until it answers. Even if start returns an error, the process
// may be running afterwards.
func (s *Server) start() error {
	if err := os.MkdirAll(s.Folder, 0o700); err != nil {
		return err
	}
	cmd, err := s.program.Command(s.found, s.Addr, s.Folder)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Folder, log, log
	EndWithParent(cmd)
	if err = cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.cmd, s.ended = cmd, ended
	go func() {
		_ = cmd.Wait() // the log says how the process ended
		close(ended)
	}()
	return s.ready()
}

// ready waits until the server answers.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.program.Within)
	defer cancel()
	for {
		one, done := context.WithTimeout(ctx, 2*time.Second)
		err := s.program.Probe(one, s.Addr)
		done()
		select {
		case <-s.ended: // if a server has answered, it was another process
			return fmt.Errorf("the process ended: %v", s.cmd.ProcessState)
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("it does not answer within %v: %w", s.program.Within, err)
		}
	}
}

// stopProcess kills the process, if there is one, and waits for it.
func (s *Server) stopProcess() {
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("kill %s: %v", s.program.Name, err)
	}
	<-s.ended
	s.cmd = nil
}

func (s *Server) end() {
	s.stopProcess()
	if s.t.Failed() {
		s.t.Logf("%s said at last:\n%s", s.program.Name, s.logged())
	}
}

// logged returns the last lines of the server's log.
func (s *Server) logged() []byte {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-30):], nil)
}

// listens is a probe for servers that have no simple question. Until the server listens, the system
// may give a connection to addr the same port at this end, and then connects it to itself.
func listens(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	if conn.LocalAddr().String() == addr {
		err = errors.New("nobody listens")
	}
	return errors.Join(err, conn.Close())
}

// Ask is a probe for servers with a line-based protocol. It connects to addr, sends question, and
// returns an error unless the answer begins with want.
func Ask(ctx context.Context, addr, question, want string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err = conn.Write([]byte(question)); err != nil {
		return err
	}
	answer := make([]byte, len(want))
	n := 0
	for n < len(answer) && err == nil {
		var more int
		more, err = conn.Read(answer[n:])
		n += more
	}
	if got := string(answer[:n]); got != want {
		return errors.Join(fmt.Errorf("the answer begins with %q", got), err)
	}
	return nil
}
