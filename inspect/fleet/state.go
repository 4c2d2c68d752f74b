// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
	"github.com/yodel-rpc/yodel/introspect"
)

// A State says in a word how an instance or a service is.
type State string

// These are the states of instances.
const (
	Up       State = "up"       // it answers, and no client in the processes that were read has ejected it
	Refused  State = "refused"  // it answers, but does not accept the caller, so how it is remains unknown
	Ejected  State = "ejected"  // it answers, but a client in a process that was read does not call it, such as a breaker
	Inactive State = "inactive" // it, or an operator, has set its state, so that it gets no calls
	Draining State = "draining" // it is shutting down
	Silent   State = "silent"   // it has not answered in time
	Down     State = "down"     // it cannot be reached
	Listed   State = "listed"   // it is in the registry, and does not speak yodel, so it cannot be asked
)

// These are the states of services. Unknown is that of instances too, which were not asked.
const (
	Healthy  State = "healthy"  // all instances get calls, and at least 99% of the calls succeed
	Idle     State = "idle"     // as Healthy, without calls
	Unknown  State = "unknown"  // an instance has not accepted the caller, there are no calls and one does not show its own, or half of them were not asked; the others are Healthy or Idle
	Degraded State = "degraded" // it works in part: see Service.Problems
	// Down is also the state of a service that no instance serves, that a rule has stopped, or most
	// of whose calls fail.
)

// A Service is a service of a fleet.
type Service struct {
	Name      string      `json:"name"`
	State     State       `json:"state"`
	Note      string      `json:"note,omitempty"` // the problems in words
	Problems  []Problem   `json:"problems,omitempty"`
	Up        int         `json:"up"`        // instances that get calls
	Instances []*Instance `json:"instances"` // sorted by address
	Versions  []Version   `json:"versions"`  // sorted by version
	Traffic   Traffic     `json:"traffic"`
	// Methods are those of all instances, sorted by name.
	Methods []Method `json:"methods"`
	// Callers are the names of the callers and their calls, those with most calls first.
	Callers []Caller `json:"callers,omitempty"`
	// Unsent is the calls that clients in the processes of the view have sent to no instance, for
	// example because a rule refused them.
	Unsent Traffic `json:"unsent"`
	// Err is why the resolver does not know the instances now; empty if it does.
	Err string `json:"err,omitempty"`

	methods map[string]*tally
	rulings []Ruling
	unread  []unread.Record // of the registry
	ruled   bool            // rulings has all rules that act
	outage  bool            // the source names no service
	blame   blames          // where the calls of its instances fail
}

// A Version is the share of a version in the recent calls of a service: those of the last ten steps
// of the live data. If these are few, it follows from the weights of the instances that get calls.
type Version struct {
	Version string  `json:"version"`
	Share   float64 `json:"share"` // 0 to 1
}

// A Method is a method of a service, with the calls of all instances.
type Method struct {
	introspect.Method

	Traffic Traffic `json:"traffic"`
	// Callers are the callers of this method. They need live data.
	Callers []Caller `json:"callers,omitempty"`
}

// A Caller is the calls of one caller.
type Caller struct {
	Name    string  `json:"name"` // empty if the caller has no name
	Traffic Traffic `json:"traffic"`
	// Unread is true if no process of this name has been read: it has no server, or its server
	// shares no live data. The calls that it does not send, because a rule, a limit or a breaker
	// refuses them, are in no number.
	Unread bool `json:"unread,omitempty"`
}

