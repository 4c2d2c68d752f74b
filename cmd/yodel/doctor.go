// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
)

func (a *app) doctorCommand() *cobra.Command {
	return a.watchable(command(reads, &cobra.Command{
		Use:   "doctor [SERVICE]",
		Short: "Check the registry, the instances and their settings",
		Long:  "The exit code is 3 if a check fails. Warnings do not count.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.again(c.Context(), func() error { return a.doctor(c.Context(), args) })
		},
		ValidArgsFunction: a.completeService,
	}))
}

// A finding is the result of a check.
type finding struct {
	Level string `json:"level"` // ok, warning or error
	What  string `json:"what"`
	ID    string `json:"id,omitempty"`  // of the error: see yodel explain
	Why   string `json:"why,omitempty"` // the evidence
	Fix   string `json:"fix,omitempty"`
}

func (a *app) doctor(ctx context.Context, args []string) error {
	found := []finding{{Level: "ok", What: fmt.Sprintf("yodel %s, %s, %s/%s", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)}}
	f, t, done, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer done()
	began := time.Now()
	if len(args) > 0 {
		_, err = a.service(ctx, f, t, args[0])
		if missing, ok := errors.AsType[*fault](err); ok && missing.code != exitUnreachable {
			return err
		}
	}
	var view *fleet.View
	if err == nil {
		view, err = readAsCalled(ctx, f, args...)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		if e, ok := errors.AsType[*yodel.Error](err); ok && t.registry == nil {
			return a.diagnose(append(found, a.unanswered(ctx, t, e)), exitUnreachable)
		}
		found = append(found, finding{Level: "error", What: t.name + " cannot be read", ID: "YDL1201", Why: err.Error(), Fix: "check the address and that the registry runs"})
		return a.diagnose(found, exitUnreachable)
	}
	read := span{began, time.Now()}
	found = append(found, finding{Level: "ok", What: fmt.Sprintf("%s read in %s", t.name, brief(read.end.Sub(began)))})
	if view.Err != "" {
		found = append(found, finding{Level: "error", What: "a part of the fleet cannot be read", Why: view.Err})
	}
	if view.Late != "" {
		found = append(found, finding{Level: "warning", What: "a part of the instances could not be asked", Why: view.Late, Fix: "this machine or the network is slow: ask for one service, yodel doctor SERVICE"})
	}
	found = append(found, registered(t, view))
	if f := a.writes(ctx, t, view); f != nil {
		found = append(found, *f)
	}
	asked := make(map[string]bool)
	for _, s := range view.Services {
		found = append(found, ofService(s)...)
		for _, in := range s.Instances {
			found = append(found, ofInstance(in, asked, read)...)
		}
	}
	found = append(found, a.ofSettings(ctx, t, args, view)...)
	return a.diagnose(append(found, a.ofRules(ctx, t, args)...), exitCheck)
}

// registered says how many services there are. Without any, nothing was checked.
func registered(t *target, view *fleet.View) finding {
	switch {
	case len(view.Services) > 0:
		return finding{Level: "ok", What: plural(len(view.Services), "service") + " registered"}
	case t.registry == nil:
		return finding{
			Level: "warning", What: "found nothing to check: the servers at " + t.name + " have no service", ID: "YDL1001",
			Fix: "register a service before the server serves, or compare the address with that of the program",
		}
	}
	return finding{
		Level: "warning", What: "found nothing to check: no service is registered in " + t.name, ID: "YDL1001",
		Why: "either no server announces itself, or servers and this command use different registries",
		Fix: "compare the registry and its prefix or namespace with ServerOptions.Registrars of the servers, and look at their logs for announcements that failed",
	}
}

// endedLong is how long a canary may have ended before doctor names it.
const endedLong = 24 * time.Hour

