// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// kinds is the table of the kinds, in the order of their fields in Rule. The file kind_NAME.go has
// what is known of a kind, and no other file reads its field. CONTRIBUTING.md says how to add one.
var kinds = []*kind{
	&weightKind, &canaryKind, &routeKind, &disableKind, &limitKind, &timeoutKind, &retryKind,
	&hedgeKind, &breakerKind, &faultKind, &mockKind, &fallbackKind, &switchKind,
}

// A kind is what package rules knows of a kind of rule. A field that does not apply is zero.
type kind struct {
	// name is the name of the kind's field of Rule in JSON.
	name string
	// set reports whether a rule has the kind's field.
	set func(r *Rule) bool
	// form is how programs ask for a rule of this kind.
	form form
	// sides is where rules of the kind act.
	sides sides
	// place is where the middleware of the kind acts in chains.
	place place
	// decides says which of several rules of the kind acts on a call.
	decides decides

	// check finds what is wrong with the kind's field.
	check func(c *checker, r *Rule)
	// does returns what the rule does to calls, which are a part of the sentence, without a period.
	does func(r *Rule, calls string) string
	// afterwards says what remains when the rule has ended.
	afterwards func(r *Rule, active bool) string
	// across says what the rule means for a service with n instances.
	across func(r *Rule, n int) string

	// concerns reports whether a call is in the scope, beside what the scope of all rules says.
	concerns func(r *Rule, call *yodel.Call, caller string) bool
	// same reports whether two rules of the kind are about the same thing, if their scopes are
	// equal. Nil means that they are.
	same func(r, o *Rule) bool
	// build makes the middleware of a rule in use.
	build func(a *active)
	// fill adds what the process keeps of the rule without calls.
	fill func(t *table, r *Rule)
	// routes is how the rule chooses instances.
	routes *routes

	// executes returns the share of rate calls per second that methods execute, on n instances in
	// all. Nil means all calls.
	executes func(r *Rule, rate float64, n int) float64
	// stops reports whether the rule refuses or replaces some calls, or all in its scope.
	stops func(r *Rule) (some, all bool)
}

// routes is how the rules of a kind choose instances.
type routes struct {
	// order is when the rule applies: the least first.
	order int
	// target returns the instances that a rule selects, or nil if this one chooses none.
	target func(r *Rule) *Target
	// narrows returns which instances the rule leaves to a call. Drawn is whether it has drawn
	// the call, if it draws calls.
	narrows func(r *Rule, drawn bool) narrowing
	// share is the share of the calls that the rule draws, and draws reports whether it draws a
	// call. They are nil if it does not draw.
	share func(r *Rule) float64
	draws func(r *Rule, call *yodel.Call) bool
	// rest returns what acts when the rule has ended, or nil.
	rest func(r *Rule) *Rule
	// examine warns about a rule that selects some of all instances.
	examine func(c *checker, r *Rule, selected, all int)
}

// A narrowing is which instances a rule leaves to a call.
type narrowing struct {
	leaves leaves
	// share is what the selected instances get of their usual share, if the rule leaves all
	// instances.
	share float64
	// soft lets the call go to other instances if none of these can take it.
	soft bool
}

// Which instances a narrowing leaves.
type leaves int

const (
	allInstances leaves = iota
	selectedInstances
	otherInstances
)

// Where the rules of a kind act. Those with a target act in clients.
type sides int

const (
	inClients        sides = iota
	clientsOrServers       // in clients, unless Rule.Side says otherwise
	serversOrClients       // on servers, unless Rule.Side says otherwise
	onBothSides            // unless Rule.Side says otherwise
	inPrograms             // on no calls
)

// A place is where in each chain the middleware of a kind acts. A lower number is farther outside,
// and 0 is not in this chain. Around calls, from the outside: fallback 10, mock 20, disable 30,
// timeout 40, limit 50, hedge 60, retry 70. On servers: disable 10, limit 20, fallback 30, mock 40,
// fault 50. Around attempts: breaker 10, and beneath the client's own middleware fault 10.
type place struct {
	calls    int // around the calls of a client
	server   int // around the calls of a server
	attempts int // around the attempts on an endpoint, above the client's own middleware
	beneath  int // around the attempts on an endpoint, beneath it
}

