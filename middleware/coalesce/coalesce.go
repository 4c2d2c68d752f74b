// SPDX-License-Identifier: Apache-2.0

// Package coalesce merges equal calls that are made at the same time: it sends one, and all callers
// get its outcome.
//
// It belongs on a client, for named methods that only read. Put it above retry, so that all callers
// share the attempts. Put it just below cache, so that a thousand simultaneous misses are one call.
// Calls to a server's peers, and calls on a server, bypass it.
//
// Calls are equal if they have the same method, codec, arguments, tenant and criticality, and the
// same metadata. Options.Vary selects the metadata that counts. One-way and ordered calls, streams,
// calls with an attachment or an idempotency key, and pinned calls are never merged.
//
// The shared call goes down the rest of the chain on its own goroutine, which the client owns. Each
// caller waits until its own context or deadline ends, and leaves without disturbing the others.
// When the last caller has left, the shared call is canceled. The shared call has no other
// deadline. Each caller decodes its own copy of the reply. A caller that arrives after the reply
// makes a new call. So a reply is never older than the caller's call by more than the duration of
// one call.
//
// The idea is from Go's singleflight and Groupcache, whose callers have no contexts of their own.
package coalesce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/internal/identity"
)

// Options says which calls are merged.
type Options struct {
	// Methods are the methods whose calls are merged. Default none.
	Methods []string
	// Vary lists the metadata keys that replies depend on. Nil means all keys, and an empty slice
	// means none.
	Vary []string
	// Key returns anything else that replies depend on. It is called concurrently. Default nothing.
	Key func(ctx context.Context, call *yodel.Call) string
}

// Calls merges equal, simultaneous calls of methods.
func Calls(methods ...string) yodel.Middleware { return With(&Options{Methods: methods}) }

// With merges calls as o says. Nil merges none.
func With(o *Options) yodel.Middleware {
	opts := Options{}
	if o != nil {
		opts = *o
	}
	methods := slices.Clone(opts.Methods)
	same := identity.Options{Vary: slices.Clone(opts.Vary), Key: opts.Key}
	return func(next yodel.Handler) yodel.Handler {
		g := &group{next: next, same: same, seed: maphash.MakeSeed()}
		for i := range g.shards {
			g.shards[i].flights = make(map[string]*flight)
		}
		return func(ctx context.Context, call *yodel.Call) error {
			if !slices.Contains(methods, call.Method) || call.Client() == nil {
				return next(ctx, call)
			}
			return g.do(ctx, call)
		}
	}
}

// A group holds the shared calls of one client that are in flight, by identity.
type group struct {
	next   yodel.Handler
	same   identity.Options
	seed   maphash.Seed
	shards [16]shard
}

type shard struct {
	mu      sync.Mutex
	flights map[string]*flight
}

// A flight is a shared call.
type flight struct {
	shard   *shard
	key     string
	cancel  context.CancelFunc
	waiting int // callers; guarded by the shard's lock

	landed     chan struct{} // closed when the following fields are set
	err        error
	reply      yodel.Encoded
	header     yodel.Metadata
	trailer    yodel.Metadata
	attachment []byte
	panicked   any
}

func (g *group) do(ctx context.Context, call *yodel.Call) error {
	id := identity.Of(ctx, call, &g.same)
	if id == nil {
		return g.next(ctx, call)
	}
	id.Key = append(id.Key, byte(call.Criticality)) //nolint:gosec // classes are few
	f, joined := g.board(ctx, call, id)
	id.Release()
	if f == nil {
		return g.next(ctx, call)
	}
	if joined {
		call.Note("coalesce", "shares a call that was under way")
	}
	return f.wait(ctx, call)
}

// board returns the flight for a call, and begins one if necessary. It returns nil when the client
// is closed.
func (g *group) board(ctx context.Context, call *yodel.Call, id *identity.Scratch) (f *flight, joined bool) {
	sh := &g.shards[maphash.Bytes(g.seed, id.Key)%uint64(len(g.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f = sh.flights[string(id.Key)]; f != nil {
		f.waiting++
		return f, true
	}
	apart := call.Attempts().Detach()
	if apart == nil {
		return nil, false
	}
	f = &flight{shard: sh, key: string(id.Key), waiting: 1, landed: make(chan struct{})}
	apart.Args = &yodel.Encoded{Body: bytes.Clone(id.Request.Body), Several: id.Request.Several}
	apart.Reply = &f.reply
	var shared context.Context
	shared, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if !call.Client().Background(func(closing context.Context) {
		defer context.AfterFunc(closing, f.cancel)()
		g.fly(shared, f, apart)
	}) {
		f.cancel()
		apart.Attempts().Join(false)
		return nil, false
	}
	sh.flights[f.key] = f
	return f, false
}

// fly makes the shared call.
func (g *group) fly(ctx context.Context, f *flight, apart *yodel.Call) {
	// replaced if next returns
	f.err = yodel.Errorf(yodel.Internal, "%s: the shared call ended its goroutine", apart.Method)
	defer func() {
		f.panicked = recover() // the callers panic with it, where their code may recover
		f.cancel()
		f.shard.forget(f)
		close(f.landed)
	}()
	f.err = g.next(ctx, apart)
	f.header, f.trailer, f.attachment = apart.Header(), apart.Trailer, apart.ReplyAttachment
	apart.Attempts().Join(false)
}

// forget stops later callers from joining a flight.
func (sh *shard) forget(f *flight) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.flights[f.key] == f {
		delete(sh.flights, f.key)
	}
}

// wait waits for the outcome, until the caller's context or deadline ends.
func (f *flight) wait(ctx context.Context, call *yodel.Call) error {
	var late <-chan time.Time
	if !call.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(call.Deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-f.landed:
		return f.outcome(call)
	case <-ctx.Done():
	case <-late:
	}
	f.leave()
	e := &yodel.Error{Code: yodel.DeadlineExceeded, ID: "YDL1004", Cause: context.Cause(ctx)}
	if errors.Is(ctx.Err(), context.Canceled) {
		e.Code, e.ID = yodel.Canceled, "YDL1006"
	}
	e.Message = fmt.Sprintf("%s: the caller did not wait for the end of the call that it shared; it may be executing still", call.Method)
	return e
}

// leave removes a caller from a flight. The last one cancels it.
func (f *flight) leave() {
	f.shard.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last && f.shard.flights[f.key] == f {
		delete(f.shard.flights, f.key)
	}
	f.shard.mu.Unlock()
	if last {
		f.cancel()
	}
}

// outcome copies the outcome of the flight to the call.
func (f *flight) outcome(call *yodel.Call) error {
	if f.panicked != nil {
		panic(f.panicked)
	}
	call.Trailer, call.ReplyAttachment = maps.Clone(f.trailer), bytes.Clone(f.attachment)
	if f.header != nil {
		call.SetHeader(maps.Clone(f.header))
	}
	if f.err == nil {
		return call.Answer(&f.reply)
	}
	if e, ok := f.err.(*yodel.Error); ok { //nolint:errorlint // a wrapped error belongs to the code that wrapped it
		own := *e
		return &own
	}
	return f.err
}
