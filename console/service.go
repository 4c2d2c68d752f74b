// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is screen S3, one service.

// A row is the traffic of a part of a service: a method, a caller, a callee or a version.
type row struct {
	Name string `json:"name"`
	numbers
}

// A methodView is a method of a service.
type methodView struct {
	introspect.Method
	numbers
}

// An instanceView is an instance of a service.
type instanceView struct {
	Addr      string        `json:"addr"`
	State     fleet.State   `json:"state"`
	Why       string        `json:"why,omitempty"`
	Version   string        `json:"version,omitempty"`
	Zone      string        `json:"zone,omitempty"`
	Group     string        `json:"group,omitempty"`
	Tags      []string      `json:"tags,omitempty"`
	Weight    int           `json:"weight"`
	Share     *float64      `json:"share"` // of the calls of the service; null without calls
	Protocols []string      `json:"protocols,omitempty"`
	Started   time.Time     `json:"started,omitzero"`
	Took      time.Duration `json:"took"` // how long it took to answer
	setting
	numbers
}

func instanceOf(in *fleet.Instance, of *fleet.Service, set setting) *instanceView {
	v := &instanceView{
		Addr: in.Addr, State: in.State, Why: in.Why, Version: in.Version, Zone: in.Zone, Group: in.Group, Tags: in.Tags,
		Weight: max(in.Weight, 1), Protocols: in.Protocols, Started: in.Started, Took: in.Took, setting: set,
		numbers: numbersOf(&in.Traffic),
	}
	if of.Traffic.Rate > 0 {
		share := in.Traffic.Rate / of.Traffic.Rate
		v.Share = &share
	}
	return v
}

// find returns the service that a request names.
func (s *snapshot) find(r *http.Request) (*fleet.Service, error) {
	name := r.FormValue("service")
	if found := s.Service(name); found != nil {
		return found, nil
	}
	names := make([]string, len(s.Services))
	for i, service := range s.Services {
		names[i] = service.Name
	}
	for _, other := range names {
		if strings.EqualFold(other, name) {
			return nil, yodel.Errorf(yodel.NotFound, "the registry has no service %q; did you mean %q?", name, other)
		}
	}
	return nil, yodel.Errorf(yodel.NotFound, "the registry has no service %q", name)
}

// service serves one service.
func (c *Console) service(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	found, err := s.find(r)
	if err != nil {
		return nil, err
	}
	set, setErr := c.settings(r.Context(), found)
	var live []*introspect.Live
	instances := make([]*instanceView, 0, len(found.Instances))
	for _, in := range found.Instances {
		instances = append(instances, instanceOf(in, found, set[in.Addr]))
		if in.Live != nil {
			live = append(live, in.Live)
		}
	}
	callers := make([]row, 0, len(found.Callers))
	for i := range found.Callers {
		callers = append(callers, row{found.Callers[i].Name, numbersOf(&found.Callers[i].Traffic)})
	}
	methods := make([]methodView, 0, len(found.Methods))
	for i := range found.Methods {
		methods = append(methods, methodView{found.Methods[i].Method, numbersOf(&found.Methods[i].Traffic)})
	}
	kinds, _, _ := c.ruleKinds(r.Context()) // the overview says if the rules cannot be read
	out := map[string]any{
		"at": s.At, "span": s.Span.Seconds(), "view": viewOf(found, kinds[found.Name]), "instances": instances, "callers": callers, "methods": methods, "unread": found.UnreadCallers(),
		"callees": callees(found), "versions": byVersion(found), "events": c.eventsOf(s, found),
		"chart": chartOf(live, func(s *introspect.Series) bool { return s.Side == "server" && fleet.ServiceOf(s.Method) == found.Name }),
	}
	if u := &found.Unsent; u.Rate > 0 {
		out["unsent"] = map[string]any{"rate": u.Rate, "errors": u.Errors}
	}
	if setErr != nil {
		out["setErr"] = errorText(setErr)
	}
	return out, nil
}

// callees returns the calls that the instances of a service make to others, by method.
func callees(s *fleet.Service) []row {
	sums := make(map[string]*fleet.Traffic)
	for _, in := range s.Instances {
		if in.Live == nil {
			continue
		}
		span := fleet.Counted(in.Live)
		for i := range in.Live.Series {
			if series := &in.Live.Series[i]; series.Side == "client" {
				t := fleet.TrafficOf(in.Live, series, span)
				addTo(sums, series.Method, &t)
			}
		}
	}
	return rows(sums)
}

// addTo adds traffic to the sum under a name.
func addTo[K comparable](sums map[K]*fleet.Traffic, name K, t *fleet.Traffic) {
	if sums[name] == nil {
		sums[name] = new(fleet.Traffic)
	}
	sums[name].Add(t)
}

// byVersion returns the calls of each version.
func byVersion(s *fleet.Service) []row {
	sums := make(map[string]*fleet.Traffic)
	for _, in := range s.Instances {
		addTo(sums, in.Version, &in.Traffic)
	}
	out := make([]row, 0, len(sums))
	for version, t := range sums {
		out = append(out, row{version, numbersOf(t)})
	}
	sort.Slice(out, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &out[i], &out[j]
		return a.Name < b.Name
	})
	return out
}

func rows(sums map[string]*fleet.Traffic) []row {
	out := make([]row, 0, len(sums))
	for name, t := range sums {
		out = append(out, row{name, numbersOf(t)})
	}
	sort.Slice(out, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(*b.Rate, *a.Rate), strings.Compare(a.Name, b.Name)) < 0
	})
	return out
}

// eventsOf returns the events that concern a service: those of its instances, and the changes of
// its rules.
func (c *Console) eventsOf(s *snapshot, of *fleet.Service) []event {
	var all []introspect.Event
	for _, e := range s.Events {
		if e.Object == of.Name || strings.HasPrefix(e.Object, of.Name+"/") || slices.ContainsFunc(of.Instances, func(in *fleet.Instance) bool { return in.Addr == e.Object }) {
			all = append(all, e)
		}
	}
	for _, in := range of.Instances {
		if in.Live == nil {
			continue
		}
		for _, e := range in.Live.Events {
			if e.Kind == "start" || e.Kind == "drain" {
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b introspect.Event) int { return a.At.Compare(b.At) })
	return events(all, 50)
}
