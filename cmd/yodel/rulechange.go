// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/rules"
)

// This file says what a change of rules does to the traffic, and asks for --force if it stops
// calls.

// defaultLife is how long a rule acts that stops calls or answers for a method, if the user does
// not say how long.
const defaultLife = 24 * time.Hour

// limitLife gives a rule that stops calls or answers for a method an end.
func (o *ruleOptions) limitLife(r *rules.Rule) {
	if r.Expires.IsZero() && !o.endless && !r.Off && (r.Disable != nil || r.Fault != nil || r.Mock != nil) {
		r.Expires = time.Now().Add(defaultLife).UTC().Truncate(time.Second)
	}
}

// command returns the command line of the user, for a shell.
func (a *app) command() string {
	words := []string{"yodel"}
	for _, arg := range a.args {
		if arg == "" || strings.ContainsAny(arg, " \t\n'\"$`\\*?<>|&;(){}[]#~!") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

// forced is the fault of a change that needs --force.
func (a *app) forced(why string) error {
	return faultf(exitUsage, "nothing was changed: %s", why).with("next", "%s --force", a.command())
}

// sayEffect says what a change does, and returns what needs --force.
func (a *app) sayEffect(e *rules.Effect) (confirm string) {
	if e.Text != "" {
		a.sayf(" effect (last minute, estimate): %s\n", e.Text)
	}
	var why []string
	for _, p := range e.Problems {
		switch {
		case p.Force:
			a.sayf(" stop %s\n", p)
			why = append(why, p.Text)
		case p.Warning:
			a.sayf(" warn %s\n", p)
		}
	}
	return strings.Join(why, "; ")
}

// trafficFor returns what the preview needs of a service, with the names that exist.
func (a *app) trafficFor(ctx context.Context, f *fleet.Fleet, s *fleet.Service) *rules.Traffic {
	t := trafficOf(s)
	if known, err := f.Services(ctx); err == nil && s.Err == "" {
		if t.Services = known; len(s.Instances) > 0 {
			t.Services = append(t.Services, s.Name)
		}
	}
	for i := range s.Methods {
		t.Methods = append(t.Methods, s.Methods[i].Name)
	}
	return t
}

// undoLine says how to end a rule, and what its instances get then.
func undoLine(stored *rules.Rule, all []rules.Rule, t *rules.Traffic) string {
	now := append(slices.DeleteFunc(slices.Clone(all), func(r rules.Rule) bool { return r.ID == stored.ID }), *stored)
	if stored.Canary != nil && !stored.Off {
		off := slices.Clone(now)
		off[len(off)-1].Off = true
		e := rules.PreviewChange(stored.Service, now, off, t)
		return strings.TrimRight(fmt.Sprintf(" undo: yodel rule off %s %s --reason …   %s", stored.Service, stored.ID, e.Text), " ") + "\n"
	}
	return fmt.Sprintf(" undo: yodel rule rollback %s %d --reason …\n", stored.Service, stored.Revision-1)
}

// A ruleChange is a change of the rules of a service that is not a new rule.
type ruleChange struct {
	service, what string
	// after returns the rules after the change, and the revision on which the change is based.
	after func(ctx context.Context, book *rules.Book, now []rules.Rule) ([]rules.Rule, int, error)
	// make makes the change.
	make func(ctx context.Context, book *rules.Book, revision int) error
}

// changeRules shows the effect of a change, and makes it.
func (a *app) changeRules(ctx context.Context, o *ruleOptions, c ruleChange) error {
	f, t, done, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer done()
	book, err := t.book()
	if err != nil {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, a.o.timeout+5*time.Second)
	defer cancel()
	now, err := book.List(reading, c.service)
	if err != nil {
		return t.unreachable(err)
	}
	after, revision, err := c.after(reading, book, now)
	if err != nil {
		return err
	}
	view, err := f.Read(reading, c.service)
	if err != nil {
		return t.unreachable(err)
	}
	traffic := trafficOf(view.Service(c.service))
	confirm := a.sayEffect(rules.PreviewChange(c.service, now, after, traffic))
	out := struct {
		Service string `json:"service"`
		What    string `json:"what"`
		DryRun  bool   `json:"dryRun,omitempty"`
	}{c.service, c.what, o.dryRun}
	names := func() []string { return []string{c.service} }
	switch {
	case o.dryRun:
		return a.show(out, text(" would "+singleLine(c.what)+" (dry run, nothing was changed)\n"), names)
	case confirm != "" && !o.force:
		return a.forced(confirm)
	}
	if err := a.confirm(ctx, t, o.yes, c.service); err != nil {
		return err
	}
	ctx, cancel = a.limited(ctx)
	defer cancel()
	if err := c.make(ctx, book, revision); err != nil {
		return a.ruleFault(err, false)
	}
	return a.show(out, text(" did "+singleLine(c.what)+"\n"), names)
}

// ruleOnOff returns the command on or off.
func (a *app) ruleOnOff(word string) *cobra.Command {
	o := &ruleOptions{}
	long := "The rule stays in the registry. An ended canary gives its instances what its --then says, by default no calls."
	if word == "on" {
		long = "A rule that has expired needs a new end: --expires."
	}
	c := o.flags(command(writes, &cobra.Command{
		Use: word + " SERVICE ID", Short: "Switch a rule " + word, Long: long, Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			var r rules.Rule
			return a.changeRules(c.Context(), o, ruleChange{
				service: args[0], what: "switch the rule " + args[1] + " of " + args[0] + " " + word,
				after: func(ctx context.Context, book *rules.Book, now []rules.Rule) ([]rules.Rule, int, error) {
					found, err := a.rule(ctx, book, args[0], args[1])
					if err != nil {
						return nil, 0, err
					}
					r = *found
					r.Off, r.Author, r.Reason = word == "off", o.author, o.reason
					switch {
					case o.expires > 0:
						r.Expires = o.end()
					case o.endless || r.Off && !r.Active(time.Now()) && !r.Expires.IsZero() && r.Expires.Before(time.Now()):
						r.Expires = time.Time{}
					}
					return replaced(now, r), found.Revision, nil
				},
				make: func(ctx context.Context, book *rules.Book, _ int) error {
					_, err := book.Put(ctx, r)
					return err
				},
			})
		},
	}))
	o.signFlags(c, a)
	if word == "on" {
		c.Flags().DurationVar(&o.expires, "expires", 0, "how long the rule acts from now on; 0 means until it is removed (default: as before)")
	}
	return c
}

// replaced returns the rules with r in place of the one with its ID.
func replaced(all []rules.Rule, r rules.Rule) []rules.Rule {
	return append(slices.DeleteFunc(slices.Clone(all), func(o rules.Rule) bool { return o.ID == r.ID }), r)
}

func (a *app) ruleRm() *cobra.Command {
	o := &ruleOptions{}
	c := o.flags(command(writes, &cobra.Command{
		Use: "rm SERVICE ID", Short: "Remove a rule", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeService,
		Long: "Without the rule of a canary, also of one that has ended, its instances get the share of ordinary instances.\nThat needs --force. yodel rule off ends a canary and gives its instances no calls.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeRules(c.Context(), o, ruleChange{
				service: args[0], what: "remove rule " + args[1] + " of " + args[0],
				after: func(ctx context.Context, book *rules.Book, now []rules.Rule) ([]rules.Rule, int, error) {
					invalid, err := book.Invalid(ctx, args[0])
					if err == nil && slices.ContainsFunc(invalid, func(r introspect.RuleState) bool { return r.ID == args[1] }) {
						return now, 0, nil
					}
					r, err := a.rule(ctx, book, args[0], args[1])
					if err != nil {
						return nil, 0, err
					}
					return slices.DeleteFunc(slices.Clone(now), func(o rules.Rule) bool { return o.ID == args[1] }), r.Revision, nil
				},
				make: func(ctx context.Context, book *rules.Book, revision int) error {
					return book.Remove(ctx, args[0], args[1], revision, o.author, o.reason)
				},
			})
		},
	}))
	o.signFlags(c, a)
	return c
}

