// SPDX-License-Identifier: Apache-2.0

package once

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// A scope is the name of the store. The guard may have to ask the store for it.
type scope struct {
	mu    sync.Mutex
	name  string    // empty while unknown
	asked time.Time // when the store was asked last; zero before the first time
	lost  bool      // the store has lost keys, and with them perhaps its name
}

// askAgain is the pause before a store that did not answer is asked again.
const askAgain = time.Second

// Scope implements KeyMemory. The first call waits for the store, up to Options.Timeout. If
// the store does not answer, a later call asks it again in the background. The store is asked even
// if the program names it, because it then begins to notice the loss of keys.
func (g *guard) Scope() (name string, keep time.Duration) {
	store, named := g.Store.(interface {
		Identity(ctx context.Context) (string, error)
	})
	if !named {
		return g.Options.Scope, g.Keep
	}
	s := &g.scope
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.asked.IsZero()
	if s.name != "" && !s.lost || !first && time.Since(s.asked) < askAgain {
		return cmp.Or(g.Options.Scope, s.name), g.Keep
	}
	s.asked = time.Now()
	ask := func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), g.Timeout)
		defer cancel()
		return store.Identity(ctx)
	}
	if first {
		var err error
		if s.name, err = ask(); err != nil && g.Options.Scope == "" {
			cmp.Or(g.Logger, slog.Default()).Warn("the store of idempotency keys does not answer: until it does, new clients are told that the server does not remember keys", "err", err)
		}
		return cmp.Or(g.Options.Scope, s.name), g.Keep
	}
	go func() {
		var name string
		var err error
		if aside.Do("the Store's Identity", g.Logger, func() { name, err = ask() }) != nil || err != nil {
			return // a later call asks again
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.name, s.lost = name, false
	}()
	return cmp.Or(g.Options.Scope, s.name), g.Keep
}

// emptied notes that the store has lost keys, and asks it for its name again.
func (g *guard) emptied() {
	s := &g.scope
	s.mu.Lock()
	first := !s.lost
	if first {
		s.lost, s.asked = true, s.asked.Add(-askAgain)
	}
	s.mu.Unlock()
	if first {
		cmp.Or(g.Logger, slog.Default()).Warn("the store of idempotency keys has lost keys: calls that were sent before fail with YDL3402")
	}
	g.Scope()
}
