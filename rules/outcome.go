// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file estimates what all rules of a service together do to its traffic, before and after a
// change of any kind: a new rule, one that is switched off or removed, or a rollback of all.

// A VersionShare is the percentage of the executed calls of a service that the instances of a
// version get.
type VersionShare struct {
	Version string  `json:"version,omitempty"`
	Before  float64 `json:"before"`
	After   float64 `json:"after"`
}

// PreviewChange computes what the traffic of a service would be if its rules became after. Before
// are the present ones. Problems with Force say what an operator has to confirm.
func PreviewChange(service string, before, after []Rule, traffic *Traffic) *Effect {
	e := &Effect{}
	e.compare(service, before, after, traffic)
	c := &checker{}
	c.freed(e, before, after, traffic)
	e.Problems = append(e.Problems, c.found...)
	e.Text = e.versions()
	if e.Refused > 0 && e.Calls > 1e-6 {
		e.Text = strings.TrimPrefix(e.Text+fmt.Sprintf("; %.3g of %.3g calls/s are refused or not executed", e.Refused, e.Calls), "; ")
	}
	return e
}

// A flow is the calls of a method that a caller makes.
type flow struct {
	method, caller string
	rate           float64
}

// likely is the rate of a flow that was not measured, so that it counts beside no other.
const likely = 1e-9

// flows returns the traffic of a service, and a flow that is not measured for each method that the
// rules name and for the service itself.
func (t *Traffic) flows(service string, rules []Rule) []*flow {
	rates := make(map[flow]float64)
	for _, in := range t.Instances {
		t.eachRate(service, in.Addr, func(s *introspect.Series, rate float64) {
			rates[flow{method: s.Method, caller: s.Peer}] += rate
		})
	}
	all := []*flow{{method: service + ".", rate: likely}}
	for i := range rules {
		if name := rules[i].Method; name != "" && !strings.Contains(name, "*") {
			if !strings.ContainsAny(name, "./") {
				name = service + "." + name
			}
			all = append(all, &flow{method: name, rate: likely})
		}
	}
	for f, rate := range rates {
		all = append(all, &flow{f.method, f.caller, rate})
	}
	slices.SortFunc(all, func(a, b *flow) int {
		return cmp.Or(strings.Compare(a.method, b.method), strings.Compare(a.caller, b.caller))
	})
	return all
}

// in reports whether the calls of a flow are in the scope of a rule. Tenants, headers, networks and
// identities are unknown, so a rule with one of them has no flow.
func (f *flow) in(r *Rule) bool {
	_, short := splitMethod(f.method)
	return len(r.unseen()) == 0 && r.hasMethod(f.method, short) &&
		(r.Caller == "" || like(r.Caller, f.caller)) && r.kind().admits(r, &yodel.Call{Method: f.method}, f.caller)
}

// An outcome is what becomes of the calls of a flow: the share that each instance executes.
type outcome struct{ shares []float64 }

func (o *outcome) executed() (sum float64) {
	for _, share := range o.shares {
		sum += share
	}
	return sum
}

// outcomeOf returns what the rules do to the calls of one of the flows.
func outcomeOf(rules []Rule, f *flow, all []*flow, instances []discovery.Instance) outcome {
	now := time.Now()
	var routing []*active
	executed := 1.0
	for i := range rules {
		r := rules[i].acting(now)
		if r == nil || !f.in(r) {
			continue
		}
		if r.target() != nil {
			routing = append(routing, &active{Rule: *r, kind: r.kind()})
			continue
		}
		executed *= r.lets(all, len(instances))
	}
	slices.SortStableFunc(routing, func(a, b *active) int {
		return cmp.Or(cmp.Compare(routeOrder(a), routeOrder(b)), strings.Compare(a.ID, b.ID))
	})
	shares := spread(routing[:min(len(routing), maxRules)], instances)
	for i := range shares {
		shares[i] *= executed
	}
	return outcome{shares}
}

// lets returns the share of the calls in its scope that a rule lets a method execute. N is the
// number of instances.
func (r *Rule) lets(all []*flow, n int) float64 {
	k := r.kind()
	if k.executes == nil {
		return 1
	}
	rate := 0.0
	for _, f := range all {
		if f.in(r) {
			rate += f.rate
		}
	}
	return k.executes(r, rate, n)
}

