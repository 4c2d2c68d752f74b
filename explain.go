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

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes the errors of failed calls. It turns the error of a connection, a transport or a
// context into an Error with the message "method: address: reason". The address appears only once,
// before the reason, so that equal reasons of several attempts can be merged: see attemptsMessage.

// failed returns the caller's error for a call whose last attempt failed with err. The error
// contains the record of the call. If several attempts found no server that answered, one error
// covers all of these attempts (YDL1003). Failed does not change errors of middleware.
func (c *Call) failed(err error) error {
	e, ok := err.(*Error) //nolint:errorlint // a wrapped error is the wrapper's
	if !ok || c.rare == nil || len(c.rare.attempts) == 0 {
		return err
	}
	x := c.rare
	attempts := x.attempts
	final := *e
	final.Cause, final.relayed = e, true // errors.Is finds e itself as well
	if c.out.from.client.wraps {
		now := clock()
		x.report = &introspect.CallReport{
			Method: c.Method, Side: clientSide, Began: wallOf(now, c.start()), Took: now - c.start(), Attempts: slices.Clip(attempts), MoreAttempts: x.unlisted,
		}
		fail(x.report, e)
		final.Report = x.report
	} else { // no user code has the error before the record is complete
		x.own = &final
	}
	for _, a := range attempts {
		final.NotProcessed = final.NotProcessed && a.NotProcessed
	}
	made := len(attempts) + x.unlisted
	if made < 2 {
		final.Message += c.afterOneAttempt(e)
		return &final
	}
	if e.Code != Unavailable || e.ID == "" {
		return &final
	}
	final.Message, final.ID = attemptsMessage(c.Method, attempts, made), "YDL1003"
	final.next = commonNext(attempts)
	return &final
}

// afterOneAttempt returns the part of the message about further attempts, for a call whose only
// attempt failed with e.
func (c *Call) afterOneAttempt(e *Error) string {
	after := ""
	if dial, ok := errors.AsType[*dialError](e.Cause); ok && dial.next > 0 {
		after = fmt.Sprintf(" (connecting again in %v)", dial.next.Round(time.Millisecond))
	}
	if c.rare.nowhere > 0 && e.Code == Unavailable && e.ID != "" {
		after += fmt.Sprintf("; no other of %d endpoints is connected", c.rare.nowhere)
	}
	return after
}

// A sharedReason is the reason of one or more failed attempts.
type sharedReason struct {
	why   string
	at    []string // the addresses without duplicates
	times int
}

// The largest number of reasons and addresses in a message.
const (
	maxReasons   = 3
	maxAddresses = 3
)

// attemptsMessage returns the message for a call with made failed attempts. It lists each reason
// once, with all its addresses. It shortens the longest reasons only if the line has no room for
// all of them.
func attemptsMessage(method string, attempts []introspect.Attempt, made int) string {
	reasons := shareReasons(method, attempts)
	rest := made
	texts := make([]string, 0, maxReasons)
	shown := reasons[:min(len(reasons), maxReasons)]
	for _, r := range shown {
		texts = append(texts, r.why)
		rest -= r.times
	}
	room := maxErrorLine - len(Unavailable.String()) - len(":  [YDL1003]")
	if len(shown) == 1 && rest == 0 {
		all := "all"
		if made == 2 {
			all = "both"
		}
		head := fmt.Sprintf("%s: %d attempts at %s failed, %s: ", shorten(method, maxReportShort), made, addresses(shown[0].at), all)
		fit(texts, room-len(head))
		return head + texts[0]
	}
	head := fmt.Sprintf("%s: %d attempts failed:", shorten(method, maxReportShort), made)
	more := ""
	if rest > 0 {
		more = fmt.Sprintf("; and %d more", rest)
	}
	heads := make([]string, 0, maxReasons)
	room -= len(head) + len(more) + len(shown) - 1
	for _, r := range shown {
		at := " " + addresses(r.at)
		if r.times > len(r.at) {
			at += fmt.Sprintf(" (%d times)", r.times)
		}
		heads = append(heads, at+": ")
		room -= len(at) + len(": ")
	}
	fit(texts, room)
	for i := range texts {
		texts[i] = heads[i] + texts[i]
	}
	return head + strings.Join(texts, ";") + more
}

