// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
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

// These are the states of services.
const (
	Healthy  State = "healthy"  // all instances get calls, and at least 99% of the calls succeed
	Idle     State = "idle"     // as Healthy, without calls
	Unknown  State = "unknown"  // an instance has not accepted the caller, and the others are Healthy or Idle
	Degraded State = "degraded" // an instance gets no calls, or more than 1% of the calls fail: see Traffic.Failed
	Broken   State = "broken"   // no instance gets calls, or the resolver fails
)

// A Service is a service of a fleet.
type Service struct {
	Name      string      `json:"name"`
	State     State       `json:"state"`
	Note      string      `json:"note,omitempty"` // what needs attention, in words
	Up        int         `json:"up"`             // instances that get calls
	Instances []*Instance `json:"instances"`      // sorted by address
	Versions  []Version   `json:"versions"`       // sorted by version
	Traffic   Traffic     `json:"traffic"`
	// Methods are those of all instances, sorted by name.
	Methods []Method `json:"methods"`
	// Callers are the names of the callers and their calls, those with most calls first.
	Callers []Caller `json:"callers,omitempty"`
	// Err is why the resolver does not know the instances now; empty if it does.
	Err string `json:"err,omitempty"`
}

// A Version is the share of a version in the calls of a service, according to the weights of the
// instances that get calls.
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
}

// An Instance is an instance of a service.
type Instance struct {
	yodel.Instance

	Service string  `json:"service"`
	State   State   `json:"state"`
	Why     string  `json:"why,omitempty"` // the reason for the state
	Traffic Traffic `json:"traffic"`       // of the service's methods
	// Since is when the state began, if that is known.
	Since time.Time `json:"since,omitzero"`
	// Took is how long the instance took to answer.
	Took time.Duration `json:"took,omitempty"`

	// The following are the answers of the process. They are nil if it has not answered. Live needs
	// ServerOptions.Diagnostics. Stats is read only if there is no Live. Instances of several
	// services at one address share them, so they must not be changed.

	Info  *introspect.Info  `json:"info,omitempty"`
	Live  *introspect.Live  `json:"live,omitempty"`
	Stats *introspect.Stats `json:"stats,omitempty"`
	Conns *introspect.Conns `json:"conns,omitempty"`

	methods map[string]*tally
	callers map[string]*tally
}

// Gets reports whether the instance gets calls.
func (in *Instance) Gets() bool { return in.serves() || in.State == Listed }

// serves reports whether the instance answers, and nothing else is known to keep calls from it.
func (in *Instance) serves() bool { return in.State == Up || in.State == Refused }

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
	in.methods, in.callers = tallies(in.Service, a)
	var sum tally
	for _, t := range in.methods {
		sum.add(t)
	}
	in.Traffic = sum.traffic()
}

// overridden reports whether an operator has set the state of the instance.
func (in *Instance) overridden() bool {
	return in.Info != nil && slices.ContainsFunc(in.Info.Overrides, func(o introspect.Override) bool {
		return o.Service == in.Service && o.State != ""
	})
}

// complete computes the services from their instances, and sorts them.
func (v *View) complete() {
	lives := processes(v.Services)
	for _, live := range lives {
		v.Events = append(v.Events, live.Events...)
	}
	slices.SortStableFunc(v.Events, func(a, b introspect.Event) int { return a.At.Compare(b.At) })
	ejected := ejections(lives, v.Services)
	for _, s := range v.Services {
		for _, in := range s.Instances {
			if in.serves() {
				in.eject(ejected[in.Addr])
			}
		}
		s.complete(v.At)
	}
	slices.SortStableFunc(v.Services, worse)
}

// eject makes the instance ejected if a process does not call it. The events are sorted by time.
// Those before the start of the instance are about another one at its address.
func (in *Instance) eject(events []ejection) {
	by := make(map[*introspect.Live]bool)
	for _, e := range events {
		if e.At.Before(in.Started) {
			continue
		}
		if len(by) == 0 {
			in.State, in.Why, in.Since = Ejected, e.What, e.At
		}
		by[e.by] = true
	}
	if len(by) > 1 {
		in.Why += fmt.Sprintf(", and in %d processes", len(by))
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

// ejectionsBy returns the events of the instances that the clients of a process do not call now. A
// client can have several reasons, and calls the instance when the last one has ended.
func ejectionsBy(live *introspect.Live, members map[membership]bool) []introspect.Event {
	var open []introspect.Event
	for _, e := range live.Events {
		switch e.Kind {
		case "not ready":
			open = append(open, e)
		case "ready":
			open = slices.DeleteFunc(open, func(o introspect.Event) bool { return o.Object == e.Object && o.By == e.By })
		case "instance down": // an instance, or many instances of a service
			open = slices.DeleteFunc(open, func(o introspect.Event) bool {
				return o.Object == e.Object || members[membership{e.Object, o.Object}]
			})
		}
	}
	return open
}

// complete computes everything that comes from the instances.
func (s *Service) complete(now time.Time) {
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
	s.Traffic = sum.traffic()
	s.Methods = s.describe(methods)
	s.Callers = busiest(callers)
	s.Versions = s.versions()
	s.State, s.Note = s.judge(now)
}

// busiest returns callers, those with most calls first.
func busiest(callers map[string]*tally) []Caller {
	var list []Caller
	for name, t := range callers {
		list = append(list, Caller{name, t.traffic()})
	}
	slices.SortFunc(list, func(a, b Caller) int {
		return cmp.Or(cmp.Compare(b.Traffic.Rate, a.Traffic.Rate), strings.Compare(a.Name, b.Name))
	})
	return list
}

// callersOf returns the callers of each method.
func (s *Service) callersOf() map[string]map[string]*tally {
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
			merge(byMethod[one.Method], map[string]*tally{one.Peer: ofSeries(one, in.Live)})
		}
	}
	return byMethod
}

