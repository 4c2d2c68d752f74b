// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

func (a *app) describeCommand() *cobra.Command {
	return a.watchable(command(reads, &cobra.Command{
		Use:     "describe SERVICE | SERVICE/METHOD | HOST:PORT",
		Aliases: []string{"desc"},
		Short:   "Describe a service, a method or an instance",
		Long:    "A method is described by the server that has it: its types, its kind, an example of a call, and its callers in the last minute.",
		Example: "  yodel describe shop.Cart/Add\n  yodel describe shop.Cart\n  yodel describe 127.0.0.1:8972",
		Args:    cobra.ExactArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			return a.describe(ctx, f, t, args[0])
		}),
		ValidArgsFunction: a.completeMethod,
	}))
}

func (a *app) describe(ctx context.Context, f *fleet.Fleet, t *target, name string) error {
	if _, port, err := net.SplitHostPort(name); err == nil && port != "" {
		return a.describeInstance(ctx, f, t, name)
	}
	service, method, ok := split(name)
	if ok && !strings.Contains(name, "/") && a.hasService(ctx, f, name) {
		ok = false // a dot, and all of it is the name of a service
	}
	if !ok {
		return a.describeService(ctx, f, t, name)
	}
	s, err := a.service(ctx, f, t, service)
	if err != nil {
		return err
	}
	m, err := findMethod(s, method)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(describeMethod(&m.Method))
	for i := range m.Callers {
		c, head := &m.Callers[i], ""
		if i == 0 {
			head = "Callers"
		}
		fprintf(&b, "  %-8s %s  %.1f calls/s, %s ok\n", head, orDash(c.Name), c.Traffic.Rate, percent(c.Traffic.OK()))
	}
	return a.show(m, text(b.String()), func() []string { return []string{shown(m.Name)} })
}

// hasService reports whether the fleet has a service of that name.
func (a *app) hasService(ctx context.Context, f *fleet.Fleet, name string) bool {
	known, err := f.Services(ctx)
	return err == nil && slices.Contains(known, name)
}

func (a *app) describeService(ctx context.Context, f *fleet.Fleet, t *target, name string) error {
	s, err := a.service(ctx, f, t, name)
	if err != nil {
		return err
	}
	methods := make([]introspect.Method, len(s.Methods))
	var b strings.Builder
	for i := range s.Methods {
		methods[i] = s.Methods[i].Method
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(describeMethod(&methods[i]))
	}
	if len(methods) == 0 {
		a.sayf("No instance of %s describes its methods.\n", name)
	}
	return a.show(methods, text(b.String()), func() []string {
		var names []string
		for i := range methods {
			names = append(names, shown(methods[i].Name))
		}
		return names
	})
}

// findMethod returns a method of a service. If it does not exist, the error names the most similar
// one.
func findMethod(s *fleet.Service, name string) (*fleet.Method, error) {
	var names []string
	for i := range s.Methods {
		m := &s.Methods[i]
		last := m.Name[strings.LastIndexAny(m.Name, "./")+1:]
		if last == name {
			return m, nil
		}
		names = append(names, last)
	}
	if len(names) == 0 {
		return nil, faultf(exitFailed, "no instance of %s describes its methods: %s", s.Name, orDash(s.Note))
	}
	f := faultf(exitFailed, "unimplemented: service %s has no method %q [YDL2002]", s.Name, name)
	if near := similar(name, names); near != "" {
		f.addf("did you mean", "%s", near)
	}
	return nil, f.with("methods", "%s     (yodel ls %s)", shorten(names), s.Name)
}

// describeMethod returns what a method takes and returns, and an example of a call.
func describeMethod(m *introspect.Method) string {
	var b strings.Builder
	traits := kindOf(m.Kind)
	if m.Idempotent {
		traits += ", idempotent"
	} else {
		traits += ", not idempotent"
	}
	if m.ReadOnly {
		traits += ", read only"
	}
	results := typesOf(m.Results)
	if len(m.Results) > 1 {
		results = "(" + results + ")"
	}
	fprintf(&b, "%s(%s) %s      %s\n", shown(m.Name), typesOf(m.Args), results, traits)
	seen := make(map[string]bool)
	var objects []introspect.Schema
	for _, s := range slices.Concat(m.Args, m.Results) {
		if s.Kind == "object" && !seen[s.Type] {
			seen[s.Type] = true
			objects = append(objects, s)
		}
	}
	width := len("Example")
	for i := range objects {
		width = max(width, len(short(objects[i].Type)))
	}
	for i := range objects {
		fprintf(&b, "  %-*s  %s\n", width, short(objects[i].Type), fields(&objects[i], true))
	}
	fprintf(&b, "  %-*s  yodel call %s %s\n", width, "Example", shown(m.Name), quoted(example(m)))
	return b.String()
}

// typesOf returns the types of values, separated by commas.
func typesOf(list []introspect.Schema) string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = short(list[i].Type)
	}
	return strings.Join(names, ", ")
}

