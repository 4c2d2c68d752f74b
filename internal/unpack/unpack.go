// SPDX-License-Identifier: Apache-2.0

// Package unpack decompresses messages of peers, and compresses messages that they can decompress.
// It bounds the memory that a message takes, and how many processors decompression takes from
// everything else.
package unpack

import (
	"container/heap"
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/memory"
)

// ErrTooLarge is the error of a Compressor that reached its limit.
var ErrTooLarge = errors.New("larger than the limit")

// A Decompressor is the part of a compress.Compressor that decompresses.
type Decompressor interface {
	Decompress(dst, src []byte, limit int) ([]byte, error)
}

// An Account counts bytes before they are allocated.
type Account interface {
	Take(n int) bool
	Give(n int)
}

// A Gate lets large decompressions run at the same time on all processors but one, and on at least
// one. The others wait. A decompression that expects few bytes goes before a larger one, unless the
// larger one has waited for longer by a second for each MiB of the difference. The zero value is
// ready. Its methods are called concurrently.
type Gate struct {
	mu      sync.Mutex
	running int
	waiting queue
}

const (
	// free is the size of a result, in bytes, up to which the first attempt does not pass the gate.
	// Decompressing that much takes less time than a wait for the gate usually does.
	free = 64 << 10
	// first is the smallest size of a result that is expected, in bytes.
	first = 4 << 10
	// factor is how many times its size a message is expected to have when it is decompressed. It
	// is also by how much an attempt expects more than the one before.
	factor = 8
	// delay is how much longer a decompression waits than one that expects a byte less.
	delay = time.Microsecond
)

// Decompress decompresses body into dst, if the result has at most limit bytes and a has room
// for it. The size of the result is unknown, so Decompress first expects and counts eight times the
// size of body, and eight times more whenever that is too little. The repetitions make it take at
// most a seventh longer. Before it decompresses more than eight times the body, or more than 64
// KiB, it passes the gate. The bytes of the result stay counted in a.
//
// Decompress returns the error of ctx if ctx ends while it waits, memory.ErrFull if a has no room,
// and an error that matches ErrTooLarge if the result is larger than limit.
func (g *Gate) Decompress(ctx context.Context, c Decompressor, a Account, dst, body []byte, limit int) ([]byte, error) {
	n := min(max(factor*len(body), first), limit)
	if n <= free {
		out, err := within(c, a, dst, body, n)
		if n == limit || !errors.Is(err, ErrTooLarge) {
			return out, err
		}
		n = next(n, limit)
	}
	for ; ; n = next(n, limit) {
		out, err := g.passed(ctx, c, a, dst, body, n)
		if n == limit || !errors.Is(err, ErrTooLarge) {
			return out, err
		}
	}
}

// next returns what the attempt after one for n bytes expects. The last attempt but one is for at
// most half of the limit, so that it does not cost about as much as the last one.
func next(n, limit int) int {
	if n > limit/factor/2 {
		return limit
	}
	return factor * n
}

// passed is within behind the gate.
func (g *Gate) passed(ctx context.Context, c Decompressor, a Account, dst, body []byte, n int) ([]byte, error) {
	if err := g.enter(ctx, n); err != nil {
		return nil, err
	}
	defer g.leave()
	return within(c, a, dst, body, n)
}

// within decompresses body if the result has at most n bytes. It returns the unused bytes to a even
// if the compressor panics or ends its goroutine.
func within(c Decompressor, a Account, dst, body []byte, n int) (out []byte, err error) {
	if !a.Take(n) {
		return nil, memory.ErrFull
	}
	kept := 0
	defer func() { a.Give(n - kept) }()
	if out, err = c.Decompress(dst, body, n); err != nil {
		return nil, err
	}
	kept = len(out)
	return out, nil
}

// A waiter is a decompression that waits.
type waiter struct {
	due time.Time
	run chan struct{} // closed when the gate lets it run
	at  int           // in the queue, or -1
}

// enter waits until a decompression of n bytes may run.
func (g *Gate) enter(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	if g.running < max(runtime.GOMAXPROCS(0)-1, 1) {
		g.running++
		g.mu.Unlock()
		return nil
	}
	w := &waiter{due: time.Now().Add(time.Duration(n) * delay), run: make(chan struct{})}
	heap.Push(&g.waiting, w)
	g.mu.Unlock()
	select {
	case <-w.run:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	left := w.at >= 0
	if left {
		heap.Remove(&g.waiting, w.at)
	}
	g.mu.Unlock()
	if !left { // the gate has let it run in the meantime
		g.leave()
	}
	return ctx.Err()
}

// leave ends a decompression. It lets the next one run in its place.
func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.running--
		return
	}
	close(heap.Pop(&g.waiting).(*waiter).run) //nolint:forcetypeassert // the queue holds nothing else
}

// A queue is a heap of waiters.
type queue []*waiter

func (q *queue) Len() int           { return len(*q) }
func (q *queue) Less(i, j int) bool { return (*q)[i].due.Before((*q)[j].due) }

func (q *queue) Swap(i, j int) {
	w := *q
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i, j
}

func (q *queue) Push(w any) {
	x := w.(*waiter) //nolint:forcetypeassert // as above
	x.at = len(*q)
	*q = append(*q, x)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	w.at = -1
	return w
}
