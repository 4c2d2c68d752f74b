// SPDX-License-Identifier: Apache-2.0

// Package cache answers calls with the replies of earlier, equal calls.
//
// It caches only named methods. Their replies must depend on nothing but the request, and may be a
// little old. Calls are equal if they have the same method, codec, arguments and tenant, and the
// same metadata. Options.Vary selects the metadata that counts. By default all metadata counts, so
// no caller gets another caller's reply by accident. But with a trace ID in the metadata there are
// no hits: set Vary then. On a server, the identity of the connection (auth.Conn) does not count,
// unless Options.Key returns it.
//
// On a client, put it above retry and timeout, and below fallback. It stores the reply, with its
// header, trailer and attachment, without decoding it, and decodes it for each caller, so callers
// share no memory. On a server, put it below the middleware that decides about access (auth,
// limits). A call that is answered from the cache is neither decoded nor executed. Over HTTP the
// cache answers as the method did: it sets neither Cache-Control nor ETag, and ignores the headers
// with which browsers ask for them.
//
// Calls that fail, and fallbacks, are not cached. With Options.Stale, an expired reply answers a
// call that finds the service unavailable: with the code Unavailable, DeadlineExceeded, or
// ResourceExhausted unless that is about the message. The trailer then has Key. One-way calls,
// streams, calls with an attachment or an idempotency key, and pinned calls bypass the cache.
//
// Package coalesce, placed just below, merges many simultaneous misses into one call.
//
// Options.Contents counts hits and misses, and removes entries. The cache is bounded in entries and
// in bytes. SIEVE chooses which entry is evicted (Zhang and others, SIEVE is Simpler than LRU, NSDI
// 2024): a hit only sets a bit, and does not wait for a lock that another hit holds.
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
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/middleware/internal/identity"
)

// Key is the trailer key that marks an expired reply. The value is its age, for example "1m30s".
const Key = "yodel-stale"

// fallbackKey is the trailer key with which package fallback marks a reply.
const fallbackKey = "yodel-fallback"

// Options says what is cached, and for how long.
type Options struct {
	// Methods are the methods whose replies are cached. Default none.
	Methods []string
	// For is how long a reply is valid. Default 10 s.
	For time.Duration
	// Stale is how much longer a reply may answer calls that find the service unavailable. Default
	// 0: not at all.
	Stale time.Duration
	// MaxEntries bounds the number of cached replies. Default 10000.
	MaxEntries int
	// MaxBytes bounds their size, including their keys and 200 bytes for each. Default 16 MiB.
	MaxBytes int
	// Vary lists the metadata keys that replies depend on. Nil means all keys, and an empty slice
	// means none.
	Vary []string
	// Key returns anything else that replies depend on. It is called concurrently. Default nothing.
	Key func(ctx context.Context, call *yodel.Call) string
	// Contents gives access to the cached replies. Default none.
	Contents *Contents
}

// For caches the replies of methods for d.
func For(d time.Duration, methods ...string) yodel.Middleware {
	return With(&Options{For: d, Methods: methods})
}

// With caches replies as o says. Nil caches nothing.
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
	opts.For, opts.Stale = min(opts.For, defaults.Forever), min(max(opts.Stale, 0), defaults.Forever)
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
	if opts.Key != nil { // another function may return something else
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

// Fresh returns a context whose calls are not answered from the cache. Their replies are cached.
func Fresh(ctx context.Context) context.Context { return context.WithValue(ctx, freshKey{}, true) }

// A storeKey is the key under which the client or the server keeps the store. A store survives a
// new chain, unless the new chain distinguishes calls in another way.
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

// do handles a call of a cached method.
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

// store returns the store of the client or the server of the call.
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

// fetch makes the call and stores the reply in e.
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

// record makes the call with reply as the destination of the reply.
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
	e.header, e.trailer, e.attachment = maps.Clone(call.Header()), maps.Clone(call.Trailer), bytes.Clone(call.ReplyAttachment)
	e.reply = yodel.Encoded{Body: bytes.Clone(reply.Body), Several: reply.Several}
	s.keep(e)
}

// answer decodes the cached reply into the call.
func (e *entry) answer(call *yodel.Call) error {
	if e.header != nil || call.Header() != nil {
		call.SetHeader(maps.Clone(e.header))
	}
	if e.trailer != nil || call.Trailer != nil {
		call.Trailer = maps.Clone(e.trailer)
	}
	if e.attachment != nil || call.ReplyAttachment != nil {
		call.ReplyAttachment = bytes.Clone(e.attachment)
	}
	return call.Answer(&e.reply)
}

// away reports whether err says that the service is unavailable.
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
