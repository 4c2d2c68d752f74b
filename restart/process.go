// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

const hangUp = syscall.SIGHUP

// A Process is this process as one in a series that listens on the same sockets. Its methods may be
// called concurrently.
type Process struct {
	opts    Options
	program program
	signals chan os.Signal
	legacy  *legacy // nil in the first process of the series

	open      chan struct{} // closed when this process may accept connections
	accepting chan struct{} // closed when Accept was called on every listener

	mu        sync.Mutex
	listeners []*listener
	running   bool // set by Run; no listeners can be created after that
}

// New prepares this process for handing over, and takes the sockets of its predecessor, if there is
// one. Call it once, before the process starts other processes, because they must not inherit those
// sockets.
//
// A signal that arrives before Run is handled by Run.
func New(o *Options) (*Process, error) {
	left, err := inherit()
	if err != nil {
		return nil, err
	}
	p := &Process{
		opts: o.withDefaults(), legacy: left, signals: make(chan os.Signal, 1),
		open: make(chan struct{}), accepting: make(chan struct{}),
	}
	if p.program, err = findProgram(p.opts.Command); err != nil {
		left.close()
		return nil, err
	}
	if left == nil {
		close(p.open)
	}
	signal.Notify(p.signals, p.opts.Signal)
	return p, nil
}

// A program is the program that a successor runs.
type program struct {
	path, folder string
	argv         []string
}

// findProgram resolves no symbolic links, because a new version is often installed by changing a
// link.
func findProgram(command []string) (program, error) {
	p := program{argv: command}
	if len(command) == 0 {
		p.argv = os.Args
	}
	var err error
	if p.path, err = exec.LookPath(p.argv[0]); err != nil {
		if len(command) > 0 {
			return p, fmt.Errorf("restart: %w", err)
		}
		// The process that started this one has passed a name that does not lead to the program.
		if p.path, err = os.Executable(); err != nil {
			return p, fmt.Errorf("restart: where is the program of this process? %w", err)
		}
	}
	if p.folder, err = os.Getwd(); err != nil {
		return p, fmt.Errorf("restart: %w", err)
	}
	if !filepath.IsAbs(p.path) {
		p.path = filepath.Join(p.folder, p.path)
	}
	return p, nil
}

// Run runs the functions in serve, which serve the listeners that Transport has created. It returns
// their errors when all of them have returned. Their context ends when ctx ends, when one of them
// has returned, or when a successor has taken over. The functions then finish their running calls,
// as yodel.Server.Serve does. Run may be called once.
//
// This process is ready, and its predecessor ends, when every listener is in Accept.
func (p *Process) Run(ctx context.Context, serve ...func(context.Context) error) error {
	defer signal.Stop(p.signals)
	if err := p.begin(); err != nil {
		return err
	}
	s := p.start(ctx, serve)
	switch {
	case p.legacy == nil:
		p.notifyServing(ctx)
	case !p.takeOver(ctx, s):
		defer p.legacy.close()
		return s.end()
	}
	for {
		select {
		case <-s.ended:
			return s.err
		case <-ctx.Done():
			return s.end()
		case <-p.signals:
			if next := p.handOver(ctx, s); next != nil {
				return p.leave(s, next)
			}
		}
	}
}

// begin fixes the set of listeners.
func (p *Process) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.running:
		return errors.New("restart: Run was called before")
	case len(p.listeners) == 0:
		return errors.New("restart: there is nothing to hand over: make listeners with Transport before Run")
	}
	p.running = true
	p.legacy.closeSockets() // this process has no listeners for them
	p.askedLocked()
	return nil
}

// askedLocked checks whether Accept was called on every listener.
func (p *Process) askedLocked() {
	select {
	case <-p.accepting:
		return
	default:
	}
	if !p.running || len(p.listeners) == 0 || slices.ContainsFunc(p.listeners, func(l *listener) bool { return !l.asked }) {
		return
	}
	close(p.accepting)
}

