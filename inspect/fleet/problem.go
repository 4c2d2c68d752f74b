// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Problem is something about a service that people should know. The command and the console show
// the same problems; the console has their texts in its languages.
type Problem struct {
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	Addr     string   `json:"addr,omitempty"` // of the first instance that it is about
	Rule     string   `json:"rule,omitempty"` // the ID of the rule that it is about
	// Cause is the service whose calls fail, if this one passes on the errors.
	Cause string   `json:"cause,omitempty"`
	Args  []string `json:"args,omitempty"`
}

// A Severity says what a problem means for the state of the service.
type Severity string

// These are the severities.
const (
	Bad  Severity = "bad"  // the service is Down
	Warn Severity = "warn" // the service is Degraded
	Info Severity = "info" // the service works
)

// texts has the English texts of the kinds. {0} is the first argument, and {0|is|are} is for a
// first argument of 1 and of others.
var texts = map[string]string{ //nolint:gosec // it has no credentials
	"stopped":  "rule {0} of {1} stops all calls: {2} ({3} ago)",
	"ruled":    "rule {0} of {1}: {2} ({3} ago)",
	"resolver": "the registry cannot say where its instances are: {0}",
	"none":     "no instance is registered",
	"record":   "the record {0} cannot be read, and its instance is not listed: {1}",
	"records":  "{0} more records cannot be read, and their instances are not listed",
	"partly":   "the record {0} can only be read in part: {1}",
	"down":     "{0} of {1} instances cannot be reached: {2}",
	"silent":   "{0} of {1} instances {0|does|do} not answer in time: {2}",
	"ejected":  "{0} of {1} instances {0|is|are} ejected: {2}",
	"draining": "{0} of {1} instances {0|is|are} draining: {2}",
	"inactive": "{0} of {1} instances {0|is|are} disabled: {2}",
	"refused":  "{0} of {1} instances {0|does|do} not accept this caller: {2}",
	"setting":  "{0}: {1}",
	"blind":    "{0}: {1}",
	"disabled": "{0} calls a second fail, because a rule refuses them",
	"released": "{0} calls a second failed, because a rule refused them; no rule does now",
	"unsent":   "{0} calls a second reach no instance, mostly with {1}",
	"failing":  "{0} of the calls fail, mostly with {1}",
	"passed":   "{0} of the calls fail, mostly with {1}, as the calls to {2} do",
	"unknown":  "{0} of {1} instances could not be asked in time: {2}",
	"answered": "{0} of the calls are answered with {1}",
	"relayed":  "{0} of the calls are answered with {1}, as the calls to {2} are",
	"limited":  "{0} of the calls are limited",
	"outlier":  "{0} fails {1} of its calls, the others {2}",
	"method":   "{0} fails {1} of its calls of {3}, the others {2}",
	"passer":   "{0} fails {1} of its calls, as the calls to {2} do",
	"laggard":  "{0} is slow: its p90 of {3} is {1}, that of the others {2}",
	"slow":     "p99 {0}, was {1}",
	"flood":    "{0} calls a second, were {1}: {2} come from {3}",
}

// ProblemTexts returns the English texts by kind, for translations.
func ProblemTexts() map[string]string { return maps.Clone(texts) }

// String returns the problem in English.
func (p *Problem) String() string {
	return placeholder.ReplaceAllStringFunc(texts[p.Kind], func(part string) string {
		words := strings.Split(strings.Trim(part, "{}"), "|")
		i, err := strconv.Atoi(words[0])
		switch {
		case err != nil || i >= len(p.Args):
			return part
		case len(words) == 1:
			return p.Args[i]
		case p.Args[i] == "1":
			return words[1]
		}
		return words[2]
	})
}

var placeholder = regexp.MustCompile(`\{\d(\|[^|}]*\|[^|}]*)?\}`)