// compare sets Calls, Refused, Shares and Versions, and adds a problem if the change stops more
// than half of the calls of the service or of a method.
func (e *Effect) compare(service string, before, after []Rule, traffic *Traffic) {
	instances := slices.DeleteFunc(slices.Clone(traffic.Instances), func(in discovery.Instance) bool { return in.State == "inactive" })
	if len(instances) == 0 {
		return
	}
	instances = byAddr(instances)
	all := traffic.flows(service, slices.Concat(before, after))
	type sum struct{ rate, was, is float64 }
	methods, total := make(map[string]*sum), &sum{}
	was, is := make([]float64, len(instances)), make([]float64, len(instances))
	for _, f := range all {
		old, next := outcomeOf(before, f, all, instances), outcomeOf(after, f, all, instances)
		one := methods[f.method]
		if one == nil {
			one = &sum{}
			methods[f.method] = one
		}
		for _, s := range []*sum{one, total} {
			s.rate, s.was, s.is = s.rate+f.rate, s.was+f.rate*old.executed(), s.is+f.rate*next.executed()
		}
		for n := range instances {
			was[n], is[n] = was[n]+f.rate*old.shares[n], is[n]+f.rate*next.shares[n]
		}
	}
	e.byVersion(instances, was, is)
	if len(e.Shares) == 0 {
		for n, in := range instances {
			e.Shares = append(e.Shares, Share{Addr: in.Addr, Version: in.Version, Before: was[n], After: is[n]})
		}
		e.Calls, e.Refused = total.rate, total.rate-total.is
	}
	c := &checker{}
	stops := func(s *sum) bool { return s.is < s.rate/2 && s.is < s.was-s.rate/100 }
	if of, ok := methods[service+"."]; stops(total) || ok && stops(of) && total.rate < 1e-6 {
		c.forcef("YDL-R025", "", "narrow its scope, or confirm it", "%s of the calls of %s would not be executed", percentage(1-total.is/total.rate), service)
	} else {
		for _, name := range sortedKeys(methods) {
			if s := methods[name]; name != service+"." && stops(s) {
				c.forcef("YDL-R025", "", "narrow its scope, or confirm it", "%s of the calls of %s would not be executed", percentage(1-s.is/s.rate), name)
			}
		}
	}
	e.Problems = append(e.Problems, c.found...)
}

