// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

func (a *app) lsCommand() *cobra.Command {
	var all, unhealthy bool
	c := a.watchable(command(reads, &cobra.Command{
		Use:     "ls [SERVICE]",
		Aliases: []string{"list"},
		Short:   "List services, or the methods, instances and actors of one",
		Long: "The services that need attention come first. Rates and latencies are those of the last minute, or of the time\n" +
			"since the oldest process started. OK leaves out calls that their callers have canceled and calls that a limit has\n" +
			"refused. Columns of their own have these, if there are any. A - stands for those of instances that had no calls,\n" +
			"do not answer, or do not share them, which needs ServerOptions.Diagnostics. Streams have no latency, and\n" +
			"neither have calls that were canceled or refused. An instance is up if it answers, and no client that is known has\n" +
			"ejected it: those in the servers of the fleet that have Diagnostics.\n" +
			"A service that is a kind of actors has those with the longest inboxes too; the service actors has those of all kinds.\n" +
			partHelp,
		Example: "  yodel ls\n  yodel ls shop.Pay\n  yodel ls -o json\n  yodel ls --unhealthy --watch",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			if len(args) == 1 {
				return a.lsService(ctx, f, t, args[0])
			}
			return a.lsServices(ctx, f, t, all, unhealthy)
		}),
		ValidArgsFunction: a.completeService,
	}))
	c.Flags().BoolVarP(&all, "all", "a", false, "also show services without instances")
	c.Flags().BoolVar(&unhealthy, "unhealthy", false, "show only services that need attention")
	return c
}

// A serviceRow is a service in the output of ls. Latencies are in nanoseconds.
type serviceRow struct {
	Name     string          `json:"name"`
	State    fleet.State     `json:"state"`
	Note     string          `json:"note,omitempty"`
	Problems []fleet.Problem `json:"problems,omitempty"`
	Up       int             `json:"up"`
	Total    int             `json:"total"`
	Versions []fleet.Version `json:"versions"`
	Rules    []string        `json:"rules"` // the kinds of the active rules

	trafficRow

	Methods   []methodRow   `json:"methods,omitempty"`
	Instances []instanceRow `json:"instances,omitempty"`
	Actors    *actorList    `json:"actors,omitempty"` // of the kind that the service is
}

// A trafficRow is the calls of the last minute.
type trafficRow struct {
	Measured bool               `json:"measured"` // whether the values are known
	Span     time.Duration      `json:"span"`     // in which the calls were counted
	Calls    int64              `json:"calls"`    // that ended within Span
	Failed   int64              `json:"failed"`   // of Calls, as are the next two
	Limited  int64              `json:"limited"`
	Canceled int64              `json:"canceled"`
	Rate     float64            `json:"rate"` // calls per second
	OK       float64            `json:"ok"`   // the share of the calls that did not fail, without limited and canceled ones
	P50      time.Duration      `json:"p50"`
	P99      time.Duration      `json:"p99"`
	Errors   map[string]float64 `json:"errors,omitempty"` // per second, by code
}

func rowOf(t *fleet.Traffic) trafficRow {
	round := func(f float64) float64 { return math.Round(f*1000) / 1000 }
	row := trafficRow{
		Measured: t.Known, Span: t.Span, Calls: t.Calls(t.Rate), Failed: t.Calls(t.Failed * t.Judged()), Limited: t.Calls(t.Limited), Canceled: t.Calls(t.Canceled),
		Rate: round(t.Rate), OK: round(t.OK()), P50: t.P50, P99: t.P99,
	}
	for code, rate := range t.Errors {
		if row.Errors == nil {
			row.Errors = make(map[string]float64)
		}
		row.Errors[code] = round(rate)
	}
	return row
}

// trafficHeads are the headings of the cells of a trafficRow. Those with ? are left out if no row
// has such calls.
var trafficHeads = []string{">CALLS/S", "OK", "P50", "P99", "?CANCELED", "?LIMITED"}

