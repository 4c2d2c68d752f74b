// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/grpcstatus"
	"github.com/yodel-rpc/yodel/internal/jsoncodec"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Code is the kind of an error, one of gRPC's sixteen. Other numbers, such as those that an
// application has agreed on, arrive as they were sent, in protocols that carry codes. A Code is
// itself an error, for comparison:
//
//	if errors.Is(err, yodel.Unavailable) { … }
type Code uint16

const (
	_                  Code = iota // no error
	Canceled                       // the caller went away
	Unknown                        // an error without a code, from a handler
	InvalidArgument                // the request is wrong, whatever the state of the server
	DeadlineExceeded               // the time ran out
	NotFound                       // the requested object does not exist
	AlreadyExists                  // the object to be created exists
	PermissionDenied               // the caller is known and may not do this
	ResourceExhausted              // a limit or a quota is used up
	FailedPrecondition             // the state of the server does not allow this now
	Aborted                        // a conflict: try the whole transaction again
	OutOfRange                     // past the end of a valid range
	Unimplemented                  // the server does not have the method
	Internal                       // something is broken
	Unavailable                    // no server could be reached: try again later
	DataLoss                       // data is lost or corrupted
	Unauthenticated                // the caller is not known
)

// String returns the name of the code, for example "not_found", or "code_42" for one that is not
// gRPC's.
func (c Code) String() string { return grpcstatus.CodeName(uint16(c)) }

// Error implements error, for comparison with errors.Is.
func (c Code) Error() string { return c.String() }

// MarshalText returns the name of the code, for example in JSON, also as the key of a map.
func (c Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses a name that MarshalText returned.
func (c *Code) UnmarshalText(name []byte) error {
	code, err := grpcstatus.CodeNamed(string(name))
	*c = Code(code) // 0 if there is no such name
	return err
}

// An Error is the error of a failed call. All errors of yodel itself have this type. A handler
// returns one, made by Errorf, to choose the code.
type Error struct {
	// Code is the kind of the error.
	Code Code `json:"code"`
	// Message says what happened, for the caller to read.
	Message string `json:"message"`
	// ID identifies the situation in docs/errors.md, for example "YDL1003". Errors of handlers have
	// no ID.
	ID string `json:"id,omitempty"`
	// Details are for the caller's program. They travel with the error. If there are more than 64
	// of them, or more than 16 KiB in all, none of them is sent.
	Details []Detail `json:"details,omitempty"`
	// NotProcessed says that the method was certainly not executed, so that the call may be sent
	// again, whatever its method.
	NotProcessed bool `json:"notProcessed,omitempty"`
	// RetryAfter is how long the server asks callers to wait before they call it for this again, in
	// nanoseconds. 0 means that the server does not say. It travels with the error.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Cause is the wrapped error, for errors.Is and errors.As. It does not leave this process.
	Cause error `json:"-"`
	// Report is the record of the call, on the client. errors.As finds it too.
	Report *introspect.CallReport `json:"report,omitempty"`

	next    string // the next step, if it is more precise than the next step of the ID; otherwise ""
	relayed bool   // a call that this process made has failed with it
	foreign bool   // asError made it of Cause, which is no Error
	public  string // Message without the errors of calls that Errorf has formatted; "" if there are none
}

// maxErrorLine is the largest length of Error.Error, in bytes.
const maxErrorLine = 300

// Errorf returns an error with a code. An operand formatted with %w becomes the cause. Callers from
// whom errors are hidden get "the call failed" in place of operands that are errors of calls.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error(), Cause: errors.Unwrap(err)}
	if public := withoutCalls(args); public != nil {
		e.public = fmt.Errorf(format, public...).Error()
	}
	return e
}

// withoutCalls returns args with other errors in place of those of calls, or nil without such
// errors.
func withoutCalls(args []any) (public []any) {
	for i, arg := range args {
		err, _ := arg.(error)
		e, ok := errors.AsType[*Error](err)
		inner := ok && (e.relayed || e.is(catalogue.OfClient|catalogue.AboutConnection))
		if !ok || !inner && e.public == "" {
			continue
		}
		if public == nil {
			public = slices.Clone(args)
		}
		public[i] = errHiddenCall
		if !inner {
			public[i] = &Error{Code: e.Code, Message: e.public}
		}
	}
	return public
}

// errHiddenCall is in place of the error of a call.
var errHiddenCall = errors.New("the call failed")

// Error returns the error in one line of at most 300 bytes, which ends with the ID if there is one.
// Control characters of the message become spaces, and the ID is cut after 64 bytes.
func (e *Error) Error() string {
	tail := ""
	if e.ID != "" {
		tail = " [" + text.ID(e.ID) + "]"
	}
	line := e.Code.String()
	if e.Message != "" {
		line += ": " + text.Clip(e.Message, maxErrorLine)
	}
	return shorten(line, maxErrorLine-len(tail)) + tail
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the error's code, or the context error that the code stands for.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == DeadlineExceeded
	case context.Canceled:
		return e.Code == Canceled
	}
	return target == e.Code
}

