// SPDX-License-Identifier: Apache-2.0

// Package once remembers the outcomes of calls that have an idempotency key. The first call with a
// key is executed and its outcome is recorded. Later calls with the same key get the recorded
// outcome. So when a connection was lost and the outcome of a call is unknown, a call with a key
// may be sent again to servers that remember the key.
//
//	yodel.NewServer(&yodel.ServerOptions{Keys: once.With(nil), Middleware: []yodel.Middleware{auth.Check(check)}})
//	yodel.NewClient(resolver, &yodel.ClientOptions{Middleware: []yodel.Middleware{timeout.After(time.Second), once.Keys(), retry.Times(3)}})
//
// On a server With is an option and not a middleware, so that it covers every method: the server
// tells its clients that it remembers keys. It runs below all middleware, so authentication and
// limits decide about each attempt. Middleware that is part of the execution, such as a
// transaction, belongs in Options.Inner. Calls without a key cost nothing. A call with a key waits,
// as long as its context allows, while another call with the same key is executed. A stream with a
// key is refused (YDL2006), because its messages are not remembered. On a client, put Keys above
// retry and hedging.
//
// # Where keys are remembered
//
// The default Store is a Memory, which belongs to one process. If a call may have been executed, a
// client sends it again only to the process that received it. The client does not hedge it. A
// shared store, such as the one of package middleware/redis, has a name (Options.Scope). A client
// sends such a call again to any server that names the same store. If the program makes a second
// call with the same key, the balancer picks its endpoint. With a Memory, another process may then
// execute it again.
//
// A key is remembered for Options.Keep. During that time a call with the key is never executed
// twice while the store lives. A request that arrives later than Options.Keep after its key was
// first sent is refused with YDL3406, if the store does not know the key. If the server dies during
// a call, or its outcome cannot be recorded, later calls with the key fail with YDL3402, which
// leaves open whether it was executed. Calls that were sent before a store lost keys fail with
// YDL3402 too, if the store notices it, as that of package middleware/redis does. A reply that is
// too large, or that was evicted, is not kept.
// Later calls then fail with YDL3403, which says that the call was executed.
//
// # Which outcomes are recorded
//
// Replies and the errors of methods are recorded, with their headers, trailers and attachments.
// Some errors are not recorded, so that the method may be called again: errors of calls that did
// not reach the method, which were certainly not executed, and the codes that mean "not now":
// Unavailable, ResourceExhausted and Aborted. A method must not return these codes after an action
// that must not be repeated. Options.Final changes which errors are recorded. A method that panics
// leaves an unknown outcome: YDL3402.
//
// If the connection of its caller is lost, a method goes on for up to Options.Outlive, because the
// next attempt asks for its outcome. Its deadline stays in force.
//
// # Separation of callers
//
// A key belongs to its method and its tenant, and to the caller if Options.Caller identifies
// callers. Then two callers may use the same key. Without Caller, the request and the credentials
// of the caller must be the same as the first time. Credentials are the token in the metadata of
// the call and of the connection, and the identity in the caller's certificate. Otherwise the call
// is refused with YDL3401, so that a caller cannot read another caller's reply by guessing a key.
// Different arguments are refused too. The server compares encoded arguments: see Keys.
package once

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/defaults"
)

// Options says which outcomes are recorded, where, and for how long. The zero value has sensible
// defaults.
type Options struct {
	// Keep is how long an outcome is remembered. A key is remembered for at least as long. Default
	// 10 min.
	Keep time.Duration
	// MaxReply bounds the bytes of a recorded outcome, including its header, trailer and
	// attachment. Default 256 KiB.
	MaxReply int
	// Caller returns the caller of a call, for example the user that a middleware above has put
	// into the context. It must return the same for all attempts of a call, even if a token was
	// renewed between them. Default: see the package comment.
	Caller func(ctx context.Context, call *yodel.Call) string
	// AnyRequest turns off the comparison of the requests of calls with the same key. Default
	// false.
	AnyRequest bool
	// Final reports whether an error of a method is recorded. Default: every error is, except those
	// with the code Unavailable, ResourceExhausted or Aborted.
	Final func(err error) bool
	// Outlive is how long a method may go on after its caller has gone. It ends earlier when the
	// server drains. Default 30 s.
	Outlive time.Duration

	// Store is where outcomes are recorded. Default: the memory of the server, with the bounds of
	// NewMemory(nil).
	Store Store
	// Scope is the name of Store. All servers that share the store must use the same name, and no
	// other servers. Clients send a call that may have been executed again only where the name is
	// the same. Default: the name that the store reports. A Memory does, and so does every Store
	// with the method Identity(context.Context) (string, error), such as that of package
	// middleware/redis. Without a name, clients learn that the server does not remember keys.
	Scope string
	// Inner is middleware that belongs to the execution of a call, for example to commit a
	// transaction. It runs once for each key, like the method, and its errors are recorded like
	// those of the method. Default none.
	Inner []yodel.Middleware
	// Lease is how long after the death of a server it is certain that it no longer executes a
	// call. The server renews the lease three times in that time. Default 15 s, or Keep if that is
	// shorter.
	Lease time.Duration
	// Timeout is how long Store may take to answer. Default 1 s.
	Timeout time.Duration
	// Logger logs when an outcome could not be recorded. Default slog.Default().
	Logger *slog.Logger
}

