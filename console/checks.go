// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
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
	out := map[string]any{"name": c.registryName(), "overrides": c.describe().Override != nil, "rules": c.book != nil, "started": c.started}
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

		setting
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
			records = append(records, record{service.Name, in.Addr, in.State, in.Why, in.Started, sets[service.Name][in.Addr]})
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
	Severity string   `json:"severity"` // "bad", "warn" or "info"
	Service  string   `json:"service,omitempty"`
	Args     []string `json:"args,omitempty"`
}

const maxSkew = 2 * time.Second

// endedLong is how long a canary may have ended before it is a warning.
const endedLong = 24 * time.Hour

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
	if s.Late != "" {
		add("late", "warn", "", s.Late)
	}
	if _, failed := c.audit.list(); failed != nil {
		add("audit", "bad", "", failed.Error())
	}
	for _, service := range s.Services {
		checkService(s, service, add)
	}
	broken, unsure := c.broken.get(r.Context(), &c.fleet, func(ctx context.Context) ([]fleet.BrokenSetting, error) {
		return fleet.BrokenSettings(ctx, c.source)
	})
	if unsure != nil {
		add("settings", "bad", "", errorText(unsure))
	}
	for _, b := range broken {
		found = slices.DeleteFunc(found, func(f finding) bool { // the instance says the same, without the record
			return f.Kind == "problem.setting" && f.Service == b.Service && f.Args[0] == b.Addr
		})
		add("setting", "warn", b.Service, b.Addr, b.Problem, b.Key)
	}
	c.checkRules(r, s, add)
	rank := map[string]int{"bad": 0, "warn": 1, "info": 2}
	slices.SortStableFunc(found, func(a, b finding) int { return rank[a.Severity] - rank[b.Severity] })
	if found == nil {
		found = []finding{}
	}
	return map[string]any{"at": s.At, "findings": found}, nil
}

// checkService checks one service.
func checkService(s *snapshot, service *fleet.Service, add func(kind, severity, service string, args ...string)) {
	for i := range service.Problems {
		p := &service.Problems[i]
		add("problem."+p.Kind, string(p.Severity), service.Name, p.Args...)
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
	all, err := c.allRecords(r.Context())
	if err != nil {
		add("rules", "bad", "", errorText(err)) // some may be known
	}
	for i := range all.rules {
		switch rule := &all.rules[i]; {
		case s.Service(rule.Service) == nil && s.Err == "" && s.err == nil:
			add("orphan", "warn", rule.Service, rule.ID)
		case rule.Acts(time.Now()) && !rule.Active(time.Now()): // a canary that has ended
			severity := "info"
			if time.Since(rule.EndedAt(time.Now())) >= endedLong {
				severity = "warn"
			}
			add("ended", severity, rule.Service, rule.ID, rule.Sentence())
		case !rule.Active(time.Now()):
			add("inactive", "info", rule.Service, rule.ID)
		case rule.Expires.IsZero() && (rule.Disable != nil || rule.Fault != nil):
			add("forever", "warn", rule.Service, rule.ID)
		}
	}
	for _, record := range all.invalid {
		add("record", "bad", record.Service, record.ID, record.Problem)
	}
}
