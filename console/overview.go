// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is the screens S1, Overview, and S2, Services.

// spans are the time ranges that the pages offer.
var spans = map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "24h": 24 * time.Hour}

// spanOf returns the time range that a request asks for.
func spanOf(r *http.Request) (time.Duration, error) {
	name := cmp.Or(r.FormValue("range"), "1m")
	span, ok := spans[name]
	if !ok {
		return 0, yodel.Errorf(yodel.InvalidArgument, "the range %.20q is none of 1m, 1h and 24h", name)
	}
	return span, nil
}

// snapshotOf returns the snapshot of the time range of a request.
func (c *Console) snapshotOf(r *http.Request) (*snapshot, error) {
	span, err := spanOf(r)
	if err != nil {
		return nil, err
	}
	return c.fleet.get(r.Context(), span)
}

// A problem is something that needs attention. The pages have its text in their languages, in the
// table of messages under "problem." and Kind.
type problem struct {
	Kind string   `json:"kind"`
	Addr string   `json:"addr,omitempty"`
	Args []string `json:"args,omitempty"`
}

// problemTexts has the English texts, for curl. {0} is the first argument.
var problemTexts = map[string]string{
	"resolver": "the registry cannot say where its instances are: {0}",
	"none":     "no instance is registered",
	"down":     "{0} of {1} instances cannot be reached: {2}",
	"silent":   "{0} of {1} instances do not answer in time",
	"ejected":  "{0} of {1} instances are ejected: {2}",
	"draining": "{0} of {1} instances are draining",
	"inactive": "{0} of {1} instances are disabled",
	"refused":  "{0} of {1} instances do not accept the console: {2}",
	"failing":  "{0} of the calls fail, mostly with {1}",
	"outlier":  "{0} fails {1} of its calls, the others {2}",
	"slow":     "p99 {0}, was {1}",
}

// String returns the problem in English.
func (p *problem) String() string {
	text := problemTexts[p.Kind]
	for i, arg := range p.Args {
		text = strings.ReplaceAll(text, fmt.Sprintf("{%d}", i), arg)
	}
	return text
}

// A serviceView is a service in the lists of services.
type serviceView struct {
	Name     string          `json:"name"`
	State    fleet.State     `json:"state"`
	Versions []fleet.Version `json:"versions"`
	Up       int             `json:"up"`
	Total    int             `json:"total"`
	Callers  int             `json:"callers"`
	Rules    []string        `json:"rules,omitempty"` // their kinds
	Problems []*problem      `json:"problems,omitempty"`
	numbers
}

// viewOf returns a service as the lists show it.
func viewOf(s *fleet.Service, kinds []string) *serviceView {
	v := &serviceView{
		Name: s.Name, State: s.State, Versions: s.Versions, Up: s.Up, Total: len(s.Instances), Callers: len(s.Callers),
		Rules: kinds, numbers: numbersOf(&s.Traffic), Problems: problemsOf(s),
	}
	if v.State == fleet.Healthy && slices.ContainsFunc(v.Problems, func(p *problem) bool { return p.Kind == "outlier" || p.Kind == "slow" }) {
		v.State = fleet.Degraded
	}
	return v
}

// These say when a service needs attention.
const (
	leastRate  = 0.2  // calls per second of an instance; fewer do not make it an outlier
	outlierMin = 0.05 // of the calls of an instance
	slowFactor = 3
	slowLeast  = 20 * time.Millisecond
	recent     = 10 // steps
)

// problemsOf returns what is wrong with a service.
func problemsOf(s *fleet.Service) []*problem {
	var out []*problem
	found := func(kind, addr string, args ...string) { out = append(out, &problem{kind, addr, args}) }
	if s.Err != "" {
		found("resolver", "", s.Err)
	} else if len(s.Instances) == 0 {
		found("none", "")
	}
	total := fmt.Sprint(len(s.Instances))
	for _, state := range []fleet.State{fleet.Down, fleet.Silent, fleet.Ejected, fleet.Draining, fleet.Inactive, fleet.Refused} {
		var first *fleet.Instance
		n := 0
		for _, in := range s.Instances {
			if in.State == state {
				n++
				first = cmp.Or(first, in)
			}
		}
		if n > 0 {
			found(string(state), first.Addr, fmt.Sprint(n), total, first.Addr+": "+first.Why)
		}
	}
	t := &s.Traffic
	if t.Failing() {
		found("failing", "", percent(t.Failed), worstCode(t.Errors))
	}
	for _, in := range s.Instances {
		own := &in.Traffic
		rest := t.Rate - own.Rate
		if own.Rate < leastRate || rest < leastRate {
			continue
		}
		others := max(t.Rate*t.Failed-own.Rate*own.Failed, 0) / rest
		if own.Failed >= outlierMin && own.Failed > 4*others {
			found("outlier", in.Addr, in.Addr, percent(own.Failed), percent(others))
		}
	}
	if now, was := slowing(s); was > 0 && now > slowLeast && now > slowFactor*was {
		found("slow", "", brief(now), brief(was))
	}
	return out
}