// A Store keeps a value under a key for the first owner that claims the key. It must be safe for
// concurrent use. All methods end with ctx, which has a deadline. Package oncetest has its tests.
type Store interface {
	// Claim stores value under key for the owner, which then executes the call, and returns nil. If
	// there is already a value, Claim changes nothing. It then returns that value, and whether its
	// owner is alive: the owner has put its outcome, or it has claimed or renewed the key less than
	// its lease ago. The value stays for keep in any case. If there was no value, whole
	// is the time for which the store has certainly not lost a key, at least 1 ns. The server does
	// not execute a call that was first sent before that time. A store that never loses keys
	// returns keep. If there is no room, Claim returns an error with the code ResourceExhausted.
	Claim(ctx context.Context, key, owner string, value []byte, lease, keep time.Duration) (found []byte, alive bool, whole time.Duration, err error)
	// Renew reports that the owner is alive. The time for which the value stays begins again,
	// because a method may take longer than that.
	Renew(ctx context.Context, key, owner string, lease time.Duration) error
	// Put replaces the value that the owner claimed, and keeps it for keep. If the value no longer
	// exists, Put does nothing.
	Put(ctx context.Context, key, owner string, value []byte, keep time.Duration) error
	// Drop removes the key, unless the owner has put an outcome.
	Drop(ctx context.Context, key, owner string) error
}

// A KeyMemory remembers the outcomes of calls that have an idempotency key: see
// yodel.ServerOptions.Keys.
type KeyMemory interface {
	Guard(next yodel.Handler) yodel.Handler
	Scope() (name string, keep time.Duration)
}

// With returns a memory of keys for yodel.ServerOptions.Keys. Nil means the default Options.
// Servers of one process that use the same KeyMemory share it.
func With(o *Options) KeyMemory {
	g := &guard{}
	if o != nil {
		g.Options = *o
	}
	g.Keep = defaults.Positive(g.Keep, 10*time.Minute)
	g.MaxReply = defaults.Positive(g.MaxReply, 256<<10)
	g.Outlive = defaults.Positive(g.Outlive, 30*time.Second)
	g.Lease = defaults.Positive(g.Lease, 15*time.Second)
	g.Lease = min(g.Lease, g.Keep) // otherwise the key would expire before it is renewed
	g.Timeout = defaults.Positive(g.Timeout, time.Second)
	if g.Final == nil {
		g.Final = final
	}
	if g.Store == nil {
		g.Store = NewMemory(nil)
	}
	g.Inner = slices.Clone(g.Inner)
	return g
}

// Guard implements KeyMemory.
func (g *guard) Guard(next yodel.Handler) yodel.Handler {
	for _, m := range slices.Backward(g.Inner) {
		next = m(next)
	}
	return func(ctx context.Context, call *yodel.Call) error {
		if call.IdempotencyKey == "" {
			return next(ctx, call)
		}
		return g.do(ctx, call, next)
	}
}

func final(err error) bool {
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.ResourceExhausted, yodel.Aborted:
		return false
	default:
		return true
	}
}

// A guard is the KeyMemory that With returns.
type guard struct {
	Options

	flights flights
	scope   scope
}

// An intent is a call with a key while the guard handles it.
type intent struct {
	*guard

	call   *yodel.Call
	next   yodel.Handler
	key    string
	print  fingerprint
	owner  string
	flight *flight
}

