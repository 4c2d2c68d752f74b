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

// A successor is the process that is to take over, as its predecessor sees it.
type successor struct {
	process   *os.Process
	life      *os.File      // ends with the process
	agreement *os.File      // closed when the process may accept connections
	ready     chan []string // gets which sockets it listens on, or is closed if it ends before
	ended     chan struct{} // closed when life has ended
}

// endTime is how long a successor that is not wanted any more may take to end. It has accepted
// nothing.
const endTime = time.Second

// startSuccessor starts the program of this process with its sockets.
func (p *Process) startSuccessor() (*successor, error) {
	var files, mine []*os.File // what the successor gets, and what this process keeps
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
	if err := pipe(1); err != nil { // it writes
		return fail(err)
	}
	if err := pipe(0); err != nil { // it reads
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

// sockets returns copies of the sockets of this process, with what a successor has to know of them.
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

// follow reads what the successor says until it ends, or is forgotten.
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
	_, _ = io.Copy(io.Discard, next.life) // it has nothing more to say
}

// agree lets the successor accept connections.
func (next *successor) agree() { _ = next.agreement.Close() }

// end ends a successor that has not been agreed to, and says how it ended.
func (next *successor) end() string {
	_ = next.process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-next.ended:
	case <-time.After(endTime):
	}
	state := next.reap()
	_ = next.agreement.Close() // not before: it would take that for an agreement
	next.forget()
	return state
}

// reap waits for a process that has ended or has to, and says how it did.
func (next *successor) reap() string {
	_ = next.process.Kill()
	state, err := next.process.Wait()
	if err != nil {
		return err.Error()
	}
	return state.String()
}

// forget leaves the process alone.
func (next *successor) forget() {
	_ = next.life.Close() // which ends follow
	<-next.ended
	_ = next.process.Release()
}
