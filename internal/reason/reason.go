// SPDX-License-Identifier: Apache-2.0

// Package reason says in words why a call failed whose server has not answered: from the error of a
// connection, of a transport or of a context.
package reason

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Reason is why a call failed.
type Reason struct {
	ID   string // of the catalogue of errors
	Text string // for people; it begins with a small letter
	Next string // what to do, in place of that of the catalogue; often empty
	Code uint16 // of the error

	// Unsent says that the call was certainly not executed.
	Unsent bool

	doubtful bool   // Text must say whether the call may have been executed
	ended    string // if the call was not sent: its deadline passed, or its caller gave up
}

// A Side is the side of a connection that makes calls.
type Side struct {
	Name      string // "client" or "server"
	Serves    bool   // it is the server, which calls its client
	MaxUnsent int    // bytes: Limits.MaxUnsent
}

// A Call is what a reason says about the call, or about a message of its stream.
type Call struct {
	Method  string
	Waited  time.Duration // to be sent
	Streams bool          // it has a stream
}

// The beginnings of the reasons of calls that ended before an answer came.
const (
	deadlinePassed = "the deadline passed"
	callerCanceled = "the caller canceled it"
)

// Of returns the reason of a call that ended with err. Where is the address of the server, or "" if
// the call has not reached an endpoint. The text begins with the method and with where.
func (s Side) Of(ctx context.Context, call Call, where string, err error) Reason {
	r := s.of(ctx, err, call.Streams)
	r.Code, r.Unsent = catalogue.Of(r.ID).Code, Unsent(err)
	if r.ended != "" {
		wait := waitOf(err, call.Waited)
		r.Text, r.Next = r.ended+wait.text, wait.next
	}
	switch {
	case r.doubtful && r.Unsent:
		r.Text += "; it was not executed"
	case r.doubtful:
		r.Text += "; it may have been executed"
	}
	if where != "" {
		r.Text = where + ": " + r.Text
	}
	r.Text = call.Method + ": " + r.Text
	if refused, ok := errors.AsType[*mux.Refusal](err); ok { // the server chose the code
		r.Code, r.ID = refused.Code, cmp.Or(refused.ID, r.ID)
	}
	return r
}

// OfConnection returns the text of why a connection could not be made, or has ended.
func (s Side) OfConnection(err error) string { return s.of(context.Background(), err, false).Text }

// of is Of without what follows from whether the call was sent.
func (s Side) of(ctx context.Context, err error, streams bool) Reason {
	if errors.Is(err, memory.ErrFull) {
		return Reason{ID: catalogue.NoMemory, Text: "this " + s.Name + " has no memory left for the reply"}
	}
	if large, ok := errors.AsType[*mux.TooLargeError](err); ok {
		return Reason{ID: catalogue.ReplyTooLarge, Text: fmt.Sprintf("the reply has %d bytes, this %s's limit is %d", large.Size, s.Name, large.Limit)}
	}
	if broken, ok := errors.AsType[*mux.BrokenError](err); ok {
		return Reason{ID: catalogue.ReplyBroken, Text: fmt.Sprintf("the reply is broken: %v", broken.Cause)}
	}
	if dial, ok := errors.AsType[*DialError](err); ok && !dial.Connected {
		return Reason{ID: catalogue.Unreachable, Text: unaddressed(dial.Err)}
	}
	if refused, ok := errors.AsType[*mux.Refusal](err); ok {
		return Reason{ID: catalogue.NotAccepted, Text: "the server refused the connection: " + refused.Message}
	}
	if foreign, ok := errors.AsType[*firstbytes.MismatchError](err); ok {
		return Reason{ID: catalogue.ForeignServer, Text: foreign.Error()}
	}
	if preface, ok := errors.AsType[*mux.PrefaceError](err); ok {
		return Reason{ID: catalogue.ForeignServer, Text: "the server does not speak yodel: " + firstbytes.Describe(preface.Got)}
	}
	if breach, ok := errors.AsType[*mux.ProtocolError](err); ok {
		return Reason{ID: catalogue.ProtocolBroken, Text: breach.Error(), doubtful: true}
	}
	if r, ok := s.ofRefusal(err); ok {
		return r
	}
	return s.ofEnd(ctx, err, streams)
}

// ofRefusal is of for what the other side accepts no more.
func (s Side) ofRefusal(err error) (r Reason, ok bool) {
	switch {
	case errors.Is(err, mux.ErrWindow):
		if lost, ok := errors.AsType[*mux.CallError](err); ok && lost.Awaited == mux.AwaitedOutput {
			return Reason{ID: catalogue.WindowFull, Text: fmt.Sprintf("Limits.MaxUnsent bytes (%d) wait to be written on the connection", s.MaxUnsent)}, true
		}
		return Reason{ID: catalogue.WindowFull, Text: "the server accepts no more requests at the moment"}, true
	case errors.Is(err, mux.ErrFlooded):
		return Reason{
			ID: catalogue.WindowFull, doubtful: true,
			Text: "the server sends one-way requests faster than they are executed, and its replies are not read meanwhile",
		}, true
	case errors.Is(err, mux.ErrDrained) && Unsent(err):
		return Reason{ID: catalogue.ShuttingDown, Text: "the server is shutting down", doubtful: true}, true
	case errors.Is(err, mux.ErrDrained):
		return Reason{ID: catalogue.ConnectionLost, Text: "the server cut it off when it shut down", doubtful: true}, true
	case errors.Is(err, mux.ErrAged):
		return Reason{ID: catalogue.ShuttingDown, Text: "the connection was just being replaced", doubtful: true}, true
	case errors.Is(err, mux.ErrRetired):
		return Reason{ID: catalogue.ShuttingDown, Text: "this is not an instance any more", doubtful: true}, true
	}
	return Reason{}, false
}

