// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/rules"
)

// book opens the rules of the target's registry.
func (t *target) book() (*rules.Book, error) {
	if t.registry == nil {
		return nil, faultf(exitUsage, "rules need a registry").with("try", "yodel --registry URL …")
	}
	book, err := rules.Open(t.registry)
	if err != nil {
		return nil, faultf(exitUsage, "%s keeps no rules: %v", t.name, err)
	}
	return book, nil
}

// active returns the active rules of a service, or of all services. It returns nothing if the
// registry keeps no rules.
func (a *app) active(ctx context.Context, t *target, service string) []rules.Rule {
	book, err := t.book()
	if err != nil {
		return nil
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	all, err := book.List(ctx, service)
	if err != nil {
		a.sayf("the rules cannot be read: %v\n", err)
		return nil
	}
	now := time.Now()
	return slices.DeleteFunc(all, func(r rules.Rule) bool { return !r.Active(now) })
}

// rulesOf returns the kinds of the active rules by service.
func (a *app) rulesOf(ctx context.Context, t *target, service string) map[string][]string {
	kinds := make(map[string][]string)
	for _, r := range a.active(ctx, t, service) {
		if !slices.Contains(kinds[r.Service], r.Kind()) {
			kinds[r.Service] = append(kinds[r.Service], r.Kind())
		}
	}
	return kinds
}

// ruleLines returns the active rules of a service in words.
func (a *app) ruleLines(ctx context.Context, t *target, service string) []string {
	var lines []string
	for _, r := range a.active(ctx, t, service) {
		lines = append(lines, r.ID+": "+r.Sentence())
	}
	return lines
}

// ruleOptions are the flags of commands that write rules.
type ruleOptions struct {
	changeOptions

	id, reason, author string
	expires            time.Duration
	rollback           string

	method, caller, tenant string
	header                 []string

	to         string
	percent    float64
	by         string
	strict     bool
	perSecond  float64
	burst      int
	concurrent int
	queue      int
	except     []string
}

func (a *app) ruleCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "rule",
		Short: "List, write, explain and roll back rules",
		Long: "Rules change how the calls of a service are routed and governed while clients and servers run. They are in the\n" +
			"registry, and concern programs that use it by package rules.",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(c, args[0])
			}
			return c.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	c.AddCommand(
		a.ruleLs(), a.ruleGet(), a.ruleSet(),
		a.ruleKind("weight SERVICE --to TARGET --percent N", "Change the share of the calls that some instances get", "--to v1.1.0 --percent 50", func(o *ruleOptions, r *rules.Rule) error {
			if o.percent != math.Trunc(o.percent) {
				return faultf(exitUsage, "--percent %v: the percentage of a weight is a whole number", o.percent)
			}
			to, err := parseTarget(o.to)
			r.Weight = &rules.Weight{To: to, Percent: int(o.percent)}
			return err
		}),
		a.ruleKind("canary SERVICE --to TARGET --percent N", "Send a percentage of the calls to some instances", "--to v1.1.0 --percent 10 --expires 2h --auto-rollback 'ok<99% for 30s'", func(o *ruleOptions, r *rules.Rule) error {
			to, err := parseTarget(o.to)
			r.Canary = &rules.Canary{To: to, Percent: o.percent, By: o.by}
			return err
		}),
		a.ruleKind("route SERVICE --to TARGET", "Send calls to some instances", "--to zone=a --caller web", func(o *ruleOptions, r *rules.Rule) error {
			to, err := parseTarget(o.to)
			r.Route = &rules.Route{To: to, Strict: o.strict}
			return err
		}),
		a.ruleKind("disable SERVICE [--to TARGET]", "Stop the calls to some instances, or refuse calls", "--to v1.1.0", func(o *ruleOptions, r *rules.Rule) error {
			r.Disable = &rules.Disable{Except: o.except}
			if o.to == "" {
				return nil
			}
			to, err := parseTarget(o.to)
			r.Disable.To = &to
			return err
		}),
		a.ruleKind("limit SERVICE --per-second N", "Limit calls", "--per-second 100 --by caller", func(o *ruleOptions, r *rules.Rule) error {
			r.Limit = &rules.Limit{PerSecond: o.perSecond, Burst: o.burst, Concurrent: o.concurrent, Queue: o.queue, By: o.by}
			return nil
		}),
		a.ruleRm(), a.ruleHistory(), a.ruleRollback(), a.ruleExplain(),
	)
	return c
}

