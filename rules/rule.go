// SPDX-License-Identifier: Apache-2.0

// Package rules changes how the calls of a service are routed and governed while clients and
// servers run. Operators write rules into the registry, and all processes that watch it apply them
// within seconds: for example canary percentages, limits and disabled instances. docs/rules.md has
// all kinds of rules.
//
// A process follows rules with one line. The values of With stand in for the registry:
//
//	r := rules.With(etcd.New("10.0.0.1:2379", nil), nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
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
	"cmp"
	"fmt"
	"time"
)

// Schema is the version of the JSON schema of Rule. Check refuses rules of another version.
const Schema = 1

// A Rule says what happens to some of the calls of a service. Its JSON form is what the registry
// stores. Exactly one of the fields that are kinds is set, from Weight on.
type Rule struct {
	// Schema is the version of the schema. Book.Put sets it if it is 0.
	Schema int `json:"schema"`
	// ID identifies the rule within its service. It has at most 64 letters, digits, '-', '_' and
	// '.'. Book.Put makes one from the kind if it is empty.
	ID string `json:"id"`
	// Service is the service whose calls the rule concerns.
	Service string `json:"service"`

	// The following fields up to Identity are the scope of the rule: it concerns the calls that
	// match all of them. An empty field matches every call. A '*' in a value stands for any text,
	// except in Network.

	// Method is the name of a method, with or without the name of the service.
	Method string `json:"method,omitempty"`
	// Caller is the name of the calling process.
	Caller string `json:"caller,omitempty"`
	// Tenant is the tenant of the call.
	Tenant string `json:"tenant,omitempty"`
	// Header has values of the call's metadata, by key.
	Header map[string]string `json:"header,omitempty"`
	// Network is an IP address or a range of them, such as "10.0.0.0/8", from which the call comes.
	// A server looks at the address of the connection, which is a proxy's if there is one. A client
	// looks at the addresses that its machine had when the client read the rule.
	Network string `json:"network,omitempty"`
	// Identity is what the server has verified of the caller, by name: "subject", "tenant" and
	// "claim:NAME" of the auth.Identity, and "certificate" (the subject, such as "CN=web,O=Acme"),
	// "san" (one of the alternative names) and "spiffe" (the SPIFFE ID) of the client's verified
	// certificate. If a claim is a list, one of its values has to match. What a caller says about
	// itself does not count. Such a rule acts on the server.
	Identity map[string]string `json:"identity,omitempty"`
	// Side is where the rule acts, for kinds that can act on both sides: "client" or "server".
	// Limit acts on the server by default, and Fault, Mock and Fallback on the client. Disable
	// without a target acts on both sides by default. With an Identity, all of them act on the
	// server, and with a Network, Disable does by default.
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
	Ended    time.Time `json:"ended,omitzero"` // when the rule was switched off; set by Book
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

// A Rollback switches the rule off if too many calls fail. Each process that applies the rule
// counts the calls on which the rule acts. The first process that finds the condition broken
// switches the rule off in the registry.
//
// A call that its caller cancels does not count. A call is good unless it fails with Unavailable,
// DeadlineExceeded, ResourceExhausted, Internal, DataLoss or Unknown. For a Weight, a Canary and a
// Route, the attempts on the selected instances count. For a Disable with a target, the attempts on
// the other instances count. A Canary is rolled back too if its instances run, and take less than
// half of the calls that are meant for them, because an outlier detector or a breaker holds them
// back or they cannot be reached.
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

// Acts reports whether the rule does something at a time: it is active, or it is a canary that has
// ended and still holds its instances back or sends them calls. See Canary.Then.
func (r *Rule) Acts(now time.Time) bool { return r.acting(now) != nil }

// EndedAt returns when the rule was switched off or has expired, or the zero time if it is active.
func (r *Rule) EndedAt(now time.Time) time.Time {
	switch {
	case r.Active(now):
		return time.Time{}
	case r.Off && (r.Expires.IsZero() || r.Ended.Before(r.Expires)):
		return cmp.Or(r.Ended, r.Created)
	}
	return r.Expires
}

// acting returns the rule as it acts at a time: itself while it is active, what is left of a canary
// that has ended, or nil.
func (r *Rule) acting(now time.Time) *Rule {
	switch {
	case r.Active(now):
		return r
	case r.kind().routes == nil || r.kind().routes.rest == nil:
		return nil
	}
	rest := r.kind().routes.rest(r)
	if rest != nil {
		rest.Off, rest.Expires, rest.Rollback = false, time.Time{}, nil
	}
	return rest
}

// State returns the state of the rule at a time: "active", "rolled back" if a condition of the rule
// has ended it, "off" or "expired".
func (r *Rule) State(now time.Time) string {
	switch {
	case r.Active(now):
		return "active"
	case r.Off && r.Author == autoRollback:
		return "rolled back"
	case r.Off:
		return "off"
	}
	return "expired"
}

// Active reports whether the rule acts at a time: it is not off and has not expired.
func (r *Rule) Active(now time.Time) bool {
	return !r.Off && (r.Expires.IsZero() || now.Before(r.Expires))
}