// A Ruling is a rule of an operator that acts.
type Ruling struct {
	Service string
	ID      string
	Kind    string // as rules.Rule.Kind
	Author  string
	What    string    // what it does and why, for people
	Since   time.Time // when it was made
	// Stops says that the rule refuses or replaces calls. All says that it concerns all calls.
	Stops, All bool
	// Holds reports whether the rule leaves an instance none of the calls. It may be nil.
	Holds func(*discovery.Instance) bool
}

// These say when a service needs attention.
const (
	failing     = 0.01 // of the calls
	mostlyFails = 0.5  // of the calls
	leastFailed = 5    // calls; fewer do not make a service down
	leastCalls  = 10   // of an instance; fewer say nothing about it
	outlierMin  = 0.05 // of the calls of an instance
	slowFactor  = 3
	slowLeast   = 20 * time.Millisecond
	lagLeast    = 5 * time.Millisecond
	recent      = 10 // steps
	floodFactor = 2
	floodLeast  = 20.0 // calls a second more than before
	someShare   = 0.05 // of the calls, to be worth a word
	leastShared = 20   // recent calls of a service; fewer do not show the shares of its versions
)

// judge finds the problems of a service, and sets its state by them.
func (s *Service) judge(now time.Time) {
	s.Problems = nil
	s.findRules(now)
	s.findStates(now)
	s.findUnread()
	s.findErrors()
	s.findOutliers()
	s.findLoad()
	slices.SortStableFunc(s.Problems, func(a, b Problem) int { return cmp.Compare(order[a.Severity], order[b.Severity]) })
	notes := make([]string, len(s.Problems))
	for i := range s.Problems {
		notes[i] = s.Problems[i].String()
	}
	s.Note = strings.Join(notes, "; ")
	switch {
	case s.has(Bad):
		s.State = Down
	case s.has(Warn):
		s.State = Degraded
	case slices.ContainsFunc(s.Instances, func(in *Instance) bool { return in.State == Refused }):
		s.State = Unknown
	case 2*s.unasked() > len(s.Instances):
		s.State = Unknown
	case s.Traffic.Rate == 0 && slices.ContainsFunc(s.Instances, (*Instance).isBlind):
		s.State = Unknown
	case s.Traffic.Rate == 0:
		s.State = Idle
	default:
		s.State = Healthy
	}
}

var order = map[Severity]int{Bad: 0, Warn: 1, Info: 2}

func (s *Service) has(severity Severity) bool {
	return slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Severity == severity })
}

// passed returns 1 for a service whose only failures are those of services that it calls, and
// otherwise 0.
func (s *Service) passed() int {
	for _, p := range s.Problems {
		if p.Severity != Info && p.Kind != "passed" {
			return 0
		}
	}
	return 1
}

func (s *Service) found(kind string, severity Severity, addr string, args ...string) {
	s.Problems = append(s.Problems, Problem{Kind: kind, Severity: severity, Addr: addr, Args: args})
}

// findRules finds the rules that keep calls from the service.
func (s *Service) findRules(now time.Time) {
	for _, r := range s.rulings {
		for _, in := range s.Instances {
			if r.Holds != nil && in.State == Up && in.Why == "" && in.Live != nil && r.Holds(&in.Instance) {
				in.Why = fmt.Sprintf("gets no calls because of rule %s (%s)", r.ID, r.Kind)
			}
		}
		if !r.Stops {
			continue
		}
		kind, severity := "ruled", Info
		if r.All {
			kind, severity = "stopped", Bad
		}
		s.found(kind, severity, "", r.ID, r.Author, r.What, Age(now.Sub(r.Since)))
		s.Problems[len(s.Problems)-1].Rule = r.ID
	}
}

