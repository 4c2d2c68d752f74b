// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel/internal/guard"
)

// A guarded is a Registry that cannot end the process or the announcing goroutine.
type guarded[R any] struct {
	Registry[R]
	guard *guard.Guard
}

// Announce implements Registry.
func (r guarded[R]) Announce(ctx context.Context, service string, record R, ttl time.Duration) error {
	return r.guard.Apart("the Registrar's Announce", nil, func() error { return r.Registry.Announce(ctx, service, record, ttl) })
}

// Withdraw implements Registry.
func (r guarded[R]) Withdraw(ctx context.Context, service, addr string) error {
	return r.guard.Apart("the Registrar's Withdraw", nil, func() error { return r.Registry.Withdraw(ctx, service, addr) })
}

// guardedSettings returns a function that opens the same settings, and that cannot end the process
// or the goroutine that watches them. The same applies to what it returns.
func guardedSettings(open func(service string) Watch, g *guard.Guard) func(service string) Watch {
	return func(service string) (watch Watch) {
		var opened Watch
		err := g.Apart("the Registrar's Overrides", nil, func() error {
			opened = open(service)
			return nil
		})
		if err != nil || opened == nil {
			return nil
		}
		return func(ctx context.Context, update func([]Setting)) error {
			return g.Apart("the Watch of a registry's settings", nil, func() error { return opened(ctx, update) })
		}
	}
}