// cells returns the cells of trafficHeads. The last two are calls per second.
func (t *trafficRow) cells() []string {
	rare := func(calls int64) string {
		if calls == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f", float64(calls)/t.Span.Seconds())
	}
	switch {
	case !t.Measured:
		return []string{"-", "-", "-", "-", "", ""}
	case t.Calls == 0:
		return []string{"0.0", "-", "-", "-", "", ""}
	}
	ok := "-" // all calls were limited or canceled
	if t.Calls > t.Limited+t.Canceled {
		ok = percent(t.OK)
	}
	return []string{fmt.Sprintf("%.1f", t.Rate), ok, brief(t.P50), brief(t.P99), rare(t.Canceled), rare(t.Limited)}
}

type methodRow struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // unary, feed, upload or duplex

	trafficRow
}

type instanceRow struct {
	Addr    string      `json:"addr"`
	Version string      `json:"version,omitempty"`
	Zone    string      `json:"zone,omitempty"`
	Weight  int         `json:"weight"`
	State   fleet.State `json:"state"`
	Why     string      `json:"why,omitempty"`
	Started time.Time   `json:"started,omitzero"`

	trafficRow
}

func (a *app) lsServices(ctx context.Context, f *fleet.Fleet, t *target, all, unhealthy bool) error {
	view, err := f.Read(ctx)
	if err != nil {
		return t.unreachable(err)
	}
	rules, unread := a.rulesOf(ctx, t, "")
	a.warnOfRecords(ctx, t)
	part := partly(slices.Concat(incomplete(view), []string{unread}, a.brokenSettings(ctx, t))...)
	rows, empty, fine := []serviceRow{}, 0, 0
	text := newTable(slices.Concat([]string{"SERVICE", "STATE", "VERSIONS", "UP"}, trafficHeads, []string{"RULES", "NOTE"})...)
	for _, s := range view.Services {
		if len(s.Instances) == 0 && s.Err == "" && len(unlistedOf(s)) == 0 && !all {
			empty++
			continue
		}
		if unhealthy && (s.State == fleet.Healthy || s.State == fleet.Idle) {
			fine++
			continue
		}
		row := serviceOf(s, rules)
		rows = append(rows, row)
		text.add(slices.Concat([]string{row.Name, string(row.State), versions(row.Versions), fmt.Sprintf("%d/%d", row.Up, row.Total)}, row.cells(), []string{dashed(row.Rules), row.Note})...)
	}
	if err := a.show(rows, text, func() []string { return namesOf(rows) }); err != nil {
		return err
	}
	if a.o.output == "table" {
		if len(rows) > 0 || part == nil { // there may be others
			a.sayf("%s\n", footer(rows, empty, fine))
		}
		a.say(undos(view.Services...))
	}
	return part
}

// partHelp is what the help of commands says that may print a part of their data.
const partHelp = "If a part of the fleet or of the registry cannot be read, the command prints the rest in any format, says on stderr\n" +
	"that it is not all and why, and ends with the exit code 4. With --watch, it says so each time and goes on."

// sayIncomplete says which part of the fleet is not in a view.
func (a *app) sayIncomplete(view *fleet.View) {
	for _, why := range incomplete(view) {
		a.sayf("%s\n", why)
	}
}

// incomplete returns why parts of the fleet are not in a view.
func incomplete(view *fleet.View) []string {
	reasons := slices.DeleteFunc([]string{view.Err, view.Late}, func(why string) bool { return why == "" })
	return append(reasons, unlistedOf(view.Services...)...)
}

// unlistedOf returns which instances of services are not listed, because their records cannot be
// read.
func unlistedOf(services ...*fleet.Service) (reasons []string) {
	for _, s := range services {
		for i := range s.Problems {
			if p := &s.Problems[i]; p.Kind == "record" || p.Kind == "records" {
				reasons = append(reasons, s.Name+": "+p.String())
			}
		}
	}
	return reasons
}

// footer returns the line below the services. Empty and fine are those that are not listed: without
// instances, and healthy.
func footer(rows []serviceRow, empty, fine int) string {
	switch {
	case len(rows) > 0:
	case fine > 0:
		return fmt.Sprintf("No service needs attention. %s not listed: yodel ls", plural(fine, "healthy service"))
	case empty > 0:
		return fmt.Sprintf("No service has an instance. %s without instances: yodel ls --all", plural(empty, "service"))
	default:
		return "No service is registered. Start one, or: yodel dev --demo"
	}
	said := plural(len(rows), "service") + ", worst first. yodel ls " + rows[0].Name + " shows its methods and instances."
	if empty > 0 {
		said += fmt.Sprintf(" %s without instances: yodel ls --all", plural(empty, "service"))
	}
	return said
}