// shareReasons groups attempts by the reason of their failure. The reasons are in the order of
// their first appearance.
func shareReasons(method string, attempts []introspect.Attempt) (reasons []*sharedReason) {
	for i := range attempts {
		a := &attempts[i]
		why := "it succeeded" // but middleware made a further attempt
		if a.Code != "" {
			why = strings.TrimPrefix(strings.TrimPrefix(a.Message, method+": "), a.Addr+": ")
		}
		at := slices.IndexFunc(reasons, func(r *sharedReason) bool { return r.why == why })
		if at < 0 {
			at = len(reasons)
			reasons = append(reasons, &sharedReason{why: why})
		}
		r := reasons[at]
		r.times++
		if !slices.Contains(r.at, a.Addr) {
			r.at = append(r.at, a.Addr)
		}
	}
	return reasons
}

// addresses joins addresses for a message.
func addresses(all []string) string {
	if more := len(all) - maxAddresses; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxAddresses], ", "), more)
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return strings.Join(all, "")
}

// fit shortens the longest texts until all texts together have at most room bytes. Each keeps at
// least minReason bytes.
func fit(texts []string, room int) {
	const minReason = 24
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(texts[a]) - len(texts[b]) })
	for i, at := range order {
		texts[at] = shorten(texts[at], max(room/(len(order)-i), minReason))
		room -= len(texts[at])
	}
}

// commonNext returns the advice on the next step if it is the same for all attempts, or "" if it
// differs.
func commonNext(attempts []introspect.Attempt) string {
	for _, a := range attempts {
		if a.ID != attempts[0].ID {
			return ""
		}
	}
	return catalogue.Of(attempts[0].ID).Next
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
	e, said := errors.AsType[*Error](err)
	switch {
	case said && !ofTransport(err):
		return causedAtEnd(ctx, e)
	case said: // an Error of the transport, which cannot name the call
		own := *e
		e = &own
		e.Message, e.NotProcessed = call.Method+": "+e.Message, unsent(err)
	default:
		e = q.explainCall(ctx, call, where, err)
	}
	e.Cause = caused(ctx, e.Code, err)
	if dial, ok := errors.AsType[*dialError](err); ok && (call.pinned() || call.heldToOne()) {
		e.RetryAfter = dial.next // the call has no other endpoint
	}
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

// ofTransport reports whether an Error in err comes from the transport. Such an Error says why a
// connection could not be made, or why it ended.
func ofTransport(err error) bool {
	if _, ok := errors.AsType[*dialError](err); ok {
		return true
	}
	_, ok := errors.AsType[*mux.IOError](err)
	return ok
}

// unsent reports whether a call that failed with err was certainly not executed.
func unsent(err error) bool {
	if _, ok := errors.AsType[*dialError](err); ok {
		return true
	}
	lost, ok := errors.AsType[*mux.CallError](err)
	return ok && lost.NotProcessed
}

// explainCall is explain for an err that is not an Error yet.
func (q *requester) explainCall(ctx context.Context, call *Call, where string, err error) *Error {
	r := q.reason(ctx, err)
	if where != "" {
		where += ": "
	}
	if ended := r.ended; ended != "" {
		wait := waitOf(call, err)
		r.text, r.next = ended+wait.text, wait.next
	}
	unsent := unsent(err)
	switch {
	case r.doubtful && unsent:
		r.text += "; it was not executed"
	case r.doubtful:
		r.text += "; it may have been executed"
	}
	e := failure(r.id, "%s: %s%s", call.Method, where, r.text)
	e.NotProcessed, e.next = unsent, r.next
	if refused, ok := errors.AsType[*mux.Refusal](err); ok { // the server chose the code
		e.Code = Code(refused.Code)
		if refused.ID != "" {
			e.ID = refused.ID
		}
	}
	return e
}

// dialReason returns why the last connection to addr could not be made, or ended.
func (q *requester) dialReason(addr string, err *dialError) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return strings.TrimPrefix(e.Message, addr+": ")
	}
	return q.reason(context.Background(), err).text
}

