// SPDX-License-Identifier: Apache-2.0

// Package fanout makes a call to all endpoints of a client at once: to tell every instance
// something, to ask all and take the first answer, or to hear what each has to say.
//
//	receipts, err := fanout.Broadcast(ctx, client, Invalidate, &Key{"user/7"}, nil)    // all must succeed
//	quote, err := fanout.First(ctx, client, GetQuote, &Query{"GOOG"}, nil)              // the first success wins
//	receipts, err := fanout.Inform(ctx, client, inspect.Stats, &inspect.Empty{}, nil)  // a receipt for each
//
// Each endpoint gets a call of its own, with a reply of its own, that is pinned to it (see
// yodel.Call.Endpoint) and goes through all of the client's middleware. An endpoint that is not
// ready, or cannot be reached, is an endpoint that fails: nobody is left out in silence. When no
// instance is known, all three fail with YDL3521, after having waited for the first set as any call
// does. An idempotency key is that of all these calls: servers that share a memory of keys execute
// one of them, and all others execute theirs.
//
// They return when all calls have ended, and none of the calls outlasts ctx or the call's deadline.
// First cancels the others, and waits for their ends: a server that is asked to stop may have
// executed the call by then, or be executing it still.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options says how calls are made to all endpoints. The zero value is a good choice.
type Options struct {
	// Parallel is how many calls are under way at most. Default 64.
	Parallel int
	// Only leaves out the endpoints that it returns false for. Default none.
	Only func(ep *yodel.Endpoint) bool
}

// A Receipt is the outcome of the call to one endpoint.
type Receipt[Out any] struct {
	Addr    string
	Reply   *Out // nil when it failed
	Err     error
	Trailer yodel.Metadata
	Took    time.Duration
}

// Broadcast calls a method of all endpoints, all of which must succeed: otherwise the error,
// YDL3522, names those that failed, and has their errors. The receipts are those of all endpoints,
// also then.
func Broadcast[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) ([]Receipt[Out], error) {
	outcomes, err := BroadcastCall(ctx, c, template(m, in), o)
	return receipts[Out](outcomes), err
}

// First calls a method of all endpoints and returns the first reply. The other calls are canceled.
// When all fail, the error is YDL3523, and has theirs.
func First[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) (*Out, error) {
	call := template(m, in)
	if err := FirstCall(ctx, c, call, o); err != nil {
		return nil, err
	}
	return call.Reply.(*Out), nil //nolint:forcetypeassert // template made it
}

// Inform calls a method of all endpoints and returns a receipt for each. The error is about there
// being none to call.
func Inform[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) ([]Receipt[Out], error) {
	outcomes, err := InformCall(ctx, c, template(m, in), o)
	return receipts[Out](outcomes), err
}

// An Outcome is the call that was made to one endpoint, with its reply and trailer, and how it
// ended.
type Outcome struct {
	Call *yodel.Call
	Err  error
	Took time.Duration
}

// BroadcastCall is Broadcast with all that a Call can carry, but an order: each endpoint is called
// with a copy of call, whose Reply is a new variable like call's.
func BroadcastCall(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]Outcome, error) {
	outcomes, err := InformCall(ctx, c, call, o)
	if err != nil {
		return nil, err
	}
	return outcomes, failure("YDL3522", call, outcomes)
}

// FirstCall is First with all that a Call can carry. The winner's reply, trailer and attachment
// become call's.
func FirstCall(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var won atomic.Pointer[yodel.Call]
	outcomes, err := each(ctx, c, call, o, func(of *Outcome) {
		if of.Err == nil && won.CompareAndSwap(nil, of.Call) {
			cancel()
		}
	})
	if err != nil {
		return err
	}
	winner := won.Load()
	if winner == nil {
		return failure("YDL3523", call, outcomes)
	}
	takeOver(call.Reply, winner.Reply)
	call.Trailer, call.ReplyAttachment = winner.Trailer, winner.ReplyAttachment
	return nil
}

// InformCall is Inform with all that a Call can carry.
func InformCall(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]Outcome, error) {
	return each(ctx, c, call, o, func(*Outcome) {})
}

// each makes a copy of call to each endpoint, and tells ended of each outcome, on several
// goroutines.
func each(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options, ended func(*Outcome)) ([]Outcome, error) {
	if o == nil {
		o = &Options{}
	}
	endpoints, err := known(ctx, c, call, o)
	if err != nil {
		return nil, err
	}
	parallel := o.Parallel
	if parallel <= 0 {
		parallel = 64
	}
	outcomes := make([]Outcome, len(endpoints))
	for i, ep := range endpoints {
		// unless Do returns
		outcomes[i] = Outcome{Call: copyOf(call, ep), Err: yodel.Errorf(yodel.Internal, "%s: the call ended its goroutine", call.Method)}
	}
	var next atomic.Int64
	var panicked atomic.Pointer[any]
	var all sync.WaitGroup
	var work func()
	work = func() {
		returned := false
		defer func() {
			if !returned { // a call has ended the goroutine
				all.Go(work)
			}
		}()
		for i := next.Add(1) - 1; i < int64(len(endpoints)); i = next.Add(1) - 1 {
			if p := outcomes[i].make(ctx, c, ended); p != nil {
				panicked.CompareAndSwap(nil, &p)
			}
		}
		returned = true
	}
	for range min(parallel, len(endpoints)) {
		all.Go(work)
	}
	all.Wait()
	if p := panicked.Load(); p != nil {
		panic(*p) // where somebody may be prepared for it
	}
	return outcomes, nil
}