// parseTarget reads the instances that --to selects: a version, or KEY=VALUE pairs.
func parseTarget(text string) (rules.Target, error) {
	var t rules.Target
	if !strings.Contains(text, "=") {
		t.Version = text
		return t, nil
	}
	keys := map[string]*string{"addr": &t.Addr, "version": &t.Version, "tag": &t.Tag, "group": &t.Group, "zone": &t.Zone}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return t, faultf(exitUsage, "--to: %q is not KEY=VALUE", pair)
		}
		if keys[key] == nil {
			return t, faultf(exitUsage, "--to: instances have no %q", key).with("keys", "addr, version, tag, group, zone")
		}
		*keys[key] = value
	}
	return t, nil
}

// ruleKind returns the command that writes a rule of one kind.
func (a *app) ruleKind(use, short, example string, fill func(*ruleOptions, *rules.Rule) error) *cobra.Command {
	o := &ruleOptions{}
	name, _, _ := strings.Cut(use, " ")
	c := o.flags(command(writes, &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeService,
		Long:    "A TARGET is a version, or pairs of addr, version, tag, group and zone such as zone=a,tag=ssd.\nThe effect is estimated from the traffic of the last minute.",
		Example: "  yodel rule " + name + " shop.Pay " + example + " --reason CHG-88",
		RunE: func(c *cobra.Command, args []string) error {
			r := rules.Rule{Service: args[0]}
			if err := o.scope(&r); err != nil {
				return err
			}
			if f := c.Flags().Lookup("percent"); f != nil && !f.Changed {
				return faultf(exitUsage, "--percent is needed").with("usage", "%s", c.UseLine())
			}
			if err := fill(o, &r); err != nil {
				return err
			}
			return a.putRule(c.Context(), o, r)
		},
	}))
	o.signFlags(c, a)
	f := c.Flags()
	f.StringVar(&o.id, "id", "", "`ID` of the rule; an existing one is replaced (default: a new ID)")
	f.DurationVar(&o.expires, "expires", 0, "how long the rule acts (default: until it is removed)")
	f.StringVar(&o.rollback, "auto-rollback", "", "`CONDITION` under which the rule switches itself off, such as 'ok<99% for 30s'")
	f.StringVar(&o.method, "method", "", "only calls of this method")
	f.StringVar(&o.caller, "caller", "", "only calls of this caller")
	f.StringVar(&o.tenant, "tenant", "", "only calls for this tenant")
	f.StringArrayVar(&o.header, "header", nil, "only calls with this metadata, `KEY=VALUE`")
	switch name {
	case "limit":
		f.Float64Var(&o.perSecond, "per-second", 0, "calls a second")
		f.IntVar(&o.burst, "burst", 0, "calls at once after a pause")
		f.IntVar(&o.concurrent, "concurrent", 0, "calls that run at a time")
		f.IntVar(&o.queue, "queue", 0, "calls that wait for a place of --concurrent")
	default:
		f.StringVar(&o.to, "to", "", "`TARGET`: the instances")
	}
	switch name {
	case "weight", "canary":
		f.Float64Var(&o.percent, "percent", 0, "the percentage")
	case "route":
		f.BoolVar(&o.strict, "strict", false, "let calls fail if none of the instances can take them")
	case "disable":
		f.StringArrayVar(&o.except, "except", nil, "`CALLER` whose calls are not refused")
	}
	switch name {
	case "canary":
		f.StringVar(&o.by, "by", "", "caller, tenant, key or header:NAME: calls with the same value go the same way")
	case "limit":
		f.StringVar(&o.by, "by", "", "caller, tenant, method or header:NAME: each value has a limit of its own")
	}
	return c
}

// signFlags adds the flags that say who makes a change, and why.
func (o *ruleOptions) signFlags(c *cobra.Command, a *app) {
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the history (required)")
	c.Flags().StringVar(&o.author, "author", "", "who, for the history (default: the variable YODEL_AUTHOR, or the name of the user)")
	c.PreRun = func(*cobra.Command, []string) {
		if o.author == "" {
			o.author = a.env("YODEL_AUTHOR")
		}
		if u, err := user.Current(); o.author == "" && err == nil {
			o.author = u.Username
		}
	}
}

