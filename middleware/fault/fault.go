// SPDX-License-Identifier: Apache-2.0

// Package fault makes calls slow, or fail, on purpose: to see what the rest of a system makes of
// it.
//
// An Injector has rules, which can be changed while calls run. It is put into a chain once, on the
// client or the server, and does nothing while it has none:
//
//	var faults fault.Injector
//	client := yodel.NewClient(r, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{faults.Attempts}})
//	err := faults.Set(fault.Rule{Percent: 1, Delay: 200 * time.Millisecond})
//
// On a client, Attempts is below the balancer, where faults look like those of a network or a
// server, and retries, breakers and hedges see them; it belongs innermost there. Calls is above:
// what is below it is not tried. On a server, Calls belongs where the faults of the method itself
// would be: innermost.
//
// The first rule that is for a call, and whose percentage hits, is the one that is applied. Errors
// have the ID YDL3511 and name the rule, so that nobody looks for a cause elsewhere; what Rule.Lose
// and Rule.Code let the caller know is what it would know in earnest. A delay is in the call's
// record.
//
// The actions are those of Envoy's fault filter and of Twitter's and Google's practice of failing
// on purpose (Principles of Chaos Engineering).
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

// A Rule says which calls get which fault. Of what it does, the delay comes first.
type Rule struct {
	// Name is what errors and records call the rule. Default its number, from 1.
	Name string `json:"name,omitempty"`

	// Percent of the calls that it is for, from 0.01 to 100. Zero is all.
	Percent float64 `json:"percent,omitempty"`
	// Methods that it is for. Default all.
	Methods []string `json:"methods,omitempty"`
	// Metadata that calls have to have. Default any.
	Metadata yodel.Metadata `json:"metadata,omitempty"`
	// Addr is the address of the endpoint that the attempt goes to, or the caller's on a server,
	// which may lack the port. Default any.
	Addr string `json:"addr,omitempty"`
	// If says whether it is for a call. It is called concurrently. Default yes.
	If func(ctx context.Context, call *yodel.Call) bool `json:"-"`

	// Delay is how long the call is held up. It ends with the caller's patience.
	Delay time.Duration `json:"delay,omitempty"`
	// Jitter is added to the delay: a random share of it.
	Jitter time.Duration `json:"jitter,omitempty"`
	// Code makes the call fail with it, not executed, as a limit or a server that drains refuses
	// calls.
	Code yodel.Code `json:"code,omitempty"`
	// Message is that of the error. Default "an injected fault".
	Message string `json:"message,omitempty"`
	// Lose makes the call fail as when the connection is lost: Unavailable, and the caller cannot
	// know whether it was executed.
	Lose Loss `json:"lose,omitempty"`
	// Reset closes the connection that the call came on. On a server, where calls have one; other
	// calls on it fail too.
	Reset bool `json:"reset,omitempty"`
}

// A Loss is what is lost of a call.
type Loss string

// What can be lost. The caller cannot tell them apart.
const (
	Nothing Loss = ""
	Request Loss = "request" // the call is not executed
	Reply   Loss = "reply"   // it is
)

// An Injector injects faults. The zero value has no rules. It may be used concurrently, and in
// several chains.
type Injector struct {
	rules atomic.Pointer[[]rule]
}

// A rule is a Rule in use.
type rule struct {
	Rule

	share    uint32 // of everything
	injected *atomic.Uint64
}

// everything is the steps of a percentage: one hundredth of a percent each.
const everything = 10_000

// Set puts rules in place of those that there are, for all calls that begin from then on. None ends
// all faults. It changes nothing when one of them makes no sense.
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

// fault says what is wrong with a rule; "" is nothing.
func (r *Rule) fault() string {
	switch {
	case !(r.Percent >= 0 && r.Percent <= 100): // not a number is neither
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

// A State is a rule and how often it has been applied.
type State struct {
	Rule

	Injected uint64 `json:"injected"`
}

// Rules returns the rules that are in force.
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

// inject carries out a call with the fault of the first rule that hits.
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

// at reports whether the other side of a call has an address, or begins with it and a colon.
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

// lose carries out a call of which nothing comes back.
func lose(ctx context.Context, call *yodel.Call, next yodel.Handler) {
	users := call.Reply
	defer func() { call.Reply, call.Trailer, call.ReplyAttachment = users, nil, nil }()
	if !call.Streams() && call.Peer() == nil {
		call.Reply = nil
	}
	_ = next(ctx, call) // whatever it says is lost
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

// delay holds the call up. It fails when the caller does not wait for so long.
func (r *rule) delay(ctx context.Context, call *yodel.Call) error {
	wait := r.Delay
	if r.Jitter > 0 {
		if wait += rand.N(r.Jitter); wait < 0 { // it overflowed
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
