// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// Each returns middleware that lets at most n calls with the same key run at a time. So one user,
// tenant or address cannot take all places. By returns the key of a call. It may be a function of
// package rate, as in Each(10, rate.User). An n below 1 counts as 1. Streams count until they end.
//
// A call beyond n is refused at once with ResourceExhausted (YDL3201). Each knows only the keys of
// calls that are running, so keys that callers invent take no memory. The built-in methods and
// ordered calls of a client do not count. Put a limit for all calls below it.
func Each[K comparable](n int, by func(ctx context.Context, call *yodel.Call) K) yodel.Middleware {
	n = max(n, 1)
	return func(next yodel.Handler) yodel.Handler {
		r := &perKey[K]{seed: maphash.MakeSeed()}
		return func(ctx context.Context, call *yodel.Call) error {
			if strings.HasPrefix(call.Method, "yodel.") || call.Ordered && call.Peer() == nil {
				return next(ctx, call)
			}
			key := by(ctx, call)
			if !r.begin(key, n) {
				return fullFor(call, n)
			}
			defer r.end(key)
			return next(ctx, call)
		}
	}
}

// A perKey counts the calls that run, by key. Keys are spread over several maps, so that calls on
// different processors seldom wait for the same lock.
type perKey[K comparable] struct {
	seed  maphash.Seed
	parts [64]struct {
		mu sync.Mutex
		n  map[K]int
		_  [48]byte // a cache line for each
	}
}

// begin counts a call, unless n calls with its key are running.
func (r *perKey[K]) begin(key K, n int) bool {
	p := &r.parts[maphash.Comparable(r.seed, key)%uint64(len(r.parts))]
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.n[key]
	if now >= n {
		return false
	}
	if p.n == nil {
		p.n = make(map[K]int)
	}
	p.n[key] = now + 1
	return true
}

// end counts a call that has ended.
func (r *perKey[K]) end(key K) {
	p := &r.parts[maphash.Comparable(r.seed, key)%uint64(len(r.parts))]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n[key]--; p.n[key] == 0 {
		delete(p.n, key)
	}
}

// fullFor returns the error of a call that is refused because n calls with its key are running.
func fullFor(call *yodel.Call, n int) *yodel.Error {
	why := fmt.Sprintf("%d calls of its caller are running, and no more may", n)
	if call.Peer() == nil {
		call.Note("limit", why)
	}
	return &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3201", NotProcessed: true, Message: call.Method + ": " + why}
}
