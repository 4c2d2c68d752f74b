// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes the errors of failed calls. It turns the error of a connection, a transport or a
// context into an Error with the message "method: address: reason". The address appears only once,
// before the reason, so that equal reasons of several attempts can be merged: see package
// record.

// failed returns the caller's error for a call whose last attempt failed with err. The error
// contains the record of the call. If several attempts found no server that answered, one error
// covers all of these attempts (YDL1003). Failed does not change errors of middleware.
func (c *Client) failed(call *Call, err error) error {
	e, ok := err.(*Error) //nolint:errorlint // a wrapped error is the wrapper's
	if !ok || call.rare == nil || call.rare.Made() == 0 {
		return err
	}
	x := call.rare
	final := *e
	final.Cause, final.relayed = e, true // errors.Is finds e itself as well
	if c.wraps {
		now := clock()
		x.report = &introspect.CallReport{
			Method: call.Method, Side: clientSide, Began: monotime.Wall(now, call.start()), Took: now - call.start(),
		}
		x.Attempts(x.report)
		failureOf(e).Call(x.report)
		final.Report = x.report
	} else { // no user code has the error before the record is complete
		x.own = &final
	}
	final.NotProcessed = final.NotProcessed && x.Unsent()
	if x.Made() < 2 {
		final.Message += x.afterOneAttempt(e)
		return &final
	}
	if e.Code != Unavailable || e.ID == "" {
		return &final
	}
	final.ID = "YDL1003"
	room := maxErrorLine - len(Unavailable.String()) - len(":  [YDL1003]")
	final.Message, final.next = x.Message(call.Method, room), x.Next()
	return &final
}

// afterOneAttempt returns the part of the message about further attempts, for a call whose only
// attempt failed with e.
func (x *rareCall) afterOneAttempt(e *Error) string {
	after := ""
	if dial, ok := errors.AsType[*reason.DialError](e.Cause); ok && dial.Next > 0 {
		after = fmt.Sprintf(" (connecting again in %v)", dial.Next.Round(time.Millisecond))
	}
	if x.nowhere > 0 && e.Code == Unavailable && e.ID != "" {
		after += fmt.Sprintf("; no other of %d endpoints is connected", x.nowhere)
	}
	return after
}

// explain turns an error of a connection into an Error that names the call and the server, and says
// what happened and whether the call may have been executed.
func (c *Client) explain(ctx context.Context, call *Call, ep *Endpoint, err error) error {
	where := ""
	if ep != nil {
		where = ep.Addr()
	}
	return c.explainAt(ctx, call, where, err)
}

// explainAt is explain for a call to the address where, which is "" if the call has not reached an
// endpoint.
func (q *requester) explainAt(ctx context.Context, call *Call, where string, err error) error {
	explained := q.explainPart(ctx, call.Method, where, failedPart{creditOf(call), call.stream != nil}, err)
	if dial, ok := errors.AsType[*reason.DialError](err); ok && (call.pinned() || heldToOne(call)) {
		explained.(*Error).RetryAfter = dial.Next //nolint:errorlint,forcetypeassert // it is new; the call has no other endpoint
	}
	return explained
}

// A failedPart is what else the reason of a failure says about the call.
type failedPart struct {
	waited  time.Duration // for credit
	streams bool
}

// explainPart is explainAt for a call, or for a message of a stream. A message may fail after the
// call has ended, so explainPart reads no Call.
func (q *requester) explainPart(ctx context.Context, method, where string, part failedPart, err error) error {
	e, said := errors.AsType[*Error](err)
	switch {
	case said && !reason.OfTransport(err):
		return causedAtEnd(ctx, e)
	case said: // an Error of the transport, which cannot name the call
		own := *e
		e, own.Message, own.NotProcessed = &own, method+": "+e.Message, reason.Unsent(err)
	default:
		e = q.explainNew(ctx, method, where, part, err)
	}
	e.Cause = caused(ctx, e.Code, err)
	return e
}

// caused returns err with the cause of ctx, if code says that ctx may have ended the call. A
// connection and a server enforce the deadline of ctx too, and may be first.
func caused(ctx context.Context, code Code, err error) error {
	if code == DeadlineExceeded || code == Canceled {
		if cause := expiry.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			return errors.Join(err, cause)
		}
	}
	return err
}

// causedAtEnd is caused for an error that a server or the end of a call has made.
func causedAtEnd(ctx context.Context, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapped error is the wrapper's
		final := *e
		if final.Cause = caused(ctx, e.Code, err); final.Cause != err { //nolint:errorlint // otherwise it is unchanged
			return &final
		}
	}
	return err
}

// reasons returns what the reasons of failed calls depend on.
func (q *requester) reasons() reason.Side {
	return reason.Side{Name: q.side, Serves: q.side == serverSide, MaxUnsent: q.limits.MaxUnsent}
}

// explainNew is explainPart for an err that is not an Error yet.
func (q *requester) explainNew(ctx context.Context, method, where string, part failedPart, err error) *Error {
	if where != "" {
		where += ": "
	}
	r := q.reasons().Of(ctx, err, part.waited, part.streams)
	e := failure(r.ID, "%s: %s%s", method, where, r.Text)
	e.NotProcessed, e.next = reason.Unsent(err), r.Next
	if refused, ok := errors.AsType[*mux.Refusal](err); ok { // the server chose the code
		e.Code, e.ID = Code(refused.Code), cmp.Or(refused.ID, e.ID)
	}
	return e
}

// dialReason returns why the last connection to addr could not be made, or ended.
func (q *requester) dialReason(addr string, err *reason.DialError) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return strings.TrimPrefix(e.Message, addr+": ")
	}
	return q.reasons().OfConnection(err)
}
