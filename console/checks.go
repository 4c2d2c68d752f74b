// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// This file is the screens S10, Registry, and S13, Checks.

// registry serves what the console knows of the registry.
func (c *Console) registry(r *http.Request) (any, error) {
	out := map[string]any{"name": c.registryName(), "overrides": c.overrider() != nil, "rules": c.book != nil, "started": c.started}
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		out["err"] = errorText(err)
		return out, nil
	}
	type record struct {
		Service string      `json:"service"`
		Addr    string      `json:"addr"`
		State   fleet.State `json:"state"`
		Why     string      `json:"why,omitempty"`
		Started time.Time   `json:"started,omitzero"`
		Set     string      `json:"set,omitempty"` // by an operator
	}
	records, broken := []record{}, []map[string]string{}
	sets, failed := c.allSettings(r.Context(), s.Services)
	for _, service := range s.Services {
		if service.Err != "" {
			broken = append(broken, map[string]string{"service": service.Name, "err": service.Err})
		}
		if err := failed[service.Name]; err != nil {
			broken = append(broken, map[string]string{"service": service.Name, "err": errorText(err)})
		}
		for _, in := range service.Instances {
			one := record{service.Name, in.Addr, in.State, in.Why, in.Started, ""}
			if set := sets[service.Name][in.Addr]; set != (setting{}) {
				one.Set = set.String()
			}
			records = append(records, one)
		}
	}
	out["at"], out["took"], out["services"], out["records"], out["broken"] = s.At, s.took, len(s.Services), records, broken
	if s.err != nil {
		out["err"] = errorText(s.err)
	} else if s.Err != "" {
		out["err"] = s.Err
	}
	return out, nil
}

// A finding is the result of a check. The pages have its text under "check." and Kind.
type finding struct {
	Kind     string   `json:"kind"`
	Severity string   `json:"severity"` // "bad", "warn" or "ok"
	Service  string   `json:"service,omitempty"`
	Args     []string `json:"args,omitempty"`
}

const maxSkew = 2 * time.Second

// checks serves the checks of the fleet, those that failed first.
func (c *Console) checks(r *http.Request) (any, error) {
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	var found []finding
	add := func(kind, severity, service string, args ...string) {
		found = append(found, finding{kind, severity, service, args})
	}
	if s.err != nil {
		add("registry", "bad", "", errorText(s.err))
	} else if s.Err != "" {
		add("registry", "bad", "", s.Err)
	}
	if _, failed := c.audit.list(); failed != nil {
		add("audit", "bad", "", failed.Error())
	}
	for _, service := range s.Services {
		checkService(s, service, add)
	}
	c.checkRules(r, s, add)
	rank := map[string]int{"bad": 0, "warn": 1, "ok": 2}
	slices.SortStableFunc(found, func(a, b finding) int { return rank[a.Severity] - rank[b.Severity] })
	if found == nil {
		found = []finding{}
	}
	return map[string]any{"at": s.At, "findings": found}, nil
}

// checkService checks one service.
func checkService(s *snapshot, service *fleet.Service, add func(kind, severity, service string, args ...string)) {
	for _, p := range problemsOf(service) {
		severity := "warn"
		if service.State == fleet.Broken {
			severity = "bad"
		}
		add("problem."+p.Kind, severity, service.Name, p.Args...)
	}
	if len(service.Instances) == 1 {
		add("single", "warn", service.Name)
	}
	versions := make(map[string]bool)
	blind := 0
	for _, in := range service.Instances {
		versions[in.Version] = true
		if in.Live == nil && in.State == fleet.Up {
			blind++
		}
		if in.Live != nil {
			if skew := in.Live.Now.Sub(s.At); skew > maxSkew+s.took || skew < -maxSkew { // it answered during the read
				add("skew", "warn", service.Name, in.Addr, brief(skew.Abs()))
			}
			if in.Live.Left > 0 {
				add("left", "warn", service.Name, in.Addr, fmt.Sprint(in.Live.Left))
			}
		}
	}
	if len(versions) > 1 {
		add("versions", "warn", service.Name, fmt.Sprint(len(versions)))
	}
	if blind > 0 {
		add("blind", "warn", service.Name, fmt.Sprint(blind), fmt.Sprint(len(service.Instances)))
	}
	checkMethods(service, add)
}

// These bound the findings about missing methods.
const (
	maxLacks   = 20 // of a service
	maxLacking = 3  // addresses of a finding
)

// checkMethods checks that all instances of a service have all its methods.
func checkMethods(service *fleet.Service, add func(kind, severity, service string, args ...string)) {
	lacks := make(map[string][]string) // the addresses without a method
	for _, in := range service.Instances {
		if in.Info == nil {
			continue
		}
		own := make(map[string]bool, len(in.Info.Methods))
		for i := range in.Info.Methods {
			own[in.Info.Methods[i].Name] = true
		}
		for i := range service.Methods {
			if name := service.Methods[i].Name; !own[name] {
				lacks[name] = append(lacks[name], in.Addr)
			}
		}
	}
	for i, name := range slices.Sorted(maps.Keys(lacks)) {
		if i == maxLacks-1 && len(lacks) > maxLacks {
			add("lacks", "warn", service.Name, fmt.Sprintf("%s, +%d", name, len(lacks)-maxLacks), "…")
			return
		}
		addrs := lacks[name]
		where := strings.Join(addrs[:min(len(addrs), maxLacking)], ", ")
		if more := len(addrs) - maxLacking; more > 0 {
			where += fmt.Sprintf(", +%d", more)
		}
		add("lacks", "warn", service.Name, name, where)
	}
}

// checkRules checks the rules: each should concern a service that exists.
func (c *Console) checkRules(r *http.Request, s *snapshot, add func(kind, severity, service string, args ...string)) {
	if c.book == nil {
		return
	}
	all, err := c.allRules(r.Context())
	if err != nil {
		add("rules", "bad", "", errorText(err))
		return
	}
	for i := range all {
		switch rule := &all[i]; {
		case s.Service(rule.Service) == nil && s.Err == "" && s.err == nil:
			add("orphan", "warn", rule.Service, rule.ID)
		case !rule.Active(time.Now()):
			add("inactive", "ok", rule.Service, rule.ID)
		case rule.Expires.IsZero() && (rule.Disable != nil || rule.Fault != nil):
			add("forever", "warn", rule.Service, rule.ID)
		}
	}
}
