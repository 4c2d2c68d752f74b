// SPDX-License-Identifier: Apache-2.0

// Package fanout makes a call to all endpoints of a client at once: to inform every instance, to
// use the first reply, or to collect the outcome of each instance.
//
//	receipts, err := fanout.Broadcast(ctx, client, Invalidate, &Key{"user/7"}, nil)    // all must succeed
//	quote, err := fanout.First(ctx, client, GetQuote, &Query{"GOOG"}, nil)              // the first success wins
//	receipts, err := fanout.Inform(ctx, client, inspect.Stats, &inspect.Empty{}, nil)  // a receipt for each
//
// Merge makes one reply of the receipts. Broadcasting and Forking are middleware that make every
// call of a client a Broadcast or a First.
//
// Each endpoint gets a separate call with its own reply. The call is pinned to the endpoint (see
// yodel.Call.Endpoint) and goes through all of the client's middleware. If an endpoint is not ready
// or cannot be reached, its call fails: no endpoint is skipped silently. If no instance is known,
// all three functions wait for the first set, as any call does, and then fail with YDL3521. All
// these calls have the same idempotency key, if any: among servers that share a store of keys, only
// one executes its call, and every other server executes its own.
//
// The functions return when all calls have ended. No call outlasts ctx or the deadline of the call.
// First cancels the other calls and waits until they have ended. Their servers may have executed
// them by then, or may still be executing them.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options says how calls are made to all endpoints. The zero value has sensible defaults.
type Options struct {
	// Parallel is the maximum number of calls in flight. Default 64.
	Parallel int
	// Only selects the endpoints: those for which it returns false are not called. Default: all
	// endpoints.
	Only func(ep *yodel.Endpoint) bool
}

// A Receipt is the outcome of the call to one endpoint.
type Receipt[Out any] struct {
	Addr    string
	Reply   *Out // nil if the call failed
	Err     error
	Trailer yodel.Metadata
	Took    time.Duration
}

// Broadcast calls a method on all endpoints. If a call fails, it returns the error YDL3522, which
// names the failed endpoints and wraps their errors. The receipts always include all endpoints.
func Broadcast[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) ([]Receipt[Out], error) {
	outcomes, err := BroadcastCall(ctx, c, template(m, in), o)
	return receipts[Out](outcomes), err
}

// First calls a method on all endpoints and returns the first reply. The other calls are canceled.
// If all calls fail, the error is YDL3523 and wraps their errors.
func First[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) (*Out, error) {
	call := template(m, in)
	if err := FirstCall(ctx, c, call, o); err != nil {
		return nil, err
	}
	return call.Reply.(*Out), nil //nolint:forcetypeassert // template made it
}

// Inform calls a method on all endpoints and returns a receipt for each. It returns an error only
// if there is no endpoint to call.
func Inform[In, Out any](ctx context.Context, c *yodel.Client, m yodel.Method[In, Out], in *In, o *Options) ([]Receipt[Out], error) {
	outcomes, err := InformCall(ctx, c, template(m, in), o)
	return receipts[Out](outcomes), err
}

// An Outcome is the outcome of the call to one endpoint: the call with its reply and trailer, and
// its error.
type Outcome struct {
	Call *yodel.Call
	Err  error
	Took time.Duration
}

// BroadcastCall is Broadcast for a Call with any fields except Ordered. Each endpoint is called
// with a copy of call, whose Reply is a new variable of the same type.
func BroadcastCall(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]Outcome, error) {
	outcomes, err := InformCall(ctx, c, call, o)
	if err != nil {
		return nil, err
	}
	return outcomes, failure("YDL3522", call, outcomes)
}

// FirstCall is First for a Call with any fields except Ordered. It sets the reply, header,
// trailer and attachment of call to those of the first successful copy.
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
	takeAll(call, winner)
	return nil
}

// takeAll copies the reply, header, trailer and attachment of a copy of call to call.
func takeAll(call, from *yodel.Call) {
	takeOver(call.Reply, from.Reply)
	call.Trailer, call.ReplyAttachment = from.Trailer, from.ReplyAttachment
	if md := from.Header(); md != nil {
		call.SetHeader(md)
	}
}

// InformCall is Inform for a Call with any fields except Ordered.
func InformCall(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]Outcome, error) {
	return each(ctx, c, call, o, func(*Outcome) {})
}

// each sends a copy of call to each endpoint, and calls ended with each outcome. It does so on
// several goroutines.
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
		// The error is replaced when Do returns.
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
		panic(*p) // on the goroutine of the caller, which may recover
	}
	return outcomes, nil
}

