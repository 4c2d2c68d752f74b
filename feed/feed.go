// SPDX-License-Identifier: Apache-2.0

// Package feed keeps feeds going, for their callers.
//
// Resume opens a feed again when its server shuts down or is lost, behind the last message. Latest
// gives a slow reader the newest message, and drops those that it could not take in time. Each
// returns a yodel.Recv, so they can be combined:
//
//	var dropped atomic.Uint64
//	ticks := feed.Latest(ctx, func(ctx context.Context) yodel.Recv[Tick] {
//		return feed.Resume(ctx, func(ctx context.Context, last *Tick) yodel.Recv[Tick] {
//			query := &Query{Symbol: "GOOG"}
//			if last != nil {
//				query.After = last.Number
//			}
//			return Watch.Call(ctx, client, query)
//		}, nil)
//	}, &dropped)
//	for tick, err := range ticks { … }
package feed

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options configures Resume. The zero value and nil mean the defaults.
type Options struct {
	// Attempts is how often in a row the feed is opened without a message, before Resume gives up.
	// Default: 10.
	Attempts int
	// Pause is the wait before the second of these attempts. It doubles with each further one, up
	// to MaxPause, and has a jitter of half of its length. Defaults: 100 ms and 10 s.
	Pause, MaxPause time.Duration
	// Endless says that the feed has no end of its own. Then Resume opens it again when it ends
	// without an error too, as a handler ends it that returns when Call.Draining is closed.
	// Default: such an end is the end.
	Endless bool
}

// Resume returns the messages of a feed that goes on when its server is lost. Open calls the feed:
// from the beginning if last is nil, and otherwise behind last, the last message that came. Resume
// calls open again when the feed fails with Unavailable, as it does when the server shuts down or
// the connection is lost, or with ResourceExhausted if the call was certainly not executed. Other
// errors end the iteration, and so does the error of the last attempt. The first attempt after a
// message is made at once, and others after a pause, or after the time that the server asks for if
// that is longer.
//
// The method may then be executed twice for the same last message. So the feed must be one that may
// be opened again at the same place, as a feed that only reads may. A message is the reader's until
// it asks for the next one; after that, Resume may still pass it to open. Reuse has no effect.
// Leaving the loop cancels the call. A second loop goes on behind the last message.
func Resume[T any](ctx context.Context, open func(ctx context.Context, last *T) yodel.Recv[T], o *Options) yodel.Recv[T] {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Attempts = cmp.Or(max(opts.Attempts, 0), 10)
	opts.Pause = cmp.Or(max(opts.Pause, 0), 100*time.Millisecond)
	opts.MaxPause = max(cmp.Or(opts.MaxPause, 10*time.Second), opts.Pause)
	var last *T
	return func(yield func(*T, error) bool) {
		if yield == nil { // see yodel.Recv.Reuse
			return
		}
		for failed := 0; ; {
			var err error
			for msg, e := range open(ctx, last) {
				if err = e; e != nil {
					break
				}
				failed, last = 0, msg
				if !yield(msg, nil) {
					return
				}
			}
			if failed++; err == nil && !opts.Endless {
				return
			}
			if err != nil && !resumable(err) || failed >= opts.Attempts {
				yield(nil, cmp.Or(err, errEnded))
				return
			}
			if err := opts.wait(ctx, failed, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// errEnded is the error of an endless feed that has ended without a message too often.
var errEnded error = &yodel.Error{Code: yodel.Unavailable, Message: "the feed has ended each time before its first message"}

// resumable reports whether a feed that has failed with err may succeed when it is opened again.
func resumable(err error) bool {
	code := yodel.CodeOf(err)
	return code == yodel.Unavailable || code == yodel.ResourceExhausted && yodel.NotProcessed(err)
}

// wait waits before the feed is opened again, after it has failed a number of times in a row.
func (o *Options) wait(ctx context.Context, failed int, err error) error {
	pause := time.Duration(0)
	if failed > 1 {
		pause = o.Pause
		for range failed - 2 {
			pause = min(2*pause, o.MaxPause)
		}
		pause = pause/2 + rand.N(pause/2+1)
	}
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		pause = max(pause, e.RetryAfter)
	}
	if pause == 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