// ofRules checks the rules: canaries that have ended and still hold a version back, or keep sending
// it calls, and records that are not rules.
func (a *app) ofRules(ctx context.Context, t *target, args []string) (found []finding) {
	book, err := t.book()
	if err != nil {
		return nil // the registry keeps no rules
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	service := strings.Join(args, "")
	list, invalid, err := book.Read(ctx, service)
	if err != nil {
		found = append(found, finding{Level: "error", What: "the rules cannot be read", ID: "YDL1201", Why: err.Error()})
	}
	now := time.Now()
	for i := range list {
		r := &list[i]
		if ended := r.EndedAt(now); !ended.IsZero() && r.Acts(now) && now.Sub(ended) >= endedLong {
			found = append(found, finding{
				Level: "warning", What: fmt.Sprintf("the canary %s of %s ended %s ago", r.ID, r.Service, fleet.Age(now.Sub(ended))), Why: r.Sentence(),
				Fix: fmt.Sprintf("go on: yodel rule on %s %s; or stop its instances, then yodel rule rm %s %s", r.Service, r.ID, r.Service, r.ID),
			})
		}
	}
	for _, r := range invalid {
		found = append(found, finding{
			Level: "error", What: fmt.Sprintf("the record %s of %s is not a valid rule, and no process begins to apply it", r.ID, r.Service), Why: r.Problem,
			Fix: fmt.Sprintf("yodel rule set JSON, or yodel rule rm %s %s", r.Service, r.ID),
		})
	}
	return found
}

// ofSettings checks the settings of operators in the registry, except those about which instances
// say themselves that they cannot be read: see ofInstance.
func (a *app) ofSettings(ctx context.Context, t *target, args []string, view *fleet.View) (found []finding) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	broken, err := fleet.BrokenSettings(ctx, t.registry)
	if err != nil {
		found = append(found, finding{Level: "error", What: "the settings of operators cannot be read", ID: "YDL1201", Why: err.Error()})
	}
	for _, b := range broken {
		if len(args) > 0 && b.Service != args[0] {
			continue
		}
		fix := "delete the record " + b.Key + " in the registry"
		if s := view.Service(b.Service); s != nil {
			i := slices.IndexFunc(s.Instances, func(in *fleet.Instance) bool { return in.Addr == b.Addr })
			if i >= 0 && s.Instances[i].SettingProblem() != "" {
				continue
			}
			if i >= 0 {
				fix = "yodel enable " + b.Service + " " + b.Addr + ", and set it again"
			}
		}
		found = append(found, finding{
			Level: "warning", What: fmt.Sprintf("the setting of %s@%s cannot be read, and does not count", b.Service, b.Addr), Why: b.Key + ": " + b.Problem, Fix: fix,
		})
	}
	return found
}

