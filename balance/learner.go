// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Learner is a Picker that is told how attempts ended. Pickers that do not implement Learner
// cost nothing extra per call.
type Learner interface {
	yodel.Picker
	// Ended is called once for each attempt on ep, with the time until the reply and the outcome.
	// Ep may have left the picker's set by then. Ended is called concurrently, also by the
	// goroutine that reads a connection, and must not block. It is called for calls that are pinned
	// to an endpoint as well. It is not called for one-way calls, because their outcome is unknown.
	//
	// For a stream, Ended is called when the stream has ended, and took is 0. Took is also 0 for a
	// request that could not be sent. Err is a *yodel.Error. If the server answered with an error,
	// only its Code and NotProcessed are set.
	//
	// A Learner should keep what it learns in yodel.Endpoint.State. A balancer that wraps another
	// one may build several pickers from it and call Ended on only one of them.
	Ended(ep *yodel.Endpoint, took time.Duration, err error)
}