// findStates finds instances that get no calls.
func (s *Service) findStates(now time.Time) {
	severity := Warn
	if s.Up == 0 && s.unasked() == 0 {
		severity = Bad
	}
	switch {
	case s.outage && len(s.Instances) > 0: // View.Err says it once
	case s.Err != "":
		s.found("resolver", severity, "", s.Err)
	case len(s.Instances) == 0:
		s.found("none", severity, "")
	}
	total := fmt.Sprint(len(s.Instances))
	for _, state := range []State{Down, Silent, Ejected, Draining, Inactive, Refused, Unknown} {
		var in []*Instance
		for _, one := range s.Instances {
			if one.State == state {
				in = append(in, one)
			}
		}
		of := severity
		if state == Refused || state == Unknown {
			of = Info
		}
		if len(in) > 0 {
			s.found(string(state), of, in[0].Addr, fmt.Sprint(len(in)), total, named(in, now))
		}
	}
}

// unasked returns how many instances were not asked.
func (s *Service) unasked() (n int) {
	for _, in := range s.Instances {
		if in.Unasked {
			n++
		}
	}
	return n
}

// maxRecords bounds the records of a kind that are problems of their own.
const maxRecords = 3

// findUnread finds records of the registry, and instances, of which something cannot be read.
func (s *Service) findUnread() {
	lost, partly := 0, 0
	for _, r := range s.unread {
		switch {
		case r.Instance != "" && partly < maxRecords:
			s.found("partly", Info, "", short(r.Key), short(r.Problem))
			partly++
		case r.Instance == "":
			if lost++; lost <= maxRecords {
				s.found("record", Warn, "", short(r.Key), short(r.Problem))
			}
		}
	}
	if more := lost - maxRecords; more > 0 {
		s.found("records", Warn, "", fmt.Sprint(more))
	}
	for _, in := range s.Instances {
		if problem := in.SettingProblem(); problem != "" {
			s.found("setting", Info, in.Addr, in.Addr, problem)
			break // the instances have the others
		}
	}
	if i := slices.IndexFunc(s.Instances, (*Instance).isBlind); i >= 0 {
		s.found("blind", Info, s.Instances[i].Addr, s.Instances[i].Addr, s.Instances[i].Why)
	}
}

