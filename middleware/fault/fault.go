// SPDX-License-Identifier: Apache-2.0

// Package fault makes calls slow or makes them fail on purpose (fault injection), to test how the
// rest of a system reacts.
//
// An Injector has rules, which can be changed while calls run. Put it into a chain once, on the
// client or the server. Without rules it does nothing:
//
//	var faults fault.Injector
//	client := yodel.NewClient(r, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{faults.Attempts}})
//	err := faults.Set(fault.Rule{Percent: 1, Delay: 200 * time.Millisecond})
//
// On a client, Attempts runs below the balancer. Its faults look like those of a network or a
// server, and retries, breakers and hedges see them. Put it innermost. Calls runs above the
// balancer, so nothing below it is tested. On a server, put Calls where faults of the method itself
// would occur: innermost.
//
// The first rule that matches the call and whose percentage hits is applied. Errors have the ID
// YDL3511 and name the rule, so that nobody searches for another cause. Apart from that, the caller
// learns from Rule.Lose and Rule.Code only what it would learn from a real failure. A delay is in
// the call's record.
//
// The actions are those of Envoy's fault filter. The practice of failing on purpose is that of
// Twitter and Google (Principles of Chaos Engineering).
package fault

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Rule says which calls get which fault. If it has a delay, the delay comes before the other
// faults.
type Rule struct {
	// Name is the name of the rule in errors and records. Default its number, from 1.
	Name string `json:"name,omitempty"`

	// Percent is the percentage of matching calls that get the fault, from 0.01 to 100. Zero means
	// all.
	Percent float64 `json:"percent,omitempty"`
	// Methods are the methods that match. Default all.
	Methods []string `json:"methods,omitempty"`
	// Metadata is the metadata that a call must have to match. Default any.
	Metadata yodel.Metadata `json:"metadata,omitempty"`
	// Addr is the address of the endpoint of the attempt, or on a server the address of the caller,
	// where the port may be omitted. Default any.
	Addr string `json:"addr,omitempty"`
	// If reports whether a call matches. It is called concurrently. Default: every call matches.
	If func(ctx context.Context, call *yodel.Call) bool `json:"-"`

	// Delay is how long the call is delayed. It ends early with the caller's context or deadline.
	Delay time.Duration `json:"delay,omitempty"`
	// Jitter bounds a random time that is added to the delay.
	Jitter time.Duration `json:"jitter,omitempty"`
	// Code makes the call fail with this code, not executed, as if a limit or a draining server had
	// refused it.
	Code yodel.Code `json:"code,omitempty"`
	// Message is the message of the error. Default "an injected fault".
	Message string `json:"message,omitempty"`
	// Lose makes the call fail as if the connection was lost: with Unavailable, so that the caller
	// cannot know whether the call was executed.
	Lose Loss `json:"lose,omitempty"`
	// Reset closes the connection of the call, and so other calls on it fail too. It works only on
	// a server, where a call has a connection.
	Reset bool `json:"reset,omitempty"`
}

// A Loss says which part of a call is lost.
type Loss string

// The parts that can be lost. The caller cannot distinguish them.
const (
	Nothing Loss = ""
	Request Loss = "request" // the call is not executed
	Reply   Loss = "reply"   // the call is executed
)

// An Injector injects faults. The zero value has no rules. It may be used concurrently, and in
// several chains.
type Injector struct {
	rules atomic.Pointer[[]rule]
}

// A rule is a Rule in use.
type rule struct {
	Rule

	share    uint32 // in units of 1/everything
	injected *atomic.Uint64
}

// everything is the number of steps of a percentage: one hundredth of a percent each.
const everything = 10_000

// Set replaces the rules for all calls that begin from then on. Without rules, it ends all faults.
// If a rule is invalid, it returns an error and changes nothing.
func (i *Injector) Set(rules ...Rule) error {
	ready := make([]rule, 0, len(rules))
	for n, r := range rules {
		if r.Name == "" {
			r.Name = fmt.Sprint(n + 1)
		}
		if fault := r.fault(); fault != "" {
			return yodel.Errorf(yodel.InvalidArgument, "fault: rule %s %s", r.Name, fault)
		}
		share := uint32(everything)
		if r.Percent > 0 {
			share = max(uint32(math.Round(r.Percent*100)), 1)
		}
		r.Methods, r.Metadata = slices.Clone(r.Methods), maps.Clone(r.Metadata)
		ready = append(ready, rule{r, share, new(atomic.Uint64)})
	}
	i.rules.Store(&ready)
	return nil
}

// fault returns what is wrong with a rule, or "".
func (r *Rule) fault() string {
	switch {
	case !(r.Percent >= 0 && r.Percent <= 100): // NaN is neither
		return fmt.Sprintf("has %v percent, want 0.01 to 100", r.Percent)
	case r.Percent > 0 && r.Percent < 0.005:
		return fmt.Sprintf("has %v percent, the least is 0.01", r.Percent)
	case r.Delay < 0 || r.Jitter < 0:
		return "has a negative delay"
	case r.Lose != Nothing && r.Lose != Request && r.Lose != Reply:
		return fmt.Sprintf("loses %q, want %q or %q", r.Lose, Request, Reply)
	case r.Code > yodel.Unauthenticated:
		return fmt.Sprintf("has the unknown code %d", r.Code)
	case r.Code != 0 && r.Lose != Nothing:
		return "has a code and loses something: choose one"
	case r.Delay == 0 && r.Jitter == 0 && r.Code == 0 && r.Lose == Nothing && !r.Reset:
		return "does nothing: set Delay, Code, Lose or Reset"
	}
	return ""
}

