// SPDX-License-Identifier: Apache-2.0

// Package fallback answers calls when a service is unavailable: with a fixed reply, with the result
// of a function, or with the reply of another service.
//
// On a client, put it outermost, above timeout and retry, so that it acts when everything else has
// failed. On a server it replaces a method that cannot do its work, and belongs above the
// middleware that refuses calls.
//
// A call falls back if its error says that the service is unavailable. It does not fall back if the
// caller made a mistake or a handler chose to refuse:
//
//	Unavailable        always
//	DeadlineExceeded   always: no answer in time is what fallbacks are for
//	ResourceExhausted  for a limit, but not when the message itself is too large (YDL22…)
//	every other code   never, unless Options.Codes names it
//
// A call that its caller has canceled never falls back, nor does a stream. While Options.Force is
// set, calls fall back without being made. Dubbo calls the two modes mock=fail and mock=force.
//
// A reply reaches the caller through the call's codec, so no two callers share its memory. It must
// be of the type that the caller expects. Otherwise the call fails with YDL3501, and its cause is
// the original error. (A server does not know what type its callers expect. There a reply of
// another type fails on the client, if the codec notices.)
//
// The trailer of the call has Key, for the caller and for code that logs or records the call.
//
// A call that succeeds costs only a look at its method name.
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

// Key is the trailer key that marks a fallback. The value is the code of the original error, for
// example "unavailable", or "forced".
const Key = "yodel-fallback"

// Options says when calls fall back, and to what. Func comes first, then Caller, then Reply.
type Options struct {
	// Func returns the reply for a call that failed with err. Err is nil if the call was not made
	// (Force). If Func returns an error, the call fails with that error. Func may return err
	// itself. Func is called concurrently, and also after ctx has ended.
	Func func(ctx context.Context, call *yodel.Call, err error) (reply any, failed error)
	// Caller receives the call instead, with the same arguments and the remaining time. If that
	// call fails too, its error is returned, and names the first error.
	Caller yodel.Caller
	// Reply is the fixed reply: a message, a pointer to one, Values, or a *yodel.Encoded in the
	// call's codec. It must not be changed afterwards. Nil is enough for a caller that expects no
	// reply or an Empty.
	Reply any
	// Methods are the methods that have a fallback. Default all.
	Methods []string
	// Codes are the codes at which a call falls back. Default Unavailable, DeadlineExceeded,
	// ResourceExhausted.
	Codes []yodel.Code
	// While Force is true, calls fall back without being made. Default never.
	Force *atomic.Bool
}

// To answers calls of methods with reply when the service is unavailable. Without methods it
// applies to all.
func To(reply any, methods ...string) yodel.Middleware {
	return With(&Options{Reply: reply, Methods: methods})
}

// Func answers calls of methods with the result of f when the service is unavailable. See
// Options.Func.
func Func(f func(ctx context.Context, call *yodel.Call, err error) (reply any, failed error), methods ...string) yodel.Middleware {
	return With(&Options{Func: f, Methods: methods})
}

// Caller sends calls of methods to c when the service is unavailable. See Options.Caller.
func Caller(c yodel.Caller, methods ...string) yodel.Middleware {
	return With(&Options{Caller: c, Methods: methods})
}

// With answers calls as o says. Nil answers only callers that expect no reply.
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

// instead answers a call that failed with err, or that was not made.
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

// answer stores reply as the reply of the call.
func answer(call *yodel.Call, reply any, err error) error {
	if fault := misfit(call, reply); fault != "" {
		return unfit(call, err, fault)
	}
	call.ReplyAttachment, call.Trailer = nil, nil
	if call.Header() != nil { // of the call that failed
		call.SetHeader(nil)
	}
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

// misfit returns why reply cannot be the reply of the call, or "".
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

// fits reports whether reply can be decoded into the value that want points to: it has that type,
// or points to it.
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
	other.Attempts().Resume(call)
	var reply *yodel.Encoded
	if call.Peer() != nil { // on a server, request and reply pass through without decoding
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
	if md := other.Header(); md != nil || call.Header() != nil {
		call.SetHeader(md)
	}
	if reply != nil {
		return call.Answer(reply)
	}
	return nil
}

func asItIs(message any) bool {
	_, ok := message.(*yodel.Encoded)
	return ok
}

// both returns the error of a call that failed with first, and whose fallback failed with second.
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

// unfit returns the error of a call that cannot fall back.
func unfit(call *yodel.Call, err error, what string) error {
	e := &yodel.Error{Code: yodel.Internal, ID: "YDL3501", NotProcessed: err == nil || yodel.NotProcessed(err), Cause: err}
	e.Message = fmt.Sprintf("%s: the fallback %s", call.Method, what)
	if err != nil {
		e.Message += "; the call failed: " + text(call, err)
		errors.As(err, &e.Report)
	}
	return e
}

// text returns an error without the name of the method, which the message has already.
func text(call *yodel.Call, err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return strings.TrimPrefix(e.Message, call.Method+": ")
	}
	return err.Error()
}