// Which of several rules of a kind acts on a call in the scope of all of them.
type decides int

const (
	allRules  decides = iota
	firstRule         // the one with the first ID
	lastRule          // the one with the last ID
)

// stages returns the kinds in a chain, the outermost first.
func stages(at func(k *kind) int) []*kind {
	in := slices.DeleteFunc(slices.Clone(kinds), func(k *kind) bool { return at(k) == 0 })
	slices.SortStableFunc(in, func(a, b *kind) int { return cmp.Compare(at(a), at(b)) })
	return in
}

// The kinds in the chains. The attempts of a client pass the kinds that choose instances too, which
// count them for Rollback.
var (
	callStages    = stages(func(k *kind) int { return k.place.calls })
	serverStages  = stages(func(k *kind) int { return k.place.server })
	beneathStages = stages(func(k *kind) int { return k.place.beneath })
	attemptStages = stages(func(k *kind) int {
		if k.routes != nil {
			return k.routes.order - 1000
		}
		return k.place.attempts
	})
)

// noKind is the kind of a rule without one. Check refuses such a rule.
var noKind = kind{
	set:   func(*Rule) bool { return true },
	check: func(*checker, *Rule) {},
	does:  func(_ *Rule, calls string) string { return "Do nothing with " + calls },
}

// kind returns the first kind whose field is set.
func (r *Rule) kind() *kind {
	for _, k := range kinds {
		if k.set(r) {
			return k
		}
	}
	return &noKind
}

// Kind returns the JSON name of the field that is set, for example "canary". It returns "" if none
// is set, and the first one if several are.
func (r *Rule) Kind() string { return r.kind().name }

// Kinds returns the names of all kinds.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// target returns the instances that the rule selects, or nil.
func (r *Rule) target() *Target {
	if routes := r.kind().routes; routes != nil {
		return routes.target(r)
	}
	return nil
}

// draws reports whether the rule draws a share of the calls, and which.
func (r *Rule) draws() (share float64, ok bool) {
	if routes := r.kind().routes; routes != nil && routes.share != nil {
		return routes.share(r), true
	}
	return 0, false
}

// holds reports whether the rule gives no calls to the instances that it selects.
func (r *Rule) holds() bool {
	if r.target() == nil {
		return false
	}
	if share, ok := r.draws(); ok {
		return share == 0
	}
	n := r.kind().routes.narrows(r, false)
	return n.leaves == otherInstances || n.leaves == allInstances && n.share == 0
}

// target returns the instances that the rule selects, or nil.
func (a *active) target() *Target {
	if a.kind.routes == nil {
		return nil
	}
	return a.kind.routes.target(&a.Rule)
}

// narrows returns which instances the rule leaves to a call. The rule has a target.
func (a *active) narrows(drawn bool) narrowing { return a.kind.routes.narrows(&a.Rule, drawn) }

// drawing reports whether the rule draws calls.
func (a *active) drawing() bool { return a.kind.routes != nil && a.kind.routes.draws != nil }

// acts reports whether the rule acts on a side.
func (r *Rule) acts(side string) bool {
	k := r.kind()
	switch {
	case k.sides == inPrograms:
		return false
	case r.Side != "":
		return r.Side == side
	case k.sides == serversOrClients, len(r.Identity) > 0:
		return side == "server"
	case k.sides == onBothSides && r.target() == nil:
		return r.Network == "" || side == "server"
	}
	return side == "client"
}

// onServer reports whether rules such as this one can act on a server.
func (r *Rule) onServer() bool {
	k := r.kind()
	return k.sides != inClients && k.sides != inPrograms && r.target() == nil
}

// resembles reports whether two rules are of one kind and about the same thing.
func (r *Rule) resembles(o *Rule) bool {
	k := r.kind()
	return o.kind() == k && (k.same == nil || k.same(r, o))
}