// An Instance is an instance of a service.
type Instance struct {
	discovery.Instance

	Service string  `json:"service"`
	State   State   `json:"state"`
	Why     string  `json:"why,omitempty"` // the reason for the state
	Traffic Traffic `json:"traffic"`       // of the service's methods
	// Methods is the traffic of each method of the service that has been called, sorted by name.
	Methods []MethodTraffic `json:"methods,omitempty"`
	// Passes names the services whose errors the instance passes on, if more than 1% of its calls
	// fail for that reason: the one that it calls first, and last the one that makes them.
	Passes string `json:"passes,omitempty"`
	// Since is when the state began, if that is known.
	Since time.Time `json:"since,omitzero"`
	// Unasked says that the state is Unknown because Read was too slow to ask the instance: see
	// Options.Limit.
	Unasked bool `json:"unasked,omitempty"`
	// Took is how long the instance took to answer.
	Took time.Duration `json:"took,omitempty"`

	// The following are the answers of the process. They are nil if it has not answered. Live needs
	// ServerOptions.Diagnostics. Stats is read only if there is no Live. Instances of several
	// services at one address share them, so they must not be changed.

	Info  *introspect.Info  `json:"info,omitempty"`
	Live  *introspect.Live  `json:"live,omitempty"`
	Stats *introspect.Stats `json:"stats,omitempty"`
	Conns *introspect.Conns `json:"conns,omitempty"`

	answer  *answer
	methods map[string]*tally
	callers map[string]*tally
	blame   blames // where its calls fail, or those of all instances
}

// MethodTraffic is the traffic of a method on one instance.
type MethodTraffic struct {
	Name    string  `json:"name"`
	Traffic Traffic `json:"traffic"`
}

// Gets reports whether the instance gets calls.
func (in *Instance) Gets() bool { return in.serves() || in.State == Listed }

// serves reports whether the instance answers, and nothing else is known to keep calls from it.
func (in *Instance) serves() bool { return in.State == Up || in.State == Refused }

// isBlind reports whether the instance answers and says why it shows no calls.
func (in *Instance) isBlind() bool {
	return in.State == Up && in.Why != "" && in.Live == nil && in.Stats == nil
}

// take enters what the process has answered.
func (in *Instance) take(a *answer) {
	in.State, in.Why, in.Took = a.state, short(a.why), a.took
	in.Info, in.Live, in.Stats, in.Conns = a.info, a.live, a.stats, a.conns
	if in.serves() && in.Instance.State == "inactive" {
		in.State, in.Why = Inactive, "it gets no calls"
		if in.overridden() {
			in.Why = "an operator has disabled it"
		}
	}
	if problem := in.SettingProblem(); problem != "" && in.State == Up {
		in.Why = problem
	}
	in.answer = a
}

// count computes the traffic of the instance within a window.
func (in *Instance) count(w *window) {
	if in.answer == nil {
		return
	}
	in.methods, in.callers = tallies(in.Service, in.answer, w)
	var sum tally
	for _, name := range slices.Sorted(maps.Keys(in.methods)) {
		t := in.methods[name]
		sum.add(t)
		in.Methods = append(in.Methods, MethodTraffic{name, t.traffic()})
	}
	in.Traffic = sum.traffic()
}

// overridden reports whether an operator has set the state of the instance.
func (in *Instance) overridden() bool {
	return in.Info != nil && slices.ContainsFunc(in.Info.Overrides, func(o introspect.Override) bool {
		return o.Service == in.Service && o.State != ""
	})
}

// SettingProblem returns why the setting of an operator for the instance cannot be read, or "".
// Such a setting does not count.
func (in *Instance) SettingProblem() string {
	if in.Info == nil {
		return ""
	}
	for _, o := range in.Info.Overrides {
		if o.Service == in.Service && o.Problem != "" {
			return "the setting of an operator cannot be read: " + short(o.Problem)
		}
	}
	return ""
}

// complete computes the services from their instances, and sorts them.
func (v *View) complete(rulings []Ruling, all bool) {
	lives := processes(v.Services)
	for _, live := range lives {
		for _, e := range live.Events { // what a process has found when it began is not new
			if e.Kind != "instance up" || e.At.Sub(live.Process.Started) > beginning {
				v.Events = append(v.Events, e)
			}
		}
	}
	slices.SortStableFunc(v.Events, func(a, b introspect.Event) int { return a.At.Compare(b.At) })
	v.nameOperators()
	w := v.window(lives)
	v.Span = w.all
	ejected, made := ejections(lives, v.Services), callsMade(lives, w)
	for _, s := range v.Services {
		for _, in := range s.Instances {
			in.count(w)
			if in.serves() {
				in.eject(ejected[in.Addr], made.clients(s.Name))
			}
		}
		s.ruled, s.outage = all, v.Outage
		s.rulings = slices.DeleteFunc(slices.Clone(rulings), func(r Ruling) bool { return r.Service != s.Name })
		s.Unsent = made.unsent(s.Name).traffic()
		s.sum(w)
	}
	read := make(map[string]bool)
	for _, live := range lives {
		read[live.Name] = live.Name != ""
	}
	for _, s := range v.Services {
		s.attribute(made)
		for i := range s.Callers {
			s.Callers[i].Unread = !read[s.Callers[i].Name]
		}
	}
	trace(v.Services)
	for _, s := range v.Services {
		s.judge(v.At)
	}
	slices.SortStableFunc(v.Services, worse)
}

