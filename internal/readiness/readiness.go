// SPDX-License-Identifier: Apache-2.0

// Package readiness asks a program at intervals whether it is ready, and keeps the answer for all
// who need it.
package readiness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// Every is the interval between two questions.
	Every = 2 * time.Second
	// limit is how long an answer may take.
	limit = 2 * time.Second
	// failures is how many failures in a row make a ready program not ready.
	failures = 2
)

var (
	errUnknown = errors.New("the program has not said yet that it is ready")
	errSlow    = fmt.Errorf("no answer within %v", limit)
)

// A Probe asks one program. Its methods may be called concurrently. Those of a nil *Probe say that
// the program is ready.
type Probe struct {
	ask     func(context.Context) error
	log     *slog.Logger
	changed func()
	ended   <-chan struct{}

	mu       sync.Mutex
	busy     bool          // ask is running
	answered chan struct{} // closed when its answer is known
	at       time.Time     // of the last answer; zero before the first
	err      error
	failed   int // failures in a row
}

// New returns a Probe that asks until ended is closed. Ask returns nil if the program is ready, and
// must not panic or end its goroutine. The first answer and each change is logged, and then changed
// is called.
func New(ask func(context.Context) error, log *slog.Logger, changed func(), ended <-chan struct{}) *Probe {
	return &Probe{ask: ask, log: log, changed: changed, ended: ended, err: errUnknown}
}

// Err returns the last answer without asking.
func (p *Probe) Err() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Ready returns nil if the program is ready. It asks if the last answer is older than Every, and
// waits for the answer if the last one is older than twice Every.
func (p *Probe) Ready() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	age := time.Since(p.at)
	if age >= Every && !p.busy {
		p.busy, p.answered = true, make(chan struct{})
		go p.question(p.answered)
	}
	answered := p.answered
	p.mu.Unlock()
	if age >= 2*Every {
		<-answered // it is closed within limit
	}
	return p.Err()
}

// Follow asks at intervals until the caller calls stop.
func (p *Probe) Follow() (stop func()) {
	if p == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_ = p.Ready() // the log gets the answer
			select {
			case <-time.After(Every):
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// question asks once. The question belongs to no caller. It does not return before ask has, so that
// the program is not asked twice at the same time.
//
//nolint:contextcheck,nolintlint // contextcheck would follow it into every caller of Ready
func (p *Probe) question(answered chan<- struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	answer := make(chan error, 1)
	go func() { answer <- p.ask(ctx) }()
	select {
	case err := <-answer:
		answer <- nil
		if ctx.Err() != nil {
			err = errSlow
		}
		p.learn(err)
	case <-ctx.Done():
		p.learn(errSlow)
	case <-p.ended:
	}
	cancel()
	close(answered)
	<-answer //nolint:errcheck // it came too late, or was learned
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
}

// learn keeps an answer.
func (p *Probe) learn(err error) {
	p.mu.Lock()
	first := p.at.IsZero()
	p.at = time.Now()
	p.failed++
	if err == nil {
		p.failed = 0
	}
	change := first || (err == nil) != (p.err == nil) && (err == nil || p.failed >= failures)
	if change {
		p.err = err
	}
	p.mu.Unlock()
	if !change {
		return
	}
	if err != nil {
		p.log.Warn("yodel: not ready", "err", err)
	} else {
		p.log.Info("yodel: ready")
	}
	p.changed()
}