// byVersion sets Versions.
func (e *Effect) byVersion(instances []discovery.Instance, was, is []float64) {
	sums := make(map[string]*VersionShare)
	var before, after float64
	for n := range instances {
		v := sums[instances[n].Version]
		if v == nil {
			v = &VersionShare{Version: instances[n].Version}
			sums[v.Version] = v
		}
		v.Before, v.After = v.Before+was[n], v.After+is[n]
		before, after = before+was[n], after+is[n]
	}
	for _, name := range sortedKeys(sums) {
		v := sums[name]
		v.Before, v.After = 100*v.Before/max(before, 1e-12), 100*v.After/max(after, 1e-12)
		e.Versions = append(e.Versions, *v)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// versions returns the shares in words, for example "v1 gets 80 % of the calls (now 67 %), v2 20 %
// (now 33 %)".
func (e *Effect) versions() string {
	if len(e.Versions) < 2 {
		return ""
	}
	var parts []string
	for i, v := range e.Versions {
		verb := ""
		if i == 0 {
			verb = "gets "
		}
		text := fmt.Sprintf("%s %s%s", cmp.Or(v.Version, "no version"), verb, percentage(v.After/100))
		if i == 0 {
			text += " of the calls"
		}
		if math.Abs(v.After-v.Before) >= 0.05 {
			text += fmt.Sprintf(" (now %s)", percentage(v.Before/100))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// percentage writes a share.
func percentage(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

// freed adds a problem for each canary that ends so that its instances get more calls than it gives
// them: it was removed, or put back to a time without it.
func (c *checker) freed(e *Effect, before, after []Rule, traffic *Traffic) {
	now := time.Now()
	for i := range before {
		r := &before[i]
		if _, ok := r.draws(); !ok || r.acting(now) == nil || slices.ContainsFunc(after, func(o Rule) bool { return o.ID == r.ID && o.acting(now) != nil }) {
			continue
		}
		var was, is float64
		for _, s := range e.Shares {
			if n := slices.IndexFunc(traffic.Instances, func(in discovery.Instance) bool { return in.Addr == s.Addr }); n >= 0 && r.target().selects(&traffic.Instances[n]) {
				was, is = was+s.Before, is+s.After
			}
		}
		if total := max(e.Calls-e.Refused, likely); is > was+total/100 {
			c.forcef("YDL-R028", "", fmt.Sprintf("to give it none, switch the rule off: yodel rule off %s %s", r.Service, r.ID),
				"%s would get %s of the calls, now %s: no rule holds it back then", r.target(), percentage(is/total), percentage(was/total))
		}
	}
}

// unknown adds problems for names in the scope and the target of a rule that nothing has.
func (c *checker) unknown(r *Rule, e *Effect, traffic *Traffic) {
	hint := func(name string, known []string) string {
		if near := similar(name, known); near != "" && name != "" {
			return fmt.Sprintf("did you mean %q?", near)
		}
		return ""
	}
	if len(traffic.Services) > 0 && !slices.Contains(traffic.Services, r.Service) {
		c.forcef("YDL-R026", "service", hint(r.Service, traffic.Services), "there is no service %s", r.Service)
		return
	}
	names := func(pattern string, known []string) bool {
		return pattern == "" || slices.ContainsFunc(known, func(name string) bool { return like(pattern, name) })
	}
	short := make([]string, 0, 2*len(traffic.Methods))
	for _, name := range traffic.Methods {
		_, method := splitMethod(name)
		short = append(short, method, strings.ReplaceAll(name, "/", "."), strings.ReplaceAll(name, ".", "/"), name)
	}
	if len(traffic.Methods) > 0 && !names(r.Method, short) {
		c.forcef("YDL-R027", "method", hint(r.Method, short), "%s has no method %s", r.Service, r.Method)
	}
	if callers := traffic.callers(r.Service); len(callers) > 0 && !names(r.Caller, callers) {
		c.forcef("YDL-R027", "caller", hint(r.Caller, callers), "no process with the name %s has called %s in the last minutes", r.Caller, r.Service)
	}
	t := r.target()
	share, draws := r.draws()
	switch {
	case t == nil || len(e.Shares) == 0 || slices.ContainsFunc(e.Shares, func(s Share) bool { return s.Selected }):
	case draws && share == 0: // it waits for a version that has not started
		c.warnf("YDL-R012", r.Kind()+".to", "", "%s is none of the %d instances that run; it gets no calls when it starts", t, len(e.Shares))
	default:
		c.forcef("YDL-R012", r.Kind()+".to", e.meant(t), "%s is none of the %d instances that run", t, len(e.Shares))
	}
}

// callers returns the names of the processes that have called a service.
func (t *Traffic) callers(service string) (all []string) {
	for _, in := range t.Instances {
		t.eachRate(service, in.Addr, func(s *introspect.Series, _ float64) {
			if !slices.Contains(all, s.Peer) {
				all = append(all, s.Peer)
			}
		})
	}
	return all
}

// idle adds a problem if a rule would do something by itself, and does nothing beside another one.
func (c *checker) idle(r *Rule, all []Rule, traffic *Traffic) {
	now := time.Now()
	if !r.Active(now) {
		return
	}
	others := slices.DeleteFunc(slices.Clone(all), func(o Rule) bool { return o.ID == r.ID || !o.Acts(now) })
	id := cmp.Or(r.ID, r.Kind()+"-")
	for i := range others {
		o := &others[i]
		first := r.kind().decides == firstRule && o.ID < id
		last := r.kind().decides == lastRule && o.ID > id
		if (first || last) && r.resembles(o) && o.covers(r) {
			c.warnf("YDL-R029", "", "change that rule, or remove it", "rule %s leaves it no effect", o.ID)
			return
		}
	}
	without := func(drop int) []Rule {
		return append(slices.DeleteFunc(slices.Clone(others), func(o Rule) bool { return drop >= 0 && o.ID == others[drop].ID }), *r)
	}
	if len(others) == 0 || traffic.changed(r, others, without(-1)) || !traffic.changed(r, nil, []Rule{*r}) {
		return
	}
	for i := range others {
		rest := without(i)
		if traffic.changed(r, rest[:len(rest)-1], rest) {
			c.warnf("YDL-R029", "", "change that rule, or remove it", "rule %s leaves it no effect", others[i].ID)
			return
		}
	}
}

// covers reports whether the calls in the scope of other are in the scope of r, as far as the texts
// say.
func (r *Rule) covers(other *Rule) bool {
	for _, p := range [][2]string{{r.Method, other.Method}, {r.Caller, other.Caller}, {r.Tenant, other.Tenant}, {r.Network, other.Network}} {
		if p[0] != "" && p[0] != p[1] {
			return false
		}
	}
	return len(r.Header) == 0 && len(r.Identity) == 0
}

// changed reports whether two sets of rules differ in what they do to the calls in the scope of r.
func (t *Traffic) changed(r *Rule, before, after []Rule) bool {
	instances := slices.DeleteFunc(slices.Clone(t.Instances), func(in discovery.Instance) bool { return in.State == "inactive" })
	all := t.flows(r.Service, []Rule{*r})
	for _, f := range all {
		if f.in(r) && !slices.EqualFunc(outcomeOf(before, f, all, instances).shares, outcomeOf(after, f, all, instances).shares, func(a, b float64) bool {
			return math.Abs(a-b) < 1e-9
		}) {
			return true
		}
	}
	return false
}
