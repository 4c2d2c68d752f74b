// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"log/slog"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options changes how a process follows rules. The zero value has sensible defaults.
type Options struct {
	// Caller is the name of this process in the scope of rules, if it makes calls. Default: the
	// base name of the program.
	Caller string
	// OnChange is called after the rules of a service have changed, with the rules that are now in
	// force. It is called by one goroutine for each service. Default none.
	OnChange func(service string, rules []Rule)
	// Logger logs rules that are refused, and rules that are rolled back. Default slog.Default().
	Logger *slog.Logger
}

// A Registry is what With needs: a registrar that has resolvers for services and keeps rules.
type Registry interface {
	yodel.Registrar
	Keeper
	Service(name string) yodel.Resolver
}

// Rules makes clients and servers follow the rules in a registry. It is a yodel.Registrar, and its
// method Service returns resolvers. Its methods may be called concurrently.
type Rules struct{}

// With returns the registry r with rules. O may be nil. The clients of its resolvers follow the
// rules of their service, and the servers that it announces follow the rules of their services. It
// changes the options of these clients and servers, and needs no further wiring. A resolver that
// wraps one of these hides the rules from the client.
//
// A process reads the rules while a client of the service is open or a server of it is announced.
// If the registry fails, the last rules stay in force. If a record is not a valid rule, the last
// valid rule with its ID stays in force, until it expires.
func With(r Registry, o *Options) *Rules { return nil }

// Service returns a resolver for a service whose clients follow the rules of the service.
func (r *Rules) Service(name string) yodel.Resolver { return nil }

// Announce implements yodel.Registrar.
func (r *Rules) Announce(ctx context.Context, service string, in yodel.Instance, ttl time.Duration) error {
	return nil
}

// Withdraw implements yodel.Registrar.
func (r *Rules) Withdraw(ctx context.Context, service, addr string) error { return nil }

// Switch returns the value of a switch of a service, or otherwise if no rule sets it. It costs an
// atomic load and a search in the rules of the service.
func (r *Rules) Switch(service, name string, otherwise bool) bool { return otherwise }

// States returns the rules that this process knows, with their counters. The built-in method
// yodel.Rules of a server that is announced in r returns the same.
func (r *Rules) States() []introspect.RuleState { return nil }