// A State is a rule with the number of calls that it was applied to.
type State struct {
	Rule

	Injected uint64 `json:"injected"`
}

// Rules returns the current rules.
func (i *Injector) Rules() []State {
	rules := i.rules.Load()
	if rules == nil {
		return nil
	}
	states := make([]State, len(*rules))
	for n := range *rules {
		r := (*rules)[n].Rule
		r.Methods, r.Metadata = slices.Clone(r.Methods), maps.Clone(r.Metadata)
		states[n] = State{r, (*rules)[n].injected.Load()}
	}
	return states
}

// Calls is a yodel.Middleware that injects faults into calls, on a client or a server.
func (i *Injector) Calls(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if rules := i.rules.Load(); rules != nil && len(*rules) > 0 {
			return inject(ctx, call, *rules, next)
		}
		return next(ctx, call)
	}
}

// Attempts is a yodel.EndpointMiddleware that injects faults into attempts, on a client.
func (i *Injector) Attempts(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
	return i.Calls(next)
}

// inject makes a call with the fault of the first rule that hits.
func inject(ctx context.Context, call *yodel.Call, rules []rule, next yodel.Handler) error {
	for n := range rules {
		if r := &rules[n]; r.covers(ctx, call) {
			r.injected.Add(1)
			return r.apply(ctx, call, next)
		}
	}
	return next(ctx, call)
}

func (r *rule) covers(ctx context.Context, call *yodel.Call) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, call.Method) || r.Addr != "" && !at(call, r.Addr) {
		return false
	}
	for key, want := range r.Metadata {
		if got, ok := call.Metadata[key]; !ok || got != want {
			return false
		}
	}
	return (r.If == nil || r.If(ctx, call)) && (r.share == everything || rand.Uint32N(everything) < r.share)
}

// at reports whether the address of the call's other side is want, or begins with want and a colon.
func at(call *yodel.Call, want string) bool {
	addr := ""
	switch {
	case call.Peer() != nil:
		addr = call.Peer().Addr.String()
	case call.Endpoint != nil:
		addr = call.Endpoint.Addr()
	}
	return addr == want || len(addr) > len(want) && addr[:len(want)] == want && addr[len(want)] == ':'
}

func (r *rule) apply(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	if r.Delay > 0 || r.Jitter > 0 {
		if err := r.delay(ctx, call); err != nil {
			return err
		}
	}
	if r.Reset && call.Peer() != nil {
		call.Peer().Conn.Close()
	}
	switch {
	case r.Code != 0:
		return r.err(call, r.Code, true, "")
	case r.Lose == Reply:
		lose(ctx, call, next)
		return r.err(call, yodel.Unavailable, false, "; it may have been executed")
	case r.Lose == Request, r.Reset:
		return r.err(call, yodel.Unavailable, false, "; it may have been executed")
	}
	return next(ctx, call)
}

// lose makes a call whose outcome is lost.
func lose(ctx context.Context, call *yodel.Call, next yodel.Handler) {
	users := call.Reply
	defer func() { call.Reply, call.Trailer, call.ReplyAttachment = users, nil, nil }()
	if !call.Streams() && call.Peer() == nil {
		call.Reply = nil
	}
	_ = next(ctx, call) // its outcome is lost
}

func (r *rule) err(call *yodel.Call, code yodel.Code, unprocessed bool, more string) error {
	message := r.Message
	if message == "" {
		message = "an injected fault"
	}
	where := ""
	if call.Endpoint != nil {
		where = call.Endpoint.Addr() + ": "
	}
	call.Note("fault", "rule "+r.Name+" made it fail")
	return &yodel.Error{
		Code: code, ID: "YDL3511", NotProcessed: unprocessed,
		Message: fmt.Sprintf("%s: %s%s (fault rule %s)%s", call.Method, where, message, r.Name, more),
	}
}

// delay delays the call. It fails if the caller's context or deadline ends first.
func (r *rule) delay(ctx context.Context, call *yodel.Call) error {
	wait := r.Delay
	if r.Jitter > 0 {
		if wait += rand.N(r.Jitter); wait < 0 { // the sum overflowed
			wait = math.MaxInt64
		}
	}
	call.Note("fault", "rule "+r.Name+" held it up for "+wait.String())
	patience := wait
	if !call.Deadline.IsZero() {
		patience = min(wait, time.Until(call.Deadline))
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-timer.C:
		if patience == wait {
			return nil
		}
	case <-ctx.Done():
	}
	e := &yodel.Error{Code: yodel.DeadlineExceeded, ID: "YDL1005", NotProcessed: true, Cause: context.Cause(ctx)}
	if yodel.CodeOf(ctx.Err()) == yodel.Canceled {
		e.Code, e.ID = yodel.Canceled, "YDL1006"
	}
	e.Message = fmt.Sprintf("%s: the caller did not wait for the end of an injected delay (fault rule %s); it was not executed", call.Method, r.Name)
	return e
}