func (g *guard) do(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	if call.Streams() {
		return &yodel.Error{
			Code: yodel.InvalidArgument, ID: "YDL2006", NotProcessed: true,
			Message: call.Method + ": a stream cannot have an idempotency key here: what went over it is not remembered",
		}
	}
	in := &intent{guard: g, call: call, next: next}
	var err error
	if in.print, err = g.fingerprintOf(call); err != nil {
		return err
	}
	in.key = g.keyOf(ctx, call)
	done := ctx.Done() // the call may wait from here on
	for {
		flight, first := g.flights.board(in.key)
		if first {
			in.flight = flight
			return in.leadAndLand(ctx)
		}
		select {
		case <-flight.landed:
		case <-done:
			return in.gaveUp(ctx)
		}
		call.Note("once", "waited for another call with the same key")
		if flight.record != nil {
			return in.answer(flight.record)
		}
	}
}

// owners counts the claims of this process, to give each a unique owner.
var owners atomic.Uint64

func (in *intent) leadAndLand(ctx context.Context) error {
	defer in.flights.land(in.key, in.flight)
	return in.lead(ctx)
}

// lead executes the call, or finds its recorded outcome. It does so for all calls with the key on
// this server. It stores the outcome in flight.record.
func (in *intent) lead(ctx context.Context) error {
	if in.local() {
		in.owner = strconv.FormatUint(owners.Add(1), 36)
	} else {
		in.owner = rand.Text()
	}
	claim := appendRecord(nil, claimed, in.print)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		asking, cancel := in.asking(ctx)
		found, alive, whole, err := in.Store.Claim(asking, in.key, in.owner, claim, in.Lease, in.Keep)
		cancel()
		switch {
		case err != nil:
			return in.unclaimed(ctx, err)
		case found == nil && in.call.KeyAge() >= in.Keep:
			return in.tooLate(ctx)
		case found == nil && in.call.KeyAge() >= whole:
			return in.forgotten(ctx, whole)
		case found == nil:
			return in.execute(ctx)
		case kindOf(found) != claimed:
			in.flight.record = found
			return in.answer(found)
		case printOf(found) != in.print:
			return in.other()
		case !alive:
			return in.unknown()
		}
		if !sleep(ctx, pause) {
			return in.gaveUp(ctx)
		}
	}
}

// execute executes the call and records its outcome.
func (in *intent) execute(ctx context.Context) error {
	going, ended := in.outlive(ctx)
	defer ended()
	heart := in.beat(going)
	defer heart.stop()
	returned := false
	defer func() {
		if !returned { // the method panicked or ended its goroutine
			in.put(going, appendRecord(nil, lost, in.print))
		}
	}()
	err := in.next(going, in.call)
	returned = true
	heart.stop()
	if err != nil && (!in.call.Executed() || !in.Final(err)) {
		in.drop(going)
		return err
	}
	record, err := in.record(err)
	in.put(going, record)
	in.flight.record = record
	return err
}

// record returns the record of the outcome of a call. It also returns the error for the caller.
func (in *intent) record(err error) ([]byte, error) {
	if err != nil {
		return appendError(in.print, in.call, err, in.MaxReply), err
	}
	reply, err := in.call.Encode()
	if err != nil {
		return appendRecord(nil, unkept, in.print), err
	}
	return appendReply(in.print, in.call, reply, in.MaxReply), nil
}

// put records the outcome. If that fails, the caller still gets the outcome.
func (in *intent) put(ctx context.Context, record []byte) {
	err := in.detached(ctx, func(ctx context.Context) error { return in.Store.Put(ctx, in.key, in.owner, record, in.Keep) })
	if err != nil {
		in.call.Note("once", "the outcome could not be recorded")
		cmp.Or(in.Logger, slog.Default()).WarnContext(ctx, "the outcome of a call with an idempotency key could not be recorded", "method", in.call.Method, "err", err)
	}
}

func (in *intent) drop(ctx context.Context) {
	err := in.detached(ctx, func(ctx context.Context) error { return in.Store.Drop(ctx, in.key, in.owner) })
	if err != nil {
		in.call.Note("once", "the key could not be made free")
		cmp.Or(in.Logger, slog.Default()).WarnContext(ctx, "an idempotency key could not be made free", "method", in.call.Method, "err", err)
	}
}

// detached calls tell with a context that does not end when the caller goes away.
func (in *intent) detached(ctx context.Context, tell func(ctx context.Context) error) error {
	asking, cancel := in.asking(context.WithoutCancel(ctx))
	defer cancel()
	return tell(asking)
}

// local reports whether the store is in this process. Such a store answers at once and needs no
// lease.
func (in *intent) local() bool {
	_, local := in.Store.(*Memory)
	return local
}

// asking returns the context for a request to the store.
func (in *intent) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	if in.local() {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, in.Timeout)
}