// writes checks that the registry takes writes. If instances are announced, the caller may only
// lack the permission.
func (a *app) writes(ctx context.Context, t *target, view *fleet.View) *finding {
	registry := yodel.Description{}.Over(t.registry)
	if registry.Writable == nil {
		return nil
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	err := registry.Writable(ctx)
	switch {
	case err == nil:
		return nil
	case slices.ContainsFunc(view.Services, func(s *fleet.Service) bool { return s.Up > 0 }):
		return &finding{
			Level: "warning", What: t.name + " takes no writes of this caller", Why: err.Error(),
			Fix: "if servers cannot write either, their records expire: see their logs",
		}
	}
	return &finding{
		Level: "error", What: t.name + " takes no writes", ID: "YDL1201", Why: err.Error(),
		Fix: "check that it is not a replica, that it has a leader and free space, and the permissions of this caller",
	}
}

// unanswered is the finding of servers that cannot be asked.
func (a *app) unanswered(ctx context.Context, t *target, e *yodel.Error) finding {
	_, fix, _ := e.Explain()
	if hint := a.hintTLS(ctx, e); hint != nil {
		fix = hint[0][1]
	}
	return finding{Level: "error", What: t.name + " cannot be asked", ID: e.ID, Why: e.Error(), Fix: fix}
}

// ofService checks a service. The states of its instances are findings of their own: see
// ofInstance.
func ofService(s *fleet.Service) []finding {
	var found []finding
	levels := map[fleet.Severity]string{fleet.Bad: "error", fleet.Warn: "warning", fleet.Info: "ok"}
	for i := range s.Problems {
		p := &s.Problems[i]
		one := finding{Level: levels[p.Severity], What: s.Name + ": " + p.String(), Fix: fixOf(s, p)}
		switch p.Kind {
		case "resolver":
			one.ID = "YDL1201"
		case "none":
			one.Level, one.What, one.ID = "warning", s.Name+" has no instance", "YDL1001"
		case "down", "silent", "ejected", "draining", "inactive", "refused", "unknown":
			continue
		}
		found = append(found, one)
	}
	switch {
	case len(s.Instances) > 0 && s.Up == 0 && s.State != fleet.Unknown:
		found = append(found, finding{Level: "error", What: "no instance of " + s.Name + " gets calls", ID: "YDL1001", Why: s.Note, Fix: "yodel ls " + s.Name})
	case len(s.Instances) == 1:
		found = append(found, finding{Level: "warning", What: s.Name + " has a single instance", Fix: "start a second one, so that a restart loses nothing"})
	}
	return found
}

// fixOf returns what to do about a problem of a service.
func fixOf(s *fleet.Service, p *fleet.Problem) string {
	switch p.Kind {
	case "none":
		return "start one, if clients still call it"
	case "record", "partly":
		return "announce the instance again, or delete the record " + p.Args[0] + " in the registry"
	case "stopped", "ruled":
		return fmt.Sprintf("yodel rule rm %s %s", s.Name, p.Rule)
	case "failing", "outlier", "method", "answered":
		return "yodel samples " + s.Name + " --failed"
	case "passed", "relayed", "passer":
		return "yodel ls " + p.Cause
	case "disabled":
		return "yodel rule ls " + s.Name
	case "laggard": // tap, because calls that take less than SlowAfter leave no records
		return fmt.Sprintf("yodel tap %s/%s --slower %s -n 5", s.Name, p.Args[3], p.Args[2])
	case "slow":
		return fmt.Sprintf("yodel tap %s --slower %s -n 5", s.Name, p.Args[1])
	case "limited":
		return "yodel rule ls " + s.Name
	case "flood":
		return "yodel top " + s.Name + " --by methods"
	}
	return ""
}

// A span is the time in which the fleet was read. Each instance has answered within it.
type span struct{ begin, end time.Time }

// skew returns by how much a clock differs at least that showed at within the span.
func (s span) skew(at time.Time) time.Duration {
	switch {
	case at.Before(s.begin):
		return s.begin.Sub(at)
	case at.After(s.end):
		return at.Sub(s.end)
	}
	return 0
}

// ofInstance checks an instance. What concerns the process is reported once for each address.
func ofInstance(in *fleet.Instance, asked map[string]bool, read span) []finding {
	if in.Unasked {
		return nil // the view counts them
	}
	name := in.Service + "@" + in.Addr
	switch in.State {
	case fleet.Down:
		return []finding{{
			Level: "error", What: name + " cannot be reached", ID: "YDL1103", Why: in.Why,
			Fix: "if its process died, the record expires by itself; else compare the address with that at which it listens",
		}}
	case fleet.Silent:
		return []finding{{Level: "error", What: name + " does not answer", ID: "YDL1004", Why: in.Why, Fix: "look at its processor and its log"}}
	case fleet.Refused:
		return []finding{{Level: "warning", What: name + " does not accept this caller", Why: in.Why, Fix: "give --token TOKEN, or set YODEL_TOKEN"}}
	case fleet.Ejected:
		fix := "yodel describe " + in.Addr // it is slow
		if in.Traffic.Failing() {
			fix = "yodel samples " + in.Service + " --failed"
		}
		return []finding{{Level: "error", What: name + " is ejected", Why: in.Why, Fix: fix}}
	case fleet.Inactive:
		return []finding{{Level: "warning", What: name + " is inactive", Why: in.Why, Fix: "yodel enable " + in.Service + " " + in.Addr}}
	default:
	}
	var found []finding
	if problem := in.SettingProblem(); problem != "" {
		found = append(found, finding{Level: "warning", What: name + " ignores a setting", Why: problem, Fix: "yodel enable " + in.Service + " " + in.Addr + ", and set it again"})
	}
	if asked[in.Addr] || in.State == fleet.Listed {
		return found
	}
	asked[in.Addr] = true
	if in.Live == nil && in.State == fleet.Up {
		found = append(found, finding{
			Level: "warning", What: in.Addr + " shares no statistics", Why: "ServerOptions.Diagnostics is not set, or this caller is not authorized",
			Fix: "set Diagnostics, with middleware that authorizes callers",
		})
	}
	if in.Live != nil {
		if skew := read.skew(in.Live.Now); skew > 2*time.Second {
			found = append(found, finding{Level: "warning", What: fmt.Sprintf("the clock of %s differs by %s", in.Addr, skew.Round(time.Second)), Fix: "synchronize the clocks"})
		}
	}
	return found
}

// diagnose prints the findings, and returns a fault if one of them is an error.
func (a *app) diagnose(found []finding, code int) error {
	var b strings.Builder
	marks := map[string]string{"ok": "√", "warning": "‼", "error": "×"}
	wrong, warned := 0, 0
	for _, one := range found {
		switch one.Level {
		case "error":
			wrong++
		case "warning":
			warned++
		}
		head := fmt.Sprintf(" %s %s", marks[one.Level], one.What)
		if one.ID != "" {
			head = fmt.Sprintf("%-60s %s", head, one.ID)
		}
		fprintf(&b, "%s\n", head)
		if one.Why != "" {
			fprintf(&b, "     %s\n", one.Why)
		}
		if one.Fix != "" {
			fix := "     fix: " + one.Fix
			if one.ID != "" {
				fix += ". yodel explain " + one.ID
			}
			fprintf(&b, "%s\n", fix)
		}
	}
	if wrong+warned == 0 {
		b.WriteString(" no problems\n")
	} else {
		fprintf(&b, " %s (%s, %s)\n", plural(wrong+warned, "problem"), plural(wrong, "error"), plural(warned, "warning"))
	}
	err := a.show(found, text(b.String()), func() []string {
		var names []string
		for _, one := range found {
			if one.Level != "ok" {
				names = append(names, one.What)
			}
		}
		slices.Sort(names)
		return names
	})
	if err != nil || wrong == 0 {
		return err
	}
	return &fault{code: code}
}
