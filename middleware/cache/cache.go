// SPDX-License-Identifier: Apache-2.0

// Package cache answers calls with the replies that calls like them have had.
//
// Only methods that are named are cached: those whose replies depend on nothing but the request,
// and may be a little old. Calls are alike when they have the same method, codec, arguments and
// tenant, and the same metadata, unless Options.Vary says which of it counts. So nobody gets what
// was meant for somebody else by accident, but where there is a trace ID in the metadata nobody
// gets anything: name what counts. Who is connected (auth.Conn) does not count on a server, unless
// Options.Key says so.
//
// On a client it belongs above retry and timeout, and below fallback. It takes the reply in without
// decoding it, and decodes it for each caller, so that none shares memory with another. On a server
// it belongs below what decides who may call (auth, limits): a call that is answered is neither
// decoded nor carried out.
//
// Calls that fail are not kept, nor are fallbacks. With Options.Stale a reply that is too old
// answers calls that find the service away: the codes are Unavailable, DeadlineExceeded, and
// ResourceExhausted when it is not about the message. The trailer says so, under Key. One-way
// calls, streams, calls with an attachment or an idempotency key, and those pinned to an endpoint
// pass.
//
// Package coalesce, just below, makes one call of many that miss at the same time.
//
// Options.Contents counts hits and misses, and takes out what is not true any more. What is kept is
// bounded, in entries and in bytes. What goes first is decided by SIEVE (Zhang and others, SIEVE is
// Simpler than LRU, NSDI 2024): a hit only sets a bit, and takes no lock that another hit waits
// for.
package cache

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/internal/identity"
)

// Key is where the trailer of a call says that its reply is too old: the value is how old, for
// example "1m30s".
const Key = "yodel-stale"

// fallbackKey is where package fallback says that a reply is one.
const fallbackKey = "yodel-fallback"

// Options says what is kept, and for how long.
type Options struct {
	// Methods whose replies are kept. Default none.
	Methods []string
	// For is how long a reply is good. Default 10 s.
	For time.Duration
	// Stale is for how much longer it answers calls that find the service away. Default 0: not at
	// all.
	Stale time.Duration
	// MaxEntries is how many replies are kept at most. Default 10000.
	MaxEntries int
	// MaxBytes is how many bytes they take at most, with their keys and 200 bytes for each. Default
	// 16 MiB.
	MaxBytes int
	// Vary is the keys of metadata that replies depend on. Nil is all of them; an empty slice is
	// none.
	Vary []string
	// Key returns what else replies depend on. It is called concurrently. Default nothing.
	Key func(ctx context.Context, call *yodel.Call) string
	// Contents gives access to what is kept. Default nobody has any.
	Contents *Contents
}

// For keeps the replies of methods for d.
func For(d time.Duration, methods ...string) yodel.Middleware {
	return With(&Options{For: d, Methods: methods})
}

// forever is the longest duration of an option, a hundred years: sums of two such durations do not
// overflow.
const forever = 100 * 365 * 24 * time.Hour

// With keeps replies as o says; nil keeps none.
func With(o *Options) yodel.Middleware {
	opts := Options{}
	if o != nil {
		opts = *o
	}
	opts.Methods, opts.Vary = slices.Clone(opts.Methods), slices.Clone(opts.Vary)
	slices.Sort(opts.Methods)
	if opts.For <= 0 {
		opts.For = 10 * time.Second
	}
	opts.For, opts.Stale = min(opts.For, forever), min(max(opts.Stale, 0), forever)
	if opts.MaxEntries <= 0 {
		opts.MaxEntries = 10_000
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 16 << 20
	}
	varying, function := "all", (*Options)(nil)
	if opts.Vary != nil {
		varying = "only\x00" + strings.Join(opts.Vary, "\x00")
	}
	if opts.Key != nil { // another function may mean something else by what it returns
		function = &opts
	}
	return func(next yodel.Handler) yodel.Handler {
		c := &cached{Options: opts, next: next, identity: identity.Options{Vary: opts.Vary, Key: opts.Key}}
		c.key = storeKey{strings.Join(opts.Methods, "\x00"), varying, function, opts.MaxEntries, opts.MaxBytes}
		return func(ctx context.Context, call *yodel.Call) error {
			if !slices.Contains(c.Methods, call.Method) {
				return next(ctx, call)
			}
			return c.do(ctx, call)
		}
	}
}

type freshKey struct{}

