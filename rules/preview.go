// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// Traffic is what Preview knows of a service: its instances, and the live data of each instance by
// address. Instances without live data count as idle.
type Traffic struct {
	Instances []discovery.Instance
	Live      map[string]*introspect.Live
	// Services are the services in the registry, and Methods those of the service. Names that they
	// do not have are problems of the rule. If they are empty, names are not checked.
	Services, Methods []string
}

// An Effect is what a rule would do to the traffic of the last minutes. Rates are calls per second.
// All numbers are estimates: they assume that clients spread calls by the weights of the instances,
// and that all calls have the tenants, headers, networks and identities in the rule's scope.
type Effect struct {
	// Calls is the rate of the service, and Matched that of the calls in the rule's scope.
	Calls   float64 `json:"calls"`
	Matched float64 `json:"matched"`
	// Moved is the rate of the calls that would go to another instance, and Refused the rate of
	// those that would not be executed.
	Moved   float64 `json:"moved"`
	Refused float64 `json:"refused"`
	// Shares has the instances, sorted by address.
	Shares []Share `json:"shares"`
	// Versions has the shares of the versions in percent, if there are instances.
	Versions []VersionShare `json:"versions,omitempty"`
	Problems []Problem      `json:"problems,omitempty"` // those of Check, and those that the traffic shows
	// Text is the effect in a sentence, for example "10 of 100 calls/s move to version v2".
	Text string `json:"text"`

	disabled bool // no instance takes calls, whether the rule acts or not
}

// A Share is the traffic of an instance before and after a rule.
type Share struct {
	Addr     string  `json:"addr"`
	Version  string  `json:"version,omitempty"`
	Before   float64 `json:"before"`
	After    float64 `json:"after"`
	Selected bool    `json:"selected,omitempty"` // the rule's target selects it
}

// Preview computes what a rule would do. All are the rules of the service that exist: Preview
// leaves out a rule with the ID of rule. Before has the traffic as measured. After moves the calls
// in the scope as the rule and the other rules that choose instances would. It leaves out inactive
// instances, unless all are inactive.
func Preview(rule *Rule, all []Rule, traffic *Traffic) *Effect {
	e := &Effect{Problems: rule.Check()}
	active := slices.DeleteFunc(slices.Clone(traffic.Instances), func(in discovery.Instance) bool { return in.State == "inactive" })
	e.disabled = len(traffic.Instances) > 0 && disableAll(all, active)
	if len(active) == 0 {
		active = traffic.Instances
	}
	for _, in := range byAddr(active) {
		target := rule.target()
		e.Shares = append(e.Shares, Share{Addr: in.Addr, Version: in.Version, Selected: target != nil && target.selects(&in)})
	}
	matched := make([]float64, len(e.Shares))
	for i := range e.Shares {
		e.Shares[i].Before, matched[i] = traffic.rates(rule, e.Shares[i].Addr)
		e.Calls, e.Matched = e.Calls+e.Shares[i].Before, e.Matched+matched[i]
	}
	if slices.ContainsFunc(e.Problems, func(p Problem) bool { return !p.Warning }) {
		for i := range e.Shares {
			e.Shares[i].After = e.Shares[i].Before
		}
		e.Text = "the rule is invalid"
		return e
	}
	e.move(rule, all, traffic, matched)
	e.refuse(rule)
	for i := range e.Shares {
		if rule.target() == nil && e.Matched > 0 {
			e.Shares[i].After -= matched[i] * min(e.Refused/e.Matched, 1)
		}
	}
	after := append(slices.DeleteFunc(slices.Clone(all), func(o Rule) bool { return o.ID == rule.ID && o.ID != "" }), *rule)
	e.compare(rule.Service, all, after, traffic)
	e.examine(rule, all, traffic)
	if e.Text = e.sentence(rule); e.disabled && e.Calls > 0 {
		e.Text = fmt.Sprintf("all %d instances are disabled now; as before that, %s", len(e.Shares), e.Text)
	}
	if parts := rule.unseen(); e.Calls > 0 && len(parts) > 0 {
		e.Text += ", if all calls have the " + strings.Join(parts, " and the ") + " of the rule"
	}
	if said := rule.Across(len(e.Shares)); said != "" {
		e.Text += "; " + said
	}
	if said := e.versions(); said != "" && rule.target() != nil {
		e.Text += "; " + said
	}
	return e
}

