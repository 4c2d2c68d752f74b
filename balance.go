// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// maxResends bounds how often a call that was certainly not processed is sent again without anybody asking.
const maxResends = 8

// Which endpoints a call avoids, relaxed pass by pass.
const (
	avoidUnready = iota // those that are not ready, and those tried before
	avoidTried          // those tried before
	avoidNone
)

// Avoids reports whether the call should not go to ep, for a Picker to ask: it was tried before, or it is not
// ready while others are.
func (c *Call) Avoids(ep *Endpoint) bool {
	switch c.pass {
	case avoidUnready:
		return !ep.Ready() || slices.Contains(c.tried, ep) || c.besides(ep)
	case avoidTried:
		return slices.Contains(c.tried, ep) || c.besides(ep)
	}
	return false
}

// Tolerate makes the call not avoid endpoints that are not ready, for a Picker that asks another one: until the pick ends.
func (c *Call) Tolerate() { c.pass = max(c.pass, avoidTried) }

// Avoid makes later attempts of the call go to other endpoints, while there are any.
func (c *Call) Avoid(ep *Endpoint) {
	if !slices.Contains(c.tried, ep) {
		c.tried = append(c.tried, ep)
	}
}

// Stay makes all attempts of the call go to the endpoint that the balancer picks for the first one.
func (c *Call) Stay() { c.stays = true }

// pinned reports whether the endpoint is chosen already, by the user or for good.
func (c *Call) pinned() bool { return c.Endpoint != nil && (c.Endpoint != c.picked || c.stays) }

// balance returns the handler between middleware and endpoint middleware: it chooses the endpoint. It sends a call
// that was certainly not processed to another one, because that is always right. The handler is no method, which would have a wrapper
// below it on the stack: see decodeBody. For the same reason it makes the first attempt itself, if it can: each of
// recovery, timeout, retry, token and observers leaves 1000 callers' stacks at 4 KiB, which any of them doubled before.
func (c *Client) balance() Handler {
	bare := len(c.opts.EndpointMiddleware) == 0
	return func(ctx context.Context, call *Call) error {
		if call.out == nil || call.Method == "" || call.turn != nil {
			return c.balanceOn(ctx, call, nil)
		}
		ep, err := c.cluster.pick(ctx, call, true)
		if err != nil {
			return call.failed(c.explain(ctx, call, nil, err))
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		call.out.began = clock()
		var conn *mux.Conn
		if bare {
			conn = ep.ready(ctx)
		}
		if conn == nil {
			if err = ep.handler(ctx, call); err != nil {
				return c.balanceOn(ctx, call, err)
			}
			return nil
		}
		call.out.req.Now = call.out.began
		if err = c.attempt(ctx, call, conn, ep); err != nil {
			return c.balanceAfter(ctx, call, err)
		}
		return nil
	}
}

// balanceAfter is balance for a call whose first attempt, if there was one, failed with err.
func (c *Client) balanceAfter(ctx context.Context, call *Call, err error) error {
	if err != nil {
		err = c.explain(ctx, call, call.Endpoint, err)
	}
	return c.balanceOn(ctx, call, err)
}

// balanceOn is balanceAfter with an error that is explained.
func (c *Client) balanceOn(ctx context.Context, call *Call, err error) error {
	if call.out == nil {
		return Errorf(Internal, "%s: middleware made a call that no client has begun; use Client.Do", call.Method)
	}
	if call.Method == "" {
		return refusal("YDL2001", "a call without a method name")
	}
	began := clock()
	if err != nil {
		began = call.out.began
	} else {
		call.out.began = began
	}
	call.out.req.Now = 0
	for resends := 0; ; {
		if err != nil && !call.broughtBack(err) {
			call.record(err, began)
			if call.out.lent > 0 && NotProcessed(err) {
				call.out.repay(call, 0)
			}
			if !c.resend(call, err, resends) { //nolint:contextcheck // a connection outlives the call that needs it first
				return call.failed(err)
			}
			resends++
		}
		again := err != nil
		ep, pickErr := c.choose(ctx, call)
		if pickErr != nil {
			if err == nil || call.turn != nil {
				err = c.explain(ctx, call, nil, pickErr)
			}
			return call.failed(err)
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		if again {
			call.start() // before that is forgotten
			began = clock()
			call.out.began = began
		}
		if err = ep.handler(ctx, call); err == nil {
			return nil
		}
	}
}

// resend reports whether a failed call is sent again here, to an endpoint that was not tried. One that could not be connected to is not sent on to others that
// could not be either: while no server is there, that would be an attempt with each of them for every call.
func (c *Client) resend(call *Call, err error, resends int) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProcessed || call.stream != nil && call.stream.begun || resends >= maxResends || call.Endpoint == nil {
		return false
	}
	_, absent := errors.AsType[*dialError](e.Cause)
	if noAddress := absent && e.ID == "YDL4003"; e.Code != Unavailable && !noAddress {
		return false
	}
	// The connection was at fault, or the epoch, not the endpoint: a new one may do.
	stale := e.ID == "YDL3004" || e.ID == "YDL1104" || e.ID == "YDL3005"
	if stale {
		call.Endpoint.prune() // this may come before the connection's own news of its end
	}
	// That a connection drains happens again and again when none may become old.
	again := (e.ID == "YDL3004" || stale && !slices.Contains(call.tried, call.Endpoint)) && !call.Endpoint.unreachable()
	call.Avoid(call.Endpoint)
	if call.pinned() {
		return again
	}
	all := c.cluster.set.Load().endpoints
	untried := 0
	for _, ep := range all {
		switch {
		case slices.Contains(call.tried, ep), call.besides(ep): // the picker would rather take one that was tried
		case !absent || !ep.unreachable():
			return true
		default:
			untried++
		}
	}
	if untried > 0 {
		call.rarely().nowhere = len(all)
	}
	return again
}

// failed makes the error that the caller gets of the last attempt's: with the report, and when several attempts
// found no server that answered, naming them all. What middleware returns is left as it is.
func (c *Call) failed(err error) error {
	e, ok := err.(*Error) //nolint:errorlint // one that is wrapped belongs to who wrapped it
	if !ok || c.rare == nil || len(c.rare.attempts) == 0 {
		return err
	}
	x := c.rare
	attempts := x.attempts
	final := *e
	final.Cause = e // errors.Is finds e itself as well
	if c.out.client.wraps {
		now := clock()
		x.report = &CallReport{
			Method: c.Method, Side: clientSide, Began: wallOf(now, c.start()), Took: now - c.start(), Attempts: slices.Clip(attempts), MoreAttempts: x.unlisted,
		}
		fail(x.report, e)
		final.Report = x.report
	} else { // nobody sees it before it has the whole record
		x.own = &final
	}
	for _, a := range attempts {
		final.NotProcessed = final.NotProcessed && a.NotProcessed
	}
	made := len(attempts) + x.unlisted
	if e.Code != Unavailable || e.ID == "" {
		return &final
	}
	if made < 2 {
		if x.nowhere > 0 {
			final.Message += fmt.Sprintf("; no other of %d endpoints is connected", x.nowhere)
		}
		return &final
	}
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d attempts failed:", c.Method, made)
	for i, a := range attempts[:min(shown, len(attempts))] {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, " %s", shorten(strings.TrimPrefix(a.Message, c.Method+": "), 70))
	}
	if made > shown {
		fmt.Fprintf(&b, "; and %d more", made-shown)
	}
	final.Message, final.ID = b.String(), "YDL1003"
	return &final
}