// short returns a type of Go without the names of packages.
func short(name string) string {
	i := strings.LastIndexByte(name, '.')
	if i < 0 || strings.ContainsAny(name[i:], "{}[] ") {
		return name
	}
	start := strings.LastIndexAny(name[:i], "]* ") + 1
	return name[:start] + name[i+1:]
}

// fields returns the fields of an object, with those of the objects inside.
func fields(s *introspect.Schema, spaced bool) string {
	if len(s.Fields) == 0 {
		return "{ }"
	}
	list := make([]string, len(s.Fields))
	for i := range s.Fields {
		f := &s.Fields[i]
		list[i] = f.Name + " " + short(f.Type)
		inner := f
		for inner.Elem != nil {
			inner = inner.Elem
		}
		if inner.Kind == "object" && len(inner.Fields) > 0 {
			list[i] += fields(inner, false)
		}
	}
	if spaced {
		return "{ " + strings.Join(list, "; ") + " }"
	}
	return "{" + strings.Join(list, "; ") + "}"
}

// example returns a request of a method in JSON.
func example(m *introspect.Method) string {
	values := make([]string, len(m.Args))
	for i := range m.Args {
		values[i] = exampleOf(&m.Args[i], "")
	}
	if m.Values && len(values) != 1 {
		return "[" + strings.Join(values, ",") + "]"
	}
	return strings.Join(values, ",")
}

// exampleOf returns a value in JSON.
func exampleOf(s *introspect.Schema, name string) string {
	if s == nil { // a server may describe a list without its elements
		return "null"
	}
	switch s.Kind {
	case "object":
		parts := make([]string, len(s.Fields))
		for i := range s.Fields {
			f := &s.Fields[i]
			key, _ := json.Marshal(f.Name) //nolint:errchkjson // a string
			parts[i] = string(key) + ":" + exampleOf(f, f.Name)
		}
		return "{" + strings.Join(parts, ",") + "}"
	case "array":
		return "[" + exampleOf(s.Elem, name) + "]"
	case "map":
		return `{"key":` + exampleOf(s.Elem, name) + "}"
	case "string":
		if name == "" {
			name = "text"
		}
		value, _ := json.Marshal(name) //nolint:errchkjson // a string
		return string(value)
	case "integer", "number":
		return "1"
	case "boolean":
		return "true"
	case "bytes":
		return `"AA=="`
	}
	return "null"
}

// quoted returns an argument for a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// describeInstance describes the process at an address.
func (a *app) describeInstance(ctx context.Context, f *fleet.Fleet, t *target, addr string) error {
	view, err := f.Read(ctx)
	if err != nil {
		return t.unreachable(err)
	}
	type instance struct {
		Addr     string             `json:"addr"`
		State    fleet.State        `json:"state"`
		Why      string             `json:"why,omitempty"`
		Services []string           `json:"services"`
		Version  string             `json:"version,omitempty"`
		Zone     string             `json:"zone,omitempty"`
		Weight   int                `json:"weight"`
		Started  time.Time          `json:"started,omitzero"`
		Agent    string             `json:"agent,omitempty"`
		Codecs   []string           `json:"codecs,omitempty"`
		Conns    int                `json:"conns,omitempty"`
		Process  introspect.Process `json:"process,omitzero"`
	}
	var out *instance
	for _, s := range view.Services {
		for _, in := range s.Instances {
			if in.Addr != addr {
				continue
			}
			if out == nil {
				out = &instance{Addr: addr, State: in.State, Why: in.Why, Version: in.Version, Zone: in.Zone, Weight: max(in.Weight, 1), Started: in.Started}
			}
			out.Services = append(out.Services, s.Name)
			if in.Info != nil {
				out.Agent, out.Codecs, out.Started = in.Info.Agent, in.Info.Codecs, in.Info.Started
			}
			if in.Live != nil {
				out.Process = in.Live.Process
			}
			if in.Stats != nil {
				out.Conns = in.Stats.Conns
			}
		}
	}
	if out == nil {
		return faultf(exitFailed, "not_found: no service has an instance at %s", addr).with("next", "yodel ls SERVICE lists the instances, or: yodel --at %s ls", addr)
	}
	slices.Sort(out.Services)
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fprintf(&b, "  %-9s %s\n", name, value)
		}
	}
	fprintf(&b, "%s  %s\n", out.Addr, out.State)
	line("why", out.Why)
	line("services", strings.Join(out.Services, ", "))
	line("version", out.Version)
	line("zone", out.Zone)
	line("weight", fmt.Sprint(out.Weight))
	if !out.Started.IsZero() {
		line("started", fmt.Sprintf("%s (%s ago)", localTime(out.Started), fleet.Age(time.Since(out.Started))))
	}
	line("agent", out.Agent)
	line("codecs", strings.Join(out.Codecs, ", "))
	if p := out.Process; p.PID != 0 {
		line("process", fmt.Sprintf("pid %d on %s, %s, %d goroutines, %.1f MB heap", p.PID, orDash(p.Host), p.Go, p.Goroutines, float64(p.Heap)/1e6))
	}
	return a.show(out, text(b.String()), func() []string { return []string{addr} })
}