// named names instances, the first one with the reason for its state.
func named(list []*Instance, now time.Time) string {
	const most = 3
	var said []string
	for _, in := range list[:min(len(list), most)] {
		said = append(said, in.Addr)
	}
	text := strings.Join(said, ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	first := list[0]
	if why := first.Why; why != "" {
		text += ": " + why
	}
	if !first.Since.IsZero() {
		text += fmt.Sprintf(" (for %s)", Age(now.Sub(first.Since)))
	}
	return text
}

// findErrors finds how calls end.
func (s *Service) findErrors() {
	t := &s.Traffic
	s.findUnsent()
	failed, own := t.Failed*t.Judged(), ""
	if s.refused() > 0 { // that is a problem of its own
		failed, own = failed-t.Errors[introspect.Disabled], introspect.Disabled
	}
	if share := failed / t.Judged(); share > failing {
		code, _ := t.worst(introspect.Failed, own)
		severity := Warn
		if share > mostlyFails && t.Calls(failed) >= leastFailed {
			severity = Bad
		}
		if from := s.culprit(code); from.service != "" {
			s.found("passed", Warn, "", Percent(share), code, from.path)
			s.Problems[len(s.Problems)-1].Cause = from.cause
		} else {
			s.found("failing", severity, "", Percent(share), code)
		}
	}
	if code, share := t.worst(introspect.Answered, ""); share > someShare {
		if from := s.culprit(code); from.service != "" {
			s.found("relayed", Info, "", Percent(share), code, from.path)
			s.Problems[len(s.Problems)-1].Cause = from.cause
		} else {
			severity := Info
			if share > mostlyFails && t.Calls(t.Errors[code]) >= leastFailed { // such as a method that is missing
				severity = Warn
			}
			s.found("answered", severity, "", Percent(share), code)
		}
	}
	if all := t.Judged() + t.Limited; all > 0 && t.Limited > failing*all {
		severity := Warn
		if s.culprit("resource_exhausted").service != "" || slices.ContainsFunc(s.rulings, func(r Ruling) bool { return r.Kind == "limit" }) {
			severity = Info
		}
		s.found("limited", severity, "", Percent(t.Limited/all))
	}
}

// severe returns the severity of the loss of calls at a rate, compared with all calls of the
// service. It returns "" if few calls are lost.
func (s *Service) severe(lost float64) Severity {
	all := s.Unsent.Judged() + s.Traffic.Judged()
	switch {
	case lost <= failing*all:
		return ""
	case lost > mostlyFails*all && lost*max(s.Unsent.Span, s.Traffic.Span).Seconds() >= leastFailed:
		return Bad
	}
	return Warn
}

// refused returns how many calls in a second rules refuse on the instances.
func (s *Service) refused() float64 {
	if s.culprit(introspect.Disabled).service != "" {
		return 0 // they are passed on
	}
	return s.Traffic.Errors[introspect.Disabled]
}

// findUnsent finds the calls that rules refuse, in clients and on the instances, and the other
// calls that reach no instance.
func (s *Service) findUnsent() {
	u := &s.Unsent
	refused := u.Errors[introspect.Disabled]
	if severity := s.severe(refused + s.refused()); severity != "" {
		kind := "disabled"
		if s.ruled && !slices.ContainsFunc(s.rulings, func(r Ruling) bool { return r.Kind == "disable" }) {
			kind, severity = "released", Warn
		}
		s.found(kind, severity, "", decimal(refused+s.refused()))
	}
	lost := u.Judged() - refused
	severity := s.severe(lost)
	if severity == "" {
		return
	}
	code, share := u.worst(introspect.Failed, introspect.Disabled)
	if other, more := u.worst(introspect.Answered, ""); more > share {
		code = other
	}
	s.found("unsent", severity, "", decimal(lost), code)
}

// findOutliers finds instances that fail or are slow, unlike the others.
func (s *Service) findOutliers() {
	for _, in := range s.Instances {
		s.findFailing(in)
		s.findSlow(in)
	}
	if now, was := slowing(s); was > 0 && now > slowLeast && now > slowFactor*was {
		s.found("slow", Warn, "", Brief(now), Brief(was))
	}
}

// findFailing finds out whether an instance fails more often than the others, and whether it does
// so at one of its methods only. An instance that passes errors on says so, and is not to blame.
func (s *Service) findFailing(in *Instance) {
	code, _ := in.Traffic.worst(introspect.Failed, "")
	from := in.blame.of(code, &in.Traffic)
	if in.Traffic.Failing() && from.service != "" {
		if in.Passes = from.path; in.State == Up && in.Why == "" {
			in.Why = "passes on errors of " + from.path
		}
	}
	var all, rest tally
	var of, own, others string
	for i := range in.Methods {
		m := &in.Methods[i]
		beside := s.beside(in, m.Name)
		rest.add(beside)
		all.add(in.methods[m.Name])
		if a, b, ok := differ(in.methods[m.Name], beside); ok {
			of, own, others = of+" "+lastName(m.Name), a, b
		}
	}
	a, b, ok := differ(&all, &rest)
	switch of = strings.TrimSpace(of); {
	case (ok || of != "") && from.service != "":
		if !slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Kind == "passed" }) {
			s.found("passer", Info, in.Addr, in.Addr, Percent(in.Traffic.Failed), from.path)
			s.Problems[len(s.Problems)-1].Cause = from.cause
		}
	case of != "" && !strings.Contains(of, " ") && len(in.Methods) > 1:
		s.found("method", Warn, in.Addr, in.Addr, own, others, of)
	case ok:
		s.found("outlier", Warn, in.Addr, in.Addr, a, b)
	}
}

// beside returns the calls of a method on the other instances.
func (s *Service) beside(in *Instance, method string) *tally {
	all, own := s.methods[method], in.methods[method]
	rest := &tally{calls: all.calls - own.calls}
	for code, calls := range all.codes {
		rest.end(code, calls-own.codes[code])
	}
	for upTo, calls := range all.latency {
		rest.took(upTo, calls-own.latency[upTo])
	}
	return rest
}