// As sets target to the record of the call, if target is a **introspect.CallReport and there is a
// record.
func (e *Error) As(target any) bool {
	if report, ok := target.(**introspect.CallReport); ok && e.Report != nil {
		*report = e.Report
		return true
	}
	return false
}

// Format prints the long form for %+v: the line, the next step and the record of the call.
func (e *Error) Format(f fmt.State, verb rune) {
	said := e.Error()
	if verb == 'v' && f.Flag('+') {
		if _, next, ok := e.Explain(); ok {
			said += "\n  next  " + next
		}
		if e.Report != nil {
			said += "\n" + e.Report.Error()
		}
	}
	if verb == 'q' {
		said = fmt.Sprintf("%q", said)
	}
	_, _ = f.Write([]byte(said))
}

// LogValue returns the error as a group of log attributes.
func (e *Error) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("code", e.Code.String()), slog.String("message", text.Clip(e.Message, fields.MaxText))}
	if e.ID != "" {
		attrs = append(attrs, slog.String("id", text.ID(e.ID)))
	}
	if r := e.Report; r != nil { // the message of a handler's error names neither
		attrs = append(attrs, slog.String("method", r.Method), slog.Int("attempts", len(r.Attempts)))
		if last := len(r.Attempts) - 1; last >= 0 {
			attrs = append(attrs, slog.String("server", r.Attempts[last].Addr))
		}
	}
	return slog.GroupValue(attrs...)
}

// CodeOf returns the code of err. For nil it is 0. Otherwise it is the code of the first Error in
// the tree of err, or else of the first Code, or else of the first status of grpc-go, which an
// error has by its method GRPCStatus. If the tree has none of them, a context error has the code
// Canceled or DeadlineExceeded, and any other error has Unknown.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	if e, _ := within(err); e != nil {
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Unknown
}

// within returns the first Error in the tree of err, or else, if the tree has no Code, one made
// from the first status of grpc-go there. Own reports whether err itself has that status.
func within(err error) (e *Error, own bool) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e, false
	}
	_, isCode := errors.AsType[Code](err)
	st := grpcstatus.Of(err)
	if isCode || st == nil {
		return nil, false
	}
	e = &Error{Code: Code(st.Code), Message: st.Message}
	st.Details(e.addDetail)
	return e, st.Own
}

// NotProcessed reports whether the call that failed with err was certainly not executed.
func NotProcessed(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.NotProcessed
}

// shorten cuts s between two runes, to at most limit bytes, and marks the cut.
func shorten(s string, limit int) string { return text.Cut(s, limit) }

// failure returns an error with an ID of the catalogue.
func failure(id, format string, args ...any) *Error {
	return &Error{Code: Code(catalogue.Of(id).Code), ID: id, Message: fmt.Sprintf(format, args...)}
}

// interruption returns the error of user code that panicked or ended its goroutine.
func interruption(message string) error { return failure("YDL5004", "%s", message) }

// refusal returns a failure that says that the method was certainly not executed.
func refusal(id, format string, args ...any) *Error {
	e := failure(id, format, args...)
	e.NotProcessed = true
	return e
}

// errorOf returns err with an Error in place of a fault.
func errorOf(err error) error {
	if f, ok := err.(*fault.Fault); ok { //nolint:errorlint // it is returned bare
		return faultError(f)
	}
	return err
}

// faultError returns the Error of a fault, or nil for none.
func faultError(f *fault.Fault) *Error {
	if f == nil {
		return nil
	}
	e := failure(f.ID, "%s: %s", f.Method, f.Text)
	if f.Public != "" {
		e.public = f.Method + ": " + f.Public
	}
	if e.NotProcessed = f.Unprocessed; f.Misfit {
		return e.misfit(f.Method, f.Cause)
	}
	return e.because(f.Cause)
}

// misfit sets the cause of e, and the text for callers that do not see types and fields of Go.
func (e *Error) misfit(method string, err error) *Error {
	e.public = jsoncodec.Public(method, e.is(catalogue.Unencoded), err)
	return e.because(err)
}

// because sets the cause of e, and returns e.
func (e *Error) because(err error) *Error {
	e.Cause = err
	return e
}

// Explain returns the meaning of the error's ID and the next step for the user. Ok reports whether
// the error has a known ID.
func (e *Error) Explain() (title, next string, ok bool) {
	entry := catalogue.Of(e.ID)
	return entry.Title, cmp.Or(e.next, entry.Next), entry.Title != ""
}