func (a *app) ruleRollback() *cobra.Command {
	o := &ruleOptions{}
	c := o.flags(command(writes, &cobra.Command{
		Use: "rollback SERVICE REVISION", Short: "Make the rules of a service what they were after a revision",
		Long: "yodel rule history SERVICE lists the revisions. Revision 0 is the state before the first change.",
		Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			revision, err := strconv.Atoi(args[1])
			if err != nil || revision < 0 {
				return faultf(exitUsage, "%q is no revision", args[1]).with("next", "yodel rule history %s", args[0])
			}
			return a.changeRules(c.Context(), o, ruleChange{
				service: args[0], what: fmt.Sprintf("roll the rules of %s back to revision %d", args[0], revision),
				after: func(ctx context.Context, book *rules.Book, _ []rules.Rule) ([]rules.Rule, int, error) {
					then, newest, err := book.At(ctx, args[0], revision)
					if err != nil {
						if !errors.Is(err, rules.ErrNoRule) {
							return nil, 0, faultf(exitUnreachable, "%v", err)
						}
						return nil, 0, faultf(exitFailed, "not_found: %s has no revision %d", args[0], revision).with("next", "yodel rule history %s", args[0])
					}
					return then, newest, nil
				},
				make: func(ctx context.Context, book *rules.Book, newest int) error {
					return book.Rollback(ctx, args[0], revision, newest, o.author, o.reason)
				},
			})
		},
	}))
	o.signFlags(c, a)
	return c
}

// expiryOf returns when a rule ends, or how long ago it has ended.
func expiryOf(r *rules.Rule, now time.Time) string {
	switch ended := r.EndedAt(now); {
	case !ended.IsZero():
		return fleet.Age(now.Sub(ended)) + " ago"
	case r.Expires.IsZero():
		return "never"
	}
	return "in " + fleet.Age(r.Expires.Sub(now))
}

// heldBack asks the processes of the fleet why the instances of active canaries take less than
// their calls. The keys are service and ID.
func (a *app) heldBack(ctx context.Context, list []rules.Rule) map[string]string {
	now := time.Now()
	if !slices.ContainsFunc(list, func(r rules.Rule) bool { return r.Canary != nil && r.Active(now) }) {
		return nil
	}
	f, _, done, err := a.fleet(ctx)
	if err != nil {
		return nil
	}
	defer done()
	view, err := f.Read(ctx)
	if err != nil {
		return nil
	}
	var mu sync.Mutex
	by := make(map[string]map[string]int) // the number of processes by reason, by rule
	eachRules(ctx, f, addressesOf(view, false), func(all *introspect.Rules) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range all.Rules {
			if s.Held == "" {
				continue
			}
			reason, _, _ := strings.Cut(s.Held, ":")
			if by[s.Service+"/"+s.ID] == nil {
				by[s.Service+"/"+s.ID] = make(map[string]int)
			}
			by[s.Service+"/"+s.ID][reason]++
		}
	})
	said := make(map[string]string)
	for key, reasons := range by {
		var parts []string
		for reason, n := range reasons {
			parts = append(parts, fmt.Sprintf("%s in %s", reason, plural(n, "client")))
		}
		slices.Sort(parts)
		said[key] = strings.Join(parts, ", ")
	}
	return said
}
