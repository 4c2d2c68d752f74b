// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A kept value of the registry is read by one reader at a time, for all requests. The reads have
// the context of the console, so that a request that ends does not end the read for the others.
type kept[T any] struct {
	mu   sync.Mutex
	last *reading[T] // nil if a read is needed
}

// A reading is one read of a value. Its other fields are set when done is closed.
type reading[T any] struct {
	done  chan struct{}
	ended time.Time
	value T
	err   error
}

// get returns the value or the error of the last read, which ended at most a second ago. The
// caller must not change the value. A read ends after askTimeout at the latest.
func (k *kept[T]) get(ctx context.Context, f *collector, read func(ctx context.Context) (T, error)) (value T, err error) {
	k.mu.Lock()
	one := k.last
	if one == nil || one.isOld() {
		if !f.begin() {
			k.mu.Unlock()
			return value, yodel.Errorf(yodel.Unavailable, "the console is closed")
		}
		one = &reading[T]{done: make(chan struct{})}
		k.last = one
		go func() {
			defer f.begun.Done()
			one.run(f.ctx, read)
		}()
	}
	k.mu.Unlock()
	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// forget makes the next get read the value again.
func (k *kept[T]) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = nil
}

func (r *reading[T]) run(ctx context.Context, read func(ctx context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	defer close(r.done)
	r.value, r.err = read(ctx)
	r.ended = time.Now()
}

// isOld reports whether the read ended more than a second ago.
func (r *reading[T]) isOld() bool {
	select {
	case <-r.done:
		return time.Since(r.ended) >= time.Second
	default:
		return false
	}
}