// describe returns the methods of all instances with their calls. A method is read-only, or
// idempotent, if all instances that have it say so.
func (s *Service) describe(methods map[string]*tally) []Method {
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
	list, callers := make([]Method, 0, len(byName)), s.callersOf()
	for name, m := range byName {
		if t := methods[name]; t != nil {
			m.Traffic = t.traffic()
		}
		m.Callers = busiest(callers[name])
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Method) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// versions returns the shares of the versions.
func (s *Service) versions() []Version {
	weights, total := make(map[string]float64), 0.0
	for _, in := range s.Instances {
		weight := 0.0
		if in.Gets() || s.Up == 0 {
			weight = float64(max(in.Weight, 1))
		}
		weights[in.Version] += weight
		total += weight
	}
	list := make([]Version, 0, len(weights))
	for version, weight := range weights {
		list = append(list, Version{version, weight / total})
	}
	slices.SortFunc(list, func(a, b Version) int { return strings.Compare(a.Version, b.Version) })
	return list
}

// failing is the share of failed calls from which a service is degraded.
const failing = 0.01

// judge returns the state of a service, and what needs attention.
func (s *Service) judge(now time.Time) (state State, note string) {
	notes := s.notes(now)
	failed := s.Traffic.Failing()
	if failed {
		notes = append(notes, s.Traffic.failures())
	}
	note = strings.Join(notes, "; ")
	switch {
	case s.Up == 0:
		return Broken, note
	case s.Up < len(s.Instances), failed, s.Err != "":
		return Degraded, note
	case slices.ContainsFunc(s.Instances, func(in *Instance) bool { return in.State == Refused }):
		return Unknown, note
	case s.Traffic.Rate == 0:
		return Idle, note
	}
	return Healthy, note
}

// notes returns what needs attention among the instances.
func (s *Service) notes(now time.Time) []string {
	var notes []string
	if s.Err != "" {
		notes = append(notes, s.Err)
	}
	if len(s.Instances) == 0 && s.Err == "" {
		notes = append(notes, "no instance is registered")
	}
	byState := make(map[State][]*Instance)
	for _, in := range s.Instances {
		byState[in.State] = append(byState[in.State], in)
	}
	for _, state := range []State{Down, Silent, Ejected, Draining, Inactive, Refused} {
		if list := byState[state]; len(list) > 0 {
			notes = append(notes, noteOf(state, list, now))
		}
	}
	return notes
}

// noteOf describes the instances in a state.
func noteOf(state State, list []*Instance, now time.Time) string {
	said, many := "1 instance", len(list) > 1
	if many {
		said = fmt.Sprintf("%d instances", len(list))
	}
	word := map[State]string{
		Down: "cannot be reached", Silent: "has not answered in time", Ejected: "ejected", Draining: "draining", Inactive: "inactive",
		Refused: "does not accept the caller",
	}[state]
	if many {
		word = strings.NewReplacer("has not", "have not", "does not", "do not").Replace(word)
	}
	said += " " + word
	first := list[0]
	if !first.Since.IsZero() {
		said += fmt.Sprintf(" %s ago", Age(now.Sub(first.Since)))
	}
	if (state == Ejected || state == Refused) && first.Why != "" {
		said += " (" + first.Why + ")"
	} else if !many {
		said += " (" + first.Addr + ")"
	}
	return said
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

// worse orders services: those that need attention first.
func worse(a, b *Service) int {
	rank := map[State]int{Broken: 0, Degraded: 1, Unknown: 2, Healthy: 3, Idle: 4}
	return cmp.Or(
		cmp.Compare(rank[a.State], rank[b.State]),
		cmp.Compare(b.Traffic.Failed, a.Traffic.Failed),
		cmp.Compare(b.Traffic.Rate, a.Traffic.Rate),
		strings.Compare(a.Name, b.Name),
	)
}

// ServiceOf returns the service of a method: the part of its name before the last dot or slash.
func ServiceOf(method string) string { return method[:max(strings.LastIndexAny(method, "./"), 0)] }
