// SPDX-License-Identifier: Apache-2.0

// Package rules changes how the calls of a service are routed and governed while clients and
// servers run. Operators write rules into the registry, and all processes that watch it apply them
// within seconds: weights, canary percentages, routes by version, tag, caller, tenant or header,
// disabled instances and methods, limits, timeouts, retries, hedging, breakers, faults, mocks,
// fallbacks and switches.
//
// A process follows rules with one line. The values of With stand in for the registry:
//
//	r := rules.With(etcd.New("10.0.0.1:2379", nil), nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{r}})
//	c := yodel.NewClient(r.Service("Shop"), nil)
//
// An operator's program writes rules with a Book:
//
//	book, err := rules.Open(etcd.New("10.0.0.1:2379", nil))
//	rule, err := book.Put(ctx, rules.Rule{
//		Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10},
//		Author: "ann", Reason: "try v2", Expires: time.Now().Add(2 * time.Hour),
//	})
//
// docs/rules.md documents the JSON schema of rules, every kind and every problem that Check finds.
package rules

import (
	"encoding/json"
	"fmt"
	"time"
)

// Schema is the version of the JSON schema of Rule. Check refuses rules of another version.
const Schema = 1

// A Rule says what happens to some of the calls of a service. Its JSON form is what the registry
// stores. Exactly one of the fields from Weight to Switch is set. That field decides the kind of
// the rule.
type Rule struct {
	// Schema is the version of the schema. Book.Put sets it if it is 0.
	Schema int `json:"schema"`
	// ID identifies the rule within its service. It has at most 64 letters, digits, '-', '_' and
	// '.'. Book.Put makes one from the kind if it is empty.
	ID string `json:"id"`
	// Service is the service whose calls the rule concerns.
	Service string `json:"service"`

	// The following five fields are the scope of the rule: it concerns the calls that match all of
	// them. An empty field matches every call. A '*' in a value stands for any text.

	// Method is the name of a method, with or without the name of the service.
	Method string `json:"method,omitempty"`
	// Caller is the name of the calling process.
	Caller string `json:"caller,omitempty"`
	// Tenant is the tenant of the call.
	Tenant string `json:"tenant,omitempty"`
	// Header has values of the call's metadata, by key.
	Header map[string]string `json:"header,omitempty"`
	// Side is where the rule acts, for kinds that can act on both sides: "client" or "server".
	// Limit acts on the server by default, and Fault, Mock and Fallback on the client. Disable
	// without a target acts on both sides by default.
	Side string `json:"side,omitempty"`

	Weight   *Weight   `json:"weight,omitempty"`
	Canary   *Canary   `json:"canary,omitempty"`
	Route    *Route    `json:"route,omitempty"`
	Disable  *Disable  `json:"disable,omitempty"`
	Limit    *Limit    `json:"limit,omitempty"`
	Timeout  *Timeout  `json:"timeout,omitempty"`
	Retry    *Retry    `json:"retry,omitempty"`
	Hedge    *Hedge    `json:"hedge,omitempty"`
	Breaker  *Breaker  `json:"breaker,omitempty"`
	Fault    *Fault    `json:"fault,omitempty"`
	Mock     *Answer   `json:"mock,omitempty"`
	Fallback *Answer   `json:"fallback,omitempty"`
	Switch   *Switch   `json:"switch,omitempty"`
	Rollback *Rollback `json:"rollback,omitempty"` // when the rule switches itself off; may be nil

	// Off is whether the rule is switched off. It remains in the registry and does not act.
	Off bool `json:"off,omitempty"`
	// Expires is when the rule ends, by the clock of each process. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// Author and Reason say who made the last change and why. Book requires both.
	Author string `json:"author"`
	Reason string `json:"reason"`
	// Created is when the rule was made, and Revision is the number of the last change of the
	// service's rules that changed this rule. Book sets both.
	Created  time.Time `json:"created,omitzero"`
	Revision int       `json:"revision,omitempty"`
}

// A Target selects instances: those that match all fields that are set. A '*' in a value stands for
// any text.
type Target struct {
	Addr    string `json:"addr,omitempty"`
	Version string `json:"version,omitempty"`
	Tag     string `json:"tag,omitempty"`
	Group   string `json:"group,omitempty"`
	Zone    string `json:"zone,omitempty"`
}

// A Weight changes the share of the calls that the selected instances get. It acts in clients.
type Weight struct {
	To Target `json:"to"`
	// Percent is the percentage of their usual share, from 0 to 10,000. 100 changes nothing. With 0
	// they get calls only if no other instance can take them.
	Percent int `json:"percent"`
}

// A Canary sends a percentage of the calls to the selected instances, and all others to the
// remaining instances. It acts in clients. If no selected instance can take a call, another
// instance gets it, and the other way round.
type Canary struct {
	To Target `json:"to"`
	// Percent is from 0 to 100, with up to two decimals.
	Percent float64 `json:"percent"`
	// By makes calls of the same caller, tenant, key or header go the same way: "caller", "tenant",
	// "key" or "header:NAME". Default: each call is drawn by itself.
	By string `json:"by,omitempty"`
}

// A Route sends the calls in the rule's scope to the selected instances. It acts in clients.
type Route struct {
	To Target `json:"to"`
	// Strict makes calls fail if no selected instance can take them. Default false: they go to
	// other instances.
	Strict bool `json:"strict,omitempty"`
}

// A Disable with a target stops all calls to the selected instances, in clients. Without a target
// it refuses the calls in the rule's scope with FailedPrecondition (YDL3601).
type Disable struct {
	To *Target `json:"to,omitempty"`
	// Except has the names of callers whose calls are not refused. A '*' stands for any text. It
	// must be empty if there is a target.
	Except []string `json:"except,omitempty"`
}