// takeOver reports to the predecessor that this process is ready. This process accepts connections
// as soon as the predecessor agrees or is gone. takeOver returns false if the process ends earlier.
func (p *Process) takeOver(ctx context.Context, s *service) bool {
	select {
	case <-p.accepting:
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
	p.legacy.sayReady(p.took())
	agreed := make(chan struct{})
	go func() {
		defer close(agreed)
		p.legacy.awaitAgreement()
	}()
	defer func() {
		p.legacy.agreement.Close() // this ends the goroutine
		<-agreed
	}()
	select {
	case <-agreed:
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
	p.own()
	close(p.open)
	return true
}

// handOver starts a successor, and returns it when it is ready. Until then this process serves as
// before.
func (p *Process) handOver(ctx context.Context, s *service) *successor {
	log := cmp.Or(p.opts.Logger, slog.Default())
	began := time.Now()
	next, err := p.startSuccessor()
	if err != nil {
		log.ErrorContext(ctx, "yodel: no successor could be started; this process goes on", "program", p.program.path, "err", err)
		return nil
	}
	log.InfoContext(ctx, "yodel: a successor was started", "successor", next.pid())
	timer := time.NewTimer(p.opts.ReadyTimeout)
	defer timer.Stop()
	var why string
	select {
	case taken, ok := <-next.ready:
		if ok && ctx.Err() == nil {
			p.disown(taken)
			p.notifySuccessor(ctx, next.pid())
			next.agree()
			log.InfoContext(ctx, "yodel: a successor has taken over; this process finishes its calls", "successor", next.pid(), "took", time.Since(began))
			return next
		}
		why = "it ended before it was ready"
	case <-timer.C:
		why = fmt.Sprintf("it was not ready within %v", p.opts.ReadyTimeout)
	case <-ctx.Done():
	case <-s.ended:
	}
	if ctx.Err() != nil || s.hasEnded() {
		s.stop()
		log.WarnContext(ctx, "yodel: this process ends, and its successor with it, which was not ready", "successor", next.pid(), "state", next.end())
		return nil
	}
	log.ErrorContext(ctx, "yodel: a successor has not taken over; this process goes on", "successor", next.pid(), "reason", why, "state", next.end())
	return nil
}

// leave lets the service finish its calls. It passes signals that arrive meanwhile to the
// successor.
func (p *Process) leave(s *service, next *successor) error {
	defer next.forget()
	s.stop()
	died := next.ended
	for {
		select {
		case sig := <-p.signals:
			p.passOn(sig, next)
		case <-died:
			died = nil
			cmp.Or(p.opts.Logger, slog.Default()).Error("yodel: the successor has ended while this process finished its calls", "successor", next.pid(), "state", next.reap())
		case <-s.ended:
			signal.Stop(p.signals) // waits for a signal that is being delivered
			select {
			case sig := <-p.signals:
				p.passOn(sig, next)
			default:
			}
			return s.err
		}
	}
}

func (p *Process) passOn(sig os.Signal, next *successor) {
	cmp.Or(p.opts.Logger, slog.Default()).Info("yodel: the signal is passed on to the successor", "signal", sig, "successor", next.pid())
	_ = next.process.Signal(sig) // an error means that the successor has ended
}

// A service is the user's functions while they run.
type service struct {
	stop  func()
	ended chan struct{} // closed when all functions have returned; err is set then
	err   error
}

func (p *Process) start(ctx context.Context, serve []func(context.Context) error) *service {
	// The end of ctx does not stop the service directly, but Run does. Otherwise the service could
	// close the sockets for good just after this process has agreed to a successor.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := func() { cancel(ended{p}) }
	s := &service{stop: stop, ended: make(chan struct{})}
	errs := make([]error, len(serve))
	var wg sync.WaitGroup
	for i, f := range serve {
		wg.Go(func() {
			defer stop()
			errs[i] = f(ctx)
		})
	}
	go func() {
		defer close(s.ended)
		wg.Wait()
		s.err = errors.Join(errs...)
	}()
	return s
}

// end stops the service and returns its error.
func (s *service) end() error {
	s.stop()
	<-s.ended
	return s.err
}

func (s *service) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
