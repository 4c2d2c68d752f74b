// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
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
func decide(rules []*active, call *yodel.Call) (d decision) {
	for i, a := range rules {
		if !a.matches(call) {
			continue
		}
		d.matched |= 1 << i
		if a.Canary != nil && a.Canary.draws(a.ID, call) {
			d.hit |= 1 << i
		}
	}
	return d
}

// drawSteps is the number of steps of a canary's percentage.
const drawSteps = 10_000

// draws reports whether the canary takes a call.
func (c *Canary) draws(id string, call *yodel.Call) bool {
	share := uint64(math.Round(c.Percent * (drawSteps / 100)))
	by := ""
	switch header, isHeader := strings.CutPrefix(c.By, "header:"); {
	case isHeader:
		by = call.Metadata[header]
	case c.By == "caller":
		by = callerOf(call)
	case c.By == "tenant":
		by = call.Tenant
	case c.By == "key":
		by = call.Key
	}
	if by == "" {
		return rand.Uint64N(drawSteps) < share
	}
	return hashOf(id, by)%drawSteps < share
}

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
func narrow(rules []*active, d decision, instances []yodel.Instance) (percent map[int]float64, without, empty uint64) {
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
		switch {
		case a.Weight != nil:
			for n, p := range selected {
				percent[n] = p * float64(a.Weight.Percent) / 100
			}
			continue
		case a.Disable != nil:
			percent = rest
			continue
		case a.Canary != nil && d.hit&(1<<i) == 0:
			selected = rest
		}
		soft := a.Route == nil || !a.Route.Strict
		if len(selected) == 0 && soft {
			empty |= 1 << i
			continue
		}
		if soft {
			without |= 1 << i
		}
		percent = selected
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
	var concerned []*active
	if t != nil {
		concerned = t.routing
	}
	if len(concerned) == 0 {
		c.last = nil
		return base
	}
	p := &routed{client: c, rules: concerned, endpoints: endpoints, base: base, before: c.last}
	c.last = make(map[string]yodel.Picker)
	p.choices.Store(&map[decision]*choice{})
	if l, ok := base.(yodel.Learner); ok {
		return &learner{p, l}
	}
	return p
}

// release makes endpoints ready again that the breaker of a rule has left when the rule ended.
func (c *client) release(t *table, endpoints []*yodel.Endpoint) {
	now := make(map[string]bool)
	if t != nil {
		for _, a := range t.rules {
			if a.Breaker != nil {
				now["rule "+a.ID] = true
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
	rules     []*active
	endpoints []*yodel.Endpoint
	base      yodel.Picker            // for calls without rules
	before    map[string]yodel.Picker // the last pickers of the routed before
	choices   atomic.Pointer[map[decision]*choice]
}

// A learner is a routed picker whose balancer learns.
type learner struct {
	*routed
	yodel.Learner
}

// Pick implements yodel.Picker.
func (l *learner) Pick(call *yodel.Call) *yodel.Endpoint { return l.routed.Pick(call) }

// maxChoices is how many combinations of rules have pickers of the client's balancer. Calls with
// further combinations get any endpoint that remains.
const maxChoices = 256

// Pick implements yodel.Picker.
func (p *routed) Pick(call *yodel.Call) *yodel.Endpoint {
	d := decide(p.rules, call)
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
	return ep
}

// count counts the rules that have decided, and notes them in the call's record.
func (p *routed) count(call *yodel.Call, d decision, c *choice) {
	for i, a := range p.rules {
		bit := uint64(1) << i
		if d.matched&bit == 0 || c.empty&bit != 0 || a.Canary != nil && d.hit&bit == 0 {
			continue
		}
		if call.Attempt == 0 {
			a.counts.hits.Add(1)
		}
		if a.Weight == nil || call.Explain {
			call.Note("rules", a.note)
		}
	}
}

// String says why there is no endpoint to pick.
func (p *routed) String() string {
	var ids []string
	for _, a := range p.rules {
		if a.Disable != nil || a.Route != nil && a.Route.Strict {
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
	in, to := ep.Instance(), yodel.Instance{}
	if picked != nil {
		to = picked.Instance()
	}
	for _, a := range p.rules {
		if !a.matches(call) {
			continue
		}
		selected, taken := a.target().selects(&in), a.target().selects(&to)
		switch {
		case a.Disable != nil && selected, a.Weight != nil && selected && a.Weight.Percent == 0,
			a.Route != nil && !selected && (taken || a.Route.Strict), a.Canary != nil && selected != taken:
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
	instances := make([]yodel.Instance, len(p.endpoints))
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