// explain makes what the connection says an Error: who, where, what, and whether the call may have been
// executed.
func (c *Client) explain(ctx context.Context, call *Call, ep *Endpoint, err error) error {
	where := "no endpoint"
	if ep != nil {
		where = ep.Addr()
	}
	return c.explainAt(ctx, call, where, err)
}

// explainAt is explain for a call to where.
func (q *requester) explainAt(ctx context.Context, call *Call, where string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		if dial, ok := err.(*dialError); ok && !dial.connected { //nolint:errorlint // what is around one has been explained
			said := *e // by the transport, which knows nothing of the call
			said.Message, said.Cause, said.NotProcessed = call.Method+": "+e.Message, err, true
			return &said
		}
		return e
	}
	e := q.explainCall(ctx, call.Method, where, err)
	e.Cause = err
	if dial, ok := errors.AsType[*dialError](err); ok && call.pinned() {
		e.RetryAfter = dial.next // there is nowhere else to go before that
	}
	return e
}

// explainCall is explain for a call of who to where.
func (q *requester) explainCall(ctx context.Context, who, where string, err error) *Error {
	if large, ok := errors.AsType[*mux.TooLargeError](err); ok {
		return failure("YDL2202", "%s: the reply from %s has %d bytes, this %s's limit is %d", who, where, large.Size, q.side, large.Limit)
	}
	if broken, ok := errors.AsType[*mux.BrokenError](err); ok {
		return failure("YDL2205", "%s: the reply from %s is broken: %v", who, where, broken.Cause)
	}
	dial, _ := errors.AsType[*dialError](err)
	lost, _ := errors.AsType[*mux.CallError](err)
	unsent := dial != nil || lost != nil && lost.NotProcessed
	var e *Error
	if dial != nil && !dial.connected {
		e = failure("YDL1103", "%s: %s: %s", who, where, unaddressed(dial.err))
	} else {
		e = q.explainConn(ctx, who, where, err, unsent)
	}
	if dial != nil && dial.next > 0 {
		e.Message += fmt.Sprintf(" (connecting again in %v)", dial.next.Round(time.Millisecond))
	}
	e.NotProcessed = unsent
	return e
}