// make makes the call and calls ended. It returns the value with which the call panicked, or nil.
func (of *Outcome) make(ctx context.Context, c *yodel.Client, ended func(*Outcome)) (panicked any) {
	began := time.Now()
	defer func() { // deferred, because the call may end the goroutine
		of.Took = time.Since(began)
		panicked = recover()
		ended(of)
	}()
	of.Err = c.Do(ctx, of.Call)
	return nil
}

// known returns the endpoints to call. It waits for the first set of endpoints.
func known(ctx context.Context, c *yodel.Client, call *yodel.Call, o *Options) ([]*yodel.Endpoint, error) {
	all := c.Endpoints()
	var reason error
	if len(all) == 0 {
		if !call.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, call.Deadline)
			defer cancel()
		}
		reason = c.Ready(ctx) // if none is connected, each call fails by itself
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

// copyOf returns a copy of call for an endpoint, with its own reply.
func copyOf(call *yodel.Call, ep *yodel.Endpoint) *yodel.Call {
	return &yodel.Call{
		Method: call.Method, Args: call.Args, Reply: another(call.Reply), Metadata: call.Metadata, Attachment: call.Attachment, Deadline: call.Deadline,
		Codec: call.Codec, Compressor: call.Compressor, Key: call.Key, IdempotencyKey: call.IdempotencyKey, Idempotent: call.Idempotent,
		NoWait: call.NoWait, OneWay: call.OneWay, Budget: call.Budget, Criticality: call.Criticality, Tenant: call.Tenant, Explain: call.Explain,
		Endpoint: ep,
	}
}

// another returns a new variable of the type of reply.
func another(reply any) any {
	if reply == nil {
		return nil
	}
	values, ok := reply.(yodel.Values)
	if !ok {
		v := reflect.ValueOf(reply)
		if v.Kind() != reflect.Pointer || v.IsNil() {
			return reply // the codec returns the error
		}
		return reflect.New(v.Type().Elem()).Interface()
	}
	others := make(yodel.Values, len(values))
	for i, v := range values {
		others[i] = another(v)
	}
	return others
}

// takeOver copies the reply that from points to into to. another created from for to.
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

// failure returns the error of a call that failed at some endpoints, or nil if all calls succeeded.
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
			*tried = *report // the record of the last failed call, with the attempts of all
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

// text returns the message of an error.
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

// Merge makes one reply of the replies of several endpoints. It begins with an empty reply and
// calls add with each reply, in the order of the receipts. Concat and Union are such functions:
//
//	receipts, err := fanout.Inform(ctx, client, ListOrders, &query, nil)
//	orders, err := fanout.Merge(receipts, fanout.Concat)
//
// If calls have failed, Merge returns the reply of the others and an error that names the failed
// endpoints and wraps their errors.
func Merge[Out any](receipts []Receipt[Out], add func(all, one *Out)) (*Out, error) {
	all := new(Out)
	var errs []error
	for i := range receipts {
		switch r := &receipts[i]; {
		case r.Err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", r.Addr, r.Err))
		case r.Reply != nil:
			add(all, r.Reply)
		}
	}
	return all, errors.Join(errs...)
}

// Concat appends the elements of a list: see Merge.
func Concat[S ~[]E, E any](all, one *S) { *all = append(*all, *one...) }

// Union adds the entries of a map: see Merge. If several endpoints have a key, the last one counts.
func Union[M ~map[K]V, K comparable, V any](all, one *M) {
	if *all == nil {
		*all = make(M, len(*one))
	}
	maps.Copy(*all, *one)
}

// Broadcasting is middleware that makes every call of a client a Broadcast: the client calls all
// endpoints, and the call succeeds if all of them do. Its reply is that of the first endpoint in
// the list. O may be nil.
//
// Put it outermost. The call of each endpoint passes through all middleware of the client. Calls
// that are pinned to an endpoint, streams and ordered calls are not broadcast.
func Broadcasting(o *Options) yodel.Middleware {
	return everywhere(func(ctx context.Context, c *yodel.Client, call *yodel.Call) error {
		outcomes, err := BroadcastCall(ctx, c, call, o)
		if err != nil {
			return err
		}
		takeAll(call, outcomes[0].Call)
		return nil
	})
}

// Forking is middleware that makes every call of a client a First: the client calls all endpoints,
// and the first reply counts. O may be nil. It has its place in the chain as Broadcasting does, and
// concerns the same calls.
func Forking(o *Options) yodel.Middleware {
	return everywhere(func(ctx context.Context, c *yodel.Client, call *yodel.Call) error {
		return FirstCall(ctx, c, call, o)
	})
}

// everywhere returns middleware that makes the calls of a client with do.
func everywhere(do func(ctx context.Context, c *yodel.Client, call *yodel.Call) error) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			c := call.Client()
			if c == nil || call.Endpoint != nil || call.Ordered || call.Streams() {
				return next(ctx, call)
			}
			return do(ctx, c, call)
		}
	}
}