// nameOperators says in the events of disabled instances which of them operators have disabled.
// Clients see only that an instance is inactive. An event about many instances does not list all of
// them: operators have disabled them if that is true of all inactive instances of the service.
func (v *View) nameOperators() {
	for i := range v.Events {
		e := &v.Events[i]
		about, one := strings.CutSuffix(e.What, ": it is disabled")
		abouts, many := strings.CutSuffix(e.What, ": they are disabled")
		for _, s := range v.Services {
			switch {
			case one && strings.HasSuffix(about, " of "+s.Name) && s.disabledByOperators(e.Object):
				e.What, e.By = about+": an operator has disabled it", "operator"
			case many && e.Object == s.Name && s.disabledByOperators(""):
				e.What, e.By = abouts+": an operator has disabled them", "operator"
			}
		}
	}
}

// disabledByOperators reports whether operators have disabled the instance at addr, or all inactive
// instances if addr is empty.
func (s *Service) disabledByOperators(addr string) (are bool) {
	for _, in := range s.Instances {
		if in.Instance.State == "inactive" && (addr == "" || in.Addr == addr) {
			if !in.overridden() {
				return false
			}
			are = true
		}
	}
	return are
}

// eject makes the instance ejected if a process does not call it. The events are sorted by time.
// Those before the start of the instance are about another one at its address. Clients is how many
// processes call the service.
func (in *Instance) eject(events []ejection, clients int) {
	by := make(map[*introspect.Live]bool)
	for _, e := range events {
		if e.At.Before(in.Started) {
			continue
		}
		if len(by) == 0 {
			in.State, in.Why, in.Since = Ejected, e.What, e.At
			if e.By != "" && !strings.Contains(e.What, e.By) {
				in.Why = e.By + ": " + e.What
			}
		}
		by[e.by] = true
	}
	switch n := len(by); {
	case n == 1 && clients == 1:
		in.Why += ", by the only client"
	case n > 0 && clients >= n:
		in.Why += fmt.Sprintf(", by %d of %d clients", n, clients)
	case n > 1:
		in.Why += fmt.Sprintf(", and in %d processes", n)
	}
}

// processes returns the live data of each process once. Instances at one address share them.
func processes(services []*Service) []*introspect.Live {
	var all []*introspect.Live
	seen := make(map[*introspect.Live]bool)
	for _, s := range services {
		for _, in := range s.Instances {
			if in.Live != nil && !seen[in.Live] {
				seen[in.Live] = true
				all = append(all, in.Live)
			}
		}
	}
	return all
}

// A membership is an address of a service.
type membership struct{ service, addr string }

// An ejection is the event of an instance that the clients of a process do not call now.
type ejection struct {
	introspect.Event

	by *introspect.Live
}

// ejections returns the ejections of instances by address, the oldest first.
func ejections(processes []*introspect.Live, services []*Service) map[string][]ejection {
	members := make(map[membership]bool)
	for _, s := range services {
		for _, in := range s.Instances {
			members[membership{s.Name, in.Addr}] = true
		}
	}
	all := make(map[string][]ejection)
	for _, live := range processes {
		for _, e := range ejectionsBy(live, members) {
			all[e.Object] = append(all[e.Object], ejection{e, live})
		}
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b ejection) int { return a.At.Compare(b.At) })
	}
	return all
}

// again is how middleware says when it tries an instance again.
var again = regexp.MustCompile(`; it is tried again in ([\d.a-zµ]+)$`)

