// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"net/http"
	"slices"
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

// A serviceView is a service in the lists of services.
type serviceView struct {
	Name     string          `json:"name"`
	State    fleet.State     `json:"state"`
	Versions []fleet.Version `json:"versions"`
	Up       int             `json:"up"`
	Total    int             `json:"total"`
	Callers  int             `json:"callers"`
	Rules    []string        `json:"rules,omitempty"` // their kinds
	Problems []fleet.Problem `json:"problems,omitempty"`
	numbers
}

// viewOf returns a service as the lists show it.
func viewOf(s *fleet.Service, kinds []string) *serviceView {
	return &serviceView{
		Name: s.Name, State: s.State, Versions: s.Versions, Up: s.Up, Total: len(s.Instances), Callers: len(s.Callers),
		Rules: kinds, numbers: numbersOf(&s.Traffic), Problems: s.Problems,
	}
}

// wrong reports whether a service needs attention.
func (v *serviceView) wrong() bool {
	return slices.ContainsFunc(v.Problems, func(p fleet.Problem) bool { return p.Severity != fleet.Info })
}

func percent(share float64) string { return fleet.Percent(share) }

func brief(d time.Duration) string { return fleet.Brief(d) }

// An overview is what the first screens show.
type overview struct {
	At       time.Time      `json:"at"`
	Step     float64        `json:"step"` // seconds between the points of sparklines
	Span     float64        `json:"span"` // seconds in which the calls were counted
	Services []*serviceView `json:"services"`
	Totals   numbers        `json:"totals"`
	Up       int            `json:"up"`
	Total    int            `json:"total"`
	Rules    int            `json:"rules"`
	Events   []event        `json:"events"`
	Err      string         `json:"err,omitempty"`      // why the registry cannot be read now
	Missing  []string       `json:"missing,omitempty"`  // why services or states of instances are missing
	RulesErr string         `json:"rulesErr,omitempty"` // why the rules, or some of them, cannot be read now
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
	out := &overview{At: s.At, Step: 1, Span: s.Span.Seconds(), Rules: count, Services: make([]*serviceView, 0, len(s.Services)), Events: events(s.Events, 100), Missing: missing(s.View)}
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
	out.Totals = numbersOf(&totals)
	return out
}

// missing returns why parts of the fleet are not in a view.
func missing(v *fleet.View) []string {
	list := []string{v.Late}
	if !v.Outage { // then the snapshot has the error
		list = append([]string{v.Err}, list...)
	}
	return slices.DeleteFunc(list, func(why string) bool { return why == "" })
}

// An event is an event of a process.
type event = introspect.Event

// events returns the newest changes, the newest first.
func events(all []introspect.Event, limit int) []event {
	all = fleet.Changes(slices.Clone(all))
	return all[:min(len(all), limit)]
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
