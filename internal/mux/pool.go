// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"sync"
	"sync/atomic"
)

// A Pool runs handlers that are not short, on goroutines that it keeps for a while because a goroutine
// with a grown stack is cheaper than a new one. It belongs to a server or a client. It does not bound how many run: the
// connections do, by the requests that each may have open.
type Pool struct {
	work    chan *Request
	quit    chan struct{}
	idle    chan struct{} // a token for each goroutine that may stay
	wg      sync.WaitGroup
	buffers sync.Pool
	waiters sync.Pool // of goroutines that have called

	busy    atomic.Int64 // requests that run, until their Done has returned
	waited  atomic.Bool  // somebody waits in Settled
	mu      sync.Mutex
	orphans map[*Request]struct{} // one-way requests whose connections have ended
	settled chan struct{}         // closed when nothing runs; nil when nobody waits for that
}

// maxIdle is how many goroutines of a pool wait for work.
const maxIdle = 256

// NewPool returns a pool. Close ends its goroutines.
func NewPool() *Pool {
	return &Pool{
		work: make(chan *Request), quit: make(chan struct{}), idle: make(chan struct{}, maxIdle),
		buffers: sync.Pool{New: func() any { return new([]byte) }}, orphans: make(map[*Request]struct{}),
		waiters: sync.Pool{New: newWaiter},
	}
}

func (p *Pool) adopt(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orphans[r] = struct{}{}
}

func (p *Pool) disown(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.orphans, r)
}

// Executing returns the targets of one-way requests whose connections have ended before them.
func (p *Pool) Executing() []Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	targets := make([]Target, 0, len(p.orphans))
	for r := range p.orphans {
		targets = append(targets, r.target)
	}
	return targets
}

// Settled returns a channel that is closed when nothing runs any more, once no connection is left: not the one-way
// requests whose connections ended before them, and nothing that follows a reply.
func (p *Pool) Settled() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settled == nil {
		p.settled = make(chan struct{})
	}
	settled := p.settled
	p.waited.Store(true)
	p.settleLocked()
	return settled
}

func (p *Pool) settleLocked() {
	if p.busy.Load() == 0 && p.settled != nil {
		close(p.settled)
		p.settled = nil
		p.waited.Store(false)
	}
}

// ran says that a request has run, and its Done has returned.
func (p *Pool) ran() {
	if p.busy.Add(-1) == 0 && p.waited.Load() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settleLocked()
	}
}

// Cancel cancels the one-way requests whose connections have ended.
func (p *Pool) Cancel() {
	p.mu.Lock()
	orphans := make([]*Request, 0, len(p.orphans))
	for r := range p.orphans {
		orphans = append(orphans, r)
	}
	p.mu.Unlock()
	for _, r := range orphans {
		r.cancel(context.Canceled, ErrClosed)
	}
}

// Close ends the goroutines that wait for work. Requests may still come, from connections that
// are ending. It does not wait for handlers.
func (p *Pool) Close() { close(p.quit) }

func (p *Pool) run(r *Request) {
	p.busy.Add(1)
	select {
	case p.work <- r:
	default:
		p.wg.Add(1)
		go p.worker(r)
	}
}

func (p *Pool) worker(r *Request) {
	defer p.wg.Done()
	for {
		r.run()
		select {
		case p.idle <- struct{}{}:
		default:
			return // enough of them wait
		}
		select {
		case r = <-p.work:
			<-p.idle
		case <-p.quit:
			<-p.idle
			return
		}
	}
}

func (p *Pool) buffer() *[]byte { return p.buffers.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

// release gives a buffer back, unless it has become so large that keeping it would waste memory.
func (p *Pool) release(b *[]byte) {
	if cap(*b) > maxReadBuffer {
		return
	}
	*b = (*b)[:0]
	p.buffers.Put(b)
}
