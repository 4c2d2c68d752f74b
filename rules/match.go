// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/fault"
)

// An active rule is a rule in use, with its state. It survives changes of other rules.
type active struct {
	Rule

	source []byte // the record
	since  time.Time
	counts *counts
	note   string // what the records of calls say about the rule

	middleware yodel.Middleware         // nil if the rule does not wrap calls
	endpoint   yodel.EndpointMiddleware // nil unless it is a breaker
	injector   *fault.Injector          // nil unless it is a fault
	samples    []sample                 // of the counts, for Rollback; only the service's goroutine uses them
}

// counts are the counters of the rules with one ID.
type counts struct{ hits, good, bad atomic.Uint64 }

// newActive returns a rule in use. Old is the rule of the same ID before, or nil.
func newActive(r Rule, source []byte, old *active) *active {
	a := &active{Rule: r, source: bytes.Clone(source), since: time.Now(), counts: new(counts)}
	if old != nil {
		a.counts = old.counts
		a.counts.hits.Add(old.injected())
	}
	a.note = "rule " + r.ID + ": " + strings.ToLower(r.does()[:1]) + r.does()[1:]
	a.build()
	return a
}

// injected returns how many faults the rule has injected.
func (a *active) injected() uint64 {
	if a.injector == nil {
		return 0
	}
	return a.injector.Rules()[0].Injected
}

// matches reports whether a call is in the scope of the rule. Caller is the name of the process
// that makes the call.
func (a *active) matches(call *yodel.Call, caller string) bool {
	if a.Method != "" && !like(a.Method, methodFor(a.Method, call.Method)) ||
		a.Caller != "" && !like(a.Caller, caller) || a.Tenant != "" && !like(a.Tenant, call.Tenant) {
		return false
	}
	if a.Disable != nil && slices.ContainsFunc(a.Disable.Except, func(name string) bool { return like(name, caller) }) {
		return false
	}
	for key, pattern := range a.Header {
		if value, ok := call.Metadata[key]; !ok || !like(pattern, value) {
			return false
		}
	}
	return true
}

// methodFor returns the part of a method's name that a pattern describes.
func methodFor(pattern, method string) string {
	if strings.ContainsAny(pattern, "./") {
		return method
	}
	_, short := splitMethod(method)
	return short
}

// splitMethod splits a method's name at its last dot or slash.
func splitMethod(method string) (service, short string) {
	i := strings.LastIndexAny(method, "./")
	return method[:max(i, 0)], method[i+1:]
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
func (t *Target) selects(in *yodel.Instance) bool {
	has := func(pattern string, values ...string) bool {
		return pattern == "" || slices.ContainsFunc(values, func(v string) bool { return like(pattern, strings.TrimSpace(v)) })
	}
	return *t != (Target{}) && has(t.Addr, in.Addr) && has(t.Version, in.Version) && has(t.Zone, in.Zone) &&
		has(t.Tag, in.Tags...) && has(t.Group, strings.Split(in.Group, ",")...)
}

// target returns the instances that the rule selects, or nil.
func (r *Rule) target() *Target {
	switch {
	case r.Weight != nil:
		return &r.Weight.To
	case r.Canary != nil:
		return &r.Canary.To
	case r.Route != nil:
		return &r.Route.To
	case r.Disable != nil:
		return r.Disable.To
	}
	return nil
}

// acts reports whether the rule acts on a side.
func (r *Rule) acts(side string) bool {
	switch {
	case r.Switch != nil:
		return false
	case r.Limit != nil:
		return cmp.Or(r.Side, "server") == side
	case r.Disable != nil && r.Disable.To == nil:
		return r.Side == "" || r.Side == side
	}
	return cmp.Or(r.Side, "client") == side
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

// ended counts the outcome of a call on which the rule acted.
func (a *active) ended(err error) {
	if a.Rollback == nil {
		return
	}
	if isGood(err) {
		a.counts.good.Add(1)
	} else {
		a.counts.bad.Add(1)
	}
}

// callerKey is the metadata of a connection that names the calling process.
const callerKey = "yodel-caller"

// callerOf returns the name of the process that has made a call which a server executes.
func callerOf(call *yodel.Call) string {
	peer := call.Peer()
	if peer == nil {
		return ""
	}
	return peer.Metadata[callerKey]
}