// A Limit bounds the calls in the rule's scope, in each process on its own. Calls beyond it are
// refused with ResourceExhausted. At least one of PerSecond and Concurrent is set.
type Limit struct {
	PerSecond  float64 `json:"perSecond,omitempty"`  // calls per second; 0 means no limit
	Burst      int     `json:"burst,omitempty"`      // calls at once after a pause; default a tenth of PerSecond
	Concurrent int     `json:"concurrent,omitempty"` // calls that run at a time, a stream until it ends; 0 means no limit
	Queue      int     `json:"queue,omitempty"`      // calls that wait for a place of Concurrent; default Concurrent, at least 4; -1 means none
	// By gives each caller, tenant, method or value of a header a rate of its own: "caller",
	// "tenant", "method" or "header:NAME". Default: all calls share one. It needs PerSecond.
	By string `json:"by,omitempty"`
}

// A Timeout ends calls in clients. It takes the place of ClientOptions.Timeout. An earlier deadline
// of the caller stays in force.
type Timeout struct {
	After Duration `json:"after"`
}

// A Retry sets how many attempts clients make in all for a call. It takes precedence over retries
// that the program has configured. With Times 1, calls and the calls that their handlers make are
// not retried.
type Retry struct {
	Times   int      `json:"times"`             // from 1 to 10
	Backoff Duration `json:"backoff,omitempty"` // default 50ms
}

// A Hedge makes clients send a second attempt elsewhere if the first one is slow. It concerns calls
// that may be executed twice. One of After and Percentile is set.
type Hedge struct {
	After      Duration `json:"after,omitempty"`
	Percentile float64  `json:"percentile,omitempty"` // of the recent durations
}

// A Breaker stops the calls of a client to an instance that fails. At least one of Errors and Share
// is set.
type Breaker struct {
	Errors   int      `json:"errors,omitempty"`   // failures in a row
	Share    float64  `json:"share,omitempty"`    // of the calls within Window, from 0 to 1
	Window   Duration `json:"window,omitempty"`   // default 10s
	MinCalls int      `json:"minCalls,omitempty"` // calls within Window before Share counts; default 20
	Open     Duration `json:"open,omitempty"`     // how long it stays open at first; default 1s
}

// A Fault makes calls slow or makes them fail on purpose.
type Fault struct {
	Percent float64  `json:"percent,omitempty"` // of the calls in the scope; 0 means all
	Delay   Duration `json:"delay,omitempty"`
	Jitter  Duration `json:"jitter,omitempty"` // bound of a random time that is added to Delay
	Code    string   `json:"code,omitempty"`   // of the error, for example "unavailable"
	Message string   `json:"message,omitempty"`
	Lose    string   `json:"lose,omitempty"` // "request" or "reply": the call fails as if the connection was lost
}

// An Answer is a reply in place of the reply of the method. Mock gives it without executing the
// method. Fallback gives it if the call fails because the service is unavailable.
type Answer struct {
	Reply json.RawMessage `json:"reply,omitempty"` // the reply as JSON
	// Code makes a mock fail with this code and Message. A fallback has none.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// A Switch is a named value that programs ask for: see Rules.Switch. The scope of its rule is
// empty. If several rules set the same switch, the one with the last ID decides.
type Switch struct {
	Name string `json:"name"`
	On   bool   `json:"on"`
}

// A Rollback switches the rule off if too many calls fail. Each process that applies the rule
// counts the calls on which the rule acts. The first process that finds the condition broken
// switches the rule off in the registry.
//
// A call is good unless it fails with Unavailable, DeadlineExceeded, ResourceExhausted, Internal,
// DataLoss or Unknown. For a Weight, a Canary and a Route, the attempts on the selected instances
// count. For a Disable with a target, the attempts on the other instances count.
type Rollback struct {
	// Below is the least percentage of good calls, above 0 and at most 100.
	Below float64 `json:"below"`
	// For is how long the percentage is measured, from 1s to 1h.
	For Duration `json:"for"`
	// Calls is how many calls must have ended within For. Default 20.
	Calls int `json:"calls,omitempty"`
}

// A Duration is a time.Duration whose JSON form is a string such as "250ms".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"250ms\"", text)
	}
	*d = Duration(parsed)
	return nil
}

// String returns the duration in the form of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// Kind returns the JSON name of the field that is set, for example "canary". It returns "" if none
// is set, and the first one if several are.
func (r *Rule) Kind() string {
	for _, k := range r.kinds() {
		if k.set {
			return k.name
		}
	}
	return ""
}

// Kinds returns the names of all kinds.
func Kinds() []string {
	var names []string
	for _, k := range new(Rule).kinds() {
		names = append(names, k.name)
	}
	return names
}

// A kind is a field of a Rule that decides its kind.
type kind struct {
	name string
	set  bool
}

func (r *Rule) kinds() []kind {
	return []kind{
		{"weight", r.Weight != nil}, {"canary", r.Canary != nil}, {"route", r.Route != nil}, {"disable", r.Disable != nil},
		{"limit", r.Limit != nil}, {"timeout", r.Timeout != nil}, {"retry", r.Retry != nil}, {"hedge", r.Hedge != nil},
		{"breaker", r.Breaker != nil}, {"fault", r.Fault != nil}, {"mock", r.Mock != nil}, {"fallback", r.Fallback != nil},
		{"switch", r.Switch != nil},
	}
}

// Active reports whether the rule acts at a time: it is not off and has not expired.
func (r *Rule) Active(now time.Time) bool {
	return !r.Off && (r.Expires.IsZero() || now.Before(r.Expires))
}
