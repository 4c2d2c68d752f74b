// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

func (a *app) eventsCommand() *cobra.Command {
	limit := 0
	c := a.watchable(command(reads, &cobra.Command{
		Use:   "events [SERVICE]",
		Short: "List what has changed, the newest first",
		Long: "The list has the changes of rules, with author and reason, and what the processes have noticed: starts, drains, rules\n" +
			"that came into force, changed or ended there, and instances that came, left, or got no calls for a while. What several\n" +
			"processes notice is one line, and so are the ejections of an instance for one cause, with their number. A process\n" +
			"remembers 256 events until it ends, and shares them if ServerOptions.Diagnostics is set. The registry keeps the last\n" +
			"100 changes of the rules of a service.\n" +
			partHelp,
		Example: "  yodel events\n  yodel events shop.Pay --limit 5\n  yodel events -o ndjson",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			return a.events(ctx, f, t, strings.Join(args, ""), limit)
		}),
		ValidArgsFunction: a.completeService,
	}))
	c.Flags().IntVar(&limit, "limit", 20, "list at most `N` events")
	return c
}

func (a *app) events(ctx context.Context, f *fleet.Fleet, t *target, service string, limit int) error {
	view, err := f.Read(ctx)
	if err != nil {
		return t.unreachable(err)
	}
	services := view.Services
	if service != "" {
		s, err := a.service(ctx, f, t, service)
		if err != nil {
			return err
		}
		services = []*fleet.Service{s}
	}
	all := []introspect.Event{}
	for _, e := range view.Events {
		if service == "" || about(services[0], &e) {
			all = append(all, e)
		}
	}
	for _, s := range services {
		changes, err := a.ruleEvents(ctx, t, s.Name)
		if err != nil {
			return err
		}
		all = append(all, changes...)
	}
	all = fleet.Changes(all)
	all = all[:min(len(all), max(limit, 0))]
	rows := newTable("TIME", "WHAT", "OBJECT", "BY", "DETAILS")
	for i := range all {
		e := &all[i]
		rows.add(localTime(e.At), e.Kind, e.Object, orDash(e.By), e.What)
	}
	if err := a.show(all, rows, func() []string {
		var names []string
		for i := range all {
			names = append(names, all[i].Object)
		}
		return names
	}); err != nil {
		return err
	}
	return partly(incomplete(view)...)
}

// ruleEvent is the kind of events of rules.
const ruleEvent = "rule"

// about reports whether an event concerns an instance or a rule of a service. The event of an
// instance that has left names the service.
func about(s *fleet.Service, e *introspect.Event) bool {
	if e.Kind == ruleEvent {
		return e.Object == s.Name || strings.HasPrefix(e.Object, s.Name+"/")
	}
	return slices.ContainsFunc(s.Instances, func(in *fleet.Instance) bool { return in.Addr == e.Object }) || strings.Contains(e.What, " of "+s.Name+":")
}

// ruleEvents returns the changes of the rules of a service. It returns nothing if the registry
// keeps no rules.
func (a *app) ruleEvents(ctx context.Context, t *target, service string) ([]introspect.Event, error) {
	book, err := t.book()
	if err != nil {
		return nil, nil
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	changes, err := book.History(ctx, service)
	if err != nil {
		return nil, faultf(exitUnreachable, "%v", err)
	}
	var all []introspect.Event
	for i := range changes {
		ch := &changes[i]
		what := fmt.Sprintf("%s: %s (revision %d)", ch.What, ch.Reason, ch.Revision)
		all = append(all, introspect.Event{At: ch.At, Kind: ruleEvent, Object: strings.TrimRight(service+"/"+ch.Rule, "/"), By: ch.Author, What: what})
	}
	return all, nil
}
