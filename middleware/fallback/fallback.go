// SPDX-License-Identifier: Apache-2.0

// Package fallback answers calls of a service that is not available: with a given reply (failsafe),
// with what a function makes, or with what another service says.
//
// On a client it belongs outermost, above timeout and retry: it comes when all else has failed. On
// a server it stands for a method that cannot do its work, and belongs above what refuses calls.
//
// A call falls back when its error says that the service is not there for anybody, and not when the
// caller made a mistake or a handler chose to refuse:
//
//	Unavailable        always
//	DeadlineExceeded   always: that nobody answered in time is what fallbacks are for
//	ResourceExhausted  a limit. Not when the message itself is too large (YDL22…)
//	every other code   never, unless Options.Codes names it
//
// A call that its caller has canceled never does, nor does a stream. With Options.Force calls are
// not even made, for as long as it is set: Dubbo calls the two mock=fail and mock=force.
//
// A reply gets to the caller through the call's codec, as any other does, so that no two callers
// share its memory. It must be of the type that the caller wants, or the call fails with YDL3501,
// whose cause is the error that the call failed with: there is no success without a reply. (A
// server does not know what its callers want; there a reply of another type fails on the client, if
// its codec notices.)
//
// The caller finds the mark in the trailer, under Key, and so does whoever logs or records the
// call.
//
// The middleware takes no time and no memory of a call that succeeds, but for a look at its name.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// Key is where the trailer of a call says that its reply is a fallback. The value is the code of
// the error that the call failed with, for example "unavailable", or "forced".
const Key = "yodel-fallback"

// Options says what calls fall back to, and when. What it has of Func, Caller and Reply is used in
// this order.
type Options struct {
	// Func makes the reply, of err, which is nil when the call was not made (Force). An error that
	// it returns is the call's; it may be err. It is called concurrently, also when the time of ctx
	// is up.
	Func func(ctx context.Context, call *yodel.Call, err error) (reply any, failed error)
	// Caller is who is called instead, with the same arguments and what time is left. When it fails
	// too, the error is its own, and names the first.
	Caller yodel.Caller
	// Reply is given: a message, a pointer to one, Values, or a *yodel.Encoded in the call's codec.
	// It must not be changed afterwards. Nil will do for a caller who wants no reply, or an Empty.
	Reply any
	// Methods that have a fallback. Default all.
	Methods []string
	// Codes that a call falls back at. Default Unavailable, DeadlineExceeded, ResourceExhausted.
	Codes []yodel.Code
	// Force makes calls fall back without being made, while it is true. Default never.
	Force *atomic.Bool
}

// To answers calls of methods, or of all if none is named, with reply when the service is not
// available.
func To(reply any, methods ...string) yodel.Middleware {
	return With(&Options{Reply: reply, Methods: methods})
}

// Func answers them with what f returns. See Options.Func.
func Func(f func(ctx context.Context, call *yodel.Call, err error) (reply any, failed error), methods ...string) yodel.Middleware {
	return With(&Options{Func: f, Methods: methods})
}

// Caller makes the calls to c when the service is not available. See Options.Caller.
func Caller(c yodel.Caller, methods ...string) yodel.Middleware {
	return With(&Options{Caller: c, Methods: methods})
}

// With answers calls as o says; nil gives no reply to anybody who wants none.
func With(o *Options) yodel.Middleware {
	f := &fallback{}
	if o != nil {
		f.Options = *o
	}
	f.Methods, f.Codes = slices.Clone(f.Methods), slices.Clone(f.Codes)
	if len(f.Codes) == 0 {
		f.Codes = []yodel.Code{yodel.Unavailable, yodel.DeadlineExceeded, yodel.ResourceExhausted}
	}
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if len(f.Methods) > 0 && !slices.Contains(f.Methods, call.Method) {
				return next(ctx, call)
			}
			if f.Force != nil && f.Force.Load() {
				return f.instead(ctx, call, nil)
			}
			err := next(ctx, call)
			if err == nil || !f.covers(ctx, call, err) {
				return err
			}
			return f.instead(ctx, call, err)
		}
	}
}

type fallback struct{ Options }

// covers reports whether a call that failed with err falls back.
func (f *fallback) covers(ctx context.Context, call *yodel.Call, err error) bool {
	if call.Streams() || errors.Is(ctx.Err(), context.Canceled) || !slices.Contains(f.Codes, yodel.CodeOf(err)) {
		return false
	}
	e, ok := errors.AsType[*yodel.Error](err)
	return !ok || !e.AboutMessage()
}

// instead answers a call that failed with err, or was not made.
func (f *fallback) instead(ctx context.Context, call *yodel.Call, err error) error {
	var failed error
	switch {
	case call.Streams():
		return unfit(call, err, "cannot stand for a stream")
	case f.Func != nil:
		var reply any
		if reply, failed = f.Func(ctx, call, err); failed == nil {
			failed = answer(call, reply, err)
		}
	case f.Caller != nil:
		failed = f.ask(ctx, call, err)
	default:
		failed = answer(call, f.Reply, err)
	}
	if failed != nil {
		return failed
	}
	why, what := "forced", "the reply is a fallback, the call was not made"
	if err != nil {
		why, what = yodel.CodeOf(err).String(), "the reply is a fallback for "+err.Error()
	}
	trailer := make(yodel.Metadata, len(call.Trailer)+1)
	maps.Copy(trailer, call.Trailer)
	trailer[Key] = why
	call.Trailer = trailer
	call.Note("fallback", what)
	return nil
}

