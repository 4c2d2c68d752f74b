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
	"os"
	"path/filepath"
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

// acting returns the rules of a service that act, or of all services, and why some of them cannot
// be read. It returns nothing if the registry keeps no rules.
func (a *app) acting(ctx context.Context, t *target, service string) (acting []rules.Rule, unread string) {
	book, err := t.book()
	if err != nil {
		return nil, ""
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	all, err := book.List(ctx, service)
	switch {
	case err != nil && len(all) > 0:
		unread = err.Error() // it says that the list is not complete
	case err != nil:
		unread = fmt.Sprintf("the rules cannot be read: %v", err)
	}
	now := time.Now()
	return slices.DeleteFunc(all, func(r rules.Rule) bool { return !r.Acts(now) }), unread
}

// sayActing is acting, and says at once why some of the rules cannot be read.
func (a *app) sayActing(ctx context.Context, t *target, service string) []rules.Rule {
	acting, unread := a.acting(ctx, t, service)
	if unread != "" {
		a.sayf("%s\n", unread)
	}
	return acting
}

// rulesOf returns the kinds of the active rules by service, and why some of the rules cannot be
// read.
func (a *app) rulesOf(ctx context.Context, t *target, service string) (kinds map[string][]string, unread string) {
	kinds = make(map[string][]string)
	acting, unread := a.acting(ctx, t, service)
	for _, r := range acting {
		if !slices.Contains(kinds[r.Service], r.Kind()) {
			kinds[r.Service] = append(kinds[r.Service], r.Kind())
		}
	}
	return kinds, unread
}

// callerName returns the name of the command in calls that it makes.
func callerName() string { return filepath.Base(os.Args[0]) }

// warnOfRecords says which records of all services are not rules.
func (a *app) warnOfRecords(ctx context.Context, t *target) {
	book, err := t.book()
	if err != nil {
		return // the registry keeps no rules
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	invalid, _ := book.Invalid(ctx, "") // rulesOf returns why the list is not complete
	a.sayInvalid(invalid)
}

// sayInvalid says which records are not rules.
func (a *app) sayInvalid(invalid []introspect.RuleState) {
	for _, r := range invalid {
		a.sayf("warning: the record %s of %s is not a valid rule, so no process begins to apply it: %s; yodel rule rm removes it\n", r.ID, r.Service, r.Problem)
	}
}

// ruleLines returns the rules that act on a call of the command itself, in words.
func (a *app) ruleLines(ctx context.Context, t *target, service, method string, metadata yodel.Metadata) []string {
	var lines []string
	for _, r := range a.sayActing(ctx, t, service) {
		seen := r
		seen.Identity = nil // the command does not know what a server verifies
		if !seen.Concerns(ctx, &yodel.Call{Method: service + "." + method, Metadata: metadata}, callerName()) {
			continue
		}
		lines = append(lines, r.ID+": "+r.Sentence())
	}
	return lines
}

// ruleOptions are the flags of commands that write rules.
type ruleOptions struct {
	changeOptions

	id, reason, author string
	expires            time.Duration
	endless            bool // the user has given 0
	rollback           string
	then               string

	method, caller, tenant, network string
	header, identity                []string

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
			r.Canary = &rules.Canary{To: to, Percent: o.percent, By: o.by, Then: o.then}
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
		a.ruleOnOff("on"), a.ruleOnOff("off"), a.ruleRm(), a.ruleHistory(), a.ruleRollback(), a.ruleExplain(),
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
	f.DurationVar(&o.expires, "expires", 0, "how long the rule acts; 0 means until it is removed (default: 24h for disable, fault and mock)")
	f.StringVar(&o.rollback, "auto-rollback", "", "`CONDITION` under which the rule switches itself off, such as 'ok<99% for 30s'")
	f.StringVar(&o.method, "method", "", "only calls of this method")
	f.StringVar(&o.caller, "caller", "", "only calls of this caller")
	f.StringVar(&o.tenant, "tenant", "", "only calls for this tenant")
	f.StringVar(&o.network, "network", "", "only calls from this IP address or `RANGE`, such as 10.0.0.0/8")
	f.StringArrayVar(&o.header, "header", nil, "only calls with this metadata, `KEY=VALUE`")
	f.StringArrayVar(&o.identity, "identity", nil, "only calls of callers whom the server has verified, `NAME=VALUE`; NAME is subject, tenant, claim:NAME, certificate, san or spiffe")
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
		f.StringVar(&o.then, "then", "", "what the instances get when the canary has ended: stop (no calls), keep (this percentage) or spread (the share of others) (default stop)")
	case "limit":
		f.StringVar(&o.by, "by", "", "user, address, caller, tenant, method or header:NAME: each value has a limit of its own")
	}
	return c
}

// signFlags adds the flags that say who makes a change, and why.
func (o *ruleOptions) signFlags(c *cobra.Command, a *app) {
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the history (required)")
	c.Flags().StringVar(&o.author, "author", "", "who, for the history (default: the variable YODEL_AUTHOR, or the name of the user)")
	c.PreRun = func(*cobra.Command, []string) {
		life := c.Flags().Lookup("expires")
		o.endless = life != nil && life.Changed && o.expires == 0
		o.author = cmp.Or(o.author, a.author())
	}
}

// pairsOf reads the values of a flag.
func pairsOf(what string, texts []string) (pairs map[string]string, err error) {
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, faultf(exitUsage, "the %s %q is not KEY=VALUE", what, text)
		}
		if pairs == nil {
			pairs = make(map[string]string)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// scope sets what concerns all kinds of rules.
func (o *ruleOptions) scope(r *rules.Rule) error {
	r.ID, r.Method, r.Caller, r.Tenant, r.Network, r.Author, r.Reason = o.id, o.method, o.caller, o.tenant, o.network, o.author, o.reason
	var err error
	if r.Header, err = pairsOf("header", o.header); err != nil {
		return err
	}
	if r.Identity, err = pairsOf("identity", o.identity); err != nil {
		return err
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
	o.limitLife(&r)
	given := r.Revision != 0
	if i := slices.IndexFunc(all, func(known rules.Rule) bool { return known.ID == r.ID }); i >= 0 && (r.Revision == 0 || o.force) {
		r.Revision = all[i].Revision // what the effect was computed with
	}
	traffic := a.trafficFor(ctx, f, view.Service(r.Service))
	effect := rules.Preview(&r, all, traffic)
	confirm := a.sayEffect(effect)
	if o.dryRun {
		if err := refused(r.Check()); err != nil {
			return err
		}
		return a.show(&r, text(r.Sentence()+" (dry run, nothing was changed)\n"), func() []string { return []string{r.ID} })
	}
	if err := refused(r.Check()); err != nil { // before the question about its effect
		return err
	}
	if r.Reason == "" {
		return ruleFault(&rules.InvalidError{Problems: []rules.Problem{{ID: "YDL-R004", Field: "reason", Text: "it is empty"}}})
	}
	if confirm != "" && !o.force {
		return a.forced(confirm)
	}
	if err := a.confirm(outer, t, o.yes, r.Service); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(outer, a.o.timeout+5*time.Second) // the user may have typed for longer
	defer cancel()
	began := time.Now()
	stored, err := book.Put(ctx, r)
	if err != nil {
		return a.ruleFault(err, given)
	}
	in := a.inForce(ctx, f, &stored)
	said := fmt.Sprintf(" stored rule %s of %s, revision %d: %s\n", stored.ID, stored.Service, stored.Revision, stored.Sentence())
	if in > 0 {
		said += fmt.Sprintf(" in force in %s after %s\n", processes(in), brief(time.Since(began)))
	} else {
		said += " no process of the fleet has said that it follows it\n"
	}
	said += undoLine(&stored, all, traffic)
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

// followers returns how many processes at addrs follow a revision of a rule.
func followers(ctx context.Context, f *fleet.Fleet, addrs []string, r *rules.Rule) int {
	var n atomic.Int64
	eachRules(ctx, f, addrs, func(all *introspect.Rules) {
		if slices.ContainsFunc(all.Rules, func(s introspect.RuleState) bool {
			return s.Service == r.Service && s.ID == r.ID && s.Revision == r.Revision
		}) {
			n.Add(1)
		}
	})
	return int(n.Load())
}

// eachRules calls found with the rules of each process at addrs that answers within a second. It
// asks at most 64 at a time, and calls found concurrently.
func eachRules(ctx context.Context, f *fleet.Fleet, addrs []string, found func(all *introspect.Rules)) {
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
			if now, err := rulesMethod.Call(ctx, client, &struct{}{}); err == nil {
				found(now)
			}
		})
	}
	wg.Wait()
}

// rulesMethod returns the rules that a process follows.
const rulesMethod yodel.Method[struct{}, introspect.Rules] = "yodel.Rules"

// addressesOf returns the addresses of the instances that can be asked, each once. Silent ones can
// be asked by a command that has the time.
func addressesOf(view *fleet.View, silent bool) (addrs []string) {
	for _, s := range view.Services {
		for _, in := range s.Instances {
			if in.State != fleet.Down && in.State != fleet.Listed && (silent || in.State != fleet.Silent && !in.Unasked) {
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

// ruleFault returns the fault for an error of a book. For a change that is based on an old
// revision, it has what has changed since, and the command that makes the change again. Given says
// that the user has given the revision, in JSON.
func (a *app) ruleFault(err error, given bool) error {
	conflict, ok := errors.AsType[*rules.ConflictError](err)
	if !ok {
		return ruleFault(err)
	}
	f := faultf(exitFailed, "%v", conflict)
	for _, line := range conflict.Diff {
		f.addf("changed", "%s", line)
	}
	if given { // with --force, it replaces the revision that is stored then
		return f.with("again", "%s --force", a.command())
	}
	return f.with("again", "%s", a.command())
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
		Long: partHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withBook(c.Context(), func(ctx context.Context, t *target, book *rules.Book) error {
				return a.listRules(ctx, book, strings.Join(args, ""), all)
			})
		},
	}))
	c.Flags().BoolVarP(&all, "all", "a", false, "also list rules that are off or have expired")
	return c
}

// across returns how many instances each service with a limit has that get calls.
func (a *app) across(ctx context.Context, list []rules.Rule) map[string]int {
	var services []string
	for i := range list {
		if list[i].Across(1) != "" && !slices.Contains(services, list[i].Service) {
			services = append(services, list[i].Service)
		}
	}
	if len(services) == 0 {
		return nil
	}
	f, _, done, err := a.fleet(ctx)
	if err != nil {
		return nil // the rules are listed nevertheless
	}
	defer done()
	view, err := f.Read(ctx, services...)
	if err != nil {
		return nil
	}
	of := make(map[string]int)
	for _, s := range view.Services {
		of[s.Name] = s.Active()
	}
	return of
}

// sentenceOf returns a rule in words, with what it means for so many instances.
func sentenceOf(r *rules.Rule, instances int) string {
	said := r.Sentence()
	if across := r.Across(instances); across != "" {
		said += " That is " + across + "."
	}
	return said
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
	list, invalid, incomplete := book.Read(ctx, service)
	if incomplete != nil && len(list) == 0 {
		return faultf(exitUnreachable, "%v", incomplete)
	}
	now := time.Now()
	out := []rules.Rule{}
	table := newTable("SERVICE", "ID", "KIND", "STATE", "EXPIRES", "AUTHOR", "RULE", "WHY")
	held, across := a.heldBack(ctx, list), a.across(ctx, list)
	for i := range list {
		r := &list[i]
		if !all && !r.Acts(now) {
			continue
		}
		out = append(out, *r)
		state, why := r.State(now), ""
		if state == "rolled back" {
			why = r.Reason
		}
		table.add(r.Service, r.ID, r.Kind(), state, expiryOf(r, now), r.Author, sentenceOf(r, across[r.Service]), cmp.Or(why, held[r.Service+"/"+r.ID], "-"))
	}
	if incomplete != nil {
		incomplete = partly(incomplete.Error())
	}
	a.sayInvalid(invalid)
	switch {
	case incomplete != nil: // there may be others
	case len(out) > 0:
	case len(list) > 0:
		a.sayf("No rule is active. %s off or expired: yodel rule ls --all\n", plural(len(list), "rule"))
	default:
		a.sayf("There are no rules. yodel rule canary SERVICE --to VERSION --percent 10 --reason … writes one.\n")
	}
	return cmp.Or(a.show(out, table, func() []string {
		var names []string
		for i := range out {
			names = append(names, out[i].Service+"/"+out[i].ID)
		}
		return names
	}), incomplete)
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
	c.Flags().DurationVar(&o.expires, "expires", 0, "how long the rule acts (default: as the JSON says, or 24h for disable, fault and mock)")
	return c
}

// faultOf makes an error of the input a fault of its user, unless it says more.
func faultOf(err error) error {
	if _, ok := errors.AsType[*rules.InvalidError](err); ok {
		return err
	}
	return &rules.InvalidError{Problems: []rules.Problem{{ID: "YDL-R001", Text: err.Error()}}}
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
				fprintf(&b, "%s  %s%s\n  by %s: %s\n", r.ID, sentenceOf(r, view.Service(args[0]).Active()), state, r.Author, r.Reason)
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