// differ compares the failures of an instance with those of the others, and returns their shares.
func differ(in, rest *tally) (own, others string, ok bool) {
	a, failed := in.judged()
	b, usual := rest.judged()
	ok = a >= leastCalls && b >= leastCalls && failed >= outlierMin && failed > 4*usual
	return Percent(failed), Percent(usual), ok
}

// findSlow finds out whether an instance is slower than the others at a method. The 90th percentile
// is compared, because the 99th of some dozen calls is chance.
func (s *Service) findSlow(in *Instance) {
	for i := range in.Methods {
		name := in.Methods[i].Name
		own, rest := in.methods[name], s.beside(in, name)
		if own.measured() < 2*leastCalls || rest.measured() < 2*leastCalls {
			continue
		}
		if a, b := own.quantile(0.9), rest.quantile(0.9); a > slowFactor*b && a-b > lagLeast {
			s.found("laggard", Warn, in.Addr, in.Addr, Brief(a), Brief(b), lastName(name))
			return
		}
	}
}

// lastName returns the name of a method without its service.
func lastName(method string) string { return method[strings.LastIndexAny(method, "./")+1:] }

// slowing returns the 99th percentile of the last steps and that of the steps before, each as the
// mean over the calls.
func slowing(s *Service) (now, was time.Duration) {
	var sums, calls [2]float64
	for _, in := range s.Instances {
		if in.Live == nil {
			continue
		}
		for i := range in.Live.Series {
			one := &in.Live.Series[i]
			if one.Side != "server" || ServiceOf(one.Method) != s.Name {
				continue
			}
			ended := len(one.Calls) - 1
			for j := range max(min(ended, len(one.P99)), 0) {
				if one.P99[j] == 0 {
					continue // no call was measured
				}
				half := 0
				if j >= ended-recent {
					half = 1
				}
				n := float64(one.Calls[j])
				calls[half] += n
				sums[half] += n * float64(one.P99[j])
			}
		}
	}
	if calls[0] < leastCalls || calls[1] < leastCalls {
		return 0, 0
	}
	return time.Duration(sums[1] / calls[1]), time.Duration(sums[0] / calls[0])
}

// findLoad finds a sudden rise of the calls, and the caller whose calls have risen most.
func (s *Service) findLoad() {
	points := s.Traffic.Points
	begun := max(slices.IndexFunc(points, func(p float64) bool { return p > 0 }), 0)
	if len(points)-begun < 2*recent {
		return
	}
	was, now := split(points, begun)
	if now < floodFactor*was || now-was < floodLeast {
		return
	}
	name, calls, most := "", 0.0, 0.0
	for i := range s.Callers {
		c := &s.Callers[i]
		if was, now := split(c.Traffic.Points, begun); now-was > most {
			name, calls, most = c.Name, now, now-was
		}
	}
	s.found("flood", Info, "", decimal(now), decimal(was), decimal(calls), cmp.Or(name, "callers without a name"))
}

// split returns the mean of as many points from begun on as are recent, and that of the recent
// ones. A rise that began before the recent points so does not count as what was normal.
func split(points []float64, begun int) (before, now float64) {
	for i, p := range points {
		switch at := len(points) - recent; {
		case i >= at:
			now += p / recent
		case i >= begun && i < begun+recent:
			before += p / recent
		}
	}
	return before, now
}

// Percent returns a share with about three digits.
func Percent(share float64) string {
	if p := share * 100; p > 0 && p < 1 {
		return fmt.Sprintf("%.2f %%", p)
	}
	return fmt.Sprintf("%.3g %%", share*100)
}

// decimal returns a rate with about two digits.
func decimal(f float64) string {
	if f >= 10 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.2g", f)
}

// Brief returns a duration with about three digits.
func Brief(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}