// explainConn is explain for the ends of connections and of callers' patience.
func (q *requester) explainConn(ctx context.Context, who, where string, err error, unsent bool) *Error {
	executed := "it may have been executed"
	if unsent {
		executed = "it was not executed"
	}
	if refused, ok := errors.AsType[*mux.Refusal](err); ok {
		e := failure("YDL1107", "%s: %s refused the connection: %s", who, where, refused.Message)
		if refused.ID != "" {
			e.ID = refused.ID
		}
		e.Code = Code(min(refused.Code, 255))
		return e
	}
	if foreignErr, ok := errors.AsType[*mux.PrefaceError](err); ok {
		return failure("YDL1101", "%s: %s does not speak yodel: %s", who, where, foreign(foreignErr.Got))
	}
	if breach, ok := errors.AsType[*mux.ProtocolError](err); ok {
		return failure("YDL1106", "%s: %s: %v; %s", who, where, breach, executed)
	}
	// A context ends with a cause of the user's, which need not say whether it was the deadline.
	gone := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	late := gone && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case errors.Is(err, mux.ErrWindow):
		return failure("YDL1008", "%s: %s accepts no more requests at the moment", who, where)
	case errors.Is(err, mux.ErrFlooded):
		return failure("YDL1008", "%s: %s sends one-way requests faster than they are executed, and its replies are not read meanwhile; %s", who, where, executed)
	case errors.Is(err, mux.ErrDrained) && unsent:
		return failure("YDL3004", "%s: %s is shutting down; it was not executed", who, where)
	case errors.Is(err, mux.ErrDrained):
		return failure("YDL1104", "%s: %s cut it off when it shut down; it may have been executed", who, where)
	case errors.Is(err, mux.ErrAged):
		return failure("YDL3004", "%s: the connection to %s was just being replaced; %s", who, where, executed)
	case errors.Is(err, mux.ErrRetired):
		return failure("YDL3004", "%s: %s is not an instance any more; %s", who, where, executed)
	case errors.Is(err, mux.ErrClosed) && q.side == serverSide:
		return failure("YDL1104", "%s: this server closed the connection to %s; %s", who, where, executed)
	case errors.Is(err, mux.ErrClosed):
		return failure("YDL1007", "%s: the client was closed; %s", who, executed)
	case errors.Is(err, mux.ErrHandshake):
		return failure("YDL1102", "%s: %s accepted the connection and said nothing; %s", who, where, executed)
	case errors.Is(err, mux.ErrDead):
		return failure("YDL1105", "%s: %s has been silent for too long; %s", who, where, executed)
	case errors.Is(err, mux.ErrDeadline), errors.Is(err, context.DeadlineExceeded), late:
		if unsent {
			return failure("YDL1005", "%s: the deadline passed before the call was sent to %s", who, where)
		}
		return failure("YDL1004", "%s: no reply from %s before the deadline; it may be executing still", who, where)
	case errors.Is(err, context.Canceled), gone:
		return failure("YDL1006", "%s: the caller canceled it (endpoint %s); %s", who, where, executed)
	}
	return failure("YDL1104", "%s: the connection to %s was lost: %s; %s", who, where, plain(err), executed)
}

// plain is the innermost cause of a network error: what happened, without the layers that it passed.
func plain(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// unaddressed returns what err says, without the addresses and system calls of network errors: a transport may have said what it was doing.
func unaddressed(err error) string {
	inner := errors.Unwrap(err)
	if inner == nil {
		return err.Error()
	}
	switch err.(type) { //nolint:errorlint // it goes from one to the next
	case *net.OpError, *os.SyscallError:
		return unaddressed(inner)
	}
	before, ok := strings.CutSuffix(err.Error(), inner.Error())
	if !ok { // it says something else
		return unaddressed(inner)
	}
	return before + unaddressed(inner)
}

// event tells the user of a connection event, and the resolver that its instances are perhaps elsewhere.
func (c *Client) event(e ConnEvent) {
	if c.refresh != nil && e.Kind != eventConnected && e.Kind != eventClosed {
		c.refresh()
	}
	if c.opts.OnConn != nil {
		c.opts.OnConn(e)
	}
}
