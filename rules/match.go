// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// An active rule is a rule in use, with its state. It survives changes of other rules.
type active struct {
	Rule

	source []byte // the record
	since  time.Time
	counts *counts
	note   string // what the records of calls say about the rule

	kind *kind
	// wrap makes the middleware of the rule around calls, for a server or, if that is nil, for a
	// client. It is nil if the rule does not wrap calls. The state of the rule belongs to that
	// middleware or has the name of the rule, so it survives when chains are built again.
	wrap         func(server *yodel.Server) yodel.Middleware
	endpoint     yodel.EndpointMiddleware // nil if the rule does not wrap the attempts on an endpoint
	countsItself bool                     // the middleware counts the calls on which the rule acts
	injected     func() uint64            // how many calls it has counted beside counts.hits; may be nil

	samples []sample     // of the counts, for Rollback; only the service's goroutine uses them
	held    string       // why the instances of a canary do not take its calls; guarded by the service's lock
	rest    *active      // what acts when the rule has ended; nil if nothing does
	network netip.Prefix // Rule.Network
	machine []netip.Addr // the addresses of this machine; nil without Rule.Network
}

// counts are the counters of the rules with one ID. Meant counts the calls that a canary has drawn
// while it had an instance, and taken those that went to one. Via is a client in which another
// instance took such a call.
type counts struct {
	hits, good, bad, meant, taken atomic.Uint64
	via                           atomic.Pointer[yodel.Client]
}

// newActive returns a rule in use. Old is the rule of the same ID before, or nil.
func newActive(r Rule, source []byte, old *active) *active {
	a := &active{Rule: r, kind: r.kind(), source: bytes.Clone(source), since: time.Now(), counts: new(counts)}
	if old != nil {
		a.counts = old.counts
		if old.injected != nil {
			a.counts.hits.Add(old.injected())
		}
	}
	a.note = "rule " + r.ID + ": " + strings.ToLower(r.does()[:1]) + r.does()[1:]
	a.locate()
	if a.kind.build != nil {
		a.kind.build(a)
	}
	ended := r
	ended.Off = true
	if rest := ended.acting(a.since); rest != nil {
		a.rest = &active{Rule: *rest, kind: a.kind, since: a.since, counts: a.counts, note: a.note + ", which has ended", network: a.network, machine: a.machine}
	}
	return a
}

// around makes m the middleware of the rule, on both sides.
func (a *active) around(m yodel.Middleware) {
	a.wrap = func(*yodel.Server) yodel.Middleware { return m }
}

// name names the rule in what its middleware says.
func (a *active) name() string { return "rule " + a.ID }

// hits returns how often the rule has acted.
func (a *active) hits() uint64 {
	n := a.counts.hits.Load()
	if a.injected != nil {
		n += a.injected()
	}
	return n
}

// locate reads Rule.Network, which Check has found to be valid.
func (a *active) locate() {
	if a.Network == "" {
		return
	}
	if network, err := parseNetwork(a.Network); err == nil {
		a.network, a.machine = network, machineAddresses()
	}
}

// Concerns reports whether a call that a caller makes is in the scope of the rule. Ctx is the
// context of the call, which has the identity of the caller on a server.
func (r *Rule) Concerns(ctx context.Context, call *yodel.Call, caller string) bool {
	if r.Network != "" {
		network, err := parseNetwork(r.Network)
		if err != nil || !comesFrom(network, call, machineAddresses()) {
			return false
		}
	}
	_, short := splitMethod(call.Method)
	return r.hasMethod(call.Method, short) && r.describes(call, caller) && r.kind().admits(r, call, caller) && r.identifies(ctx, call)
}

// admits reports whether a kind has nothing against a call in the scope of a rule.
func (k *kind) admits(r *Rule, call *yodel.Call, caller string) bool {
	return k.concerns == nil || k.concerns(r, call, caller)
}

// describes is Concerns without Method, Network, Identity and what the kind says.
func (r *Rule) describes(call *yodel.Call, caller string) bool {
	if r.Caller != "" && !like(r.Caller, caller) || r.Tenant != "" && !like(r.Tenant, call.Tenant) {
		return false
	}
	for key, pattern := range r.Header {
		if value, ok := call.Metadata[key]; !ok || !like(pattern, value) {
			return false
		}
	}
	return true
}

// matches reports whether a call is in the scope of the rule, which has its method.
func (a *active) matches(ctx context.Context, call *yodel.Call) bool {
	caller := ""
	if a.Caller != "" || a.kind.concerns != nil {
		caller = callerOf(call)
	}
	return a.describes(call, caller) && a.kind.admits(&a.Rule, call, caller) && (a.Network == "" || comesFrom(a.network, call, a.machine)) && a.identifies(ctx, call)
}

// like reports whether text has the form of pattern, in which a '*' stands for any text.
func like(pattern, text string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for i < len(text) {
		switch {
		case j < len(pattern) && pattern[j] == '*':
			star, mark = j, i
			j++
		case j < len(pattern) && pattern[j] == text[i]:
			i, j = i+1, j+1
		case star >= 0:
			mark++
			i, j = mark, star+1
		default:
			return false
		}
	}
	return strings.Trim(pattern[j:], "*") == ""
}

// selects reports whether the target selects an instance.
func (t *Target) selects(in *discovery.Instance) bool {
	has := func(pattern string, values ...string) bool {
		return pattern == "" || slices.ContainsFunc(values, func(v string) bool { return like(pattern, strings.TrimSpace(v)) })
	}
	return *t != (Target{}) && has(t.Addr, in.Addr) && has(t.Version, in.Version) && has(t.Zone, in.Zone) &&
		has(t.Tag, in.Tags...) && has(t.Group, strings.Split(in.Group, ",")...)
}

// isGood reports whether an outcome counts as good for Rollback.
func isGood(err error) bool {
	if err == nil {
		return true
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded, yodel.ResourceExhausted, yodel.Internal, yodel.DataLoss, yodel.Unknown:
		return false
	default:
		return true
	}
}

// ended counts the outcome of a call on which the rule acted. A call that its caller has canceled,
// such as the slower attempt of a hedged call, says nothing.
func (a *active) ended(err error) {
	switch {
	case a.Rollback == nil || yodel.CodeOf(err) == yodel.Canceled:
	case isGood(err):
		a.counts.good.Add(1)
	default:
		a.counts.bad.Add(1)
	}
}

// callerOf returns the name of the process that has made a call: ClientOptions.Name there.
func callerOf(call *yodel.Call) string {
	if peer := call.Peer(); peer != nil {
		return peer.Name
	}
	if c := call.Client(); c != nil {
		return c.Name()
	}
	return ""
}