// until returns what an ejection says, with the time that is left until the instance is tried again
// in place of the time that was left when it was ejected.
func until(e introspect.Event, now time.Time) string {
	found := again.FindStringSubmatch(e.What)
	if found == nil {
		return e.What
	}
	lasts, err := time.ParseDuration(found[1])
	if err != nil {
		return e.What
	}
	said := e.What[:len(e.What)-len(found[0])]
	left, unit := e.At.Add(lasts).Sub(now), 100*time.Millisecond
	if left >= 10*time.Second {
		unit = time.Second
	}
	if left = left.Round(unit); left <= 0 {
		return said + "; it is being tried again"
	}
	return fmt.Sprintf("%s; it is tried again in %v", said, left)
}

// ejectionsBy returns the events of the instances that the clients of a process do not call now. A
// client can have several reasons, and calls the instance when the last one has ended. Middleware
// that tries an instance now and then says when its reason begins and ends. Its trials do not end
// it.
func ejectionsBy(live *introspect.Live, members map[membership]bool) []introspect.Event {
	var open []introspect.Event
	for _, e := range live.Events {
		switch e.Kind {
		case "ejected", "not ready":
			e.What = until(e, live.Now)
			same := slices.IndexFunc(open, func(o introspect.Event) bool { return o.Object == e.Object && o.By == e.By })
			switch {
			case same < 0:
				open = append(open, e)
			case e.Kind == "ejected":
				open[same].Kind, open[same].What = e.Kind, e.What
			}
		case "ready", "readmitted":
			open = slices.DeleteFunc(open, func(o introspect.Event) bool {
				return o.Object == e.Object && o.By == e.By && (o.Kind == "not ready" || e.Kind == "readmitted")
			})
		case "instance down": // an instance, or many instances of a service
			open = slices.DeleteFunc(open, func(o introspect.Event) bool {
				return o.Object == e.Object || members[membership{e.Object, o.Object}]
			})
		}
	}
	return open
}

// UnreadCallers returns the names of the callers whose refusals nobody counts: see Caller.Unread.
func (s *Service) UnreadCallers() (names []string) {
	for i := range s.Callers {
		if c := &s.Callers[i]; c.Unread && c.Name != "" {
			names = append(names, c.Name)
		}
	}
	return names
}

// Active returns how many instances are not inactive, or how many there are if all of them are. A
// rule that holds on each instance means so many times as much for the service.
func (s *Service) Active() (n int) {
	for _, in := range s.Instances {
		if in.Instance.State != "inactive" {
			n++
		}
	}
	if n == 0 {
		n = len(s.Instances)
	}
	return n
}

// sum computes the numbers that come from the instances.
func (s *Service) sum(w *window) {
	slices.SortFunc(s.Instances, func(a, b *Instance) int { return strings.Compare(a.Addr, b.Addr) })
	s.Up = 0
	methods, callers := make(map[string]*tally), make(map[string]*tally)
	for _, in := range s.Instances {
		if in.Gets() {
			s.Up++
		}
		merge(methods, in.methods)
		merge(callers, in.callers)
	}
	var sum tally
	for _, t := range methods {
		sum.add(t)
	}
	s.Traffic, s.methods = sum.traffic(), methods
	s.Methods = s.describe(methods, w)
	s.Callers = busiest(callers)
	s.Versions = s.versions()
}

// busiest returns callers, those with most calls first.
func busiest(callers map[string]*tally) []Caller {
	var list []Caller
	for name, t := range callers {
		list = append(list, Caller{Name: name, Traffic: t.traffic()})
	}
	sort.Slice(list, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &list[i], &list[j]
		return cmp.Or(cmp.Compare(b.Traffic.Rate, a.Traffic.Rate), strings.Compare(a.Name, b.Name)) < 0
	})
	return list
}

