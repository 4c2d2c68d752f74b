// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// Latest returns the messages of a feed for a reader that may be slower than the sender, and wants
// the newest message rather than each one. Open calls the feed with a context that ends when the
// reader leaves the loop. Latest receives on a goroutine of its own, and keeps one message. A
// message that comes while another one waits replaces it, and dropped, which may be nil, counts
// that. The last message before the end or the error of the feed is not dropped. Reuse has no
// effect. The result may be ranged over several times, and opens the feed each time.
//
// The sender is not slowed down, so all messages cross the network. If they are many or large, let
// the method send the newest state at the pace at which its Send returns.
func Latest[T any](ctx context.Context, open func(ctx context.Context) yodel.Recv[T], dropped *atomic.Uint64) yodel.Recv[T] {
	if dropped == nil {
		dropped = new(atomic.Uint64)
	}
	return func(yield func(*T, error) bool) {
		if yield == nil { // see yodel.Recv.Reuse
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		l := &latest[T]{dropped: dropped, ready: make(chan struct{}, 1)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.receive(ctx, open)
		}()
		defer func() { // also if the reader panics
			cancel()
			<-ended
		}()
		for {
			<-l.ready
			msg, over := l.take()
			if msg != nil && !yield(msg, nil) {
				return
			}
			if over {
				l.end(yield)
				return
			}
		}
	}
}

// A latest has the newest message of a feed.
type latest[T any] struct {
	dropped *atomic.Uint64
	ready   chan struct{} // has a value if there is something to take

	mu       sync.Mutex
	msg      *T // nil if it was taken
	over     bool
	err      error
	panicked any // by code of the program in the feed
}

// receive receives all messages.
func (l *latest[T]) receive(ctx context.Context, open func(ctx context.Context) yodel.Recv[T]) {
	var err error
	defer func() {
		value := recover()
		l.put(func() { l.over, l.err, l.panicked = true, err, value })
	}()
	for msg, e := range open(ctx) {
		if err = e; e != nil {
			return
		}
		l.put(func() {
			if l.msg != nil {
				l.dropped.Add(1)
			}
			l.msg = msg
		})
	}
}

// put changes what there is to take.
func (l *latest[T]) put(change func()) {
	l.mu.Lock()
	change()
	l.mu.Unlock()
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// take returns the newest message, or nil if there is none, and whether it is the last one.
func (l *latest[T]) take() (msg *T, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	msg, l.msg = l.msg, nil
	return msg, l.over
}

// end passes the end of the feed on. There are no more changes.
func (l *latest[T]) end(yield func(*T, error) bool) {
	if l.panicked != nil {
		panic(l.panicked)
	}
	if l.err != nil {
		yield(nil, l.err)
	}
}
