// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"iter"

	"github.com/yodel-rpc/yodel"
)

// region drain

// untilDrain is the messages that come until the server drains. A loop over recv itself would go on
// until the caller has no more to send, however long that takes. A message that has come and was
// not handed out by then is dropped: the handler does not say that it has dealt with it, so the
// caller sends it again.
func untilDrain[T any](ctx context.Context, recv yodel.Recv[T]) iter.Seq2[*T, error] {
	type arrival struct {
		msg *T
		err error
	}
	return func(yield func(*T, error) bool) {
		arrivals := make(chan arrival)
		go func() {
			defer close(arrivals)
			for msg, err := range recv {
				select {
				case arrivals <- arrival{msg, err}:
				case <-ctx.Done(): // as soon as the handler has returned
					return
				}
			}
		}()
		draining := yodel.CallFrom(ctx).Draining()
		for {
			select {
			case <-draining:
				return
			case a, more := <-arrivals:
				if !more || !yield(a.msg, a.err) {
					return
				}
			}
		}
	}
}

// endregion drain
