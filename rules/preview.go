// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Traffic is what Preview knows of a service: its instances, and the live data of each instance by
// address. Instances without live data count as idle.
type Traffic struct {
	Instances []yodel.Instance
	Live      map[string]*introspect.Live
}

// An Effect is what a rule would do to the traffic of the last minutes. Rates are calls per second.
// All numbers are estimates: they assume that clients spread calls by the weights of the instances,
// and that all calls have the headers and tenants in the rule's scope.
type Effect struct {
	// Calls is the rate of the service, and Matched that of the calls in the rule's scope.
	Calls   float64 `json:"calls"`
	Matched float64 `json:"matched"`
	// Moved is the rate of the calls that would go to another instance, and Refused the rate of
	// those that would not be executed.
	Moved   float64 `json:"moved"`
	Refused float64 `json:"refused"`
	// Shares has the instances, sorted by address.
	Shares   []Share   `json:"shares"`
	Problems []Problem `json:"problems,omitempty"` // those of Check, and those that the traffic shows
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
	active := slices.DeleteFunc(slices.Clone(traffic.Instances), func(in yodel.Instance) bool { return in.State == "inactive" })
	e.disabled = len(traffic.Instances) > 0 && disableAll(all, active)
	if len(active) == 0 {
		active = traffic.Instances
	}
	for _, in := range active {
		target := rule.target()
		e.Shares = append(e.Shares, Share{Addr: in.Addr, Version: in.Version, Selected: target != nil && target.selects(&in)})
	}
	slices.SortFunc(e.Shares, func(a, b Share) int { return strings.Compare(a.Addr, b.Addr) })
	matched := make([]float64, len(e.Shares))
	for i := range e.Shares {
		e.Shares[i].Before, matched[i] = rule.rates(traffic.Live[e.Shares[i].Addr])
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
	e.examine(rule, all)
	if e.Text = e.sentence(rule); e.disabled && e.Calls > 0 {
		e.Text = fmt.Sprintf("all %d instances are disabled now; as before that, %s", len(e.Shares), e.Text)
	}
	return e
}

// disableAll reports whether the rules that concern all calls leave no instance.
func disableAll(all []Rule, instances []yodel.Instance) bool {
	now := time.Now()
	left := slices.Clone(instances)
	for i := range all {
		r := &all[i]
		if r.Disable == nil || !r.Active(now) || r.Method != "" || r.Caller != "" || r.Tenant != "" || len(r.Header) > 0 {
			continue
		}
		if r.Disable.To == nil && len(r.Disable.Except) == 0 {
			return true
		}
		left = slices.DeleteFunc(left, func(in yodel.Instance) bool { return r.Disable.To != nil && r.Disable.To.selects(&in) })
	}
	return len(left) == 0
}

// rates returns the calls per second that an instance executes of a service, and those in the scope
// of the rule. Tenants and headers are unknown, so they do not count.
func (r *Rule) rates(live *introspect.Live) (calls, matched float64) {
	if live == nil || live.Step <= 0 {
		return 0, 0
	}
	for i := range live.Series {
		s := &live.Series[i]
		service, _ := splitMethod(s.Method)
		n := max(len(s.Calls)-1, 0) // the last step has not ended
		if lived := live.Now.Sub(live.Process.Started); lived < time.Duration(n)*live.Step {
			n = int((lived + live.Step - 1) / live.Step)
		}
		if s.Side != "server" || service != r.Service || n <= 0 {
			continue
		}
		sum := uint64(0)
		for _, step := range s.Calls[len(s.Calls)-1-n : len(s.Calls)-1] {
			sum += step
		}
		rate := float64(sum) / (float64(n) * live.Step.Seconds())
		calls += rate
		if (r.Method == "" || like(r.Method, methodFor(r.Method, s.Method))) && (r.Caller == "" || like(r.Caller, s.Peer)) {
			matched += rate
		}
	}
	return calls, matched
}

// move computes the shares after the rule, and the rate of the calls that no instance takes then.
// Calls outside of its scope go where they went before.
func (e *Effect) move(rule *Rule, all []Rule, traffic *Traffic, matched []float64) {
	for i := range e.Shares {
		e.Shares[i].After = e.Shares[i].Before
	}
	if rule.target() == nil || rule.Off {
		return
	}
	var instances []yodel.Instance
	for _, share := range e.Shares {
		i := slices.IndexFunc(traffic.Instances, func(in yodel.Instance) bool { return in.Addr == share.Addr })
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
	own := []*active{{Rule: *r}}
	now := time.Now()
	for i := range all {
		o := &all[i]
		if o.ID != r.ID && o.target() != nil && o.Active(now) && len(o.Header) == 0 && o.Tenant == "" &&
			(o.Method == "" || o.Method == r.Method) && (o.Caller == "" || o.Caller == r.Caller) {
			own = append(own, &active{Rule: *o})
		}
	}
	slices.SortStableFunc(own, func(a, b *active) int {
		return cmp.Or(cmp.Compare(routeOrder(a), routeOrder(b)), strings.Compare(a.ID, b.ID))
	})
	return own[:min(len(own), maxRules)]
}

// spread returns the share of the calls that each instance gets. It adds the shares of all
// combinations of canaries that take a call or do not.
func spread(rules []*active, instances []yodel.Instance) []float64 {
	shares := make([]float64, len(instances))
	var add func(i int, d decision, likely float64)
	add = func(i int, d decision, likely float64) {
		if likely == 0 {
			return
		}
		if i < len(rules) {
			d.matched |= 1 << i
			if c := rules[i].Canary; c != nil {
				add(i+1, decision{d.matched, d.hit | 1<<i}, likely*c.Percent/100)
				likely *= 1 - c.Percent/100
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
	canaries := 0
	rules = slices.DeleteFunc(slices.Clone(rules), func(a *active) bool {
		if a.Canary != nil {
			canaries++
		}
		return a.Canary != nil && canaries > 8 // the number of combinations is bounded
	})
	add(0, decision{}, 1)
	return shares
}

// refuse computes the rate of the calls that are not executed because of a rule that does not
// choose instances.
func (e *Effect) refuse(rule *Rule) {
	switch {
	case rule.Off:
	case rule.Disable != nil && rule.Disable.To == nil, rule.Mock != nil:
		e.Refused = e.Matched
	case rule.Fault != nil && (rule.Fault.Code != "" || rule.Fault.Lose == "request"):
		e.Refused = e.Matched * cmp.Or(rule.Fault.Percent, 100) / 100
	case rule.Limit != nil && rule.Limit.PerSecond > 0 && rule.Limit.By == "" && rule.Side != "client":
		for _, s := range e.Shares { // each instance has the limit
			if e.Calls > 0 {
				e.Refused += max(s.Before*e.Matched/e.Calls-rule.Limit.PerSecond, 0)
			}
		}
	}
}

// examine adds the problems that the instances, the traffic and the other rules show.
func (e *Effect) examine(rule *Rule, all []Rule) {
	c := &checker{}
	if e.disabled {
		c.warnf("YDL-R024", "", "yodel describe SERVICE says what has disabled them", "no instance of %s takes calls: all %d are disabled", rule.Service, len(e.Shares))
	}
	if rule.target() != nil {
		e.examineTarget(c, rule)
	}
	if e.Calls > 0 && e.Matched == 0 && rule.Switch == nil {
		c.warnf("YDL-R013", "method", "", "no call of the last minutes is %s", strings.TrimPrefix(rule.of(), "of "))
	}
	for i := range all {
		o := &all[i]
		if o.ID != rule.ID && o.Kind() == rule.Kind() && o.Active(time.Now()) && o.of() == rule.of() && rule.Kind() != "weight" &&
			(rule.Switch == nil || o.Switch.Name == rule.Switch.Name) {
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
	switch {
	case selected == 0:
		c.warnf("YDL-R012", field, e.meant(rule.target()), "%s is none of the %d instances that run", rule.target(), len(e.Shares))
	case rule.Disable != nil && selected == len(e.Shares):
		c.warnf("YDL-R015", field, "", "all %d instances would be disabled", selected)
	case selected == 1 && rule.Canary != nil:
		c.warnf("YDL-R021", field, "", "%s is a single instance; no failover inside the canary", rule.target())
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
	case rule.target() != nil && rule.Disable == nil:
		return fmt.Sprintf("%.3g of %.3g calls/s move; %s gets %.3g calls/s", e.Moved, e.Calls, rule.target(), e.selected())
	case rule.target() != nil:
		return fmt.Sprintf("%.3g of %.3g calls/s move to other instances", e.Moved, e.Calls)
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
