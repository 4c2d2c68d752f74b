// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Pool runs handlers that are not short. It keeps idle goroutines for a while, because a
// goroutine with a grown stack is cheaper than a new one. A server or a client has one. The Pool
// does not bound how many handlers run: connections do, by their limits of open requests.
type Pool struct {
	work    chan *Request
	quit    chan struct{}
	idle    chan struct{}  // one token for each idle goroutine
	wg      sync.WaitGroup // counts the goroutines; nothing waits for it
	buffers sync.Pool
	waiters sync.Pool // the waiters of goroutines in Call

	busy    atomic.Int64        // requests that run, until their Done has returned
	waited  atomic.Bool         // a goroutine waits for Settled
	mu      sync.Mutex          // guards the fields below; taken after Conn.mu
	orphans map[*Request]orphan // one-way requests whose connections have ended
	kept    int                 // how many of orphans have kept set
	end     *time.Timer         // cancels orphans; nil before the first orphan
	endAt   int64               // when end fires, or never
	settled chan struct{}       // closed when nothing runs; nil when no goroutine waits
}

// An orphan is the state of a one-way request whose connection has ended. Pool.mu guards it.
type orphan struct {
	end  int64 // when its context is canceled; never once it has been
	kept bool  // it may run for orphanTime, and not only for surplusTime
}

// maxIdle bounds the idle goroutines of a pool.
const maxIdle = 256

// NewPool returns a pool. Close ends its idle goroutines.
func NewPool() *Pool {
	return &Pool{
		work: make(chan *Request), quit: make(chan struct{}), idle: make(chan struct{}, maxIdle),
		buffers: sync.Pool{New: func() any { return new([]byte) }}, waiters: sync.Pool{New: newWaiter},
		orphans: make(map[*Request]orphan), endAt: never,
	}
}

const (
	// orphanTime is how long a one-way request may go on when its connection was lost. Then its
	// context ends.
	orphanTime = 30 * time.Second
	// surplusTime applies in place of orphanTime if the pool already has the most orphans that it
	// may keep. Requests that are short, or that were sent just before their client left, end by
	// themselves in that time.
	surplusTime = 500 * time.Millisecond
)

// adopt takes a one-way request whose connection has ended. It keeps up to most requests for
// orphanTime, and reports whether r is one of them. It cancels the others after surplusTime.
func (p *Pool) adopt(r *Request, most int) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life := surplusTime
	if kept = p.kept < most; kept {
		p.kept++
		life = orphanTime
	}
	o := orphan{end: int64(Clock() + life), kept: kept}
	p.orphans[r] = o
	if o.end < p.endAt {
		p.endAt = o.end
		if p.end == nil {
			p.end = time.AfterFunc(life, p.endOrphans)
		} else {
			p.end.Reset(life)
		}
	}
	return kept
}

// endOrphans cancels the orphans whose time is over.
func (p *Pool) endOrphans() {
	now := int64(Clock())
	var late []*Request
	p.mu.Lock()
	p.endAt = never
	for r, o := range p.orphans {
		if o.end <= now {
			late = append(late, r)
			o.end = never
			p.orphans[r] = o
		}
		p.endAt = min(p.endAt, o.end)
	}
	if p.endAt != never {
		p.end.Reset(time.Duration(p.endAt - now))
	}
	p.mu.Unlock()
	for _, r := range late {
		r.cancel(context.Canceled, ErrCallerGone)
	}
}

// disown removes a request that has ended. It returns what adopt returned for it.
func (p *Pool) disown(r *Request) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept = p.orphans[r].kept; kept {
		p.kept--
	}
	delete(p.orphans, r)
	return kept
}

// Executing returns the targets of one-way requests whose connections have ended.
func (p *Pool) Executing() []Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	targets := make([]Target, 0, len(p.orphans))
	for r := range p.orphans {
		targets = append(targets, r.target)
	}
	return targets
}

// Settled returns a channel that is closed when no one-way request of an ended connection runs, and
// no code that follows a reply. It is for a pool whose connections have all ended.
func (p *Pool) Settled() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settled == nil {
		p.settled = make(chan struct{})
	}
	settled := p.settled
	p.waited.Store(true)
	p.closeSettledLocked()
	return settled
}

func (p *Pool) closeSettledLocked() {
	if p.busy.Load() == 0 && p.settled != nil {
		close(p.settled)
		p.settled = nil
		p.waited.Store(false)
	}
}

// ran records that a request has run and its Done has returned.
func (p *Pool) ran() {
	if p.busy.Add(-1) == 0 && p.waited.Load() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeSettledLocked()
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

// Close ends the idle goroutines. Connections that are ending may still run requests. Close does
// not wait for handlers.
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

func (p *Pool) buffer() *[]byte { return p.buffers.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

// bufferOf is buffer for n bytes that may be held for a long time. It does not return a much larger
// buffer, because only n bytes are counted for the holder.
func (p *Pool) bufferOf(n int) *[]byte {
	const small, factor = 4 << 10, 4
	b := p.buffer()
	if cap(*b) > max(small, factor*n) {
		p.buffers.Put(b)
		b = new([]byte)
	}
	return b
}

// release gives a buffer back, unless it is so large that keeping it would waste memory.
func (p *Pool) release(b *[]byte) {
	if cap(*b) > maxReadBuffer {
		return
	}
	*b = (*b)[:0]
	p.buffers.Put(b)
}