// make makes the call, says that it has ended, and returns what it panicked with, or nil.
func (of *Outcome) make(ctx context.Context, c *yodel.Client, ended func(*Outcome)) (panicked any) {
	began := time.Now()
	defer func() { // also when the call ends the goroutine
		of.Took = time.Since(began)
		panicked = recover()
		ended(of)
	}()
	of.Err = c.Do(ctx, of.Call)
	return nil
}

// known returns the endpoints that are to be called. It waits for the first set.
func known(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]*yodel.Endpoint, error) {
	all := c.Endpoints()
	var reason error
	if len(all) == 0 {
		if !call.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, call.Deadline)
			defer cancel()
		}
		reason = c.Ready(ctx) // that none is connected is each call's own affair
		all = c.Endpoints()
	}
	chosen := make([]*yodel.Endpoint, 0, len(all))
	for _, ep := range all {
		if o.Only == nil || o.Only(ep) {
			chosen = append(chosen, ep)
		}
	}
	if len(chosen) > 0 {
		return chosen, nil
	}
	e := &yodel.Error{Code: yodel.Unavailable, ID: "YDL3521", NotProcessed: true, Cause: reason}
	e.Message = call.Method + ": there is no endpoint to call"
	if len(all) > 0 {
		e.Message += fmt.Sprintf(": Options.Only leaves out all %d", len(all))
	} else if reason != nil {
		e.Message += ": " + text(reason)
	}
	return nil, e
}

// copyOf returns a copy of call to an endpoint, with a reply of its own.
func copyOf(call *yodel.Call, ep *yodel.Endpoint) *yodel.Call {
	return &yodel.Call{
		Method: call.Method, Args: call.Args, Reply: another(call.Reply), Metadata: call.Metadata, Attachment: call.Attachment, Deadline: call.Deadline,
		Codec: call.Codec, Compressor: call.Compressor, Key: call.Key, IdempotencyKey: call.IdempotencyKey, Idempotent: call.Idempotent,
		NoWait: call.NoWait, OneWay: call.OneWay, Budget: call.Budget, Criticality: call.Criticality, Tenant: call.Tenant, Explain: call.Explain,
		Endpoint: ep,
	}
}

// another returns a new variable like the one that a reply is to be decoded into.
func another(reply any) any {
	if reply == nil {
		return nil
	}
	values, ok := reply.(yodel.Values)
	if !ok {
		v := reflect.ValueOf(reply)
		if v.Kind() != reflect.Pointer || v.IsNil() {
			return reply // the codec says what is wrong with it
		}
		return reflect.New(v.Type().Elem()).Interface()
	}
	others := make(yodel.Values, len(values))
	for i, v := range values {
		others[i] = another(v)
	}
	return others
}

// takeOver makes what to points to what from points to, of which another made it.
func takeOver(to, from any) {
	values, ok := to.(yodel.Values)
	switch {
	case to == nil:
	case ok:
		for i, v := range values {
			takeOver(v, from.(yodel.Values)[i]) //nolint:forcetypeassert // another made it
		}
	default:
		reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
	}
}

// failure is the error of a call that failed at some endpoints; nil is at none.
func failure(id string, call *yodel.Call, outcomes []Outcome) error {
	var errs []error
	tried := &introspect.CallReport{Method: call.Method}
	e := &yodel.Error{ID: id, NotProcessed: true, Report: tried}
	var b strings.Builder
	const shown = 3
	for _, of := range outcomes {
		if of.Err == nil {
			e.NotProcessed = false
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w", of.Call.Endpoint.Addr(), of.Err))
		e.NotProcessed = e.NotProcessed && yodel.NotProcessed(of.Err)
		if report, ok := errors.AsType[*introspect.CallReport](of.Err); ok {
			attempts := append(tried.Attempts, report.Attempts...)
			*tried = *report // that of the last one that failed, with the attempts of all
			tried.Attempts = attempts
		}
		if len(errs) == 1 {
			e.Code = yodel.CodeOf(of.Err)
		}
		if len(errs) <= shown {
			what := strings.TrimPrefix(strings.TrimPrefix(text(of.Err), call.Method+": "), of.Call.Endpoint.Addr()+": ")
			if len(what) > 60 {
				what = strings.ToValidUTF8(what[:57], "") + "…"
			}
			fmt.Fprintf(&b, "; %s: %s", of.Call.Endpoint.Addr(), what)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	e.Message = fmt.Sprintf("%s: %d of %d endpoints failed%s", call.Method, len(errs), len(outcomes), b.String())
	if len(errs) > shown {
		e.Message += fmt.Sprintf("; and %d more", len(errs)-shown)
	}
	e.Cause = errors.Join(errs...)
	tried.Code, tried.ID, tried.Message, tried.NotProcessed = e.Code.String(), e.ID, e.Message, e.NotProcessed
	return e
}

// text is the message of an error.
func text(err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

func template[In, Out any](m yodel.Method[In, Out], in *In) *yodel.Call {
	return &yodel.Call{Method: string(m), Args: in, Reply: new(Out)}
}

func receipts[Out any](outcomes []Outcome) []Receipt[Out] {
	if outcomes == nil {
		return nil
	}
	all := make([]Receipt[Out], len(outcomes))
	for i, of := range outcomes {
		all[i] = Receipt[Out]{Addr: of.Call.Endpoint.Addr(), Err: of.Err, Trailer: of.Call.Trailer, Took: of.Took}
		if of.Err == nil {
			all[i].Reply = of.Call.Reply.(*Out) //nolint:forcetypeassert // as template's
		}
	}
	return all
}
