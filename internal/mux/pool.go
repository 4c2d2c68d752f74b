// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"sync"

	"github.com/yodel-rpc/yodel/internal/orphans"
	"github.com/yodel-rpc/yodel/internal/settle"
	"github.com/yodel-rpc/yodel/internal/spares"
)

// A Pool runs handlers that are not short. It keeps idle goroutines for a while, because a
// goroutine with a grown stack is cheaper than a new one. A server or a client has one. The Pool
// does not bound how many handlers run: connections do, by their limits of open requests.
type Pool struct {
	work    chan *Request
	quit    chan struct{}
	idle    chan struct{} // one token for each idle goroutine
	buffers spares.Buffers
	waiters sync.Pool // the waiters of goroutines in Call

	running settle.Count           // requests, until their Done has returned
	orphans *orphans.Set[*Request] // one-way requests whose connections have ended
}

// maxIdle bounds the idle goroutines of a pool.
const maxIdle = 256

// NewPool returns a pool. Close ends its idle goroutines.
func NewPool() *Pool {
	return &Pool{
		work: make(chan *Request), quit: make(chan struct{}), idle: make(chan struct{}, maxIdle),
		waiters: sync.Pool{New: newWaiter},
		orphans: orphans.New(func(r *Request) { r.end.Cancel(context.Canceled, ErrCallerGone) }),
	}
}

// Executing returns the targets of one-way requests whose connections have ended.
func (p *Pool) Executing() []Target {
	all := p.orphans.All()
	targets := make([]Target, len(all))
	for i, r := range all {
		targets[i] = r.target
	}
	return targets
}

// Settled returns a channel that is closed when no one-way request of an ended connection runs, and
// no code that follows a reply. It is for a pool whose connections have all ended.
func (p *Pool) Settled() <-chan struct{} { return p.running.Zero() }

// Cancel cancels the one-way requests whose connections have ended.
func (p *Pool) Cancel() {
	for _, r := range p.orphans.All() {
		r.end.Cancel(context.Canceled, ErrClosed)
	}
}

// Close ends the idle goroutines. Connections that are ending may still run requests. Close does
// not wait for handlers.
func (p *Pool) Close() { close(p.quit) }

func (p *Pool) run(r *Request) {
	p.running.Begin()
	select {
	case p.work <- r:
	default:
		go p.worker(r)
	}
}

func (p *Pool) worker(r *Request) {
	for {
		r.run()
		select {
		case p.idle <- struct{}{}:
		default:
			return // enough goroutines are idle
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
