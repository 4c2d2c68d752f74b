// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// A list has the instances that the resolver has reported: see endpoints.List.
type list interface {
	Await(ctx context.Context, limit time.Duration, set bool) (known bool, err error)
	Resolver() (text string, heard time.Time, failure error)
}

// The reasons why Await gives up.
var (
	ErrClosed = errors.New("the client is closed")
	ErrLate   = errors.New("the time limit has passed")
)

// SetList says which list the resolver fills, and how long calls wait for the first instances.
func (s *Source) SetList(l list, timeout time.Duration) { s.instances, s.timeout = l, timeout }

// Await waits for a call of method until the resolver has reported instances and, if set is true,
// until there is a set. It gives up when ctx ends, when deadline has passed, which may be zero, or
// after the timeout. The method was then not executed. The error is a Fault, or an error of a
// connection, which package reason explains.
func (s *Source) Await(ctx context.Context, method string, deadline time.Time, set bool) error {
	limit := s.timeout
	left := limit + 1
	if !deadline.IsZero() {
		left = time.Until(deadline)
		limit = min(limit, left)
	}
	began := time.Now()
	known, err := s.instances.Await(ctx, limit, set)
	switch late := errors.Is(err, ErrLate); {
	case err == nil:
		return nil
	case errors.Is(err, ErrClosed):
		return fault.Of(catalogue.ClientClosed, method, "the client is closed").NotProcessed()
	case late && left <= limit:
		return s.ended(mux.ErrDeadline, time.Since(began), known)
	case !late:
		return s.ended(err, time.Since(began), known)
	case known:
		return fault.Of(catalogue.NoneUsable, method, "instances are known, and the balancer has made no picker within %v", limit.Round(time.Millisecond)).NotProcessed()
	}
	return fault.Of(catalogue.ResolverFailed, method, "the resolver%s named no instances within %v%s", s.of(), limit.Round(time.Millisecond), s.trouble()).NotProcessed()
}

// ended returns the error of a call that waited until cause ended it. Known says that the resolver
// has reported instances.
func (s *Source) ended(cause error, waited time.Duration, known bool) error {
	if waited < time.Millisecond { // the call's time was over before it waited
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	if known {
		return reason.TooLate(cause, catalogue.NoneUsable, " after %v of waiting for the balancer, which has made no picker yet", reason.Rounded(waited))
	}
	return reason.TooLate(cause, catalogue.ResolverFailed, " after %v of waiting for the resolver%s, which has named no instances yet%s", reason.Rounded(waited), s.of(), s.trouble())
}

// trouble returns the last failure of the resolver as a suffix for a message, or "" if it works.
func (s *Source) trouble() string {
	said, _, err := s.instances.Resolver()
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrNone), errors.Is(err, ErrNoAddress):
		return ": " + said
	}
	return "; it failed: " + said
}
