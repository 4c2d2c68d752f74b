// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
)

// This file chooses among endpoints by weights, canaries, routes and disabled instances. It wraps
// the client's balancer. For each combination of rules that apply to a call, it lets the balancer
// make a picker for the endpoints that remain.

// A decision is the combination of rules that apply to a call: bits by the index of the rule.
type decision struct {
	matched uint64 // rules whose scope has the call
	hit     uint64 // canaries that take the call
}

// decide returns the decision for a call.
func decide(t *table, call *yodel.Call) (d decision) {
	for left := t.selected(call.Method).routing & (1<<len(t.routing) - 1); left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		a := t.routing[i]
		if !a.matches(context.Background(), call) {
			continue
		}
		d.matched |= 1 << i
		if a.drawing() && a.kind.routes.draws(&a.Rule, call) {
			d.hit |= 1 << i
		}
	}
	return d
}

// drawSteps is the number of steps of a canary's percentage.
const drawSteps = 10_000

// hashOf returns a hash of two texts that is equal in all processes: FNV-1a with a final mix,
// because the low bits of FNV-1a of similar texts are similar.
func hashOf(texts ...string) uint64 {
	h := uint64(14695981039346656037)
	for _, text := range texts {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// narrow returns which instances a decision leaves, and the percentage of its usual share that each
// of them gets. Without has the rules that a call may ignore if none of these instances can take
// it. Empty has the rules whose targets are not among the instances.
func narrow(rules []*active, d decision, instances []discovery.Instance) (percent map[int]float64, without, empty uint64) {
	percent = make(map[int]float64, len(instances))
	for i := range instances {
		percent[i] = 100
	}
	for i, a := range rules {
		if d.matched&(1<<i) == 0 {
			continue
		}
		selected := make(map[int]float64, len(percent))
		for n, p := range percent {
			if a.target().selects(&instances[n]) {
				selected[n] = p
			}
		}
		rest := maps.Clone(percent)
		maps.DeleteFunc(rest, func(n int, _ float64) bool { _, ok := selected[n]; return ok })
		left, how := selected, a.narrows(d.hit&(1<<i) != 0)
		if how.leaves == allInstances {
			for n, p := range selected {
				percent[n] = p * how.share
			}
			continue
		}
		if how.leaves == otherInstances {
			left = rest
		}
		if how.soft && len(left) == 0 {
			empty |= 1 << i
			continue
		}
		if how.soft {
			without |= 1 << i
		}
		percent = left
	}
	return percent, without, empty
}

// A client is the rules in one client.
type client struct {
	service *service
	inner   yodel.Balancer
	// running holds the token of the goroutine that runs inner. The fields below belong to it.
	running chan struct{}
	last    map[string]yodel.Picker // of inner, by the rules for which they choose
	used    map[string]bool         // the names of breakers that the client has had
}

// balance is the client's Balancer.
func (c *client) balance(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	c.running <- struct{}{}
	defer func() { <-c.running }()
	base := last
	switch p := last.(type) {
	case *routed:
		base = p.base
	case *learner:
		base = p.base
	}
	base = c.inner(endpoints, base)
	t := c.service.rules()
	c.release(t, endpoints)
	if t == nil || len(t.routing) == 0 {
		c.last = nil
		return base
	}
	p := &routed{client: c, table: t, rules: t.routing, endpoints: endpoints, base: base, before: c.last}
	c.last = make(map[string]yodel.Picker)
	p.choices.Store(&map[decision]*choice{})
	if l, ok := base.(balance.Learner); ok {
		return &learner{p, l}
	}
	return p
}

// release makes endpoints ready again that the breaker of a rule has left when the rule ended.
func (c *client) release(t *table, endpoints []*yodel.Endpoint) {
	now := make(map[string]bool)
	if t != nil {
		for _, a := range t.rules {
			if a.endpoint != nil {
				now[a.name()] = true
			}
		}
	}
	for name := range c.used {
		if now[name] {
			continue
		}
		for _, ep := range endpoints {
			ep.SetReady(name, true)
		}
	}
	c.used = now
}

// A routed picker follows rules.
type routed struct {
	client    *client
	table     *table
	rules     []*active // those of the table that choose instances
	endpoints []*yodel.Endpoint
	base      yodel.Picker            // for calls without rules
	before    map[string]yodel.Picker // the last pickers of the routed before
	choices   atomic.Pointer[map[decision]*choice]
}

// A learner is a routed picker whose balancer learns.
type learner struct {
	*routed
	balance.Learner
}

// Pick implements yodel.Picker.
func (l *learner) Pick(call *yodel.Call) *yodel.Endpoint { return l.routed.Pick(call) }

// maxChoices is how many combinations of rules have pickers of the client's balancer. Calls with
// further combinations get any endpoint that remains.
const maxChoices = 256

// Pick implements yodel.Picker.
func (p *routed) Pick(call *yodel.Call) *yodel.Endpoint {
	d := decide(p.table, call)
	if d.matched == 0 {
		return pickOf(p.base, call)
	}
	c := p.choice(d)
	ep := c.pick(call)
	if ep == nil && c.without != 0 {
		ep = p.choice(decision{d.matched &^ c.without, d.hit &^ c.without}).pick(call)
	} else if ep != nil {
		p.count(call, d, c)
	}
	p.divert(call, d, ep)
	return ep
}

// divert counts the calls that canaries have drawn, and those of them that another instance takes
// although an instance of the canary runs.
func (p *routed) divert(call *yodel.Call, d decision, ep *yodel.Endpoint) {
	if d.hit == 0 || ep == nil || call.Attempt > 0 {
		return
	}
	to := ep.Instance()
	for i, a := range p.rules {
		switch {
		case d.hit&(1<<i) == 0:
		case a.target().selects(&to):
			a.counts.meant.Add(1)
			a.counts.taken.Add(1)
		case runs(call.Client(), a.target()):
			a.counts.meant.Add(1)
			a.counts.via.Store(call.Client())
		}
	}
}

// runs reports whether a client has an endpoint that t selects and that is not inactive.
func runs(c *yodel.Client, t *Target) bool {
	return c != nil && slices.ContainsFunc(c.Endpoints(), func(ep *yodel.Endpoint) bool {
		in := ep.Instance()
		return in.State != "inactive" && t.selects(&in)
	})
}

// count counts the rules that have decided, and notes them in the call's record.
func (p *routed) count(call *yodel.Call, d decision, c *choice) {
	for i, a := range p.rules {
		bit := uint64(1) << i
		if d.matched&bit == 0 || c.empty&bit != 0 || a.drawing() && d.hit&bit == 0 {
			continue
		}
		if call.Attempt == 0 {
			a.counts.hits.Add(1)
		}
		if call.Explain || a.narrows(true).leaves != allInstances {
			call.Note("rules", a.note)
		}
	}
}

// String says why there is no endpoint to pick.
func (p *routed) String() string {
	var ids []string
	for _, a := range p.rules {
		if n := a.narrows(true); n.leaves != allInstances && !n.soft {
			ids = append(ids, a.ID)
		}
	}
	if len(ids) == 0 {
		if named, ok := p.base.(fmt.Stringer); ok {
			return named.String()
		}
		return "the balancer"
	}
	return "the balancer, with the rules " + strings.Join(ids, ", ")
}

// Verdict says which rule keeps a call from an endpoint, for the call's record.
func (p *routed) Verdict(call *yodel.Call, ep, picked *yodel.Endpoint) string {
	instance, to := ep.Instance(), discovery.Instance{}
	if picked != nil {
		to = picked.Instance()
	}
	in := p.table.selected(call.Method).routing
	for i, a := range p.rules {
		if in&(1<<i) == 0 || !a.matches(context.Background(), call) {
			continue
		}
		selected, taken := a.target().selects(&instance), a.target().selects(&to)
		var out bool
		switch n := a.narrows(taken); n.leaves {
		case allInstances:
			out = selected && n.share == 0
		case otherInstances:
			out = selected
		case selectedInstances:
			out = !selected && (taken || !n.soft)
		}
		if out {
			return "left out by rule " + a.ID
		}
	}
	return ""
}

// A choice is the endpoints that a decision leaves.
type choice struct {
	groups         []group // the heaviest first
	total          float64
	without, empty uint64
}

// A group is the endpoints of a choice with the same percentage.
type group struct {
	mass   float64
	picker yodel.Picker
}

// pick picks an endpoint: of a group that is drawn by its mass, or of another group if the call
// avoids that one.
func (c *choice) pick(call *yodel.Call) *yodel.Endpoint {
	drawn := 0
	if len(c.groups) > 1 && c.total > 0 {
		at := rand.Float64() * c.total
		for drawn < len(c.groups)-1 && at >= c.groups[drawn].mass {
			at -= c.groups[drawn].mass
			drawn++
		}
	}
	for i := range c.groups {
		if ep := pickOf(c.groups[(drawn+i)%len(c.groups)].picker, call); ep != nil {
			return ep
		}
	}
	return nil
}

func pickOf(p yodel.Picker, call *yodel.Call) *yodel.Endpoint {
	if p == nil {
		return nil
	}
	return p.Pick(call)
}

// choice returns the choice for a decision. If another goroutine runs the client's balancer, or
// there are too many choices, it returns a choice that picks any endpoint.
func (p *routed) choice(d decision) *choice {
	if c := (*p.choices.Load())[d]; c != nil {
		return c
	}
	if len(*p.choices.Load()) >= maxChoices {
		return p.make(d, anyOf)
	}
	select {
	case p.client.running <- struct{}{}:
		defer func() { <-p.client.running }()
	default:
		return p.make(d, anyOf)
	}
	if c := (*p.choices.Load())[d]; c != nil {
		return c
	}
	c := p.make(d, p.pickerOf)
	next := maps.Clone(*p.choices.Load())
	next[d] = c
	p.choices.Store(&next)
	return c
}

// make makes a choice. PickerOf makes the picker of each group.
func (p *routed) make(d decision, pickerOf func(name string, endpoints []*yodel.Endpoint) yodel.Picker) *choice {
	instances := make([]discovery.Instance, len(p.endpoints))
	for i, ep := range p.endpoints {
		instances[i] = ep.Instance()
	}
	c := &choice{}
	var percent map[int]float64
	percent, c.without, c.empty = narrow(p.rules, d, instances)
	members, mass := make(map[float64][]*yodel.Endpoint), make(map[float64]float64)
	for i, ep := range p.endpoints {
		if share, ok := percent[i]; ok {
			members[share] = append(members[share], ep)
			mass[share] += share * float64(max(instances[i].Weight, 1))
			c.total += share * float64(max(instances[i].Weight, 1))
		}
	}
	name := p.name(d)
	for share, endpoints := range members {
		c.groups = append(c.groups, group{mass[share], pickerOf(fmt.Sprint(name, share), endpoints)})
	}
	slices.SortStableFunc(c.groups, func(a, b group) int { return cmp.Compare(b.mass, a.mass) })
	return c
}

// name identifies a decision by its rules.
func (p *routed) name(d decision) string {
	var b strings.Builder
	for i, a := range p.rules {
		if d.matched&(1<<i) != 0 {
			fmt.Fprintf(&b, "%s %d %v,", a.ID, a.Revision, d.hit&(1<<i) != 0)
		}
	}
	return b.String()
}

// pickerOf returns a picker of the client's balancer. The caller has the token.
func (p *routed) pickerOf(name string, endpoints []*yodel.Endpoint) yodel.Picker {
	c := p.client
	last := c.last[name]
	if last == nil {
		last = p.before[name]
	}
	made := c.inner(endpoints, last)
	if c.last != nil {
		c.last[name] = made
	}
	return made
}

// anyOf returns a picker that picks any endpoint.
func anyOf(_ string, endpoints []*yodel.Endpoint) yodel.Picker { return random(endpoints) }

type random []*yodel.Endpoint

// Pick implements yodel.Picker.
func (p random) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p) == 0 {
		return nil
	}
	at := rand.N(len(p))
	for i := range p {
		if ep := p[(at+i)%len(p)]; !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return nil
}
