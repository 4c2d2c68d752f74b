// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
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
	if ok && a.hasService(ctx, f, name) {
		ok = false // all of it is the name of a service
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
		fprintf(&b, "  %-8s %s  %.1f calls/s, %s\n", head, orDash(c.Name), c.Traffic.Rate, outcomes(&c.Traffic))
	}
	return a.show(m, text(b.String()), func() []string { return []string{shown(m.Name)} })
}

// outcomes says how the calls of a caller end.
func outcomes(t *fleet.Traffic) string {
	var all []string
	if t.Judged() > 0 {
		all = append(all, percent(t.OK())+" ok")
	}
	if t.Limited > 0 {
		all = append(all, fmt.Sprintf("%.1f/s limited", t.Limited))
	}
	if t.Canceled > 0 {
		all = append(all, fmt.Sprintf("%.1f/s canceled", t.Canceled))
	}
	return strings.Join(all, ", ")
}

// hasService reports whether the fleet has a service of that name.
func (a *app) hasService(ctx context.Context, f *fleet.Fleet, name string) bool {
	known, _ := f.Services(ctx) // a part of the list may have it
	return slices.Contains(known, name)
}

func (a *app) describeService(ctx context.Context, f *fleet.Fleet, t *target, name string) error {
	s, err := a.serviceAsCalled(ctx, f, t, name)
	if err != nil {
		return err
	}
	methods := make([]introspect.Method, len(s.Methods))
	var b strings.Builder
	b.WriteString(a.describeState(ctx, t, s))
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

// describeState returns the state of a service: what is wrong and how to undo it, the rules that
// act, and the instances.
func (a *app) describeState(ctx context.Context, t *target, s *fleet.Service) string {
	var b strings.Builder
	fprintf(&b, "%s  %s\n", s.Name, s.State)
	for i := range s.Problems {
		p := &s.Problems[i]
		fprintf(&b, "  %-7s  %s\n", p.Severity, p.String())
		if fix := fixOf(s, p); fix != "" {
			fprintf(&b, "  %-7s  %s\n", "", map[bool]string{true: "undo: ", false: "next: "}[p.Rule != ""]+fix)
		}
	}
	if u := &s.Unsent; u.Calls(u.Rate) > 0 {
		fprintf(&b, "  unsent   %.1f calls/s of clients in the servers of the fleet reach no instance: %s\n", u.Rate, perSecond(u.Errors))
	}
	if names := s.UnreadCallers(); len(names) > 0 {
		more := ""
		if n := len(names) - 3; n > 0 {
			names, more = names[:3], fmt.Sprintf(" and %d more", n)
		}
		fprintf(&b, "  unread   %s%s: no process of this name was read, so the calls that its clients refuse are not counted\n", strings.Join(names, ", "), more)
	}
	for _, l := range limitsOf(s) {
		fprintf(&b, "  limits   %s\n", l)
	}
	for _, r := range a.sayActing(ctx, t, s.Name) {
		fprintf(&b, "  rule     %s: %s By %s: %s\n", r.ID, sentenceOf(&r, s.Active()), r.Author, r.Reason)
	}
	b.WriteString("\n" + instancesOf(s).String() + "\n")
	return b.String()
}

// perSecond returns the rates of errors by code, the highest first.
func perSecond(errors map[string]float64) string {
	codes := slices.Collect(maps.Keys(errors))
	slices.SortFunc(codes, func(a, b string) int { return cmp.Or(cmp.Compare(errors[b], errors[a]), cmp.Compare(a, b)) })
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%s %.1f", code, errors[code])
	}
	return strings.Join(codes, ", ")
}