// unclaimed returns the error of a call whose Claim failed. It also drops the key, because the
// store may have claimed it despite the error.
func (in *intent) unclaimed(ctx context.Context, err error) error {
	if yodel.CodeOf(err) == yodel.ResourceExhausted {
		e := in.refusal(yodel.ResourceExhausted, "YDL3404", "the store has no room for another idempotency key")
		e.RetryAfter, e.Cause = time.Second, err
		if own, ok := errors.AsType[*yodel.Error](err); ok && own.RetryAfter > 0 {
			e.RetryAfter = own.RetryAfter
		}
		return e
	}
	in.drop(ctx)
	if ctx.Err() != nil {
		e := in.gaveUp(ctx)
		e.NotProcessed = true
		return e
	}
	e := in.refusal(yodel.Unavailable, "YDL3405", "the store of idempotency keys does not answer")
	e.Cause = err
	return e
}

// tooLate returns the error of a call whose key the store does not know and that was first sent so
// long ago that the store may have forgotten it.
func (in *intent) tooLate(ctx context.Context) error {
	in.drop(ctx)
	return in.refusal(yodel.Aborted, "YDL3406", fmt.Sprintf("the idempotency key was first sent %v ago, and keys are remembered for %v",
		in.call.KeyAge().Round(time.Millisecond), in.Keep))
}

// forgotten returns the error of a call that was first sent before the store lost keys. It records
// that the outcome is unknown, also for later calls of the program with the key.
func (in *intent) forgotten(ctx context.Context, whole time.Duration) error {
	in.emptied() //nolint:contextcheck // it asks the store in the background
	in.flight.record = appendRecord(nil, lost, in.print)
	in.put(ctx, in.flight.record)
	e := in.unknown()
	e.Message = fmt.Sprintf("%s: the store of idempotency keys may have lost this key %v ago, when the call had been sent; it may have been executed",
		in.call.Method, whole.Round(time.Millisecond))
	return e
}

// answer sets the outcome of the call to a recorded one.
func (in *intent) answer(record []byte) error {
	if len(record) < headSize {
		return in.refusal(yodel.Unavailable, "YDL3405", "the store of idempotency keys holds something else under this key")
	}
	if printOf(record) != in.print {
		return in.other()
	}
	switch kindOf(record) {
	case lost:
		return in.unknown()
	case unkept:
		return &yodel.Error{
			Code: yodel.AlreadyExists, ID: "YDL3403",
			Message: in.call.Method + ": the call with this idempotency key was executed, and its reply was not kept",
		}
	}
	outcome, err := readOutcome(record)
	if err != nil {
		e := in.refusal(yodel.Unavailable, "YDL3405", "the store of idempotency keys holds something else under this key")
		e.Cause = err
		return e
	}
	in.call.Note("once", "answered with what was recorded")
	in.call.Trailer, in.call.ReplyAttachment = outcome.trailer, outcome.attachment
	if outcome.header != nil {
		in.call.SetHeader(outcome.header)
	}
	if outcome.err != nil {
		return outcome.err
	}
	in.call.Reply = outcome.reply
	return nil
}

// other returns the error of a call whose key was used for another call. The error does not say
// that the call was not executed, because the same arguments may have been encoded differently.
func (in *intent) other() error {
	in.call.Note("once", "refused: the key belongs to another call")
	return &yodel.Error{
		Code: yodel.InvalidArgument, ID: "YDL3401",
		Message: in.call.Method + ": the idempotency key was used before, for other arguments or by another caller",
	}
}

func (in *intent) unknown() *yodel.Error {
	return &yodel.Error{
		Code: yodel.Aborted, ID: "YDL3402",
		Message: in.call.Method + ": the call with this idempotency key was begun before, and nobody knows how it ended; it may have been executed",
	}
}

func (in *intent) refusal(code yodel.Code, id, why string) *yodel.Error {
	in.call.Note("once", "refused: "+why)
	return &yodel.Error{Code: code, ID: id, Message: fmt.Sprintf("%s: %s", in.call.Method, why), NotProcessed: true}
}

// gaveUp returns the error of a call that stopped waiting for another call with the same key. That
// other call may have been executed.
func (in *intent) gaveUp(ctx context.Context) *yodel.Error {
	e := &yodel.Error{Code: yodel.Canceled, ID: "YDL1006", Cause: context.Cause(ctx)}
	e.Message = in.call.Method + ": the caller canceled it while another call with the same idempotency key was being executed"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Code, e.ID = yodel.DeadlineExceeded, "YDL1004"
		e.Message = in.call.Method + ": the deadline passed while another call with the same idempotency key was being executed"
	}
	return e
}

// sleep waits for d, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