// undos returns a line for each rule that refuses or replaces calls of services.
func undos(services ...*fleet.Service) string {
	var b strings.Builder
	for _, s := range services {
		for i := range s.Problems {
			if p := &s.Problems[i]; p.Kind == "stopped" || p.Kind == "ruled" {
				fprintf(&b, "undo: %s\n", fixOf(s, p))
			}
		}
	}
	return b.String()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func namesOf(rows []serviceRow) []string {
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row.Name
	}
	return names
}

func dashed(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, " ")
}

// serviceOf returns the row of a service. Rules has the kinds of active rules by service.
func serviceOf(s *fleet.Service, rules map[string][]string) serviceRow {
	kinds := rules[s.Name]
	if kinds == nil {
		kinds = []string{}
	}
	return serviceRow{
		Name: s.Name, State: s.State, Note: s.Note, Problems: s.Problems, Up: s.Up, Total: len(s.Instances), Versions: s.Versions, Rules: kinds, trafficRow: rowOf(&s.Traffic),
	}
}

// versions returns the versions in short, with their shares if there are several.
func versions(list []fleet.Version) string {
	var said []string
	for _, v := range list {
		name := v.Version
		if name == "" {
			if len(list) == 1 {
				return "-"
			}
			name = "none"
		}
		for strings.HasSuffix(name, ".0") {
			name = strings.TrimSuffix(name, ".0")
		}
		if len(list) > 1 {
			name += fmt.Sprintf(" %.0f%%", 100*v.Share)
		}
		said = append(said, name)
	}
	if len(said) == 0 {
		return "-"
	}
	return strings.Join(said, " ")
}

// service reads one service. If it does not exist, the error names the most similar one.
func (a *app) service(ctx context.Context, f *fleet.Fleet, t *target, name string) (*fleet.Service, error) {
	view, err := a.readOne(ctx, f, t, name)
	if err != nil {
		return nil, err
	}
	s := view.Service(name)
	if len(s.Instances) > 0 || len(unlistedOf(s)) > 0 {
		return s, nil
	}
	known, err := f.Services(ctx)
	unlisted := err != nil && len(known) == 0
	if s.Err != "" && (unlisted || slices.Contains(known, name)) {
		return nil, t.unreachable(errors.New(s.Err))
	}
	if unlisted {
		return nil, faultf(exitFailed, "not_found: %s has no instance of %s", t.name, name)
	}
	missing := faultf(exitFailed, "not_found: there is no service %s in %s", name, t.name)
	if err != nil { // it may be one of those that are not listed
		missing = faultf(exitFailed, "not_found: no instance of %s is registered in %s, and %v", name, t.name, err)
	}
	if slices.Contains(known, name) {
		missing = faultf(exitFailed, "not_found: no instance of %s is registered in %s", name, t.name)
	} else if near := similar(name, known); near != "" {
		missing.addf("did you mean", "%s", near)
	}
	if of, method, ok := strings.Cut(name, "/"); ok && slices.Contains(known, of) {
		return nil, faultf(exitUsage, "%s is a method, and this command wants a service", name).
			with("try", "yodel ls %s", of).with("", "yodel describe %s/%s", of, method)
	}
	if len(known) > 0 {
		missing.addf("services", "%s     (yodel ls)", shorten(known))
	}
	return nil, missing
}

// readOne reads one service. Servers at fixed addresses are asked for their services first.
func (a *app) readOne(ctx context.Context, f *fleet.Fleet, t *target, name string) (*fleet.View, error) {
	if t.registry == nil {
		if names, err := f.Services(ctx); err != nil && len(names) == 0 {
			return nil, err
		}
	}
	view, err := f.Read(ctx, name)
	if err != nil {
		return nil, t.unreachable(err)
	}
	return view, nil
}

// serviceAsCalled is service with the whole fleet read: the clients that have ejected an instance
// are in the processes of other services.
func (a *app) serviceAsCalled(ctx context.Context, f *fleet.Fleet, t *target, name string) (*fleet.Service, error) {
	if _, err := a.service(ctx, f, t, name); err != nil {
		return nil, err
	}
	view, err := readAsCalled(ctx, f, name)
	if err != nil {
		return nil, t.unreachable(err)
	}
	return view.Service(name), nil
}