// scope sets what concerns all kinds of rules.
func (o *ruleOptions) scope(r *rules.Rule) error {
	r.ID, r.Method, r.Caller, r.Tenant, r.Author, r.Reason = o.id, o.method, o.caller, o.tenant, o.author, o.reason
	for _, pair := range o.header {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return faultf(exitUsage, "the header %q is not KEY=VALUE", pair)
		}
		if r.Header == nil {
			r.Header = make(map[string]string)
		}
		r.Header[key] = value
	}
	if o.expires > 0 {
		r.Expires = o.end()
	}
	if o.rollback != "" {
		back, err := rules.ParseRollback(o.rollback)
		if err != nil {
			return faultf(exitUsage, "--auto-rollback: %v", err)
		}
		r.Rollback = back
	}
	return nil
}

// end returns when a rule with --expires ends.
func (o *ruleOptions) end() time.Time { return time.Now().Add(o.expires).UTC().Truncate(time.Second) }

// warnOfService warns of a service that has no instance in the registry: its name may be misspelt.
// The rule is stored all the same, because its service may come later.
func (a *app) warnOfService(ctx context.Context, f *fleet.Fleet, t *target, s *fleet.Service) {
	known, err := f.Services(ctx)
	if len(s.Instances) > 0 || s.Err != "" || err != nil || slices.Contains(known, s.Name) {
		return
	}
	hint := ""
	if near := similar(s.Name, known); near != "" {
		hint = "; did you mean " + near + "?"
	}
	a.sayf(" warn service: there is no service %s in %s%s\n", s.Name, t.name, hint)
}

