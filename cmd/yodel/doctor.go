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
	found = append(found, finding{Level: "ok", What: fmt.Sprintf("%s read in %s", t.name, brief(time.Since(began)))})
	if view.Err != "" {
		found = append(found, finding{Level: "error", What: "a part of the fleet cannot be read", Why: view.Err})
	}
	found = append(found, finding{Level: "ok", What: plural(len(view.Services), "service") + " registered"})
	asked := make(map[string]bool)
	for _, s := range view.Services {
		found = append(found, ofService(s)...)
		for _, in := range s.Instances {
			found = append(found, ofInstance(in, asked)...)
		}
	}
	return a.diagnose(found, exitCheck)
}

// unanswered is the finding of servers that cannot be asked.
func (a *app) unanswered(ctx context.Context, t *target, e *yodel.Error) finding {
	_, fix, _ := e.Explain()
	if hint := a.hintTLS(ctx, e); hint != nil {
		fix = hint[0][1]
	}
	return finding{Level: "error", What: t.name + " cannot be asked", ID: e.ID, Why: e.Error(), Fix: fix}
}

// ofService checks a service.
func ofService(s *fleet.Service) []finding {
	var found []finding
	switch {
	case s.Err != "":
		found = append(found, finding{Level: "error", What: s.Name + " cannot be resolved", ID: "YDL1201", Why: s.Err})
	case len(s.Instances) == 0:
		found = append(found, finding{Level: "warning", What: s.Name + " has no instance", ID: "YDL1001", Fix: "start one, if clients still call it"})
	case s.Up == 0:
		found = append(found, finding{Level: "error", What: "no instance of " + s.Name + " gets calls", ID: "YDL1001", Why: s.Note, Fix: "yodel ls " + s.Name})
	case len(s.Instances) == 1:
		found = append(found, finding{Level: "warning", What: s.Name + " has a single instance", Fix: "start a second one, so that a restart loses nothing"})
	}
	if tr := s.Traffic; tr.Rate > 0 && tr.Failed > 0.01 {
		found = append(found, finding{Level: "warning", What: fmt.Sprintf("%s: %s of the calls fail", s.Name, percent(tr.Failed)), Fix: "yodel samples " + s.Name + " --failed"})
	}
	return found
}

// ofInstance checks an instance. What concerns the process is reported once for each address.
func ofInstance(in *fleet.Instance, asked map[string]bool) []finding {
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
		return []finding{{Level: "error", What: name + " is ejected", Why: in.Why, Fix: "yodel samples " + in.Service + " --failed"}}
	case fleet.Inactive:
		return []finding{{Level: "warning", What: name + " is inactive", Why: in.Why, Fix: "yodel enable " + in.Service + " " + in.Addr}}
	default:
	}
	if asked[in.Addr] || in.State == fleet.Listed {
		return nil
	}
	asked[in.Addr] = true
	var found []finding
	if in.Live == nil && in.State == fleet.Up {
		found = append(found, finding{
			Level: "warning", What: in.Addr + " shares no statistics", Why: "ServerOptions.Diagnostics is not set, or this caller is not authorized",
			Fix: "set Diagnostics, with middleware that authorizes callers",
		})
	}
	if in.Live != nil {
		if skew := time.Since(in.Live.Now); skew > 2*time.Second || skew < -2*time.Second {
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
