// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
)

// roleEnv names the role that a process started from the test binary plays.
const roleEnv = "YODEL_ATTACKS_ROLE"

// argEnv is the argument of the role.
const argEnv = "YODEL_ATTACKS_ARG"

// PlayRole plays the role that this process was started for, and reports whether there was any:
// TestMain returns then. Roles are further roles that the tests start with StartRole.
func PlayRole(victims map[string]Victim, roles map[string]func(arg string)) bool {
	role, arg := os.Getenv(roleEnv), os.Getenv(argEnv)
	switch {
	case role == "":
		return false
	case role == victimRole:
		serveVictim(victims[arg])
	case role == neighbourRole:
		serveNeighbour()
	case roles[role] != nil:
		roles[role](arg)
	default:
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		os.Exit(1)
	}
	return true
}

// A Process is a child of the test process that plays a role.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	errors tail
	ended  chan struct{} // closed when the process has ended
	state  error         // how it ended; read it after ended is closed
}

// StartRole starts the test binary in a role. The process is killed when the test ends.
func StartRole(t testing.TB, role, arg string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: await.Command(t, self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role, argEnv+"="+arg)
	p.cmd.Stderr = &p.errors
	out, outEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = outEnd
	if p.in, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	_ = outEnd.Close() // the child has it
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	go func() {
		p.state = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		_ = out.Close()
	})
	return p
}

// Line returns the next line that the process prints.
func (p *Process) Line() (string, error) {
	line, err := await.Line(p.out, "a line of the process", p.cmd.Process)
	if err == nil {
		return line, nil
	}
	select {
	case <-p.ended:
		return "", fmt.Errorf("%w\nthe process ended: %w\n%s", err, p.state, p.errors.String())
	case <-time.After(time.Second):
		return "", err
	}
}

// ask sends a command to the process and decodes the answer, one line of JSON, into reply.
func (p *Process) ask(command string, reply any) error {
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return fmt.Errorf("the process has ended: %w\n%s", err, p.errors.String())
	}
	line, err := p.Line()
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), reply)
}

// Wait waits until the process has ended by itself and returns how, with the end of what it wrote
// to its standard error.
func (p *Process) Wait(patience time.Duration) (errors string, state error) {
	select {
	case <-p.ended:
		return p.errors.String(), p.state
	case <-time.After(patience):
		return p.errors.String(), fmt.Errorf("the process still runs after %v", patience)
	}
}

// answer reads commands from the standard input and prints what the function returns for each,
// until the input ends.
func answer(reply func(command string) any) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		line, err := json.Marshal(reply(in.Text()))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}

// A tail keeps the beginning and the end of what is written to it.
type tail struct {
	mu          sync.Mutex
	first, last []byte
}

const tailSize = 64 << 10 // holds the stacks of a process that hangs

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if free := tailSize - len(t.first); free > 0 {
		t.first = append(t.first, b[:min(free, len(b))]...)
		if len(b) <= free {
			return len(b), nil
		}
	}
	t.last = append(t.last, b...)
	if len(t.last) > 2*tailSize {
		t.last = append([]byte("\n...\n"), t.last[len(t.last)-tailSize:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(append(bytes.Clone(t.first), t.last...)))
}