// A reason is the cause of a failed call in words.
type reason struct {
	id, text string
	doubtful bool   // the message must say whether the call may have been executed
	ended    string // if the call was not sent: its deadline passed, or its caller gave up
	next     string // as in Error
}

// reason returns the reason for err.
func (q *requester) reason(ctx context.Context, err error) reason {
	if errors.Is(err, mux.ErrMemory) {
		return reason{id: "YDL3007", text: "this " + q.side + " has no memory left for the reply"}
	}
	if large, ok := errors.AsType[*mux.TooLargeError](err); ok {
		return reason{id: "YDL2202", text: fmt.Sprintf("the reply has %d bytes, this %s's limit is %d", large.Size, q.side, large.Limit)}
	}
	if broken, ok := errors.AsType[*mux.BrokenError](err); ok {
		return reason{id: "YDL2205", text: fmt.Sprintf("the reply is broken: %v", broken.Cause)}
	}
	if dial, ok := errors.AsType[*dialError](err); ok && !dial.connected {
		return reason{id: "YDL1103", text: unaddressed(dial.err)}
	}
	if refused, ok := errors.AsType[*mux.Refusal](err); ok {
		return reason{id: "YDL1107", text: "the server refused the connection: " + refused.Message}
	}
	if foreign, ok := errors.AsType[*firstbytes.MismatchError](err); ok {
		return reason{id: "YDL1101", text: foreign.Error()}
	}
	if preface, ok := errors.AsType[*mux.PrefaceError](err); ok {
		return reason{id: "YDL1101", text: "the server does not speak yodel: " + firstbytes.Describe(preface.Got)}
	}
	return q.connReason(ctx, err)
}

// connReason is reason for connections that ended and for callers that stopped waiting.
func (q *requester) connReason(ctx context.Context, err error) reason {
	unsent := unsent(err)
	// A context may end with a cause that the user chose, which need not match DeadlineExceeded.
	gone := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	late := gone && errors.Is(ctx.Err(), context.DeadlineExceeded)
	breach, broken := errors.AsType[*mux.ProtocolError](err)
	switch {
	case broken:
		return reason{id: "YDL1106", text: breach.Error(), doubtful: true}
	case errors.Is(err, mux.ErrWindow):
		if lost, ok := errors.AsType[*mux.CallError](err); ok && lost.Awaited == mux.AwaitedOutput {
			return reason{id: "YDL1008", text: fmt.Sprintf("Limits.MaxUnsent bytes (%d) wait to be written on the connection", q.limits.MaxUnsent)}
		}
		return reason{id: "YDL1008", text: "the server accepts no more requests at the moment"}
	case errors.Is(err, mux.ErrFlooded):
		return reason{
			id: "YDL1008", doubtful: true,
			text: "the server sends one-way requests faster than they are executed, and its replies are not read meanwhile",
		}
	case errors.Is(err, mux.ErrDrained) && unsent:
		return reason{id: "YDL3004", text: "the server is shutting down", doubtful: true}
	case errors.Is(err, mux.ErrDrained):
		return reason{id: "YDL1104", text: "the server cut it off when it shut down", doubtful: true}
	case errors.Is(err, mux.ErrAged):
		return reason{id: "YDL3004", text: "the connection was just being replaced", doubtful: true}
	case errors.Is(err, mux.ErrRetired):
		return reason{id: "YDL3004", text: "this is not an instance any more", doubtful: true}
	case errors.Is(err, mux.ErrClosed) && q.side == serverSide:
		return reason{id: "YDL1104", text: "this server closed the connection", doubtful: true}
	case errors.Is(err, mux.ErrClosed):
		return reason{id: "YDL1007", text: "the client was closed", doubtful: true}
	case errors.Is(err, mux.ErrHandshake):
		return reason{id: "YDL1102", text: "the server accepted the connection and said nothing", doubtful: true}
	case errors.Is(err, mux.ErrDead):
		return reason{id: "YDL1105", text: "the server has been silent for too long", doubtful: true}
	case errors.Is(err, mux.ErrDeadline), errors.Is(err, context.DeadlineExceeded), late:
		if unsent {
			return reason{id: "YDL1005", ended: deadlinePassed}
		}
		return reason{id: "YDL1004", text: "no reply before the deadline; it may be executing still"}
	case errors.Is(err, context.Canceled), gone:
		if unsent {
			return reason{id: "YDL1006", ended: callerCanceled, doubtful: true}
		}
		return reason{id: "YDL1006", text: callerCanceled, doubtful: true}
	}
	return reason{id: "YDL1104", text: "the connection was lost: " + plain(err), doubtful: true}
}