// limitsOf returns the limits of the instances of a service, each with those that have them if they
// differ.
func limitsOf(s *fleet.Service) (lines []string) {
	var texts []string
	addrs := make(map[string][]string)
	for _, in := range s.Instances {
		if in.Info == nil || in.Info.Limits == nil {
			continue
		}
		text := in.Info.Limits.String()
		if addrs[text] == nil {
			texts = append(texts, text)
		}
		addrs[text] = append(addrs[text], in.Addr)
	}
	for _, text := range texts {
		if len(texts) > 1 {
			text += ": " + shorten(addrs[text])
		}
		lines = append(lines, text)
	}
	return lines
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

// A describedInstance is what describe says of a process.
type describedInstance struct {
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
	Limits   *introspect.Limits `json:"limits,omitempty"`
	Unlisted []string           `json:"unlisted,omitempty"` // servers that it calls though no registry lists them
	Conns    int                `json:"conns,omitempty"`
	Process  introspect.Process `json:"process,omitzero"`
	Methods  []methodRow        `json:"methods,omitempty"`
	Actors   *actorList         `json:"actors,omitempty"`
}

// add adds what the process says as an instance of a service.
func (out *describedInstance) add(s *fleet.Service, in *fleet.Instance) {
	out.Services = append(out.Services, s.Name)
	for i := range in.Methods {
		m := &in.Methods[i]
		out.Methods = append(out.Methods, methodRow{shown(m.Name), kindIn(s, m.Name), rowOf(&m.Traffic)})
	}
	if in.Info != nil {
		out.Agent, out.Codecs, out.Started, out.Limits = in.Info.Agent, in.Info.Codecs, in.Info.Started, in.Info.Limits
	}
	if in.Live != nil {
		out.Process = in.Live.Process
	}
	if in.Stats != nil {
		out.Conns = in.Stats.Conns
	}
}

// describeInstance describes the process at an address.
func (a *app) describeInstance(ctx context.Context, f *fleet.Fleet, t *target, addr string) error {
	view, err := f.Read(ctx)
	if err != nil {
		return t.unreachable(err)
	}
	var out *describedInstance
	for _, s := range view.Services {
		for _, in := range s.Instances {
			if in.Addr != addr {
				continue
			}
			if out == nil {
				out = &describedInstance{Addr: addr, State: in.State, Why: in.Why, Version: in.Version, Zone: in.Zone, Weight: max(in.Weight, 1), Started: in.Started, Actors: actorsOf(ctx, f, []*fleet.Instance{in}, "")}
			}
			out.add(s, in)
		}
	}
	if out == nil && view.Err != "" { // it may be one of a service that is not listed
		return faultf(exitUnreachable, "no service that is listed has an instance at %s, and %s", addr, view.Err).with("next", "yodel --at %s ls", addr)
	}
	if out == nil {
		return faultf(exitFailed, "not_found: no service has an instance at %s", addr).with("next", "yodel ls SERVICE lists the instances, or: yodel --at %s ls", addr)
	}
	slices.Sort(out.Services)
	out.Unlisted = unlisted(ctx, f, addr)
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
	line("limits", out.Limits.String())
	for _, callee := range out.Unlisted {
		line("calls", callee+", which its resolver no longer lists")
	}
	if p := out.Process; p.PID != 0 {
		line("process", fmt.Sprintf("pid %d on %s, %s, %d goroutines, %.1f MB heap", p.PID, orDash(p.Host), p.Go, p.Goroutines, float64(p.Heap)/1e6))
	}
	if len(out.Methods) > 0 {
		methods := newTable(append([]string{"METHOD", "KIND"}, trafficHeads...)...)
		for i := range out.Methods {
			m := &out.Methods[i]
			methods.add(append([]string{m.Name, m.Kind}, m.cells()...)...)
		}
		b.WriteString("\n" + methods.String())
	}
	b.WriteString(out.Actors.table(false))
	if err := a.show(out, text(b.String()), func() []string { return []string{addr} }); err != nil {
		return err
	}
	return partly(view.Err)
}

// unlisted returns the servers to which the process at addr is connected though its resolvers no
// longer list them.
func unlisted(ctx context.Context, f *fleet.Fleet, addr string) (addrs []string) {
	client := f.Client(addr)
	if client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conns, err := connsMethod.Call(ctx, client, &struct{}{})
	if err != nil {
		return nil // it shares no connections
	}
	for i := range conns.Conns {
		if conns.Conns[i].Unlisted {
			addrs = append(addrs, conns.Conns[i].Addr)
		}
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

// connsMethod returns the connections of a process.
const connsMethod yodel.Method[struct{}, introspect.Conns] = "yodel.Conns"

// kindIn returns the kind of a method of a service.
func kindIn(s *fleet.Service, name string) string {
	for i := range s.Methods {
		if s.Methods[i].Name == name {
			return kindOf(s.Methods[i].Kind)
		}
	}
	return "-"
}
