// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A successor is the process that will take over, as seen by its predecessor.
type successor struct {
	process   *os.Process
	life      *os.File      // read end; reading ends when the process ends
	agreement *os.File      // closed when the process may accept connections
	ready     chan []string // receives the sockets that the process has taken; closed if the process ends before
	ended     chan struct{} // closed when life has ended
}

// endTime is how long a failed successor may take to end. It has not accepted any connection.
const endTime = time.Second

// startSuccessor starts the program of this process with its sockets.
func (p *Process) startSuccessor() (*successor, error) {
	var files, mine []*os.File // the files for the successor, and those for this process
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	pipe := func(forSuccessor int) error {
		r, w, err := os.Pipe()
		if err == nil {
			ends := [2]*os.File{r, w}
			files, mine = append(files, ends[forSuccessor]), append(mine, ends[1-forSuccessor])
		}
		return err
	}
	fail := func(err error) (*successor, error) {
		for _, f := range mine {
			_ = f.Close()
		}
		return nil, err
	}
	if err := pipe(1); err != nil { // the successor writes
		return fail(err)
	}
	if err := pipe(0); err != nil { // the successor reads
		return fail(err)
	}
	bequests, sockets, err := p.sockets()
	files = append(files, sockets...)
	if err != nil {
		return fail(err)
	}
	env, err := environment(bequests)
	if err != nil {
		return fail(err)
	}
	process, err := os.StartProcess(p.program.path, p.program.argv, &os.ProcAttr{
		Dir: p.program.folder, Env: env, Files: append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, files...),
	})
	if err != nil {
		return fail(err)
	}
	next := &successor{process: process, life: mine[0], agreement: mine[1], ready: make(chan []string, 1), ended: make(chan struct{})}
	go next.follow()
	return next, nil
}

// sockets returns copies of the sockets of this process, and their descriptions for the successor.
func (p *Process) sockets() (bequests []bequest, files []*os.File, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		f, err := l.file()
		if err != nil {
			return nil, files, err
		}
		files = append(files, f)
		bequests = append(bequests, bequest{Wanted: l.wanted, Addr: l.Addr().String()})
	}
	return bequests, files, nil
}

func environment(bequests []bequest) ([]string, error) {
	text, err := json.Marshal(testament{bequests})
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, variable+"=") })
	return append(env, variable+"="+string(text)), err
}

func (next *successor) pid() int { return next.process.Pid }

// follow reads the report of the successor. It returns when the successor has ended, or after
// forget.
func (next *successor) follow() {
	defer close(next.ended)
	r := bufio.NewReader(io.LimitReader(next.life, 1<<20))
	line, err := r.ReadBytes('\n')
	var taken []string
	if err == nil {
		err = json.Unmarshal(line, &taken)
	}
	if err != nil {
		close(next.ready)
		return
	}
	next.ready <- taken
	_, _ = io.Copy(io.Discard, next.life) // no more data is expected
}

// agree lets the successor accept connections.
func (next *successor) agree() { _ = next.agreement.Close() }

// end ends a successor to which this process has not agreed, and returns its final state.
func (next *successor) end() string {
	_ = next.process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-next.ended:
	case <-time.After(endTime):
	}
	state := next.reap()
	_ = next.agreement.Close() // not earlier: the successor would regard it as the agreement
	next.forget()
	return state
}

// reap kills the process if it still runs, waits for it, and returns its final state.
func (next *successor) reap() string {
	_ = next.process.Kill()
	state, err := next.process.Wait()
	if err != nil {
		return err.Error()
	}
	return state.String()
}

// forget stops following the process.
func (next *successor) forget() {
	_ = next.life.Close() // this ends follow
	<-next.ended
	_ = next.process.Release()
}