// A Detail is a typed value that an error carries for the caller's program.
type Detail struct {
	// Type names the type of the value, for example "shop.v1.OutOfStock". Both sides have to know
	// it.
	Type string `json:"type"`
	// Value is the encoded value. The two programs agree on its encoding.
	Value []byte `json:"value,omitempty"`
}

// eachDetail calls yield for each detail.
func (e *Error) eachDetail(yield func(name string, value []byte) bool) {
	for i := 0; i < len(e.Details) && yield(e.Details[i].Type, e.Details[i].Value); {
		i++
	}
}

func (e *Error) addDetail(name string, value []byte) {
	e.Details = append(e.Details, Detail{name, value})
}

// is reports whether the error's ID has the trait.
func (e *Error) is(t catalogue.Traits) bool { return catalogue.Of(e.ID).Traits&t != 0 }

// AboutMessage reports whether the types or the size of a message made the call fail: the message
// does not fit the method, cannot be encoded or decoded, or exceeds a limit. A second attempt would
// fail too, even on another server with the same limits. AboutMessage is false for a message that
// was damaged in transit, and for errors of handlers.
func (e *Error) AboutMessage() bool { return e.is(catalogue.AboutMessage) }

// AboutConnection reports whether the call failed because there was no connection to a server, or
// because the connection ended.
func (e *Error) AboutConnection() bool { return e.is(catalogue.AboutConnection) }

// OfClient reports whether the error comes from the client itself, for example because no instance
// is known, a breaker is open, the client is closed, or the caller stopped waiting. Such an error
// says nothing about the health of a server.
func (e *Error) OfClient() bool { return e.is(catalogue.OfClient) }

// Stale reports whether the connection was at fault and not the server: the connection had just
// ended, or the server was shutting down. Another connection to the same address may work.
func (e *Error) Stale() bool { return e.is(catalogue.Stale) }

// NotRepeated reports whether the client did not send the call again because the server to which it
// would have gone does not remember the call's idempotency key.
func (e *Error) NotRepeated() bool { return e.is(catalogue.NotRepeated) }

// countsAs returns under which code a call is counted that err has ended with a code.
func countsAs(code Code, err error) int {
	switch e, ok := errors.AsType[*Error](err); {
	case ok && e.is(catalogue.Ruled):
		return int(catalogue.Disabled)
	case code > Unauthenticated: // it has no name
		return int(Unknown)
	}
	return int(code)
}

// The error of a connection, a transport or a context becomes an Error with the message "method:
// address: reason". The address appears only once, before the reason, so that equal reasons of
// several attempts can be merged: see package record.

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
			Method: call.Method, Side: clientSide, Began: monotime.Wall(call.start()), Took: now - call.start(),
		}
		x.Attempts(x.report)
		failureOf(e).Call(x.report)
		final.Report = x.report
	} else { // no user code has the error before the record is complete
		x.own = &final
	}
	final.NotProcessed = final.NotProcessed && x.Unsent()
	if x.Made() < 2 {
		others := 0
		if e.Code == Unavailable && e.ID != "" {
			others = x.nowhere
		}
		final.Message += reason.AfterOne(e.Cause, others)
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
	explained := q.explainPart(ctx, partOf(call), where, err)
	if dial, ok := errors.AsType[*reason.DialError](err); ok && (call.pinned() || heldToOne(call)) {
		explained.(*Error).RetryAfter = dial.Next //nolint:errorlint,forcetypeassert // it is new; the call has no other endpoint
	}
	return explained
}

// explainPart is explainAt for a call, or for a message of a stream. A message may fail after the
// call has ended, so explainPart reads no Call.
func (q *requester) explainPart(ctx context.Context, part reason.Call, where string, err error) error {
	e, said := errors.AsType[*Error](err)
	switch {
	case said && !reason.OfTransport(err):
		return causedAtEnd(ctx, e)
	case said: // an Error of the transport, which cannot name the call
		own := *e
		e, own.Message, own.NotProcessed = &own, part.Method+": "+e.Message, reason.Unsent(err)
	default:
		r := q.reasons.Of(ctx, part, where, err)
		e = &Error{Code: Code(r.Code), ID: r.ID, Message: r.Text, NotProcessed: r.Unsent, next: r.Next}
	}
	e.Cause = caused(ctx, e.Code, err)
	return e
}

// caused returns err with the cause of ctx, if code says that ctx may have ended the call. A
// connection and a server enforce the deadline of ctx too, and may be first.
func caused(ctx context.Context, code Code, err error) error {
	if code == DeadlineExceeded || code == Canceled {
		return expiry.WithCause(ctx, err)
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

// dialReason returns why the last connection to addr could not be made, or ended.
func (q *requester) dialReason(addr string, err *reason.DialError) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return strings.TrimPrefix(e.Message, addr+": ")
	}
	return q.reasons.OfConnection(err)
}