// putRule shows the effect of a rule and stores it.
func (a *app) putRule(ctx context.Context, o *ruleOptions, r rules.Rule) error {
	f, t, done, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer done()
	book, err := t.book()
	if err != nil {
		return err
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(outer, a.o.timeout+5*time.Second)
	defer cancel()
	all, err := book.List(ctx, r.Service)
	if err != nil {
		return t.unreachable(err)
	}
	view, err := f.Read(ctx, r.Service)
	if err != nil {
		return t.unreachable(err)
	}
	effect := rules.Preview(&r, all, trafficOf(view.Service(r.Service)))
	if effect != nil && effect.Text != "" {
		a.sayf(" effect (last minute, estimate): %s\n", effect.Text)
		for _, p := range effect.Problems {
			if p.Warning {
				a.sayf(" warn %s\n", p)
			}
		}
	}
	a.warnOfService(ctx, f, t, view.Service(r.Service))
	if o.dryRun {
		if err := refused(r.Check()); err != nil {
			return err
		}
		return a.show(&r, text(r.Sentence()+" (dry run, nothing was changed)\n"), func() []string { return []string{r.ID} })
	}
	if err := a.confirm(outer, t, o.yes, r.Service); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(outer, a.o.timeout+5*time.Second) // the user may have typed for longer
	defer cancel()
	began := time.Now()
	stored, err := book.Put(ctx, r)
	if err != nil {
		return ruleFault(err)
	}
	in := a.inForce(ctx, f, &stored)
	said := fmt.Sprintf(" stored rule %s of %s, revision %d: %s\n", stored.ID, stored.Service, stored.Revision, stored.Sentence())
	if in > 0 {
		said += fmt.Sprintf(" in force in %s after %s\n", processes(in), brief(time.Since(began)))
	} else {
		said += " no process of the fleet has said that it follows it\n"
	}
	said += fmt.Sprintf(" undo: yodel rule rollback %s %d --reason …\n", stored.Service, stored.Revision-1)
	return a.show(&stored, text(said), func() []string { return []string{stored.ID} })
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// trafficOf returns what the preview needs of a service.
func trafficOf(s *fleet.Service) *rules.Traffic {
	t := &rules.Traffic{Live: make(map[string]*introspect.Live)}
	for _, in := range s.Instances {
		t.Instances = append(t.Instances, in.Instance)
		if in.Live != nil {
			t.Live[in.Addr] = in.Live
		}
	}
	return t
}

// inForce waits until no further process begins to follow a revision of a rule, for at most 3 s,
// and returns how many processes of the fleet follow it.
func (a *app) inForce(ctx context.Context, f *fleet.Fleet, r *rules.Rule) int {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	last, same := 0, 0
	for {
		n := 0
		if view, err := f.Read(ctx); err == nil {
			n = followers(ctx, f, addressesOf(view, false), r)
		}
		if n > 0 && n == last {
			if same++; same == 2 {
				return n
			}
		} else {
			same = 0
		}
		last = n
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return last
		}
	}
}

// followers asks the processes at addrs, at most 64 at a time, and returns how many follow a
// revision of a rule. Each has a second to answer.
func followers(ctx context.Context, f *fleet.Fleet, addrs []string, r *rules.Rule) int {
	var n atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, addr := range addrs {
		client := f.Client(addr)
		if client == nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			now, err := rulesMethod.Call(ctx, client, &struct{}{})
			if err == nil && slices.ContainsFunc(now.Rules, func(s introspect.RuleState) bool {
				return s.Service == r.Service && s.ID == r.ID && s.Revision == r.Revision
			}) {
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return int(n.Load())
}

// rulesMethod returns the rules that a process follows.
const rulesMethod yodel.Method[struct{}, introspect.Rules] = "yodel.Rules"

// addressesOf returns the addresses of the instances that can be asked, each once. Silent ones can
// be asked by a command that has the time.
func addressesOf(view *fleet.View, silent bool) (addrs []string) {
	for _, s := range view.Services {
		for _, in := range s.Instances {
			if in.State != fleet.Down && in.State != fleet.Listed && (silent || in.State != fleet.Silent) {
				addrs = append(addrs, in.Addr)
			}
		}
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

// refused returns the fault for the problems of a rule that are not warnings.
func refused(problems []rules.Problem) error {
	problems = slices.DeleteFunc(slices.Clone(problems), func(p rules.Problem) bool { return p.Warning })
	if len(problems) == 0 {
		return nil
	}
	return ruleFault(&rules.InvalidError{Problems: problems})
}

// ruleFault returns the fault for an error of a book.
func ruleFault(err error) error {
	invalid, ok := errors.AsType[*rules.InvalidError](err)
	if !ok {
		code := exitUnreachable
		if errors.Is(err, rules.ErrNoRule) {
			code = exitFailed
		}
		return faultf(code, "%v", err)
	}
	f := faultf(exitUsage, "the rule is refused: %v", invalid.Problems[0])
	for i, p := range invalid.Problems {
		if i > 0 {
			f.addf("also", "%s", p)
		}
		if p.Hint != "" {
			f.addf("hint", "%s", p.Hint)
		}
	}
	return f
}

func (a *app) ruleLs() *cobra.Command {
	all := false
	c := a.watchable(command(reads, &cobra.Command{
		Use: "ls [SERVICE]", Short: "List rules", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withBook(c.Context(), func(ctx context.Context, _ *target, book *rules.Book) error {
				return a.listRules(ctx, book, strings.Join(args, ""), all)
			})
		},
	}))
	c.Flags().BoolVarP(&all, "all", "a", false, "also list rules that are off or have expired")
	return c
}

// withBook opens the rules for a command. With --watch, it runs f again and again.
func (a *app) withBook(ctx context.Context, f func(ctx context.Context, t *target, book *rules.Book) error) error {
	t, err := a.openTarget(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }()
	book, err := t.book()
	if err != nil {
		return err
	}
	return a.again(ctx, func() error { return f(ctx, t, book) })
}

func (a *app) listRules(ctx context.Context, book *rules.Book, service string, all bool) error {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	list, err := book.List(ctx, service)
	if err != nil {
		return faultf(exitUnreachable, "%v", err)
	}
	now := time.Now()
	out := []rules.Rule{}
	t := newTable("SERVICE", "ID", "KIND", "STATE", "EXPIRES", "AUTHOR", "RULE")
	for i := range list {
		r := &list[i]
		if !all && !r.Active(now) {
			continue
		}
		out = append(out, *r)
		state, expires := "active", "never"
		switch {
		case r.Off:
			state = "off"
		case !r.Active(now):
			state = "expired"
		}
		if !r.Expires.IsZero() {
			expires = "in " + fleet.Age(time.Until(r.Expires))
		}
		t.add(r.Service, r.ID, r.Kind(), state, expires, r.Author, r.Sentence())
	}
	invalid, err := book.Invalid(ctx, service)
	if err != nil {
		return faultf(exitUnreachable, "%v", err)
	}
	for _, r := range invalid {
		a.sayf("warning: the record %s of %s is not a valid rule, so no process begins to apply it: %s; yodel rule rm removes it\n", r.ID, r.Service, r.Problem)
	}
	switch {
	case len(out) > 0:
	case len(list) > 0:
		a.sayf("No rule is active. %s off or expired: yodel rule ls --all\n", plural(len(list), "rule"))
	default:
		a.sayf("There are no rules. yodel rule canary SERVICE --to VERSION --percent 10 --reason … writes one.\n")
	}
	return a.show(out, t, func() []string {
		var names []string
		for i := range out {
			names = append(names, out[i].Service+"/"+out[i].ID)
		}
		return names
	})
}

func (a *app) ruleGet() *cobra.Command {
	return a.watchable(command(reads, &cobra.Command{
		Use: "get SERVICE ID", Short: "Print a rule as JSON", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withBook(c.Context(), func(ctx context.Context, _ *target, book *rules.Book) error {
				r, err := a.rule(ctx, book, args[0], args[1])
				if err != nil {
					return err
				}
				data, err := json.MarshalIndent(r, "", "  ")
				if err != nil {
					return err
				}
				return a.show(r, text(string(escaped(data))+"\n"), func() []string { return []string{args[1]} })
			})
		},
	}))
}

// rule reads a rule. If it does not exist, the error names the most similar one.
func (a *app) rule(ctx context.Context, book *rules.Book, service, id string) (*rules.Rule, error) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	list, err := book.List(ctx, service)
	if err != nil {
		return nil, faultf(exitUnreachable, "%v", err)
	}
	var ids []string
	for i := range list {
		if list[i].ID == id {
			return &list[i], nil
		}
		ids = append(ids, list[i].ID)
	}
	f := faultf(exitFailed, "not_found: %s has no rule %q", service, id)
	if near := similar(id, ids); near != "" {
		f.addf("did you mean", "%s", near)
	}
	return nil, f.with("rules", "yodel rule ls %s", service)
}

func (a *app) ruleSet() *cobra.Command {
	o := &ruleOptions{}
	c := o.flags(command(writes, &cobra.Command{
		Use: "set JSON | @FILE | -", Short: "Write a rule of any kind from JSON",
		Long: "docs/rules.md describes the JSON. Author, reason and expiry are those of the flags, if they are given.", Args: cobra.ExactArgs(1),
		Example: `  yodel rule set '{"service":"shop.Pay","timeout":{"after":"200ms"}}' --reason CHG-88`,
		RunE: func(c *cobra.Command, args []string) error {
			r, done, err := a.body(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			data, err := io.ReadAll(io.LimitReader(r, 1<<20))
			if err != nil {
				return err
			}
			rule, err := rules.Decode(data)
			if err != nil {
				return ruleFault(faultOf(err))
			}
			rule.Reason = cmp.Or(o.reason, rule.Reason)
			if o.expires > 0 {
				rule.Expires = o.end()
			}
			if c.Flags().Changed("author") || rule.Author == "" {
				rule.Author = o.author
			}
			return a.putRule(c.Context(), o, rule)
		},
	}))
	o.signFlags(c, a)
	c.Flags().DurationVar(&o.expires, "expires", 0, "how long the rule acts (default: as the JSON says)")
	return c
}

// faultOf makes an error of the input a fault of its user, unless it says more.
func faultOf(err error) error {
	if _, ok := errors.AsType[*rules.InvalidError](err); ok {
		return err
	}
	return &rules.InvalidError{Problems: []rules.Problem{{ID: "YDL-R001", Text: err.Error()}}}
}

// changeBook runs a command that changes rules by f. With --dry-run, check says whether f would
// fail.
func (a *app) changeBook(ctx context.Context, o *ruleOptions, service, what string, check, f func(ctx context.Context, book *rules.Book) error) error {
	return a.withBook(ctx, func(ctx context.Context, t *target, book *rules.Book) error {
		out := struct {
			Service string `json:"service"`
			What    string `json:"what"`
			DryRun  bool   `json:"dryRun,omitempty"`
		}{service, what, o.dryRun}
		names := func() []string { return []string{service} }
		if o.dryRun {
			if err := check(ctx, book); err != nil {
				return err
			}
			return a.show(out, text(" would "+singleLine(what)+" (dry run, nothing was changed)\n"), names)
		}
		if err := a.confirm(ctx, t, o.yes, service); err != nil {
			return err
		}
		ctx, cancel := a.limited(ctx)
		defer cancel()
		if err := f(ctx, book); err != nil {
			return ruleFault(err)
		}
		return a.show(out, text(" did "+singleLine(what)+"\n"), names)
	})
}

func (a *app) ruleRm() *cobra.Command {
	o := &ruleOptions{}
	c := o.flags(command(writes, &cobra.Command{
		Use: "rm SERVICE ID", Short: "Remove a rule", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeBook(c.Context(), o, args[0], "remove rule "+args[1]+" of "+args[0], func(ctx context.Context, book *rules.Book) error {
				invalid, err := book.Invalid(ctx, args[0])
				if err == nil && slices.ContainsFunc(invalid, func(r introspect.RuleState) bool { return r.ID == args[1] }) {
					return nil
				}
				_, err = a.rule(ctx, book, args[0], args[1])
				return err
			}, func(ctx context.Context, book *rules.Book) error {
				return book.Remove(ctx, args[0], args[1], o.author, o.reason)
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
			return a.changeBook(c.Context(), o, args[0], fmt.Sprintf("roll the rules of %s back to revision %d", args[0], revision), func(ctx context.Context, book *rules.Book) error {
				ctx, cancel := a.limited(ctx)
				defer cancel()
				changes, err := book.History(ctx, args[0])
				if err != nil {
					return faultf(exitUnreachable, "%v", err)
				}
				if revision > 0 && !slices.ContainsFunc(changes, func(ch rules.Change) bool { return ch.Revision == revision }) {
					return faultf(exitFailed, "not_found: %s has no revision %d", args[0], revision).with("next", "yodel rule history %s", args[0])
				}
				return nil
			}, func(ctx context.Context, book *rules.Book) error {
				return book.Rollback(ctx, args[0], revision, o.author, o.reason)
			})
		},
	}))
	o.signFlags(c, a)
	return c
}

func (a *app) ruleHistory() *cobra.Command {
	return a.watchable(command(reads, &cobra.Command{
		Use: "history SERVICE", Short: "List the changes of the rules of a service, the newest first", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withBook(c.Context(), func(ctx context.Context, _ *target, book *rules.Book) error {
				ctx, cancel := a.limited(ctx)
				defer cancel()
				changes, err := book.History(ctx, args[0])
				if err != nil {
					return faultf(exitUnreachable, "%v", err)
				}
				var b strings.Builder
				for i := range changes {
					ch := &changes[i]
					fprintf(&b, "%4d  %s  %s %s by %s: %s\n", ch.Revision, localTime(ch.At), ch.What, ch.Rule, ch.Author, ch.Reason)
					if a.o.verbose {
						for _, line := range ch.Diff() {
							fprintf(&b, "        %s\n", line)
						}
					}
				}
				return a.show(changes, text(b.String()), func() []string {
					var names []string
					for i := range changes {
						names = append(names, strconv.Itoa(changes[i].Revision))
					}
					return names
				})
			})
		},
	}))
}

func (a *app) ruleExplain() *cobra.Command {
	return a.watchable(command(reads, &cobra.Command{
		Use: "explain SERVICE [ID]", Short: "Say in words what the rules of a service do, and what they would do to the traffic", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeService,
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			book, err := t.book()
			if err != nil {
				return err
			}
			reading, cancel := a.limited(ctx)
			defer cancel()
			list, err := book.List(reading, args[0])
			if err != nil {
				return faultf(exitUnreachable, "%v", err)
			}
			view, err := f.Read(ctx, args[0])
			if err != nil {
				return t.unreachable(err)
			}
			type explained struct {
				rules.Rule

				Sentence string        `json:"sentence"`
				Effect   *rules.Effect `json:"effect"`
			}
			out := []explained{}
			var b strings.Builder
			for i := range list {
				r := &list[i]
				if len(args) == 2 && r.ID != args[1] {
					continue
				}
				effect := rules.Preview(r, list, trafficOf(view.Service(args[0])))
				out = append(out, explained{*r, r.Sentence(), effect})
				state := ""
				if !r.Active(time.Now()) {
					state = "  (does not act: off, or expired)"
				}
				fprintf(&b, "%s  %s%s\n  by %s: %s\n", r.ID, r.Sentence(), state, r.Author, r.Reason)
				if effect != nil && effect.Text != "" {
					fprintf(&b, "  effect (last minute, estimate): %s\n", effect.Text)
				}
			}
			if len(out) == 0 {
				a.sayf("%s has no such rules. yodel rule ls lists all.\n", args[0])
			}
			return a.show(out, text(b.String()), func() []string {
				var ids []string
				for i := range out {
					ids = append(ids, out[i].ID)
				}
				return ids
			})
		}),
	}))
}