// ofEnd is of for connections that ended and for callers that stopped waiting.
func (s Side) ofEnd(ctx context.Context, err error, streams bool) Reason {
	unsent := Unsent(err)
	// A context may end with a cause that the user chose, which need not match DeadlineExceeded.
	gone := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	late := gone && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case errors.Is(err, mux.ErrClosed) && s.Serves:
		return Reason{ID: catalogue.ConnectionLost, Text: "this server closed the connection", doubtful: true}
	case errors.Is(err, mux.ErrClosed):
		return Reason{ID: catalogue.ClientClosed, Text: "the client was closed", doubtful: true}
	case errors.Is(err, mux.ErrHandshake):
		return Reason{ID: catalogue.NoHandshake, Text: "the server accepted the connection and said nothing", doubtful: true}
	case errors.Is(err, mux.ErrDead):
		return Reason{ID: catalogue.ServerSilent, Text: "the server has been silent for too long", doubtful: true}
	case errors.Is(err, mux.ErrDeadline), errors.Is(err, context.DeadlineExceeded), late:
		switch {
		case unsent:
			return Reason{ID: catalogue.DeadlinePassed, ended: deadlinePassed}
		case streams:
			return Reason{ID: catalogue.NoReply, Text: "the deadline of the stream passed before it ended; it may be executing still"}
		}
		return Reason{ID: catalogue.NoReply, Text: "no reply before the deadline; it may be executing still"}
	case errors.Is(err, context.Canceled), gone:
		if unsent {
			return Reason{ID: catalogue.CallCanceled, ended: callerCanceled, doubtful: true}
		}
		return Reason{ID: catalogue.CallCanceled, Text: callerCanceled, doubtful: true}
	}
	return Reason{ID: catalogue.ConnectionLost, Text: "the connection was lost: " + Plain(err), doubtful: true}
}

// Unsent reports whether a call that failed with err was certainly not executed.
func Unsent(err error) bool {
	if _, ok := errors.AsType[*DialError](err); ok {
		return true
	}
	lost, ok := errors.AsType[*mux.CallError](err)
	return ok && lost.NotProcessed
}

// OfTransport reports whether err comes from the transport: it says why a connection could not be
// made, or why it ended.
func OfTransport(err error) bool {
	if _, ok := errors.AsType[*DialError](err); ok {
		return true
	}
	_, ok := errors.AsType[*mux.IOError](err)
	return ok
}

// A DialError says that a client could not connect to an endpoint.
type DialError struct {
	Err  error
	Next time.Duration // time until the next attempt to connect, if no attempt was made for this call
	// Connected says that Err is the reason why the last connection ended, not the reason why an
	// attempt failed.
	Connected bool
}

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// A waitError is the error of a call that ended while it waited to be sent.
type waitError struct {
	cause error  // mux.ErrDeadline, or the cause of the caller's context
	text  string // what the call waited for, and the latest state of that, to follow "the deadline passed"
	next  string // as in Reason
}

func (e *waitError) Error() string { return e.cause.Error() + e.text }
func (e *waitError) Unwrap() error { return e.cause }

// TooLate returns the error of a call that waited until cause ended it. Next is the ID whose next
// step helps. The format describes what the call waited for, to follow "the deadline passed".
func TooLate(cause error, next, format string, args ...any) error {
	return &mux.CallError{Cause: &waitError{cause, fmt.Sprintf(format, args...), catalogue.Of(next).Next}, NotProcessed: true}
}

// waitOf returns what a call was waiting for when it ended with err, before it was sent.
func waitOf(err error, waited time.Duration) *waitError {
	if wait, ok := errors.AsType[*waitError](err); ok {
		return wait
	}
	lost, _ := errors.AsType[*mux.CallError](err)
	switch {
	case lost == nil:
	case lost.Awaited == mux.AwaitedWindow:
		text := fmt.Sprintf(" after %v in the queue for the server's window: as many requests are open as the server allows", Rounded(waited))
		return &waitError{text: text, next: catalogue.Of(catalogue.WindowFull).Next}
	case lost.Awaited == mux.AwaitedOutput:
		text := fmt.Sprintf(" after %v of waiting to be sent: the server, or the network, is slow to take what was sent before", Rounded(waited))
		return &waitError{text: text, next: catalogue.Of(catalogue.ServerSilent).Next}
	}
	return &waitError{text: " before the call was sent"}
}