// callersOf returns the callers of each method.
func (s *Service) callersOf(w *window) map[string]map[string]*tally {
	byMethod := make(map[string]map[string]*tally)
	for _, in := range s.Instances {
		if in.Live == nil {
			continue
		}
		for i := range in.Live.Series {
			one := &in.Live.Series[i]
			if one.Side != "server" || ServiceOf(one.Method) != s.Name {
				continue
			}
			if byMethod[one.Method] == nil {
				byMethod[one.Method] = make(map[string]*tally)
			}
			merge(byMethod[one.Method], map[string]*tally{one.Peer: ofSeries(one, in.Live, w.own[in.Live])})
		}
	}
	return byMethod
}

// describe returns the methods of all instances with their calls. A method is read-only, or
// idempotent, if all instances that have it say so.
func (s *Service) describe(methods map[string]*tally, w *window) []Method {
	byName := make(map[string]Method)
	for _, in := range s.Instances {
		if in.Info == nil {
			continue
		}
		for _, m := range in.Info.Methods {
			if ServiceOf(m.Name) != s.Name {
				continue
			}
			if other, ok := byName[m.Name]; ok {
				m.ReadOnly, m.Idempotent = m.ReadOnly && other.ReadOnly, m.Idempotent && other.Idempotent
			}
			byName[m.Name] = Method{Method: m}
		}
	}
	list, callers := make([]Method, 0, len(byName)), s.callersOf(w)
	for name, m := range byName {
		if t := methods[name]; t != nil {
			m.Traffic = t.traffic()
		}
		m.Callers = busiest(callers[name])
		list = append(list, m)
	}
	sort.Slice(list, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &list[i], &list[j]
		return a.Name < b.Name
	})
	return list
}

// versions returns the shares of the versions.
func (s *Service) versions() []Version {
	shares, total := make(map[string]float64), 0.0
	for _, in := range s.Instances {
		n := in.recentCalls()
		shares[in.Version] += n
		total += n
	}
	if total < leastShared {
		clear(shares)
		total = 0
		for _, in := range s.Instances {
			weight := 0.0
			if in.Gets() || s.Up == 0 {
				weight = float64(max(in.Weight, 1))
			}
			shares[in.Version] += weight
			total += weight
		}
	}
	list := make([]Version, 0, len(shares))
	for version, share := range shares {
		list = append(list, Version{version, share / total})
	}
	slices.SortFunc(list, func(a, b Version) int { return strings.Compare(a.Version, b.Version) })
	return list
}

// recentCalls returns how many calls the instance has got in the recent steps.
func (in *Instance) recentCalls() float64 {
	points, n := in.Traffic.Points, 0.0
	for _, rate := range points[max(len(points)-recent, 0):] {
		n += rate * in.Traffic.Step.Seconds()
	}
	return n
}

// Age returns a duration in whole units, for people: "20s", "4m", "3h", "2d".
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// rank orders the states of services: those that need attention first.
var rank = map[State]int{Down: 0, Degraded: 1, Unknown: 2, Healthy: 3, Idle: 4}

// worse orders services: those that need attention first. Of these, the services that a rule has
// stopped come first, and then the causes before the services that pass the errors on, or that are
// slow because an instance of another one is.
func worse(a, b *Service) int {
	return cmp.Or(
		cmp.Compare(rank[a.State], rank[b.State]),
		cmp.Compare(b.stopped(), a.stopped()),
		cmp.Compare(a.passed(), b.passed()),
		cmp.Compare(b.urgency(), a.urgency()),
		cmp.Compare(b.Traffic.Failed, a.Traffic.Failed),
		cmp.Compare(b.Traffic.Rate, a.Traffic.Rate),
		strings.Compare(a.Name, b.Name),
	)
}

// stopped returns 1 for a service all of whose calls a rule stops, and otherwise 0.
func (s *Service) stopped() int {
	if slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Kind == "stopped" }) {
		return 1
	}
	return 0
}

// urgency is 2 for a service that fails too often, 1 for one with an instance that needs attention,
// and otherwise 0.
func (s *Service) urgency() int {
	switch {
	case s.Traffic.Failing():
		return 2
	case slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Severity != Info && p.Addr != "" }):
		return 1
	}
	return 0
}

// ServiceOf returns the service of a method: the part of its name before the last dot or slash.
func ServiceOf(method string) string { return method[:max(strings.LastIndexAny(method, "./"), 0)] }