// byAddr returns instances, sorted by address.
func byAddr(instances []discovery.Instance) []discovery.Instance {
	return slices.SortedFunc(slices.Values(instances), func(a, b discovery.Instance) int { return strings.Compare(a.Addr, b.Addr) })
}

// rates returns the calls per second that an instance executes of a service, and those in the scope
// of the rule. What unseen returns is unknown, so it does not count.
func (t *Traffic) rates(r *Rule, addr string) (calls, matched float64) {
	t.eachRate(r.Service, addr, func(s *introspect.Series, rate float64) {
		calls += rate
		if _, short := splitMethod(s.Method); r.hasMethod(s.Method, short) && (r.Caller == "" || like(r.Caller, s.Peer)) {
			matched += rate
		}
	})
	return calls, matched
}

// eachRate calls f with the series of the calls of a service that an instance has executed, and
// their calls per second. All instances are counted in the same time, as the lists of services do,
// so that the rates can be added.
func (t *Traffic) eachRate(service, addr string, f func(s *introspect.Series, rate float64)) {
	live := t.Live[addr]
	if live == nil {
		return
	}
	var all []*introspect.Live
	for _, in := range t.Instances {
		if one := t.Live[in.Addr]; one != nil {
			all = append(all, one)
		}
	}
	span := fleet.Counted(all...)
	for i := range live.Series {
		s := &live.Series[i]
		if of, _ := splitMethod(s.Method); s.Side != "server" || of != service {
			continue
		}
		if counted := fleet.TrafficOf(live, s, span); counted.Rate > 0 {
			f(s, counted.Rate)
		}
	}
}

// move computes the shares after the rule, and the rate of the calls that no instance takes then.
// Calls outside of its scope go where they went before.
func (e *Effect) move(rule *Rule, all []Rule, traffic *Traffic, matched []float64) {
	for i := range e.Shares {
		e.Shares[i].After = e.Shares[i].Before
	}
	rule = rule.acting(time.Now())
	if rule == nil || rule.target() == nil {
		return
	}
	var instances []discovery.Instance
	for _, share := range e.Shares {
		i := slices.IndexFunc(traffic.Instances, func(in discovery.Instance) bool { return in.Addr == share.Addr })
		instances = append(instances, traffic.Instances[i])
	}
	want, sum := spread(rule.routing(all), instances), 0.0
	for i := range e.Shares {
		s := &e.Shares[i]
		s.After = s.Before - matched[i] + want[i]*e.Matched
		e.Moved += max(s.After-s.Before, 0)
		sum += want[i]
	}
	if lost := 1 - sum; lost > 1e-9 { // less is an error of rounding
		e.Refused = e.Matched * lost
	}
}

// routing returns the rules that choose instances for the calls in the scope of r: r itself, and
// those of the others that concern all calls or the same calls.
func (r *Rule) routing(all []Rule) []*active {
	own := []*active{{Rule: *r, kind: r.kind()}}
	now := time.Now()
	for i := range all {
		o := &all[i]
		if o.ID != r.ID && o.target() != nil && o.Active(now) && len(o.unseen()) == 0 &&
			(o.Method == "" || o.Method == r.Method) && (o.Caller == "" || o.Caller == r.Caller) {
			own = append(own, &active{Rule: *o, kind: o.kind()})
		}
	}
	slices.SortStableFunc(own, func(a, b *active) int {
		return cmp.Or(cmp.Compare(routeOrder(a), routeOrder(b)), strings.Compare(a.ID, b.ID))
	})
	return own[:min(len(own), maxRules)]
}

// spread returns the share of the calls that each instance gets. It adds the shares of all
// combinations of canaries that take a call or do not.
func spread(rules []*active, instances []discovery.Instance) []float64 {
	shares := make([]float64, len(instances))
	var add func(i int, d decision, likely float64)
	add = func(i int, d decision, likely float64) {
		if likely == 0 {
			return
		}
		if i < len(rules) {
			d.matched |= 1 << i
			if share, ok := rules[i].draws(); ok {
				add(i+1, decision{d.matched, d.hit | 1<<i}, likely*share)
				likely *= 1 - share
			}
			add(i+1, d, likely)
			return
		}
		percent, _, _ := narrow(rules, d, instances)
		total := 0.0
		for n, p := range percent {
			total += p * float64(max(instances[n].Weight, 1))
		}
		if total == 0 { // no instance has more than 0 %, so these are the ones that take the calls
			for n := range percent {
				percent[n] = 1
				total += float64(max(instances[n].Weight, 1))
			}
		}
		for n, p := range percent {
			shares[n] += likely * p * float64(max(instances[n].Weight, 1)) / total
		}
	}
	drawing := 0
	rules = slices.DeleteFunc(slices.Clone(rules), func(a *active) bool {
		if a.drawing() {
			drawing++
		}
		return a.drawing() && drawing > 8 // the number of combinations is bounded
	})
	add(0, decision{}, 1)
	return shares
}