// readAsCalled reads the whole fleet, and returns the given services of it, or all if none is
// given.
func readAsCalled(ctx context.Context, f *fleet.Fleet, services ...string) (*fleet.View, error) {
	if len(services) == 0 {
		return f.Read(ctx)
	}
	all, _ := f.Services(ctx) // if it fails, these services can be read
	all = append(all, services...)
	slices.Sort(all)
	view, err := f.Read(ctx, slices.Compact(all)...)
	if err == nil {
		view.Services = slices.DeleteFunc(view.Services, func(s *fleet.Service) bool { return !slices.Contains(services, s.Name) })
	}
	return view, err
}

// shorten joins at most eight names.
func shorten(names []string) string {
	if len(names) > 8 {
		return strings.Join(names[:8], ", ") + fmt.Sprintf(", and %d more", len(names)-8)
	}
	return strings.Join(names, ", ")
}

func (a *app) lsService(ctx context.Context, f *fleet.Fleet, t *target, name string) error {
	s, err := a.serviceAsCalled(ctx, f, t, name)
	if err != nil {
		return err
	}
	rules, unread := a.rulesOf(ctx, t, name)
	row := serviceOf(s, rules)
	methods := newTable(append([]string{"METHOD", "KIND"}, trafficHeads...)...)
	for i := range s.Methods {
		m := &s.Methods[i]
		one := methodRow{shown(m.Name), kindOf(m.Kind), rowOf(&m.Traffic)}
		row.Methods = append(row.Methods, one)
		methods.add(append([]string{one.Name, one.Kind}, one.cells()...)...)
	}
	for _, in := range s.Instances {
		row.Instances = append(row.Instances, instanceOf(in))
	}
	instances := instancesOf(s)
	kind := row.Name
	if kind == actorService {
		kind = ""
	}
	row.Actors = actorsOf(ctx, f, s.Instances, kind)
	head := fmt.Sprintf("%s  %s", row.Name, row.State)
	if row.Note != "" {
		head += ": " + row.Note
	}
	if err := a.show(row, text(singleLine(head)+"\n"+undos(s)+"\n"+methods.String()+"\n"+instances.String()+row.Actors.table(true)), func() []string {
		var names []string
		for _, in := range row.Instances {
			names = append(names, in.Addr)
		}
		return names
	}); err != nil {
		return err
	}
	return partly(append(unlistedOf(s), unread)...)
}

// instanceOf returns the row of an instance.
func instanceOf(in *fleet.Instance) instanceRow {
	return instanceRow{in.Addr, in.Version, in.Zone, max(in.Weight, 1), in.State, in.Why, in.Started, rowOf(&in.Traffic)}
}

// instancesOf returns the table of the instances of a service.
func instancesOf(s *fleet.Service) *table {
	t := newTable(slices.Concat([]string{"INSTANCE", "VERSION", "ZONE", ">WEIGHT", "STATE"}, trafficHeads, []string{"UP FOR", "WHY"})...)
	for _, in := range s.Instances {
		one, uptime := instanceOf(in), "-"
		if !in.Started.IsZero() && in.State != fleet.Down {
			uptime = fleet.Age(time.Since(in.Started))
		}
		t.add(slices.Concat([]string{one.Addr, orDash(one.Version), orDash(one.Zone), fmt.Sprint(one.Weight), string(one.State)}, one.cells(), []string{uptime, one.Why})...)
	}
	return t
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// kindOf names the kind of a method.
func kindOf(kind string) string {
	if kind == "" {
		return "unary"
	}
	return kind
}

// shown returns the name of a method with a slash before its last part, as commands take it.
func shown(method string) string {
	i := strings.LastIndexAny(method, "./")
	if i < 0 {
		return method
	}
	return method[:i] + "/" + method[i+1:]
}

// split returns the service and the method in an argument such as shop.Cart/Add.
func split(name string) (service, method string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		i = strings.LastIndexByte(name, '.')
	}
	if i <= 0 || i+1 == len(name) {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}