// The beginnings of the messages for calls that ended before an answer came.
const (
	deadlinePassed = "the deadline passed"
	callerCanceled = "the caller canceled it"
)

// A waitError is the error of a call that ended while it waited to be sent.
type waitError struct {
	cause error  // mux.ErrDeadline, or the cause of the caller's context
	text  string // what the call waited for, and the latest state of that, to follow "the deadline passed"
	next  string // as in Error
}

func (e *waitError) Error() string { return e.cause.Error() + e.text }
func (e *waitError) Unwrap() error { return e.cause }

// tooLate returns the error of a call that waited until cause ended it. The format describes what
// it waited for.
func tooLate(cause error, next, format string, args ...any) error {
	return &mux.CallError{Cause: &waitError{cause, fmt.Sprintf(format, args...), catalogue.Of(next).Next}, NotProcessed: true}
}

// waitOf returns what a call was waiting for when it ended with err, before it was sent.
func waitOf(call *Call, err error) *waitError {
	if wait, ok := errors.AsType[*waitError](err); ok {
		return wait
	}
	waited := time.Duration(0)
	if call.out != nil {
		waited = rounded(call.out.req.Waited)
	}
	lost, _ := errors.AsType[*mux.CallError](err)
	switch {
	case lost == nil:
	case lost.Awaited == mux.AwaitedWindow:
		text := fmt.Sprintf(" after %v in the queue for the server's window: as many requests are open as the server allows", waited)
		return &waitError{text: text, next: catalogue.Of("YDL1008").Next}
	case lost.Awaited == mux.AwaitedOutput:
		text := fmt.Sprintf(" after %v of waiting to be sent: the server, or the network, is slow to take what was sent before", waited)
		return &waitError{text: text, next: catalogue.Of("YDL1105").Next}
	}
	return &waitError{text: " before the call was sent"}
}

// rounded rounds a duration for a message.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= 10*time.Microsecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}

// plain returns the text of the innermost cause of a network error, without its outer layers.
func plain(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// unaddressed returns the text of err without the addresses and system calls of network errors. It
// keeps the text that a transport has added.
func unaddressed(err error) string {
	inner := errors.Unwrap(err)
	if inner == nil {
		return err.Error()
	}
	switch err.(type) { //nolint:errorlint // unwraps one layer at a time
	case *net.OpError, *os.SyscallError:
		return unaddressed(inner)
	}
	before, ok := strings.CutSuffix(err.Error(), inner.Error())
	if !ok { // the outer error does not end with the inner text
		return unaddressed(inner)
	}
	return before + unaddressed(inner)
}