// refuse computes the rate of the calls that are not executed because of a rule that does not
// choose instances. Each instance gets its part of the calls in the scope.
func (e *Effect) refuse(rule *Rule) {
	k := rule.kind()
	if rule.Off || rule.target() != nil || k.executes == nil || e.Calls == 0 {
		return
	}
	for _, s := range e.Shares {
		rate := s.Before * e.Matched / e.Calls
		e.Refused += rate * (1 - k.executes(rule, rate, 1))
	}
}

// examine adds the problems that the instances, the traffic and the other rules show.
func (e *Effect) examine(rule *Rule, all []Rule, traffic *Traffic) {
	c := &checker{}
	c.unknown(rule, e, traffic)
	c.idle(rule, all, traffic)
	if e.disabled {
		c.warnf("YDL-R024", "", "yodel describe SERVICE says what has disabled them", "no instance of %s takes calls: all %d are disabled", rule.Service, len(e.Shares))
	}
	if rule.target() != nil {
		e.examineTarget(c, rule)
	}
	if e.Calls > 0 && e.Matched == 0 && rule.kind().sides != inPrograms {
		c.warnf("YDL-R013", "method", "", "no call of the last minutes is %s", strings.TrimPrefix(rule.of(), "of "))
	}
	for i := range all {
		o := &all[i]
		if o.ID != rule.ID && rule.resembles(o) && o.Active(time.Now()) && o.of() == rule.of() {
			c.warnf("YDL-R016", "", "remove one of them", "rule %s is of the same kind and has the same scope", o.ID)
			break
		}
	}
	e.Problems = append(e.Problems, c.found...)
}

func (e *Effect) examineTarget(c *checker, rule *Rule) {
	selected := 0
	for _, s := range e.Shares {
		if s.Selected {
			selected++
		}
	}
	field := rule.Kind() + ".to"
	if examine := rule.kind().routes.examine; examine != nil {
		examine(c, rule, selected, len(e.Shares))
	}
	for _, s := range e.Shares {
		if s.Before > 0 && s.After > 3*s.Before && s.After-s.Before > 1 {
			c.warnf("YDL-R023", field, "raise the share in steps", "%s would get %.3g calls/s, now %.3g", s.Addr, s.After, s.Before)
		}
	}
}

// meant returns a hint for a version that no instance has.
func (e *Effect) meant(t *Target) string {
	var versions []string
	for _, s := range e.Shares {
		versions = append(versions, s.Version)
	}
	if near := similar(t.Version, versions); near != "" && t.Version != "" {
		return fmt.Sprintf("did you mean version %q?", near)
	}
	return ""
}

// sentence returns the effect in words.
func (e *Effect) sentence(rule *Rule) string {
	switch {
	case e.Calls == 0 && e.disabled:
		return fmt.Sprintf("there was no traffic in the last minutes, because all %d instances are disabled", len(e.Shares))
	case e.Calls == 0:
		return "there was no traffic in the last minutes"
	case e.Refused > 0:
		return fmt.Sprintf("%.3g of %.3g calls/s are refused or not executed", e.Refused, e.Calls)
	case rule.target() != nil && !slices.ContainsFunc(e.Shares, func(s Share) bool { return s.Selected }):
		return fmt.Sprintf("none of %.3g calls/s move: no instance has %s", e.Calls, rule.target())
	case rule.target() != nil && rule.kind().routes.narrows(rule, true).leaves == otherInstances:
		return fmt.Sprintf("%.3g of %.3g calls/s move to other instances", e.Moved, e.Calls)
	case rule.target() != nil:
		return fmt.Sprintf("%.3g of %.3g calls/s move; %s gets %.3g calls/s", e.Moved, e.Calls, rule.target(), e.selected())
	}
	return fmt.Sprintf("it concerns %.3g of %.3g calls/s", e.Matched, e.Calls)
}

// selected returns the rate of the selected instances after the rule.
func (e *Effect) selected() (sum float64) {
	for _, s := range e.Shares {
		if s.Selected {
			sum += s.After
		}
	}
	return sum
}
