// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
)

// The longest pauses between attempts to connect, at first and later.
const (
	firstConnect = 50 * time.Millisecond
	laterConnect = time.Second
)

// UntilConnected makes calls of a client wait while no instance can be reached or none is known,
// for example when a program starts before the servers that it calls. Otherwise such calls fail
// when the attempts to connect have failed. A call waits until its deadline or the end of its
// context, so calls should have a deadline. A call that was sent fails as without UntilConnected,
// and so does a call that a server refuses. GRPC calls this wait-for-ready.
//
// Waiting calls send nothing to servers, so the retry budget of the client does not limit them. Put
// UntilConnected above Times and Same. On a server it does nothing.
func UntilConnected(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if err == nil || call.Peer() != nil || !unconnected(call, err) {
			return err
		}
		return untilConnected(ctx, call, err, next)
	}
}

// untilConnected is UntilConnected for a call that has failed with err.
func untilConnected(ctx context.Context, call *yodel.Call, err error, next yodel.Handler) error {
	wait := ctx
	if deadline, ok := deadlineOf(ctx, call); ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	for longest := firstConnect; ; longest = min(2*longest, laterConnect) {
		ready := call.Client().Ready(wait)
		if closed := yodel.CodeOf(ready) == yodel.Canceled && wait.Err() == nil; ready == nil || closed {
			if !call.Attempts().Take() {
				return err
			}
			if err = next(ctx, call); err == nil || !unconnected(call, err) {
				return err
			}
		}
		if pause(wait, rand.N(longest)) != nil {
			return abandoned(wait, call, err)
		}
	}
}

// unconnected reports whether a call has failed because there was no connection for it, and may be
// sent.
func unconnected(call *yodel.Call, err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	client := call.Client()
	if !ok || client == nil || !e.NotProcessed || e.Code != yodel.Unavailable || call.Attempts().NoRepeat(err) != "" {
		return false
	}
	// The client also refuses calls for other reasons, such as an open breaker.
	return e.AboutConnection() || e.OfClient() && !slices.ContainsFunc(client.Endpoints(), (*yodel.Endpoint).Connected)
}
