// SPDX-License-Identifier: Apache-2.0

// Package coalesce makes one call of several that are for the same at the same time: one is sent,
// and all get its outcome.
//
// It belongs on a client, for methods that are named: those that only read. Above retry, so that
// the attempts are those of all of them, and just below cache, so that a thousand calls that miss
// at once are one. Calls to a server's peers and calls on a server pass.
//
// Calls are for the same when they have the same method, codec, arguments, tenant and criticality,
// and the same metadata, unless Options.Vary says which of it counts. One-way and ordered calls,
// streams, calls with an attachment or an idempotency key, and those pinned to an endpoint are like
// no other.
//
// The shared call goes down the rest of the chain on its own goroutine, which the client owns. Each
// caller waits for as long as its own context and deadline allow, and leaves without disturbing the
// others; when the last one has left, the shared call is canceled. It has no deadline but that.
// Each caller has the reply decoded for itself. A caller that comes when the reply has come makes a
// call of its own: nobody gets a reply that is older than its call by more than the time that one
// takes.
//
// The idea is that of Go's singleflight and of Groupcache, in which callers have no contexts of
// their own.
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

// Options says which calls are made together.
type Options struct {
	// Methods whose calls are. Default none.
	Methods []string
	// Vary is the keys of metadata that replies depend on. Nil is all of them; an empty slice is
	// none.
	Vary []string
	// Key returns what else replies depend on. It is called concurrently. Default nothing.
	Key func(ctx context.Context, call *yodel.Call) string
}

// Calls makes one call of those of methods that are for the same at the same time.
func Calls(methods ...string) yodel.Middleware { return With(&Options{Methods: methods}) }

// With makes calls together as o says; nil makes each alone.
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

// A group is the shared calls of one client that are under way, by what they are for.
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

	landed     chan struct{} // closed when what follows is known
	err        error
	reply      yodel.Encoded
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

// board returns the flight for a call, which it begins if there is none; nil when the client is
// closed.
func (g *group) board(ctx context.Context, call *yodel.Call, id *identity.Scratch) (f *flight, joined bool) {
	sh := &g.shards[maphash.Bytes(g.seed, id.Key)%uint64(len(g.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f = sh.flights[string(id.Key)]; f != nil {
		f.waiting++
		return f, true
	}
	apart := call.Apart()
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
		apart.End()
		return nil, false
	}
	sh.flights[f.key] = f
	return f, false
}

// fly carries out the shared call.
func (g *group) fly(ctx context.Context, f *flight, apart *yodel.Call) {
	f.err = yodel.Errorf(yodel.Internal, "%s: the shared call ended its goroutine", apart.Method) // unless next returns
	defer func() {
		f.panicked = recover() // it goes on where somebody may recover it: in the callers
		f.cancel()
		f.shard.forget(f)
		close(f.landed)
	}()
	f.err = g.next(ctx, apart)
	f.trailer, f.attachment = apart.Trailer, apart.ReplyAttachment
	apart.End()
}

// forget makes later callers not join a flight.
func (sh *shard) forget(f *flight) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.flights[f.key] == f {
		delete(sh.flights, f.key)
	}
}

// wait waits for the outcome for as long as the caller does.
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

// leave takes leave of a flight. The last one ends it.
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

// outcome makes the outcome of the flight the call's.
func (f *flight) outcome(call *yodel.Call) error {
	if f.panicked != nil {
		panic(f.panicked)
	}
	call.Trailer, call.ReplyAttachment = maps.Clone(f.trailer), bytes.Clone(f.attachment)
	if f.err == nil {
		return call.Answer(&f.reply)
	}
	if e, ok := f.err.(*yodel.Error); ok { //nolint:errorlint // one that is wrapped belongs to who wrapped it
		own := *e
		return &own
	}
	return f.err
}