// Fresh returns a context whose calls are not answered with what was kept. Their replies are kept.
func Fresh(ctx context.Context) context.Context { return context.WithValue(ctx, freshKey{}, true) }

// A storeKey is where the client or the server keeps the store, so that it survives a new chain,
// unless that one tells calls apart by other things.
type storeKey struct {
	methods, varying    string
	function            *Options
	maxEntries, maxSize int
}

type cached struct {
	Options

	next     yodel.Handler
	identity identity.Options
	key      any // a storeKey
	kept     atomic.Pointer[store]
}

// do carries out a call of a method whose replies are kept.
func (c *cached) do(ctx context.Context, call *yodel.Call) error {
	id := identity.Of(ctx, call, &c.identity)
	if id == nil {
		return c.next(ctx, call)
	}
	s := c.store(call)
	sh := s.shard(id.Key)
	now := call.Now()
	e := sh.find(id.Key)
	fresh := ctx.Value(freshKey{}) != nil
	if e != nil && !fresh && now.Sub(e.made) < c.For {
		id.Release()
		sh.hits.Add(1)
		return e.answer(call)
	}
	sh.misses.Add(1)
	newer := &entry{key: string(id.Key), method: call.Method, tenant: call.Tenant, args: len(id.Request.Body), purges: s.purges.Load()}
	id.Release()
	err := c.fetch(ctx, call, s, newer)
	if err == nil || e == nil || fresh || !away(ctx, err) {
		return err
	}
	age := time.Since(e.made)
	if age > c.For+c.Stale || e.answer(call) != nil {
		return err
	}
	trailer := make(yodel.Metadata, len(e.trailer)+1)
	maps.Copy(trailer, e.trailer)
	trailer[Key] = age.Round(time.Millisecond).String()
	call.Trailer = trailer
	sh.stale.Add(1)
	call.Note("cache", "the reply is "+trailer[Key]+" old, because of "+err.Error())
	return nil
}

// store returns what is kept for the client or the server of the call.
func (c *cached) store(call *yodel.Call) *store {
	if s := c.kept.Load(); s != nil {
		return s
	}
	s := call.State(c.key, func() any { return newStore(c.MaxEntries, c.MaxBytes) }).(*store) //nolint:forcetypeassert // it is the key's only kind
	if c.Contents != nil {
		c.Contents.add(s)
	}
	c.kept.Store(s)
	return s
}

// fetch makes the call, and keeps the reply in e.
func (c *cached) fetch(ctx context.Context, call *yodel.Call, s *store, e *entry) error {
	if call.Peer() != nil {
		err := c.next(ctx, call)
		if err != nil {
			return err
		}
		reply, err := call.Encode()
		if err == nil {
			c.keep(call, s, e, reply)
		}
		return err
	}
	reply := &yodel.Encoded{}
	if err := c.record(ctx, call, reply); err != nil {
		return err
	}
	c.keep(call, s, e, reply)
	return call.Answer(reply)
}

// record makes the call with another place for the reply.
func (c *cached) record(ctx context.Context, call *yodel.Call, reply *yodel.Encoded) error {
	users := call.Reply
	defer func() { call.Reply = users }()
	call.Reply = reply
	return c.next(ctx, call)
}

func (c *cached) keep(call *yodel.Call, s *store, e *entry, reply *yodel.Encoded) {
	if call.Trailer[fallbackKey] != "" || call.Trailer[Key] != "" {
		return
	}
	e.made = time.Now()
	e.until = e.made.Add(c.For + c.Stale)
	e.trailer, e.attachment = maps.Clone(call.Trailer), bytes.Clone(call.ReplyAttachment)
	e.reply = yodel.Encoded{Body: bytes.Clone(reply.Body), Several: reply.Several}
	s.keep(e)
}

// answer makes the reply that was kept the call's.
func (e *entry) answer(call *yodel.Call) error {
	if e.trailer != nil || call.Trailer != nil {
		call.Trailer = maps.Clone(e.trailer)
	}
	if e.attachment != nil || call.ReplyAttachment != nil {
		call.ReplyAttachment = bytes.Clone(e.attachment)
	}
	return call.Answer(&e.reply)
}

// away reports whether err says that the service is not available.
func away(ctx context.Context, err error) bool {
	if errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded:
		return true
	case yodel.ResourceExhausted:
		e, ok := errors.AsType[*yodel.Error](err)
		return !ok || !e.AboutMessage()
	default:
		return false
	}
}