// slowing returns the 99th percentile of the last steps and that of the steps before, each as the
// mean over the calls.
func slowing(s *fleet.Service) (now, was time.Duration) {
	var sums, calls [2]float64
	for _, in := range s.Instances {
		if in.Live == nil {
			continue
		}
		for i := range in.Live.Series {
			series := &in.Live.Series[i]
			if series.Side != "server" || fleet.ServiceOf(series.Method) != s.Name || !isSane(series) {
				continue
			}
			ended := len(series.Calls) - 1
			for j, n := range series.Calls[:ended] {
				half := 0
				if j >= ended-recent {
					half = 1
				}
				calls[half] += float64(n)
				sums[half] += float64(n) * float64(series.P99[j])
			}
		}
	}
	if calls[0] < recent || calls[1] < recent {
		return 0, 0
	}
	return time.Duration(sums[1] / calls[1]), time.Duration(sums[0] / calls[0])
}

func worstCode(errors map[string]float64) (worst string) {
	for code, rate := range errors {
		if code == yodel.Canceled.String() { // the caller has left
			continue
		}
		if worst == "" || rate > errors[worst] || rate == errors[worst] && code < worst {
			worst = code
		}
	}
	return worst
}

func percent(share float64) string {
	if p := share * 100; p > 0 && p < 1 {
		return fmt.Sprintf("%.2f %%", p)
	}
	return fmt.Sprintf("%.3g %%", share*100)
}

// brief returns a duration with about three digits.
func brief(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}

// An overview is what the first screens show.
type overview struct {
	At       time.Time      `json:"at"`
	Step     float64        `json:"step"` // seconds between the points of sparklines
	Services []*serviceView `json:"services"`
	Totals   numbers        `json:"totals"`
	Up       int            `json:"up"`
	Total    int            `json:"total"`
	Rules    int            `json:"rules"`
	Events   []event        `json:"events"`
	Err      string         `json:"err,omitempty"`      // why the registry cannot be read now
	RulesErr string         `json:"rulesErr,omitempty"` // why the rules cannot be read now
}

// overview serves the services and what has changed.
func (c *Console) overview(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	return c.overviewOf(r, s), nil
}

func (c *Console) overviewOf(r *http.Request, s *snapshot) *overview {
	kinds, count, err := c.ruleKinds(r.Context())
	out := &overview{At: s.At, Step: 1, Rules: count, Services: make([]*serviceView, 0, len(s.Services)), Events: events(s.Events, 100), Err: s.Err}
	if s.err != nil {
		out.Err = errorText(s.err)
	}
	if err != nil {
		out.RulesErr = errorText(err)
	}
	var totals fleet.Traffic
	for _, service := range s.Services {
		v := viewOf(service, kinds[service.Name])
		out.Services = append(out.Services, v)
		out.Up, out.Total = out.Up+v.Up, out.Total+v.Total
		if step := service.Traffic.Step; step > 0 {
			out.Step = step.Seconds()
		}
		totals.Add(&service.Traffic)
	}
	rank := map[fleet.State]int{fleet.Broken: 0, fleet.Degraded: 1, fleet.Unknown: 2, fleet.Healthy: 3, fleet.Idle: 4}
	slices.SortStableFunc(out.Services, func(a, b *serviceView) int { return cmp.Compare(rank[a.State], rank[b.State]) })
	out.Totals = numbersOf(&totals)
	return out
}

// An event is an event of a process.
type event = introspect.Event

// events returns the newest events, the newest first. When several processes tell the same, it is
// there once.
func events(all []introspect.Event, limit int) []event {
	type key struct{ kind, object, what string }
	seen := make(map[key]time.Time)
	out := make([]event, 0, limit)
	for i := len(all) - 1; i >= 0 && len(out) < limit; i-- {
		k := key{kind: all[i].Kind, object: all[i].Object}
		if k.kind == "rule" { // a rule may change several times within a moment
			k.what = all[i].What
		}
		if at, ok := seen[k]; ok && at.Sub(all[i].At) < 2*time.Second {
			continue
		}
		seen[k] = all[i].At
		out = append(out, all[i])
	}
	return out
}

// pulse serves how old the data is that the pages show.
func (c *Console) pulse(r *http.Request) (any, error) {
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"age": int(time.Since(s.At).Seconds())} // whole seconds
	if s.err != nil {
		out["err"] = errorText(s.err)
	}
	return out, nil
}