// answer makes reply the call's.
func answer(call *yodel.Call, reply any, err error) error {
	if fault := misfit(call, reply); fault != "" {
		return unfit(call, err, fault)
	}
	call.ReplyAttachment, call.Trailer = nil, nil
	if reply == nil {
		return nil
	}
	e, encodeErr := (&yodel.Call{Method: call.Method, Args: reply, Codec: call.Encoding()}).Encode()
	if encodeErr != nil {
		return unfit(call, err, "cannot be encoded: "+encodeErr.Error())
	}
	if answerErr := call.Answer(e); answerErr != nil {
		return unfit(call, err, "cannot be given: "+answerErr.Error())
	}
	return nil
}

// misfit says why reply cannot be the call's; "" is that it can.
func misfit(call *yodel.Call, reply any) string {
	_, encoded := reply.(*yodel.Encoded)
	_, empty := call.Reply.(*struct{})
	server := call.Peer() != nil
	switch {
	case reply == nil && (server || call.Reply != nil && !empty):
		return "has no reply, and the caller wants one"
	case reply == nil || server || encoded || call.Reply == nil:
		return ""
	}
	if _, whatever := call.Reply.(*yodel.Encoded); whatever || fits(reply, call.Reply) {
		return ""
	}
	return fmt.Sprintf("is %T, and the caller wants %T", reply, call.Reply)
}

// fits reports whether reply can be decoded into what want points to: it is of that type, or points
// to it.
func fits(reply, want any) bool {
	wants, several := want.(yodel.Values)
	values, ok := reply.(yodel.Values)
	if several || ok {
		if !several || !ok || len(wants) != len(values) {
			return false
		}
		for i := range wants {
			if !fits(values[i], wants[i]) {
				return false
			}
		}
		return true
	}
	to, from := reflect.TypeOf(want), reflect.ValueOf(reply)
	if to == nil || to.Kind() != reflect.Pointer || !from.IsValid() {
		return false
	}
	if from.Type() == to {
		return !from.IsNil()
	}
	return from.Type().AssignableTo(to.Elem())
}

// ask makes the call to another caller.
func (f *fallback) ask(ctx context.Context, call *yodel.Call, err error) error {
	other := &yodel.Call{
		Method: call.Method, Args: call.Args, Reply: call.Reply, Metadata: call.Metadata, Attachment: call.Attachment, Deadline: call.Deadline,
		Codec: call.Codec, Key: call.Key, IdempotencyKey: call.IdempotencyKey, Idempotent: call.Idempotent, NoWait: call.NoWait, OneWay: call.OneWay,
		Criticality: call.Criticality, Tenant: call.Tenant,
	}
	other.Resume(call)
	var reply *yodel.Encoded
	if call.Peer() != nil { // as it came, and as it comes
		request := &yodel.Encoded{}
		if err := call.Request(request); err != nil {
			return err
		}
		reply = &yodel.Encoded{}
		other.Args, other.Reply = request, reply
	}
	if asItIs(other.Args) || asItIs(other.Reply) {
		other.Codec = call.Encoding()
	}
	if failed := f.Caller.Do(ctx, other); failed != nil {
		return both(call, err, failed)
	}
	call.Trailer, call.ReplyAttachment = other.Trailer, other.ReplyAttachment
	if reply != nil {
		return call.Answer(reply)
	}
	return nil
}

func asItIs(message any) bool {
	_, ok := message.(*yodel.Encoded)
	return ok
}

// both is the error of a call that failed with first, and then of the fallback with second.
func both(call *yodel.Call, first, second error) error {
	if first == nil {
		return second
	}
	e := yodel.Error{Code: yodel.CodeOf(second), Message: second.Error()}
	if own, ok := errors.AsType[*yodel.Error](second); ok {
		e = *own
	}
	e.Message = fmt.Sprintf("the fallback failed: %s; the call had failed: %s", strings.TrimPrefix(e.Message, call.Method+": "), text(call, first))
	e.Message = call.Method + ": " + e.Message
	e.NotProcessed = yodel.NotProcessed(first) && yodel.NotProcessed(second)
	e.Cause = errors.Join(second, first)
	return &e
}

// unfit is the error of a call that cannot fall back.
func unfit(call *yodel.Call, err error, what string) error {
	e := &yodel.Error{Code: yodel.Internal, ID: "YDL3501", NotProcessed: err == nil || yodel.NotProcessed(err), Cause: err}
	e.Message = fmt.Sprintf("%s: the fallback %s", call.Method, what)
	if err != nil {
		e.Message += "; the call failed: " + text(call, err)
		errors.As(err, &e.Report)
	}
	return e
}

// text is an error without the name of the method, which has been said.
func text(call *yodel.Call, err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return strings.TrimPrefix(e.Message, call.Method+": ")
	}
	return err.Error()
}
